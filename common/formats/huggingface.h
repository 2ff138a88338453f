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

/// A weight of a GPT-2 model, as Hugging Face names it and as Weft's engine stores it.
struct Gpt2Tensor {
  std::string name;            ///< Without prefix: "h.0.attn.c_attn.weight".
  std::vector<int64_t> shape;  ///< In the engine; a linear layer's weight is [out, in].
  bool conv1d = false;         ///< Stands transposed, [in, out], in Hugging Face files.
};

/// Every weight of the model, once, in the order of the forward pass. The output projection is tied
/// to "wte.weight" and has no entry. c_attn holds query, key and value as three blocks of rows.
std::vector<Gpt2Tensor> Gpt2Tensors(const ModelSpec& model);

/// What `config.json` says of a model. Sizes, vocabulary, context and norm epsilon come from the
/// file; family is gpt2; the rest (dropout, initializer range, import path) stays as in `base`,
/// because it concerns training. Unrelated keys are ignored. kInvalid when the file asks for
/// something the engine does not compute (another activation, untied embeddings, attention scaled
/// by layer, cross attention) or a size is missing or out of range.
Result<ModelSpec> Gpt2FromConfig(const Json& config, const ModelSpec& base);

/// Reads `folder`/config.json.
Result<ModelSpec> ReadGpt2Config(Env& env, const std::string& folder, const ModelSpec& base);

/// Puts the sizes of the folder `job.model.import_path` into `job.model`; nothing without one. Errors
/// as ReadGpt2Config, and kInvalid when the job's sequences are longer than the model's context.
Status ResolveImportedModel(Env& env, JobSpec& job);

/// The config.json that Gpt2FromConfig and transformers read back. `end_token` is the id that ends
/// a document; without it bos and eos are null.
Json Gpt2ToConfig(const ModelSpec& model, std::optional<int64_t> end_token);

/// Gives the memory for a weight: `shape` elements, row-major; more for "wte.weight" when the
/// engine pads the vocabulary (the rows past it are left as they are).
using WeightBuffer = std::function<Result<std::span<float>>(const Gpt2Tensor&)>;

/// Fills the engine's weights from the safetensors of a Hugging Face folder (one file or shards;
/// F32, BF16 or F16; with or without the prefix "transformer."). Attention mask buffers of old
/// files are ignored, and so is an output projection equal to the embedding. kInvalid names every
/// missing and unknown tensor, the tensor whose shape or type differs, with both shapes, or the
/// tensor with a weight that is NaN or infinite.
Status ImportGpt2(Env& env, const std::string& folder, const ModelSpec& model,
                  const WeightBuffer& buffer);

/// Gives the values of a weight as WeightBuffer does; valid until the next call.
using WeightValues = std::function<Result<std::span<const float>>(const Gpt2Tensor&)>;

struct Gpt2ExportOptions {
  std::optional<int64_t> end_token;  ///< Id of the end-of-text token.
  std::string tokenizer_json;        ///< Content of tokenizer.json; empty: none is written.
  std::string end_token_text;        ///< Spelling of the end token, for tokenizer_config.json.
};

/// Writes a folder that transformers loads unchanged: model.safetensors (F32; shards past 5 GB),
/// generation_config.json, tokenizer.json and tokenizer_config.json when there is a tokenizer, and
/// config.json last. `model.vocab_size` rows of the embedding are written, whatever the engine's
/// padding. Each file is replaced atomically.
Status ExportGpt2(Env& env, const std::string& folder, const ModelSpec& model,
                  const WeightValues& values, const Gpt2ExportOptions& options);

}  // namespace weft
