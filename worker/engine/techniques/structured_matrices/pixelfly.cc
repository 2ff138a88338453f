#include "worker/engine/techniques/structured_matrices/pixelfly.h"

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/block_sparse/block_sparse.h"
#include "kernels/linear/linear.h"

namespace weft::engine {

Shard ShardOfPixelfly(const PixelflySizes& size, const ParameterInfo& tensor,
                      const Shard& of_weight) {
  if (tensor.of_whole_weight) return {};
  if (tensor.factor == FactorSide::kNone) return of_weight;
  Shard shard;
  shard.extent = size.blocks * size.size;
  shard.first = of_weight.first;
  int64_t begin = 0;
  for (const PixelflySizes::Place& place : size.Places()) {
    const int64_t line = size.size * (of_weight.axis == 0 ? place.row : place.column);
    const bool here = std::any_of(of_weight.ranges.begin(), of_weight.ranges.end(),
                                  [&](const Shard::Range& range) {
                                    return range.begin <= line && line + size.size <= range.end;
                                  });
    const int64_t end = begin + size.size;
    if (here && !shard.ranges.empty() && shard.ranges.back().end == begin) {
      shard.ranges.back().end = end;
    } else if (here) {
      shard.ranges.push_back({begin, end});
    }
    begin = end;
  }
  return shard;
}

kernels::BlockPattern PatternOf(const PixelflySizes& size, const Shard& held, bool columns) {
  std::vector<kernels::BlockPattern::Place> places;
  for (const PixelflySizes::Place& place : size.Places()) {
    places.push_back({place.row, place.column});
  }
  if (held.whole()) return {size.size, size.rows, size.columns, places};
  std::vector<kernels::BlockPattern::Place> own;
  for (const Shard::Range& range : held.ranges) {
    own.insert(own.end(), places.begin() + range.begin / size.size,
               places.begin() + range.end / size.size);
  }
  // Each line has blocks, so that those of `own` are all that are here.
  std::map<int64_t, int64_t> lines;
  for (const auto& place : own) lines[columns ? place.column : place.row] = 0;
  int64_t count = 0;
  for (auto& [line, number] : lines) number = count++;
  for (auto& place : own) {
    int64_t& line = columns ? place.column : place.row;
    line = lines.at(line);
  }
  return {size.size, columns ? size.rows : count, columns ? count : size.columns, own};
}

Pixelfly::Pixelfly(ParameterSet* parameters, int64_t first, const kernels::BlockPattern* pattern,
                   int64_t rank, DType compute)
    : parameters_(parameters), blocks_(first), rank_(rank), pattern_(pattern) {
  if (rank_ == 0) return;
  in_.emplace(parameters, first + 1, compute);
  out_.emplace(parameters, first + 2, compute);
}

Status Pixelfly::Pack(Context& context, Repack what) {
  if (rank_ == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(in_->Pack(context, what));
  return out_->Pack(context, what);
}

Result<Tensor> Pixelfly::MiddleOf(Context& context, const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor middle, Tensor::New(context, Component::kWorkspace, x.dtype(),
                                                   {x.shape().Rows(), rank_}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearForward(context.stream, {.x = x, .weight = in_->packed(), .y = middle}));
  return middle;
}

// The product of low rank first: that of blocks adds to it.
Status Pixelfly::Forward(Context& context, const Tensor& x, const TensorView& bias,
                         const Tensor& y) const {
  if (rank_ > 0) {
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, MiddleOf(context, x));
    WEFT_RETURN_IF_ERROR(kernels::LinearForward(
        context.stream, {.x = middle, .weight = out_->packed(), .bias = bias, .y = y}));
  }
  return kernels::BlockSparseForward(context.stream, {.pattern = pattern_,
                                                      .x = x,
                                                      .blocks = parameters_->operand(blocks_),
                                                      .bias = rank_ > 0 ? TensorView() : bias,
                                                      .y = y,
                                                      .accumulate = rank_ > 0});
}

Status Pixelfly::MiddleGradient(Context& context, const Tensor& dy, const Tensor& dmiddle) const {
  return kernels::LinearBackwardInput(context.stream,
                                      {.dy = dy, .weight = out_->packed(), .dx = dmiddle});
}

Status Pixelfly::InputGradient(Context& context, const Tensor& dy, const Tensor& dmiddle,
                               const Tensor& dx, bool accumulate) const {
  if (rank_ > 0) {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream,
        {.dy = dmiddle, .weight = in_->packed(), .dx = dx, .accumulate = accumulate}));
  }
  return kernels::BlockSparseBackwardInput(context.stream, {.pattern = pattern_,
                                                            .dy = dy,
                                                            .blocks = parameters_->operand(blocks_),
                                                            .dx = dx,
                                                            .accumulate = accumulate || rank_ > 0});
}

// What U reads is made again.
Status Pixelfly::WeightGradient(Context& context, const Tensor& x, const Tensor& dy,
                                const Tensor& dmiddle, const WeightGradientTarget& to) const {
  if (to.dtensors[0]) {
    WEFT_RETURN_IF_ERROR(
        kernels::BlockSparseBackwardWeight(context.stream, {.pattern = pattern_,
                                                            .x = x,
                                                            .dy = dy,
                                                            .dblocks = to.dtensors[0],
                                                            .accumulate = to.accumulate}));
  }
  if (rank_ > 0 && to.dtensors[1]) {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream,
        {.x = x, .dy = dmiddle, .dweight = to.dtensors[1], .accumulate = to.accumulate}));
  }
  if (rank_ > 0 && to.dtensors[2]) {
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, MiddleOf(context, x));
    CountWork(context.profiler, 2.0 * static_cast<double>(x.shape().Rows() * rank_) *
                                    static_cast<double>(x.shape()[-1]));
    return kernels::LinearBackwardWeight(context.stream, {.x = middle,
                                                          .dy = dy,
                                                          .dweight = to.dtensors[2],
                                                          .dbias = to.dbias,
                                                          .accumulate = to.accumulate});
  }
  if (!to.dbias) return OkStatus();
  return kernels::LinearBackwardWeight(
      context.stream, {.x = x, .dy = dy, .dbias = to.dbias, .accumulate = to.accumulate});
}

}  // namespace weft::engine
