#include "kernels/cpu/parallel.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/hadamard/hadamard_check.h"

namespace weft::kernels::cpu {

Status Hadamard(const Stream& stream, const HadamardArgs& args) {
  // Elements a thread must have for a parallel region to pay.
  constexpr int64_t kGrain = 16384;
  WEFT_RETURN_IF_ERROR(CheckHadamard(stream, args));
  const float* const a = args.a.As<float>();
  const float* const b = args.b.As<float>();
  float* const y = args.y.As<float>();
  ParallelFor(args.a.shape.Elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = args.factor * (a[i] * b[i]);
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
