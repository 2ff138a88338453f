#include "worker/trainer/ticket.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/formats/safetensors.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::trainer {
namespace {

using engine::Parameter;
using engine::ParameterSet;

/// Which units of the sub-layers of a block are kept; none: all are.
struct BlockMasks {
  std::vector<uint8_t> attention, mlp;
};

/// Shapes of the masks in a checkpoint, by name.
Result<std::map<std::string, int64_t>> UnitsByName(Env& env, const std::string& folder,
                                                   const engine::CheckpointManifest& manifest,
                                                   const StateName& name) {
  std::map<std::string, int64_t> units;
  for (const engine::CheckpointFile& file : manifest.files) {
    WEFT_ASSIGN_OR_RETURN(const SafetensorsFile tensors,
                          SafetensorsFile::Open(env, JoinPath(folder, file.name)));
    for (const SafetensorsView& tensor : tensors.tensors()) {
      if (!tensor.name.starts_with(name.prefix) || !tensor.name.ends_with(name.suffix)) continue;
      if (tensor.shape.size() != 1 || tensor.shape[0] == 0) {
        return InvalidError(file.name + ": " + tensor.name + " is no mask of units");
      }
      units[tensor.name] = static_cast<int64_t>(tensor.shape[0]);
    }
  }
  return units;
}

/// By block.
Result<std::map<int64_t, BlockMasks>> LoadMasks(Env& env, const std::string& folder,
                                                const engine::CheckpointManifest& manifest,
                                                const StateName& name, const ParameterSet& whole) {
  WEFT_ASSIGN_OR_RETURN(const auto units, UnitsByName(env, folder, manifest, name));
  std::map<int64_t, BlockMasks> masks;
  for (const Parameter& weight : whole) {
    const auto found = units.find(name.prefix + weight.name + name.suffix);
    if (found == units.end()) continue;
    BlockMasks& block = masks[weight.block];
    std::vector<uint8_t>& mask =
        weight.role == ParameterRole::kAttentionOutput ? block.attention : block.mlp;
    mask.resize(static_cast<size_t>(found->second));
    WEFT_RETURN_IF_ERROR(engine::LoadTensors(
        env, folder, manifest, {{found->first, {mask.data(), DType::kU8, {found->second}}}},
        engine::ExtraTensors::kIgnore));
    if (std::count(mask.begin(), mask.end(), uint8_t{0}) < found->second) continue;
    return InvalidError("the checkpoint of step " + std::to_string(manifest.step) +
                        " has chosen no units yet; hint: take a later one");
  }
  return masks;
}

/// The positions along an axis of `extent` that a mask keeps.
std::vector<int64_t> Kept(const std::vector<uint8_t>* mask, int64_t extent) {
  std::vector<int64_t> kept;
  const int64_t each = mask == nullptr ? 1 : extent / std::ssize(*mask);
  for (int64_t i = 0; i < extent; ++i) {
    if (mask == nullptr || (*mask)[static_cast<size_t>(i / each)] != 0) kept.push_back(i);
  }
  return kept;
}

}  // namespace

Status LoadTicket(Env& env, const std::string& folder, const engine::CheckpointManifest& manifest,
                  const ExportedTicket& ticket, const ParameterSet& whole,
                  ParameterSet& parameters) {
  WEFT_ASSIGN_OR_RETURN(const auto masks, LoadMasks(env, folder, manifest, ticket.masks, whole));
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    WEFT_ASSIGN_OR_RETURN(const int64_t from, whole.Find(parameter.name));
    const auto block = masks.find(parameter.block);
    const std::vector<uint8_t>* mask = nullptr;
    if (block != masks.end()) {
      if (IsAttention(parameter.role)) mask = &block->second.attention;
      if (IsMlp(parameter.role)) mask = &block->second.mlp;
      if (mask != nullptr && mask->empty()) mask = nullptr;
    }
    const Shape& shape = whole[from].shape;
    const bool ends = EndsSubLayer(parameter.role);
    const bool matrix = shape.rank == 2;
    if (ends && !matrix) mask = nullptr;  // A bias of the sub-layer's result is kept whole.
    const int64_t extent = ends ? shape.Elements() / shape[0] : shape[0];
    if (mask != nullptr && extent % std::ssize(*mask) != 0) {
      return InvalidError("the masks of the checkpoint have " + std::to_string(std::ssize(*mask)) +
                          " units, which do not divide " + parameter.name);
    }
    const std::vector<int64_t> rows = Kept(ends ? nullptr : mask, shape[0]);
    const std::vector<int64_t> columns = Kept(ends ? mask : nullptr, shape.Elements() / shape[0]);
    if (std::ssize(rows) * std::ssize(columns) != parameter.shape.Elements()) {
      return InvalidError("the masks of the checkpoint keep another share of " + parameter.name +
                          " than model.structured_pruning says");
    }
    std::vector<float> values(static_cast<size_t>(shape.Elements())), kept;
    WEFT_RETURN_IF_ERROR(engine::Download(whole.stream(), whole.value(from), values.data()));
    kept.reserve(rows.size() * columns.size());
    for (const int64_t row : rows) {
      const float* line = values.data() + row * shape.Elements() / shape[0];
      for (const int64_t column : columns) kept.push_back(line[column]);
    }
    WEFT_RETURN_IF_ERROR(engine::Upload(parameters.stream(), kept.data(), parameters.value(i)));
  }
  return OkStatus();
}

}  // namespace weft::trainer
