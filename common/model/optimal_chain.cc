#include "common/model/optimal_chain.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

OptimalChain::OptimalChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots,
                           const std::stop_token& stop)
    : stages_(std::move(stages)),
      unit_(std::max<int64_t>((bytes + slots - 1) / slots, 1)),
      slots_(slots) {
  const auto n = std::ssize(stages_);
  WEFT_CHECK(n > 0 && slots > 0, "a chain and memory for it");
  NumberParts();
  std::vector<bool> found(choices_.size() / static_cast<size_t>(slots_ + 1));
  for (int64_t length = 0; length < n; ++length) {
    for (int64_t first = 0; first + length < n; ++first) {
      const auto row = static_cast<size_t>(RowOf(first, first + length));
      if (found[row]) continue;
      if (stop.stop_requested()) return;
      found[row] = true;
      Find(first, first + length);
    }
  }
}

void OptimalChain::NumberParts() {
  const auto n = std::ssize(stages_);
  rows_.resize(static_cast<size_t>(n * n), -1);
  std::vector<int64_t> run_begin(static_cast<size_t>(n));  // of the run of equal stages of each
  for (int64_t i = 1; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    run_begin[at] = stages_[at] == stages_[at - 1] ? run_begin[at - 1] : i;
  }
  int32_t rows = 0;
  for (int64_t first = 0; first < n; ++first) {
    for (int64_t last = first; last < n; ++last) {
      const int64_t begin = run_begin[static_cast<size_t>(last)];
      const bool known = begin < first;  // all in one run, and looked at from its begin on
      RowOf(first, last) = known ? RowOf(begin, begin + last - first) : rows++;
    }
  }
  const auto size = static_cast<size_t>(rows) * static_cast<size_t>(slots_ + 1);
  seconds_.assign(size, kInfinity);
  choices_.resize(size);
}

void OptimalChain::Find(int64_t first, int64_t last) {
  const ChainStage& stage = stages_[static_cast<size_t>(first)];
  const size_t row = IndexOf(first, last, 0);
  for (size_t w = 0; w < stage.modes.size(); ++w) {
    const ChainStage::Mode& mode = stage.modes[w];
    const int64_t saved = Slots(mode.saved_bytes);
    Offer({static_cast<int32_t>(w), -1}, row,
          std::max(Slots(mode.saved_bytes + mode.passing_bytes), saved),
          stage.forward_seconds + mode.recompute_seconds + stage.backward_seconds,
          first == last ? nullptr : &seconds_[IndexOf(first + 1, last, 0)], saved, nullptr);
  }
  double forward = 0;
  int64_t passing = 0;
  for (int64_t next = first + 1; next <= last; ++next) {
    const ChainStage& before = stages_[static_cast<size_t>(next - 1)];
    forward += before.forward_seconds;
    passing = std::max(passing, Slots(before.passing_bytes));
    const int64_t result = Slots(before.result_bytes);
    Offer({-1, static_cast<int32_t>(next - first)}, row, std::max(passing, result), forward,
          &seconds_[IndexOf(next, last, 0)], result, &seconds_[IndexOf(first, next - 1, 0)]);
  }
}

void OptimalChain::Offer(Choice choice, size_t row, int64_t least, double fixed, const double* rest,
                         int64_t taken, const double* replay) {
  for (int64_t m = least; m <= slots_; ++m) {
    const double seconds =
        fixed + (rest == nullptr ? 0 : rest[m - taken]) + (replay == nullptr ? 0 : replay[m]);
    const size_t at = row + static_cast<size_t>(m);
    if (seconds >= seconds_[at]) continue;
    seconds_[at] = seconds;
    choices_[at] = choice;
  }
}

int64_t OptimalChain::SlotsWithin(int64_t bytes) const {
  return std::clamp<int64_t>(bytes / unit_, 0, slots_);
}

double OptimalChain::Seconds(int64_t bytes) const {
  return PartSeconds(0, std::ssize(stages_) - 1, SlotsWithin(bytes));
}

std::optional<RematPlan> OptimalChain::Schedule(int64_t bytes) const {
  if (Seconds(bytes) == kInfinity) return std::nullopt;
  return Part(0, std::ssize(stages_) - 1, SlotsWithin(bytes));
}

RematPlan OptimalChain::Part(int64_t first, int64_t last, int64_t slots) const {
  RematPlan plan;
  while (first <= last) {
    const Choice& choice = choices_[IndexOf(first, last, slots)];
    if (choice.mode >= 0) {
      const ChainStage& stage = stages_[static_cast<size_t>(first)];
      const ChainStage::Mode& mode = stage.modes[static_cast<size_t>(choice.mode)];
      plan.push_back({mode.kind, first, 1, {}});
      slots -= Slots(mode.saved_bytes);
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
