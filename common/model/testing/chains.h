// Chains of stages and their schedules, written down as plainly as can be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/model/optimal_chain.h"
#include "common/model/remat_schedule.h"
#include "common/model/transfer_waits.h"
#include "common/rng.h"

namespace weft::testing {

inline ChainStage Stage(double forward, double backward, int64_t result, int64_t saved,
                        int64_t passing = 0) {
  return {forward, backward, result, passing, {{RematStep::Kind::kKeep, saved, passing, 0}}};
}

inline std::vector<ChainStage> RandomChain(PhiloxStream& random, int64_t length, bool two_ways) {
  std::vector<ChainStage> chain;
  for (int64_t i = 0; i < length; ++i) {
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random.Below(bound)); };
    const int64_t result = 1 + below(3);
    ChainStage stage = Stage(static_cast<double>(1 + below(9)), static_cast<double>(1 + below(9)),
                             result, result + below(6), below(3));
    if (two_ways) {
      ChainStage::Mode mode = stage.modes[0];
      mode.kind = RematStep::Kind::kAttention;
      mode.saved_bytes = result + (mode.saved_bytes - result) / 2;
      mode.passing_bytes += below(3);
      mode.recompute_seconds = stage.forward_seconds / 2;
      stage.modes.push_back(mode);
    }
    chain.push_back(stage);
  }
  return chain;
}

/// Seconds of a schedule and the bytes that it needs on the device, found by following it.
struct Followed {
  double seconds = 0;
  int64_t peak = 0;
};

inline Followed Follow(const std::vector<ChainStage>& chain, const RematPlan& plan,
                       double seconds_per_byte = 0, int64_t held = 0) {
  Followed result;
  std::vector<StepLoad> loads;
  std::vector<int64_t> passing;
  const auto reach = [&](int64_t bytes) { result.peak = std::max(result.peak, bytes); };
  const auto size = std::ssize(plan);
  for (int64_t index = 0; index < size; ++index) {
    const RematStep& step = plan[static_cast<size_t>(index)];
    StepLoad load;
    passing.push_back(0);
    for (int64_t i = step.first; i < step.end(); ++i) {
      const ChainStage& stage = chain[static_cast<size_t>(i)];
      load.forward += stage.forward_seconds;
      if (step.kind == RematStep::Kind::kSegment) {
        reach(held + stage.passing_bytes);
        load.bytes = stage.result_bytes;
        continue;
      }
      const auto mode = std::find_if(stage.modes.begin(), stage.modes.end(),
                                     [&](const auto& w) { return w.kind == step.kind; });
      load.bytes = mode->saved_bytes;
      load.backward = mode->recompute_seconds + stage.backward_seconds;
      passing.back() = mode->passing_bytes;
    }
    held += load.bytes;
    reach(held + passing.back());
    loads.push_back(load);
    for (int64_t k = 0; k < index; ++k) {
      const auto other = static_cast<size_t>(k);
      if (plan[other].sent == index) held -= loads[other].bytes;
    }
  }
  for (int64_t index = size; index-- > 0;) {
    const RematStep& step = plan[static_cast<size_t>(index)];
    StepLoad& load = loads[static_cast<size_t>(index)];
    for (int64_t k = 0; k < index; ++k) {
      const auto other = static_cast<size_t>(k);
      if (plan[other].fetched == index) held += loads[other].bytes;
    }
    reach(held + passing[static_cast<size_t>(index)]);
    held -= load.bytes;
    if (step.kind != RematStep::Kind::kSegment) continue;
    const Followed replay = Follow(chain, step.replay, seconds_per_byte, held);
    load.backward = replay.seconds;
    reach(replay.peak);
  }
  for (const StepLoad& load : loads) result.seconds += load.forward + load.backward;
  result.seconds += TransferWaits(plan, loads, seconds_per_byte);
  return result;
}

/// All schedules of stages [first, last] whose last stage keeps what it needs.
inline std::vector<RematPlan> AllSchedules(const std::vector<ChainStage>& chain, int64_t first,
                                           int64_t last) {
  if (first > last) return {{}};
  std::vector<RematPlan> all;
  const auto add = [&](const RematStep& step, const std::vector<RematPlan>& rests) {
    for (const RematPlan& rest : rests) {
      all.push_back({step});
      all.back().insert(all.back().end(), rest.begin(), rest.end());
    }
  };
  const std::vector<RematPlan> rest = AllSchedules(chain, first + 1, last);
  for (const auto& mode : chain[static_cast<size_t>(first)].modes)
    add({mode.kind, first, 1, {}}, rest);
  for (int64_t next = first + 1; next <= last; ++next) {
    const std::vector<RematPlan> rests = AllSchedules(chain, next, last);
    for (const RematPlan& replay : AllSchedules(chain, first, next - 1)) {
      add({RematStep::Kind::kSegment, first, next - first, replay}, rests);
    }
  }
  return all;
}

}  // namespace weft::testing
