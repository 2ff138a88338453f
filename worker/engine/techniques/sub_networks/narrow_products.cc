#include "worker/engine/techniques/sub_networks/narrow_products.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gather_rows/gather_rows.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// A vector as a matrix with a row for each number.
TensorView AsColumn(const TensorView& vector) {
  return {vector.data, vector.dtype, {vector.shape.Elements(), 1}, vector.device};
}

}  // namespace

NarrowProducts::NarrowProducts(const LinearLayer& layer, const DividedSubLayer* in)
    : in_(in),
      parameters_(layer.parameters),
      bias_(layer.bias),
      in_features_(layer.in_features),
      ends_(EndsSubLayer((*layer.parameters)[layer.weight].role)),
      compute_(layer.compute),
      dense_(layer) {
  for (const OutputWeight& weight : layer.weights) {
    weights_.push_back(weight.first);
    rows_of_.push_back(weight.rows);
  }
}

int64_t NarrowProducts::in_features(int64_t all) const {
  return ends_ && !in_->whole() ? own_columns() : all;
}

int64_t NarrowProducts::out_features(int64_t all) const {
  return ends_ || in_->whole() ? all : all / in_->units * in_->own.count;
}

std::vector<int32_t> NarrowProducts::OwnIndices() const {
  std::vector<int32_t> indices;
  int64_t first = 0;
  for (size_t output = 0; output < weights_.size(); ++output) {
    // Queries, keys and values together are three blocks of rows.
    const ParameterRole role = (*parameters_)[weights_[output]].role;
    const int64_t blocks = role == ParameterRole::kQueriesKeysValues ? 3 : 1;
    const int64_t each = ends_ ? 1 : rows_of_[output] / (blocks * in_->units);
    for (int64_t unit = 0; unit < (ends_ ? 1 : blocks) * in_->units; ++unit) {
      if (in_->own.own[static_cast<size_t>(unit % in_->units)] == 0) continue;
      for (int64_t row = 0; row < each; ++row) {
        indices.push_back(static_cast<int32_t>(first + unit * each + row));
      }
    }
    first += rows_of_[output];
  }
  return indices;
}

Status NarrowProducts::SetUnits(Context& context) {
  version_ = in_->version;
  own_ = OwnIndices();
  const auto count = std::ssize(own_);
  const auto reserve = [&](Tensor& tensor, DType dtype, const Shape& shape) -> Status {
    if (tensor && tensor.shape() == shape) return OkStatus();
    tensor = {};
    WEFT_ASSIGN_OR_RETURN(tensor, Tensor::New(context, Component::kOptimizer, dtype, shape));
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(reserve(indices_, DType::kI32, {count}));
  WEFT_RETURN_IF_ERROR(Upload(context.stream, own_.data(), indices_));
  if (ends_) {
    const float scale = in_->own.Scale();
    WEFT_RETURN_IF_ERROR(reserve(scale_, DType::kF32, {1}));
    WEFT_RETURN_IF_ERROR(Upload(context.stream, &scale, scale_));
  } else if (bias_ >= 0) {
    WEFT_RETURN_IF_ERROR(reserve(own_bias_, DType::kF32, {count}));
  }
  const int64_t out = ends_ ? rows_of_.front() : int64_t{count};
  const int64_t in = ends_ ? own_columns() : in_features_;
  const DType stored = parameters_->stacked_operand(weights_.front(), std::ssize(weights_)).dtype;
  WEFT_RETURN_IF_ERROR(reserve(matrix_, stored, {out, in}));
  if (packed_ != nullptr && packed_->out_features() == out && packed_->in_features() == in) {
    return OkStatus();
  }
  packed_.reset();
  WEFT_ASSIGN_OR_RETURN(packed_,
                        kernels::NewPackedWeight(context.stream.device, out, in, compute_));
  return held_.Set(context.allocator, Component::kOptimizer, packed_->Bytes());
}

TensorView NarrowProducts::Grouped(const TensorView& matrix, int64_t units) const {
  if (!ends_) return matrix;
  const int64_t rows = matrix.shape[0] * units;
  return {matrix.data, matrix.dtype, {rows, matrix.shape.Elements() / rows}, matrix.device};
}

Status NarrowProducts::Pack(Context& context, Repack what) {
  // Evaluations have the dense copies, which stay.
  if (in_->whole() || !has_dense_) {
    WEFT_RETURN_IF_ERROR(dense_.Pack(context, has_dense_ ? what : Repack::kAll));
    has_dense_ = true;
  }
  if (in_->whole()) return OkStatus();
  if (version_ != in_->version) WEFT_RETURN_IF_ERROR(SetUnits(context));
  const auto outputs = std::ssize(weights_);
  const TensorView weight = parameters_->stacked_operand(weights_.front(), outputs);
  WEFT_RETURN_IF_ERROR(kernels::GatherRows(context.stream, {.x = Grouped(weight, in_->units),
                                                            .rows = indices_,
                                                            .y = Grouped(matrix_, in_->own.count),
                                                            .period = ends_ ? in_->units : 0}));
  WEFT_RETURN_IF_ERROR(packed_->Pack(context.stream, matrix_));
  // Where a stored matrix of the type is not copied at once there is more in the packed one now.
  WEFT_RETURN_IF_ERROR(held_.Set(context.allocator, Component::kOptimizer, packed_->Bytes()));
  if (ends_ || bias_ < 0) return OkStatus();
  return kernels::GatherRows(context.stream,
                             {.x = AsColumn(parameters_->stacked_operand(bias_, outputs)),
                              .rows = indices_,
                              .y = AsColumn(own_bias_)});
}

TensorView NarrowProducts::Bias() const {
  if (bias_ < 0) return {};
  return ends_ ? parameters_->stacked_operand(bias_, 1) : own_bias_.view();
}

Result<Tensor> NarrowProducts::Scaled(Context& context, const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor scaled,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(
      kernels::AffineForward(context.stream, {.x = x, .scale = scale_, .shift = {}, .y = scaled}));
  return scaled;
}

Status NarrowProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                               const GeluValue& active, const ForwardUse& use) const {
  if (in_->whole()) return dense_.Forward(context, x, y, active, use);
  Tensor input = x;
  if (ends_) {
    WEFT_ASSIGN_OR_RETURN(input, Scaled(context, x));
  }
  return kernels::LinearForward(context.stream, {.x = input,
                                                 .weight = packed_.get(),
                                                 .bias = Bias(),
                                                 .y = y,
                                                 .active = active.value,
                                                 .gelu = active.form});
}

Result<OutputGradient> NarrowProducts::Prepare(Context& context, Tensor dy,
                                               const GradientUse& use) const {
  return dense_.Prepare(context, std::move(dy), use);
}

Status NarrowProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                     const Tensor& before, const GeluValue& active) const {
  if (in_->whole()) return dense_.InputGradient(context, dy, dx, before, active);
  if (!ends_) {
    return kernels::LinearBackwardInput(context.stream, {.dy = dy.dy,
                                                         .weight = packed_.get(),
                                                         .dx = dx,
                                                         .before = before,
                                                         .active = active.value,
                                                         .gelu = active.form});
  }
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
      context.stream, {.dy = dy.dy, .weight = packed_.get(), .dx = dx}));
  WEFT_RETURN_IF_ERROR(
      kernels::AffineForward(context.stream, {.x = dx, .scale = scale_, .shift = {}, .y = dx}));
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status NarrowProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                      std::span<const WeightGradientTarget> targets) const {
  if (in_->whole()) return dense_.WeightGradient(context, x, dy, targets);
  for (const WeightGradientTarget& to : targets) {
    WEFT_RETURN_IF_ERROR(ends_ ? ColumnsGradient(context, x, dy, to)
                               : RowsGradient(context, x, dy, to));
  }
  return OkStatus();
}

// The narrow gradient begins with what is there, and replaces it.
Status NarrowProducts::ColumnsGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                       const WeightGradientTarget& to) const {
  const Stream& stream = context.stream;
  WEFT_ASSIGN_OR_RETURN(const Tensor input, Scaled(context, x));
  Tensor narrow;
  TensorView all, own;
  if (to.dweight) {
    WEFT_ASSIGN_OR_RETURN(narrow, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                              {to.columns, own_columns()}));
    all = Grouped(to.dweight, in_->units);
    own = Grouped(narrow, in_->own.count);
  }
  if (narrow && to.accumulate) {
    WEFT_RETURN_IF_ERROR(kernels::GatherRows(stream, {all, indices_, own, in_->units}));
  }
  WEFT_RETURN_IF_ERROR(
      kernels::LinearBackwardWeight(stream, {.x = input,
                                             .dy = dy.dy.Columns(to.column, to.columns),
                                             .dweight = narrow,
                                             .dbias = to.dbias,
                                             .accumulate = to.accumulate}));
  if (!narrow) return OkStatus();
  if (!to.accumulate) WEFT_RETURN_IF_ERROR(kernels::Fill(stream, {to.dweight, 0.0f}));
  return kernels::ScatterRows(stream, {own, indices_, all, in_->units});
}

Status NarrowProducts::RowsGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                    const WeightGradientTarget& to) const {
  const Stream& stream = context.stream;
  // Those of its rows that are here, and the columns of dy that are theirs.
  const auto begin = std::lower_bound(own_.begin(), own_.end(), to.column);
  const auto end = std::lower_bound(begin, own_.end(), to.column + to.columns);
  const int64_t column = begin - own_.begin(), count = end - begin;
  Tensor rows = indices_;
  if (to.column > 0 || count < std::ssize(own_)) {
    std::vector<int32_t> relative;
    for (auto row = begin; row != end; ++row) {
      relative.push_back(*row - static_cast<int32_t>(to.column));
    }
    WEFT_ASSIGN_OR_RETURN(rows, Tensor::New(context, Component::kWorkspace, DType::kI32, {count}));
    WEFT_RETURN_IF_ERROR(Upload(stream, relative.data(), rows));
  }
  struct Part {
    TensorView all;
    TensorView own;
  };
  std::vector<Part> parts;
  Tensor dweight, dbias;
  if (to.dweight) {
    WEFT_ASSIGN_OR_RETURN(
        dweight, Tensor::New(context, Component::kWorkspace, DType::kF32, {count, in_features_}));
    parts.push_back({to.dweight, dweight});
  }
  if (to.dbias) {
    WEFT_ASSIGN_OR_RETURN(dbias, Tensor::New(context, Component::kWorkspace, DType::kF32, {count}));
    parts.push_back({AsColumn(to.dbias), AsColumn(dbias)});
  }
  for (const Part& part : parts) {
    if (!to.accumulate) break;
    WEFT_RETURN_IF_ERROR(kernels::GatherRows(stream, {part.all, rows, part.own}));
  }
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(stream, {.x = x,
                                                              .dy = dy.dy.Columns(column, count),
                                                              .dweight = dweight,
                                                              .dbias = dbias,
                                                              .accumulate = to.accumulate}));
  for (const Part& part : parts) {
    if (!to.accumulate) WEFT_RETURN_IF_ERROR(kernels::Fill(stream, {part.all, 0.0f}));
    WEFT_RETURN_IF_ERROR(kernels::ScatterRows(stream, {part.own, rows, part.all}));
  }
  return OkStatus();
}

}  // namespace weft::engine
