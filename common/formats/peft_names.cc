#include "common/formats/peft_names.h"

#include <algorithm>
#include <string>

namespace weft {

ModelSpec NamedAsIn(const SafetensorsFile& file, const ModelSpec& model) {
  // Where transformers 5 has the blocks of a vit; 4 has them in vit.encoder.layer.
  static const std::string blocks = std::string(kNetworkPrefix) + "vit.layers.";
  const bool newer =
      model.family == "vit" &&
      std::any_of(file.tensors().begin(), file.tensors().end(),
                  [](const SafetensorsView& tensor) { return tensor.name.starts_with(blocks); });
  ModelSpec named = model;
  named.peft.module_names = newer ? kTransformers5Names : kTransformers4Names;
  return named;
}

std::vector<HuggingFaceTensor> NetworkTensors(const ModelSpec& model) {
  std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(model);
  if (!HasTransformers5Names(model)) return tensors;
  for (HuggingFaceTensor& tensor : tensors) tensor.name = tensor.parameter;
  return tensors;
}

}  // namespace weft
