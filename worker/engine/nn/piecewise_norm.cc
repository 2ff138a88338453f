#include "worker/engine/nn/piecewise_norm.h"

#include <algorithm>
#include <numeric>

#include "kernels/norm_stat/norm_stat.h"

namespace weft::engine {

PiecewiseNorm::PiecewiseNorm(std::vector<ParameterSet::Range> tensors) {
  for (const ParameterSet::Range& tensor : tensors) {
    for (int64_t begin = tensor.begin; begin < tensor.end; begin += kernels::kNormStatBlock) {
      blocks_.push_back({{begin, std::min(begin + kernels::kNormStatBlock, tensor.end)}});
    }
  }
  rising_.resize(blocks_.size());
  std::iota(rising_.begin(), rising_.end(), size_t{0});
  std::sort(rising_.begin(), rising_.end(),
            [this](size_t a, size_t b) { return blocks_[a].range.begin < blocks_[b].range.begin; });
}

void PiecewiseNorm::Start() {
  for (Block& block : blocks_) block.known = false;
  begun_.clear();
  missing_ = std::ssize(blocks_);
  takes_ = true;
}

Status PiecewiseNorm::Measure(Block& block, const float* data) {
  missing_ -= block.known ? 0 : 1;
  block.known = true;
  const kernels::NormTensor tensor = {data, block.range.size()};
  return kernels::NormStat({}, {{&tensor, 1}, &block.squares, &block.non_finite});
}

Status PiecewiseNorm::Take(const ParameterSet::Range& range, const float* data) {
  if (!takes_) return OkStatus();
  auto at = std::partition_point(rising_.begin(), rising_.end(),
                                 [&](size_t b) { return blocks_[b].range.end <= range.begin; });
  for (; at != rising_.end() && blocks_[*at].range.begin < range.end; ++at) {
    Block& block = blocks_[*at];
    const int64_t begin = std::max(block.range.begin, range.begin);
    const int64_t end = std::min(block.range.end, range.end);
    const float* const from = data + (begin - range.begin);
    if (end - begin == block.range.size()) {
      WEFT_RETURN_IF_ERROR(Measure(block, from));
      continue;
    }
    Begun& begun = begun_[*at];
    begun.elements.resize(static_cast<size_t>(block.range.size()));
    std::copy_n(from, end - begin, begun.elements.begin() + (begin - block.range.begin));
    begun.come += end - begin;
    if (begun.come < block.range.size()) continue;
    WEFT_RETURN_IF_ERROR(Measure(block, begun.elements.data()));
    begun_.erase(*at);
  }
  return OkStatus();
}

double PiecewiseNorm::SumOfSquares() const {
  double sum = 0;
  for (const Block& block : blocks_) sum += block.squares;
  return sum;
}

int64_t PiecewiseNorm::NonFinite() const {
  int64_t count = 0;
  for (const Block& block : blocks_) count += block.non_finite;
  return count;
}

}  // namespace weft::engine
