#include "worker/engine/train/offloaded_updates.h"

#include <utility>

#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/train/state_context.h"

namespace weft::engine {

Result<std::unique_ptr<OffloadedUpdates>> OffloadedUpdates::New(const Parts& parts,
                                                                const Options& options) {
  std::unique_ptr<OffloadedUpdates> updates(new OffloadedUpdates(parts, options));
  if (!options.delays) return updates;
  Context state = StateContextOf(*parts.context, *parts.parameters);
  WEFT_ASSIGN_OR_RETURN(
      updates->other_gradients_,
      Tensor::New(state, Component::kGradients, DType::kF32, {parts.parameters->GradientCount()}));
  WEFT_RETURN_IF_ERROR(Clear(state.stream, updates->other_gradients_));
  return updates;
}

Status OffloadedUpdates::Update(const StepArgs& args, int64_t step, PhaseSeconds& seconds) {
  if (*args.gate.made == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(parts_.weights->Forget());
  if (Delays(step) || Overlaps(step)) return Start(args, Delays(step));
  return MakeAtOnce(args, seconds);
}

// Early gradients change fast: the first steps are not delayed, as in section 5.2 of the paper. The
// last one makes its update itself.
bool OffloadedUpdates::Delays(int64_t step) const {
  constexpr int64_t kFirstDelayed = 40;
  return options_.delays && step >= kFirstDelayed && step + 1 < options_.steps;
}

// Ranks that shard the update gather what it has made; on a GPU the host waits in no pass. After
// the last step there is none.
bool OffloadedUpdates::Overlaps(int64_t step) const {
  const bool on_cpu = parts_.context->stream.device.type == DeviceType::kCpu;
  return options_.overlaps && on_cpu && parts_.ranks->updated_parts().empty() &&
         step + 1 < options_.steps;
}

// The weights of a tile go up while the next tile is updated, and the next step computes with those
// that have come. Where ranks shard the update, they go up once they are gathered.
Status OffloadedUpdates::MakeAtOnce(const StepArgs& args, PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  HostMemoryPool& host = *context.host;
  // What a late update has made may still be on its way.
  WEFT_RETURN_IF_ERROR(parts_.weights->FinishUploads());
  const bool shares = !parts_.ranks->updated_parts().empty();
  if (!shares) {
    host.updated().Start();
    parts_.weights->StartUploads();
  }
  Context state = StateContextOf(context, *parts_.parameters);
  const Status updated = [&] {
    ProfileScope scope(state.profiler, "update");
    return parts_.updaters->main().Update(state, args);
  }();
  host.updated().Finish();
  WEFT_RETURN_IF_ERROR(updated);
  WEFT_RETURN_IF_ERROR(UpdateKept(args));
  WEFT_RETURN_IF_ERROR(parts_.clock->Mark(context, "optimizer", &PhaseSeconds::optimizer));
  if (!shares) return OkStatus();
  WEFT_RETURN_IF_ERROR(parts_.ranks->GatherParameters(seconds));
  parts_.weights->StartUploads();
  return parts_.clock->Start(context);
}

// While the others' weights are copied, which come later in the next forward pass.
Status OffloadedUpdates::UpdateKept(const StepArgs& args) {
  if (parts_.updaters->kept() == nullptr) return OkStatus();
  Context& context = *parts_.context;
  {
    ProfileScope scope(context.profiler, "update");
    WEFT_RETURN_IF_ERROR(parts_.updaters->kept()->Update(context, args));
  }
  if (parts_.weights->comes_at_once()) return OkStatus();
  ProfileScope scope(context.profiler, "pack weights");
  const ParameterSet& parameters = *parts_.parameters;
  for (const ParameterSet::CopiesOf& of : parameters.copies()) {
    if (parameters.on_host(of.first) || !of.copies->trained()) continue;
    WEFT_RETURN_IF_ERROR(of.copies->Make(context));
  }
  return OkStatus();
}

OffloadedUpdates::OverlappedUpdate::~OverlappedUpdate() {
  if (update_pipeline != nullptr && running.valid())
    update_pipeline->Fail(AbortedError("the update was given up"));
}

Status OffloadedUpdates::Start(const StepArgs& args, bool late) {
  ParameterSet& parameters = *parts_.parameters;
  UpdatePipeline* const update_pipeline =
      parameters.file() != nullptr ? &parameters.file()->update_pipeline() : nullptr;
  in_flight_ = std::make_unique<OverlappedUpdate>();
  OverlappedUpdate& update = *in_flight_;
  update.late = late;
  update.context = StateContextOf(*parts_.context, parameters);
  update.context.profiler = nullptr;  // another thread's
  update.factor = *args.gate.factor;
  update.update_pipeline = update_pipeline;
  update.args = args;
  update.args.gate = {.factor = &update.factor, .made = &update.made};
  update.args.beside = true;
  update.args.walk = update_pipeline;
  if (late) {
    other_gradients_ = parameters.MoveGradients(std::move(other_gradients_));
    WEFT_RETURN_IF_ERROR(parts_.reducer->GradientsMoved());
  } else {
    WEFT_RETURN_IF_ERROR(parts_.weights->FinishUploads());
    parts_.context->host->updated().Start();
    parts_.weights->StartUploads();
    if (update_pipeline != nullptr) WEFT_RETURN_IF_ERROR(update_pipeline->Open());
  }
  update.running =
      std::async(std::launch::async, [this, &update, threads = kernels::cpu::Threads()] {
        kernels::cpu::SetThreads(threads);
        return Run(update);
      });
  return late ? OkStatus() : UpdateKept(args);
}

Status OffloadedUpdates::Run(OverlappedUpdate& update) {
  // What the update before a late one has made is still on its way to the device.
  if (update.late) WEFT_RETURN_IF_ERROR(parts_.weights->FinishUploadsFromUpdateThread());
  Status updated = parts_.updaters->main().Update(update.context, update.args);
  if (!updated.ok() && update.update_pipeline != nullptr) update.update_pipeline->Fail(updated);
  if (!update.late) update.context.host->updated().Finish();
  return updated;
}

Status OffloadedUpdates::Finish() {
  WEFT_RETURN_IF_ERROR(parts_.weights->FinishUploads());
  if (in_flight_ == nullptr) return status_;
  Context& context = *parts_.context;
  StepClock& clock = *parts_.clock;
  WEFT_RETURN_IF_ERROR(clock.Start(context));
  const Status passed =
      in_flight_->update_pipeline != nullptr ? in_flight_->update_pipeline->Close() : OkStatus();
  if (!passed.ok()) in_flight_->update_pipeline->Fail(passed);
  const Status updated = in_flight_->running.get();
  const bool late = in_flight_->late;
  in_flight_.reset();
  context.host->updated().Finish();
  status_ = updated.ok() ? passed : updated;
  WEFT_RETURN_IF_ERROR(status_);
  if (!late) return clock.Mark(context, "optimizer", &PhaseSeconds::optimizer);
  if (!parts_.ranks->updated_parts().empty()) {
    WEFT_RETURN_IF_ERROR(parts_.reducer->GatherParameters());
  }
  WEFT_RETURN_IF_ERROR(parts_.weights->Renew());
  return clock.Mark(context, "wait for weights", &PhaseSeconds::communication_exposed);
}

Status OffloadedUpdates::FinishUnlessLate() {
  return in_flight_ != nullptr && !in_flight_->late ? Finish() : OkStatus();
}

}  // namespace weft::engine
