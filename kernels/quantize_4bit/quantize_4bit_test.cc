#include "kernels/quantize_4bit/quantize_4bit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dtype.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

using enum FourBitFormat::Type;

TEST(Quantize4Bit, DequantizesAsTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::Quantize4BitCases()), "");
}

std::vector<float> Normal(size_t count, uint64_t seed) {
  PhiloxStream random(PhiloxKey{seed, 0, 0});
  std::vector<float> x(count);
  for (float& value : x) value = static_cast<float>(random.Normal());
  return x;
}

std::vector<int32_t> Quantized(const FourBitFormat& format, const std::vector<float>& x) {
  std::vector<int32_t> words(static_cast<size_t>(FourBitLayout(format, std::ssize(x)).words),
                             0x55555555);
  EXPECT_EQ(Quantize4Bit(format, x, words).ToString(), "OK");
  return words;
}

std::vector<float> Back(const FourBitFormat& format, std::vector<int32_t> words, size_t count) {
  std::vector<float> y(count, NAN);
  const auto elements = static_cast<int64_t>(count);
  EXPECT_EQ(Dequantize4Bit({}, {.words = {words.data(), DType::kI32, {std::ssize(words)}},
                                .format = format,
                                .y = {y.data(), DType::kF32, {elements}}})
                .ToString(),
            "OK");
  return y;
}

double RelativeError(const std::vector<float>& x, const std::vector<float>& y) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(double{x[i]} - y[i], 2);
    norm += std::pow(double{x[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

// Codes and statistics that bitsandbytes 0.50 has of these numbers, by blocks of 32.
TEST(Quantize4Bit, HasTheCodesOfBitsandbytes) {
  std::vector<float> x(64);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto place = static_cast<double>(i);
    x[i] = static_cast<float>(std::sin(place * place / 7) * (1 + place / 16));
  }
  const auto codes = [&](FourBitFormat::Type type) {
    const std::vector<int32_t> words = Quantized({type, 32, false}, x);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(words.data());
    return std::vector<int>(bytes, bytes + 32);
  };
  EXPECT_EQ(codes(kNf4), std::vector<int>({120, 172, 181, 43, 146, 225, 226, 173, 19, 222, 217,
                                           121, 223, 226, 14, 160, 209, 210, 156, 35, 206, 201,
                                           137, 222, 211, 30, 129, 224, 241, 142, 18, 223}));
  EXPECT_EQ(codes(kFp4), std::vector<int>({1,  117, 79, 212, 109, 42, 42, 101, 172, 35, 86,
                                           22, 83,  45, 178, 123, 42, 45, 101, 172, 82, 86,
                                           22, 82,  93, 162, 106, 59, 58, 98,  170, 35}));
}

/// FNV-1a.
uint64_t HashOf(std::span<const uint8_t> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

// What bitsandbytes 0.50 makes of these 20 000 numbers with quantised scales (quantize_4bit with
// blocksize 64 and compress_statistics): codes, codes of scales, their scales and the mean bit for
// bit, and values of the map of 8-bit codes. Of FP4 on CPUs it has -0 for some numbers, which is 0.
TEST(Quantize4Bit, HasTheQuantizedScalesOfBitsandbytes) {
  std::vector<float> x(20000);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    const int64_t number = (place * 7919 + 13) % 20011 - 10005;
    const int64_t of_block = 1 + place / 64 * 37 % 101;
    x[i] = static_cast<float>(number * of_block) / static_cast<float>(1 << 20);
  }
  const std::pair<size_t, float> values[] = {{0, -0.992968738079071f},
                                             {31, -0.5570312738418579f},
                                             {64, -0.09859374910593033f},
                                             {100, -0.007468749769032001f},
                                             {119, -0.00015625001105945557f},
                                             {127, 0.0f},
                                             {128, 5.500000384017767e-07f},
                                             {140, 0.0007187500596046448f},
                                             {180, 0.07046874612569809f},
                                             {254, 0.992968738079071f},
                                             {255, 1.0f}};
  // Both compute them in one rounding more or less.
  for (const auto& [code, value] : values) {
    EXPECT_NEAR(FourBitScales()[code], value, 2e-7f * std::fabs(value)) << code;
  }
  for (const auto& [type, codes] : {std::pair(kNf4, uint64_t{0xd243d22ac3affa81}),
                                    std::pair(kFp4, uint64_t{0x647fd2e935084536})}) {
    const FourBitFormat format = {type, 64, true};
    const FourBitLayout layout(format, std::ssize(x));
    const std::vector<int32_t> words = Quantized(format, x);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(words.data());
    EXPECT_EQ(HashOf({bytes, x.size() / 2}), codes);
    ASSERT_EQ(layout.blocks, 313);
    EXPECT_EQ(HashOf({bytes + layout.scales, 313}), 0x88c225a681c5dd00);
    float scales[2] = {}, mean = 0;
    std::memcpy(scales, bytes + layout.scales_of_scales, sizeof(scales));
    std::memcpy(&mean, bytes + layout.mean, sizeof(mean));
    EXPECT_EQ(scales[0], 0x1.edaf0cp-2f);
    EXPECT_EQ(scales[1], 0x1.e29574p-2f);
    EXPECT_EQ(mean, 0x1.ec5934p-2f);
  }
}

// As bitsandbytes 0.50 has it on CPUs. Of bf16 weights by FP4 one or two numbers of a thousand are
// in the middle between two values.
TEST(Quantize4Bit, TakesTheLowerOfTwoValuesThatAreEquallyNear) {
  for (const FourBitFormat::Type type : {kNf4, kFp4}) {
    std::vector<float> values(FourBitValues(type).begin(), FourBitValues(type).end());
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());  // two zeros
    std::vector<float> x(32, 1.0f), expected = x;
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      x[i + 1] = (values[i] + values[i + 1]) / 2;
      expected[i + 1] = values[i];
    }
    const FourBitFormat format = {type, 32, false};
    EXPECT_EQ(Back(format, Quantized(format, x), x.size()), expected);
  }
}

// Numbers measured of NF4 and FP4 on a normal distribution; double quantisation adds little.
TEST(Quantize4Bit, LosesWhatItIsKnownToLose) {
  const std::vector<float> x = Normal(1 << 18, 1);
  const auto error = [&](const FourBitFormat& format) {
    return RelativeError(x, Back(format, Quantized(format, x), x.size()));
  };
  EXPECT_NEAR(error({kNf4, 64, false}), 0.0920, 0.0005);
  EXPECT_NEAR(error({kNf4, 64, true}), 0.0921, 0.0005);
  EXPECT_NEAR(error({kFp4, 64, true}), 0.1221, 0.001);
  EXPECT_GT(error({kNf4, 1024, false}), error({kNf4, 64, false}));
}

TEST(Quantize4Bit, TakesFewBytes) {
  const auto bits = [](const FourBitFormat& format) {
    constexpr int64_t kCount = int64_t{1} << 22;
    return 32.0 * static_cast<double>(FourBitLayout(format, kCount).words) / kCount;
  };
  EXPECT_NEAR(bits({kNf4, 64, false}), 4.5, 1e-4);
  EXPECT_NEAR(bits({kNf4, 64, true}), 4.127, 1e-3);
}

// The scale of a block and zero come back as they are, and what has been quantised once does not
// change when it is again.
TEST(Quantize4Bit, KeepsScalesAndZerosAndIsIdempotent) {
  for (const FourBitFormat::Type type : {kNf4, kFp4}) {
    const FourBitFormat format = {type, 32, false};
    std::vector<float> x = Normal(1000, 2);
    for (size_t i = 0; i < x.size(); i += 5) x[i] = 0;
    std::fill(x.begin() + 64, x.begin() + 96, 0.0f);
    const std::vector<float> y = Back(format, Quantized(format, x), x.size());
    for (size_t begin = 0; begin < x.size(); begin += 32) {
      const size_t end = std::min<size_t>(begin + 32, x.size());
      const auto less = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
      const auto largest = std::max_element(x.begin() + static_cast<int64_t>(begin),
                                            x.begin() + static_cast<int64_t>(end), less);
      EXPECT_EQ(y[static_cast<size_t>(largest - x.begin())], *largest);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) {
        EXPECT_EQ(y[i], 0);
      }
    }
    EXPECT_EQ(Back(format, Quantized(format, y), y.size()), y);
  }
}

// The rows and the columns of [48, 1280] that ranks have: 40 blocks a row, whose scales of scales
// are of 256 blocks wherever a row ends.
TEST(Quantize4Bit, PartsHaveTheNumbersOfTheTensor) {
  constexpr int64_t kRows = 48, kColumns = 1280, kBlock = 32, kOfRow = kColumns / kBlock;
  const std::vector<float> x = Normal(kRows * kColumns, 4);
  for (const bool twice : {false, true}) {
    const FourBitFormat format = {kNf4, kBlock, twice};
    const std::vector<int32_t> tensor = Quantized(format, x);
    const std::vector<float> all = Back(format, tensor, x.size());
    const auto expect_part = [&](const FourBitPart& part, size_t count,
                                 const std::function<int64_t(int64_t)>& at) {
      const auto elements = static_cast<int64_t>(count);
      std::vector<int32_t> words(static_cast<size_t>(FourBitLayout(format, elements, part).words));
      EXPECT_LT(words.size(), tensor.size());
      ASSERT_EQ(Take4BitPart(format, part, elements, tensor, words).ToString(), "OK");
      std::vector<float> y(count, NAN);
      ASSERT_EQ(Dequantize4Bit({}, {.words = {words.data(), DType::kI32, {std::ssize(words)}},
                                    .format = format,
                                    .y = {y.data(), DType::kF32, {elements}},
                                    .part = part})
                    .ToString(),
                "OK");
      for (int64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(y[static_cast<size_t>(i)], all[static_cast<size_t>(at(i))]) << i;
      }
    };
    // Columns 416 to 832, 13 blocks of each row.
    expect_part({kRows * kOfRow, 13, 13, kOfRow}, kRows * 416,
                [](int64_t i) { return i / 416 * kColumns + 416 + i % 416; });
    // Rows 4 to 8 of each 16.
    expect_part(
        {kRows * kOfRow, 4 * kOfRow, 4 * kOfRow, 16 * kOfRow}, 3 * 4 * kColumns,
        [](int64_t i) { return (i / (4 * kColumns) * 16 + 4) * kColumns + i % (4 * kColumns); });
    std::vector<int32_t> words(tensor.size());
    for (const FourBitPart& bad :
         {FourBitPart{}, FourBitPart{kRows * kOfRow, 0, 0, kOfRow},
          FourBitPart{kRows * kOfRow, 28, 13, kOfRow}, FourBitPart{kRows * kOfRow, 0, 13, 1}}) {
      EXPECT_EQ(Take4BitPart(format, bad, kRows * 416, tensor, words).code(), StatusCode::kInvalid);
    }
  }
}

TEST(Quantize4Bit, IsTheSameOnEveryInstructionSetWithAnyNumberOfThreads) {
  const std::vector<float> x = Normal(70001, 3);
  const FourBitFormat format;
  const int threads = cpu::Threads();
  std::vector<int32_t> words;
  std::vector<float> values;
  for (int level = 0; level <= static_cast<int>(cpu::ProcessIsa()); ++level) {
    cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
    cpu::SetThreads(1 + level % 3);
    const std::vector<int32_t> own = Quantized(format, x);
    const std::vector<float> back = Back(format, own, x.size());
    if (level == 0) {
      words = own;
      values = back;
    }
    EXPECT_EQ(own, words) << level;
    EXPECT_EQ(std::memcmp(back.data(), values.data(), back.size() * sizeof(float)), 0) << level;
  }
  cpu::SetThreads(threads);
}

TEST(Quantize4Bit, RefusesWhatIsNotFiniteAndSizesThatDoNotFit) {
  const FourBitFormat format;
  std::vector<float> x(1000, 1.0f);
  std::vector<int32_t> words(static_cast<size_t>(FourBitLayout(format, 1000).words));
  EXPECT_EQ(Quantize4Bit(format, x, words).ToString(), "OK");
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    x[70] = bad;
    EXPECT_EQ(Quantize4Bit(format, x, words).message(),
              "Quantize4Bit: not all numbers are finite, first in block 1 of 64");
  }
  x[70] = 1;
  EXPECT_EQ(Quantize4Bit({kNf4, 48, true}, x, words).code(), StatusCode::kInvalid);
  EXPECT_EQ(Quantize4Bit({kNf4, 32, true}, x, words).code(), StatusCode::kInvalid);
  const TensorView y(x.data(), DType::kF32, {1000});
  const auto refuses = [&](const Dequantize4BitArgs& args) {
    return Dequantize4Bit({}, args).code() == StatusCode::kInvalid;
  };
  const TensorView view(words.data(), DType::kI32, {std::ssize(words)});
  EXPECT_FALSE(refuses({view, format, y}));
  EXPECT_TRUE(refuses({view, {kFp4, 64, false}, y}));
  EXPECT_TRUE(refuses({view, format, {x.data(), DType::kF32, {70}}}));
  EXPECT_TRUE(refuses({{words.data(), DType::kU8, {std::ssize(words)}}, format, y}));
  EXPECT_TRUE(refuses({view, format, {words.data(), DType::kI32, {1000}}}));
}

}  // namespace
}  // namespace weft::kernels
