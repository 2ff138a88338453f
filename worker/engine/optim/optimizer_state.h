#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/state_tensors.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// What the rule of `optimizer` keeps of a parameter.
std::vector<StateTensor> StateTensorsOf(const OptimizerSpec& optimizer, const Parameter& parameter);

/// The tensors that an optimizer keeps between updates, in one buffer: registered, then allocated,
/// all zero. Each has the format that it is registered with; those with scales have them as
/// "<name>/scales" in checkpoints.
class OptimizerState {
 public:
  /// What the rule of `optimizer` keeps of `part`, named "<rule>/<parameter>/<state>". Returns the
  /// index of the first tensor; the others follow. Before Allocate, as the next.
  size_t Add(const OptimizerSpec& optimizer, const ParameterSet& parameters,
             const ParameterPart& part);
  /// A tensor that is of the parameter's shape, or the same part of it. Returns its index.
  size_t Add(std::string name, const ParameterSet& parameters, const ParameterPart& part,
             const StateFormat& format = {}, MomentKind moment = MomentKind::kNone);

  Status Allocate(Context& context);

  size_t size() const { return entries_.size(); }
  /// Its numbers, without scales.
  TensorView operator[](size_t index) const;

  /// The tensors for checkpoints, in order of registration.
  std::vector<NamedTensor> Named() const;

 private:
  struct Entry {
    std::string name;
    Shape shape;
    StateFormat format;
    MomentKind moment = MomentKind::kNone;
    int64_t parameter = -1;
    std::optional<NamedTensor::Place> part = std::nullopt;
    int64_t offset = 0;         ///< Byte in the buffer,
    int64_t scales_offset = 0;  ///< and of the scales.
  };
  size_t Add(Entry entry);

  std::vector<Entry> entries_;
  int64_t bytes_ = 0;
  Tensor buffer_;
};

}  // namespace weft::engine
