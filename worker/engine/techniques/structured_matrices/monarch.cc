#include "worker/engine/techniques/structured_matrices/monarch.h"

#include "kernels/linear/linear.h"
#include "kernels/swap_blocks/swap_blocks.h"

namespace weft::engine {

// The first factor has rows by (k, l, q), the second one by (l, s), and columns by (k, q), of
// MonarchSizes.
Shard ShardOfFactor(const MonarchSizes& size, FactorSide side, const Shard& of_weight) {
  const bool of_input = side == FactorSide::kInput;
  const bool rows = of_weight.axis == 0;
  if (rows && !of_input) return of_weight;
  Shard shard;
  shard.axis = of_input ? 0 : 1;
  shard.extent = of_input ? size.Middle() : size.blocks * size.rank;
  shard.first = of_weight.first;
  // Numbers of m for each block of the side that is cut.
  const int64_t numbers = rows || !of_input ? size.rank : size.blocks * size.rank;
  const int64_t side_of_block = rows ? size.out : size.in;
  const auto add = [&](int64_t begin, const Shard::Range& range) {
    WEFT_CHECK(range.begin % side_of_block == 0 && range.end % side_of_block == 0,
               "tensor-parallel ranks have whole blocks");
    shard.ranges.push_back({begin + range.begin / side_of_block * numbers,
                            begin + range.end / side_of_block * numbers});
  };
  const int64_t times = rows ? size.blocks : 1;
  for (int64_t k = 0; k < times; ++k) {
    for (const Shard::Range& range : of_weight.ranges) add(k * size.blocks * size.rank, range);
  }
  return shard;
}

Monarch::Monarch(ParameterSet* parameters, int64_t first, const MonarchSizes& size, DType compute)
    : input_blocks_((*parameters)[first + 1].shape[1] / size.rank),
      output_blocks_((*parameters)[first + 1].shape[0] / size.out),
      first_(parameters, first, input_blocks_, compute),
      second_(parameters, first + 1, output_blocks_, compute) {}

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
  WEFT_RETURN_IF_ERROR(
      kernels::SwapBlocks(context.stream, {made, read, input_blocks_, output_blocks_}));
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
  return kernels::SwapBlocks(context.stream, {dread, dmiddle, output_blocks_, input_blocks_});
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
