// What an attempt saves, and when.
#include <array>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/trainer/attempt.h"
#include "worker/trainer/base_weights.h"

namespace weft::trainer {

using engine::CheckpointProgress;

engine::CheckpointManifest Attempt::Manifest() const {
  const engine::TrainCounters& counters = trainer_->counters();
  engine::CheckpointManifest manifest;
  manifest.job_id = spec_.job_id;
  manifest.step = counters.step;
  manifest.updates = counters.updates;
  manifest.skipped_steps = counters.skipped_steps;
  manifest.tokens = counters.tokens;
  manifest.overflows = counters.overflows;
  manifest.loss_scale = counters.loss_scale;
  manifest.data_offset = counters.data_offset;
  manifest.loss_spikes = counters.loss_spikes;
  manifest.rollbacks = counters.rollbacks;
  manifest.recent_losses = counters.recent_losses;
  manifest.rounds = counters.rounds;
  manifest.data_fingerprint = data_.fingerprint;
  manifest.base_fingerprint = base_fingerprint_;
  manifest.base_tensors = base_tensors_;
  manifest.seed = spec_.job.train.seed;
  manifest.world_size = spec_.world_size;
  manifest.created_at = Clock::System().UnixSeconds();
  manifest.job = spec_.job;
  manifest.plan = spec_.plan;
  return manifest;
}

std::vector<engine::NamedTensor> Attempt::StateToSave() {
  std::vector<engine::NamedTensor> tensors = trainer_->StateTensors();
  std::erase_if(tensors, [](const engine::NamedTensor& tensor) { return !tensor.saved; });
  EraseBase(base_tensors_, model_->parameters(), tensors);
  return tensors;
}

void Attempt::ReportSaving() {
  ActivityMessage message{"saving"};
  if (checkpoints_ != nullptr) {
    for (const engine::NamedTensor& tensor : StateToSave()) {
      message.saved_bytes += static_cast<int64_t>(tensor.view.Bytes());
    }
  }
  activity_.Report(std::move(message));
}

Status Attempt::CheckState(int64_t dropped_allowed) {
  const std::string step = std::to_string(trainer_->counters().step);
  WEFT_ASSIGN_OR_RETURN(bool finite, trainer_->WeightsAreFinite());
  if (!finite) return NumericsError("weights are not finite after step " + step);
  if (skipped_in_a_row_ <= dropped_allowed) return OkStatus();
  return NumericsError("the updates of " + std::to_string(skipped_in_a_row_) +
                       " steps in a row up to step " + step + " were dropped");
}

Status Attempt::SaveInBackground() {
  // Whether or not anything is saved, here or by others: a run that resumes here goes on as this
  // one.
  WEFT_RETURN_IF_ERROR(trainer_->FinishUpdates());
  if (checkpoints_ == nullptr) return OkStatus();
  const int64_t step = trainer_->counters().step;
  WEFT_ASSIGN_OR_RETURN(const bool busy, OnAnyRank(checkpoints_->busy()));
  if (busy || skipped_in_a_row_ > 0) {
    if (!first_rank()) return OkStatus();
    Event("warning", "no checkpoint of step " + std::to_string(step) +
                         (busy ? ": the previous one is still being written; hint: raise "
                                 "checkpoint.every_steps"
                               : ": its update was dropped"));
    return OkStatus();
  }
  WEFT_RETURN_IF_ERROR(CheckState(0));
  if (curve_) WEFT_RETURN_IF_ERROR(curve_->Sync());
  Result<double> held_up = checkpoints_->Save(Manifest(), StateToSave(), context_.stream);
  if (!held_up.ok()) return OkStatus();  // reported; the next interval tries again
  checkpoint_stall_ += *held_up;
  saved_step_ = step;
  NoteSeconds();
  return OkStatus();
}

Status Attempt::RestoreSnapshot() {
  if (spec_.job.checkpoint.peer_every_steps == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(snapshots_, PeerSnapshots::Open(env_, spec_, group_.get()));
  ReportActivity("loading");
  WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> step, snapshots_->Restore());
  if (!first_rank()) return OkStatus();
  if (!snapshots_->warning().empty()) Event("warning", snapshots_->warning());
  if (!step) return OkStatus();
  Event("info", "goes on from the snapshot of step " + std::to_string(*step) +
                    ", newer than all checkpoints");
  CheckpointMessage message;
  message.state = "verified";
  message.step = *step;
  message.path = engine::CheckpointPath(spec_.run_dir, *step);
  reporter_.Report(std::move(message));
  return OkStatus();
}

Status Attempt::TakeSnapshot() {
  WEFT_RETURN_IF_ERROR(trainer_->FinishUpdates());
  if (skipped_in_a_row_ > 0) return OkStatus();  // on all ranks alike
  WEFT_ASSIGN_OR_RETURN(const bool finite, trainer_->WeightsAreFinite());
  std::array<double, 1> bad = {finite ? 0.0 : 1.0};
  if (group_->size() > 1) WEFT_RETURN_IF_ERROR(engine::SumScalars(*group_, bad));
  if (bad[0] > 0) return OkStatus();  // the next checkpoint says so
  engine::Stopwatch watch;
  if (curve_) WEFT_RETURN_IF_ERROR(curve_->Sync());
  WEFT_ASSIGN_OR_RETURN(
      const std::string failed,
      snapshots_->Take(Manifest(), saving_rank(), saving_ranks(), StateToSave(), context_.stream));
  NoteSeconds();
  checkpoint_stall_ += watch.Lap();
  if (!failed.empty() && !snapshot_failed_ && first_rank()) {
    Event("warning",
          "no snapshot of step " + std::to_string(trainer_->counters().step) + ": " + failed);
  }
  snapshot_failed_ = !failed.empty();
  return OkStatus();
}

Status Attempt::SaveAndWait() {
  WEFT_RETURN_IF_ERROR(trainer_->FinishUpdates());
  if (checkpoints_ == nullptr) return OkStatus();
  const int64_t step = trainer_->counters().step;
  const bool saved = saved_step_ == step && checkpoints_->Wait().ok();
  WEFT_ASSIGN_OR_RETURN(const bool wanted, OnAnyRank(!saved));
  if (!wanted) return OkStatus();
  if (curve_) WEFT_RETURN_IF_ERROR(curve_->Sync());
  WEFT_RETURN_IF_ERROR(checkpoints_->Save(Manifest(), StateToSave(), context_.stream).status());
  return checkpoints_->Wait();
}

void Attempt::ReportCheckpoint(const CheckpointProgress& progress) {
  CheckpointMessage message;
  switch (progress.state) {
    case CheckpointProgress::State::kWritten:
      message.state = "written";
      break;
    case CheckpointProgress::State::kVerified:
      message.state = "verified";
      if (saves_) saves_->OnBackground(progress.write_seconds + progress.verify_seconds);
      WEFT_LOG_INFO << "checkpoint " << progress.path << " verified, " << progress.bytes
                    << " bytes";
      break;
    case CheckpointProgress::State::kFailed:
      message.state = "failed";
      Event("error", "checkpoint of step " + std::to_string(progress.step) +
                         " failed: " + progress.error.message());
      break;
  }
  message.step = progress.step;
  message.path = progress.path;
  message.bytes = progress.bytes;
  message.snapshot_seconds = progress.snapshot_seconds;
  message.write_seconds = progress.write_seconds;
  message.verify_seconds = progress.verify_seconds;
  message.error = progress.error.message();
  reporter_.Report(std::move(message));
}

}  // namespace weft::trainer
