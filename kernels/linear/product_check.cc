#include "kernels/linear/product_check.h"

#include <cstdint>
#include <vector>

namespace weft::kernels::cpu {
namespace {

// Small whole numbers in an order without a short period.
float Number(int64_t i) {
  return static_cast<float>(i * 7919 % 1009 % 9 - 4);
}

std::vector<BFloat16> Numbers(int64_t count, int64_t first) {
  std::vector<BFloat16> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) numbers[i] = ToBFloat16(Number(first + i));
  return numbers;
}

// A weight's gradient (a transposed, added to what is there) or a layer's output.
std::string CheckProduct(int64_t m, int64_t k, int64_t n, bool transposed,
                         const ComputeProduct& compute) {
  const MatmulShape shape = {.m = m,
                             .k = k,
                             .n = n,
                             .input = DType::kBF16,
                             .output = DType::kF32,
                             .a_stride = transposed ? m : k,
                             .a_transposed = transposed,
                             .b_stride = n,
                             .c_stride = n,
                             .accumulate = transposed};
  const std::vector<BFloat16> a = Numbers(m * k, 0), b = Numbers(k * n, 17);
  const float start = transposed ? 5.0f : 0.0f;
  std::vector<float> c(static_cast<size_t>(m * n), start);
  const Status status = compute(shape, a.data(), {.data = b.data()}, nullptr, c.data());
  if (!status.ok()) return status.ToString();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = start;
      for (int64_t s = 0; s < k; ++s) {
        sum += ToFloat(a[transposed ? s * m + i : i * k + s]) * ToFloat(b[s * n + j]);
      }
      if (c[i * n + j] == sum) continue;
      return "the product of bf16 matrices [" + std::to_string(m) + ", " + std::to_string(k) +
             "] and [" + std::to_string(k) + ", " + std::to_string(n) + "] has " +
             std::to_string(c[i * n + j]) + " instead of " + std::to_string(sum) + " at " +
             std::to_string(i) + ", " + std::to_string(j);
    }
  }
  return "";
}

}  // namespace

std::string CheckProducts(const ComputeProduct& compute) {
  for (const bool transposed : {true, false}) {
    for (const int64_t k : {63, 64, 100}) {
      const std::string wrong = CheckProduct(99, k, 72, transposed, compute);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace weft::kernels::cpu
