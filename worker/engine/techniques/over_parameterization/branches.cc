#include "worker/engine/techniques/over_parameterization/branches.h"

#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/swap_blocks/swap_blocks.h"
#include "worker/engine/techniques/factor_products.h"
#include "worker/engine/tensor/profiler.h"

namespace weft::engine {
namespace {

/// A full branch: parameters by index.
struct FullBranch {
  int64_t matrix, scale;
};
/// The last branch.
struct LowRankBranch {
  int64_t out_factor, in_factor, scale;
};

struct Branches {
  std::vector<FullBranch> full;
  LowRankBranch low_rank;
};

Branches BranchesOf(const ParameterSet& parameters, int64_t weight) {
  const int64_t first = parameters[weight].first_source;
  const int64_t last = first + parameters[weight].sources - 3;
  Branches branches{{}, {last, last + 1, last + 2}};
  for (int64_t i = first; i < last; i += 2) branches.full.push_back({i, i + 1});
  return branches;
}

/// The same contiguous numbers as one row.
TensorView AsRow(TensorView view) {
  view.shape = {1, view.shape.Elements()};
  view.row_stride = view.shape[1];
  return view;
}

/// y [columns, rows] = x [rows, columns] transposed.
Status Transpose(Context& context, const TensorView& x, const TensorView& y) {
  return kernels::SwapBlocks(
      context.stream, {.x = AsRow(x), .y = AsRow(y), .outer = x.shape[0], .inner = x.shape[1]});
}

Result<Tensor> Matrix(Context& context, int64_t rows, int64_t columns) {
  return Tensor::New(context, Component::kWorkspace, DType::kF32, Shape{rows, columns});
}

/// A matrix, transposed, as f32.
Result<Tensor> Transposed(Context& context, const TensorView& matrix) {
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(const TensorView f32, InF32(context, matrix, storage));
  WEFT_ASSIGN_OR_RETURN(Tensor transposed, Matrix(context, matrix.shape[1], matrix.shape[0]));
  WEFT_RETURN_IF_ERROR(Transpose(context, f32, transposed.view()));
  return transposed;
}

/// y = x with a factor for each column. y may be x.
Status ScaleColumns(Context& context, const TensorView& x, const TensorView& scale,
                    const TensorView& y) {
  CountWork(context.profiler, static_cast<double>(x.shape.Elements()));
  return kernels::AffineForward(context.stream, {.x = x, .scale = scale, .shift = {}, .y = y});
}

/// The factor A [rank, out] with its scales, f32.
Result<Tensor> ScaledOutFactor(Context& context, const ParameterSet& parameters,
                               const LowRankBranch& branch) {
  const TensorView factor = parameters.value(branch.out_factor);
  WEFT_ASSIGN_OR_RETURN(Tensor scaled, Matrix(context, factor.shape[0], factor.shape[1]));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {factor, scaled.view()}));
  WEFT_RETURN_IF_ERROR(
      ScaleColumns(context, scaled.view(), parameters.value(branch.scale), scaled.view()));
  return scaled;
}

/// dx = dy with a factor for each column, and dscale the column sums of dy ∘ x.
Status SplitScaled(Context& context, const TensorView& dy, const TensorView& x,
                   const TensorView& scale, const TensorView& dx, const TensorView& dscale) {
  CountWork(context.profiler, 3.0 * static_cast<double>(x.shape.Elements()));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {.x = dscale, .value = 0}));
  return kernels::AffineBackward(
      context.stream, {.dy = dy, .x = x, .scale = scale, .dx = dx, .dscale = dscale, .dshift = {}});
}

Status SplitLowRank(Context& context, const ParameterSet& parameters, const TensorView& gradient,
                    const LowRankBranch& branch) {
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, ScaledOutFactor(context, parameters, branch));
  const TensorView dout = parameters.gradient(branch.out_factor);
  {
    PackedGradient packed;
    WEFT_RETURN_IF_ERROR(packed.Pack(context, gradient));
    WEFT_RETURN_IF_ERROR(packed.ToOutFactor(context, parameters.value(branch.in_factor), dout));
    WEFT_RETURN_IF_ERROR(
        packed.ToInFactor(context, scaled.view(), parameters.gradient(branch.in_factor)));
  }
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(const TensorView out_factor,
                        InF32(context, parameters.value(branch.out_factor), storage));
  return SplitScaled(context, dout, out_factor, parameters.value(branch.scale), dout,
                     parameters.gradient(branch.scale));
}

}  // namespace

// Operations have factors by column: full branches are scaled as their transposed matrices.
Status MergeBranches(Context& context, const ParameterSet& parameters, int64_t weight) {
  const Branches branches = BranchesOf(parameters, weight);
  const TensorView value = parameters.value(weight);
  Tensor sum;
  for (const FullBranch& branch : branches.full) {
    WEFT_ASSIGN_OR_RETURN(Tensor scaled, Transposed(context, parameters.value(branch.matrix)));
    WEFT_RETURN_IF_ERROR(
        ScaleColumns(context, scaled.view(), parameters.value(branch.scale), scaled.view()));
    if (!sum) {
      sum = std::move(scaled);
      continue;
    }
    CountWork(context.profiler, static_cast<double>(value.shape.Elements()));
    WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {scaled.view(), sum.view(), sum.view()}));
  }
  WEFT_RETURN_IF_ERROR(Transpose(context, sum.view(), value));
  WEFT_ASSIGN_OR_RETURN(const Tensor out_factor,
                        ScaledOutFactor(context, parameters, branches.low_rank));
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(const TensorView in_factor,
                        InF32(context, parameters.value(branches.low_rank.in_factor), storage));
  return MultiplyFactors(context, out_factor.view(), in_factor, value, /*accumulate=*/true);
}

Status SplitBranches(Context& context, const ParameterSet& parameters, int64_t weight) {
  const Branches branches = BranchesOf(parameters, weight);
  const TensorView gradient = parameters.gradient(weight);
  {
    WEFT_ASSIGN_OR_RETURN(const Tensor transposed, Transposed(context, gradient));
    for (const FullBranch& branch : branches.full) {
      WEFT_ASSIGN_OR_RETURN(const Tensor matrix,
                            Transposed(context, parameters.value(branch.matrix)));
      WEFT_ASSIGN_OR_RETURN(const Tensor scaled,
                            Matrix(context, matrix.shape()[0], matrix.shape()[1]));
      WEFT_RETURN_IF_ERROR(SplitScaled(context, transposed.view(), matrix.view(),
                                       parameters.value(branch.scale), scaled.view(),
                                       parameters.gradient(branch.scale)));
      WEFT_RETURN_IF_ERROR(Transpose(context, scaled.view(), parameters.gradient(branch.matrix)));
    }
  }
  return SplitLowRank(context, parameters, gradient, branches.low_rank);
}

Status StartBranches(const Stream& stream, const ParameterSet& parameters, int64_t weight) {
  const Branches branches = BranchesOf(parameters, weight);
  WEFT_RETURN_IF_ERROR(
      kernels::Cast(stream, {parameters.value(weight), parameters.value(branches.full[0].matrix)}));
  for (const FullBranch& branch : branches.full) {
    const float scale = branch.matrix == branches.full[0].matrix ? 1.0f : 0.0f;
    WEFT_RETURN_IF_ERROR(
        kernels::Fill(stream, {.x = parameters.value(branch.scale), .value = scale}));
  }
  WEFT_RETURN_IF_ERROR(
      kernels::Fill(stream, {.x = parameters.value(branches.low_rank.scale), .value = 1}));
  WEFT_RETURN_IF_ERROR(
      kernels::Fill(stream, {.x = parameters.value(branches.low_rank.in_factor), .value = 0}));
  return kernels::Cast(stream,
                       {parameters.value(branches.full[0].matrix), parameters.value(weight)});
}

}  // namespace weft::engine
