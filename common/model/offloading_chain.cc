#include "common/model/offloading_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/check.h"

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t MostBytesOfAStep(const std::vector<ChainStage>& stages) {
  int64_t most = 0;
  for (const ChainStage& stage : stages) {
    most = std::max(most, stage.result_bytes);
    for (const ChainStage::Mode& mode : stage.modes) most = std::max(most, mode.saved_bytes);
  }
  return most;
}

}  // namespace

OffloadingChain::OffloadingChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots,
                                 const ChainLink& link, std::stop_token stop)
    : stages_(std::move(stages)),
      replays_(stages_, bytes, slots, stop),
      link_(link),
      stop_(std::move(stop)) {
  WEFT_CHECK(link.ticks > 0, "time in ticks");
  const double longest = static_cast<double>(MostBytesOfAStep(stages_)) * link.seconds_per_byte;
  if (longest > 0 && longest < kInfinity) tick_ = longest / static_cast<double>(link.ticks);
  double forward = 0, backward = 0;
  for (const ChainStage& stage : stages_) {
    forward_.push_back(forward);
    backward_.push_back(backward);
    forward += stage.forward_seconds;
    backward += stage.backward_seconds;
  }
  forward_.push_back(forward);
  backward_.push_back(backward);
}

// Whole ticks; times that differ from them by rounding alone count as them.
int64_t OffloadingChain::Ticks(double seconds) const {
  constexpr double kRounding = 1e-6;
  constexpr double kMost = 1e9;
  return static_cast<int64_t>(std::min(seconds / tick_ + kRounding, kMost));
}

int64_t OffloadingChain::TicksOfTransfer(int64_t bytes) const {
  constexpr double kRounding = 1e-6;
  const double seconds = static_cast<double>(bytes) * link_.seconds_per_byte;
  return std::max<int64_t>(static_cast<int64_t>(std::ceil(seconds / tick_ - kRounding)), 1);
}

uint64_t OffloadingChain::KeyOf(const State& state) const {
  const auto add = [](uint64_t key, int64_t value) {
    constexpr uint64_t kMost = 1 << 12;
    return key * kMost + static_cast<uint64_t>(value);
  };
  const Transfers& transfers = state.transfers;
  const uint64_t key = add(add(0, state.stage), state.slots);
  return add(add(add(key, transfers.slots), transfers.down), transfers.up);
}

const OffloadingChain::Choice& OffloadingChain::At(const State& state) {
  const uint64_t key = KeyOf(state);
  if (const auto found = table_.find(key); found != table_.end()) return found->second;
  const Choice best = Best(state);
  return table_.emplace(key, best).first->second;
}

OffloadingChain::Choice OffloadingChain::Best(const State& state) {
  const auto n = std::ssize(stages_);
  const Transfers& transfers = state.transfers;
  if (state.stage == n) return {static_cast<double>(transfers.down + transfers.up) * tick_};
  Choice best{kInfinity};
  if (stop_.stop_requested()) return best;
  const int64_t first = state.stage;
  const ChainStage& stage = stages_[static_cast<size_t>(first)];
  const auto between = [&](const std::vector<double>& sums, int64_t end) {
    return Ticks(sums[static_cast<size_t>(end)]) - Ticks(sums[static_cast<size_t>(first)]);
  };
  const int64_t free = state.slots - std::max(transfers.HeldForward(), transfers.HeldBackward());
  for (size_t w = 0; w < stage.modes.size(); ++w) {
    const ChainStage::Mode& mode = stage.modes[w];
    if (replays_.Slots(mode.saved_bytes + mode.passing_bytes) > free ||
        replays_.Slots(mode.saved_bytes) > free) {
      continue;
    }
    Choice step{stage.forward_seconds + mode.recompute_seconds + stage.backward_seconds,
                static_cast<int32_t>(w)};
    step.next.stage = first + 1;
    Follow(state, step, mode.saved_bytes, between(forward_, first + 1),
           between(backward_, first + 1) + Ticks(mode.recompute_seconds), best);
  }
  const int64_t free_forward = state.slots - transfers.HeldForward();
  const int64_t free_backward = state.slots - transfers.HeldBackward();
  double forward = 0;
  int64_t passing = 0;
  for (int64_t next = first + 1; next < n; ++next) {
    const ChainStage& before = stages_[static_cast<size_t>(next - 1)];
    forward += before.forward_seconds;
    passing = std::max(passing, replays_.Slots(before.passing_bytes));
    if (passing > free_forward) break;
    if (replays_.Slots(before.result_bytes) > free_forward || free_backward < 0) continue;
    const double replay = replays_.PartSeconds(first, next - 1, free_backward);
    if (replay == kInfinity) continue;
    Choice step{forward + replay, -1, static_cast<int32_t>(next - first)};
    step.next.stage = next;
    Follow(state, step, before.result_bytes, between(forward_, next), Ticks(replay), best);
  }
  return best;
}

void OffloadingChain::Follow(const State& state, Choice step, int64_t bytes, int64_t forward,
                             int64_t backward, Choice& best) {
  const auto offer = [&](int64_t waited) {
    Choice choice = step;
    choice.seconds += static_cast<double>(waited) * tick_ + At(choice.next).seconds;
    if (choice.seconds < best.seconds) best = choice;
  };
  const int64_t down = std::max<int64_t>(state.transfers.down - forward, 0);
  const int64_t up = std::max<int64_t>(state.transfers.up - backward, 0);
  const int64_t slots = replays_.Slots(bytes);
  // It stays; transfers in flight go on, or are waited for.
  step.next.slots = state.slots - slots;
  for (const int64_t down_left : {down, int64_t{0}}) {
    for (const int64_t up_left : {up, int64_t{0}}) {
      step.next.transfers = {down_left + up_left > 0 ? state.transfers.slots : 0, down_left,
                             up_left};
      offer(down - down_left + up - up_left);
      if (up == 0) break;
    }
    if (down == 0) break;
  }
  // It goes; transfers in flight are waited for.
  if (slots == 0 || step.next.stage == std::ssize(stages_) || link_.seconds_per_byte == kInfinity) {
    return;
  }
  const int64_t ticks = TicksOfTransfer(bytes);
  step.next.slots = state.slots;
  step.next.transfers = {slots, ticks, ticks};
  step.sends = true;
  offer(down + up);
}

double OffloadingChain::Seconds(int64_t bytes) {
  return At({0, replays_.SlotsWithin(bytes), {}}).seconds;
}

std::optional<RematPlan> OffloadingChain::Schedule(int64_t bytes) {
  State state{0, replays_.SlotsWithin(bytes), {}};
  if (At(state).seconds == kInfinity) return std::nullopt;
  RematPlan plan;
  RematStep* in_flight = nullptr;
  plan.reserve(stages_.size());
  while (state.stage < std::ssize(stages_)) {
    const Choice choice = At(state);
    RematStep step{RematStep::Kind::kSegment, state.stage, choice.count, {}};
    if (choice.mode >= 0) {
      const ChainStage& stage = stages_[static_cast<size_t>(state.stage)];
      step.kind = stage.modes[static_cast<size_t>(choice.mode)].kind;
      step.count = 1;
    } else {
      step.replay =
          replays_.Part(step.first, step.end() - 1, state.slots - state.transfers.HeldBackward());
    }
    plan.push_back(std::move(step));
    const Transfers& after = choice.next.transfers;
    const bool last = choice.next.stage == std::ssize(stages_);
    if (state.transfers.down > 0 && (choice.sends || after.down == 0 || last)) {
      in_flight->sent = std::ssize(plan) - 1;
    }
    if (state.transfers.up > 0 && (choice.sends || after.up == 0 || last)) {
      in_flight->fetched = std::ssize(plan) - 1;
    }
    if (choice.sends) in_flight = &plan.back();
    state = choice.next;
  }
  return plan;
}

}  // namespace weft
