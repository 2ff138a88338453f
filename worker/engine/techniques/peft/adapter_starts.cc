#include "worker/engine/techniques/peft/adapter_starts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft::engine {
namespace {

/// Row-major, in double precision.
struct DoubleMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  DoubleMatrix(int64_t r, int64_t c)
      : rows(r), columns(c), values(static_cast<size_t>(r * c), 0.0) {}
  double* row(int64_t index) { return values.data() + index * columns; }
  const double* row(int64_t index) const { return values.data() + index * columns; }
};

/// In four sums, whose additions need not wait for each other.
double Dot(const double* a, const double* b, int64_t count) {
  double sums[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Adds a tile of a b to `product`: these rows and columns. Rows of b are read four at a time, such
/// that they stay in the cache for all rows of a.
void AddTile(const DoubleMatrix& a, const DoubleMatrix& b, int64_t first_row, int64_t last_row,
             int64_t first, int64_t last, DoubleMatrix& product) {
  int64_t k = 0;
  for (; k + 4 <= b.rows; k += 4) {
    const double* const b0 = b.row(k);
    const double* const b1 = b.row(k + 1);
    const double* const b2 = b.row(k + 2);
    const double* const b3 = b.row(k + 3);
    for (int64_t i = first_row; i < last_row; ++i) {
      const double* const from = a.row(i) + k;
      const double a0 = from[0], a1 = from[1], a2 = from[2], a3 = from[3];
      double* const to = product.row(i);
      for (int64_t c = first; c < last; ++c) {
        to[c] += (a0 * b0[c] + a1 * b1[c]) + (a2 * b2[c] + a3 * b3[c]);
      }
    }
  }
  for (; k < b.rows; ++k) {
    for (int64_t i = first_row; i < last_row; ++i) {
      const double factor = a.row(i)[k];
      for (int64_t c = first; c < last; ++c) product.row(i)[c] += factor * b.row(k)[c];
    }
  }
}

/// a b. Not by the kernels of f32: ranks on other processors must find the same vectors, also of
/// singular values that are nearly the same. The order of sums depends on the sizes alone.
DoubleMatrix Times(const DoubleMatrix& a, const DoubleMatrix& b) {
  constexpr int64_t kRows = 64, kColumns = 512;
  DoubleMatrix product(a.rows, b.columns);
  const int64_t across = (b.columns + kColumns - 1) / kColumns;
  const int64_t tiles = (a.rows + kRows - 1) / kRows * across;
  kernels::cpu::ParallelForDynamic(tiles, [&](int64_t tile) {
    const int64_t row = tile / across * kRows, column = tile % across * kColumns;
    AddTile(a, b, row, std::min(row + kRows, a.rows), column,
            std::min(column + kColumns, b.columns), product);
  });
  return product;
}

DoubleMatrix Turned(const DoubleMatrix& matrix) {
  DoubleMatrix turned(matrix.columns, matrix.rows);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t k = 0; k < matrix.columns; ++k) turned.row(k)[i] = matrix.row(i)[k];
  }
  return turned;
}

/// Makes the rows orthonormal, one after the other, twice for accuracy.
void Orthonormalize(DoubleMatrix& rows) {
  constexpr int64_t kRowGrain = 16, kColumnGrain = 1024;  // what is worth a thread
  std::vector<double> shares(static_cast<size_t>(rows.rows));
  for (int64_t i = 0; i < rows.rows; ++i) {
    double* const own = rows.row(i);
    for (int pass = 0; pass < 2; ++pass) {
      kernels::cpu::ParallelFor(i, kRowGrain, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          shares[static_cast<size_t>(k)] = Dot(own, rows.row(k), rows.columns);
        }
      });
      kernels::cpu::ParallelFor(rows.columns, kColumnGrain, [&](int64_t begin, int64_t end) {
        for (int64_t k = 0; k < i; ++k) {
          const double share = shares[static_cast<size_t>(k)];
          const double* const other = rows.row(k);
          for (int64_t c = begin; c < end; ++c) own[c] -= share * other[c];
        }
      });
    }
    const double length = std::sqrt(Dot(own, own, rows.columns));
    for (int64_t c = 0; c < rows.columns; ++c) own[c] /= std::max(length, 1e-300);
  }
}

/// Rotates rows of `matrix`, and of `with` alike, until those of `matrix` are orthogonal (one-sided
/// Jacobi): then their lengths are its singular values.
void MakeRowsOrthogonal(DoubleMatrix& matrix, DoubleMatrix& with) {
  constexpr int kMostSweeps = 60;
  constexpr double kEnough = 1e-15;
  const auto rotate = [](double* a, double* b, int64_t count, double cosine, double sine) {
    for (int64_t i = 0; i < count; ++i) {
      const double before = a[i];
      a[i] = cosine * before - sine * b[i];
      b[i] = sine * before + cosine * b[i];
    }
  };
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double worst = 0;
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (int64_t k = i + 1; k < matrix.rows; ++k) {
        double* const a = matrix.row(i);
        double* const b = matrix.row(k);
        const double aa = Dot(a, a, matrix.columns), bb = Dot(b, b, matrix.columns);
        const double ab = Dot(a, b, matrix.columns);
        const double size = std::sqrt(aa * bb);
        if (size == 0 || std::fabs(ab) <= kEnough * size) continue;
        worst = std::max(worst, std::fabs(ab) / size);
        const double zeta = (bb - aa) / (2 * ab);
        const double tangent =
            (zeta < 0 ? -1.0 : 1.0) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent);
        rotate(a, b, matrix.columns, cosine, cosine * tangent);
        rotate(with.row(i), with.row(k), with.columns, cosine, cosine * tangent);
      }
    }
    if (worst < 1e-12) return;
  }
}

/// The two factors, B [out, rank] and A [rank, in].
struct Factors {
  DoubleMatrix b;
  DoubleMatrix a;
};

/// The `rank` largest singular values of `weight`, half of each in either factor. By iterating on a
/// subspace that is larger, until the sum of their squares changes by less than 1e-10 of it, so
/// that the vectors are exact to about 1e-5. Where the weight has few more, all of them are found
/// sooner: its whole row space is there after one step.
Factors LargestSingularValues(const DoubleMatrix& weight, int64_t rank) {
  constexpr double kEnough = 1e-10;
  const int64_t all = std::min(weight.rows, weight.columns);
  const int64_t wanted = 2 * rank + 8;
  const bool whole = all <= 2 * wanted;
  const int64_t size = whole ? all : wanted;
  const int most_steps = whole ? 1 : 100;
  const DoubleMatrix turned = Turned(weight);
  DoubleMatrix space(size, weight.columns);  // rows, in the space of inputs
  PhiloxStream random({.seed = 0, .step = 0, .site = SiteHash("singular values")});
  for (double& value : space.values) value = random.Uniform() - 0.5;
  Orthonormalize(space);
  double before = 0;
  for (int step = 0; step < most_steps; ++step) {
    DoubleMatrix results = Times(space, turned);  // [size, out]
    double squares = 0;
    for (int64_t i = 0; i < rank; ++i) {
      squares += Dot(results.row(i), results.row(i), results.columns);
    }
    Orthonormalize(results);
    space = Times(results, weight);  // [size, in]
    Orthonormalize(space);
    if (step > 4 && std::fabs(squares - before) <= kEnough * squares) break;
    before = squares;
  }
  DoubleMatrix results = Times(space, turned);
  MakeRowsOrthogonal(results, space);
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto squared = [&](int64_t i) {
    return Dot(results.row(i), results.row(i), results.columns);
  };
  std::sort(order.begin(), order.end(),
            [&](int64_t i, int64_t k) { return squared(i) > squared(k); });
  Factors factors{DoubleMatrix(weight.rows, rank), DoubleMatrix(rank, weight.columns)};
  for (int64_t k = 0; k < rank; ++k) {
    const int64_t from = order[static_cast<size_t>(k)];
    const double root = std::sqrt(std::sqrt(squared(from)));
    for (int64_t i = 0; i < weight.columns; ++i) factors.a.row(k)[i] = root * space.row(from)[i];
    for (int64_t i = 0; i < weight.rows; ++i) {
      factors.b.row(i)[k] = root == 0 ? 0 : results.row(from)[i] / root;
    }
  }
  return factors;
}

/// The first `rank` columns of Q and rows of R of weight = Q R, with the signs of LAPACK: the
/// diagonal of R is negative where that of the column before its reflection was not.
Factors FirstOfQr(const DoubleMatrix& weight, int64_t rank) {
  DoubleMatrix r = weight;
  DoubleMatrix reflections(rank, weight.rows);  // unit vectors, or zero
  for (int64_t k = 0; k < rank; ++k) {
    double squares = 0;
    for (int64_t i = k + 1; i < r.rows; ++i) squares += r.row(i)[k] * r.row(i)[k];
    const double head = r.row(k)[k];
    if (squares == 0) continue;  // as LAPACK: nothing to reflect
    const double length = std::sqrt(head * head + squares);
    const double to = head < 0 ? length : -length;
    double* const v = reflections.row(k);
    v[k] = head - to;
    for (int64_t i = k + 1; i < r.rows; ++i) v[i] = r.row(i)[k];
    const double norm = std::sqrt(Dot(v, v, r.rows));
    for (int64_t i = k; i < r.rows; ++i) v[i] /= norm;
    std::vector<double> along(static_cast<size_t>(r.columns), 0.0);
    for (int64_t i = k; i < r.rows; ++i) {
      for (int64_t c = 0; c < r.columns; ++c) along[static_cast<size_t>(c)] += v[i] * r.row(i)[c];
    }
    for (int64_t i = k; i < r.rows; ++i) {
      for (int64_t c = 0; c < r.columns; ++c) {
        r.row(i)[c] -= 2 * v[i] * along[static_cast<size_t>(c)];
      }
    }
  }
  Factors factors{DoubleMatrix(weight.rows, rank), DoubleMatrix(rank, weight.columns)};
  for (int64_t k = 0; k < rank; ++k) {
    for (int64_t c = k; c < r.columns; ++c) factors.a.row(k)[c] = r.row(k)[c];
    factors.b.row(k)[k] = 1;
  }
  for (int64_t k = rank - 1; k >= 0; --k) {
    const double* const v = reflections.row(k);
    for (int64_t c = 0; c < rank; ++c) {
      double along = 0;
      for (int64_t i = k; i < weight.rows; ++i) along += v[i] * factors.b.row(i)[c];
      for (int64_t i = k; i < weight.rows; ++i) factors.b.row(i)[c] -= 2 * along * v[i];
    }
  }
  return factors;
}

/// All of a weight: `tensor_ranks`, if any, have a part of it each.
Result<DoubleMatrix> ValueOf(const ParameterSet& parameters, int64_t index,
                             Collective* tensor_ranks) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<float> floats,
                        WholeValue(parameters, index, tensor_ranks));
  const Shape shape = parameters[index].logical_shape();
  DoubleMatrix matrix(shape[0], shape[1]);
  std::copy(floats.begin(), floats.end(), matrix.values.begin());
  return matrix;
}

Status SetValueOf(ParameterSet& parameters, int64_t index, const std::vector<double>& values) {
  return SetWholeValue(parameters, index, {values.begin(), values.end()});
}

/// The parameter of this name has been registered.
int64_t IndexOf(const ParameterSet& parameters, const std::string& name) {
  const Result<int64_t> index = parameters.Find(name);
  WEFT_CHECK(index.ok(), name);
  return *index;
}

/// Begins with A at index `first`, then B. Takes them off `value`, that of the weight, and stores
/// the rest. Then `value` is what the layer multiplies by, with its factors: where the rest has
/// been quantised, not what it was.
Status StartFactors(const PeftSpec& spec, ParameterSet& parameters, int64_t first, int64_t weight,
                    Collective* tensor_ranks, DoubleMatrix& value) {
  const int64_t rank = parameters[first].shape[0];
  const double scale = LoraScale(spec, parameters[first].adapter_of);
  Factors factors =
      spec.init == "pissa" ? LargestSingularValues(value, rank) : FirstOfQr(value, rank);
  // Singular values contain the scale.
  if (spec.init == "pissa") {
    for (double& each : factors.a.values) each /= std::sqrt(scale);
    for (double& each : factors.b.values) each /= std::sqrt(scale);
  }
  const DoubleMatrix product = Times(factors.b, factors.a);
  DoubleMatrix rest = value;
  for (size_t i = 0; i < rest.values.size(); ++i) rest.values[i] -= scale * product.values[i];
  WEFT_RETURN_IF_ERROR(SetValueOf(parameters, first, factors.a.values));
  WEFT_RETURN_IF_ERROR(SetValueOf(parameters, first + 1, factors.b.values));
  WEFT_RETURN_IF_ERROR(SetValueOf(parameters, weight, rest.values));
  if (parameters[weight].quantized_words == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(value, ValueOf(parameters, weight, tensor_ranks));
  for (size_t i = 0; i < value.values.size(); ++i) value.values[i] += scale * product.values[i];
  return OkStatus();
}

}  // namespace

bool StartsFromWeights(const PeftSpec& spec) {
  return spec.method == "lora" && (spec.use_dora || DecomposesWeights(spec));
}

Status StartFromWeights(Context& context, const PeftSpec& spec, ParameterSet& parameters,
                        Collective* tensor_ranks) {
  const auto start = [&](int64_t index) -> Status {
    const int64_t weight = IndexOf(parameters, parameters[index].adapter_of);
    WEFT_ASSIGN_OR_RETURN(DoubleMatrix value, ValueOf(parameters, weight, tensor_ranks));
    if (DecomposesWeights(spec)) {
      WEFT_RETURN_IF_ERROR(StartFactors(spec, parameters, index, weight, tensor_ranks, value));
    }
    if (!spec.use_dora) return OkStatus();
    std::vector<double> lengths;
    for (int64_t row = 0; row < value.rows; ++row) {
      lengths.push_back(std::sqrt(Dot(value.row(row), value.row(row), value.columns)));
    }
    return SetValueOf(parameters, index + 2, lengths);
  };
  return ForEachUnit(context, parameters, [&](int64_t unit) -> Status {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].unit != unit || parameters[i].adapter != AdapterSide::kInput) continue;
      WEFT_RETURN_IF_ERROR(start(i));
    }
    return OkStatus();
  });
}

}  // namespace weft::engine
