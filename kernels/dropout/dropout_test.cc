#include "kernels/dropout/dropout.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

// A zero where the truth is not, or the reverse, is far outside the tolerance, so this holds the
// mask equal to that of a scalar Philox loop, for every instruction set and number of threads.
TEST(Dropout, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::DropoutCases()), "");
}

TEST(Dropout, DropsTheAskedShareAndKeepsTheMean) {
  constexpr int64_t kCount = 1 << 18;
  for (float probability : {0.1f, 0.5f, 0.75f}) {
    std::vector<float> x(kCount, 1.0f);
    TensorView view(x.data(), DType::kF32, {kCount});
    ASSERT_TRUE(Dropout({}, {.x = view, .y = view, .probability = probability, .key = {}}).ok());
    double sum = 0, dropped = 0;
    for (float value : x) {
      sum += value;
      dropped += value == 0;
    }
    // Four standard deviations of the binomial distribution.
    double deviation = 4 * std::sqrt(probability * (1 - probability) / kCount);
    EXPECT_NEAR(dropped / kCount, probability, deviation);
    EXPECT_NEAR(sum / kCount, 1.0, deviation / (1 - probability));
  }
}

TEST(Dropout, PartsOfATensorDrawWhatTheWholeDraws) {
  std::vector<float> whole(300, 1.0f), parts(300, 1.0f);
  auto run = [](float* data, int64_t count, uint64_t first) {
    TensorView view(data, DType::kF32, {count});
    return Dropout({}, {.x = view,
                        .y = view,
                        .probability = 0.5f,
                        .key = {.seed = 9, .step = 0, .site = 0},
                        .first_element = first});
  };
  ASSERT_TRUE(run(whole.data(), 300, 1000).ok());
  ASSERT_TRUE(run(parts.data(), 100, 1000).ok());
  ASSERT_TRUE(run(parts.data() + 100, 200, 1100).ok());
  EXPECT_EQ(parts, whole);
}

TEST(Dropout, ColumnsOfAMatrixDrawWhatItDraws) {
  constexpr int64_t kRows = 7, kColumns = 24, kFirst = 8, kPart = 12;
  const auto run = [](std::vector<float>& data, uint64_t first, int64_t columns, int64_t stride) {
    const TensorView view(data.data(), DType::kF32, {std::ssize(data)});
    return Dropout({}, {.x = view,
                        .y = view,
                        .probability = 0.5f,
                        .key = {.seed = 9, .step = 0, .site = 0},
                        .first_element = first,
                        .columns = columns,
                        .row_stride = stride});
  };
  std::vector<float> whole(kRows * kColumns, 1.0f), part(kRows * kPart, 1.0f), expected;
  ASSERT_TRUE(run(whole, 100, 0, 0).ok());
  ASSERT_TRUE(run(part, 100 + kFirst, kPart, kColumns).ok());
  for (int64_t row = 0; row < kRows; ++row) {
    const auto at = whole.begin() + row * kColumns + kFirst;
    expected.insert(expected.end(), at, at + kPart);
  }
  EXPECT_EQ(part, expected);
}

TEST(Dropout, DroppedElementsAreZeroWhateverTheyWere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? kInfinity : std::nanf("");
  TensorView view(x.data(), DType::kF32, {256});
  ASSERT_TRUE(Dropout({}, {.x = view, .y = view, .probability = 0.5f, .key = {}}).ok());
  int zeros = 0;
  for (float value : x) zeros += value == 0;
  EXPECT_GT(zeros, 80);
}

TEST(Dropout, RefusesArgumentsThatDoNotFit) {
  std::array<float, 4> memory{};
  TensorView x(memory.data(), DType::kF32, {4});
  EXPECT_EQ(Dropout({}, {.x = x, .y = x, .probability = 1.0f, .key = {}}).ToString(),
            "INVALID: Dropout: probability is not in [0, 1)");
  EXPECT_EQ(Dropout({}, {.x = x, .y = x, .probability = std::nanf(""), .key = {}}).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(
      Dropout({}, {.x = x, .y = x, .probability = 0.1f, .key = {}, .first_element = 2}).code(),
      StatusCode::kInvalid);
  EXPECT_EQ(Dropout({}, {.x = x, .y = x, .key = {}, .columns = 2, .row_stride = 8}).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(Dropout({}, {.x = x, .y = x, .key = {}, .columns = 8, .row_stride = 8}).code(),
            StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
