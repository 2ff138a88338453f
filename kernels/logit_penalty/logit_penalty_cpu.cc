#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/logit_penalty/logit_penalty.h"
#include "kernels/logit_penalty/logit_penalty_check.h"

namespace weft::kernels::cpu {
namespace {

/// Returns the sum of the squares of `count` logits; several sums, which compilers vectorise.
template <class T>
float PenalizeRow(const T* logits, T* gradient, int64_t count, float factor) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  const auto element = [&](int64_t c, float& sum) {
    const float logit = ToFloat(logits[c]);
    sum += logit * logit;
    gradient[c] = FromFloat<T>(ToFloat(gradient[c]) + factor * logit);
  };
  int64_t c = 0;
  for (; c + kSums <= count; c += kSums) {
    for (int64_t k = 0; k < kSums; ++k) element(c + k, sums[k]);
  }
  for (; c < count; ++c) element(c, sums[0]);
  float sum = 0;
  for (const float each : sums) sum += each;
  return sum;
}

}  // namespace

Status LogitPenalty(const Stream& stream, const LogitPenaltyArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLogitPenalty(stream, args));
  const auto* targets = args.targets.As<int32_t>();
  auto* squares = args.squares.As<float>();
  const float factor = 2 * (args.grad_scale.Get() * args.factor);
  WithFloatType(args.logits.dtype, [&]<class T>() {
    ParallelFor(args.logits.shape[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        squares[r] = 0;
        if (targets[r] == kIgnoreTarget) continue;
        squares[r] = PenalizeRow(args.logits.As<T>() + r * args.logits.row_stride,
                                 args.gradient.As<T>() + r * args.gradient.row_stride,
                                 args.vocabulary, factor);
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
