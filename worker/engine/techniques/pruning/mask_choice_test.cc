#include "worker/engine/techniques/mask_choice.h"

#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/techniques/pruning/pruning_cost.h"

namespace weft::engine {
namespace {

using Mask = std::vector<uint8_t>;

constexpr PhiloxKey kKey = {.seed = 7, .step = 3, .site = 11};

int64_t Count(const Mask& mask) {
  return std::accumulate(mask.begin(), mask.end(), int64_t{0});
}

TEST(MaskChoiceTest, TheLargestScoresAreKept) {
  const std::vector<float> scores = {0.5f, -2, kNeverChosen, 3, 0.25f, -1};
  EXPECT_EQ(KeepLargest(scores, 0, kKey), (Mask{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(KeepLargest(scores, 2, kKey), (Mask{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(KeepLargest(scores, 4, kKey), (Mask{1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(KeepLargest(scores, 5, kKey), (Mask{1, 1, 0, 1, 1, 1}));
}

TEST(MaskChoiceTest, EqualScoresAreRankedAtRandomAndAlwaysAlike) {
  constexpr int64_t kWeights = 4000;
  std::vector<float> scores(kWeights, 0.0f);
  scores[17] = 1;
  const Mask mask = KeepLargest(scores, 1000, kKey);
  EXPECT_EQ(Count(mask), 1000);
  EXPECT_EQ(mask[17], 1);
  EXPECT_EQ(mask, KeepLargest(scores, 1000, kKey));
  EXPECT_NE(mask, KeepLargest(scores, 1000, {.seed = 7, .step = 4, .site = 11}));
  for (int64_t first = 0; first < kWeights; first += 1000) {
    const int64_t here = std::accumulate(mask.begin() + first, mask.begin() + first + 1000, 0);
    EXPECT_NEAR(static_cast<double>(here), 250, 60) << "anywhere";
  }
}

TEST(MaskChoiceTest, AnExchangeDropsTheSmallestAndGrowsTheLargestOfTheOthers) {
  const Mask mask = {1, 1, 1, 1, 0, 0, 0, 0};
  const std::vector<float> magnitudes = {4, 1, 3, 2, 0, 0, 0, 0};
  const std::vector<float> growth = {9, 5, 9, 0, 1, 7, 2, 3};
  // Drops the second and the fourth; the second has the next to largest gradient of those left.
  EXPECT_EQ(Exchange(mask, magnitudes, growth, 2, kKey, kKey), (Mask{1, 1, 1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(Exchange(mask, magnitudes, growth, 0, kKey, kKey), mask);
}

TEST(MaskChoiceTest, RoundingDecidesNoExchange) {
  constexpr size_t kWeights = 64;
  const Mask mask(kWeights, 1);
  const std::vector<float> growth(kWeights, 0.0f);
  std::vector<float> one, other;
  for (size_t i = 0; i < kWeights; ++i) {
    one.push_back(1e-3f * (1 + 1e-6f * static_cast<float>(i % 7)));
    other.push_back(1e-3f * (1 + 1e-6f * static_cast<float>(i % 5)));
  }
  EXPECT_EQ(Exchange(mask, one, growth, 20, kKey, kKey),
            Exchange(mask, other, growth, 20, kKey, kKey));
}

TEST(MaskChoiceTest, DropRatesFallAsACosine) {
  PruningSpec spec;
  spec.method = "rigl";
  spec.drop_rate = 0.4;
  spec.interval = 10;
  spec.stop_ratio = 0.75;
  EXPECT_NEAR(DropRate(spec, 0, 400), 0.4, 1e-12);
  EXPECT_NEAR(DropRate(spec, 150, 400), 0.2, 1e-12);
  EXPECT_NEAR(DropRate(spec, 300, 400), 0, 1e-12);
  EXPECT_FALSE(IsExchangeStep(spec, 0, 400));
  EXPECT_FALSE(IsExchangeStep(spec, 15, 400));
  EXPECT_TRUE(IsExchangeStep(spec, 20, 400));
  EXPECT_TRUE(IsExchangeStep(spec, 300, 400));
  EXPECT_FALSE(IsExchangeStep(spec, 310, 400));
  spec.method = "snip";
  EXPECT_FALSE(IsExchangeStep(spec, 20, 400));
}

std::vector<int64_t> KeptOf(double density, bool erk, std::vector<PrunedMatrix> matrices) {
  SetKept(density, erk, matrices);
  std::vector<int64_t> kept;
  for (const PrunedMatrix& matrix : matrices) kept.push_back(matrix.kept);
  return kept;
}

// Sides add up to 20, 110 and 200; products to 100, 1000 and 10000.
TEST(MaskChoiceTest, DensitiesFollowTheShapesOfTheMatrices) {
  const std::vector<PrunedMatrix> matrices = {{"a", 10, 10}, {"b", 10, 100}, {"c", 100, 100}};
  EXPECT_EQ(KeptOf(0.1, false, matrices), (std::vector<int64_t>{10, 100, 1000}));
  EXPECT_EQ(KeptOf(0.00001, false, matrices), (std::vector<int64_t>{1, 1, 1}));
  // 0.02 of 11100 is 222, 0.6727 for each of 330 sides: none is dense.
  EXPECT_EQ(KeptOf(0.02, true, matrices), (std::vector<int64_t>{13, 74, 135}));
  // 1110 is 3.3636 for each side, but the first would keep 67 of its 100 alone: none is dense yet.
  EXPECT_EQ(KeptOf(0.1, true, matrices), (std::vector<int64_t>{67, 370, 673}));
  // 5550 is 16.8 a side: the first is dense (336 of 100). The other two share 5450, 17.58 a side:
  // the second is dense, too (1934 of 1000). The last one has the other 4450.
  EXPECT_EQ(KeptOf(0.5, true, matrices), (std::vector<int64_t>{100, 1000, 4450}));
  EXPECT_EQ(KeptOf(1, true, matrices), (std::vector<int64_t>{100, 1000, 10000}));
}

}  // namespace
}  // namespace weft::engine
