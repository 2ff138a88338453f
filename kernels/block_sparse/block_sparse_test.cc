#include "kernels/block_sparse/block_sparse.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(BlockSparse, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::BlockSparseCases()), "");
}

TEST(BlockPattern, ListsItsBlocksByRowsAndByColumns) {
  const BlockPattern pattern(16, 3, 2, {{0, 1}, {2, 0}, {2, 1}});
  const auto blocks_of = [](const BlockList& list, int64_t line) {
    std::vector<int32_t> blocks;
    for (int32_t i = list.begin[line]; i < list.begin[line + 1]; ++i) {
      blocks.push_back(list.places[i].block);
    }
    return blocks;
  };
  using Blocks = std::vector<int32_t>;
  const BlockList rows = pattern.ByRow(DeviceType::kCpu);
  EXPECT_EQ(blocks_of(rows, 0), Blocks{0});
  EXPECT_EQ(blocks_of(rows, 1), Blocks{});
  EXPECT_EQ(blocks_of(rows, 2), (Blocks{1, 2}));
  const BlockList columns = pattern.ByColumn(DeviceType::kCpu);
  EXPECT_EQ(blocks_of(columns, 0), Blocks{1});
  EXPECT_EQ(blocks_of(columns, 1), (Blocks{0, 2}));
  EXPECT_EQ(columns.places[2].row, 2);
}

TEST(BlockSparse, RefusesWhatDoesNotFit) {
  std::array<float, 64> in{}, out{};
  std::array<float, 512> values{};
  const TensorView x(in.data(), DType::kF32, {2, 32}), y(out.data(), DType::kF32, {2, 16});
  const TensorView blocks(values.data(), DType::kF32, {32, 16});
  const auto message = [&](const BlockPattern& pattern) {
    return BlockSparseForward({}, {&pattern, x, blocks, {}, y}).ToString();
  };
  const std::string invalid =
      "INVALID: BlockSparseForward: the pattern needs blocks with a side of 16 to 256 in steps of "
      "16, at places of the grid in rising order";
  EXPECT_EQ(message({16, 1, 2, {{0, 0}, {0, 1}}}), "OK");
  EXPECT_EQ(message({16, 1, 2, {{0, 1}, {0, 0}}}), invalid);
  EXPECT_EQ(message({16, 1, 2, {{0, 0}, {0, 0}}}), invalid);
  EXPECT_EQ(message({16, 1, 2, {{0, 0}, {0, 2}}}), invalid);
  EXPECT_EQ(message({8, 2, 4, {{0, 0}, {0, 1}}}), invalid);
  EXPECT_NE(message({16, 1, 2, {{0, 0}}}), "OK") << "a block that is listed twice";
  EXPECT_EQ(BlockSparseForward({}, {nullptr, x, blocks, {}, y}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
