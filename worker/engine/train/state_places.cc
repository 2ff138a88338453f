#include "worker/engine/train/state_places.h"

#include <cstdint>
#include <map>
#include <string_view>

namespace weft::engine {
namespace {

/// The parameter whose state this is: names of state hold that of the parameter between slashes.
const int64_t* OwnerOf(std::string_view name,
                       const std::map<std::string_view, int64_t>& parameters) {
  while (true) {
    const size_t slash = name.find('/');
    const auto found = parameters.find(name.substr(0, slash));
    if (found != parameters.end()) return &found->second;
    if (slash == std::string_view::npos) return nullptr;
    name.remove_prefix(slash + 1);
  }
}

}  // namespace

void MarkPlaces(const TrainerParts& parts, std::vector<NamedTensor>& tensors, size_t of_all) {
  const ParameterSet& parameters = parts.model->parameters();
  std::map<std::string_view, int64_t> indices;
  for (int64_t i = 0; i < parameters.size(); ++i) indices[parameters[i].name] = i;
  const int64_t expert_ranks = parts.experts == nullptr ? 1 : parts.experts->degree();
  const bool first_chunks = parts.sequences == nullptr || parts.sequences->rank() == 0;
  const bool first_shards =
      parts.reducer == nullptr || parts.reducer->parts().empty() || parts.reducer->first_shards();
  for (size_t i = 0; i < tensors.size(); ++i) {
    NamedTensor& tensor = tensors[i];
    const bool first = first_chunks && (parts.rank < expert_ranks || i >= of_all);
    const int64_t* owner = OwnerOf(tensor.name, indices);
    if (owner == nullptr) {
      tensor.saved = first && (parts.rank == 0 || i >= of_all) &&
                     (parts.tensor == nullptr || parts.tensor->rank() == 0) &&
                     (parts.pipeline == nullptr || parts.pipeline->rank() == 0 || tensor.part);
      continue;
    }
    const Parameter& parameter = parameters[*owner];
    tensor.everywhere = parts.pipeline == nullptr && !parameter.of_shared_expert;
    tensor.saved = tensor.part ? parameters.CountsPart(*owner) && first_shards
                               : parameters.Counts(*owner) && first;
    if (parameter.shard.whole()) continue;
    if (!tensor.part) {
      WEFT_CHECK(tensor.view.shape == parameter.shape, "state has the shape of its parameter");
      tensor.part = {.whole = parameter.logical_shape(), .shard = parameter.shard};
      continue;
    }
    tensor.part->whole = parameter.logical_shape();
    tensor.part->shard = parameter.shard;
  }
}

}  // namespace weft::engine
