// What a training step does otherwise where parameters and the optimizer's state stand in the host
// tier.
#include <memory>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "worker/engine/tensor/host_tier.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

Status Trainer::UploadWeights(Context& context) {
  const ParameterSet& parameters = parts_.model->parameters();
  const Repack what = stale_.value_or(Repack::kTrained);
  if (arrival_ == nullptr) return parts_.model->Pack(context, what);
  WEFT_RETURN_IF_ERROR(arrival_->Finish());
  LinkLane& up = context.host->up();
  WEFT_RETURN_IF_ERROR(up.Follow(context.stream));
  for (int64_t unit = 0; unit < parameters.units(); ++unit) {
    parameters.UploadOperands(context, unit);
  }
  WEFT_RETURN_IF_ERROR(parts_.model->Pack(context, what));
  return up.Precede(context.stream);
}

// The weights of a tile go up while the next tile is updated, and what is left of them while the
// next step computes with those before. Of ranks that share the update they go up once they are
// gathered.
Status Trainer::UpdateOffloaded(StepReport& report) {
  Context& context = *parts_.context;
  HostTier& host = *context.host;
  if (totals_.host()->made == 0) return OkStatus();
  if (Delays()) return DelayUpdate(report);
  // What a late update has made may still be on its way.
  if (arrival_ != nullptr) WEFT_RETURN_IF_ERROR(arrival_->Finish());
  const bool shares = !parts().empty();
  if (!shares) {
    host.updated().Start();
    if (arrival_ != nullptr) arrival_->Start(context);
  }
  const Status updated = UpdateParameters(report);
  host.updated().Finish();
  WEFT_RETURN_IF_ERROR(updated);
  WEFT_RETURN_IF_ERROR(UpdateKept(report));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  if (!shares) return OkStatus();
  WEFT_RETURN_IF_ERROR(GatherParameters(report.seconds));
  if (arrival_ != nullptr) arrival_->Start(context);
  return clock_.Start(context);
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

Status Trainer::DelayUpdate(const StepReport& report) {
  ParameterSet& parameters = parts_.model->parameters();
  delayed_ = std::make_unique<DelayedUpdate>();
  DelayedUpdate& d = *delayed_;
  d.context = StateContext();
  d.context.profiler = nullptr;  // another thread's
  d.factor = totals_.host()->factor;
  d.args = {.learning_rate = report.learning_rate,
            .update = counters_.updates + 1,
            .gate = {.factor = &d.factor, .made = &d.made},
            .gradients = parameters.gradients().As<float>()};
  other_gradients_ = parameters.MoveGradients(std::move(other_gradients_));
  WEFT_RETURN_IF_ERROR(parts_.reducer->GradientsMoved());
  d.running = std::async(std::launch::async, [this, &d, threads = kernels::cpu::Threads()] {
    kernels::cpu::SetThreads(threads);
    // What the update before has made is still on its way to the device.
    if (arrival_ != nullptr) WEFT_RETURN_IF_ERROR(arrival_->FinishBeside());
    return updater_->Update(d.context, d.args);
  });
  return OkStatus();
}

Status Trainer::FinishUpdates() {
  if (arrival_ != nullptr) WEFT_RETURN_IF_ERROR(arrival_->Finish());
  if (delayed_ == nullptr) return OkStatus();
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  const Status updated = delayed_->running.get();
  delayed_.reset();
  context.host->updated().Finish();
  WEFT_RETURN_IF_ERROR(updated);
  if (!parts().empty()) WEFT_RETURN_IF_ERROR(parts_.reducer->GatherParameters());
  if (arrival_ != nullptr && stale_.value_or(Repack::kTrained) == Repack::kTrained) {
    arrival_->Start(context);
  } else {
    WEFT_RETURN_IF_ERROR(UploadWeights(context));
  }
  stale_.reset();
  return clock_.Mark(context, "wait for weights", &PhaseSeconds::communication_exposed);
}

void Trainer::ReportTiers(StepReport& report) {
  report.tiers.device_bytes = TotalBytes(report.step_memory);
  HostTier* tier = parts_.context->host;
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
