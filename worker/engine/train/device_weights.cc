#include "worker/engine/train/device_weights.h"

#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

DeviceWeights::DeviceWeights(Context* context, Model* model, TechniqueList* techniques)
    : context_(context), model_(model), techniques_(techniques) {
  ParameterSet& parameters = model->parameters();
  if (!parameters.offloaded() || parameters.streamed() || parameters.values_sharded()) return;
  comes_at_once_ = techniques->NeedsWholeUpdates();
  if (!comes_at_once_) uploader_ = std::make_unique<ParameterUploader>(*context, &parameters);
}

void DeviceWeights::Changed(Repack what) {
  if (what == Repack::kAll || !stale_) stale_ = what;
}

Status DeviceWeights::Prepare(std::optional<int64_t> step) {
  if (!techniques_->WeightsDependOnStep()) step.reset();
  if (!stale_ && step == packed_step_) return OkStatus();
  WEFT_RETURN_IF_ERROR(techniques_->BeforeForward(*context_, step));
  ProfileScope scope(context_->profiler, "pack weights");
  WEFT_RETURN_IF_ERROR(Bring());
  stale_.reset();
  packed_step_ = step;
  return OkStatus();
}

Status DeviceWeights::Bring() {
  const ParameterSet& parameters = model_->parameters();
  const Repack what = stale_.value_or(Repack::kTrained);
  WEFT_RETURN_IF_ERROR(Forget());
  if (uploader_ == nullptr && !comes_at_once_) return model_->Pack(*context_, what);
  WEFT_RETURN_IF_ERROR(FinishUploads());
  updated_ = false;
  TransferQueue& up = context_->host->up();
  WEFT_RETURN_IF_ERROR(up.Follow(context_->stream));
  for (int64_t unit = 0; unit < parameters.units(); ++unit) {
    parameters.UploadOperands(*context_, unit);
  }
  // Packing computes with them.
  if (comes_at_once_) WEFT_RETURN_IF_ERROR(up.Precede(context_->stream));
  WEFT_RETURN_IF_ERROR(model_->Pack(*context_, what));
  return up.Precede(context_->stream);
}

Status DeviceWeights::Forget() {
  ParameterPrefetcher* const prefetcher = model_->parameters().prefetcher();
  return prefetcher != nullptr ? prefetcher->Forget() : OkStatus();
}

void DeviceWeights::StartUploads() {
  if (uploader_ != nullptr) uploader_->Start(*context_);
  updated_ = comes_at_once_;
}

Status DeviceWeights::BringUpdated(int64_t next_step) {
  if (!comes_at_once_) return OkStatus();
  if (!techniques_->WeightsDependOnStep()) return updated_ ? Renew() : OkStatus();
  if (updated_) Changed(Repack::kTrained);
  return Prepare(next_step);
}

Status DeviceWeights::Renew() {
  if (uploader_ != nullptr && stale_.value_or(Repack::kTrained) == Repack::kTrained) {
    uploader_->Start(*context_);
  } else {
    WEFT_RETURN_IF_ERROR(Bring());
  }
  stale_.reset();
  return OkStatus();
}

Status DeviceWeights::FinishUploads() {
  return uploader_ != nullptr ? uploader_->Finish() : OkStatus();
}

Status DeviceWeights::FinishUploadsFromUpdateThread() {
  return uploader_ != nullptr ? uploader_->FinishInBackground() : OkStatus();
}

}  // namespace weft::engine
