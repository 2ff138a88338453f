#include "worker/engine/train/state_places.h"

#include <cstdint>

namespace weft::engine {
namespace {

/// The shape of a tensor of a parameter of this shape.
Shape ShapeOf(const NamedTensor& tensor, Shape shape) {
  for (int i = 0; i < shape.rank; ++i) shape.dims[static_cast<size_t>(i)] /= tensor.block;
  if (shape.rank == 2) shape.dims[1] /= tensor.columns;
  return shape;
}

}  // namespace

void MarkPlaces(const TrainerParts& parts, std::vector<NamedTensor>& tensors, size_t of_all) {
  const ParameterSet& parameters = parts.model->parameters();
  const int64_t expert_ranks = parts.experts == nullptr ? 1 : parts.experts->degree();
  const bool first_chunks = parts.sequences == nullptr || parts.sequences->rank() == 0;
  const bool first_shards =
      parts.reducer == nullptr || parts.reducer->parts().empty() || parts.reducer->first_shards();
  for (size_t i = 0; i < tensors.size(); ++i) {
    NamedTensor& tensor = tensors[i];
    const bool first = first_chunks && (parts.rank < expert_ranks || i >= of_all);
    if (tensor.parameter < 0) {
      tensor.saved = first && (parts.rank == 0 || i >= of_all) &&
                     (parts.tensor == nullptr || parts.tensor->rank() == 0) &&
                     (parts.pipeline == nullptr || parts.pipeline->rank() == 0 || tensor.part);
      continue;
    }
    const Parameter& parameter = parameters[tensor.parameter];
    tensor.everywhere = parts.pipeline == nullptr && !parameter.of_shared_expert;
    tensor.saved = tensor.part ? parameters.CountsPart(tensor.parameter) && first_shards
                               : parameters.Counts(tensor.parameter) && first;
    if (parameter.shard.whole()) continue;
    if (tensor.columns == 0) {
      tensor.saved = tensor.saved && parts.tensor->rank() == 0;
      continue;
    }
    if (!tensor.part) {
      WEFT_CHECK(tensor.view.shape == ShapeOf(tensor, parameter.shape),
                 "state has the shape of its parameter");
      tensor.part.emplace();
    }
    tensor.part->whole = ShapeOf(tensor, parameter.logical_shape());
    tensor.part->shard = parameter.shard.InBlocks(tensor.block).InColumns(tensor.columns);
  }
}

}  // namespace weft::engine
