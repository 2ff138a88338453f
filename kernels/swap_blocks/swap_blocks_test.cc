#include "kernels/swap_blocks/swap_blocks.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(SwapBlocks, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::SwapBlocksCases()), "");
}

TEST(SwapBlocks, RefusesWhatDoesNotFit) {
  std::array<float, 12> from{}, to{};
  const TensorView x(from.data(), DType::kF32, {2, 6});
  const TensorView y(to.data(), DType::kF32, {2, 6});
  EXPECT_TRUE(SwapBlocks({}, {x, y, 2, 3}).ok());
  EXPECT_EQ(SwapBlocks({}, {x, y, 2, 2}).ToString(),
            "INVALID: SwapBlocks: columns are no whole blocks");
  EXPECT_EQ(SwapBlocks({}, {x, x, 2, 3}).ToString(), "INVALID: SwapBlocks: y is x");
  EXPECT_EQ(SwapBlocks({}, {x, TensorView(to.data(), DType::kF32, {3, 4}), 2, 3}).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(SwapBlocks({}, {x, y, 0, 3}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
