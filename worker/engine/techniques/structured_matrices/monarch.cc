#include "worker/engine/techniques/structured_matrices/monarch.h"

#include "kernels/linear/linear.h"
#include "kernels/swap_blocks/swap_blocks.h"

namespace weft::engine {

Monarch::Monarch(ParameterSet* parameters, int64_t first, const MonarchSizes& size, DType compute)
    : blocks_(size.blocks),
      first_(parameters, first, size.blocks, compute),
      second_(parameters, first + 1, size.blocks, compute) {}

Status Monarch::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(first_.Pack(context, what));
  return second_.Pack(context, what);
}

Result<Tensor> Monarch::MiddleOf(Context& context, const Tensor& x) const {
  const Shape shape{x.shape().Rows(), Middle()};
  WEFT_ASSIGN_OR_RETURN(const Tensor made,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), shape));
  WEFT_RETURN_IF_ERROR(first_.Forward(context, x, {}, made));
  WEFT_ASSIGN_OR_RETURN(Tensor read, Tensor::New(context, Component::kWorkspace, x.dtype(), shape));
  WEFT_RETURN_IF_ERROR(kernels::SwapBlocks(context.stream, {made, read, blocks_, blocks_}));
  return read;
}

Status Monarch::Forward(Context& context, const Tensor& x, const TensorView& bias,
                        const Tensor& y) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor middle, MiddleOf(context, x));
  return second_.Forward(context, middle, bias, y);
}

Status Monarch::MiddleGradient(Context& context, const Tensor& dy, const Tensor& dmiddle) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor dread,
                        Tensor::New(context, Component::kWorkspace, dy.dtype(), dmiddle.shape()));
  WEFT_RETURN_IF_ERROR(second_.InputGradient(context, dy, dread));
  return kernels::SwapBlocks(context.stream, {dread, dmiddle, blocks_, blocks_});
}

// What the second factor reads is made again: to keep it would take as much memory as x or y.
Status Monarch::WeightGradient(Context& context, const Tensor& x, const Tensor& dy,
                               const Tensor& dmiddle, const WeightGradientTarget& to) const {
  if (to.dtensors[0]) {
    WEFT_RETURN_IF_ERROR(
        first_.WeightGradient(context, x, dmiddle, to.dtensors[0], {}, to.accumulate));
  }
  if (to.dtensors[1]) {
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, MiddleOf(context, x));
    CountWork(context.profiler, 2.0 * static_cast<double>(x.shape().Rows() * first_.Elements()));
    return second_.WeightGradient(context, middle, dy, to.dtensors[1], to.dbias, to.accumulate);
  }
  if (!to.dbias) return OkStatus();
  return kernels::LinearBackwardWeight(
      context.stream, {.x = x, .dy = dy, .dbias = to.dbias, .accumulate = to.accumulate});
}

}  // namespace weft::engine
