#include "common/model/transfer_waits.h"

#include <algorithm>

namespace weft {
namespace {

/// Moves `bytes` after all that came before; returns when they are there.
class Lane {
 public:
  explicit Lane(double seconds_per_byte) : seconds_per_byte_(seconds_per_byte) {}
  double Move(double now, int64_t bytes) {
    free_at_ = std::max(now, free_at_) + static_cast<double>(bytes) * seconds_per_byte_;
    return free_at_;
  }

 private:
  double seconds_per_byte_;
  double free_at_ = 0;
};

}  // namespace

std::vector<StepLoad> LoadsOf(const RematPlan& plan, const BlockSeconds& block) {
  std::vector<StepLoad> loads;
  for (const RematStep& step : plan) {
    StepLoad load{static_cast<double>(step.count) * block.forward, block.backward, 0};
    if (step.kind == RematStep::Kind::kAttention) load.backward += block.attention;
    if (step.kind == RematStep::Kind::kSegment) {
      load.backward = 0;
      for (const StepLoad& part : LoadsOf(step.replay, block)) {
        load.backward += part.forward + part.backward;
      }
    }
    loads.push_back(load);
  }
  return loads;
}

double TransferWaits(const RematPlan& plan, const std::vector<StepLoad>& loads,
                     double seconds_per_byte) {
  const auto size = std::ssize(plan);
  double now = 0, waited = 0;
  std::vector<double> there(plan.size());
  const auto wait = [&](double until) {
    waited += std::max(until - now, 0.0);
    now = std::max(now, until);
  };
  Lane down(seconds_per_byte), up(seconds_per_byte);
  for (int64_t i = 0; i < size; ++i) {
    const auto step = static_cast<size_t>(i);
    now += loads[step].forward;
    if (plan[step].offloaded()) there[step] = down.Move(now, loads[step].bytes);
    for (size_t k = 0; k < step; ++k) {
      if (plan[k].sent == i) wait(there[k]);
    }
  }
  for (int64_t i = size; i-- > 0;) {
    const auto step = static_cast<size_t>(i);
    if (plan[step].offloaded()) wait(there[step]);
    for (size_t k = step; k-- > 0;) {
      if (plan[k].fetched == i) there[k] = up.Move(now, loads[k].bytes);
    }
    now += loads[step].backward;
  }
  return waited;
}

}  // namespace weft
