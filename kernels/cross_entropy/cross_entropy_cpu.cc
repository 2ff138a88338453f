#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
#include "kernels/cross_entropy/cross_entropy_simd.h"

namespace weft::kernels::cpu {
namespace {

Status CheckTargets(const CrossEntropyArgs& args) {
  const int64_t rows = args.logits.shape[0];
  const auto* targets = args.targets.As<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[r] == kIgnoreTarget || (targets[r] >= 0 && targets[r] < args.vocabulary)) continue;
    return InvalidError("CrossEntropy: target " + std::to_string(targets[r]) + " of row " +
                        std::to_string(r) + " is not in the vocabulary of " +
                        std::to_string(args.vocabulary));
  }
  return OkStatus();
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
  WEFT_RETURN_IF_ERROR(CheckTargets(args));
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
              row.run(at, columns, args.vocabulary, targets[r], args.grad_scale, exponentials);
        } else {
          losses[r] = 0;
          if (args.write_gradient) std::fill_n(at, columns, T{});
        }
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
