#include "kernels/embedding/embedding.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Embedding, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::EmbeddingCases()), "");
}

struct Small {
  std::array<int32_t, 3> tokens = {0, 4, 2};
  std::array<int32_t, 3> positions = {0, 1, 1};
  std::array<float, 5 * 2> table{};
  std::array<float, 2 * 2> position_table{};
  std::array<float, 3 * 2> rows{};

  EmbeddingForwardArgs Forward() {
    return {.tokens = TensorView(tokens.data(), DType::kI32, {3}),
            .positions = TensorView(positions.data(), DType::kI32, {3}),
            .token_table = TensorView(table.data(), DType::kF32, {5, 2}),
            .position_table = TensorView(position_table.data(), DType::kF32, {2, 2}),
            .out = TensorView(rows.data(), DType::kF32, {3, 2})};
  }
  EmbeddingBackwardArgs Backward() {
    EmbeddingForwardArgs forward = Forward();
    return {.tokens = forward.tokens,
            .positions = forward.positions,
            .dout = forward.out,
            .dtoken_table = forward.token_table,
            .dposition_table = forward.position_table};
  }
};

TEST(Embedding, NamesAnIndexThatIsOutOfRange) {
  Small small;
  EXPECT_TRUE(EmbeddingForward({}, small.Forward()).ok());
  EXPECT_TRUE(EmbeddingBackward({}, small.Backward()).ok());
  small.tokens[1] = 5;
  EXPECT_EQ(EmbeddingForward({}, small.Forward()).ToString(),
            "INVALID: EmbeddingForward: tokens[1] is 5, outside of [0, 5)");
  small.tokens[1] = -1;
  EXPECT_EQ(EmbeddingBackward({}, small.Backward()).ToString(),
            "INVALID: EmbeddingBackward: tokens[1] is -1, outside of [0, 5)");
  small.tokens[1] = 4;
  small.positions[2] = 2;
  EXPECT_EQ(EmbeddingForward({}, small.Forward()).ToString(),
            "INVALID: EmbeddingForward: positions[2] is 2, outside of [0, 2)");
}

TEST(Embedding, RefusesArgumentsThatDoNotFit) {
  Small small;
  EmbeddingForwardArgs no_table = small.Forward();
  no_table.position_table = {};
  EXPECT_EQ(EmbeddingForward({}, no_table).code(), StatusCode::kInvalid);
  EmbeddingForwardArgs narrow = small.Forward();
  narrow.out.shape = {3, 1};
  EXPECT_EQ(EmbeddingForward({}, narrow).code(), StatusCode::kInvalid);
  EXPECT_EQ(EmbeddingBackward({}, {}).code(), StatusCode::kInvalid);
}

TEST(Embedding, BackwardIgnoresPositionsWithoutATableForThem) {
  Small small;
  small.rows.fill(1.0f);
  EmbeddingBackwardArgs args = small.Backward();
  args.dposition_table = {};
  ASSERT_TRUE(EmbeddingBackward({}, args).ok());
  EXPECT_EQ(small.table, (std::array<float, 10>{1, 1, 0, 0, 1, 1, 0, 0, 1, 1}));
}

}  // namespace
}  // namespace weft::kernels
