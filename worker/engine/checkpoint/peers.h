#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/comm/store.h"

namespace weft::engine {

/// How the ranks of an attempt that each hold a part of the state write one checkpoint: rank 0
/// makes the folder and invites the others, each writes its file there and says so, and rank 0
/// publishes all of them. All ranks begin the same saves in the same order. The store outlives
/// this; one save at a time.
class CheckpointPeers {
 public:
  CheckpointPeers(Store* store, int64_t rank, int64_t ranks)
      : store_(store), rank_(rank), ranks_(ranks) {}

  int64_t rank() const { return rank_; }
  int64_t ranks() const { return ranks_; }

  /// The next save begins.
  void Begin();

  /// Rank 0: the folder is there.
  Status Invite();
  /// Rank 0: the files of the others, by rank. The first error of one of them.
  Result<std::vector<CheckpointFile>> Files();
  /// Rank 0: the save has ended. Whoever waits for an invitation learns that there will be none.
  void End();

  /// Another rank: waits for the invitation; false when its file is not wanted.
  Result<bool> Invited();
  /// Another rank: it has written its file, or failed to.
  Status ReportFile(const Result<CheckpointFile>& file);

 private:
  std::string Key(const std::string& what) const;

  Store* store_;
  int64_t rank_;
  int64_t ranks_;
  int64_t save_ = 0;  ///< Counted from 1.
  bool opened_ = false;
};

}  // namespace weft::engine
