#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
#include "kernels/cross_entropy/cross_entropy_simd.h"

namespace weft::kernels::cpu {
namespace {

Status CheckTargets(const char* op, const TensorView& view, int64_t vocabulary) {
  const auto* targets = view.As<int32_t>();
  for (int64_t r = 0; r < view.shape[0]; ++r) {
    if (targets[r] == kIgnoreTarget || (targets[r] >= 0 && targets[r] < vocabulary)) continue;
    return InvalidError(std::string(op) + ": target " + std::to_string(targets[r]) + " of row " +
                        std::to_string(r) + " is not in the vocabulary of " +
                        std::to_string(vocabulary));
  }
  return OkStatus();
}

/// What the ranks found of a row, put together.
struct FoundRow {
  float largest = 0;
  float sum = 0;
  float at_target = 0;
};

FoundRow Merge(const TensorView& found, int64_t row) {
  const int64_t rows = found.shape[1], ranks = found.shape[0] / kLogitsPartNumbers;
  const float* numbers = found.As<float>() + row;
  const int64_t rank_stride = kLogitsPartNumbers * rows;
  FoundRow merged = {.largest = numbers[0]};
  for (int64_t rank = 1; rank < ranks; ++rank) {
    merged.largest = std::max(merged.largest, numbers[rank * rank_stride]);
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* of_rank = numbers + rank * rank_stride;
    merged.sum += of_rank[rows] * std::exp(of_rank[0] - merged.largest);
    merged.at_target += of_rank[2 * rows];
  }
  return merged;
}

/// grad_scale times the weight of the row.
float ScaleOf(float grad_scale, const TensorView& weights, int64_t row) {
  return weights ? grad_scale * weights.As<float>()[row] : grad_scale;
}

template <class T>
int32_t Largest(const T* logits, int64_t count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i) {
    if (ToFloat(logits[i]) > ToFloat(logits[best])) best = i;
  }
  return best;
}

}  // namespace

Status CrossEntropy(const Stream& stream, const CrossEntropyArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCrossEntropy(stream, args));
  WEFT_RETURN_IF_ERROR(CheckTargets("CrossEntropy", args.targets, args.vocabulary));
  const TensorView& logits = args.logits;
  int64_t columns = logits.shape[1];
  const auto* targets = args.targets.As<int32_t>();
  auto* losses = args.losses.As<float>();
  WithFloatType(logits.dtype, [&]<class T>() {
    const CrossEntropyRow<T>& row = PickCrossEntropyKernels().Of<T>();
    ParallelFor(logits.shape[0], 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(args.write_gradient ? args.vocabulary : 0);
      float* exponentials = args.write_gradient ? scratch.data() : nullptr;
      for (int64_t r = begin; r < end; ++r) {
        T* at = logits.As<T>() + r * logits.row_stride;
        if (args.predictions) args.predictions.As<int32_t>()[r] = Largest(at, args.vocabulary);
        if (targets[r] != kIgnoreTarget) {
          losses[r] =
              row.run(at, columns, args.vocabulary, targets[r],
                      ScaleOf(args.grad_scale.Get(), args.gradient_weights, r), exponentials);
        } else {
          losses[r] = 0;
          if (args.write_gradient) std::fill_n(at, columns, T{});
        }
      }
    });
  });
  return OkStatus();
}

Status MeasureLogitsPart(const Stream& stream, const MeasureLogitsPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMeasureLogitsPart(stream, args));
  const LogitsPart& part = args.part;
  WEFT_RETURN_IF_ERROR(CheckTargets("MeasureLogitsPart", args.targets, part.vocabulary));
  const TensorView& logits = args.logits;
  const int64_t rows = logits.shape[0];
  const auto* targets = args.targets.As<int32_t>();
  auto* largest = args.found.As<float>();
  WithFloatType(logits.dtype, [&]<class T>() {
    const CrossEntropyRow<T>& row = PickCrossEntropyKernels().Of<T>();
    ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* sum = largest + rows + r;
        float* at_target = sum + rows;
        largest[r] = *sum = *at_target = 0;
        if (targets[r] == kIgnoreTarget) continue;
        const T* at = logits.As<T>() + r * logits.row_stride;
        row.measure(at, part.columns, largest + r, sum);
        const int64_t column = targets[r] - part.first;
        if (column >= 0 && column < part.columns) *at_target = ToFloat(at[column]);
      }
    });
  });
  return OkStatus();
}

Status CrossEntropyOfParts(const Stream& stream, const CrossEntropyOfPartsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCrossEntropyOfParts(stream, args));
  const LogitsPart& part = args.part;
  WEFT_RETURN_IF_ERROR(CheckTargets("CrossEntropyOfParts", args.targets, part.vocabulary));
  const TensorView& logits = args.logits;
  const int64_t columns = logits.shape[1];
  const auto* targets = args.targets.As<int32_t>();
  auto* losses = args.losses.As<float>();
  WithFloatType(logits.dtype, [&]<class T>() {
    const CrossEntropyRow<T>& row = PickCrossEntropyKernels().Of<T>();
    ParallelFor(logits.shape[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* at = logits.As<T>() + r * logits.row_stride;
        if (targets[r] == kIgnoreTarget) {
          losses[r] = 0;
          if (args.write_gradient) std::fill_n(at, columns, T{});
          continue;
        }
        const FoundRow found = Merge(args.found, r);
        losses[r] = std::log(found.sum) + (found.largest - found.at_target);
        if (!args.write_gradient) continue;
        const int64_t column = targets[r] - part.first;
        const bool here = column >= 0 && column < part.columns;
        const float grad_scale = ScaleOf(args.grad_scale, args.gradient_weights, r);
        row.softmax(at, columns, part.columns, found.largest, grad_scale / found.sum);
        if (!here) continue;
        // Once more for this one, so that it is rounded once.
        const float share = std::exp(found.at_target - found.largest) / found.sum;
        at[column] = FromFloat<T>(grad_scale * (share - 1.0f));
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
