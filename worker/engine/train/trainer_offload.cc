// What a training step does otherwise where parameters and the optimizer's state stand in the host
// tier.
#include <memory>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/update_pipeline.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

Status Trainer::UploadWeights(Context& context) {
  const ParameterSet& parameters = parts_.model->parameters();
  const Repack what = stale_.value_or(Repack::kTrained);
  WEFT_RETURN_IF_ERROR(ForgetWeights());
  if (uploader_ == nullptr) return parts_.model->Pack(context, what);
  WEFT_RETURN_IF_ERROR(uploader_->Finish());
  TransferQueue& up = context.host->up();
  WEFT_RETURN_IF_ERROR(up.Follow(context.stream));
  for (int64_t unit = 0; unit < parameters.units(); ++unit) {
    parameters.UploadOperands(context, unit);
  }
  WEFT_RETURN_IF_ERROR(parts_.model->Pack(context, what));
  return up.Precede(context.stream);
}

// The weights of a tile go up while the next tile is updated, and the next step computes with those
// that have come. Of ranks that share the update they go up once they are gathered.
Status Trainer::UpdateOffloaded(StepReport& report) {
  Context& context = *parts_.context;
  HostMemoryPool& host = *context.host;
  if (totals_.host().made == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(ForgetWeights());
  if (Delays() || RunsBeside()) return StartUpdate(report, Delays());
  // What a late update has made may still be on its way.
  if (uploader_ != nullptr) WEFT_RETURN_IF_ERROR(uploader_->Finish());
  const bool shares = !ranks_.updated_parts().empty();
  if (!shares) {
    host.updated().Start();
    if (uploader_ != nullptr) uploader_->Start(context);
  }
  const Status updated = UpdateParameters(report);
  host.updated().Finish();
  WEFT_RETURN_IF_ERROR(updated);
  WEFT_RETURN_IF_ERROR(UpdateKept(report));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  if (!shares) return OkStatus();
  WEFT_RETURN_IF_ERROR(ranks_.GatherParameters(report.seconds));
  if (uploader_ != nullptr) uploader_->Start(context);
  return clock_.Start(context);
}

Status Trainer::ForgetWeights() {
  ParameterPrefetcher* const prefetcher = parts_.model->parameters().prefetcher();
  return prefetcher != nullptr ? prefetcher->Forget() : OkStatus();
}

// Beside the way of the others' weights, which come later in the next forward pass.
Status Trainer::UpdateKept(const StepReport& report) {
  if (kept_updater_ == nullptr) return OkStatus();
  Context& context = *parts_.context;
  {
    ProfileScope scope(context.profiler, "update");
    WEFT_RETURN_IF_ERROR(kept_updater_->Update(context, UpdateArgsOf(report)));
  }
  ProfileScope scope(context.profiler, "pack weights");
  const ParameterSet& parameters = parts_.model->parameters();
  for (const ParameterSet::CopiesOf& of : parameters.copies()) {
    if (parameters.on_host(of.first) || !of.copies->trained()) continue;
    WEFT_RETURN_IF_ERROR(of.copies->Make(context));
  }
  return OkStatus();
}

// Early gradients change fast: the first steps are not delayed, as in section 5.2 of the paper. The
// last one makes its update itself.
bool Trainer::Delays() const {
  constexpr int64_t kFirstDelayed = 40;
  return plan_.delayed_update && counters_.step >= kFirstDelayed &&
         counters_.step + 1 < job_.train.steps;
}

// Ranks that share the update gather what it has made, and techniques may read it; on a GPU the
// host waits in no pass. After the last step there is none.
bool Trainer::RunsBeside() const {
  const bool on_cpu = parts_.context->stream.device.type == DeviceType::kCpu;
  return on_cpu && ranks_.updated_parts().empty() && !techniques_.ReadsUpdatedParameters() &&
         counters_.step + 1 < job_.train.steps;
}

Trainer::UpdateUnderWay::~UpdateUnderWay() {
  if (update_pipeline != nullptr && running.valid())
    update_pipeline->Fail(AbortedError("the update was given up"));
}

Status Trainer::StartUpdate(const StepReport& report, bool late) {
  ParameterSet& parameters = parts_.model->parameters();
  UpdatePipeline* const update_pipeline =
      parameters.file() != nullptr ? &parameters.file()->update_pipeline() : nullptr;
  under_way_ = std::make_unique<UpdateUnderWay>();
  UpdateUnderWay& update = *under_way_;
  update.late = late;
  update.context = StateContext();
  update.context.profiler = nullptr;  // another thread's
  update.factor = totals_.host().factor;
  update.update_pipeline = update_pipeline;
  update.args = {.learning_rate = report.learning_rate,
                 .update = counters_.updates + 1,
                 .gate = {.factor = &update.factor, .made = &update.made},
                 .gradients = parameters.gradients().As<float>(),
                 .beside = true,
                 .walk = update_pipeline};
  if (late) {
    other_gradients_ = parameters.MoveGradients(std::move(other_gradients_));
    WEFT_RETURN_IF_ERROR(parts_.reducer->GradientsMoved());
  } else {
    if (uploader_ != nullptr) WEFT_RETURN_IF_ERROR(uploader_->Finish());
    parts_.context->host->updated().Start();
    if (uploader_ != nullptr) uploader_->Start(*parts_.context);
    if (update_pipeline != nullptr) WEFT_RETURN_IF_ERROR(update_pipeline->Open());
  }
  update.running =
      std::async(std::launch::async, [this, &update, threads = kernels::cpu::Threads()] {
        kernels::cpu::SetThreads(threads);
        return RunUpdate(update);
      });
  return late ? OkStatus() : UpdateKept(report);
}

Status Trainer::RunUpdate(UpdateUnderWay& update) {
  // What the update before a late one has made is still on its way to the device.
  if (uploader_ != nullptr && update.late) WEFT_RETURN_IF_ERROR(uploader_->FinishBeside());
  Status updated = updater_->Update(update.context, update.args);
  if (!updated.ok() && update.update_pipeline != nullptr) update.update_pipeline->Fail(updated);
  if (!update.late) update.context.host->updated().Finish();
  return updated;
}

Status Trainer::FinishUpdates() {
  if (uploader_ != nullptr) WEFT_RETURN_IF_ERROR(uploader_->Finish());
  if (under_way_ == nullptr) return update_status_;
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  const Status passed =
      under_way_->update_pipeline != nullptr ? under_way_->update_pipeline->Close() : OkStatus();
  if (!passed.ok()) under_way_->update_pipeline->Fail(passed);
  const Status updated = under_way_->running.get();
  const bool late = under_way_->late;
  under_way_.reset();
  context.host->updated().Finish();
  update_status_ = updated.ok() ? passed : updated;
  WEFT_RETURN_IF_ERROR(update_status_);
  if (!late) return clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer);
  if (!ranks_.updated_parts().empty()) WEFT_RETURN_IF_ERROR(parts_.reducer->GatherParameters());
  if (uploader_ != nullptr && stale_.value_or(Repack::kTrained) == Repack::kTrained) {
    uploader_->Start(context);
  } else {
    WEFT_RETURN_IF_ERROR(UploadWeights(context));
  }
  stale_.reset();
  return clock_.Mark(context, "wait for weights", &PhaseSeconds::communication_exposed);
}

void Trainer::ReportTiers(StepReport& report) {
  report.tiers.device_bytes = TotalBytes(report.step_memory);
  HostMemoryPool* tier = parts_.context->host;
  if (tier == nullptr) return;
  Allocator& host = tier->allocator();
  report.device_memory = report.peak_memory;
  AddTo(report.peak_memory, host.Peaks());
  const MemoryBreakdown held = host.TakeRecentPeaks();
  AddTo(report.step_memory, held);
  report.tiers.host_bytes = TotalBytes(held);
  report.tiers.file_bytes = tier->files().bytes;
  const double waited = tier->WaitedSeconds();
  report.tiers.stall_seconds = waited - std::exchange(waited_for_tiers_, waited);
}

}  // namespace weft::engine
