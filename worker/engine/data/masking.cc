#include "worker/engine/data/masking.h"

#include <algorithm>

#include "common/check.h"
#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {
namespace {

constexpr uint32_t kMaskingSite = SiteHash("data.masking");

/// Longer than any sequence, so that no two share a random number.
constexpr uint64_t kSequenceStride = uint64_t{1} << 24;

double Uniform(uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1.0p-32;
}

}  // namespace

TokenMasker::TokenMasker(const MaskingSpec& spec, const MaskingVocabulary& vocabulary,
                         uint64_t seed)
    : spec_(spec),
      mask_token_(vocabulary.mask_token),
      special_(static_cast<size_t>(vocabulary.size)),
      seed_(seed) {
  for (int32_t token : vocabulary.special_tokens) special_.at(static_cast<size_t>(token)) = true;
  for (int32_t token = 0; token < vocabulary.size; ++token) {
    if (!special_[static_cast<size_t>(token)]) ordinary_.push_back(token);
  }
  WEFT_CHECK(!ordinary_.empty(), "a vocabulary of special tokens only");
}

void TokenMasker::Mask(uint64_t sequence, uint32_t epoch, std::span<int32_t> tokens,
                       std::span<int32_t> targets) const {
  const PhiloxKey key{seed_, epoch, kMaskingSite};
  const uint64_t base = sequence * kSequenceStride;
  auto mask = [&](size_t i, const Philox4& words) {
    targets[i] = tokens[i];
    const double share = Uniform(words.v[1]);
    if (share < spec_.mask_share) {
      tokens[i] = mask_token_;
    } else if (share < spec_.mask_share + spec_.random_share) {
      const uint64_t wide = static_cast<uint64_t>(words.v[2]) * ordinary_.size();
      tokens[i] = ordinary_[wide >> 32];
    }
  };
  std::fill(targets.begin(), targets.end(), kernels::kIgnoreTarget);
  size_t closest = tokens.size();
  double lowest = 2;
  bool any = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (special_[static_cast<size_t>(tokens[i])]) continue;
    const Philox4 words = Philox(key, base + i);
    const double chance = Uniform(words.v[0]);
    if (chance < spec_.probability) {
      any = true;
      mask(i, words);
    } else if (chance < lowest) {
      lowest = chance;
      closest = i;
    }
  }
  if (!any && closest < tokens.size()) mask(closest, Philox(key, base + closest));
}

}  // namespace weft::engine
