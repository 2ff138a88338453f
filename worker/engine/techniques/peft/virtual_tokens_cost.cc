#include "worker/engine/techniques/peft/virtual_tokens_cost.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/parameter_name.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft {
namespace {

const char kEncoder[] = "prompt_encoder.";

/// A list under way.
struct Builder {
  std::vector<ParameterInfo> list;
  int64_t block = -1;

  ParameterInfo& Add(std::string name, std::vector<int64_t> shape, ParameterRole role) {
    ParameterInfo& added = list.emplace_back();
    added.name = std::move(name);
    added.shape = std::move(shape);
    added.role = role;
    added.block = block;
    added.adapter = AdapterSide::kNeither;
    added.of_virtual_tokens = true;
    return added;
  }
  void Table(std::string name, int64_t rows, int64_t columns, ParameterRole role) {
    Add(std::move(name), {rows, columns}, role).read_directly = true;
  }
  void Linear(const std::string& name, int64_t out, int64_t in, ParameterRole role) {
    Add(name + ".weight", {out, in}, role);
    Add(name + ".bias", {out}, role).bias = true;
  }
};

/// Whether sequence parallelism can partition the rows of blocks.
Status CheckSequenceParallel(const JobSpec& job) {
  const PeftSpec& spec = job.model.peft;
  const ResourceSpec& resources = job.resources;
  if (!resources.sequence_parallel || spec.method == "prefix") return OkStatus();
  const int64_t ranks = std::max<int64_t>(resources.tensor_parallel, 1);
  const int64_t length = SequenceLength(job);
  if ((length + spec.num_virtual_tokens) % ranks == 0) return OkStatus();
  return InvalidError("rows of " + std::to_string(length) + " tokens and " +
                      std::to_string(spec.num_virtual_tokens) +
                      " virtual tokens cannot be partitioned over " + std::to_string(ranks) +
                      " tensor-parallel ranks; hint: another model.peft.num_virtual_tokens");
}

}  // namespace

bool HasVirtualTokens(const PeftSpec& spec) {
  return spec.method == "prompt" || spec.method == "p_tuning" || spec.method == "prefix";
}

VirtualTokenCounts CountsOfVirtualTokens(const PeftSpec& spec) {
  if (!HasVirtualTokens(spec)) return {};
  return spec.method == "prefix" ? VirtualTokenCounts{.in_attention = spec.num_virtual_tokens}
                                 : VirtualTokenCounts{.in_blocks = spec.num_virtual_tokens};
}

bool EncodesVirtualTokens(const PeftSpec& spec) {
  return spec.method == "p_tuning" || (spec.method == "prefix" && spec.prefix_projection);
}

bool TrainsVirtualPositions(const ModelSpec& model) {
  const bool in_blocks = HasVirtualTokens(model.peft) && model.peft.method != "prefix";
  if (!in_blocks) return false;
  const std::vector<ParameterInfo> embeddings = PlainEmbeddingParameters(model);
  return std::any_of(embeddings.begin(), embeddings.end(), [&](const ParameterInfo& parameter) {
    return parameter.role == ParameterRole::kPositionEmbedding &&
           IsSavedWhole(model, parameter.name);
  });
}

int64_t EncoderWidth(const ModelSpec& model) {
  return model.peft.encoder_hidden_size > 0 ? model.peft.encoder_hidden_size : model.width;
}

std::vector<ParameterInfo> VirtualTokenTensors(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  const int64_t count = spec.num_virtual_tokens, inner = EncoderWidth(model);
  const bool prefix = spec.method == "prefix";
  const int64_t width = prefix ? KvWidth(model) : model.width;
  Builder add;
  if (spec.method == "prompt") {
    add.Table("prompt_embeddings", count, width, ParameterRole::kPositionEmbedding);
  }
  if (!EncodesVirtualTokens(spec)) return std::move(add.list);
  const std::string encoder = kEncoder;
  const ParameterRole role = ParameterRole::kEmbeddingProjection;
  add.Table(encoder + "embedding.weight", count, width, ParameterRole::kPositionEmbedding);
  if (prefix) {
    add.Linear(encoder + "transform.0", inner, width, role);
    for (ParameterInfo& tensor : add.list) tensor.of_all_blocks = true;
    return std::move(add.list);
  }
  add.Linear(encoder + "mlp_head.0", inner, width, role);
  add.Linear(encoder + "mlp_head.2", inner, inner, role);
  add.Linear(encoder + "mlp_head.4", width, inner, role);
  return std::move(add.list);
}

std::vector<ParameterInfo> PrefixTensors(const ModelSpec& model, const ParameterInfo& output) {
  Builder add;
  add.block = output.block;
  if (model.peft.method != "prefix" || output.role != ParameterRole::kAttentionOutput) return {};
  const std::string name = LayerOf(output.name) + ".prefix";
  const int64_t columns = 2 * KvWidth(model);
  if (model.peft.prefix_projection) {
    add.Linear(name, columns, EncoderWidth(model), ParameterRole::kValues);
  } else {
    add.Table(name, model.peft.num_virtual_tokens, columns, ParameterRole::kValues);
  }
  return std::move(add.list);
}

Status CheckVirtualTokens(const JobSpec& job) {
  const PeftSpec& spec = job.model.peft;
  const PeftSpec unset;
  const auto refused = [&](bool set, const std::string& field, const std::string& methods) {
    return !set ? OkStatus()
                : InvalidError("model.peft." + field + " with method " + spec.method +
                               "; hint: model.peft.method " + methods);
  };
  if (!HasVirtualTokens(spec)) {
    WEFT_RETURN_IF_ERROR(refused(spec.num_virtual_tokens != unset.num_virtual_tokens,
                                 "num_virtual_tokens", "prompt, p_tuning or prefix"));
  }
  WEFT_RETURN_IF_ERROR(
      refused(spec.prefix_projection && spec.method != "prefix", "prefix_projection", "prefix"));
  if (!EncodesVirtualTokens(spec)) {
    WEFT_RETURN_IF_ERROR(refused(spec.encoder_hidden_size > 0, "encoder_hidden_size",
                                 "p_tuning, or prefix with prefix_projection"));
  }
  if (!HasVirtualTokens(spec)) return OkStatus();
  if (!spec.layers_to_transform.empty()) {
    return InvalidError("model.peft.layers_to_transform with method " + spec.method +
                        ", which is for all layers; hint: leave it out");
  }
  WEFT_RETURN_IF_ERROR(CheckSequenceParallel(job));
  // Sizes of an imported model are not known yet.
  const int64_t left = job.model.context - spec.num_virtual_tokens;
  if (!job.model.import_path.empty() || SequenceLength(job) <= left) return OkStatus();
  return InvalidError("model.peft.num_virtual_tokens " + std::to_string(spec.num_virtual_tokens) +
                      " and sequences of " + std::to_string(SequenceLength(job)) +
                      " tokens have more positions than model.context " +
                      std::to_string(job.model.context) + "; hint: train.sequence_length " +
                      std::to_string(left > 0 ? left : 1) + ", or fewer virtual tokens");
}

}  // namespace weft
