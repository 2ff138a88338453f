#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/json.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// A weight in a Hugging Face folder, and where it stands in the engine.
struct HuggingFaceTensor {
  std::string name;            ///< In files: "model.layers.3.mlp.down_proj.weight".
  std::string parameter;       ///< In the engine: another one's where layers share a block.
  std::vector<int64_t> shape;  ///< In the engine; a linear layer's weight is [out, in].
  bool transposed = false;     ///< Stands [in, out] in files: GPT-2's linear layers.
  std::vector<int64_t> file_shape = {};  ///< In files, where it is neither of these: ViT's patches.
};

/// Every weight of the model's files, in the order of the forward pass. A tied output projection
/// has no entry.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& model);

/// What a `config.json` of model_type gpt2, llama, mistral, qwen2, bert or vit says of a model. The
/// head of a bert is that of `architectures`: BertForMaskedLM or BertForSequenceClassification.
/// Architecture and sizes come from the file; the rest (dropout, initializer range, import path,
/// what is frozen) stays as in `base`, because it concerns training. Unrelated keys are ignored.
/// kInvalid when the file asks for something the engine does not compute (the message says what), a
/// size is missing or out of range, or `base` asks for an architecture that such files do not have.
Result<ModelSpec> ModelFromConfig(const Json& config, const ModelSpec& base);

/// Reads `folder`/config.json.
Result<ModelSpec> ReadModelConfig(Env& env, const std::string& folder, const ModelSpec& base);

/// Puts the sizes of the folder `job.model.import_path` into `job.model`; nothing without one.
/// Errors as ReadModelConfig, and kInvalid when the job's sequences are longer than the model's
/// context.
Status ResolveImportedModel(Env& env, JobSpec& job);

/// The config.json that ModelFromConfig and transformers (4 and 5) read back. `end_token` is the id
/// that ends a document; without it bos and eos are null. `classes` are the names of a
/// classifier's classes. kInvalid for a model that transformers
/// does not have.
Result<Json> ModelToConfig(const ModelSpec& model, std::optional<int64_t> end_token,
                           const std::vector<std::string>& classes = {});

/// Gives the memory for a weight: `shape` elements, row-major; more for the token embedding and the
/// classifier when the engine pads the vocabulary (the rows past it are left as they are).
using WeightBuffer = std::function<Result<std::span<float>>(const HuggingFaceTensor&)>;

/// Fills the engine's weights from the safetensors of a Hugging Face folder (one file or shards;
/// F32, BF16 or F16; with or without the prefix "transformer." or "model."). Buffers that old files
/// hold beside the weights are ignored, and so is an output projection equal to the embedding that
/// it is tied to. kInvalid names every missing and unknown tensor, the tensor whose shape or type
/// differs, with both shapes, or the tensor with a weight that is NaN or infinite.
Status ImportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightBuffer& buffer);

/// Gives the values of a weight as WeightBuffer does; valid until the next call.
using WeightValues = std::function<Result<std::span<const float>>(const HuggingFaceTensor&)>;

struct ExportOptions {
  std::optional<int64_t> end_token;  ///< Id of the end-of-text token.
  std::string tokenizer_json;        ///< Content of tokenizer.json; empty: none is written.
  std::string end_token_text;        ///< Spelling of the end token, for tokenizer_config.json.
  std::vector<std::string> classes;  ///< Names of the classes, for id2label; none: LABEL_0, ...
};

/// Writes a folder that transformers loads unchanged: model.safetensors (F32; shards past 5 GB),
/// generation_config.json, tokenizer.json and tokenizer_config.json when there is a tokenizer, and
/// config.json last. `model.vocab_size` rows of the embedding are written, whatever the engine's
/// padding; layers that share a block are written as equal ones. Each file is replaced atomically.
/// kInvalid as ModelToConfig.
Status ExportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightValues& values, const ExportOptions& options);

}  // namespace weft
