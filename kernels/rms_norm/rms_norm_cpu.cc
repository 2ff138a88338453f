#include <algorithm>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm/rms_norm_check.h"
#include "kernels/rms_norm/rms_norm_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

// Most parts that the sums over rows are split into.
constexpr int64_t kMaxParts = 64;

int64_t GrainRows(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1));
}

template <class T>
void Forward(const RmsNormForwardArgs& args) {
  const RmsNormLoops<T>& loops = PickRmsNormKernels().Of<T>();
  RmsNormForwardRows<T> rows = {
      .residual = args.residual.As<T>(),
      .delta = args.delta ? args.delta.As<T>() : nullptr,
      .residual_out = args.delta ? args.residual_out.As<T>() : nullptr,
      .weight = args.weight.As<float>(),
      .epsilon = args.epsilon,
      .y = args.y.As<T>(),
      .rrms = args.rrms.As<float>(),
  };
  int64_t width = args.residual.shape[-1];
  ParallelFor(args.residual.shape.Rows(), GrainRows(width),
              [&](int64_t begin, int64_t end) { loops.forward(rows, begin, end, width); });
}

template <class T>
void Backward(const RmsNormBackwardArgs& args) {
  const RmsNormLoops<T>& loops = PickRmsNormKernels().Of<T>();
  RmsNormBackwardRows<T> rows = {
      .dy = args.dy.As<T>(),
      .x = args.x.As<T>(),
      .weight = args.weight.As<float>(),
      .rrms = args.rrms.As<float>(),
      .dresidual = args.dresidual ? args.dresidual.As<T>() : nullptr,
      .dx = args.dx.As<T>(),
      .dweight = nullptr,
  };
  const int64_t width = args.x.shape[-1], count = args.x.shape.Rows();
  // Parts of a fixed number of rows sum on their own and are added up in order, so the result does
  // not depend on which thread had which.
  const int64_t part_rows = std::max(GrainRows(width), (count + kMaxParts - 1) / kMaxParts);
  const int64_t parts = (count + part_rows - 1) / part_rows;
  std::vector<float> sums(static_cast<size_t>(parts * width), 0.0f);
  ParallelFor(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      RmsNormBackwardRows<T> own = rows;
      own.dweight = &sums[part * width];
      loops.backward(own, part * part_rows, std::min((part + 1) * part_rows, count), width);
    }
  });
  if (!args.dweight) return;
  float* dweight = args.dweight.As<float>();
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t c = 0; c < width; ++c) dweight[c] += sums[part * width + c];
  }
}

}  // namespace

Status RmsNormForward(const Stream& stream, const RmsNormForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckRmsNormForward(stream, args));
  WithFloatType(args.residual.dtype, [&]<class T>() { Forward<T>(args); });
  return OkStatus();
}

Status RmsNormBackward(const Stream& stream, const RmsNormBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckRmsNormBackward(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() { Backward<T>(args); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
