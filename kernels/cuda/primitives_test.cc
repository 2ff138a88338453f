// The device functions that kernels are made of, on a CUDA device.

#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/cuda/primitives_test_kernels.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;

class PrimitivesOnCuda : public OnCuda {};

TEST_F(PrimitivesOnCuda, TensorCoresMultiplyTilesThatWereCopiedAsynchronously) {
  const testing::ScopedTestDevice device(stream().device, true);
  PhiloxStream rng({.seed = 5});
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (bool transposed : {false, true}) {
      for (int rows : {16, 11}) {
        TestTensor a(dtype, {16, 16}), b(dtype, {transposed ? 8 : 16, transposed ? 16 : 8});
        TestTensor c(DType::kF32, {16, 8});
        a.Random(rng).Reset();
        b.Random(rng).Reset();
        c.Reset();
        ASSERT_TRUE(cuda::RunTensorCores(stream(), dtype, a.view().data, b.view().data, transposed,
                                         rows, c.view().As<float>())
                        .ok());
        ASSERT_TRUE(state_->Synchronize().ok());
        c.Fetch();
        for (int m = 0; m < 16; ++m) {
          for (int n = 0; n < 8; ++n) {
            double want = 0;
            for (int k = 0; k < 16 && m < rows; ++k) {
              want += a.Values()[m * 16 + k] * b.Values()[transposed ? n * 16 + k : k * 8 + n];
            }
            EXPECT_NEAR(c.Values()[m * 8 + n], want, 2e-5) << m << ", " << n;
          }
        }
      }
    }
  }
}

TEST_F(PrimitivesOnCuda, PhiloxGivesTheWordsOfTheCpu) {
  constexpr int kBlocks = 100;
  const PhiloxKey key = {.seed = 0x0123456789abcdefu, .step = 7, .site = 0xfedcba98u};
  auto memory = cuda::DeviceMemory::Allocate(0, kBlocks * sizeof(Philox4));
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(cuda::RunPhilox(stream(), key, kBlocks, static_cast<uint32_t*>(memory->data())).ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  std::vector<Philox4> words(kBlocks);
  ASSERT_TRUE(memory->CopyTo(words.data(), memory->bytes()).ok());
  for (uint64_t block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words[block].v[i], Philox(key, block).v[i]);
  }
}

TEST_F(PrimitivesOnCuda, SomeWarpsOfABlockMeetAtANamedBarrier) {
  const testing::ScopedTestDevice device(stream().device, true);
  PhiloxStream rng({.seed = 6});
  TestTensor x(DType::kF32, {64}), y(DType::kF32, {64});
  x.Random(rng).Reset();
  y.Reset();
  ASSERT_TRUE(cuda::RunNamedBarrier(stream(), x.view().As<float>(), y.view().As<float>()).ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  y.Fetch();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y.Values()[i], x.Values()[63 - i]);
}

TEST_F(PrimitivesOnCuda, ScratchGrowsAndIsPoisonedForTests) {
  for (size_t bytes : {100, 5000, 40}) {
    auto scratch = state_->Scratch("Test", bytes);
    ASSERT_TRUE(scratch.ok());
    ASSERT_TRUE(state_->Synchronize().ok());
  }
  EXPECT_EQ(cuda::StreamState::Create(99).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::kernels
