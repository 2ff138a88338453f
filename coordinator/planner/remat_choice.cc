#include "coordinator/planner/remat_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/model/coarse_chain.h"

namespace weft::planner {
namespace {

// Steps of memory of the dynamic programme; its time grows with them and the cube of the blocks.
constexpr int64_t kSlots = 200;
constexpr int64_t kSlotsOfLong = 50;
constexpr int64_t kLong = 64;
// Longer chains are looked at with several blocks as one, which then have more steps each.
constexpr int64_t kVeryLong = 128;
constexpr int64_t kSlotsOfVeryLong = 512;
// What may also wait on the host has many more states.
constexpr int64_t kOffloadingStages = 64;

/// The least number in (low, high] for which `fits`, which holds at `high` and not at `low`.
template <class Fits>
int64_t Least(int64_t low, int64_t high, Fits&& fits) {
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

/// A schedule of the chain as one of the blocks: without what is above them, which takes no
/// time.
RematPlan OfBlocks(RematPlan schedule) {
  schedule.pop_back();
  const auto last = std::ssize(schedule) - 1;
  for (RematStep& step : schedule) {
    step.sent = std::min(step.sent, last);
    step.fetched = std::min(step.fetched, last);
  }
  schedule.back().sent = schedule.back().fetched = -1;
  return schedule;
}

/// The schedule of the largest budget with which the whole fits, of a chain that has one for every
/// step of `unit` bytes, with `coarse` stages. Budgets are those of the chain; whether it fits is
/// found by following the schedule exactly.
std::optional<RematChoice> Largest(CachedChain& chain, int64_t unit, const CoarseChain& coarse,
                                   const std::function<bool(const RematChoice&)>& fits) {
  std::optional<RematChoice> found;
  int64_t low = 0, high = chain.name().slots + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    std::optional<RematPlan> whole = chain.Schedule(unit * middle);
    if (!whole) {
      low = middle;
      continue;
    }
    RematPlan schedule = OfBlocks(Refine(*whole, coarse));
    RematChoice choice{ReplayedBlocks(schedule), 0, std::move(schedule)};
    if (fits(choice)) {
      low = middle;
      found = std::move(choice);
    } else {
      high = middle;
    }
  }
  return found;
}

std::optional<RematChoice> Optimal(const MemoryInputs& inputs, const RematCosts& costs,
                                   ChainCache& chains,
                                   const std::function<bool(const RematChoice&)>& fits) {
  const int64_t layers = inputs.shape.spec.layers;
  RematChoice keeps{0, 0, RematOfPolicies({}, layers, 1)};
  if (fits(keeps)) return keeps;
  const std::vector<ChainStage> chain = ChainOfBlocks(inputs, costs);
  int64_t most = 0;
  for (const ChainStage& stage : chain) {
    most += stage.modes.front().saved_bytes + stage.modes.front().passing_bytes;
  }
  const bool coarsens = layers > kVeryLong;
  const auto largest = [&](int64_t stages, int64_t slots, std::optional<double> link) {
    const CoarseChain coarse = Coarsen(chain, coarsens ? stages : std::ssize(chain));
    const int64_t unit = (most + slots - 1) / slots;
    const auto booked = chains.At({coarse.stages, unit * slots, slots, link});
    return Largest(*booked, unit, coarse, fits);
  };
  const int64_t slots = layers > kLong ? kSlotsOfLong : kSlots;
  if (inputs.offload_activations) {
    auto found = largest(kOffloadingStages, coarsens ? kSlots : slots, costs.link_seconds_per_byte);
    if (found) return found;
  }
  // Where what is on the host counts as well, sending may not help.
  return largest(kVeryLong, coarsens ? kSlotsOfVeryLong : slots, std::nullopt);
}

}  // namespace

std::vector<ChainStage> ChainOfBlocks(const MemoryInputs& inputs, const RematCosts& costs) {
  using Kind = RematStep::Kind;
  const BlockBytes bytes = BlockBytesOf(inputs);
  const int64_t rows = (bytes.post_norm ? 1 : 3) * bytes.row;
  // The input of a block, which it keeps itself, counts as the result of the one before.
  const int64_t passing =
      rows + std::max(3 * bytes.row + bytes.qkv, 4 * bytes.row + bytes.mlp_hidden);
  // Compressed activations exist together with all that they are made of.
  const int64_t beside = bytes.compressed ? rows + 4 * bytes.row + bytes.mlp_hidden : rows;
  const ChainStage::Mode keep{Kind::kKeep, bytes.kept.saved, beside, 0};
  const ChainStage::Mode attention{
      Kind::kAttention, bytes.kept.saved - bytes.kept.attention + bytes.kept.recompute_input,
      beside, costs.block.attention};
  std::vector<ChainStage> chain;
  for (int64_t block = 0; block < inputs.shape.spec.layers; ++block) {
    if (block < bytes.untrained) {
      chain.push_back({costs.block.forward, 0, bytes.row, passing, {{Kind::kKeep, 0, passing, 0}}});
    } else {
      chain.push_back(
          {costs.block.forward, costs.block.backward, bytes.input, passing, {keep, attention}});
    }
  }
  chain.push_back({0, 0, 0, 0, {{Kind::kKeep, bytes.row, bytes.row, 0}}});
  return chain;
}

bool ChooseRemat(const std::string& recompute, const MemoryInputs& inputs, const RematCosts& costs,
                 ChainCache& chains, const std::function<bool(const RematChoice&)>& fits) {
  const int64_t layers = inputs.shape.spec.layers;
  if (recompute == "none") return fits({});
  if (recompute == "block") return fits({layers, 0, {}});
  if (recompute == "attention") return fits({0, layers, {}});
  if (recompute == "optimal") {
    const std::optional<RematChoice> choice = Optimal(inputs, costs, chains, fits);
    return fits(choice ? *choice : RematChoice{layers, 0, {}});
  }
  if (fits({})) return true;
  std::optional<RematChoice> best;
  double least = 0;
  const auto offer = [&](const RematChoice& choice) {
    const double seconds = static_cast<double>(choice.recomputed_blocks) * costs.block.forward +
                           static_cast<double>(choice.attention_blocks) * costs.block.attention;
    if (best && seconds >= least) return;
    best = choice;
    least = seconds;
  };
  // Memory falls with every recomputed block and attention: the least number is the fastest.
  if (fits({layers, 0, {}})) {
    const int64_t blocks = Least(0, layers, [&](int64_t n) { return fits({n, 0, {}}); });
    offer({blocks, 0, {}});
    // Attention in place of the last of these blocks.
    const int64_t others = layers - blocks + 1;
    if (fits({blocks - 1, others, {}})) {
      offer({blocks - 1,
             Least(0, others,
                   [&](int64_t n) {
                     return fits({blocks - 1, n, {}});
                   }),
             {}});
    }
  }
  // Attention first, and blocks only where all of it is not enough.
  if (fits({0, layers, {}})) {
    offer({0, Least(0, layers, [&](int64_t n) { return fits({0, n, {}}); }), {}});
  } else if (fits({layers, 0, {}})) {
    const int64_t blocks = Least(0, layers, [&](int64_t n) { return fits({n, layers - n, {}}); });
    offer({blocks, layers - blocks, {}});
  }
  return fits(best ? *best : RematChoice{layers, 0, {}});
}

}  // namespace weft::planner
