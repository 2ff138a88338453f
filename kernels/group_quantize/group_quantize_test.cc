#include "kernels/group_quantize/group_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dtype.h"
#include "kernels/group_quantize/group_quantize_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(GroupQuantize, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::GroupQuantizeCases()), "");
}

constexpr PhiloxKey kKey = {.seed = 0xfedcba9876543210u, .step = 77, .site = 0x80000001u};

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  int64_t bits;

  TensorView Codes() {
    return TensorView(codes.data(), DType::kU8,
                      {static_cast<int64_t>(codes.size()) / (16 * bits), 16 * bits});
  }
  TensorView Scales() {
    return TensorView(scales.data(), DType::kF32, {static_cast<int64_t>(scales.size()) / 2, 2});
  }
  int Code(size_t i) const {
    const size_t group = i / 128, j = i % 128, bytes = static_cast<size_t>(16 * bits);
    const int shift = static_cast<int>(j / bytes) * static_cast<int>(bits);
    return codes[group * bytes + j % bytes] >> shift & ((1 << bits) - 1);
  }
};

template <class T>
TensorView View(std::vector<T>& values) {
  return TensorView(values.data(), kDTypeOf<T>, {static_cast<int64_t>(values.size())});
}

template <class T>
Quantized Quantize(std::vector<T> x, int64_t bits, const PhiloxKey& key = kKey,
                   uint64_t first = 0) {
  const auto groups = static_cast<size_t>(QuantizeGroups(static_cast<int64_t>(x.size())));
  Quantized q{std::vector<uint8_t>(groups * static_cast<size_t>(16 * bits), 0xcc),
              std::vector<float>(groups * 2, NAN), bits};
  const Status status = GroupQuantize({}, {.x = View(x),
                                           .codes = q.Codes(),
                                           .scales = q.Scales(),
                                           .bits = bits,
                                           .key = key,
                                           .first_element = first});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return q;
}

template <class T>
std::vector<T> Dequantize(Quantized q, size_t count) {
  std::vector<T> y(count);
  const Status status = GroupDequantize({}, {q.Codes(), q.Scales(), q.bits, View(y)});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return y;
}

template <class T>
std::vector<T> Random(size_t count, double scale) {
  PhiloxStream random({.seed = 5});
  std::vector<T> x(count);
  for (T& value : x) value = FromFloat<T>(static_cast<float>(random.Normal() * scale + scale));
  return x;
}

template <class T>
void CheckCodes(size_t count, int64_t bits) {
  constexpr uint64_t kFirst = (uint64_t{1} << 34) - 256;
  const std::vector<T> x = Random<T>(count, 3);
  const Quantized q = Quantize(x, bits, kKey, kFirst);
  const std::vector<T> y = Dequantize<T>(q, count);
  size_t moved = 0;
  for (size_t begin = 0; begin < count; begin += 128) {
    std::vector<double> group;
    for (size_t i = begin; i < std::min(count, begin + 128); ++i) group.push_back(ToFloat(x[i]));
    const auto truth =
        ref::GroupQuantize<double>(group, static_cast<int>(bits), kKey, kFirst + begin);
    EXPECT_EQ(q.scales[begin / 64], static_cast<float>(truth.least));
    EXPECT_NEAR(q.scales[begin / 64 + 1], truth.step, 1e-6 * truth.step);
    for (size_t i = 0; i < group.size(); ++i) {
      // f32 arithmetic may cross a step where float64 does not.
      moved += q.Code(begin + i) != truth.codes[i] ? 1 : 0;
      ASSERT_NEAR(q.Code(begin + i), truth.codes[i], 1);
      const double value =
          q.scales[begin / 64] + static_cast<double>(q.Code(begin + i)) * q.scales[begin / 64 + 1];
      const double epsilon = sizeof(T) == 4 ? 1e-6 : 1.0 / 256;
      ASSERT_NEAR(ToFloat(y[begin + i]), value,
                  epsilon * (std::abs(value) + std::abs(truth.least)));
    }
  }
  EXPECT_LE(moved, count / 5000 + 1);
}

TEST(GroupQuantize, PartsHaveTheCodesOfTheWhole) {
  constexpr size_t kRows = 3, kColumns = 768, kFirst = 256, kRun = 256;
  const std::vector<float> whole = Random<float>(kRows * kColumns, 3);
  std::vector<float> part;
  for (size_t row = 0; row < kRows; ++row) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(row * kColumns + kFirst);
    part.insert(part.end(), begin, begin + kRun);
  }
  const Quantized all = Quantize(whole, 4);
  Quantized own = Quantize(part, 4);  // with other random numbers
  const Quantized alone = own;
  ASSERT_TRUE(GroupQuantize({}, {.x = View(part),
                                 .codes = own.Codes(),
                                 .scales = own.Scales(),
                                 .bits = 4,
                                 .key = kKey,
                                 .first_element = kFirst,
                                 .run = kRun,
                                 .run_stride = kColumns})
                  .ok());
  for (size_t i = 0; i < part.size(); ++i) {
    ASSERT_EQ(own.Code(i), all.Code(i / kRun * kColumns + kFirst + i % kRun)) << i;
  }
  EXPECT_NE(own.codes, alone.codes);
}

TEST(GroupQuantize, CodesAreThoseOfTheReferenceOnEveryInstructionSet) {
  const int threads = cpu::Threads();
  for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
    cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
    for (const int64_t bits : {8, 4, 2}) {
      SCOPED_TRACE(std::to_string(bits) + " bits, " +
                   std::string(cpu::IsaName(static_cast<cpu::Isa>(level))));
      for (const size_t count :
           {size_t{1}, size_t{5}, size_t{127}, size_t{128}, size_t{129}, size_t{20011}}) {
        cpu::SetThreads(count > 1000 ? 3 : 1);
        CheckCodes<float>(count, bits);
        CheckCodes<BFloat16>(count, bits);
        CheckCodes<Half>(count, bits);
      }
    }
  }
  cpu::SetThreads(threads);
}

// Zeros of both signs, groups of one value, spreads whose step or its inverse leaves f32, and
// numbers that are not finite among others.
std::vector<float> Extremes() {
  constexpr float kLargest = std::numeric_limits<float>::max();
  std::vector<float> x = Random<float>(128 * 9 + 77, 3);
  const auto group = [&x](size_t index, std::initializer_list<float> values) {
    for (size_t i = 0; i < 128; ++i) x[128 * index + i] = *(values.begin() + i % values.size());
  };
  group(0, {0.0f, -0.0f, 0.0f});
  group(1, {-0.0f, 0.0f, 3.0f});
  group(2, {-1.7f});
  group(3, {-kLargest, kLargest, 1});
  group(4, {1e-45f, 3e-45f, 0});
  group(5, {1e-38f, 2e-38f, -3e-39f});
  x[128 * 6 + 9] = NAN;
  x[128 * 7 + 99] = std::numeric_limits<float>::infinity();
  x[128 * 9 + 3] = -std::numeric_limits<float>::infinity();
  return x;
}

TEST(GroupQuantize, EveryInstructionSetHasTheSameBits) {
  std::vector<float> x = Random<float>(20011, 3);
  const std::vector<float> extremes = Extremes();
  x.insert(x.begin(), extremes.begin(), extremes.end());
  for (const int64_t bits : {8, 4, 2}) {
    std::vector<uint8_t> codes;
    std::vector<uint32_t> scales;
    for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
      cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
      const Quantized q = Quantize(x, bits);
      std::vector<uint32_t> words(q.scales.size());
      std::memcpy(words.data(), q.scales.data(), q.scales.size() * sizeof(float));
      if (level == 0) {
        codes = q.codes;
        scales = words;
      }
      EXPECT_EQ(q.codes, codes) << bits << ", " << level;
      EXPECT_EQ(words, scales) << bits << ", " << level;
    }
  }
}

TEST(GroupQuantize, TheMeanOverManyDrawsIsTheNumber) {
  const std::vector<float> x = Random<float>(128, 1);
  const auto [least, largest] = std::minmax_element(x.begin(), x.end());
  for (const int64_t bits : {8, 4, 2}) {
    std::vector<double> mean(x.size());
    constexpr int kDraws = 4000;
    for (uint32_t step = 0; step < kDraws; ++step) {
      const auto y = Dequantize<float>(Quantize(x, bits, {.seed = 9, .step = step}), x.size());
      for (size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / kDraws;
    }
    const double step = (*largest - *least) / static_cast<double>((1 << bits) - 1);
    double bias = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      // Half a step is the largest deviation of a draw; of 128 means one may be four times as far.
      EXPECT_NEAR(mean[i], x[i], 4.5 * step / 2 / std::sqrt(kDraws)) << bits << ", " << i;
      bias += (mean[i] - x[i]) / 128;
    }
    EXPECT_NEAR(bias, 0, 4 * step / 2 / std::sqrt(kDraws * 128.0)) << bits;
  }
}

TEST(GroupQuantize, WhatIsEqualOrExtremeStaysAndNoElementIsFurtherThanAStep) {
  for (const int64_t bits : {8, 4, 2}) {
    EXPECT_EQ(Dequantize<float>(Quantize(std::vector<float>(200, -1.7f), bits), 200),
              std::vector<float>(200, -1.7f));
    const std::vector<float> x = Random<float>(4096, 2);
    const Quantized q = Quantize(x, bits);
    const std::vector<float> y = Dequantize<float>(q, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const float least = q.scales[i / 128 * 2], step = q.scales[i / 128 * 2 + 1];
      EXPECT_LE(std::abs(y[i] - x[i]), 1.0001f * step);
      if (x[i] == least) {
        EXPECT_EQ(y[i], x[i]);
      }
    }
    EXPECT_EQ(Quantize(x, bits).codes, q.codes) << "the same key, the same bits";
    EXPECT_NE(Quantize(x, bits, {.seed = 1}).codes, q.codes);
  }
}

TEST(GroupQuantize, WhatIsNotFiniteMakesItsGroupNan) {
  for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
    cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
    for (const float bad :
         {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      for (const size_t at : {size_t{0}, size_t{77}, size_t{130}}) {
        std::vector<float> x(131, 1.0f);
        x[5] = 2;
        x[at] = bad;
        const std::vector<float> y = Dequantize<float>(Quantize(x, 4), x.size());
        for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 128 == at / 128);
      }
    }
  }
}

TEST(GroupQuantize, RefusesArgumentsThatDoNotFit) {
  std::vector<float> x(256), scales(4);
  std::vector<uint8_t> codes(256);
  const TensorView code(codes.data(), DType::kU8, {2, 128});
  const TensorView scale(scales.data(), DType::kF32, {2, 2});
  const auto refuses = [&](const GroupQuantizeArgs& args) {
    return GroupQuantize({}, args).code() == StatusCode::kInvalid;
  };
  EXPECT_FALSE(refuses({View(x), code, scale, 8, {}}));
  EXPECT_TRUE(refuses({View(x), code, scale, 4, {}}));
  EXPECT_TRUE(refuses({View(x), code, scale, 3, {}}));
  EXPECT_TRUE(refuses({View(x), code, code, 8, {}}));
  EXPECT_TRUE(refuses({View(x), code, scale, 8, {}, nullptr, 2}));
  EXPECT_TRUE(refuses({code, code, scale, 8, {}}));
}

}  // namespace
}  // namespace weft::kernels
