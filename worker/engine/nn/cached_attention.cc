#include "worker/engine/nn/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

char* RowBytes(const Tensor& matrix, int64_t row) {
  const TensorView& view = matrix.view();
  return static_cast<char*>(view.data) +
         static_cast<size_t>(row * view.row_stride) * DTypeSize(view.dtype);
}

template <class T>
void AttendHead(const T* query, const KeyValueCache& cache, int64_t begin, int64_t end,
                int64_t column, int64_t head_dim, float scale, T* out) {
  const int64_t stride = cache.keys.view().row_stride;
  const int64_t length = end - begin;
  const T* keys = cache.keys.As<T>() + begin * stride + column;
  const T* values = cache.values.As<T>() + begin * stride + column;
  std::vector<float> weights(static_cast<size_t>(length));
  float highest = -INFINITY;
  for (int64_t t = 0; t < length; ++t) {
    float score = 0;
    for (int64_t i = 0; i < head_dim; ++i)
      score += ToFloat(query[i]) * ToFloat(keys[t * stride + i]);
    weights[t] = score * scale;
    highest = std::max(highest, weights[t]);
  }
  std::vector<float> sums(static_cast<size_t>(head_dim), 0.0f);
  float total = 0;
  for (int64_t t = 0; t < length; ++t) {
    const float weight = std::exp(weights[t] - highest);
    total += weight;
    for (int64_t i = 0; i < head_dim; ++i) sums[i] += weight * ToFloat(values[t * stride + i]);
  }
  for (int64_t i = 0; i < head_dim; ++i) out[i] = FromFloat<T>(sums[i] / total);
}

}  // namespace

void AppendKeysAndValues(const Tensor& keys, const Tensor& values, KeyValueCache& cache) {
  const int64_t count = keys.shape().Rows();
  WEFT_CHECK(cache.length + count <= cache.keys.shape().Rows(), "key-value cache is full");
  const size_t bytes = static_cast<size_t>(keys.shape()[-1]) * DTypeSize(keys.dtype());
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(RowBytes(cache.keys, cache.length + row), RowBytes(keys, row), bytes);
    std::memcpy(RowBytes(cache.values, cache.length + row), RowBytes(values, row), bytes);
  }
  cache.length += count;
}

Result<Tensor> AttendCached(Context& context, const Tensor& q, int64_t heads, int64_t kv_heads,
                            float scale, int64_t window, const KeyValueCache& cache) {
  const int64_t count = q.shape().Rows();
  const int64_t width = q.shape()[-1];
  const int64_t head_dim = width / heads;
  WEFT_ASSIGN_OR_RETURN(Tensor out,
                        Tensor::New(context, Component::kWorkspace, q.dtype(), {count, width}));
  kernels::cpu::WithFloatType(q.dtype(), [&]<class T>() {
    kernels::cpu::ParallelFor(count * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / heads;
        const int64_t head = item % heads;
        const int64_t last = cache.length - count + row + 1;
        const int64_t first = window > 0 ? std::max<int64_t>(last - window, 0) : 0;
        AttendHead(reinterpret_cast<const T*>(RowBytes(q, row)) + head * head_dim, cache, first,
                   last, head * kv_heads / heads * head_dim, head_dim, scale,
                   reinterpret_cast<T*>(RowBytes(out, row)) + head * head_dim);
      }
    });
  });
  return out;
}

}  // namespace weft::engine
