#include "worker/engine/train/group_norms.h"

#include <array>
#include <string>

#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"

namespace weft::engine {
namespace {

constexpr std::array<std::string_view, kParameterGroups> kGroups = {"embedding", "attention", "mlp",
                                                                    "norms", "head"};

// Whether parameter `index` counts in `group`; of a derived one its sources do.
bool BelongsTo(const ParameterSet& parameters, int64_t index, std::string_view group) {
  return GroupOf(parameters[index].role) == group && !parameters[index].derived();
}

/// Whether this rank counts its part of the value of `index`. Next to sharded values all ranks have
/// what is replicated, and the first one counts it.
bool CountsValue(const ParameterSet& parameters, int64_t index) {
  if (!parameters.values_sharded()) return parameters.Counts(index);
  const bool first = !parameters[index].replicated || parameters.shard_rank() == 0;
  return parameters.CountsPart(index) && first;
}

/// Measures parameters in a file.
Status MeasureFile(ParameterFile* file, GroupSums* sums, std::span<const ParameterPart> parts) {
  const ParameterSet& parameters = file->parameters();
  std::array<NormStream, kParameterGroups> gradients, values;
  ParameterFileIterator walk(file, {.values = true, .gradients = true});
  const auto add = [](const TensorView& view, NormStream& stream) -> Status {
    WEFT_RETURN_IF_ERROR(stream.Add(NormTensorOf(view)));
    return stream.EndTensor();
  };
  const std::vector<ParameterPart> whole =
      parts.empty() ? TrainedParts(parameters) : std::vector<ParameterPart>();
  if (parts.empty()) parts = whole;
  auto part = parts.begin();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    WEFT_RETURN_IF_ERROR(walk.MoveTo(parameters[i].unit));
    const bool trained = part != parts.end() && part->index == i;
    const bool counts_gradient = whole.empty() ? parameters.CountsPart(i) : parameters.Counts(i);
    for (size_t g = 0; g < kGroups.size(); ++g) {
      if (!BelongsTo(parameters, i, kGroups[g])) continue;
      if (CountsValue(parameters, i)) {
        WEFT_RETURN_IF_ERROR(add(parameters.held_value(i).view, values[g]));
      }
      if (trained && counts_gradient && part->count() > 0) {
        WEFT_RETURN_IF_ERROR(add(file->InMemory(*part).gradient, gradients[g]));
      }
    }
    if (trained) ++part;
  }
  for (size_t g = 0; g < kGroups.size(); ++g) {
    sums[g] = {.gradients = gradients[g].sums(), .values = values[g].sums()};
  }
  return walk.Finish();
}

}  // namespace

std::string_view GroupOf(ParameterRole role) {
  switch (role) {
    case ParameterRole::kTokenEmbedding:
    case ParameterRole::kPositionEmbedding:
    case ParameterRole::kEmbeddingProjection:
      return "embedding";
    case ParameterRole::kQueriesKeysValues:
    case ParameterRole::kQueriesKeys:
    case ParameterRole::kValues:
    case ParameterRole::kAttentionOutput:
    case ParameterRole::kAttentionScale:
      return "attention";
    case ParameterRole::kMlpUp:
    case ParameterRole::kMlpDown:
    case ParameterRole::kMlpScale:
    case ParameterRole::kRouter:
      return "mlp";
    case ParameterRole::kNorm:
    case ParameterRole::kHeadNorm:
      return "norms";
    case ParameterRole::kHeadTransform:
    case ParameterRole::kClassifier:
      break;
  }
  return "head";
}

Status MeasureGroups(Context& context, const ParameterSet& parameters, GroupSums* sums,
                     std::span<const ParameterPart> parts) {
  if (parameters.file() != nullptr) return MeasureFile(parameters.file(), sums, parts);
  for (size_t g = 0; g < kGroups.size(); ++g) {
    std::vector<kernels::NormTensor> gradients;
    std::vector<kernels::NormTensor> values;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!CountsValue(parameters, i) || !BelongsTo(parameters, i, kGroups[g])) continue;
      if (parameters[i].quantized_words == 0) {
        values.push_back(NormTensorOf(parameters.held_value(i).view));
      }
      if (parameters[i].trainable() && parts.empty()) {
        gradients.push_back(NormTensorOf(parameters.gradient(i)));
      }
    }
    for (const ParameterPart& part : parts) {
      if (!BelongsTo(parameters, part.index, kGroups[g]) || !parameters.CountsPart(part.index)) {
        continue;
      }
      gradients.push_back(NormTensorOf(part.gradient));
    }
    if (values.empty() && gradients.empty()) continue;
    WEFT_RETURN_IF_ERROR(Measure(context, gradients, &sums[g].gradients));
    WEFT_RETURN_IF_ERROR(Measure(context, values, &sums[g].values));
  }
  return OkStatus();
}

std::vector<GroupNorm> GroupNorms(const ParameterSet& parameters, const GroupSums* sums,
                                  double loss_scale) {
  std::vector<GroupNorm> norms;
  for (size_t g = 0; g < kGroups.size(); ++g) {
    bool any = false;
    for (int64_t i = 0; i < parameters.size(); ++i) any |= BelongsTo(parameters, i, kGroups[g]);
    // Another stage of a pipeline may have all parameters of a group.
    any = any || (parameters.of_stage() && sums[g].values.squares > 0);
    if (!any) continue;
    norms.push_back(
        {std::string(kGroups[g]), sums[g].gradients.Norm() / loss_scale, sums[g].values.Norm()});
  }
  return norms;
}

}  // namespace weft::engine
