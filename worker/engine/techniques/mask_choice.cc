#include "worker/engine/techniques/mask_choice.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "common/check.h"
#include "common/dtype.h"

namespace weft::engine {

std::vector<uint8_t> KeepLargest(std::span<const float> scores, int64_t count,
                                 const PhiloxKey& ties) {
  std::vector<uint8_t> kept(scores.size(), 0);
  if (count <= 0) return kept;
  WEFT_CHECK(count <= std::ssize(scores), "more are to be kept than there are");
  std::vector<float> order(scores.begin(), scores.end());
  const auto last = order.begin() + (count - 1);
  std::nth_element(order.begin(), last, order.end(), std::greater<>());
  const float least = *last;
  WEFT_CHECK(least > kNeverChosen, "fewer can be chosen than are to be kept");
  int64_t missing = count;
  std::vector<std::pair<uint32_t, size_t>> equal;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > least) {
      kept[i] = 1;
      --missing;
    } else if (scores[i] == least) {
      equal.emplace_back(Philox(ties, i / 4).v[i % 4], i);
    }
  }
  const auto end = equal.begin() + missing;
  std::nth_element(equal.begin(), end, equal.end());
  for (auto each = equal.begin(); each != end; ++each) kept[each->second] = 1;
  return kept;
}

std::vector<uint8_t> Exchange(std::span<const uint8_t> mask, std::span<const float> magnitudes,
                              std::span<const float> growth, int64_t count,
                              const PhiloxKey& drop_ties, const PhiloxKey& growth_ties) {
  std::vector<float> scores(mask.size());
  int64_t active = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    scores[i] = mask[i] != 0 ? ToFloat(ToBFloat16(magnitudes[i])) : kNeverChosen;
    active += mask[i] != 0 ? 1 : 0;
  }
  std::vector<uint8_t> next = KeepLargest(scores, active - count, drop_ties);
  for (size_t i = 0; i < mask.size(); ++i) {
    scores[i] = next[i] != 0 ? kNeverChosen : growth[i];
  }
  const std::vector<uint8_t> grown = KeepLargest(scores, count, growth_ties);
  for (size_t i = 0; i < mask.size(); ++i) next[i] = next[i] | grown[i];
  return next;
}

}  // namespace weft::engine
