#include "worker/engine/techniques/sparse24/sparse_copies.h"

#include <algorithm>
#include <utility>

#include "kernels/sparse24_mask/sparse24_mask.h"
#include "worker/engine/techniques/weight_on_device.h"

namespace weft::engine {

Result<SparseCopy> SpareSparseCopies::Take(Context& context, int64_t out, int64_t in,
                                           DType compute) {
  const auto it = std::find_if(spare_.begin(), spare_.end(), [&](const SparseCopy& copy) {
    return copy.weight->out_features() == out && copy.weight->in_features() == in &&
           copy.weight->compute() == compute;
  });
  SparseCopy copy;
  if (it != spare_.end()) {
    copy = std::move(*it);
    spare_.erase(it);
    return copy;
  }
  WEFT_ASSIGN_OR_RETURN(copy.weight,
                        kernels::NewSparseWeight(context.stream.device, out, in, compute));
  return copy;
}

void SparseCopies::Use(bool used) {
  used_ = used;
  if (used) return;
  forward_ = {};
  backward_ = {};
}

void SparseCopies::Drop() {
  spare_->Give(std::exchange(forward_, {}));
  spare_->Give(std::exchange(backward_, {}));
}

Status SparseCopies::Make(Context& context) {
  if (!used_) return OkStatus();
  const LinearLayer& layer = layer_->layer();
  // What is packed is rounded to bf16 anyway, but thresholds are of the numbers that are trained.
  const DType held = (*layer.parameters)[layer.weight].dtype;
  const DType type = !soft_ && layer.compute == DType::kBF16 ? DType::kBF16 : held;
  WEFT_ASSIGN_OR_RETURN(const WeightOnDevice brought, WeightOnDevice::Of(context, layer, type));
  TensorView weight = brought.view();
  Tensor shrunk;
  if (soft_) {
    WEFT_ASSIGN_OR_RETURN(shrunk,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, weight.shape));
    WEFT_RETURN_IF_ERROR(kernels::SoftThreshold(
        context.stream, {.weight = weight, .y = shrunk, .scale = layer_->scale()}));
    weight = shrunk;
  }
  WEFT_RETURN_IF_ERROR(Pack(context, layer_->mask(), weight, forward_, forward_mask_));
  if (layer_->backward_mask()) {
    WEFT_RETURN_IF_ERROR(Pack(context, layer_->backward_mask(), weight, backward_, backward_mask_));
  }
  mask_version_ = layer_->version();
  return OkStatus();
}

// A copy that another layer had before needs the mask again, but a GPU inspects it once.
Status SparseCopies::SetMask(const Stream& stream, const TensorView& mask,
                             kernels::SparseWeight& weight, InspectedMask& inspected) const {
  if (inspected.version == layer_->version()) return weight.SetMask(stream, mask, inspected.sides);
  WEFT_RETURN_IF_ERROR(weight.SetMask(stream, mask));
  inspected = {.version = layer_->version(), .sides = weight.mask_sides()};
  return OkStatus();
}

Status SparseCopies::Pack(Context& context, const TensorView& mask, const TensorView& weight,
                          SparseCopy& copy, InspectedMask& inspected) {
  const bool taken = copy.weight == nullptr;
  if (taken) {
    WEFT_ASSIGN_OR_RETURN(
        copy, spare_->Take(context, weight.shape[0], weight.shape[1], layer_->layer().compute));
  }
  if (taken || mask_version_ != layer_->version()) {
    WEFT_RETURN_IF_ERROR(SetMask(context.stream, mask, *copy.weight, inspected));
  }
  WEFT_RETURN_IF_ERROR(copy.weight->Pack(context.stream, weight));
  return copy.held.Set(context.allocator, Component::kParameters, copy.weight->Bytes());
}

}  // namespace weft::engine
