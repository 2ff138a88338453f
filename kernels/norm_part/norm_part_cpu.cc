#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/norm_part/norm_part.h"
#include "kernels/norm_part/norm_part_check.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;
// Most parts that the sums over rows are split into.
constexpr int64_t kMaxParts = 64;

int64_t GrainRows(int64_t columns) {
  return std::max<int64_t>(1, kGrain / columns);
}

template <class T>
const T* RowOf(const TensorView& view, int64_t row, int64_t columns) {
  return view ? view.As<T>() + row * columns : nullptr;
}

template <class T>
void Measure(const MeasureNormPartArgs& args) {
  const int64_t rows = args.residual.shape.Rows(), columns = args.residual.shape[-1];
  auto* found = args.found.As<float>();
  ParallelFor(rows, GrainRows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = RowOf<T>(args.residual, r, columns);
      if (args.delta) {
        // The norm sees what is stored, so that the backward pass, which reads it, agrees.
        const T* delta = RowOf<T>(args.delta, r, columns);
        T* sum = args.sum.As<T>() + r * columns;
        for (int64_t c = 0; c < columns; ++c)
          sum[c] = FromFloat<T>(ToFloat(x[c]) + ToFloat(delta[c]));
        x = sum;
      }
      float mean = 0, squares = 0;
      if (args.layer) {
        for (int64_t c = 0; c < columns; ++c) mean += ToFloat(x[c]);
        mean /= static_cast<float>(columns);
      }
      for (int64_t c = 0; c < columns; ++c) {
        const float centered = ToFloat(x[c]) - mean;
        squares += centered * centered;
      }
      if (args.layer) found[r] = mean;
      found[(args.layer ? rows : 0) + r] = squares;
    }
  });
}

/// Mean and 1 / deviation of a row, or 0 and 1 / RMS, of what the parts have found (Chan et al.
/// 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances").
struct RowStatistics {
  float mean = 0;
  float scale = 0;

  RowStatistics(const NormOfPartsArgs& args, int64_t row) {
    const int64_t rows = args.x.shape.Rows(), columns = args.x.shape[-1];
    const bool layer = static_cast<bool>(args.bias);
    const int64_t numbers = NormPartNumbers(layer);
    const int64_t parts = args.found.shape[0] / numbers;
    const float* found = args.found.As<float>() + row;
    const auto at = [&](int64_t part, int64_t number) {
      return found[(part * numbers + number) * rows];
    };
    for (int64_t part = 0; layer && part < parts; ++part) mean += at(part, 0);
    mean /= static_cast<float>(parts);
    float squares = 0;
    for (int64_t part = 0; part < parts; ++part) {
      squares += at(part, numbers - 1);
      if (!layer) continue;
      const float apart = at(part, 0) - mean;
      squares += static_cast<float>(columns) * apart * apart;
    }
    scale = 1.0f / std::sqrt(squares / static_cast<float>(parts * columns) + args.epsilon);
  }
};

template <class T>
void Apply(const NormOfPartsArgs& args) {
  const int64_t rows = args.x.shape.Rows(), columns = args.x.shape[-1];
  const auto* weight = args.weight.As<float>();
  const auto* bias = args.bias ? args.bias.As<float>() : nullptr;
  ParallelFor(rows, GrainRows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const RowStatistics row(args, r);
      const T* x = RowOf<T>(args.x, r, columns);
      T* y = args.y.As<T>() + r * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const float normed = (ToFloat(x[c]) - row.mean) * row.scale;
        y[c] = FromFloat<T>(normed * weight[c] + (bias != nullptr ? bias[c] : 0));
      }
      if (args.mean) args.mean.As<float>()[r] = row.mean;
      args.scale.As<float>()[r] = row.scale;
    }
  });
}

/// What one row of a backward pass reads.
template <class T>
struct GradientRow {
  const T* dy;
  const T* x;
  const float* weight;
  float mean;
  float scale;

  template <class Args>
  GradientRow(const Args& args, int64_t row, int64_t columns)
      : dy(RowOf<T>(args.dy, row, columns)),
        x(RowOf<T>(args.x, row, columns)),
        weight(args.weight.template As<float>()),
        mean(args.mean ? args.mean.template As<float>()[row] : 0),
        scale(args.scale.template As<float>()[row]) {}

  float Normed(int64_t c) const { return (ToFloat(x[c]) - mean) * scale; }
  float G(int64_t c) const { return ToFloat(dy[c]) * weight[c]; }
};

template <class T>
void MeasureGradient(const MeasureNormGradientPartArgs& args) {
  const int64_t rows = args.x.shape.Rows(), columns = args.x.shape[-1];
  const bool layer = static_cast<bool>(args.mean);
  auto* found = args.found.As<float>();
  // Parts of a fixed number of rows sum on their own and are added up in order, so the result does
  // not depend on which thread had which.
  const int64_t part_rows = std::max(GrainRows(columns), (rows + kMaxParts - 1) / kMaxParts);
  const int64_t parts = (rows + part_rows - 1) / part_rows;
  std::vector<float> sums(static_cast<size_t>(2 * parts * columns), 0.0f);
  ParallelFor(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      float* dweight = &sums[static_cast<size_t>(2 * part * columns)];
      float* dbias = dweight + columns;
      for (int64_t r = part * part_rows; r < std::min((part + 1) * part_rows, rows); ++r) {
        const GradientRow<T> row(args, r, columns);
        float sum_g = 0, sum_gx = 0;
        for (int64_t c = 0; c < columns; ++c) {
          const float d = ToFloat(row.dy[c]), normed = row.Normed(c), g = row.G(c);
          sum_g += g;
          sum_gx += g * normed;
          dweight[c] += d * normed;
          dbias[c] += d;
        }
        if (layer) found[r] = sum_g;
        found[(layer ? rows : 0) + r] = sum_gx;
      }
    }
  });
  for (int64_t part = 0; part < parts; ++part) {
    const float* own = &sums[static_cast<size_t>(2 * part * columns)];
    for (int64_t c = 0; c < columns && args.dweight; ++c) args.dweight.As<float>()[c] += own[c];
    for (int64_t c = 0; c < columns && args.dbias; ++c) {
      args.dbias.As<float>()[c] += own[columns + c];
    }
  }
}

template <class T>
void Differentiate(const NormGradientOfPartsArgs& args) {
  const int64_t rows = args.x.shape.Rows(), columns = args.x.shape[-1];
  const bool layer = static_cast<bool>(args.mean);
  const auto* sums = args.sums.As<float>();
  const auto width = static_cast<float>(args.width);
  ParallelFor(rows, GrainRows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const GradientRow<T> row(args, r, columns);
      const float mean_g = layer ? sums[r] / width : 0;
      const float mean_gx = sums[(layer ? rows : 0) + r] / width;
      const T* beside = RowOf<T>(args.dresidual, r, columns);
      T* dx = args.dx.As<T>() + r * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const float through = (row.G(c) - mean_g - row.Normed(c) * mean_gx) * row.scale;
        dx[c] = FromFloat<T>(through + (beside != nullptr ? ToFloat(beside[c]) : 0));
      }
    }
  });
}

}  // namespace

Status MeasureNormPart(const Stream& stream, const MeasureNormPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMeasureNormPart(stream, args));
  WithFloatType(args.residual.dtype, [&]<class T>() { Measure<T>(args); });
  return OkStatus();
}

Status NormOfParts(const Stream& stream, const NormOfPartsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckNormOfParts(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() { Apply<T>(args); });
  return OkStatus();
}

Status MeasureNormGradientPart(const Stream& stream, const MeasureNormGradientPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMeasureNormGradientPart(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() { MeasureGradient<T>(args); });
  return OkStatus();
}

Status NormGradientOfParts(const Stream& stream, const NormGradientOfPartsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckNormGradientOfParts(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() { Differentiate<T>(args); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
