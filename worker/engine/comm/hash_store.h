#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "worker/engine/comm/store.h"

namespace weft::engine {

/// A Store for ranks that are threads of one process.
class HashStore : public Store {
 public:
  Status Set(const std::string& key, std::string_view value) override;
  Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace weft::engine
