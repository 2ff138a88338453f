#include "common/model/optimal_chain.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

OptimalChain::OptimalChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots)
    : stages_(std::move(stages)),
      unit_(std::max<int64_t>((bytes + slots - 1) / slots, 1)),
      slots_(slots) {
  const auto n = std::ssize(stages_);
  WEFT_CHECK(n > 0 && slots > 0, "a chain and memory for it");
  table_.resize(static_cast<size_t>(n * n * (slots_ + 1)));
  for (int64_t length = 0; length < n; ++length) {
    for (int64_t first = 0; first + length < n; ++first) {
      for (int64_t m = 0; m <= slots_; ++m) {
        At(first, first + length, m) = Best(first, first + length, m);
      }
    }
  }
}

OptimalChain::Choice& OptimalChain::At(int64_t first, int64_t last, int64_t slots) {
  return table_[static_cast<size_t>((first * std::ssize(stages_) + last) * (slots_ + 1) + slots)];
}

const OptimalChain::Choice& OptimalChain::At(int64_t first, int64_t last, int64_t slots) const {
  return table_[static_cast<size_t>((first * std::ssize(stages_) + last) * (slots_ + 1) + slots)];
}

OptimalChain::Choice OptimalChain::Best(int64_t first, int64_t last, int64_t slots) const {
  const ChainStage& stage = stages_[static_cast<size_t>(first)];
  Choice best{kInfinity};
  for (size_t w = 0; w < stage.ways.size(); ++w) {
    const ChainStage::Way& way = stage.ways[w];
    const int64_t saved = Slots(way.saved_bytes);
    if (Slots(way.saved_bytes + way.passing_bytes) > slots || saved > slots) continue;
    const double seconds = stage.forward_seconds + way.again_seconds + stage.backward_seconds +
                           (first == last ? 0 : At(first + 1, last, slots - saved).seconds);
    if (seconds < best.seconds) best = {seconds, static_cast<int32_t>(w), -1};
  }
  double forward = 0;
  int64_t passing = 0;
  for (int64_t next = first + 1; next <= last; ++next) {
    const ChainStage& before = stages_[static_cast<size_t>(next - 1)];
    forward += before.forward_seconds;
    passing = std::max(passing, Slots(before.passing_bytes));
    const int64_t result = Slots(before.result_bytes);
    if (passing > slots || result > slots) continue;
    const double seconds =
        forward + At(next, last, slots - result).seconds + At(first, next - 1, slots).seconds;
    if (seconds < best.seconds) best = {seconds, -1, static_cast<int32_t>(next - first)};
  }
  return best;
}

int64_t OptimalChain::SlotsWithin(int64_t bytes) const {
  return std::clamp<int64_t>(bytes / unit_, 0, slots_);
}

double OptimalChain::Seconds(int64_t bytes) const {
  return At(0, std::ssize(stages_) - 1, SlotsWithin(bytes)).seconds;
}

std::optional<RematPlan> OptimalChain::Schedule(int64_t bytes) const {
  if (Seconds(bytes) == kInfinity) return std::nullopt;
  return Part(0, std::ssize(stages_) - 1, SlotsWithin(bytes));
}

RematPlan OptimalChain::Part(int64_t first, int64_t last, int64_t slots) const {
  RematPlan plan;
  while (first <= last) {
    const Choice& choice = At(first, last, slots);
    if (choice.way >= 0) {
      const ChainStage& stage = stages_[static_cast<size_t>(first)];
      const ChainStage::Way& way = stage.ways[static_cast<size_t>(choice.way)];
      plan.push_back({way.kind, first, 1, {}});
      slots -= Slots(way.saved_bytes);
      ++first;
      continue;
    }
    const int64_t next = first + choice.count;
    plan.push_back({RematStep::Kind::kSegment, first, choice.count, Part(first, next - 1, slots)});
    slots -= Slots(stages_[static_cast<size_t>(next - 1)].result_bytes);
    first = next;
  }
  return plan;
}

}  // namespace weft
