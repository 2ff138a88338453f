#include <cstdint>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.h"
#include "kernels/logit_penalty/logit_penalty.h"
#include "kernels/logit_penalty/logit_penalty_check.h"

namespace weft::kernels::cuda {
namespace {

template <class T>
struct Rows {
  const T* logits;
  int64_t logits_stride;
  T* gradient;
  int64_t gradient_stride;
  const int32_t* targets;
  int vocabulary;
  StepValue<float> grad_scale;
  float factor;
  float* squares;
};

// A block a row.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) LogitPenaltyKernel(Rows<T> a) {
  const int64_t row = blockIdx.x;
  const T* logits = a.logits + row * a.logits_stride;
  T* gradient = a.gradient + row * a.gradient_stride;
  const bool counts = a.targets[row] != kIgnoreTarget;
  const float factor = 2 * (a.grad_scale.Get() * a.factor);
  float sum[1] = {0};
  for (int c = static_cast<int>(threadIdx.x); counts && c < a.vocabulary; c += kBlockThreads) {
    const float logit = Widen(logits[c]);
    sum[0] += logit * logit;
    gradient[c] = Narrow<T>(Widen(gradient[c]) + factor * logit);
  }
  BlockSum(sum);
  if (threadIdx.x == 0) a.squares[row] = sum[0];
}

template <class T>
Status Run(const Stream& stream, const LogitPenaltyArgs& args) {
  const int64_t rows = args.logits.shape[0];
  if (rows == 0) return OkStatus();
  const Rows<T> a = {args.logits.As<T>(),
                     args.logits.row_stride,
                     args.gradient.As<T>(),
                     args.gradient.row_stride,
                     args.targets.As<int32_t>(),
                     static_cast<int>(args.vocabulary),
                     args.grad_scale,
                     args.factor,
                     args.squares.As<float>()};
  return Launch(stream, "LogitPenalty",
                {.grid = {static_cast<unsigned>(rows)}, .block = {kBlockThreads}},
                LogitPenaltyKernel<T>, a);
}

}  // namespace

Status LogitPenalty(const Stream& stream, const LogitPenaltyArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLogitPenalty(stream, args));
  switch (args.logits.dtype) {
    case DType::kBF16:
      return Run<BFloat16>(stream, args);
    case DType::kF16:
      return Run<Half>(stream, args);
    default:
      return Run<float>(stream, args);
  }
}

}  // namespace weft::kernels::cuda
