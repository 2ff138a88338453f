#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/argument_check.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "kernels/norm_part/norm_part.h"

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

/// Of one row of a backward pass.
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

// The sizes that all have in common; `numbers` of the planes `found`, of one part or several.
Status Check(const Stream& stream, const char* op, const TensorView& x, const TensorView& found,
             int64_t numbers) {
  ArgumentCheck check(stream, op);
  check.That(x.shape.rank >= 1 && x.shape[-1] > 0, "x has no columns");
  if (!check.status().ok()) return check.status();
  check.That(found && found.shape.rank == 2 && found.shape[0] > 0 && found.shape[0] % numbers == 0,
             "not the numbers of whole parts");
  if (!check.status().ok()) return check.status();
  return check.ContiguousTensor("x", x, x.shape, kFloatTypes)
      .ContiguousTensor("found", found, {found.shape[0], x.shape.Rows()}, {DType::kF32})
      .status();
}

template <class Args>
Status CheckBackward(const Stream& stream, const char* op, const Args& args,
                     const TensorView& found) {
  const int64_t numbers = NormPartNumbers(static_cast<bool>(args.mean));
  WEFT_RETURN_IF_ERROR(Check(stream, op, args.x, found, numbers));
  const Shape columns = {args.x.shape[-1]}, rows = {args.x.shape.Rows()};
  ArgumentCheck check(stream, op);
  check.That(found.shape[0] == numbers, "numbers of one part")
      .ContiguousTensor("dy", args.dy, args.x.shape, {args.x.dtype})
      .ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("scale", args.scale, rows, {DType::kF32});
  if (args.mean) check.ContiguousTensor("mean", args.mean, rows, {DType::kF32});
  return check.status();
}

}  // namespace

Status MeasureNormPart(const Stream& stream, const MeasureNormPartArgs& args) {
  const TensorView& x = args.residual;
  WEFT_RETURN_IF_ERROR(
      Check(stream, "MeasureNormPart", x, args.found, NormPartNumbers(args.layer)));
  if (args.delta) {
    ArgumentCheck check(stream, "MeasureNormPart");
    check.ContiguousTensor("delta", args.delta, x.shape, {x.dtype})
        .ContiguousTensor("sum", args.sum, x.shape, {x.dtype});
    WEFT_RETURN_IF_ERROR(check.status());
  }
  WithFloatType(x.dtype, [&]<class T>() { Measure<T>(args); });
  return OkStatus();
}

Status NormOfParts(const Stream& stream, const NormOfPartsArgs& args) {
  const TensorView& x = args.x;
  const bool layer = static_cast<bool>(args.bias);
  WEFT_RETURN_IF_ERROR(Check(stream, "NormOfParts", x, args.found, NormPartNumbers(layer)));
  const Shape columns = {x.shape[-1]}, rows = {x.shape.Rows()};
  ArgumentCheck check(stream, "NormOfParts");
  check.ContiguousTensor("weight", args.weight, columns, {DType::kF32})
      .ContiguousTensor("y", args.y, x.shape, {x.dtype})
      .ContiguousTensor("scale", args.scale, rows, {DType::kF32});
  if (layer) {
    check.ContiguousTensor("bias", args.bias, columns, {DType::kF32})
        .ContiguousTensor("mean", args.mean, rows, {DType::kF32});
  }
  WEFT_RETURN_IF_ERROR(check.status());
  WithFloatType(x.dtype, [&]<class T>() { Apply<T>(args); });
  return OkStatus();
}

Status MeasureNormGradientPart(const Stream& stream, const MeasureNormGradientPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBackward(stream, "MeasureNormGradientPart", args, args.found));
  const Shape columns = {args.x.shape[-1]};
  ArgumentCheck check(stream, "MeasureNormGradientPart");
  if (args.dweight) check.ContiguousTensor("dweight", args.dweight, columns, {DType::kF32});
  if (args.dbias) check.ContiguousTensor("dbias", args.dbias, columns, {DType::kF32});
  WEFT_RETURN_IF_ERROR(check.status());
  WithFloatType(args.x.dtype, [&]<class T>() { MeasureGradient<T>(args); });
  return OkStatus();
}

Status NormGradientOfParts(const Stream& stream, const NormGradientOfPartsArgs& args) {
  const TensorView& x = args.x;
  WEFT_RETURN_IF_ERROR(CheckBackward(stream, "NormGradientOfParts", args, args.sums));
  ArgumentCheck check(stream, "NormGradientOfParts");
  check.That(args.width >= x.shape[-1], "width is that of all parts")
      .ContiguousTensor("dx", args.dx, x.shape, {x.dtype});
  if (args.dresidual) check.ContiguousTensor("dresidual", args.dresidual, x.shape, {x.dtype});
  WEFT_RETURN_IF_ERROR(check.status());
  WithFloatType(x.dtype, [&]<class T>() { Differentiate<T>(args); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
