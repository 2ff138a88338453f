#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "worker/engine/checkpoint/epoch_fence.h"
#include "worker/engine/checkpoint/manifest.h"

namespace weft::engine {

/// Name of the empty file in a checkpoint folder that says its hashes were read back and agreed.
inline constexpr char kVerifiedName[] = "verified";

/// `<run_dir>/checkpoints`.
std::string CheckpointsFolder(const std::string& run_dir);

/// `<run_dir>/checkpoints/step-00000100`.
std::string CheckpointPath(const std::string& run_dir, int64_t step);

/// A published checkpoint, as its folder shows it.
struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
  bool verified = false;  ///< Its marker is there; says nothing about damage since.
};

/// Published checkpoints, oldest first, without opening them. Empty when there are none yet.
Result<std::vector<CheckpointInfo>> ListCheckpoints(Env& env, const std::string& run_dir);

/// Reads every byte of the checkpoint in `path` and compares with the manifest. kCorrupt names the
/// file that is damaged, cut off or missing, and what to do; kNotFound when there is no checkpoint.
Result<CheckpointManifest> VerifyCheckpoint(Env& env, const std::string& path);

/// Verifies, then leaves the marker.
Result<CheckpointManifest> VerifyAndMark(Env& env, const std::string& path);

/// The newest checkpoint that is sound right now.
struct LatestCheckpoint {
  std::string path;
  CheckpointManifest manifest;
};
struct LatestSearch {
  std::optional<LatestCheckpoint> latest;
  std::vector<Status> rejected;  ///< Newer ones that are damaged, newest first.
};

/// Looks from the newest down until one passes VerifyCheckpoint.
Result<LatestSearch> LatestVerified(Env& env, const std::string& run_dir);

/// Which checkpoints to delete once the one of step `verified_now` has been verified.
struct Retention {
  int64_t verified_now = 0;
  int64_t keep_last = 1;
  std::optional<int64_t> resume_step;  ///< Where the running attempt started from: never deleted.
};

/// Picks the checkpoints to delete: all older than `verified_now` except the newest verified ones,
/// which with verified_now make keep_last. Checkpoints past verified_now neither count nor go: they
/// are of a run that was given up because they are damaged.
std::vector<CheckpointInfo> ToCollect(const std::vector<CheckpointInfo>& checkpoints,
                                      const Retention& retention);

/// Deletes what ToCollect says, each atomically: a checkpoint is whole or gone; and leftovers, so
/// no write may be under way. Returns how many. kConflict when a newer attempt owns the folder.
Result<int64_t> CollectCheckpoints(Env& env, const std::string& run_dir, EpochFence& fence,
                                   const Retention& retention);

/// Deletes what interrupted writes and deletions left. Only after the epoch is claimed.
Status RemoveLeftovers(Env& env, const std::string& run_dir);

/// Names in the checkpoints folder that begin with this are work in progress of one attempt.
inline constexpr char kTemporaryPrefix[] = ".tmp-";

}  // namespace weft::engine
