#pragma once

#include <cstdint>
#include <string>

#include "common/env.h"
#include "common/status.h"

namespace weft::engine {

/// Keeps an attempt that was given up (its machine came back after a pause) from writing into the
/// folder of a job whose newer attempt runs. The claimed epochs are the file names in
/// `<run_dir>/epochs`; the greatest one holds, so claims that race cannot undo each other.
class EpochFence {
 public:
  EpochFence(Env& env, const std::string& run_dir, int64_t epoch);

  /// Records the epoch durably. kConflict when a newer one is recorded.
  Status Claim();

  /// kConflict when a newer epoch has been claimed: the caller must not change the folder.
  Status Check();

  int64_t epoch() const { return epoch_; }

 private:
  Result<int64_t> Newest();

  Env& env_;
  std::string folder_;
  int64_t epoch_;
};

}  // namespace weft::engine
