#include "kernels/linear/padded_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/testing/integer_product.h"

namespace weft::kernels::cpu {
namespace {

using testing::IntegerProduct;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
float At(const void* data, int64_t index) {
  return ToFloat(static_cast<const T*>(data)[index]);
}

// What oneDNN does, of any shape; fails the test for a shape that oneDNN must not be given.
Status Multiply(const MatmulShape& shape, const void* a, const void* b, const float* bias,
                void* c) {
  EXPECT_GT(shape.k, 0);
  EXPECT_EQ(shape.k % kSumMultiple, 0);
  EXPECT_EQ(shape.a_stride, shape.a_transposed ? shape.m : shape.k) << "rows with gaps";
  const int64_t b_stride = shape.b_stride == 0 ? shape.n : shape.b_stride;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      const int64_t to = i * shape.c_stride + j;
      const bool f32 = shape.output == DType::kF32;
      float sum = bias == nullptr ? 0 : bias[j];
      if (shape.accumulate) sum += f32 ? At<float>(c, to) : At<BFloat16>(c, to);
      for (int64_t k = 0; k < shape.k; ++k) {
        const int64_t from = shape.a_transposed ? k * shape.a_stride + i : i * shape.a_stride + k;
        sum += At<BFloat16>(a, from) * At<BFloat16>(b, k * b_stride + j);
      }
      if (f32) {
        static_cast<float*>(c)[to] = sum;
      } else {
        static_cast<BFloat16*>(c)[to] = ToBFloat16(sum);
      }
    }
  }
  return OkStatus();
}

// As PackedMatrix keeps it: the rest of the sum padded with zeros.
std::vector<BFloat16> PaddedRest(const std::vector<BFloat16>& b, int64_t k, int64_t n) {
  const SumParts parts = SplitSum(DType::kBF16, k);
  std::vector<BFloat16> rest(kSumMultiple * n);
  std::copy(b.begin() + parts.whole * n, b.end(), rest.begin());
  return rest;
}

template <class T>
void ExpectRight(const IntegerProduct& product, MatmulShape shape, bool packed, float filling) {
  SCOPED_TRACE(std::string(DTypeName(shape.output)) + (shape.a_transposed ? " transposed" : "") +
               (packed ? " packed" : "") + (shape.accumulate ? " accumulate" : ""));
  const int64_t gap = shape.a_transposed ? 0 : 3;
  shape.a_stride = (shape.a_transposed ? shape.m : shape.k) + gap;
  shape.b_stride = packed ? 0 : shape.n;
  shape.c_stride = shape.n;
  const auto a = product.Left<BFloat16>(shape.a_transposed, gap, filling);
  const auto b = product.Right<BFloat16>(false);
  const auto rest = PaddedRest(b, shape.k, shape.n);
  std::vector<float> bias(shape.n, 2);
  const float start = shape.accumulate ? 3 : 0;
  std::vector<T> c(shape.m * shape.n, FromFloat<T>(shape.accumulate ? start : kNan));
  const MatmulRight right = {.data = b.data(), .rest = packed ? rest.data() : nullptr};
  const float* added = shape.bias ? bias.data() : nullptr;
  ASSERT_TRUE(RunPaddedSum(shape, a.data(), right, added, c.data(), Multiply).ok());
  EXPECT_EQ(product.Mismatch(c, start, added), "");
}

TEST(PaddedSum, OnlySumsOfBf16HaveARest) {
  EXPECT_EQ(SplitSum(DType::kBF16, 63).whole, 32);
  EXPECT_EQ(SplitSum(DType::kBF16, 63).rest, 31);
  EXPECT_EQ(SplitSum(DType::kBF16, 31).whole, 0);
  EXPECT_EQ(SplitSum(DType::kBF16, 2048).rest, 0);
  EXPECT_EQ(SplitSum(DType::kF32, 63).whole, 63);
}

TEST(PaddedSum, AnyLengthIsExactAndTheLibraryGetsMultiplesOnly) {
  for (int64_t k : testing::SumLengths()) {
    if (SplitSum(DType::kBF16, k).rest == 0) continue;
    SCOPED_TRACE(k);
    const int64_t m = 1 + k % 5, n = 1 + k % 7;
    const IntegerProduct product({m, k, n});
    MatmulShape shape = {.m = m, .k = k, .n = n, .input = DType::kBF16};
    for (bool packed : {false, true}) {
      shape.accumulate = packed == (k % 2 == 0);
      shape.bias = !shape.accumulate;
      shape.a_transposed = false;
      shape.output = DType::kF32;
      ExpectRight<float>(product, shape, packed, kNan);
      shape.output = DType::kBF16;
      ExpectRight<BFloat16>(product, shape, packed, kNan);
      shape.output = DType::kF32;
      shape.bias = false;
      shape.a_transposed = true;
      ExpectRight<float>(product, shape, packed, 0);
    }
  }
}

// Longer than is copied at once.
TEST(PaddedSum, RowsAreCopiedInParts) {
  constexpr int64_t kM = 400, kK = 50257, kN = 1;
  const IntegerProduct product({kM, kK, kN});
  int calls = 0;
  std::vector<BFloat16> c(kM);
  const auto a = product.Left<BFloat16>(false);
  const auto b = product.Right<BFloat16>(false);
  auto count = [&calls](const MatmulShape& shape, const void* left, const void* right,
                        const float* bias, void* to) {
    ++calls;
    EXPECT_LE(shape.m * shape.k * 2, int64_t{16} << 20);
    return Multiply(shape, left, right, bias, to);
  };
  const MatmulShape shape = {.m = kM,
                             .k = kK,
                             .n = kN,
                             .input = DType::kBF16,
                             .output = DType::kBF16,
                             .a_stride = kK,
                             .b_stride = kN,
                             .c_stride = kN};
  ASSERT_TRUE(RunPaddedSum(shape, a.data(), {.data = b.data()}, nullptr, c.data(), count).ok());
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(product.Mismatch(c, 0, nullptr), "");
}

TEST(PaddedSum, NanOfOneRowStaysInIt) {
  constexpr int64_t kM = 3, kK = 63, kN = 2;
  const IntegerProduct product({kM, kK, kN});
  auto a = product.Left<BFloat16>(false);
  for (int64_t k = 0; k < kK; ++k) a[kK + k] = ToBFloat16(kNan);
  const auto b = product.Right<BFloat16>(false);
  std::vector<float> c(kM * kN);
  const MatmulShape shape = {.m = kM,
                             .k = kK,
                             .n = kN,
                             .input = DType::kBF16,
                             .a_stride = kK,
                             .b_stride = kN,
                             .c_stride = kN};
  ASSERT_TRUE(RunPaddedSum(shape, a.data(), {.data = b.data()}, nullptr, c.data(), Multiply).ok());
  for (int64_t i = 0; i < kM * kN; ++i) {
    if (i / kN == 1) {
      EXPECT_TRUE(std::isnan(c[i]));
    } else {
      EXPECT_EQ(c[i], product.Sum(i / kN, i % kN));
    }
  }
}

}  // namespace
}  // namespace weft::kernels::cpu
