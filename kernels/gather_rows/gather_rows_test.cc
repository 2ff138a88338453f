#include "kernels/gather_rows/gather_rows.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(GatherRows, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::GatherRowsCases()), "");
}

TEST(GatherRows, NamesAnIndexThatIsOutOfRangeAndRefusesOtherShapes) {
  std::array<float, 6> many{};
  std::array<float, 4> few{};
  std::array<int32_t, 2> rows = {0, 3};
  const TensorView all(many.data(), DType::kF32, {3, 2});
  const TensorView index(rows.data(), DType::kI32, {2});
  TensorView picked(few.data(), DType::kF32, {2, 2});
  EXPECT_EQ(GatherRows({}, {all, index, picked}).ToString(),
            "INVALID: GatherRows: rows[1] is 3, outside of [0, 3)");
  rows[1] = -1;
  EXPECT_EQ(ScatterRows({}, {picked, index, all}).ToString(),
            "INVALID: ScatterRows: rows[1] is -1, outside of [0, 3)");
  rows[1] = 2;
  EXPECT_TRUE(GatherRows({}, {all, index, picked}).ok());
  picked.shape = {1, 2};
  EXPECT_EQ(ScatterRows({}, {picked, index, all}).code(), StatusCode::kInvalid);
  EXPECT_EQ(GatherRows({}, {}).code(), StatusCode::kInvalid);
  // A period of one has no row 1, and a period of two does not divide three rows.
  rows = {1, 0};
  const TensorView first(rows.data(), DType::kI32, {1});
  EXPECT_EQ(GatherRows({}, {all, first, all, 1}).ToString(),
            "INVALID: GatherRows: rows[0] is 1, outside of [0, 1)");
  EXPECT_EQ(GatherRows({}, {all, first, all, 2}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
