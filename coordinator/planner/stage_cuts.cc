#include "coordinator/planner/stage_cuts.h"

#include <algorithm>
#include <map>

namespace weft::planner {
namespace {

/// Blocks that each rank has the memory for.
std::vector<int64_t> MostBlocks(const std::vector<StageRank>& ranks, MemoryInputs memory,
                                const StageShapes& shapes, const InFlightActivations& in_flight,
                                bool recompute) {
  const int64_t layers = memory.shape.spec.layers;
  const int64_t stages = in_flight.ranks() * in_flight.chunks();
  memory.recomputed_blocks = recompute ? layers * stages : 0;
  memory.attention_blocks = 0;
  // What a rank holds does not depend on the blocks of the others.
  std::map<int64_t, std::vector<MemoryBreakdown>> known;
  const auto fits = [&](size_t rank, int64_t blocks) {
    auto [held, added] = known.try_emplace(blocks);
    if (added) {
      const std::vector<int64_t> cut(static_cast<size_t>(stages), blocks);
      held->second = PipelineMemory(shapes, cut, in_flight).Ranks(memory);
    }
    return TotalBytes(held->second[rank]) <= ranks[rank].memory_bytes;
  };
  std::vector<int64_t> most;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int64_t fitting = 0, beyond = layers / in_flight.chunks() + 1;
    while (beyond - fitting > 1) {
      const int64_t blocks = (fitting + beyond) / 2;
      (fits(rank, blocks) ? fitting : beyond) = blocks;
    }
    most.push_back(fitting * in_flight.chunks());
  }
  return most;
}

}  // namespace

std::vector<std::vector<int64_t>> StageCuts(const JobSpec& job, const std::vector<StageRank>& ranks,
                                            const MemoryInputs& memory, const StageShapes& shapes,
                                            const InFlightActivations& in_flight) {
  std::vector<std::vector<int64_t>> cuts;
  const auto add = [&](const std::vector<StageMachine>& machines) {
    const Result<std::vector<int64_t>> cut = CutModel(job, machines);
    if (cut.ok() && std::find(cuts.begin(), cuts.end(), *cut) == cuts.end()) cuts.push_back(*cut);
  };
  for (const bool recompute : {true, false}) {
    const std::vector<int64_t> most = MostBlocks(ranks, memory, shapes, in_flight, recompute);
    std::vector<StageMachine> machines;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      machines.push_back({ranks[rank].pass_seconds, most[rank]});
    }
    add(machines);
  }
  add({});
  return cuts;
}

}  // namespace weft::planner
