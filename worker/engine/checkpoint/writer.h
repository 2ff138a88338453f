#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "kernels/stream.h"
#include "worker/engine/checkpoint/epoch_fence.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/checkpoint/peers.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// How far the checkpoint of a step got.
struct CheckpointProgress {
  enum class State { kWritten, kVerified, kFailed };
  State state = State::kWritten;
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double snapshot_seconds = 0;  ///< Training waited.
  double write_seconds = 0;     ///< In the background, as is what follows.
  double verify_seconds = 0;
  Status error;  ///< With kFailed.
};

struct CheckpointWriterOptions {
  Env* env = nullptr;
  std::string run_dir;
  int64_t epoch = 0;
  int64_t keep_last = 1;

  /// Told of every step of every checkpoint, on the writer's thread; on rank 0.
  std::function<void(const CheckpointProgress&)> report = {};

  /// Where ranks hold parts of the state: each of them saves, with a writer of its own.
  std::optional<CheckpointPeers> peers = std::nullopt;
};

/// Saves checkpoints during the training: Save copies the tensors and returns, a thread writes the
/// copy, publishes it, reads it back and only then deletes old ones. A state that is partly
/// in a file, for want of memory, is not copied: Save returns when it is published. What fails is
/// reported and leaves the older checkpoints as they were; the next Save tries anew. One caller.
class CheckpointWriter {
 public:
  /// Claims the epoch and prepares the folder, on rank 0. kConflict when a newer attempt owns it.
  static Result<std::unique_ptr<CheckpointWriter>> Open(CheckpointWriterOptions options);

  /// Waits for a save under way.
  ~CheckpointWriter();

  /// The attempt starts from the checkpoint of `step`, which is then never deleted. Before Save.
  void KeepResumeStep(int64_t step) { resume_step_ = step; }

  /// A save is under way; another Save would wait for it.
  bool busy() const;

  /// A newer attempt owns the folder: this one has no business any more.
  bool fenced() const { return fenced_; }

  /// Starts the checkpoint of manifest.step. Returns the seconds the caller was held up; kExhausted
  /// without memory for the copy (reported as well). The tensors may change once it returns.
  /// `stream`: of the device that they are on.
  Result<double> Save(CheckpointManifest manifest, const std::vector<NamedTensor>& tensors,
                      const Stream& stream = {});

  /// Waits until no save is under way. The outcome of the last one: OK means it is verified, or on
  /// another rank than 0 that its share is written.
  Status Wait();

 private:
  struct Snapshot {
    std::unique_ptr<std::byte[]> bytes;  ///< Or none: the tensors are those of the training.
    std::vector<NamedTensor> tensors;
    std::promise<void> gone;  ///< Never kept: its future is ready when the snapshot goes.
  };

  explicit CheckpointWriter(CheckpointWriterOptions options);
  static Result<Snapshot> Take(const std::vector<NamedTensor>& tensors, const Stream& stream);
  CheckpointPeers* peers() { return options_.peers ? &*options_.peers : nullptr; }
  bool first_rank() const { return !options_.peers || options_.peers->rank() == 0; }
  Status Run(CheckpointManifest manifest, Snapshot snapshot, CheckpointProgress progress);
  Status WriteAndVerify(CheckpointManifest manifest, Snapshot snapshot,
                        CheckpointProgress& progress);
  void Report(const CheckpointProgress& progress) const;
  /// Returns `status`.
  Status ReportFailure(CheckpointProgress progress, const Status& status) const;

  CheckpointWriterOptions options_;
  EpochFence fence_;
  std::optional<int64_t> resume_step_;
  std::atomic<bool> fenced_{false};
  std::future<Status> running_;
  Status last_;
};

}  // namespace weft::engine
