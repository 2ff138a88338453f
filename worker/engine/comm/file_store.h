#pragma once

#include <string>

#include "common/env.h"
#include "worker/engine/comm/store.h"

namespace weft::engine {

/// A Store in a folder that the rank processes share: one file a key. For ranks without daemons.
/// The folder must be new for each attempt, since what an earlier one set would be found.
class FileStore : public Store {
 public:
  /// Makes the folder when needed at the first Set.
  FileStore(Env& env, std::string folder) : env_(env), folder_(std::move(folder)) {}

  Status Set(const std::string& key, std::string_view value) override;
  Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  std::string Path(const std::string& key) const;

  Env& env_;
  std::string folder_;
};

}  // namespace weft::engine
