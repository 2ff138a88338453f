#include "worker/engine/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/memory_errors.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/publish.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options)
    : options_(std::move(options)), fence_(*options_.env, options_.run_dir, options_.epoch) {}

CheckpointWriter::~CheckpointWriter() {
  if (running_.valid()) running_.wait();
}

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Open(CheckpointWriterOptions options) {
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(std::move(options)));
  if (!writer->first_rank()) return writer;
  WEFT_RETURN_IF_ERROR(writer->fence_.Claim());
  WEFT_RETURN_IF_ERROR(PrepareCheckpointsFolder(*writer->options_.env, writer->options_.run_dir));
  return writer;
}

bool CheckpointWriter::busy() const {
  return running_.valid() &&
         running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

Status CheckpointWriter::Wait() {
  if (running_.valid()) last_ = running_.get();
  return last_;
}

Result<CheckpointWriter::Snapshot> CheckpointWriter::Take(const std::vector<NamedTensor>& tensors,
                                                          const Stream& stream) {
  const bool in_file = std::any_of(tensors.begin(), tensors.end(), [](const NamedTensor& tensor) {
    return tensor.stored != nullptr;
  });
  if (in_file) return Snapshot{.bytes = nullptr, .tensors = tensors, .gone = {}};
  size_t total = 0;
  for (const NamedTensor& tensor : tensors) total += tensor.view.Bytes();
  Snapshot snapshot;
  snapshot.bytes.reset(new (std::nothrow) std::byte[total]);
  if (snapshot.bytes == nullptr) {
    return ExhaustedError("no memory for a copy of " + std::to_string(total) +
                          " bytes of training state");
  }
  size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    NamedTensor copy = tensor;
    copy.view.data = snapshot.bytes.get() + offset;
    copy.view.device = {};
    WEFT_RETURN_IF_ERROR(Download(stream, tensor.view, copy.view.data));
    offset += tensor.view.Bytes();
    snapshot.tensors.push_back(std::move(copy));
  }
  return snapshot;
}

Result<double> CheckpointWriter::Save(CheckpointManifest manifest,
                                      const std::vector<NamedTensor>& tensors,
                                      const Stream& stream) {
  Stopwatch watch;
  CheckpointProgress progress;
  progress.step = manifest.step;
  progress.path = CheckpointPath(options_.run_dir, manifest.step);
  (void)Wait();  // its outcome has been reported
  if (peers() != nullptr) peers()->Begin();
  double held_up = 0;
  Status started = CatchExhaustion("starting a checkpoint", [&]() -> Status {
    WEFT_ASSIGN_OR_RETURN(Snapshot snapshot, Take(tensors, stream));
    const bool copied = snapshot.bytes != nullptr;
    const std::future<void> gone = snapshot.gone.get_future();
    held_up = progress.snapshot_seconds = watch.Lap();
    running_ = std::async(std::launch::async, [this, manifest = std::move(manifest),
                                               copy = std::move(snapshot), progress]() mutable {
      return Run(std::move(manifest), std::move(copy), std::move(progress));
    });
    if (!copied) gone.wait();
    held_up += watch.Lap();
    return OkStatus();
  });
  if (!started.ok()) {
    if (peers() != nullptr) first_rank() ? peers()->End() : (void)peers()->ReportFile(started);
    last_ = ReportFailure(std::move(progress), started);
    return last_;
  }
  return held_up;
}

Status CheckpointWriter::Run(CheckpointManifest manifest, Snapshot snapshot,
                             CheckpointProgress progress) {
  if (!first_rank()) {
    return WriteShare(*options_.env, options_.run_dir, fence_.epoch(), manifest.step,
                      snapshot.tensors, *peers());
  }
  Status status = CatchExhaustion("verifying a checkpoint", [&] {
    return WriteAndVerify(std::move(manifest), std::move(snapshot), progress);
  });
  if (!status.ok()) {
    if (status.code() == StatusCode::kConflict) fenced_ = true;
    return ReportFailure(std::move(progress), status);
  }
  progress.state = CheckpointProgress::State::kVerified;
  Report(progress);
  Result<int64_t> collected = CollectCheckpoints(*options_.env, options_.run_dir, fence_,
                                                 {progress.step, options_.keep_last, resume_step_});
  if (!collected.ok()) {
    // The checkpoint is safe; what could not be deleted is looked at again after the next one.
    if (collected.status().code() == StatusCode::kConflict) fenced_ = true;
    WEFT_LOG_WARNING << "deleting old checkpoints: " << collected.status().message();
  }
  return OkStatus();
}

Status CheckpointWriter::WriteAndVerify(CheckpointManifest manifest, Snapshot snapshot,
                                        CheckpointProgress& progress) {
  Stopwatch watch;
  const bool copied = snapshot.bytes != nullptr;
  WEFT_ASSIGN_OR_RETURN(
      manifest, PublishCheckpoint(*options_.env, options_.run_dir, fence_, std::move(manifest),
                                  snapshot.tensors, peers()));
  snapshot = {};
  for (const CheckpointFile& file : manifest.files) progress.bytes += file.bytes;
  progress.write_seconds = watch.Lap();
  if (!copied) progress.snapshot_seconds += progress.write_seconds;
  Report(progress);
  WEFT_RETURN_IF_ERROR(Failpoint("checkpoint.before_verify"));
  WEFT_RETURN_IF_ERROR(VerifyAndMark(*options_.env, progress.path).status());
  progress.verify_seconds = watch.Lap();
  return Failpoint("checkpoint.after_verify");
}

Status CheckpointWriter::ReportFailure(CheckpointProgress progress, const Status& status) const {
  progress.state = CheckpointProgress::State::kFailed;
  progress.error = status;
  if (first_rank()) Report(progress);
  return status;
}

void CheckpointWriter::Report(const CheckpointProgress& progress) const {
  if (options_.report) options_.report(progress);
}

}  // namespace weft::engine
