#include "worker/engine/techniques/sub_networks/divided_parameter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gather_rows/gather_rows.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Elements of the tensor of zeros that rows are cleared with; a row that is longer has its own.
constexpr int64_t kZeros = int64_t{1} << 18;

/// Memory of a gradient, elements [first, ...) of type `dtype`, as a tensor.
TensorView Inside(const TensorView& gradient, DType dtype, int64_t first, const Shape& shape) {
  auto* const begin = static_cast<std::byte*>(gradient.data);
  return {begin + static_cast<size_t>(first) * DTypeSize(dtype), dtype, shape, gradient.device};
}

}  // namespace

bool DividedParameter::Divides(const ParameterSet& parameters, int64_t index) {
  const Parameter& parameter = parameters[index];
  return parameter.block >= 0 && parameter.adapter == AdapterSide::kNone &&
         (IsAttention(parameter.role) || IsMlp(parameter.role)) && !parameter.output_bias();
}

DividedParameter::DividedParameter(const ParameterSet* parameters, int64_t index, int64_t units)
    : parameters_(parameters),
      index_(index),
      units_(units),
      columns_((*parameters)[index].output_weight()),
      blocks_((*parameters)[index].role == ParameterRole::kQueriesKeysValues ? 3 : 1) {
  const Shape& shape = (*parameters)[index].shape;
  WEFT_CHECK((columns_ ? shape[1] : shape[0]) % (blocks_ * units) == 0, "units of equal sizes");
}

TensorView DividedParameter::AsRows(const TensorView& view) const {
  if (columns_) return view;
  const int64_t rows = blocks_ * units_;
  return {view.data, view.dtype, {rows, view.shape.Elements() / rows}, view.device};
}

Status DividedParameter::SetOwn(Context& context, const OwnUnits& units) {
  if (!columns_) {
    std::vector<int32_t> rows;
    for (int64_t row = 0; row < blocks_ * units_; ++row) {
      if (units.own[static_cast<size_t>(row % units_)] == 0) {
        rows.push_back(static_cast<int32_t>(row));
      }
    }
    if (!others_) {
      WEFT_ASSIGN_OR_RETURN(
          others_, Tensor::New(context, Component::kOptimizer, DType::kI32, {std::ssize(rows)}));
    }
    return Upload(context.stream, rows.data(), others_);
  }
  const int64_t count = (*parameters_)[index_].shape[1], each = count / units_;
  for (Tensor* mask : {&own_mask_, &others_mask_}) {
    std::vector<float> numbers;
    for (const uint8_t own : units.own) {
      numbers.insert(numbers.end(), static_cast<size_t>(each),
                     (own != 0) == (mask == &own_mask_) ? 1.0f : 0.0f);
    }
    if (!*mask) {
      WEFT_ASSIGN_OR_RETURN(*mask,
                            Tensor::New(context, Component::kOptimizer, DType::kF32, {count}));
    }
    WEFT_RETURN_IF_ERROR(Upload(context.stream, numbers.data(), *mask));
  }
  return OkStatus();
}

Status DividedParameter::Restore(const Context& context, const TensorView& values) const {
  const Stream& stream = context.stream;
  const TensorView value = AsRows(parameters_->value(index_));
  const TensorView memory = parameters_->gradient(index_);
  TensorView before = AsRows(values);
  int64_t used = 0;
  if (value.dtype != DType::kF32) {
    // Both halves of the memory have room for the parameter.
    const TensorView narrow = Inside(memory, value.dtype, 0, value.shape);
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream, {before, narrow}));
    before = narrow;
    used = value.shape.Elements();
  }
  if (!columns_) {
    const TensorView rows = Inside(memory, value.dtype, used, {others_.shape()[0], value.shape[1]});
    WEFT_RETURN_IF_ERROR(kernels::GatherRows(stream, {before, others_, rows}));
    return kernels::ScatterRows(stream, {rows, others_, value});
  }
  const TensorView of_others = Inside(memory, value.dtype, used, value.shape);
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      stream, {.x = before, .scale = others_mask_.view(), .shift = {}, .y = of_others}));
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      stream, {.x = value, .scale = own_mask_.view(), .shift = {}, .y = value}));
  return kernels::Add(stream, {value, of_others, value});
}

Status DividedParameter::KeepOwn(Context& context, float factor) const {
  const Stream& stream = context.stream;
  const TensorView gradient = AsRows(parameters_->gradient(index_));
  WEFT_RETURN_IF_ERROR(kernels::Scale(stream, {gradient, factor}));
  if (columns_) {
    return kernels::AffineForward(
        stream, {.x = gradient, .scale = own_mask_.view(), .shift = {}, .y = gradient});
  }
  const int64_t width = gradient.shape[1], count = others_.shape()[0];
  const int64_t most = std::min(count, std::max<int64_t>(1, kZeros / width));
  WEFT_ASSIGN_OR_RETURN(const Tensor zeros, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                        Shape{most, width}));
  WEFT_RETURN_IF_ERROR(Clear(stream, zeros));
  for (int64_t first = 0; first < count; first += most) {
    const int64_t rows = std::min(most, count - first);
    WEFT_RETURN_IF_ERROR(kernels::ScatterRows(
        stream, {zeros.Rows(0, rows), others_.Elements(first, rows), gradient}));
  }
  return OkStatus();
}

}  // namespace weft::engine
