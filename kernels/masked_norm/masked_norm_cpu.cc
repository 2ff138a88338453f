#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/masked_norm/masked_norm.h"
#include "kernels/masked_norm/masked_norm_check.h"
#include "kernels/masked_norm/masked_norm_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

// Most parts that the sums over rows are split into.
constexpr int64_t kMaxParts = 64;

int64_t GrainRows(int64_t width) {
  return std::max<int64_t>(1, kGrain / width);
}

float Sum(const TensorView& mask) {
  const auto* first = mask.As<float>();
  return static_cast<float>(std::accumulate(first, first + mask.shape.Elements(), 0.0));
}

template <class T>
T* OrNull(const TensorView& view) {
  return view ? view.As<T>() : nullptr;
}

template <class T>
void Forward(const MaskedNormForwardArgs& args) {
  const MaskedNormLoops<T>& loops = PickMaskedNormKernels().Of<T>();
  const MaskedNormForwardRows<T> rows = {
      .residual = args.residual.As<T>(),
      .delta = OrNull<T>(args.delta),
      .residual_out = args.delta ? args.residual_out.As<T>() : nullptr,
      .weight = args.weight.As<float>(),
      .bias = OrNull<float>(args.bias),
      .mask = args.mask.As<float>(),
      .columns = Sum(args.mask),
      .epsilon = args.epsilon,
      .y = args.y.As<T>(),
      .mean = OrNull<float>(args.mean),
      .scale = args.scale.As<float>(),
  };
  const int64_t width = args.residual.shape[-1];
  ParallelFor(args.residual.shape.Rows(), GrainRows(width),
              [&](int64_t begin, int64_t end) { loops.forward(rows, begin, end, width); });
}

template <class T>
void Backward(const MaskedNormBackwardArgs& args) {
  const MaskedNormLoops<T>& loops = PickMaskedNormKernels().Of<T>();
  const MaskedNormBackwardRows<T> rows = {
      .dy = args.dy.As<T>(),
      .x = args.x.As<T>(),
      .weight = args.weight.As<float>(),
      .mask = args.mask.As<float>(),
      .columns = Sum(args.mask),
      .mean = OrNull<float>(args.mean),
      .scale = args.scale.As<float>(),
      .dresidual = OrNull<T>(args.dresidual),
      .dx = args.dx.As<T>(),
      .dweight = nullptr,
      .dbias = nullptr,
  };
  const int64_t width = args.x.shape[-1], count = args.x.shape.Rows();
  // Parts of a fixed number of rows sum on their own and are added up in order, so the result does
  // not depend on which thread had which.
  const int64_t part_rows = std::max(GrainRows(width), (count + kMaxParts - 1) / kMaxParts);
  const int64_t parts = (count + part_rows - 1) / part_rows;
  std::vector<float> sums(static_cast<size_t>(2 * parts * width), 0.0f);
  ParallelFor(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      MaskedNormBackwardRows<T> own = rows;
      own.dweight = &sums[static_cast<size_t>(2 * part * width)];
      own.dbias = own.dweight + width;
      loops.backward(own, part * part_rows, std::min((part + 1) * part_rows, count), width);
    }
  });
  auto *dweight = OrNull<float>(args.dweight), *dbias = OrNull<float>(args.dbias);
  for (int64_t part = 0; part < parts; ++part) {
    const float* own = &sums[static_cast<size_t>(2 * part * width)];
    for (int64_t c = 0; c < width && dweight != nullptr; ++c) dweight[c] += own[c];
    for (int64_t c = 0; c < width && dbias != nullptr; ++c) dbias[c] += own[width + c];
  }
}

}  // namespace

Status MaskedNormForward(const Stream& stream, const MaskedNormForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedNormForward(stream, args));
  WithFloatType(args.residual.dtype, [&]<class T>() { Forward<T>(args); });
  return OkStatus();
}

Status MaskedNormBackward(const Stream& stream, const MaskedNormBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedNormBackward(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() { Backward<T>(args); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
