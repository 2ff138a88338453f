// What a training step does otherwise where parameters and the optimizer's state stand in the host
// tier.
#include "worker/engine/tensor/host_tier.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

Status Trainer::UploadWeights(Context& context) {
  const ParameterSet& parameters = parts_.model->parameters();
  WEFT_RETURN_IF_ERROR(parameters.UploadOperands(context, /*matrices=*/true));
  WEFT_RETURN_IF_ERROR(parts_.model->Pack(context, stale_.value_or(Repack::kTrained)));
  return parameters.UploadOperands(context, /*matrices=*/false);
}

// The weights of a tile go up while the next tile is updated.
Status Trainer::UpdateOffloaded(StepReport& report) {
  Context& context = *parts_.context;
  HostTier& host = *context.host;
  if (totals_.host()->made == 0) return OkStatus();
  stale_ = stale_.value_or(Repack::kTrained);
  Context uploads = context;
  uploads.profiler = nullptr;  // another thread's
  host.updated().Start();
  const int64_t uploaded = host.up().Enqueue([this, &uploads] { return UploadWeights(uploads); });
  const Status updated = UpdateParameters(report);
  host.updated().Finish();
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  const Status done = host.up().WaitFor(uploaded);
  WEFT_RETURN_IF_ERROR(
      clock_.Mark(context, "wait for weights", &PhaseSeconds::communication_exposed));
  WEFT_RETURN_IF_ERROR(updated);
  WEFT_RETURN_IF_ERROR(done);
  stale_.reset();
  return OkStatus();
}

void Trainer::ReportTiers(StepReport& report) const {
  if (parts_.context->host == nullptr) return;
  Allocator& host = parts_.context->host->allocator();
  report.device_memory = report.peak_memory;
  AddTo(report.peak_memory, host.Peaks());
  AddTo(report.step_memory, host.TakeRecentPeaks());
}

}  // namespace weft::engine
