#include "worker/engine/nn/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

template <class T>
void AttendHead(const T* query, const TensorView& all_keys, const TensorView& all_values,
                int64_t begin, int64_t end, int64_t column, int64_t head_dim, float scale, T* out) {
  const int64_t stride = all_keys.row_stride;
  const int64_t length = end - begin;
  const T* keys = all_keys.As<T>() + begin * stride + column;
  const T* values = all_values.As<T>() + begin * stride + column;
  std::vector<float> weights(static_cast<size_t>(length));
  float highest = -INFINITY;
  for (int64_t t = 0; t < length; ++t) {
    float score = 0;
#pragma omp simd reduction(+ : score)
    for (int64_t i = 0; i < head_dim; ++i) {
      score += ToFloat(query[i]) * ToFloat(keys[t * stride + i]);
    }
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

Status AppendKeysAndValues(Context& context, const Tensor& keys, const Tensor& values,
                           KeyValueCache& cache) {
  const int64_t count = keys.shape().Rows();
  WEFT_CHECK(cache.length + count <= cache.keys.shape().Rows(), "key-value cache is full");
  WEFT_RETURN_IF_ERROR(CopyRows(context.stream, keys, cache.keys.Rows(cache.length, count)));
  WEFT_RETURN_IF_ERROR(CopyRows(context.stream, values, cache.values.Rows(cache.length, count)));
  cache.length += count;
  return OkStatus();
}

Result<Tensor> AttendCached(Context& context, const Tensor& q, int64_t heads, int64_t kv_heads,
                            float scale, int64_t window, const KeyValueCache& cache) {
  const int64_t count = q.shape().Rows();
  const int64_t width = q.shape()[-1];
  const int64_t head_dim = width / heads;
  WEFT_ASSIGN_OR_RETURN(Tensor packed,
                        Tensor::New(context, Component::kWorkspace, q.dtype(), {count, width}));
  WEFT_RETURN_IF_ERROR(CopyRows(context.stream, q, packed));
  WEFT_ASSIGN_OR_RETURN(const HostCopy queries, HostCopy::Of(context.stream, packed));
  WEFT_ASSIGN_OR_RETURN(const HostCopy keys,
                        HostCopy::Of(context.stream, cache.keys.Rows(0, cache.length)));
  WEFT_ASSIGN_OR_RETURN(const HostCopy values,
                        HostCopy::Of(context.stream, cache.values.Rows(0, cache.length)));
  WEFT_ASSIGN_OR_RETURN(Tensor out,
                        Tensor::New(context, Component::kWorkspace, q.dtype(), {count, width}));
  WEFT_RETURN_IF_ERROR(FillOnHost(context.stream, out, [&](const TensorView& to) {
    kernels::cpu::WithFloatType(q.dtype(), [&]<class T>() {
      kernels::cpu::ParallelFor(count * heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t row = item / heads;
          const int64_t head = item % heads;
          const int64_t last = cache.length - count + row + 1;
          const int64_t first = window > 0 ? std::max<int64_t>(last - window, 0) : 0;
          const int64_t at = row * width + head * head_dim;
          AttendHead(queries.view().As<T>() + at, keys.view(), values.view(), first, last,
                     head * kv_heads / heads * head_dim, head_dim, scale, to.As<T>() + at);
        }
      });
    });
  }));
  return out;
}

}  // namespace weft::engine
