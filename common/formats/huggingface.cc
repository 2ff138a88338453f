// Names and shapes of the weights in Hugging Face's files.
#include "common/formats/huggingface.h"

#include <algorithm>
#include <utility>

#include "common/formats/huggingface_weights.h"
#include "common/model/encoder_names.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"

namespace weft {
namespace {

/// The shape of a parameter of a vit in files, where that differs.
std::vector<int64_t> ShapeInFile(const ModelSpec& model, const ParameterInfo& parameter) {
  if (model.family != "vit") return {};
  if (parameter.role == ParameterRole::kEmbeddingProjection && parameter.matrix()) {
    return {model.width, model.image_channels, model.patch_size, model.patch_size};
  }
  if (parameter.role != ParameterRole::kPositionEmbedding) return {};
  return {1, parameter.shape[0], parameter.shape[1]};
}

std::string NameInFile(const ModelSpec& model, const ParameterInfo& parameter) {
  if (model.family == "vit") return VitNameInFile(model, parameter.block, parameter.name);
  const std::string& name = parameter.name;
  return model.untied_classifier && name == kPredictionBias ? kDecoderBias : name;
}

}  // namespace

std::vector<uint64_t> FileShape(const HuggingFaceTensor& tensor) {
  std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (tensor.transposed) std::reverse(shape.begin(), shape.end());
  if (!tensor.file_shape.empty()) shape.assign(tensor.file_shape.begin(), tensor.file_shape.end());
  return shape;
}

uint64_t ElementCount(const HuggingFaceTensor& tensor) {
  uint64_t count = 1;
  for (int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
  return count;
}

std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& model) {
  std::vector<HuggingFaceTensor> tensors;
  const auto add = [&](const ParameterInfo& in_file, const std::string& parameter) {
    if (IsBranchScale(in_file.role)) return;
    const bool transposed =
        model.family == "gpt2" && in_file.block >= 0 && in_file.shape.size() == 2;
    tensors.push_back({NameInFile(model, in_file), parameter, in_file.shape, transposed,
                       ShapeInFile(model, in_file)});
  };
  bool blocks_done = false;
  for (const ParameterInfo& parameter : PlainParametersOf(model)) {
    if (parameter.block < 0) {
      add(parameter, parameter.name);
      continue;
    }
    if (std::exchange(blocks_done, true)) continue;
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      const auto own = PlainBlockParameters(model, layer);
      const auto shared = PlainBlockParameters(model, BlockOfLayer(model, layer));
      for (size_t i = 0; i < own.size(); ++i) add(own[i], shared[i].name);
    }
  }
  return tensors;
}

}  // namespace weft
