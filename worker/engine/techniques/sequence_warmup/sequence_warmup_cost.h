#pragma once

#include <algorithm>
#include <cstdint>

#include "common/spec/train_spec.h"

namespace weft {

/// Tokens that `step` trains on of sequences of `length`: they rise linearly from
/// train.sequence_warmup_start to all within train.sequence_warmup_steps steps, in multiples of 8,
/// which products of matrices like (Li et al. 2022, arXiv 2108.06084).
inline int64_t WarmedUpLength(const TrainSpec& train, int64_t step, int64_t length) {
  constexpr int64_t kMultiple = 8;
  const int64_t start = train.sequence_warmup_start;
  if (step >= train.sequence_warmup_steps || start >= length) return length;
  const double share = static_cast<double>(step) / static_cast<double>(train.sequence_warmup_steps);
  const int64_t grown = start + static_cast<int64_t>(share * static_cast<double>(length - start));
  return std::max(start, grown / kMultiple * kMultiple);
}

}  // namespace weft
