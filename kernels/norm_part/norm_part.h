#pragma once

#include "kernels/stream.h"

namespace weft::kernels {

/// Layer norms (kernels/layer_norm) and RMS norms (kernels/rms_norm) of rows whose columns are
/// partitioned evenly over several ranks. A rank measures its columns, learns what the others have
/// found, and does the rest alone. It finds f32 numbers of each row, in planes [numbers, rows]:
/// - forward, layer: the mean, and the sum of squared distances from it; RMS: the sum of squares;
/// - backward, layer: with g = dy * weight, the sum of g, and that of g times the normed column;
///   RMS: the latter alone.
constexpr int64_t NormPartNumbers(bool layer) {
  return layer ? 2 : 1;
}

/// sum = residual + delta, and what of it others have to know.
struct MeasureNormPartArgs {
  TensorView residual;    ///< [rows, columns] f32, bf16 or f16
  TensorView delta = {};  ///< [rows, columns] same type, or none
  TensorView sum = {};    ///< [rows, columns] same type; none without delta
  bool layer = true;      ///< Or RMS.
  TensorView found;       ///< [numbers, rows] f32
};

/// The norm of the columns here, after what all parts have found.
struct NormOfPartsArgs {
  TensorView x;       ///< [rows, columns] f32, bf16 or f16
  TensorView weight;  ///< [columns] f32
  TensorView bias;    ///< [columns] f32; none: RMS
  float epsilon = 1e-5f;
  TensorView found;  ///< [parts * numbers, rows] f32, part after part
  TensorView y;      ///< [rows, columns] same type as x
  TensorView mean;   ///< [rows] f32; none for RMS
  TensorView scale;  ///< [rows] f32: 1 / deviation, or 1 / RMS
};

/// Adds the gradients of weight and bias, and measures for that of x.
struct MeasureNormGradientPartArgs {
  TensorView dy;       ///< [rows, columns] f32, bf16 or f16
  TensorView x;        ///< [rows, columns] same type
  TensorView weight;   ///< [columns] f32
  TensorView mean;     ///< [rows] f32; none: RMS
  TensorView scale;    ///< [rows] f32
  TensorView dweight;  ///< [columns] f32, added to; or none
  TensorView dbias;    ///< [columns] f32, added to; or none
  TensorView found;    ///< [numbers, rows] f32
};

/// dx = gradient through the norm + dresidual (the gradient of the residual, if given).
struct NormGradientOfPartsArgs {
  TensorView dy;         ///< [rows, columns] f32, bf16 or f16
  TensorView x;          ///< [rows, columns] same type
  TensorView weight;     ///< [columns] f32
  TensorView mean;       ///< [rows] f32; none: RMS
  TensorView scale;      ///< [rows] f32
  int64_t width = 0;     ///< Columns of all parts.
  TensorView sums;       ///< [numbers, rows] f32, over all parts
  TensorView dresidual;  ///< [rows, columns] same type, or none
  TensorView dx;         ///< [rows, columns] same type; may be dresidual itself
};

/// Deterministic for any number of threads.
WEFT_DEVICE_OP(MeasureNormPart, MeasureNormPartArgs)
WEFT_DEVICE_OP(NormOfParts, NormOfPartsArgs)
WEFT_DEVICE_OP(MeasureNormGradientPart, MeasureNormGradientPartArgs)
WEFT_DEVICE_OP(NormGradientOfParts, NormGradientOfPartsArgs)

}  // namespace weft::kernels
