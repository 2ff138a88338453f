#include "worker/engine/techniques/structured_matrices/block_diagonal.h"

#include "kernels/linear/linear.h"

namespace weft::engine {
namespace {

TensorView Part(TensorView vector, int64_t begin, int64_t count) {
  if (!vector) return vector;
  return {vector.As<float>() + begin, DType::kF32, {count}, vector.device};
}

}  // namespace

BlockDiagonal::BlockDiagonal(ParameterSet* parameters, int64_t index, int64_t blocks, DType compute)
    : rows_((*parameters)[index].shape[0] / blocks), columns_((*parameters)[index].shape[1]) {
  for (int64_t i = 0; i < blocks; ++i) {
    packed_.emplace_back(parameters, index, compute, Shard::Range{i * rows_, (i + 1) * rows_});
  }
}

Status BlockDiagonal::Pack(Context& context, Repack what) {
  for (PackedParameter& block : packed_) WEFT_RETURN_IF_ERROR(block.Pack(context, what));
  return OkStatus();
}

Status BlockDiagonal::Forward(Context& context, const Tensor& x, const TensorView& bias,
                              const Tensor& y) const {
  for (int64_t i = 0; i < blocks(); ++i) {
    WEFT_RETURN_IF_ERROR(
        kernels::LinearForward(context.stream, {.x = x.Columns(i * columns_, columns_),
                                                .weight = packed_[i].packed(),
                                                .bias = Part(bias, i * rows_, rows_),
                                                .y = y.Columns(i * rows_, rows_)}));
  }
  return OkStatus();
}

Status BlockDiagonal::InputGradient(Context& context, const Tensor& dy, const Tensor& dx,
                                    bool accumulate) const {
  for (int64_t i = 0; i < blocks(); ++i) {
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardInput(context.stream, {.dy = dy.Columns(i * rows_, rows_),
                                                      .weight = packed_[i].packed(),
                                                      .dx = dx.Columns(i * columns_, columns_),
                                                      .accumulate = accumulate}));
  }
  return OkStatus();
}

Status BlockDiagonal::WeightGradient(Context& context, const Tensor& x, const Tensor& dy,
                                     const TensorView& dblocks, const TensorView& dbias,
                                     bool accumulate) const {
  for (int64_t i = 0; i < blocks(); ++i) {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = x.Columns(i * columns_, columns_),
                         .dy = dy.Columns(i * rows_, rows_),
                         .dweight = dblocks ? RowsOf(dblocks, i * rows_, rows_) : TensorView(),
                         .dbias = Part(dbias, i * rows_, rows_),
                         .accumulate = accumulate}));
  }
  return OkStatus();
}

}  // namespace weft::engine
