#include "worker/engine/train/first_tokens.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {

Batch FirstTokens(const Batch& whole, int64_t length) {
  const bool full = std::all_of(whole.lengths.begin(), whole.lengths.end(),
                                [&](int32_t of_sequence) { return of_sequence == whole.length; });
  WEFT_CHECK(length < whole.length && full && whole.target_rows.empty() && whole.labels.empty(),
             "full sequences of a causal language model");
  Batch cut;
  cut.sequences = whole.sequences;
  cut.length = length;
  cut.stride = length;
  cut.lengths.assign(whole.lengths.size(), static_cast<int32_t>(length));
  auto run = whole.sequence_starts.begin();
  for (int64_t s = 0; s < whole.sequences; ++s) {
    const int64_t first = s * whole.length;
    const auto append = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
      to.insert(to.end(), from.begin() + first, from.begin() + first + length);
    };
    append(whole.tokens, cut.tokens);
    append(whole.targets, cut.targets);
    append(whole.positions, cut.positions);
    for (; *run < first + whole.length; ++run) {
      if (*run >= first + length) continue;
      cut.sequence_starts.push_back(static_cast<int32_t>(*run - first + s * length));
    }
  }
  cut.sequence_starts.push_back(static_cast<int32_t>(cut.sequences * length));
  const auto count = [](auto begin, auto end) {
    return static_cast<int64_t>(end - begin) - std::count(begin, end, kernels::kIgnoreTarget);
  };
  cut.target_count = count(cut.targets.begin(), cut.targets.end());
  const auto parts = std::ssize(whole.part_targets);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t size = std::ssize(cut.targets) / parts;
    const auto begin = cut.targets.begin() + part * size;
    cut.part_targets.push_back(count(begin, begin + size));
  }
  return cut;
}

}  // namespace weft::engine
