// The device functions that kernels are made of, on a CUDA device.

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/cuda/primitives_test_kernels.h"
#include "kernels/testing/compare.h"
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

TEST_F(PrimitivesOnCuda, SparseTensorCoresMultiplyTheTwoOfFourThatAreKept) {
  const testing::ScopedTestDevice device(stream().device, true);
  PhiloxStream rng({.seed = 6});
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int pair : {0, 1}) {
      TestTensor a(dtype, {16, 16}), b(dtype, {32, 8}), places(DType::kI32, {32});
      TestTensor c(DType::kF32, {16, 8});
      a.Random(rng).Reset();
      b.Random(rng).Reset();
      c.Reset();
      const std::vector<double> kept = a.Values(), right = b.Values();
      std::vector<uint32_t> words(32, 0xffffffffu);
      std::vector<double> want(16 * 8);
      for (int row = 0; row < 16; ++row) {
        for (int four = 0; four < 8; ++four) {
          const auto first = static_cast<uint32_t>(rng.Below(3));
          const uint32_t second = first + 1 + static_cast<uint32_t>(rng.Below(3 - first));
          uint32_t& word = words[row % 8 * 4 + 2 * pair + four / 4];
          const int bit = row / 8 * 16 + four % 4 * 4;
          word = (word & ~(15u << bit)) | (first | second << 2) << bit;
          for (int n = 0; n < 8; ++n) {
            want[row * 8 + n] += kept[row * 16 + 2 * four] * right[(4 * four + first) * 8 + n] +
                                 kept[row * 16 + 2 * four + 1] * right[(4 * four + second) * 8 + n];
          }
        }
      }
      std::vector<double> bits;
      for (const uint32_t word : words) bits.push_back(static_cast<int32_t>(word));
      places.Assign(bits).Reset();
      ASSERT_TRUE(cuda::RunSparseTensorCores(stream(), dtype, a.view().data, b.view().data,
                                             static_cast<const uint32_t*>(places.view().data), pair,
                                             c.view().As<float>())
                      .ok());
      ASSERT_TRUE(state_->Synchronize().ok());
      c.Fetch();
      EXPECT_EQ(testing::Mismatch(c.Values(), want, testing::ToleranceFor(DType::kF32, 16)), "");
    }
  }
}

// The product of matrices of row-major values, the right one transposed or not.
std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& b, int rows,
                            int depth, int columns, bool transposed) {
  std::vector<double> c(static_cast<size_t>(rows * columns));
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < columns; ++n) {
      for (int k = 0; k < depth; ++k) {
        c[m * columns + n] += a[m * depth + k] * b[transposed ? n * depth + k : k * columns + n];
      }
    }
  }
  return c;
}

TEST_F(PrimitivesOnCuda, SwizzledTilesMultiplyBothWays) {
  const testing::ScopedTestDevice device(stream().device, true);
  PhiloxStream rng({.seed = 7});
  constexpr int kRows = 64, kRightRows = 32, kUsedRows = 53;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int columns : {32, 64, 96, 128, 256}) {
      const int used = columns - 8;
      TestTensor a(dtype, {kRows, columns}), b(dtype, {kRightRows, columns});
      TestTensor scores(DType::kF32, {kRows, kRightRows}), out(dtype, {kRows, columns});
      a.Random(rng).Reset();
      b.Random(rng).Reset();
      scores.Reset();
      out.Reset();
      ASSERT_TRUE(cuda::RunTileProducts(stream(), dtype, columns, a.view().data, b.view().data,
                                        kUsedRows, used, scores.view().As<float>(), out.view().data)
                      .ok());
      ASSERT_TRUE(state_->Synchronize().ok());
      scores.Fetch();
      out.Fetch();
      std::vector<double> left = a.Values(), right = b.Values();
      const auto clear = [columns](std::vector<double>& values, int rows, int till) {
        for (size_t i = 0; i < values.size(); ++i) {
          const int row = static_cast<int>(i) / columns, column = static_cast<int>(i) % columns;
          if (row >= rows || column >= till) values[i] = 0;
        }
      };
      clear(left, kUsedRows, used);
      clear(right, kRightRows, used);
      const std::vector<double> want = Product(left, right, kRows, columns, kRightRows, true);
      EXPECT_EQ(
          testing::Mismatch(scores.Values(), want, testing::ToleranceFor(DType::kF32, columns)),
          "");
      // Nothing else was written.
      std::vector<double> got = out.Values();
      for (int i = 0; i < kRows * columns; ++i) {
        const bool inside = i / columns < kUsedRows && i % columns < used;
        EXPECT_EQ(std::isnan(got[i]), !inside) << i;
      }
      clear(got, kUsedRows, used);
      EXPECT_EQ(testing::Mismatch(got, Product(want, right, kRows, kRightRows, columns, false),
                                  testing::ToleranceFor(dtype, kRightRows)),
                "");
    }
  }
}

TEST_F(PrimitivesOnCuda, PowersOfTwoAreExactToAFewUnits) {
  const testing::ScopedTestDevice device(stream().device, true);
  TestTensor x(DType::kF32, {32}), y(DType::kF32, {32});
  std::vector<double> values = {0, -INFINITY, -149, -1, 1, 127};
  while (values.size() < 32) values.push_back(-13.37 * static_cast<double>(values.size() - 16) / 4);
  x.Assign(values).Reset();
  y.Reset();
  ASSERT_TRUE(cuda::RunExp2(stream(), x.view().As<float>(), y.view().As<float>()).ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  y.Fetch();
  EXPECT_EQ(y.Values()[0], 1);
  for (int i = 0; i < 32; ++i) {
    const double want = std::exp2(x.Values()[i]);
    EXPECT_NEAR(y.Values()[i], want < 0x1p-126 ? 0 : want, want * 0x1p-21) << x.Values()[i];
  }
}

TEST_F(PrimitivesOnCuda, EightBytesAreCopiedAsynchronously) {
  const testing::ScopedTestDevice device(stream().device, true);
  PhiloxStream rng({.seed = 8});
  TestTensor x(DType::kF32, {64}), y(DType::kF32, {64});
  x.Random(rng).Reset();
  y.Reset();
  ASSERT_TRUE(cuda::RunCopyOfEights(stream(), x.view().As<float>(), 38, y.view().As<float>()).ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  y.Fetch();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y.Values()[i], i < 38 ? x.Values()[i] : 0) << i;
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
