// Products of the GEMM library, each in a child process: where it dies, the test fails.
#include "kernels/linear/matmul.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/testing/integer_product.h"

namespace weft::kernels::cpu {
namespace {

using testing::IntegerProduct;
using testing::ProductSizes;

constexpr size_t kLengthsEach = 100;  // of one child process
constexpr int64_t kLongestOnAmx = 2200;

// A failed call's message, or the first element that is wrong.
template <class T>
std::string Run(const IntegerProduct& product, MatmulShape shape, const void* a,
                const MatmulRight& b, float start) {
  shape.c_stride = shape.n;
  std::vector<float> bias(shape.n, 2);
  const float* added = shape.bias ? bias.data() : nullptr;
  std::vector<T> c(shape.m * shape.n, FromFloat<T>(start));
  shape.accumulate = start != 0;
  shape.output = kDTypeOf<T>;
  const Status status = Matmul(shape, a, b, added, c.data());
  return status.ok() ? product.Mismatch(c, start, added) : status.ToString();
}

// The products of a linear layer whose sums are `sizes.k` long: of its weight's gradient, of its
// output and of its input's gradient, by a packed and by a stored weight.
template <class T>
std::string Products(ProductSizes sizes) {
  const auto [m, k, n] = sizes;
  const IntegerProduct product(sizes);
  MatmulShape shape = {.m = m, .k = k, .n = n, .input = kDTypeOf<T>};
  const std::vector<T> b = product.Right<T>(false), b_columns = product.Right<T>(true);

  const std::vector<T> columns = product.Left<T>(true);
  shape.a_transposed = true;
  shape.a_stride = m;
  shape.b_stride = n;
  std::string wrong = Run<float>(product, shape, columns.data(), {.data = b.data()}, 3);
  if (!wrong.empty()) return "weight gradient " + wrong;

  const std::vector<T> a = product.Left<T>(false);
  shape.a_transposed = false;
  shape.a_stride = k;
  wrong = Run<T>(product, shape, a.data(), {.data = b.data()}, 0);
  if (!wrong.empty()) return "stored weight " + wrong;

  PackedMatrix packed;
  Status status = packed.Reset(k, n, kDTypeOf<T>);
  if (status.ok()) status = packed.Pack(b_columns.data(), kDTypeOf<T>, 1, k);
  if (!status.ok()) return status.ToString();
  shape.b_stride = 0;
  shape.bias = true;
  wrong = Run<T>(product, shape, a.data(), packed.view(), 0);
  if (!wrong.empty()) return "packed weight " + wrong;
  shape.bias = false;
  wrong = Run<T>(product, shape, a.data(), packed.view(), 3);
  return wrong.empty() ? "" : "packed weight, accumulating " + wrong;
}

// Sizes of products whose sums are `k` long.
using SizesOfLength = std::vector<ProductSizes> (*)(int64_t k);

// Within 7 * 7 * 32 lengths every two of these sides meet every rest of 32. Four lengths in a row
// have the same sides: oneDNN compiles most products once for all of them.
std::vector<ProductSizes> OddSides(int64_t k) {
  constexpr std::array<int64_t, 7> kSides = {1, 17, 63, 99, 7, 135, 33};
  return {ProductSizes{kSides[k / 4 % 7], k, kSides[k / 28 % 7]}};
}

std::vector<ProductSizes> AnySides(int64_t k) {
  constexpr std::array<int64_t, 12> kSides = {1, 8, 24, 36, 50, 72, 99, 100, 112, 135, 17, 63};
  std::vector<ProductSizes> sizes = OddSides(k);
  const int64_t pair = 5 * k + 6;
  sizes.push_back({kSides[pair % 12], k, kSides[(pair / 3 + 7) % 12]});
  // oneDNN 2.6.3 multiplies these wrongly on AMX.
  if (k == 63 || k == 1087 || k == 2111) {
    sizes.push_back({99, k, 112});
    sizes.push_back({99, k, 72});
  }
  return sizes;
}

// Ends the process: with 0 when all products are right, else after a line about the first that is
// not. The last line says what was computed when the library died.
template <class T>
[[noreturn]] void RunLengths(const std::vector<int64_t>& lengths, SizesOfLength sizes_of,
                             int threads) {
  SetThreads(threads);
  for (int64_t k : lengths) {
    for (const ProductSizes& sizes : sizes_of(k)) {
      std::fprintf(stderr, "[%ld, %ld] by [%ld, %ld]\n", sizes.m, k, k, sizes.n);
      const std::string wrong = Products<T>(sizes);
      if (wrong.empty()) continue;
      std::fprintf(stderr, "wrong: %s\n", wrong.c_str());
      std::exit(1);
    }
  }
  std::exit(0);
}

template <class T>
void ExpectAllLengths(const std::vector<int64_t>& all, SizesOfLength sizes_of) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int threads : {1, 2}) {
    for (size_t first = 0; first < all.size(); first += kLengthsEach) {
      const size_t last = std::min(first + kLengthsEach, all.size());
      const std::vector<int64_t> lengths(all.begin() + static_cast<std::ptrdiff_t>(first),
                                         all.begin() + static_cast<std::ptrdiff_t>(last));
      EXPECT_EXIT(RunLengths<T>(lengths, sizes_of, threads), ::testing::ExitedWithCode(0), "")
          << threads << " threads";
    }
  }
}

TEST(MatmulDeathTest, SumsOfAnyLengthAreExactInF32) {
  ExpectAllLengths<float>(testing::SumLengths(), AnySides);
}

TEST(MatmulDeathTest, SumsOfAnyLengthAreExactInBf16) {
  if (ProcessIsa() < Isa::kAvx512Bf16) GTEST_SKIP() << "no instructions for bf16";
  ASSERT_TRUE(MatmulHasBf16()) << "the log says what it multiplies wrongly";
  ExpectAllLengths<BFloat16>(testing::SumLengths(), AnySides);
}

// A long sweep for AMX only, where oneDNN has been wrong.
TEST(MatmulDeathTest, SumsOfEveryLengthAreExactInBf16OnAmx) {
  if (ProcessIsa() < Isa::kAmx) GTEST_SKIP() << "no AMX";
  ASSERT_TRUE(MatmulHasBf16()) << "the log says what it multiplies wrongly";
  std::vector<int64_t> lengths(kLongestOnAmx);
  std::iota(lengths.begin(), lengths.end(), int64_t{1});
  ExpectAllLengths<BFloat16>(lengths, OddSides);
}

}  // namespace
}  // namespace weft::kernels::cpu
