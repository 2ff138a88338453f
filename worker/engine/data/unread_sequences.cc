#include "worker/engine/data/unread_sequences.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/check.h"

namespace weft::engine {

UnreadSequences::UnreadSequences(std::vector<int64_t> bounds) : bounds_(std::move(bounds)) {
  WEFT_CHECK(bounds_.size() % 2 == 1, "the last range has no end");
  int64_t place = 0;
  for (size_t i = 0; i < bounds_.size(); i += 2) {
    places_.push_back(place);
    if (i + 1 < bounds_.size()) place += bounds_[i + 1] - bounds_[i];
  }
}

std::vector<SequenceRange> UnreadSequences::At(int64_t first, int64_t count) const {
  std::vector<SequenceRange> found;
  auto range = static_cast<size_t>(std::upper_bound(places_.begin(), places_.end(), first) -
                                   places_.begin() - 1);
  for (; count > 0; ++range) {
    const int64_t from = bounds_[2 * range] + first - places_[range];
    const int64_t end = 2 * range + 1 < bounds_.size() ? bounds_[2 * range + 1]
                                                       : std::numeric_limits<int64_t>::max();
    const int64_t taken = std::min(count, end - from);
    found.push_back({from, taken});
    first += taken;
    count -= taken;
  }
  return found;
}

void UnreadSequences::Remove(std::span<const SequenceRange> places) {
  std::vector<int64_t> kept;
  const auto begin = [&kept](int64_t number) {
    if (!kept.empty() && kept.back() == number) {
      kept.pop_back();
    } else {
      kept.push_back(number);
    }
  };
  const auto keep = [&](int64_t from, int64_t to) {
    if (from >= to) return;
    for (const SequenceRange& range : At(from, to - from)) {
      begin(range.first);
      kept.push_back(range.first + range.count);
    }
  };
  int64_t from = 0;
  for (const SequenceRange& gone : places) {
    keep(from, gone.first);
    from = gone.first + gone.count;
  }
  // What follows, up to the range without an end.
  keep(from, places_.back());
  begin(At(std::max(from, places_.back()), 1).front().first);
  *this = UnreadSequences(std::move(kept));
}

}  // namespace weft::engine
