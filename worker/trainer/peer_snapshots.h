#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/status.h"
#include "kernels/stream.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::trainer {

/// Which ranks keep each other's snapshots: those of the same number. Workers are taken in pairs,
/// of an odd number the last three together, so that of whatever rank another worker has a copy.
/// One worker alone keeps its own.
std::vector<int64_t> BuddyGroups(const std::vector<std::string>& rank_workers);

/// Snapshots of the training state in the memory of two machines (checkpoint.peer_every_steps), so
/// that the loss of one machine loses few steps or none. Each rank keeps what it would save, and
/// what its buddies would, in files of the same format as a checkpoint's, below memory_dir of its
/// worker; the two newest snapshots are there. All ranks call the same functions in the same order.
class PeerSnapshots {
 public:
  /// `world`: all ranks; outlives this.
  static Result<std::unique_ptr<PeerSnapshots>> Open(Env& env, const AttemptSpec& spec,
                                                     engine::Collective* world);

  /// Keeps the state of manifest.step: `tensors` are what this rank saves as number `saving_rank`
  /// of `saving_ranks`; nothing when its number is not among them. Why nothing was kept, where some
  /// rank had no room or failed; empty on success. An error means that a peer is lost.
  Result<std::string> Take(engine::CheckpointManifest manifest, int64_t saving_rank,
                           int64_t saving_ranks, const std::vector<engine::NamedTensor>& tensors,
                           const Stream& stream);

  /// Makes a checkpoint in the run folder of the newest snapshot whose files are all left among
  /// the ranks, if it is newer than the newest verified checkpoint. Its step. All snapshots are
  /// gone then.
  Result<std::optional<int64_t>> Restore();

  /// All snapshots of this run are void: the training is complete, or went back.
  Status Forget();

  /// Why Restore did not use a snapshot that it found; empty: it found none, or used it. Rank 0.
  const std::string& warning() const { return warning_; }

 private:
  struct Found {
    std::string folder;
    int64_t of = 0;  ///< Files of the whole.
    engine::CheckpointManifest manifest;
  };

  PeerSnapshots(Env& env, const AttemptSpec& spec, engine::Collective* world);
  std::string Folder(int64_t step, int64_t of) const;
  Status Write(engine::CheckpointManifest& manifest, int64_t saving_rank, int64_t saving_ranks,
               const std::vector<engine::NamedTensor>& tensors, const Stream& stream,
               std::string& own);
  Status Keep(engine::CheckpointManifest& manifest, const std::vector<std::string>& all);
  /// Finds the snapshots of all ranks of this worker that ever kept some of this run.
  std::vector<Found> FindAll() const;
  /// An error text of each rank that has one, with its number; empty: none has.
  Result<std::string> Errors(const Status& own);
  Status Prune(int64_t newest) const;
  Result<std::optional<int64_t>> RestoreNewest();

  Env& env_;
  const AttemptSpec& spec_;
  engine::Collective* world_;
  std::unique_ptr<engine::Collective> buddies_;
  std::string run_folder_;   ///< Of all ranks of this worker; empty: it has none.
  std::string rank_folder_;  ///< In it.
  std::string work_folder_;  ///< In that, what is not complete.
  std::string warning_;
};

}  // namespace weft::trainer
