#include "kernels/sparse24/sparse24.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/testing/activation_pass.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

TEST(Sparse24, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::Sparse24Cases()), "");
}

// A mask that changes is followed by the next Pack() alone.
TEST(Sparse24, FollowsAMaskThatChanges) {
  std::vector<float> weight(16 * 8, 1.0f), x(3 * 8, 1.0f), y(3 * 16);
  std::vector<uint16_t> bits(8, 0xA5A5);
  const TensorView w(weight.data(), DType::kF32, {16, 8}), mask(bits.data(), DType::kU16, {4, 2});
  Result<std::unique_ptr<SparseWeight>> sparse = NewSparseWeight({}, 16, 8, DType::kF32);
  ASSERT_TRUE(sparse.ok());
  const SparseForwardArgs args = {.x = {x.data(), DType::kF32, {3, 8}},
                                  .weight = sparse->get(),
                                  .y = {y.data(), DType::kF32, {3, 16}}};
  EXPECT_EQ((*sparse)->Pack({}, w).code(), StatusCode::kInvalid);
  ASSERT_TRUE((*sparse)->SetMask({}, mask).ok());
  EXPECT_EQ(SparseForward({}, args).code(), StatusCode::kInvalid);
  ASSERT_TRUE((*sparse)->Pack({}, w).ok());
  ASSERT_TRUE(SparseForward({}, args).ok());
  EXPECT_EQ(y, std::vector<float>(3 * 16, 4.0f));
  bits.assign(8, 0xFFFF);
  ASSERT_TRUE((*sparse)->SetMask({}, mask).ok());
  ASSERT_TRUE((*sparse)->Pack({}, w).ok());
  ASSERT_TRUE(SparseForward({}, args).ok());
  EXPECT_EQ(y, std::vector<float>(3 * 16, 8.0f));
  EXPECT_GE((*sparse)->Bytes(), 2 * 16 * 8 * 4);
}

constexpr ProductActivation kActivations[] = {
    ProductActivation::kTanhGelu, ProductActivation::kErfGelu, ProductActivation::kSquaredRelu,
    ProductActivation::kSwiGlu,   ProductActivation::kGeglu,   ProductActivation::kErfGeglu};

void ExpectTheBitsOfOwnPasses(ProductActivation activation, DType dtype) {
  using testing::TestTensor;
  constexpr int64_t kRows = 37, kIn = 300, kOut = 600;
  const bool gated = IsGated(activation);
  const int64_t inner = gated ? kOut / 2 : kOut, columns = gated ? 2 * kIn : kIn;
  PhiloxStream rng({.seed = 7});
  TestTensor weight(DType::kF32, {kOut, kIn}), mask(DType::kU16, {kOut / 4, kIn / 4});
  TestTensor bias(DType::kF32, {kOut}), x(dtype, {kRows, kIn}), before(dtype, {kRows, columns});
  for (TestTensor* tensor : {&weight, &bias, &x, &before}) tensor->Random(rng).Reset();
  mask.Assign(std::vector<double>(kOut * kIn / 16, 0xA5A5)).Reset();
  TestTensor y(dtype, {kRows, kOut}), plain_y(dtype, {kRows, kOut});
  TestTensor active(dtype, {kRows, inner}), own(dtype, {kRows, inner});
  TestTensor dx(dtype, {kRows, columns}), plain(dtype, {kRows, columns});
  TestTensor again(dtype, {kRows, kIn}), own_again(dtype, {kRows, kIn});
  for (TestTensor* tensor : {&y, &plain_y, &active, &own, &dx, &plain, &again, &own_again}) {
    tensor->Reset();
  }
  Result<std::unique_ptr<SparseWeight>> sparse = NewSparseWeight({}, kOut, kIn, dtype);
  ASSERT_TRUE(sparse.ok());
  ASSERT_TRUE((*sparse)->SetMask({}, mask.view()).ok());
  ASSERT_TRUE((*sparse)->Pack({}, weight.view()).ok());
  ASSERT_EQ(SparseForward({}, {.x = x.view(),
                               .weight = sparse->get(),
                               .bias = bias.view(),
                               .y = y.view(),
                               .active = active.view(),
                               .activation = activation})
                .ToString(),
            "OK");
  ASSERT_EQ(
      SparseForward(
          {}, {.x = x.view(), .weight = sparse->get(), .bias = bias.view(), .y = plain_y.view()})
          .ToString(),
      "OK");
  EXPECT_EQ(y.bytes(), plain_y.bytes());
  ASSERT_EQ(testing::ActivationPass({}, activation, y.view(), own.view()).ToString(), "OK");
  EXPECT_EQ(active.bytes(), own.bytes());
  ASSERT_EQ(SparseBackwardInput({}, {.dy = y.view(),
                                     .weight = sparse->get(),
                                     .dx = dx.view(),
                                     .before = before.view(),
                                     .active = again.view(),
                                     .activation = activation})
                .ToString(),
            "OK");
  const TensorView product = gated ? GatedColumnsOf(plain.view()).gate : plain.view();
  ASSERT_EQ(
      SparseBackwardInput({}, {.dy = y.view(), .weight = sparse->get(), .dx = product}).ToString(),
      "OK");
  ASSERT_EQ(
      testing::ActivationBackwardPass({}, activation, plain.view(), before.view(), own_again.view())
          .ToString(),
      "OK");
  EXPECT_EQ(dx.bytes(), plain.bytes());
  EXPECT_EQ(again.bytes(), own_again.bytes());
}

TEST(Sparse24, ActivationsHaveTheBitsOfAPassOfTheirOwn) {
  for (int level = 0; level <= static_cast<int>(cpu::DetectedIsa()); ++level) {
    const cpu::ScopedIsa isa(static_cast<cpu::Isa>(level));
    for (const ProductActivation activation : kActivations) {
      for (const DType dtype : kFloatTypes) {
        SCOPED_TRACE(std::to_string(level) + " " + std::to_string(static_cast<int>(activation)) +
                     " " + std::string(DTypeName(dtype)));
        ExpectTheBitsOfOwnPasses(activation, dtype);
      }
    }
  }
}

TEST(Sparse24, NoRowsLeaveAGradientOfZeros) {
  std::array<float, 32> memory;
  memory.fill(3.0f);
  const TensorView dweight(memory.data(), DType::kF32, {4, 8});
  const SparseBackwardWeightArgs args = {.x = {memory.data(), DType::kF32, {0, 8}},
                                         .dy = {memory.data(), DType::kF32, {0, 4}},
                                         .dweight = dweight};
  ASSERT_TRUE(SparseBackwardWeight({}, args).ok());
  EXPECT_EQ(memory[7], 3.0f);
}

// The gradient has more rows than are listed at a time.
TEST(Sparse24, AGradientOfAnEstimateIsThatOfTheStoredEstimate) {
  constexpr int64_t kRows = 7003, kOut = 300, kIn = 4;
  PhiloxStream rng({.seed = 5});
  std::vector<float> dy(kRows * kOut), x(kRows * kIn), one(kOut * kIn), two(kOut * kIn);
  for (std::vector<float>* values : {&dy, &x}) {
    for (float& value : *values) value = static_cast<float>(rng.Normal());
  }
  std::vector<float> stored = dy;
  const TensorView gradient(dy.data(), DType::kF32, {kRows, kOut});
  const TensorView estimate(stored.data(), DType::kF32, {kRows, kOut});
  const TensorView input(x.data(), DType::kF32, {kRows, kIn});
  MvueArgs numbers = {
      .x = {}, .y = {}, .draw = MvueDraw::kSequential, .key = {.seed = 2}, .first_row = 12};
  SparseBackwardWeightArgs args = {.x = input,
                                   .dy = gradient,
                                   .dweight = {one.data(), DType::kF32, {kOut, kIn}},
                                   .accumulate = false,
                                   .estimate = &numbers};
  ASSERT_EQ(SparseBackwardWeight({}, args).ToString(), "OK");
  numbers.x = gradient;
  numbers.y = estimate;
  ASSERT_EQ(Mvue({}, numbers).ToString(), "OK");
  args.dy = estimate;
  args.estimate = nullptr;
  args.dweight.data = two.data();
  ASSERT_EQ(SparseBackwardWeight({}, args).ToString(), "OK");
  EXPECT_EQ(one, two);
}

TEST(Sparse24, RefusesArgumentsThatDoNotFit) {
  EXPECT_EQ(NewSparseWeight({}, 6, 8, DType::kF32).status().ToString(),
            "INVALID: SparseWeight: there is none of [6, 8] f32; hint: sizes that are multiples of "
            "4, and a type of activations");
  std::array<float, 64> memory{};
  Result<std::unique_ptr<SparseWeight>> sparse = NewSparseWeight({}, 4, 8, DType::kF32);
  ASSERT_TRUE(sparse.ok());
  const TensorView x(memory.data(), DType::kF32, {2, 8}), y(memory.data(), DType::kF32, {2, 8});
  EXPECT_EQ(SparseForward({}, {.x = x, .weight = sparse->get(), .y = y}).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(SparseForward({}, {.x = x, .y = y}).code(), StatusCode::kInvalid);
  // Gate and up of two rows each.
  const TensorView four(memory.data(), DType::kF32, {2, 4}),
      two(memory.data(), DType::kF32, {2, 2});
  EXPECT_EQ(SparseForward({}, {.x = x,
                               .weight = sparse->get(),
                               .y = four,
                               .active = two,
                               .activation = ProductActivation::kSwiGlu})
                .ToString(),
            "INVALID: SparseForward: rows of gate and up in the weight are no multiple of 4");
}

// Parts of the rows have the gradient that the whole has, on any number of threads.
TEST(Sparse24, ASampledGradientOfSomeRowsIsThatOfAll) {
  constexpr int64_t kRows = 300, kOut = 48, kIn = 500;
  PhiloxStream rng({.seed = 9});
  std::vector<float> x(kRows * kIn), dy(kRows * kOut), weight(kOut * kIn, 1.0f);
  for (std::vector<float>* values : {&x, &dy}) {
    for (float& value : *values) value = static_cast<float>(rng.Normal());
  }
  std::vector<uint16_t> bits(kOut * kIn / 16);
  for (uint16_t& block : bits) {
    block = static_cast<uint16_t>(rng.Below(1 << 16) & rng.Below(1 << 16));
  }
  Result<std::unique_ptr<SparseWeight>> sparse = NewSparseWeight({}, kOut, kIn, DType::kF32);
  ASSERT_TRUE(sparse.ok());
  ASSERT_TRUE((*sparse)->SetMask({}, {bits.data(), DType::kU16, {kOut / 4, kIn / 4}}).ok());
  ASSERT_TRUE((*sparse)->Pack({}, {weight.data(), DType::kF32, {kOut, kIn}}).ok());
  std::vector<float> whole(kOut * kIn, 7.0f), parts = whole;
  SampledBackwardWeightArgs args = {.x = {x.data(), DType::kF32, {kRows, kIn}},
                                    .dy = {dy.data(), DType::kF32, {kRows, kOut}},
                                    .weight = sparse->get(),
                                    .dweight = {whole.data(), DType::kF32, {kOut, kIn}},
                                    .accumulate = false};
  ASSERT_EQ(SampledBackwardWeight({}, args).ToString(), "OK");
  EXPECT_EQ(std::count(whole.begin(), whole.end(), 7.0f), 0) << "what is not kept is 0";
  for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 12}, {12, 4}, {16, 32}}) {
    args.first_row = first;
    args.dy = {dy.data() + first, DType::kF32, {kRows, rows}};
    args.dy.row_stride = kOut;
    args.dweight = {parts.data() + first * kIn, DType::kF32, {rows, kIn}};
    ASSERT_EQ(SampledBackwardWeight({}, args).ToString(), "OK");
  }
  EXPECT_EQ(parts, whole);
  args.first_row = 20;
  EXPECT_EQ(SampledBackwardWeight({}, args).code(), StatusCode::kInvalid);
  args.first_row = 2;
  EXPECT_EQ(SampledBackwardWeight({}, args).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
