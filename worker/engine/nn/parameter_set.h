#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// How a parameter starts: normal with this deviation around this mean.
struct Initializer {
  double mean = 0;
  double deviation = 0;
};

/// One trainable tensor.
struct Parameter {
  std::string name;
  Shape shape;
  int64_t padded_rows = 0;  ///< Rows of storage, >= shape[0]; the rest stays zero.
  Initializer initializer;
  int64_t offset = 0;  ///< First element in the flat buffers.

  /// Weight decay applies: matrices, not biases and norms.
  bool decay() const { return shape.rank >= 2; }
};

/// The parameters of a model: f32 masters in one flat buffer and their gradients in another, in
/// order of registration, each beginning on a 64-byte boundary with zeros in between.
class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  /// Registers a parameter before Allocate and returns its index. `padded_rows` of storage when
  /// more than shape[0].
  int64_t Register(std::string name, Shape shape, Initializer initializer, int64_t padded_rows = 0);

  /// Makes both buffers (gradients only when asked), all zero.
  Status Allocate(Context& context, bool with_gradients);

  /// Draws every parameter from the Philox stream of (seed, its name): the same numbers whatever
  /// the rank, the number of threads and the other parameters.
  void Initialize(uint64_t seed);

  int64_t size() const { return static_cast<int64_t>(parameters_.size()); }
  const Parameter& operator[](int64_t index) const { return parameters_[index]; }

  /// Index of `name`; kNotFound when the model has no such parameter.
  Result<int64_t> Find(std::string_view name) const;

  /// Trainable numbers, padding not counted.
  int64_t ElementCount() const;

  TensorView value(int64_t index) const { return View(values_, index, false); }
  TensorView gradient(int64_t index) const { return View(gradients_, index, false); }
  /// With the padded rows.
  TensorView padded_value(int64_t index) const { return View(values_, index, true); }
  TensorView padded_gradient(int64_t index) const { return View(gradients_, index, true); }

  /// The whole flat buffers, [FlatCount()] f32. Element i of the one belongs to element i of the
  /// other; parameter p takes FlatRange(p) of both.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  int64_t FlatCount() const { return flat_count_; }
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  /// Including the padding after it; the ranges of consecutive parameters touch.
  Range FlatRange(int64_t index) const;

  /// The values, for checkpoints and export.
  std::vector<NamedTensor> NamedValues() const;

 private:
  TensorView View(const Tensor& flat, int64_t index, bool padded) const;

  std::vector<Parameter> parameters_;
  int64_t flat_count_ = 0;
  Tensor values_;
  Tensor gradients_;
};

}  // namespace weft::engine
