#include "coordinator/planner/stage_schedules.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/model/coarse_chain.h"
#include "common/model/in_flight_chain.h"

namespace weft::planner {
namespace {

// Steps of memory of the dynamic programme, whose time grows with the square of both.
int64_t SlotsOf(int64_t blocks) {
  return blocks <= 16 ? 100 : blocks <= 32 ? 70 : 50;
}
// Longer stages of a pipeline are looked at with several blocks as one.
constexpr int64_t kVeryLong = 128;
constexpr int64_t kCoarseStages = 64;
constexpr int64_t kSlotsOfCoarse = 150;
// Budgets of a rank that are distinguished.
constexpr int64_t kBudgets = 4096;

/// Blocks of a stage, and how many of them nothing trains.
struct Blocks {
  int64_t count = 0;
  int64_t untrained = 0;
  auto operator<=>(const Blocks&) const = default;
};

/// The schedules of stages with this many blocks.
struct Schedules {
  int64_t most_bytes = 0;  ///< Of a pass that keeps all.
  CoarseChain coarse;
  InFlightChain chain;
};

Schedules SchedulesOf(MemoryInputs inputs, const RematCosts& costs, const Blocks& blocks,
                      const std::stop_token& stop) {
  inputs.shape.spec.layers = blocks.count;
  inputs.shape.first_trained_layer = blocks.untrained;
  const std::vector<ChainStage> chain = ChainOfBlocks(inputs, costs);
  const bool coarsens = blocks.count > kVeryLong;
  CoarseChain coarse = Coarsen(chain, coarsens ? kCoarseStages : std::ssize(chain));
  const int64_t slots = coarsens ? kSlotsOfCoarse : SlotsOf(blocks.count);
  int64_t most = 0, passing = 0;
  for (const ChainStage& stage : chain) {
    most += stage.modes.front().saved_bytes;
    passing = std::max({passing, stage.passing_bytes, stage.modes.front().passing_bytes});
  }
  // Each stage is rounded up.
  most = (most + passing) * (slots + std::ssize(coarse.stages) + 1) / slots;
  InFlightChain held(coarse.stages, most, slots, stop);
  return {most, std::move(coarse), std::move(held)};
}

}  // namespace

std::optional<RematChoice> ChooseStageSchedules(
    const MemoryInputs& inputs, const RematCosts& costs, const std::vector<int64_t>& cut,
    const InFlightActivations& in_flight,
    const std::function<bool(int64_t rank, const RematChoice& choice)>& rank_fits,
    const std::stop_token& stop) {
  std::map<Blocks, Schedules> known;
  std::vector<Blocks> blocks;
  std::vector<RematPlan> stages;  // all is kept where nothing else is said
  int64_t first = 0;
  for (const int64_t count : cut) {
    blocks.push_back(
        {count, std::clamp<int64_t>(inputs.shape.first_trained_layer - first, 0, count)});
    stages.push_back(RematOfPolicies({}, count, 1));
    first += count;
  }
  const auto schedules_of = [&](size_t stage) -> const Schedules& {
    auto found = known.find(blocks[stage]);
    if (found == known.end()) {
      found = known.emplace(blocks[stage], SchedulesOf(inputs, costs, blocks[stage], stop)).first;
    }
    return found->second;
  };
  const auto choice_of = [&](const std::vector<RematPlan>& plans) {
    RematPlan schedule = OfStages(plans);
    return RematChoice{ReplayedBlocks(schedule), 0, std::move(schedule)};
  };
  const auto recompute_seconds = [&](const std::vector<RematPlan>& plans, int64_t rank) {
    double seconds = 0;
    for (auto stage = static_cast<size_t>(rank); stage < plans.size();
         stage += static_cast<size_t>(in_flight.ranks())) {
      seconds += static_cast<double>(ReplayedBlocks(plans[stage])) * costs.block.forward +
                 static_cast<double>(ReplayedAttentions(plans[stage])) * costs.block.attention;
    }
    return seconds;
  };
  for (int64_t rank = 0; rank < in_flight.ranks(); ++rank) {
    if (stop.stop_requested()) return std::nullopt;
    // Schedules take long to find.
    if (rank_fits(rank, choice_of(stages))) continue;
    // The stages of the rank with a share of all that they could take; whether that fits.
    std::vector<RematPlan> best;
    const auto fits = [&](int64_t budget) {
      std::vector<RematPlan> plans = stages;
      for (int64_t chunk = 0; chunk < in_flight.chunks(); ++chunk) {
        const auto stage = static_cast<size_t>(chunk * in_flight.ranks() + rank);
        const int64_t passes = std::max<int64_t>(in_flight.InFlight(rank, chunk), 1);
        const Schedules& schedules = schedules_of(stage);
        auto plan =
            schedules.chain.Schedule(schedules.most_bytes * passes * budget / kBudgets, passes);
        if (!plan) return true;  // a larger one may do
        plan->pop_back();        // what is above the blocks
        plans[stage] = Refine(*plan, schedules.coarse);
      }
      if (!rank_fits(rank, choice_of(plans))) return false;
      best = std::move(plans);
      return true;
    };
    int64_t low = 0, high = kBudgets;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    // Sizes are rounded up, and budgets are not all there is: where no more than each block's input
    // fits exactly, that is not found.
    std::vector<RematPlan> once = stages;
    for (auto stage = static_cast<size_t>(rank); stage < cut.size();
         stage += static_cast<size_t>(in_flight.ranks())) {
      const std::vector<std::string> all(static_cast<size_t>(cut[stage]), "recompute");
      once[stage] = RematOfPolicies(all, cut[stage], 1);
    }
    if ((best.empty() || recompute_seconds(once, rank) < recompute_seconds(best, rank)) &&
        rank_fits(rank, choice_of(once))) {
      best = std::move(once);
    }
    if (best.empty()) return std::nullopt;
    stages = std::move(best);
  }
  return choice_of(stages);
}

}  // namespace weft::planner
