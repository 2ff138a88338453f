#include <cstdint>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

template <class T>
struct Rows {
  T* logits;
  int64_t row_stride;
  const int32_t* targets;
  int columns;
  int vocabulary;
  StepValue<float> grad_scale;
  const float* gradient_weights;  ///< or nullptr
  bool write_gradient;
  float* losses;
  int32_t* predictions;  ///< or nullptr
};

__device__ __forceinline__ float Exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  return ptx::Exp2(x * kLog2E);
}

// What one pass over some logits of a row finds: their sum of exp(logit - max), and the first place
// of the largest one.
struct Softmax {
  float max = -INFINITY;
  float sum = 0;
  int largest = 0x7fffffff;

  // Neighbours of a row, from `column` on: one look at the largest of them for all.
  template <int kCount>
  __device__ void Add(const float (&logits)[kCount], int column) {
    float most = logits[0];
    int place = 0;
#pragma unroll
    for (int k = 1; k < kCount; ++k) {
      if (logits[k] > most) {
        most = logits[k];
        place = k;
      }
    }
    // A NaN in the first place hides what follows.
    if constexpr (kCount > 1) {
      if (most != most) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) Add({logits[k]}, column + k);
        return;
      }
    }
    if (most > max) {
      sum *= Exp(max - most);
      max = most;
      largest = column + place;
    }
    // Equal infinities have a difference of NaN, and a NaN must reach the sum.
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += logits[k] == max ? 1.0f : Exp(logits[k] - max);
  }

  __device__ void Merge(float other_max, float other_sum, int other_largest) {
    if (other_max > max) {
      sum = sum * Exp(max - other_max) + other_sum;
      max = other_max;
      largest = other_largest;
    } else {
      sum += other_max == max ? other_sum : other_sum * Exp(other_max - max);
      if (other_max == max && other_largest < largest) largest = other_largest;
    }
  }

  __device__ void MergeOverWarp() {
#pragma unroll
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
      const float other_max = __shfl_xor_sync(kAllLanes, max, bits);
      const float other_sum = __shfl_xor_sync(kAllLanes, sum, bits);
      Merge(other_max, other_sum, __shfl_xor_sync(kAllLanes, largest, bits));
    }
  }
};

// A block a row. The row is read twice, the second time out of the L2 cache, where it just was.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) CrossEntropyKernel(Rows<T> a) {
  const int64_t row = blockIdx.x;
  T* logits = a.logits + row * a.row_stride;
  const int target = a.targets[row];
  const bool inside = target >= 0 && target < a.vocabulary;
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kStep = kThreads * kCount;

  Softmax own;
  if (inside || a.predictions != nullptr) {
    for (int c = thread * kCount; c < a.vocabulary; c += kStep) {
      if (c + kCount <= a.vocabulary) {
        float values[kCount];
        LoadFloats(logits + c, values);
        own.Add(values, c);
      } else {
        for (int k = c; k < a.vocabulary; ++k) own.Add({Widen(logits[k])}, k);
      }
    }
  }
  own.MergeOverWarp();
  WEFT_SHARED(maxima, float[kWarps]);
  WEFT_SHARED(sums, float[kWarps]);
  WEFT_SHARED(places, int[kWarps]);
  WEFT_SHARED(at_target, float);
  if (thread % kWarp == 0) {
    maxima[thread / kWarp] = own.max;
    sums[thread / kWarp] = own.sum;
    places[thread / kWarp] = own.largest;
  }
  // Read before any thread overwrites it with its gradient.
  if (thread == 0 && inside) at_target = Widen(logits[target]);
  __syncthreads();
  Softmax all;
  for (int w = 0; w < kWarps; ++w) all.Merge(maxima[w], sums[w], places[w]);

  if (thread == 0) {
    a.losses[row] = inside                    ? logf(all.sum) + (all.max - at_target)
                    : target == kIgnoreTarget ? 0.0f
                                              : NAN;
    if (a.predictions != nullptr) {
      // No logit but NaN is larger than minus infinity.
      a.predictions[row] = all.largest < a.vocabulary ? all.largest : 0;
    }
  }
  if (!a.write_gradient) return;
  const float grad_scale =
      a.grad_scale.Get() * (a.gradient_weights != nullptr ? a.gradient_weights[row] : 1.0f);
  const float factor = inside ? grad_scale / all.sum : 0.0f;
  const auto gradient = [&](float logit, int column) {
    if (!inside || column >= a.vocabulary) return 0.0f;
    const float p = Exp(logit - all.max) * factor;
    return column == target ? p - grad_scale : p;
  };
  for (int c = thread * kCount; c < a.columns; c += kStep) {
    if (c + kCount <= a.columns) {
      float values[kCount];
      LoadFloats(logits + c, values);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = gradient(values[k], c + k);
      StoreFloats(logits + c, values);
    } else {
      for (int k = c; k < a.columns; ++k) logits[k] = Narrow<T>(gradient(Widen(logits[k]), k));
    }
  }
}

template <class T>
struct PartRows {
  T* logits;
  int64_t row_stride;
  const int32_t* targets;
  int columns;     ///< In memory.
  int vocabulary;  ///< Real ones here.
  int first;
  int whole;  ///< Vocabulary of all ranks.
  float* found;
  int64_t rows;
  int ranks;
  float grad_scale;
  const float* gradient_weights;  ///< or nullptr
  bool write_gradient;
  float* losses;
};

// A block a row.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) MeasureLogitsPartKernel(PartRows<T> a) {
  const int64_t row = blockIdx.x;
  const T* logits = a.logits + row * a.row_stride;
  const int target = a.targets[row];
  const bool inside = target >= 0 && target < a.whole;
  const int thread = static_cast<int>(threadIdx.x);
  Softmax own;
  if (inside) {
    for (int c = thread * kCount; c < a.vocabulary; c += kThreads * kCount) {
      if (c + kCount <= a.vocabulary) {
        float values[kCount];
        LoadFloats(logits + c, values);
        own.Add(values, c);
      } else {
        for (int k = c; k < a.vocabulary; ++k) own.Add({Widen(logits[k])}, k);
      }
    }
  }
  own.MergeOverWarp();
  WEFT_SHARED(maxima, float[kWarps]);
  WEFT_SHARED(sums, float[kWarps]);
  if (thread % kWarp == 0) {
    maxima[thread / kWarp] = own.max;
    sums[thread / kWarp] = own.sum;
  }
  __syncthreads();
  if (thread != 0) return;
  Softmax all;
  for (int w = 0; w < kWarps; ++w) all.Merge(maxima[w], sums[w], 0);
  const int column = target - a.first;
  const bool here = inside && column >= 0 && column < a.vocabulary;
  a.found[row] = inside ? all.max : 0.0f;
  a.found[row + a.rows] = inside ? all.sum : 0.0f;
  a.found[row + 2 * a.rows] = here ? Widen(logits[column]) : 0.0f;
}

// A block a row; each thread puts together what the ranks found.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) CrossEntropyOfPartsKernel(PartRows<T> a) {
  const int64_t row = blockIdx.x;
  T* logits = a.logits + row * a.row_stride;
  const int target = a.targets[row];
  const bool inside = target >= 0 && target < a.whole;
  const int column = target - a.first;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t rank_stride = kLogitsPartNumbers * a.rows;
  const float* found = a.found + row;
  float max = found[0];
  for (int rank = 1; rank < a.ranks; ++rank) max = fmaxf(max, found[rank * rank_stride]);
  float sum = 0, at_target = 0;
  for (int rank = 0; rank < a.ranks; ++rank) {
    const float* of_rank = found + rank * rank_stride;
    sum += of_rank[a.rows] * Exp(of_rank[0] - max);
    at_target += of_rank[2 * a.rows];
  }
  if (thread == 0) {
    a.losses[row] = inside ? logf(sum) + (max - at_target) : target == kIgnoreTarget ? 0.0f : NAN;
  }
  if (!a.write_gradient) return;
  const float grad_scale =
      a.grad_scale * (a.gradient_weights != nullptr ? a.gradient_weights[row] : 1.0f);
  const float factor = inside ? grad_scale / sum : 0.0f;
  const auto gradient = [&](float logit, int c) {
    if (!inside || c >= a.vocabulary) return 0.0f;
    const float p = Exp(logit - max) * factor;
    return c == column ? p - grad_scale : p;
  };
  for (int c = thread * kCount; c < a.columns; c += kThreads * kCount) {
    if (c + kCount <= a.columns) {
      float values[kCount];
      LoadFloats(logits + c, values);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = gradient(values[k], c + k);
      StoreFloats(logits + c, values);
    } else {
      for (int k = c; k < a.columns; ++k) logits[k] = Narrow<T>(gradient(Widen(logits[k]), k));
    }
  }
}

template <class T>
PartRows<T> RowsOf(const TensorView& logits, const TensorView& targets, const LogitsPart& part,
                   const TensorView& found) {
  return {.logits = logits.As<T>(),
          .row_stride = logits.row_stride,
          .targets = targets.As<int32_t>(),
          .columns = static_cast<int>(logits.shape[1]),
          .vocabulary = static_cast<int>(part.columns),
          .first = static_cast<int>(part.first),
          .whole = static_cast<int>(part.vocabulary),
          .found = found.As<float>(),
          .rows = logits.shape[0],
          .ranks = static_cast<int>(found.shape[0] / kLogitsPartNumbers),
          .grad_scale = 0,
          .gradient_weights = nullptr,
          .write_gradient = false,
          .losses = nullptr};
}

const float* WeightsOf(const TensorView& weights) {
  return weights ? weights.As<float>() : nullptr;
}

template <class T>
bool Wide(const PartRows<T>& rows) {
  return Aligned16(rows.logits) && rows.row_stride % kWide<T> == 0;
}

}  // namespace

Status CrossEntropy(const Stream& stream, const CrossEntropyArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCrossEntropy(stream, args));
  const TensorView& logits = args.logits;
  return WithFloatType(logits.dtype, [&]<class T>() {
    const Rows<T> rows = {
        .logits = logits.As<T>(),
        .row_stride = logits.row_stride,
        .targets = args.targets.As<int32_t>(),
        .columns = static_cast<int>(logits.shape[1]),
        .vocabulary = static_cast<int>(args.vocabulary),
        .grad_scale = args.grad_scale,
        .gradient_weights = WeightsOf(args.gradient_weights),
        .write_gradient = args.write_gradient,
        .losses = args.losses.As<float>(),
        .predictions = args.predictions ? args.predictions.As<int32_t>() : nullptr,
    };
    const bool wide = Aligned16(rows.logits) && rows.row_stride % kWide<T> == 0;
    return Launch(stream, "CrossEntropy",
                  {.grid = {static_cast<unsigned>(logits.shape[0])}, .block = {kThreads}},
                  wide ? CrossEntropyKernel<T, kWide<T>> : CrossEntropyKernel<T, 1>, rows);
  });
}

Status MeasureLogitsPart(const Stream& stream, const MeasureLogitsPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMeasureLogitsPart(stream, args));
  return WithFloatType(args.logits.dtype, [&]<class T>() {
    const PartRows<T> rows = RowsOf<T>(args.logits, args.targets, args.part, args.found);
    return Launch(stream, "MeasureLogitsPart",
                  {.grid = {static_cast<unsigned>(rows.rows)}, .block = {kThreads}},
                  Wide(rows) ? MeasureLogitsPartKernel<T, kWide<T>> : MeasureLogitsPartKernel<T, 1>,
                  rows);
  });
}

Status CrossEntropyOfParts(const Stream& stream, const CrossEntropyOfPartsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCrossEntropyOfParts(stream, args));
  return WithFloatType(args.logits.dtype, [&]<class T>() {
    PartRows<T> rows = RowsOf<T>(args.logits, args.targets, args.part, args.found);
    rows.grad_scale = args.grad_scale;
    rows.gradient_weights = WeightsOf(args.gradient_weights);
    rows.write_gradient = args.write_gradient;
    rows.losses = args.losses.As<float>();
    return Launch(
        stream, "CrossEntropyOfParts",
        {.grid = {static_cast<unsigned>(rows.rows)}, .block = {kThreads}},
        Wide(rows) ? CrossEntropyOfPartsKernel<T, kWide<T>> : CrossEntropyOfPartsKernel<T, 1>,
        rows);
  });
}

}  // namespace weft::kernels::cuda
