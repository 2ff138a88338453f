#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/rng.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

using Doubles = std::vector<double>;

/// A row-major matrix in float64.
struct Matrix {
  int64_t rows = 0, columns = 0;
  Doubles values;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(static_cast<size_t>(r * c), 0.0) {}
  double& at(int64_t r, int64_t c) { return values[r * columns + c]; }
  double at(int64_t r, int64_t c) const { return values[r * columns + c]; }
};

/// An operation with its arguments. Values are those of the inputs, then those of the parameters.
struct Problem {
  std::vector<Matrix> inputs;
  std::unique_ptr<ParameterSet> parameters = std::make_unique<ParameterSet>();
  std::function<Status(Context&)> prepare = [](Context&) { return OkStatus(); };
  std::function<Result<std::vector<Value>>(Context&, Tape&, const std::vector<Value>&)> run;
  std::function<std::vector<Matrix>(const std::vector<Matrix>&)> reference;
  std::shared_ptr<void> operation = nullptr;  ///< What `run` uses.
  /// `run` computes the gradient of this factor times its only output, a sum, by itself.
  double loss_scale = 0;
};

/// Sides of tensors.
class Sides {
 public:
  explicit Sides(int variant) : variant_(variant), random_({.seed = 17, .step = 0, .site = 0}) {
    for (int i = 0; i < 100 * variant; ++i) random_.Next();
  }
  /// 1 everywhere in the first variant.
  int64_t Draw() {
    constexpr int64_t kSides[] = {1, 2, 3, 5, 7, 8, 9, 13, 16, 17};
    return variant_ == 0 ? 1 : kSides[random_.Below(std::size(kSides))];
  }
  bool Coin() { return random_.Below(2) == 1; }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_.Below(static_cast<uint64_t>(bound)));
  }
  Matrix Normal(int64_t rows, int64_t columns) {
    Matrix matrix(rows, columns);
    for (double& value : matrix.values) {
      value = static_cast<double>(static_cast<float>(random_.Normal()));
    }
    return matrix;
  }

 private:
  int variant_;
  PhiloxStream random_;
};

struct Operation {
  std::string recorded;  ///< Its name on the tape.
  std::string name;
  std::function<Problem(Sides&)> make;
};

/// Every operation that a tape records, on arguments whose sides are drawn.
std::vector<Operation> Operations();

/// The matrix in f32.
Tensor NewTensor(Context& context, const Matrix& matrix);

/// In i32.
Tensor Indices(Context& context, const std::vector<int32_t>& values);

/// x Wᵀ + b; without `b` where it is null.
Matrix Product(const Matrix& x, const Matrix& w, const Matrix* b);

/// f of each element.
Matrix Map(Matrix x, const std::function<double(double)>& f);

/// What an operation with one result returns, as Problem::run does.
Result<std::vector<Value>> One(Result<Value> value);

}  // namespace weft::engine
