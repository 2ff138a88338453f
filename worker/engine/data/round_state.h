#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/field.h"

namespace weft::engine {

/// What the outer steps of rounds by time (train.local_round_seconds) leave to the next ones; empty
/// without them.
struct RoundState {
  int64_t sequences = 0;
  std::vector<int64_t> unread;
  std::vector<int64_t> updates;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("sequences", "Trained on, by all ranks.").Unit("sequences").Range(0, 9e18),
          self.sequences);
    visit(Field("unread",
                "Numbers, in the training order, of the sequences that were not trained on: first "
                "and end of each range that was left out, then the first of all that follow.")
              .Range(0, 9e18),
          self.unread);
    visit(Field("updates", "That each rank has made by itself.").Unit("steps").Range(0, 1e12),
          self.updates);
  }

  bool operator==(const RoundState&) const = default;
};

}  // namespace weft::engine
