#pragma once

#include <optional>
#include <string>
#include <vector>

#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// The f32 tensors that an optimizer keeps between updates, in one buffer: registered, then
/// allocated, all zero.
class OptimizerState {
 public:
  /// Returns the index of the tensor. Before Allocate.
  size_t Add(std::string name, const Shape& shape);
  /// The same for a part of a tensor that is of the parameter's shape.
  size_t Add(std::string name, const ParameterPart& part, const Shape& whole);

  Status Allocate(Context& context);

  float* operator[](size_t index) const { return buffer_.As<float>() + entries_[index].offset; }

  /// For checkpoints, in order of registration.
  std::vector<NamedTensor> Named() const;

 private:
  struct Entry {
    std::string name;
    Shape shape;
    int64_t offset = 0;
    std::optional<NamedTensor::Place> part;
  };

  std::vector<Entry> entries_;
  int64_t elements_ = 0;
  Tensor buffer_;
};

}  // namespace weft::engine
