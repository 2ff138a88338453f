#include "worker/engine/techniques/structured_pruning/coefficients.h"

#include <cstdint>
#include <utility>

#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/swap_blocks/swap_blocks.h"

namespace weft::engine {
namespace {

/// The same contiguous numbers in another shape.
TensorView Reshaped(TensorView view, const Shape& shape) {
  view.shape = shape;
  view.row_stride = shape[-1];
  return view;
}

/// A factor for each column, held by `storage` where `coefficients` are fewer.
Result<TensorView> ColumnFactors(Context& context, const TensorView& coefficients, int64_t columns,
                                 Tensor& storage) {
  const int64_t count = coefficients.shape[0], each = columns / count;
  if (each == 1) return coefficients;
  WEFT_ASSIGN_OR_RETURN(const Tensor rows, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                       Shape{each, count}));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {.x = rows.view(), .value = 1}));
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      context.stream, {.x = rows.view(), .scale = coefficients, .shift = {}, .y = rows.view()}));
  WEFT_ASSIGN_OR_RETURN(
      storage, Tensor::New(context, Component::kWorkspace, DType::kF32, Shape{1, columns}));
  WEFT_RETURN_IF_ERROR(
      kernels::SwapBlocks(context.stream, {.x = Reshaped(rows.view(), {1, columns}),
                                           .y = storage.view(),
                                           .outer = each,
                                           .inner = count}));
  return Reshaped(storage.view(), {columns});
}

/// Adds to each of `sums` its columns of `by_column`.
Status AddColumns(Context& context, const TensorView& by_column, const TensorView& sums) {
  const int64_t columns = by_column.shape[0], count = sums.shape[0], each = columns / count;
  WEFT_ASSIGN_OR_RETURN(const Tensor rows, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                       Shape{each, count}));
  WEFT_RETURN_IF_ERROR(
      kernels::SwapBlocks(context.stream, {.x = Reshaped(by_column, {1, columns}),
                                           .y = Reshaped(rows.view(), {1, columns}),
                                           .outer = count,
                                           .inner = each}));
  return kernels::AffineBackward(
      context.stream,
      {.dy = rows.view(), .x = {}, .scale = {}, .dx = {}, .dscale = {}, .dshift = sums});
}

Status Merge(Context& context, const ParameterSet& parameters, int64_t index) {
  const int64_t unscaled = parameters[index].first_source;
  const TensorView weight = parameters.value(index);
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(
      const TensorView factors,
      ColumnFactors(context, parameters.value(unscaled + 1), weight.shape[1], storage));
  CountWork(context.profiler, static_cast<double>(weight.shape.Elements()));
  return kernels::AffineForward(
      context.stream,
      {.x = parameters.value(unscaled), .scale = factors, .shift = {}, .y = weight});
}

Status Split(Context& context, const ParameterSet& parameters, int64_t index) {
  const int64_t unscaled = parameters[index].first_source;
  const TensorView gradient = parameters.gradient(index);
  const TensorView sums = parameters.gradient(unscaled + 1);
  const int64_t columns = gradient.shape[1];
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(const TensorView factors,
                        ColumnFactors(context, parameters.value(unscaled + 1), columns, storage));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {.x = sums, .value = 0}));
  Tensor by_column;
  TensorView dscale = sums;
  if (sums.shape[0] != columns) {
    WEFT_ASSIGN_OR_RETURN(by_column,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, Shape{columns}));
    dscale = by_column.view();
    WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {.x = dscale, .value = 0}));
  }
  CountWork(context.profiler, 3 * static_cast<double>(gradient.shape.Elements()));
  WEFT_RETURN_IF_ERROR(kernels::AffineBackward(context.stream, {.dy = gradient,
                                                                .x = parameters.value(unscaled),
                                                                .scale = factors,
                                                                .dx = parameters.gradient(unscaled),
                                                                .dscale = dscale,
                                                                .dshift = {}}));
  return by_column ? AddColumns(context, dscale, sums) : OkStatus();
}

}  // namespace

Status MergeCoefficients(Context& context, const ParameterSet& parameters) {
  ProfileScope scope(context.profiler, "merge coefficients");
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].derived()) WEFT_RETURN_IF_ERROR(Merge(context, parameters, i));
  }
  return OkStatus();
}

Status SplitCoefficientGradients(Context& context, const ParameterSet& parameters,
                                 std::span<const int64_t> weights) {
  ProfileScope scope(context.profiler, "split gradients");
  for (const int64_t i : weights) WEFT_RETURN_IF_ERROR(Split(context, parameters, i));
  return OkStatus();
}

}  // namespace weft::engine
