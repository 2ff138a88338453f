#include "worker/engine/techniques/parallel/micro_batch_tree.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/tensor/allocator.h"

namespace weft::engine {
namespace {

constexpr int64_t kCount = 5;

struct Memory {
  Allocator allocator{0};
  Context context;

  Memory() { context.allocator = &allocator; }
};

float Value(int64_t number, int64_t i) {
  return std::sin(static_cast<float>(7 * number + i)) * std::exp2f(static_cast<float>(number % 5));
}

/// The tree over micro-batches [first, end) by its definition.
float Sum(int64_t first, int64_t end, int64_t i) {
  if (end - first == 1) return Value(first, i);
  const int64_t middle = (first + end) / 2;
  return Sum(first, middle, i) + Sum(middle, end, i);
}

/// What a tree makes of `micro_batches` from `first` on. `places`: they are written where the tree
/// wants them.
std::vector<float> SumsOf(Context& context, int64_t first, int64_t micro_batches, bool places) {
  auto tree = MicroBatchTree::New(context, 2 * kCount, micro_batches);
  EXPECT_TRUE(tree.ok());
  std::vector<float> sums(2 * kCount), values(kCount);
  // The second half is one micro-batch ahead of the first.
  const auto add = [&](int64_t number, int64_t begin) {
    const TensorView place = tree->PlaceOf(number, begin, kCount);
    TensorView own(values.data(), DType::kF32, {kCount});
    if (places && place) own = place;
    for (int64_t i = 0; i < kCount; ++i) {
      own.As<float>()[i] = Value(first + number, begin + i);
    }
    const TensorView sum(sums.data() + begin, DType::kF32, {kCount});
    ASSERT_TRUE(tree->Add(context.stream, number, begin, own, sum).ok());
  };
  for (int64_t number = 0; number <= micro_batches; ++number) {
    if (number < micro_batches) add(number, kCount);
    if (number > 0) add(number - 1, 0);
  }
  return sums;
}

TEST(MicroBatchTree, AddsNeighboursFirst) {
  Memory memory;
  for (const int64_t micro_batches : {1, 2, 4, 8, 32}) {
    for (const bool places : {false, true}) {
      const std::vector<float> sums = SumsOf(memory.context, 0, micro_batches, places);
      for (int64_t i = 0; i < 2 * kCount; ++i) {
        EXPECT_EQ(sums[static_cast<size_t>(i)], Sum(0, micro_batches, i))
            << micro_batches << " element " << i;
      }
    }
  }
}

TEST(MicroBatchTree, SubtreesMakeUpTheTree) {
  Memory memory;
  const std::vector<float> whole = SumsOf(memory.context, 0, 8, true);
  const std::vector<float> left = SumsOf(memory.context, 0, 4, true);
  const std::vector<float> right = SumsOf(memory.context, 4, 4, true);
  bool differs = false;
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(left[i] + right[i], whole[i]);
    float in_order = 0;
    for (int64_t number = 0; number < 8; ++number)
      in_order += Value(number, static_cast<int64_t>(i));
    differs |= in_order != whole[i];
  }
  EXPECT_TRUE(differs) << "another order has other bits";
}

TEST(MicroBatchTree, HoldsASumOfEachSizeOfSubtree) {
  Memory memory;
  const auto tree = MicroBatchTree::New(memory.context, 1000, 8);
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ(memory.allocator.live_bytes(Component::kGradients), 3 * 4000);
}

}  // namespace
}  // namespace weft::engine
