#include "coordinator/planner/rank_groups.h"

#include <algorithm>
#include <numeric>

namespace weft::planner {
namespace {

/// Fewest of `span` successive ranks on a worker that has any of them, where the job's ranks fill
/// workers of `on_worker` ranks one after the other and each `span` of them are looked at.
int64_t FewestOnWorker(const StepInputs& inputs, int64_t span, int64_t on_worker) {
  const int64_t count = inputs.ranks * inputs.shape.tensor * inputs.pipeline / span;
  // Then the offsets repeat.
  const int64_t different =
      std::min(std::max<int64_t>(count, 1), on_worker / std::gcd(span, on_worker));
  int64_t fewest = std::min(span, on_worker);
  for (int64_t i = 0; i < different; ++i) {
    const int64_t first = i * span % on_worker;
    const int64_t room = on_worker - first;
    if (room >= span) continue;
    const int64_t on_last = (first + span - 1) % on_worker + 1;
    fewest = std::min({fewest, room, on_last});
  }
  return fewest;
}

}  // namespace

RankGroup GroupOf(const StepInputs& inputs, int64_t ranks, int64_t span) {
  if (const int64_t most = inputs.most_on_worker; most > 0) {
    const int64_t workers = std::min(ranks, (span + most - 1) / most);
    return {.ranks = ranks, .on_worker = ranks / workers};
  }
  const int64_t fewest = FewestOnWorker(inputs, span, std::max<int64_t>(inputs.ranks_on_worker, 1));
  RankGroup group{.ranks = ranks, .on_worker = std::max<int64_t>(fewest / (span / ranks), 1)};
  if (inputs.links != nullptr && !group.within_worker()) {
    group.link = inputs.links->OfGroups(ranks, span);
  }
  return group;
}

}  // namespace weft::planner
