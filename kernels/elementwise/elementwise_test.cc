#include "kernels/elementwise/elementwise.h"

#include <array>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Elementwise, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::ElementwiseCases()), "");
}

TEST(Elementwise, EveryInstructionSetConvertsLikeTheScalarFunctions) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000; high += 7) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  // Around the ties and the ends of halves, subnormal ones too.
  for (uint32_t code = 0; code < 0x10000; code += 3) {
    const auto bits = std::bit_cast<uint32_t>(ToFloat(Half{static_cast<uint16_t>(code)}));
    for (uint32_t offset : {0u, 0xfffu, 0x1000u, 0x1001u}) {
      x.push_back(std::bit_cast<float>(bits + offset));
    }
  }
  auto count = static_cast<int64_t>(x.size());
  for (int level = 0; level <= static_cast<int>(cpu::DetectedIsa()); ++level) {
    cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
    const auto check = [&]<class T>() {
      std::vector<T> y(x.size());
      std::vector<float> back(x.size());
      TensorView narrow(y.data(), kDTypeOf<T>, {count});
      ASSERT_TRUE(Cast({}, {.x = TensorView(x.data(), DType::kF32, {count}), .y = narrow}).ok());
      ASSERT_TRUE(Cast({}, {.x = narrow, .y = TensorView(back.data(), DType::kF32, {count})}).ok());
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(y[i].bits, FromFloat<T>(x[i]).bits)
            << std::bit_cast<uint32_t>(x[i]) << " on " << level;
        ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(ToFloat(y[i])));
      }
    };
    check.operator()<BFloat16>();
    check.operator()<Half>();
  }
}

TEST(Elementwise, AMaskRemovesWhatIsNoNumber) {
  std::array<float, 3> x = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -1.5f};
  std::array<uint8_t, 3> mask = {0, 0, 2};
  const TensorView view(x.data(), DType::kF32, {3});
  ASSERT_TRUE(ApplyMask({}, {.x = view, .mask = {mask.data(), DType::kU8, {3}}}).ok());
  EXPECT_EQ(x, (std::array<float, 3>{0, 0, -1.5f}));
}

TEST(Elementwise, RefusesArgumentsThatDoNotFit) {
  std::array<float, 12> memory{};
  TensorView four(memory.data(), DType::kF32, {4});
  TensorView three(memory.data() + 4, DType::kF32, {3});
  TensorView words(memory.data(), DType::kI32, {4});
  TensorView missing(nullptr, DType::kF32, {4});
  TensorView strided(memory.data(), DType::kF32, {2, 2});
  strided.row_stride = 5;
  TensorView overlapping(memory.data(), DType::kF32, {2, 2});
  overlapping.row_stride = 1;
  EXPECT_EQ(Add({}, {.a = four, .b = three, .y = four}).ToString(),
            "INVALID: Add: b has shape [3] instead of [4]");
  EXPECT_EQ(Cast({}, {.x = words, .y = four}).ToString(),
            "INVALID: Cast: x is i32, not f32 or bf16 or f16");
  TensorView brain(memory.data(), DType::kBF16, {4}), half(memory.data() + 4, DType::kF16, {4});
  EXPECT_EQ(Cast({}, {.x = brain, .y = half}).ToString(), "INVALID: Cast: neither x nor y is f32");
  EXPECT_EQ(Scale({}, {.x = missing}).ToString(), "INVALID: Scale: x has no memory");
  EXPECT_EQ(Scale({}, {.x = strided}).code(), StatusCode::kInvalid);
  EXPECT_EQ(Scale({}, {.x = overlapping}).code(), StatusCode::kInvalid);
  EXPECT_EQ(AddScaled({}, {.x = four, .y = brain}).ToString(),
            "INVALID: AddScaled: y is bf16, not f32");
  EXPECT_EQ(AddScaled({}, {.x = four, .y = three}).code(), StatusCode::kInvalid);
  EXPECT_EQ(ApplyMask({}, {.x = four, .mask = words}).ToString(),
            "INVALID: ApplyMask: mask is i32, not u8");
  EXPECT_EQ(Fill({.device = {DeviceType::kCuda, 0}}, {.x = four}).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::kernels
