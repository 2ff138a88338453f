#include "worker/engine/techniques/peft/merged_values.h"

#include <algorithm>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Row-major.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(static_cast<size_t>(r * c), 0.0) {}
  Matrix(int64_t r, int64_t c, std::span<const float> from)
      : rows(r), columns(c), values(from.begin(), from.end()) {}
  double& at(int64_t row, int64_t column) { return values[row * columns + column]; }
  double at(int64_t row, int64_t column) const { return values[row * columns + column]; }
};

Matrix Times(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  kernels::cpu::ParallelForDynamic(a.rows, [&](int64_t i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  });
  return c;
}

/// The value of a registered parameter that is there as a whole.
Matrix ValueOf(const ParameterSet& parameters, const char* name) {
  const Result<int64_t> index = parameters.Find(name);
  WEFT_CHECK(index.ok(), name);
  const Result<HostCopy> copy = HostCopy::Of(parameters.stream(), parameters.value(*index));
  WEFT_CHECK(copy.ok(), copy.status().message());
  const TensorView& view = copy->view();
  Matrix matrix(view.shape[0], view.shape[1]);
  kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
    for (size_t i = 0; i < matrix.values.size(); ++i) matrix.values[i] = ToFloat(view.As<T>()[i]);
  });
  return matrix;
}

Matrix LohaDelta(int64_t out, int64_t in, const std::vector<std::vector<float>>& tensors) {
  const auto rank = static_cast<int64_t>(tensors[0].size()) / out;
  const auto product = [&](size_t first) {
    return Times(Matrix(out, rank, tensors[first]), Matrix(rank, in, tensors[first + 1]));
  };
  Matrix delta = product(0);
  const Matrix second = product(2);
  for (size_t i = 0; i < delta.values.size(); ++i) delta.values[i] *= second.values[i];
  return delta;
}

Matrix LokrDelta(const KroneckerSizes& size, const std::vector<std::vector<float>>& tensors) {
  std::vector<Matrix> factors;
  size_t next = 0;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t out = size.out[i], in = size.in[i];
    if (size.factored[i]) {
      factors.push_back(
          Times(Matrix(out, size.rank, tensors[next]), Matrix(size.rank, in, tensors[next + 1])));
      next += 2;
    } else {
      factors.emplace_back(out, in, tensors[next++]);
    }
  }
  const Matrix &first = factors[0], &second = factors[1];
  Matrix delta(first.rows * second.rows, first.columns * second.columns);
  for (int64_t i = 0; i < delta.rows; ++i) {
    for (int64_t j = 0; j < delta.columns; ++j) {
      delta.at(i, j) = first.at(i / second.rows, j / second.columns) *
                       second.at(i % second.rows, j % second.columns);
    }
  }
  return delta;
}

/// diag(b) B diag(d) A.
Matrix VeraDelta(const ParameterSet& parameters, int64_t out, int64_t in,
                 const std::vector<std::vector<float>>& tensors) {
  const Matrix a = ValueOf(parameters, kVeraA), b = ValueOf(parameters, kVeraB);
  const std::vector<float>&scale_b = tensors[0], &scale_d = tensors[1];
  Matrix left(out, b.columns), right(a.rows, in);
  for (int64_t i = 0; i < out; ++i) {
    for (int64_t k = 0; k < b.columns; ++k) left.at(i, k) = b.at(i, k) * scale_b[i] * scale_d[k];
  }
  for (int64_t k = 0; k < a.rows; ++k) {
    for (int64_t j = 0; j < in; ++j) right.at(k, j) = a.at(k, j);
  }
  return Times(left, right);
}

/// R - I of the block of a skew-symmetric matrix with these numbers above its diagonal.
Matrix RotationLessIdentity(int64_t size, const float* above) {
  Matrix q(size, size);
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = i + 1; j < size; ++j, ++above) {
      q.at(i, j) = *above;
      q.at(j, i) = -double{*above};
    }
  }
  Matrix sum = q;  // from the end of the series
  for (int terms = 0; terms < 3; ++terms) {
    for (int64_t i = 0; i < size; ++i) sum.at(i, i) += 2;
    sum = Times(q, sum);
  }
  return sum;
}

/// W (R - I)ᵀ.
Matrix OftDelta(int64_t size, const Matrix& weight, const std::vector<float>& above) {
  Matrix delta(weight.rows, weight.columns);
  kernels::cpu::ParallelForDynamic(weight.columns / size, [&](int64_t block) {
    const int64_t first = block * size;
    const Matrix turn = RotationLessIdentity(size, above.data() + block * (size * (size - 1) / 2));
    for (int64_t o = 0; o < weight.rows; ++o) {
      for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = 0; j < size; ++j) {
          delta.at(o, first + i) += weight.at(o, first + j) * turn.at(i, j);
        }
      }
    }
  });
  return delta;
}

Matrix DeltaOf(const ModelSpec& model, const ParameterSet& parameters, const ParameterInfo& weight,
               std::span<const float> values, const std::vector<std::vector<float>>& tensors) {
  const PeftSpec& spec = model.peft;
  const int64_t out = weight.shape[0], in = weight.shape[1];
  if (spec.method == "loha") return LohaDelta(out, in, tensors);
  if (spec.method == "lokr") return LokrDelta(KroneckerOf(spec, weight), tensors);
  if (spec.method == "vera") return VeraDelta(parameters, out, in, tensors);
  return OftDelta(spec.oft_block_size, Matrix(out, in, values), tensors.front());
}

}  // namespace

std::vector<float> MergedValues(const ModelSpec& model, const ParameterSet& parameters,
                                const ParameterInfo& weight, std::span<const float> values,
                                const std::vector<std::vector<float>>& tensors) {
  const Matrix delta = DeltaOf(model, parameters, weight, values, tensors);
  const bool scales = model.peft.method == "loha" || model.peft.method == "lokr";
  const double scale = scales ? LoraScale(model.peft, weight.name) : 1;
  std::vector<float> merged(values.size());
  for (size_t i = 0; i < merged.size(); ++i) {
    merged[i] = static_cast<float>(values[i] + scale * delta.values[i]);
  }
  return merged;
}

}  // namespace weft::engine
