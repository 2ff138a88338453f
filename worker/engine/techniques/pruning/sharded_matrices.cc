#include "worker/engine/techniques/pruning/sharded_matrices.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/cpu/float_types.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

Result<std::vector<float>> FetchFloats(const Stream& stream, const TensorView& view) {
  std::vector<float> floats(static_cast<size_t>(view.shape.Elements()));
  if (floats.empty()) return floats;
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(stream, view));
  kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
    const T* from = copy.view().As<T>();
    std::transform(from, from + floats.size(), floats.begin(), [](T x) { return ToFloat(x); });
  });
  return floats;
}

ShardedMatrices::ShardedMatrices(const TrainingParts* parts) : parts_(parts) {
  for (const UpdatedParameters& updated : parts->updated) {
    for (const ParameterPart& part : updated.parts) {
      if (!part.whole) updated_.emplace(part.index, part);
    }
  }
}

Result<std::vector<float>> ShardedMatrices::Value(int64_t parameter) const {
  const ParameterSet& parameters = *parts_->parameters;
  WEFT_ASSIGN_OR_RETURN(std::vector<float> own,
                        FetchFloats(parts_->context->stream, HeldValue(parameter).view));
  if (!parameters.values_sharded() || parameters[parameter].replicated) return own;
  return parts_->gather_parts(parameter, own);
}

Result<std::vector<float>> ShardedMatrices::Gradient(int64_t parameter) const {
  WEFT_ASSIGN_OR_RETURN(std::vector<float> own,
                        FetchFloats(parts_->context->stream, HeldGradient(parameter).view));
  return Whole(parameter, std::move(own));
}

Result<std::vector<float>> ShardedMatrices::Whole(int64_t parameter, std::vector<float> own) const {
  if (!updated_.contains(parameter)) return own;
  return parts_->gather_parts(parameter, own);
}

ShardedMatrices::Held ShardedMatrices::HeldGradient(int64_t parameter) const {
  const auto part = updated_.find(parameter);
  if (part == updated_.end()) return {0, parts_->parameters->gradient(parameter)};
  return {part->second.first, part->second.gradient};
}

}  // namespace weft::engine
