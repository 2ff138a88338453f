#include "worker/engine/techniques/sparse24/sparse24_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/cpu/float_types.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/techniques/weight_on_device.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Sides of the blocks of masks.
constexpr int64_t kSide = 4;

}  // namespace

Status Sparse24Layer::Choose(const SparsitySpec& spec) {
  ParameterSet& parameters = *layer_.parameters;
  chosen_ = true;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const Parameter& weight = parameters[i];
    chosen_ = chosen_ && CanBeSparse24(weight);
    if (!chosen_ || (weight.shape[0] % kSide == 0 && weight.shape[1] % kSide == 0)) continue;
    return InvalidError("train.sparsity needs weights whose sides are multiples of 4, and " +
                        weight.name + " is " + std::to_string(weight.shape[0]) + " x " +
                        std::to_string(weight.shape[1]) +
                        " on this rank; hint: resources.tensor_parallel, model.mlp_width");
  }
  if (!chosen_ || !HasSoftThresholds(spec)) return OkStatus();
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    parameters.SetGatheredAsHeld(i);
  }
  return OkStatus();
}

Status Sparse24Layer::Allocate(Context& context, const SparsitySpec& spec) {
  if (!chosen_) return OkStatus();
  int64_t rows = 0;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    rows += (*layer_.parameters)[i].shape[0];
  }
  const int64_t columns = (*layer_.parameters)[layer_.weight].shape[1];
  WEFT_ASSIGN_OR_RETURN(mask_, Tensor::New(context, Component::kParameters, DType::kU16,
                                           {rows / kSide, columns / kSide}));
  WEFT_ASSIGN_OR_RETURN(flips_,
                        Tensor::New(context, Component::kParameters, DType::kI32, {rows / kSide}));
  if (HasBackwardMasks(spec)) {
    WEFT_ASSIGN_OR_RETURN(backward_mask_,
                          Tensor::New(context, Component::kParameters, DType::kU16, mask_.shape()));
    WEFT_RETURN_IF_ERROR(Clear(context.stream, backward_mask_));
  }
  return Clear(context.stream, mask_);
}

Status Sparse24Layer::KeepAll(const Stream& stream) {
  return FillOnHost(stream, mask_, [](const TensorView& mask) {
    std::fill_n(mask.As<uint16_t>(), mask.shape.Elements(), uint16_t{0xffff});
  });
}

Status Sparse24Layer::FindMask(Context& context, const SparsitySpec& spec,
                               Collective* tensor_ranks) {
  const DType held = (*layer_.parameters)[layer_.weight].dtype;
  WEFT_ASSIGN_OR_RETURN(const WeightOnDevice brought, WeightOnDevice::Of(context, layer_, held));
  const TensorView& weight = brought.view();
  Changed();
  if (HasSoftThresholds(spec) && scale_ == 0) {
    WEFT_RETURN_IF_ERROR(FindScale(context, weight, tensor_ranks));
  }
  if (!HasRowMasks(spec)) {
    return kernels::TransposableMask(context.stream, {weight, mask_, flips_});
  }
  WEFT_RETURN_IF_ERROR(kernels::RowMask(context.stream, {weight, mask_, flips_}));
  return backward_mask_ ? FindBackwardMask(context.stream, weight) : OkStatus();
}

// Keeps, of what the mask keeps, the two largest magnitudes of each four in a column, of equals the
// first.
Status Sparse24Layer::FindBackwardMask(const Stream& stream, const TensorView& weight) {
  WEFT_ASSIGN_OR_RETURN(const HostCopy weights, HostCopy::Of(stream, weight));
  WEFT_ASSIGN_OR_RETURN(const HostCopy masks, HostCopy::Of(stream, mask_));
  const int64_t columns = weight.shape[1], blocks = columns / kSide;
  const auto* mask = masks.view().As<uint16_t>();
  const auto twice = [&](int64_t block, const auto& magnitude) {
    uint16_t kept = 0;
    for (int64_t c = 0; c < kSide; ++c) {
      std::array<int64_t, kSide> rows = {0, 1, 2, 3};
      const auto has = [&](int64_t r) { return (mask[block] >> (kSide * r + c) & 1) != 0; };
      const auto end = std::stable_partition(rows.begin(), rows.end(), has);
      std::stable_sort(rows.begin(), end,
                       [&](int64_t a, int64_t b) { return magnitude(a, c) > magnitude(b, c); });
      for (auto row = rows.begin(); row != end && row != rows.begin() + 2; ++row) {
        kept = static_cast<uint16_t>(kept | 1 << (kSide * *row + c));
      }
    }
    return kept;
  };
  return FillOnHost(stream, backward_mask_, [&](const TensorView& to) {
    kernels::cpu::WithFloatType(weight.dtype, [&]<class T>() {
      const T* w = weights.view().As<T>();
      for (int64_t block = 0; block < mask_.shape().Elements(); ++block) {
        const int64_t first = (block / blocks * columns + block % blocks) * kSide;
        to.As<uint16_t>()[block] = twice(block, [&](int64_t r, int64_t c) {
          return std::fabs(static_cast<float>(ToFloat(w[first + r * columns + c])));
        });
      }
    });
  });
}

// <W, s(W)> / <s(W), s(W)>
Status Sparse24Layer::FindScale(Context& context, const TensorView& weight,
                                Collective* tensor_ranks) {
  WEFT_ASSIGN_OR_RETURN(const Tensor shrunk,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, weight.shape));
  WEFT_RETURN_IF_ERROR(kernels::SoftThreshold(context.stream, {.weight = weight, .y = shrunk}));
  WEFT_ASSIGN_OR_RETURN(const HostCopy values, HostCopy::Of(context.stream, weight));
  WEFT_ASSIGN_OR_RETURN(const HostCopy parts, HostCopy::Of(context.stream, shrunk));
  std::array<double, 2> sums = {0, 0};
  kernels::cpu::WithFloatType(weight.dtype, [&]<class T>() {
    const T* w = values.view().As<T>();
    const auto* s = parts.view().As<float>();
    for (int64_t i = 0; i < weight.shape.Elements(); ++i) {
      sums[0] += static_cast<double>(ToFloat(w[i])) * s[i];
      sums[1] += static_cast<double>(s[i]) * s[i];
    }
  });
  if (tensor_ranks != nullptr) WEFT_RETURN_IF_ERROR(SumScalars(*tensor_ranks, sums));
  const auto& [product, square] = sums;
  scale_ = square > 0 ? static_cast<float>(product / square) : 1.0f;
  return OkStatus();
}

Result<int64_t> Sparse24Layer::CountFlips(Context& context) const {
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(context.stream, flips_));
  const auto* of_rows = copy.view().As<int32_t>();
  return std::accumulate(of_rows, of_rows + flips_.shape()[0], int64_t{0});
}

TensorView Sparse24Layer::mask_of(int64_t column, int64_t columns) const {
  return mask_.Rows(column / kSide, columns / kSide);
}

std::vector<Sparse24Layer::Part> Sparse24Layer::Parts() {
  std::vector<Part> parts;
  int64_t row = 0;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const int64_t rows = (*layer_.parameters)[i].shape[0] / kSide;
    parts.push_back({i, mask_.Rows(row, rows),
                     backward_mask_ ? backward_mask_.Rows(row, rows) : TensorView(), &scale_});
    row += rows;
  }
  return parts;
}

}  // namespace weft::engine
