#include "worker/engine/train/round_members.h"

#include <algorithm>
#include <tuple>

namespace weft::engine {
namespace {

auto Newness(const RoundPosition& position) {
  return std::tuple(position.outer_steps, position.membership);
}

}  // namespace

Result<Regrouping> PlanRegrouping(std::span<const RoundPosition> positions) {
  const auto newest = std::max_element(
      positions.begin(), positions.end(),
      [](const auto& one, const auto& other) { return Newness(one) < Newness(other); });
  if (newest == positions.end() || newest->outer_steps < 0) {
    return UnavailableError("none of the " + std::to_string(positions.size()) +
                            " ranks has the state of the training any more");
  }
  Regrouping how;
  how.source = newest - positions.begin();
  for (const RoundPosition& position : positions) {
    const bool current = Newness(position) == Newness(*newest);
    how.current.push_back(current);
    how.ends_round = how.ends_round || (current && position.local_steps > 0);
  }
  return how;
}

int64_t PlaceAmong(std::span<const int64_t> members, int64_t number) {
  const auto found = std::find(members.begin(), members.end(), number);
  return found == members.end() ? -1 : found - members.begin();
}

}  // namespace weft::engine
