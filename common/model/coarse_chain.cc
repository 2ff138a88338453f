#include "common/model/coarse_chain.h"

#include <algorithm>

namespace weft {
namespace {

using Kind = RematStep::Kind;

/// `count` neighbours like `stage` as one.
ChainStage Group(const ChainStage& stage, int64_t count) {
  if (count == 1) return stage;
  const auto times = static_cast<double>(count);
  ChainStage group{times * stage.forward_seconds,
                   times * stage.backward_seconds,
                   stage.result_bytes,
                   stage.passing_bytes,
                   {}};
  for (ChainStage::Mode mode : stage.modes) {
    mode.saved_bytes *= count;
    mode.recompute_seconds *= times;
    group.modes.push_back(mode);
  }
  // Each keeps its input, and runs again by itself.
  const ChainStage::Mode& keep = stage.modes.front();
  if (keep.saved_bytes > stage.result_bytes) {
    group.modes.push_back(
        {Kind::kSegment, count * stage.result_bytes,
         std::max(stage.passing_bytes, keep.saved_bytes - stage.result_bytes + keep.passing_bytes),
         times * (stage.forward_seconds + keep.recompute_seconds)});
  }
  return group;
}

}  // namespace

CoarseChain Coarsen(const std::vector<ChainStage>& chain, int64_t most) {
  const auto n = std::ssize(chain);
  const int64_t group = (n + most - 1) / most;
  CoarseChain coarse;
  for (int64_t begin = 0; begin < n;) {
    const ChainStage& stage = chain[static_cast<size_t>(begin)];
    int64_t end = begin + 1;
    while (end < n && end - begin < group && chain[static_cast<size_t>(end)] == stage) ++end;
    coarse.stages.push_back(Group(stage, end - begin));
    coarse.begins.push_back(begin);
    begin = end;
  }
  coarse.begins.push_back(n);
  return coarse;
}

RematPlan Refine(const RematPlan& plan, const CoarseChain& coarse) {
  RematPlan fine;
  std::vector<int64_t> last;  // of each coarse step, its last one
  for (const RematStep& step : plan) {
    const int64_t begin = coarse.begins[static_cast<size_t>(step.first)];
    const int64_t end = coarse.begins[static_cast<size_t>(step.end())];
    if (step.kind == Kind::kSegment && !step.replay.empty()) {
      fine.push_back({Kind::kSegment, begin, end - begin, Refine(step.replay, coarse), step.sent,
                      step.fetched});
    } else {
      for (int64_t stage = begin; stage < end; ++stage) {
        RematPlan replay;
        if (step.kind == Kind::kSegment) replay = {{Kind::kKeep, stage, 1, {}}};
        fine.push_back({step.kind, stage, 1, std::move(replay), step.sent, step.fetched});
      }
    }
    last.push_back(std::ssize(fine) - 1);
  }
  for (RematStep& step : fine) {
    if (!step.offloaded()) continue;
    step.sent = last[static_cast<size_t>(step.sent)];
    step.fetched = last[static_cast<size_t>(step.fetched)];
  }
  return fine;
}

}  // namespace weft
