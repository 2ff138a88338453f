#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/status.h"

namespace weft::engine {

/// The ranks that make rounds by time together. A rank keeps its number while others come and go;
/// in the group it is the one at its place among the members.
struct RoundMembers {
  int64_t membership = 1;        ///< Grows each time others come or go.
  int64_t number = 0;            ///< Of this rank.
  std::vector<int64_t> members;  ///< Numbers, ascending; empty: of all ranks, from 0.
};

/// How far a rank is in rounds by time, as it tells the others when they come together anew.
struct RoundPosition {
  int64_t outer_steps = -1;
  int64_t membership = 0;
  int64_t local_steps = 0;
  std::vector<int64_t> members;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("outer_steps", "Made in this attempt; -1: it has not the state of the training.")
              .Range(-1, 1e12),
          self.outer_steps);
    visit(Field("membership", "With which its round began.").Range(0, 1e12), self.membership);
    visit(Field("local_steps", "Made in its round.").Range(0, 1e12), self.local_steps);
    visit(Field("members", "Numbers of the ranks of its round.").Range(0, 1e12), self.members);
  }

  bool operator==(const RoundPosition&) const = default;
};

/// What ranks that come together anew do.
struct Regrouping {
  int64_t source = 0;         ///< Rank whose state the others take that are behind.
  std::vector<bool> current;  ///< By rank: it is as far as the source.
  bool ends_round = false;  ///< First they make the outer step with what was learned in the round.
};

/// It follows from how far each rank is, by rank: the newest state holds. A rank is behind when it
/// is new, or when the ranks were cut off while some of them had made an outer step and some had
/// not: those that had made it had what all had learned. kUnavailable: no rank has the state.
Result<Regrouping> PlanRegrouping(std::span<const RoundPosition> positions);

/// The place of `number` among `members`; -1: it is not one of them.
int64_t PlaceAmong(std::span<const int64_t> members, int64_t number);

/// `values` of the members `before`, for the members `after`; new ones have `otherwise`.
template <class T>
std::vector<T> OfMembers(std::span<const T> values, std::span<const int64_t> before,
                         std::span<const int64_t> after, T otherwise) {
  std::vector<T> moved;
  for (const int64_t number : after) {
    const int64_t place = PlaceAmong(before, number);
    moved.push_back(place < 0 ? otherwise : values[static_cast<size_t>(place)]);
  }
  return moved;
}

}  // namespace weft::engine
