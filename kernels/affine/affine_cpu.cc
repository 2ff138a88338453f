#include <algorithm>
#include <vector>

#include "kernels/affine/affine.h"
#include "kernels/affine/affine_check.h"
#include "kernels/affine/affine_simd.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

// Most parts that the sums over rows are split into.
constexpr int64_t kMaxParts = 64;

int64_t GrainRows(int64_t width) {
  return std::max<int64_t>(1, kGrain / width);
}

// One number for each column, or none.
std::vector<float> Columns(const TensorView& view, int64_t width) {
  if (!view) return {};
  const float* from = view.As<float>();
  const auto size = static_cast<size_t>(width);
  if (view.shape.Elements() == 1) return std::vector<float>(size, from[0]);
  return std::vector<float>(from, from + width);
}

const float* DataOrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

// Adds the parts in order, and their columns too when there is one sum for all.
void AddParts(const std::vector<float>& sums, int64_t width, const TensorView& to) {
  float* out = to.As<float>();
  const bool one = to.shape.Elements() == 1;
  double total = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (one) {
      total += sums[i];
    } else {
      out[i % static_cast<size_t>(width)] += sums[i];
    }
  }
  if (one) out[0] += static_cast<float>(total);
}

template <class T>
void Backward(const AffineBackwardArgs& args) {
  const AffineLoops<T>& loops = PickAffineKernels().Of<T>();
  const int64_t width = args.dy.shape[-1], count = args.dy.shape.Rows();
  const std::vector<float> scale = Columns(args.scale, width);
  const AffineBackwardRows<T> rows = {.dy = args.dy.As<T>(),
                                      .x = args.dscale ? args.x.As<T>() : nullptr,
                                      .scale = DataOrNull(scale),
                                      .dx = args.dx ? args.dx.As<T>() : nullptr,
                                      .dscale = nullptr,
                                      .dshift = nullptr};
  // Parts of a fixed number of rows sum on their own and are added up in order, so the result does
  // not depend on which thread had which.
  const int64_t part_rows = std::max(GrainRows(width), (count + kMaxParts - 1) / kMaxParts);
  const int64_t parts = (count + part_rows - 1) / part_rows;
  const auto room = static_cast<size_t>(parts * width);
  std::vector<float> dscale(args.dscale ? room : 0, 0.0f);
  std::vector<float> dshift(args.dshift ? room : 0, 0.0f);
  ParallelFor(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      AffineBackwardRows<T> own = rows;
      if (args.dscale) own.dscale = &dscale[part * width];
      if (args.dshift) own.dshift = &dshift[part * width];
      loops.backward(own, part * part_rows, std::min((part + 1) * part_rows, count), width);
    }
  });
  if (args.dscale) AddParts(dscale, width, args.dscale);
  if (args.dshift) AddParts(dshift, width, args.dshift);
}

}  // namespace

Status AffineForward(const Stream& stream, const AffineForwardArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(CheckAffineForward(stream, args));
  const int64_t width = x.shape[-1];
  const std::vector<float> scale = Columns(args.scale, width), shift = Columns(args.shift, width);
  WithFloatType(x.dtype, [&]<class T>() {
    const AffineForwardRows<T> rows = {x.As<T>(), DataOrNull(scale), DataOrNull(shift),
                                       args.y.As<T>()};
    const AffineLoops<T>& loops = PickAffineKernels().Of<T>();
    ParallelFor(x.shape.Rows(), GrainRows(width),
                [&](int64_t begin, int64_t end) { loops.forward(rows, begin, end, width); });
  });
  return OkStatus();
}

Status AffineBackward(const Stream& stream, const AffineBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAffineBackward(stream, args));
  WithFloatType(args.dy.dtype, [&]<class T>() { Backward<T>(args); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
