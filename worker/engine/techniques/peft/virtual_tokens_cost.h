#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether the method trains vectors that stand for tokens before each sequence.
bool HasVirtualTokens(const PeftSpec& spec);

/// How many there are, and where.
VirtualTokenCounts CountsOfVirtualTokens(const PeftSpec& spec);

/// Whether a trained network makes them (p_tuning, and prefix with prefix_projection).
bool EncodesVirtualTokens(const PeftSpec& spec);

/// Whether virtual tokens have trained positions: a table of positions that modules_to_save names.
bool TrainsVirtualPositions(const ModelSpec& model);

/// The inner size of that network.
int64_t EncoderWidth(const ModelSpec& model);

/// The tensors at the embedding:
///   prompt    "prompt_embeddings" [n, width]
///   p_tuning  "prompt_encoder.embedding.weight" [n, width] and the layers
///             "prompt_encoder.mlp_head.0", ".2" and ".4", each .weight and .bias
///   prefix with prefix_projection
///             "prompt_encoder.embedding.weight" [n, kv] and the layer
///             "prompt_encoder.transform.0", with kv the width of all keys
std::vector<ParameterInfo> VirtualTokenTensors(const ModelSpec& model);

/// The tensors of prefix at the attention that the weight `output` ends: "<layer>.prefix"
/// [n, 2 kv], keys and values; with prefix_projection the layer "<layer>.prefix" that makes them,
/// .weight [2 kv, inner] and .bias.
std::vector<ParameterInfo> PrefixTensors(const ModelSpec& model, const ParameterInfo& output);

/// kInvalid where a field is of another method, or where tokens and virtual tokens are more than
/// positions.
Status CheckVirtualTokens(const JobSpec& job);

}  // namespace weft
