#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/rng.h"
#include "kernels/dtype.h"

namespace weft::kernels::testing {

/// Sizes of a product c [m, n] = a [m, k] b [k, n].
struct ProductSizes {
  int64_t m, k, n;
};

/// A product of small whole numbers: bf16 holds them, and f32 all their sums, so that any order of
/// adding them up has one result, and a test needs no tolerance.
class IntegerProduct {
 public:
  explicit IntegerProduct(ProductSizes sizes)
      : sizes_(sizes), a_(sizes.m * sizes.k), b_(sizes.k * sizes.n), sums_(sizes.m * sizes.n) {
    PhiloxStream random(PhiloxKey{static_cast<uint64_t>(sizes.k), 0, 0});
    for (float& value : a_) value = Draw(random);
    for (float& value : b_) value = Draw(random);
    for (int64_t i = 0; i < sizes.m; ++i) {
      for (int64_t k = 0; k < sizes.k; ++k) {
        const float factor = a_[i * sizes.k + k];
        const float* row = b_.data() + k * sizes.n;
        float* sum = sums_.data() + i * sizes.n;
        for (int64_t j = 0; j < sizes.n; ++j) sum[j] += factor * row[j];
      }
    }
  }

  /// a as T, with `gap` times `filling` behind each row, or as its columns [k, m].
  template <class T>
  std::vector<T> Left(bool transposed, int64_t gap = 0, float filling = 0) const {
    const int64_t rows = transposed ? sizes_.k : sizes_.m;
    const int64_t columns = transposed ? sizes_.m : sizes_.k;
    std::vector<T> stored(rows * (columns + gap), FromFloat<T>(filling));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t from = transposed ? c * sizes_.k + r : r * sizes_.k + c;
        stored[r * (columns + gap) + c] = FromFloat<T>(a_[from]);
      }
    }
    return stored;
  }

  /// b as T, [k, n], or as its columns [n, k].
  template <class T>
  std::vector<T> Right(bool transposed) const {
    std::vector<T> stored(b_.size());
    for (int64_t k = 0; k < sizes_.k; ++k) {
      for (int64_t j = 0; j < sizes_.n; ++j) {
        stored[transposed ? j * sizes_.k + k : k * sizes_.n + j] =
            FromFloat<T>(b_[k * sizes_.n + j]);
      }
    }
    return stored;
  }

  /// Sum [i, j] of the product, exact.
  float Sum(int64_t i, int64_t j) const { return sums_[i * sizes_.n + j]; }

  /// Empty when c = start + a b + bias[j], rounded once to T; else the first element that is not.
  template <class T>
  std::string Mismatch(const std::vector<T>& c, float start, const float* bias) const {
    for (int64_t i = 0; i < sizes_.m; ++i) {
      for (int64_t j = 0; j < sizes_.n; ++j) {
        const float exact = start + Sum(i, j) + (bias == nullptr ? 0 : bias[j]);
        const float got = ToFloat(c[i * sizes_.n + j]);
        if (got == ToFloat(FromFloat<T>(exact))) continue;
        return "[" + std::to_string(sizes_.m) + ", " + std::to_string(sizes_.k) + "] by [" +
               std::to_string(sizes_.k) + ", " + std::to_string(sizes_.n) + "]: element " +
               std::to_string(i) + ", " + std::to_string(j) + " is " + std::to_string(got) +
               " instead of " + std::to_string(exact);
      }
    }
    return "";
  }

 private:
  static float Draw(PhiloxStream& random) { return static_cast<float>(random.Below(9)) - 4; }

  ProductSizes sizes_;
  std::vector<float> a_, b_, sums_;
};

/// Lengths of sums to test: all up to 130, and neighbours of 1024 and 2048 plus up to 64, around
/// which libraries cut sums into parts.
inline std::vector<int64_t> SumLengths() {
  std::vector<int64_t> lengths;
  for (int64_t k = 1; k <= 130; ++k) lengths.push_back(k);
  for (int64_t near : {192, 256, 512, 1024, 2048}) {
    for (int64_t more : {-33, -1, 0, 1, 31, 32, 33, 62, 63, 64, 65, 95}) {
      lengths.push_back(near + more);
    }
  }
  lengths.push_back(2200);
  return lengths;
}

}  // namespace weft::kernels::testing
