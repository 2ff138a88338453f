#include "kernels/cuda/norm.h"
#include "kernels/cuda/row_map.h"
#include "kernels/norm_part/norm_part.h"
#include "kernels/norm_part/norm_part_check.h"

namespace weft::kernels::cuda {
namespace {

/// Mean and 1 / deviation of a row, or 0 and 1 / RMS, of what its parts have found (Chan et al.
/// 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"), and the norm
/// of the columns here.
template <bool kCentered, class T>
struct ApplyMap {
  const T* x;
  const float* weight;
  const float* bias;
  float epsilon;
  const float* found;
  int parts;
  T* y;
  float* mean;
  float* scale;
  int64_t rows;
  int width;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    constexpr int kNumbers = kCentered ? 2 : 1;
    const auto at = [&](int part, int number) {
      return found[(int64_t{part} * kNumbers + number) * rows + row];
    };
    float row_mean = 0, squares = 0;
    if constexpr (kCentered) {
      for (int part = 0; part < parts; ++part) row_mean += at(part, 0);
      row_mean /= static_cast<float>(parts);
    }
    for (int part = 0; part < parts; ++part) {
      squares += at(part, kNumbers - 1);
      if constexpr (kCentered) {
        const float apart = at(part, 0) - row_mean;
        squares += static_cast<float>(width) * apart * apart;
      }
    }
    const float row_scale =
        rsqrtf(squares / (static_cast<float>(parts) * static_cast<float>(width)) + epsilon);
    float values[kCount], weights[kCount], beside[kCount] = {};
    LoadFloats(x + row * width + column, values);
    LoadFloats(weight + column, weights);
    if constexpr (kCentered) LoadFloats(bias + column, beside);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      values[k] = (values[k] - row_mean) * row_scale * weights[k] + beside[k];
    }
    StoreFloats(y + row * width + column, values);
    if (column > 0) return;
    if constexpr (kCentered) mean[row] = row_mean;
    scale[row] = row_scale;
  }
};

template <class T>
struct DifferentiateMap {
  const T* dy;
  const T* x;
  const float* weight;
  const float* mean;  ///< nullptr for RMS norms.
  const float* scale;
  float all;  ///< Columns of all parts.
  const float* sums;
  const T* dresidual;  ///< or nullptr
  T* dx;
  int64_t rows;
  int width;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    const float row_mean = mean != nullptr ? mean[row] : 0.0f, row_scale = scale[row];
    const float mean_g = mean != nullptr ? sums[row] / all : 0.0f;
    const float mean_gx = sums[(mean != nullptr ? rows : 0) + row] / all;
    const int64_t at = row * width + column;
    float values[kCount], gradients[kCount], weights[kCount], beside[kCount] = {};
    LoadFloats(x + at, values);
    LoadFloats(dy + at, gradients);
    LoadFloats(weight + column, weights);
    if (dresidual != nullptr) LoadFloats(dresidual + at, beside);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float normed = (values[k] - row_mean) * row_scale;
      values[k] = (gradients[k] * weights[k] - mean_g - normed * mean_gx) * row_scale + beside[k];
    }
    StoreFloats(dx + at, values);
  }
};

template <class T>
T* OrNull(const TensorView& view) {
  return view ? view.As<T>() : nullptr;
}

template <bool kCentered, class T>
Status Measure(const Stream& stream, const MeasureNormPartArgs& args) {
  const TensorView& x = args.residual;
  return NormForward<kCentered, T, NormRows::kPart>(
      stream, "MeasureNormPart",
      {.residual = x.As<T>(),
       .delta = OrNull<T>(args.delta),
       .residual_out = OrNull<T>(args.delta ? args.sum : args.delta),
       .weight = nullptr,
       .bias = nullptr,
       .epsilon = 0,
       .y = nullptr,
       .mean = nullptr,
       .rscale = nullptr,
       .rows = x.shape.Rows(),
       .width = static_cast<int>(x.shape[-1]),
       .found = args.found.As<float>()});
}

template <bool kCentered, class T>
Status ApplyRows(const Stream& stream, const NormOfPartsArgs& args) {
  const TensorView& x = args.x;
  const ApplyMap<kCentered, T> map{
      .x = x.As<T>(),
      .weight = args.weight.As<float>(),
      .bias = OrNull<float>(args.bias),
      .epsilon = args.epsilon,
      .found = args.found.As<float>(),
      .parts = static_cast<int>(args.found.shape[0] / NormPartNumbers(kCentered)),
      .y = args.y.As<T>(),
      .mean = OrNull<float>(args.mean),
      .scale = args.scale.As<float>(),
      .rows = x.shape.Rows(),
      .width = static_cast<int>(x.shape[-1])};
  const bool wide = map.width % kWide<T> == 0 && Aligned16(map.x, map.weight, map.bias, map.y);
  return LaunchRowMap<kWide<T>>(stream, "NormOfParts", map, map.rows, map.width, wide);
}

template <bool kCentered, class T>
Status MeasureGradient(const Stream& stream, const MeasureNormGradientPartArgs& args) {
  const TensorView& x = args.x;
  return NormBackward<kCentered, T, NormRows::kPart>(stream, "MeasureNormGradientPart",
                                                     {.dy = args.dy.As<T>(),
                                                      .x = x.As<T>(),
                                                      .weight = args.weight.As<float>(),
                                                      .mean = OrNull<float>(args.mean),
                                                      .rscale = args.scale.As<float>(),
                                                      .dresidual = nullptr,
                                                      .dx = nullptr,
                                                      .partial = nullptr,
                                                      .rows = x.shape.Rows(),
                                                      .width = static_cast<int>(x.shape[-1]),
                                                      .found = args.found.As<float>()},
                                                     OrNull<float>(args.dweight),
                                                     OrNull<float>(args.dbias));
}

}  // namespace

Status MeasureNormPart(const Stream& stream, const MeasureNormPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMeasureNormPart(stream, args));
  return WithFloatType(args.residual.dtype, [&]<class T>() {
    return args.layer ? Measure<true, T>(stream, args) : Measure<false, T>(stream, args);
  });
}

Status NormOfParts(const Stream& stream, const NormOfPartsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckNormOfParts(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return args.bias ? ApplyRows<true, T>(stream, args) : ApplyRows<false, T>(stream, args);
  });
}

Status MeasureNormGradientPart(const Stream& stream, const MeasureNormGradientPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMeasureNormGradientPart(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return args.mean ? MeasureGradient<true, T>(stream, args)
                     : MeasureGradient<false, T>(stream, args);
  });
}

Status NormGradientOfParts(const Stream& stream, const NormGradientOfPartsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckNormGradientOfParts(stream, args));
  const TensorView& x = args.x;
  return WithFloatType(x.dtype, [&]<class T>() {
    const DifferentiateMap<T> map{.dy = args.dy.As<T>(),
                                  .x = x.As<T>(),
                                  .weight = args.weight.As<float>(),
                                  .mean = OrNull<float>(args.mean),
                                  .scale = args.scale.As<float>(),
                                  .all = static_cast<float>(args.width),
                                  .sums = args.sums.As<float>(),
                                  .dresidual = OrNull<T>(args.dresidual),
                                  .dx = args.dx.As<T>(),
                                  .rows = x.shape.Rows(),
                                  .width = static_cast<int>(x.shape[-1])};
    const bool wide =
        map.width % kWide<T> == 0 && Aligned16(map.dy, map.x, map.weight, map.dresidual, map.dx);
    return LaunchRowMap<kWide<T>>(stream, "NormGradientOfParts", map, map.rows, map.width, wide);
  });
}

}  // namespace weft::kernels::cuda
