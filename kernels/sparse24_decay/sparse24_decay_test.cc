#include "kernels/sparse24_decay/sparse24_decay.h"

#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/sparse24_mask/sparse24_mask.h"

namespace weft::kernels {
namespace {

constexpr int64_t kRows = 8, kColumns = 12;

struct Problem {
  Problem() {
    PhiloxStream random({.seed = 3, .step = 0, .site = 1});
    for (float& w : weight) w = static_cast<float>(random.Normal());
    for (float& g : gradient) g = static_cast<float>(random.Normal());
    const Status found = TransposableMask(
        {},
        {.weight = TensorView(weight.data(), DType::kF32, {kRows, kColumns}), .mask = MaskView()});
    EXPECT_TRUE(found.ok()) << found.ToString();
  }
  TensorView MaskView() { return TensorView(mask.data(), DType::kU16, {kRows / 4, kColumns / 4}); }
  bool Keeps(int64_t element) const {
    const int64_t row = element / kColumns, column = element % kColumns;
    const int bit = static_cast<int>(4 * (row % 4) + column % 4);
    return (mask[row / 4 * (kColumns / 4) + column / 4] >> bit & 1) != 0;
  }

  std::vector<float> weight = std::vector<float>(kRows * kColumns);
  std::vector<float> gradient = std::vector<float>(kRows * kColumns);
  std::vector<uint16_t> mask = std::vector<uint16_t>(kRows * kColumns / 16);
};

// Any part of the elements, as ranks that update different parts have them.
TEST(MaskedDecay, AddsToTheGradientOfWhatTheMaskLeavesOut) {
  Problem p;
  const float factor = 0.25f;
  const int32_t made = 1;
  std::vector<float> gradient = p.gradient;
  for (const auto& [first, end] : {std::pair{0, 5}, std::pair{5, 77}, std::pair{77, 96}}) {
    const int64_t count = end - first;
    ASSERT_TRUE(
        MaskedDecay({}, {.weight = TensorView(p.weight.data() + first, DType::kF32, {count}),
                         .gradient = TensorView(gradient.data() + first, DType::kF32, {count}),
                         .mask = p.MaskView(),
                         .first = first,
                         .decay = 0.5f,
                         .gate = {&factor, &made}})
            .ok());
  }
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    EXPECT_EQ(gradient[i], p.Keeps(i) ? p.gradient[i] : p.gradient[i] + 2.0f * p.weight[i]) << i;
  }
}

TEST(MaskedDecay, ReadsBf16Weights) {
  Problem p;
  std::vector<BFloat16> narrow;
  for (const float w : p.weight) narrow.push_back(FromFloat<BFloat16>(w));
  std::vector<float> gradient = p.gradient;
  constexpr int64_t kCount = kRows * kColumns;
  ASSERT_TRUE(MaskedDecay({}, {.weight = TensorView(narrow.data(), DType::kBF16, {kCount}),
                               .gradient = TensorView(gradient.data(), DType::kF32, {kCount}),
                               .mask = p.MaskView(),
                               .decay = 0.5f})
                  .ok());
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(gradient[i], p.Keeps(i) ? p.gradient[i] : p.gradient[i] + 0.5f * ToFloat(narrow[i]));
  }
}

TEST(MaskedDecay, TakesPartInNoUpdateThatIsNotMade) {
  Problem p;
  constexpr int64_t kCount = kRows * kColumns;
  const float zero = 0, one = 1;
  const int32_t made = 1, not_made = 0;
  const std::vector<float> gradient = p.gradient, weight = p.weight;
  for (const UpdateGate& gate : {UpdateGate{&zero, &made}, UpdateGate{&one, &not_made}}) {
    ASSERT_TRUE(MaskedDecay({}, {.weight = TensorView(p.weight.data(), DType::kF32, {kCount}),
                                 .gradient = TensorView(p.gradient.data(), DType::kF32, {kCount}),
                                 .mask = p.MaskView(),
                                 .decay = 1,
                                 .gate = gate})
                    .ok());
  }
  ASSERT_TRUE(MaskedWeightDecay({}, {.weight = TensorView(p.weight.data(), DType::kF32, {kCount}),
                                     .mask = p.MaskView(),
                                     .decay = 1,
                                     .learning_rate = 1.0f,
                                     .gate = {&one, &not_made}})
                  .ok());
  EXPECT_EQ(p.gradient, gradient);
  EXPECT_EQ(p.weight, weight);
}

TEST(MaskedWeightDecay, ShrinksWhatTheMaskLeavesOut) {
  Problem p;
  constexpr int64_t kCount = kRows * kColumns;
  const std::vector<float> before = p.weight;
  ASSERT_TRUE(MaskedWeightDecay({}, {.weight = TensorView(p.weight.data(), DType::kF32, {kCount}),
                                     .mask = p.MaskView(),
                                     .decay = 0.5f,
                                     .learning_rate = 0.25f})
                  .ok());
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(p.weight[i], p.Keeps(i) ? before[i] : before[i] - 0.125f * before[i]);
  }
}

TEST(MaskedDecay, RefusesArgumentsThatDoNotFit) {
  Problem p;
  const Status status =
      MaskedDecay({}, {.weight = TensorView(p.weight.data(), DType::kF32, {96}),
                       .gradient = TensorView(p.gradient.data(), DType::kF32, {96}),
                       .mask = p.MaskView(),
                       .first = 1});
  EXPECT_EQ(status.ToString(), "INVALID: MaskedDecay: the elements are none of the mask");
}

}  // namespace
}  // namespace weft::kernels
