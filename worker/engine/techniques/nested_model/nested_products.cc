#include "worker/engine/techniques/nested_model/nested_products.h"

#include <algorithm>
#include <utility>

#include "kernels/affine/affine.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

NestedProducts::NestedProducts(const LinearLayer& layer, int64_t neurons, const bool* selected)
    : dense_(layer), selected_(selected) {
  for (const OutputWeight& weight : layer.weights) {
    // Tensor-parallel ranks have some neurons each.
    const Shard& shard = (*layer.parameters)[weight.first].shard;
    const int64_t first = shard.whole() ? 0 : shard.ranges.front().begin;
    const int64_t kept = std::clamp<int64_t>(neurons - first, 0, weight.rows);
    kept_.insert(kept_.end(), static_cast<size_t>(kept), 1.0f);
    kept_.insert(kept_.end(), static_cast<size_t>(weight.rows - kept), 0.0f);
  }
}

Status NestedProducts::Pack(Context& context, Repack what) {
  if (!mask_) {
    WEFT_ASSIGN_OR_RETURN(mask_, Tensor::New(context, Component::kParameters, DType::kF32,
                                             {static_cast<int64_t>(kept_.size())}));
    WEFT_RETURN_IF_ERROR(FillOnHost(context.stream, mask_, [this](const TensorView& host) {
      std::copy(kept_.begin(), kept_.end(), host.As<float>());
    }));
  }
  return dense_.Pack(context, what);
}

Status NestedProducts::Mask(Context& context, const Tensor& y) const {
  return kernels::AffineForward(context.stream,
                                {.x = y, .scale = mask_.view(), .shift = {}, .y = y});
}

Status NestedProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                               const GeluValue& active, const ForwardUse& use) const {
  WEFT_RETURN_IF_ERROR(dense_.Forward(context, x, y, active, use));
  if (!*selected_) return OkStatus();
  WEFT_RETURN_IF_ERROR(Mask(context, y));
  return active.value ? Mask(context, active.value) : OkStatus();
}

Result<OutputGradient> NestedProducts::Prepare(Context& context, Tensor dy,
                                               const GradientUse& use) const {
  if (*selected_) WEFT_RETURN_IF_ERROR(Mask(context, dy));
  return dense_.Prepare(context, std::move(dy), use);
}

Status NestedProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                     const Tensor& before, const GeluValue& active) const {
  return dense_.InputGradient(context, dy, dx, before, active);
}

Status NestedProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                      std::span<const WeightGradientTarget> targets) const {
  return dense_.WeightGradient(context, x, dy, targets);
}

}  // namespace weft::engine
