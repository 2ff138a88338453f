#include "worker/engine/tensor/allocator.h"

#include <cstdint>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/tensor/tensor.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

TEST(AllocatorTest, CountsLiveAndPeakBytesByComponent) {
  Allocator allocator;
  {
    auto a = allocator.Allocate(Component::kActivations, 4096);
    auto b = allocator.Allocate(Component::kActivations, 4096);
    auto c = allocator.Allocate(Component::kWorkspace, 1024);
    ASSERT_TRUE(a.ok() && b.ok() && c.ok());
    EXPECT_EQ(allocator.live_bytes(Component::kActivations), 8192);
    EXPECT_EQ(allocator.live_bytes(Component::kWorkspace), 1024);
  }
  EXPECT_EQ(allocator.live_bytes(Component::kActivations), 0);
  EXPECT_EQ(allocator.Peaks().activations_bytes, 8192);
  EXPECT_EQ(allocator.Peaks().workspace_bytes, 1024);
  EXPECT_EQ(allocator.Peaks().parameters_bytes, 0);
  allocator.ResetPeaks();
  EXPECT_EQ(allocator.Peaks().activations_bytes, 0);
}

TEST(AllocatorTest, ReusesFreedBlocksOfAboutTheSameSize) {
  Allocator allocator;
  for (int round = 0; round < 10; ++round) {
    auto large = allocator.Allocate(Component::kActivations, 3 << 20);
    auto small = allocator.Allocate(Component::kWorkspace, 1000);
    ASSERT_TRUE(large.ok() && small.ok());
    std::memset(large->data(), 1, 3 << 20);
  }
  EXPECT_EQ(allocator.system_allocations(), 2);
  auto far_smaller = allocator.Allocate(Component::kActivations, 1 << 20);
  ASSERT_TRUE(far_smaller.ok());
  EXPECT_EQ(allocator.system_allocations(), 3) << "a 3 MiB block was wasted on 1 MiB";
}

TEST(AllocatorTest, EveryBlockIsAligned) {
  Allocator allocator;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{65}, size_t{100000}, size_t{5} << 20}) {
    auto block = allocator.Allocate(Component::kWorkspace, bytes);
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % Allocator::kAlignment, 0u) << bytes;
  }
}

TEST(AllocatorTest, PastTheLimitIsExhaustedAndNamesComponentAndSizes) {
  Allocator allocator(1 << 20);
  auto kept = allocator.Allocate(Component::kParameters, 600 << 10);
  ASSERT_TRUE(kept.ok());
  auto refused = allocator.Allocate(Component::kActivations, 500 << 10);
  EXPECT_EQ(refused.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("512000 bytes for activations"));
  EXPECT_THAT(refused.status().message(), HasSubstr("parameters 614400"));
  EXPECT_THAT(refused.status().message(), HasSubstr("1048576"));
  EXPECT_THAT(refused.status().message(), HasSubstr("hint:"));
  EXPECT_TRUE(allocator.Allocate(Component::kActivations, 300 << 10).ok());
}

TEST(AllocatorTest, AnAbsurdSizeIsRefusedWithoutALimit) {
  Allocator allocator;
  EXPECT_EQ(allocator.Allocate(Component::kWorkspace, SIZE_MAX - 5).status().code(),
            StatusCode::kExhausted);
}

TEST(AllocatorTest, CachedBlocksGiveWayBeforeTheLimitRefuses) {
  Allocator allocator(1 << 20);
  ASSERT_TRUE(allocator.Allocate(Component::kWorkspace, 700 << 10).ok());
  ASSERT_TRUE(allocator.Allocate(Component::kWorkspace, 100 << 10).ok());
  EXPECT_EQ(allocator.held_bytes(), 800 << 10);
  EXPECT_TRUE(allocator.Allocate(Component::kActivations, 900 << 10).ok());
  EXPECT_LE(allocator.held_bytes(), 1 << 20);
}

TEST(AllocatorTest, MemoryOfLibrariesCountsAgainstTheLimit) {
  Allocator allocator(1 << 20);
  ASSERT_TRUE(allocator.CountExternal(Component::kParameters, 900 << 10).ok());
  EXPECT_EQ(allocator.live_bytes(Component::kParameters), 900 << 10);
  EXPECT_FALSE(allocator.Allocate(Component::kWorkspace, 200 << 10).ok());
  EXPECT_FALSE(allocator.CountExternal(Component::kParameters, 200 << 10).ok());
  ASSERT_TRUE(allocator.CountExternal(Component::kParameters, -(900 << 10)).ok());
  EXPECT_TRUE(allocator.Allocate(Component::kWorkspace, 200 << 10).ok());
}

TEST(AllocatorTest, ExternalBytesAreCountedWhileTheirHolderLives) {
  Allocator allocator(1000);
  {
    ExternalBytes held;
    ASSERT_TRUE(held.Set(&allocator, Component::kParameters, 600).ok());
    ASSERT_TRUE(held.Set(&allocator, Component::kParameters, 800).ok());
    EXPECT_EQ(allocator.live_bytes(Component::kParameters), 800);
    ExternalBytes moved = std::move(held);
    EXPECT_EQ(allocator.live_bytes(Component::kParameters), 800);
    EXPECT_EQ(moved.Set(&allocator, Component::kParameters, 1200).code(), StatusCode::kExhausted);
    EXPECT_EQ(allocator.live_bytes(Component::kParameters), 0);
  }
  EXPECT_EQ(allocator.held_bytes(), 0);
}

TEST(TensorTest, CopiesAndSlicesShareMemoryUntilTheLastOneGoes) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  Tensor row;
  {
    auto matrix = Tensor::New(context, Component::kActivations, DType::kF32, {3, 4});
    ASSERT_TRUE(matrix.ok());
    EXPECT_TRUE(matrix->unique());
    for (int i = 0; i < 12; ++i) matrix->As<float>()[i] = static_cast<float>(i);
    row = matrix->Rows(1, 2).Columns(2, 2);
    EXPECT_FALSE(matrix->unique());
  }
  EXPECT_TRUE(row.unique());
  EXPECT_EQ(row.shape(), Shape({2, 2}));
  EXPECT_EQ(row.As<float>()[0], 6.0f);
  EXPECT_EQ(row.As<float>()[row.view().row_stride + 1], 11.0f);
  EXPECT_GT(allocator.live_bytes(Component::kActivations), 0);
  row = Tensor();
  EXPECT_EQ(allocator.live_bytes(Component::kActivations), 0);
}

}  // namespace
}  // namespace weft::engine
