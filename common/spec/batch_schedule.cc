#include "common/spec/batch_schedule.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

__extension__ using Wide = unsigned __int128;

// Sum over s in [0, n) of floor(a s / m), by the Euclidean algorithm: O(log).
Wide SumOfFloors(Wide n, Wide m, Wide a, Wide b) {
  Wide sum = 0;
  for (;;) {
    sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
    a %= m;
    b %= m;
    const Wide last = a * n + b;
    if (last < m) return sum;
    n = last / m;
    b = last % m;
    std::swap(m, a);
  }
}

}  // namespace

BatchSchedule::BatchSchedule(const TrainSpec& train)
    : unit_(train.global_batch), units_(1), warmup_steps_(0) {
  if (train.batch_warmup_steps == 0 || train.batch_warmup_start == 0) return;
  unit_ = train.batch_warmup_start;
  units_ = train.global_batch / unit_;
  warmup_steps_ = train.batch_warmup_steps;
}

int64_t BatchSchedule::At(int64_t step) const {
  if (step >= warmup_steps_) return unit_ * units_;
  const Wide grown =
      static_cast<Wide>(step) * static_cast<Wide>(units_ - 1) / static_cast<Wide>(warmup_steps_);
  return unit_ * (1 + static_cast<int64_t>(grown));
}

int64_t BatchSchedule::Before(int64_t step) const {
  const int64_t growing = std::min(step, warmup_steps_);
  int64_t sequences = (step - growing) * unit_ * units_;
  if (growing > 0) {
    const Wide grown = SumOfFloors(static_cast<Wide>(growing), static_cast<Wide>(warmup_steps_),
                                   static_cast<Wide>(units_ - 1), 0);
    sequences += unit_ * (growing + static_cast<int64_t>(grown));
  }
  return sequences;
}

}  // namespace weft
