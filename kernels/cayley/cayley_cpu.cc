#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cayley/cayley.h"
#include "kernels/cayley/cayley_check.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

/// A square matrix, row after row.
using Square = std::vector<float>;

template <class T>
Square Skew(const T* above, int64_t size) {
  Square q(static_cast<size_t>(size * size), 0.0f);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = i + 1; j < size; ++j, ++above) {
      const float value = ToFloat(*above);
      q[i * size + j] = value;
      q[j * size + i] = -value;
    }
  }
  return q;
}

/// c = diagonal I + a b.
void Product(const float* a, const float* b, float diagonal, int64_t size, float* c) {
  for (int64_t i = 0; i < size; ++i) {
    float* const row = c + i * size;
    std::fill_n(row, size, 0.0f);
    row[i] = diagonal;
    for (int64_t k = 0; k < size; ++k) {
      const float factor = a[i * size + k];
      const float* const from = b + k * size;
      for (int64_t j = 0; j < size; ++j) row[j] += factor * from[j];
    }
  }
}

/// c += a bᵀ.
void AddProductTransposed(const Square& a, const Square& b, int64_t size, Square& c) {
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < size; ++k) sum += a[i * size + k] * b[j * size + k];
      c[i * size + j] += sum;
    }
  }
}

/// The series from its end: P1 = 2 I + Q, P2 = 2 I + Q P1, P3 = 2 I + Q P2, R - I = Q P3.
struct Series {
  Square q, first, second, third;

  Series(Square skew, int64_t size)
      : q(std::move(skew)), first(q), second(q.size()), third(q.size()) {
    for (int64_t i = 0; i < size; ++i) first[i * size + i] += 2;
    Product(q.data(), first.data(), 2, size, second.data());
    Product(q.data(), second.data(), 2, size, third.data());
  }
};

/// d = -q d: of a product q x with the skew-symmetric q, the gradient of x from that of the
/// product.
void BackThroughSkew(const Square& q, int64_t size, Square& d) {
  Square product(d.size());
  Product(q.data(), d.data(), 0, size, product.data());
  for (size_t i = 0; i < d.size(); ++i) d[i] = -product[i];
}

}  // namespace

Status CayleyForward(const Stream& stream, const CayleyForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCayleyForward(stream, args));
  const int64_t size = args.r.shape[1], above = args.q.shape[1];
  WithFloatType(args.q.dtype, [&]<class T>() {
    ParallelForDynamic(args.q.shape[0], [&](int64_t block) {
      const Series series(Skew(args.q.As<T>() + block * above, size), size);
      Product(series.q.data(), series.third.data(), 0, size,
              args.r.As<float>() + block * size * size);
    });
  });
  return OkStatus();
}

Status CayleyBackward(const Stream& stream, const CayleyBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCayleyBackward(stream, args));
  const int64_t size = args.dr.shape[1], above = args.q.shape[1];
  WithFloatType(args.q.dtype, [&]<class T>() {
    ParallelForDynamic(args.q.shape[0], [&](int64_t block) {
      const Series series(Skew(args.q.As<T>() + block * above, size), size);
      const float* const dr = args.dr.As<float>() + block * size * size;
      Square d(dr, dr + size * size), dskew(d.size(), 0.0f);
      for (const Square* factor : {&series.third, &series.second, &series.first}) {
        AddProductTransposed(d, *factor, size, dskew);
        BackThroughSkew(series.q, size, d);
      }
      float* to = args.dq.As<float>() + block * above;
      for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = i + 1; j < size; ++j, ++to) {
          const int64_t upper = i * size + j, lower = j * size + i;
          const float gradient = dskew[upper] + d[upper] - dskew[lower] - d[lower];
          *to = args.accumulate ? *to + gradient : gradient;
        }
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
