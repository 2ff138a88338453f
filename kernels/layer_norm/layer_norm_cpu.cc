#include <algorithm>
#include <vector>

#include "kernels/argument_check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/layer_norm/layer_norm_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

// Most parts that the sums over rows are split into.
constexpr int64_t kMaxParts = 64;

int64_t GrainRows(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1));
}

Status CheckForward(const Stream& stream, const LayerNormForwardArgs& args) {
  const TensorView& x = args.residual;
  ArgumentCheck check(stream, "LayerNormForward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "residual has no columns");
  if (!check.status().ok()) return check.status();
  Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  check.ContiguousTensor("residual", x, x.shape, kFloatTypes)
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("bias", args.bias, columns, {DType::kF32})
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .ContiguousTensor("mean", args.mean, rows, {DType::kF32})
      .ContiguousTensor("rstd", args.rstd, rows, {DType::kF32});
  if (args.delta) {
    check.ContiguousTensor("delta", args.delta, x.shape, {x.dtype})
        .ContiguousTensor("residual_out", args.residual_out, x.shape, {x.dtype});
  }
  return check.status();
}

Status CheckBackward(const Stream& stream, const LayerNormBackwardArgs& args) {
  const TensorView& x = args.x;
  ArgumentCheck check(stream, "LayerNormBackward");
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("dy", args.dy, x.shape, {x.dtype})
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("mean", args.mean, rows, {DType::kF32})
      .ContiguousTensor("rstd", args.rstd, rows, {DType::kF32})
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (args.dweight) check.ContiguousTensor("dweight", args.dweight, columns, {DType::kF32});
  if (args.dbias) check.ContiguousTensor("dbias", args.dbias, columns, {DType::kF32});
  if (args.dresidual) check.ContiguousTensor("dresidual", args.dresidual, x.shape, {x.dtype});
  return check.status();
}

template <class T>
void Forward(const LayerNormForwardArgs& args) {
  const LayerNormLoops<T>& loops = PickLayerNormKernels().Of<T>();
  LayerNormForwardRows<T> rows = {
      .residual = args.residual.As<T>(),
      .delta = args.delta ? args.delta.As<T>() : nullptr,
      .residual_out = args.delta ? args.residual_out.As<T>() : nullptr,
      .weight = args.weight.As<float>(),
      .bias = args.bias.As<float>(),
      .epsilon = args.epsilon,
      .y = args.y.As<T>(),
      .mean = args.mean.As<float>(),
      .rstd = args.rstd.As<float>(),
  };
  int64_t width = args.residual.shape[-1];
  ParallelFor(args.residual.shape.Rows(), GrainRows(width),
              [&](int64_t begin, int64_t end) { loops.forward(rows, begin, end, width); });
}

template <class T>
void Backward(const LayerNormBackwardArgs& args) {
  const LayerNormLoops<T>& loops = PickLayerNormKernels().Of<T>();
  LayerNormBackwardRows<T> rows = {
      .dy = args.dy.As<T>(),
      .x = args.x.As<T>(),
      .weight = args.weight.As<float>(),
      .mean = args.mean.As<float>(),
      .rstd = args.rstd.As<float>(),
      .dresidual = args.dresidual ? args.dresidual.As<T>() : nullptr,
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
      LayerNormBackwardRows<T> own = rows;
      own.dweight = &sums[2 * part * width];
      own.dbias = own.dweight + width;
      loops.backward(own, part * part_rows, std::min((part + 1) * part_rows, count), width);
    }
  });
  float* dweight = args.dweight.As<float>();
  float* dbias = args.dbias.As<float>();
  for (int64_t part = 0; part < parts; ++part) {
    const float* own = &sums[2 * part * width];
    for (int64_t c = 0; c < width && dweight != nullptr; ++c) dweight[c] += own[c];
    for (int64_t c = 0; c < width && dbias != nullptr; ++c) dbias[c] += own[width + c];
  }
}

}  // namespace

Status LayerNormForward(const Stream& stream, const LayerNormForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckForward(stream, args));
  WithFloatType(args.residual.dtype, [&]<class T>() { Forward<T>(args); });
  return OkStatus();
}

Status LayerNormBackward(const Stream& stream, const LayerNormBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBackward(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() { Backward<T>(args); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
