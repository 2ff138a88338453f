#include "worker/engine/data/masking.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {
namespace {

constexpr int32_t kVocabulary = 1000;
constexpr int32_t kMask = 3;
const MaskingVocabulary kTokens = {kMask, kVocabulary, {0, 1, 2, kMask}};

struct Masked {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  bool operator==(const Masked&) const = default;
};

Masked Mask(const TokenMasker& masker, std::vector<int32_t> tokens, uint64_t sequence = 0,
            uint32_t epoch = 0) {
  Masked out{std::move(tokens), {}};
  out.targets.resize(out.tokens.size());
  masker.Mask(sequence, epoch, out.tokens, out.targets);
  return out;
}

std::vector<int32_t> Sequence(uint64_t number, size_t length) {
  PhiloxStream random({7, 0, static_cast<uint32_t>(number)});
  std::vector<int32_t> tokens = {1};
  while (tokens.size() + 1 < length) {
    tokens.push_back(static_cast<int32_t>(4 + random.Below(kVocabulary - 4)));
  }
  tokens.push_back(2);
  return tokens;
}

TEST(TokenMasker, PicksTheSharesAskedForAndNeverSpecialTokens) {
  const TokenMasker masker({}, kTokens, 1);
  double all = 0, picked = 0, masked = 0, kept = 0;
  std::vector<int> drawn(kVocabulary);
  for (uint64_t s = 0; s < 2000; ++s) {
    const std::vector<int32_t> before = Sequence(s, 502);
    const Masked after = Mask(masker, before, s);
    EXPECT_EQ(after.targets.front(), kernels::kIgnoreTarget);
    EXPECT_EQ(after.targets.back(), kernels::kIgnoreTarget);
    for (size_t i = 0; i < before.size(); ++i) {
      if (i > 0 && i + 1 < before.size()) ++all;
      if (after.targets[i] == kernels::kIgnoreTarget) {
        ASSERT_EQ(after.tokens[i], before[i]);
        continue;
      }
      ASSERT_EQ(after.targets[i], before[i]);
      ++picked;
      if (after.tokens[i] == kMask) {
        ++masked;
      } else if (after.tokens[i] == before[i]) {
        ++kept;
      } else {
        ASSERT_GE(after.tokens[i], 4);
        ++drawn[static_cast<size_t>(after.tokens[i])];
      }
    }
  }
  ASSERT_EQ(all, 1e6);
  auto expect_share = [](double count, double of, double share) {
    EXPECT_NEAR(count / of, share, 4 * std::sqrt(share * (1 - share) / of)) << share;
  };
  expect_share(picked, all, 0.15);
  expect_share(masked, picked, 0.8);
  // A random token is the old one in one of 996 cases.
  expect_share(kept, picked, 0.1 + 0.1 / 996);
  double chi_square = 0;
  const double expected = (picked - masked - kept) / 996;
  for (int32_t t = 4; t < kVocabulary; ++t) {
    chi_square += std::pow(drawn[static_cast<size_t>(t)] - expected, 2) / expected;
  }
  EXPECT_NEAR(chi_square, 995, 4 * std::sqrt(2 * 995));
}

TEST(TokenMasker, IsDrawnAnewInEachEpochAndDependsOnNothingElse) {
  const TokenMasker masker({}, kTokens, 1);
  const std::vector<int32_t> tokens = Sequence(0, 200);
  const Masked once = Mask(masker, tokens, 5, 2);
  EXPECT_EQ(Mask(TokenMasker({}, kTokens, 1), tokens, 5, 2), once);
  EXPECT_NE(Mask(masker, tokens, 5, 3), once);
  EXPECT_NE(Mask(masker, tokens, 6, 2), once);
  EXPECT_NE(Mask(TokenMasker({}, kTokens, 2), tokens, 5, 2), once);
}

TEST(TokenMasker, AsksForOneTokenOfEverySequenceThatHasAny) {
  const TokenMasker masker({.probability = 0.01}, kTokens, 1);
  for (uint64_t s = 0; s < 200; ++s) {
    const Masked after = Mask(masker, {1, 10, 11, 12, 2}, s);
    EXPECT_GE(5 - std::count(after.targets.begin(), after.targets.end(), kernels::kIgnoreTarget),
              1);
  }
  const Masked special = Mask(masker, {1, 2, 0, 0});
  EXPECT_EQ(special.targets, std::vector<int32_t>(4, kernels::kIgnoreTarget));
}

}  // namespace
}  // namespace weft::engine
