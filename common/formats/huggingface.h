#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/env.h"
#include "common/formats/tokenizer.h"
#include "common/formats/usage_files.h"
#include "common/json.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// A weight in a Hugging Face folder, and where it is in the engine.
struct HuggingFaceTensor {
  std::string name;            ///< In files: "model.layers.3.mlp.down_proj.weight".
  std::string parameter;       ///< In the engine: another one's where layers share a block.
  std::vector<int64_t> shape;  ///< In the engine; a linear layer's weight is [out, in].
  bool transposed = false;     ///< Stored as [in, out] in files: GPT-2's linear layers.
  std::vector<int64_t> file_shape = {};  ///< In files, where it is neither of these: ViT's patches.
};

/// Every weight of the model's files, in the order of the forward pass. A tied output projection
/// has no entry.
std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& model);

/// What a `config.json` of model_type gpt2, llama, mistral, qwen2, bert or vit says of a model.
/// Architecture and sizes come from the file, and what changes the objective (dropout of both
/// kinds, the weight of the balancing loss) does where `base` leaves it open; the rest (initializer
/// range, import path, what is frozen) stays as in `base`, because it concerns training. The head
/// is that of the file too, unless base.head asks for classification, or base.classes for another
/// number of them: see HasHead. Unrelated keys are ignored. kInvalid when the file asks for
/// something the engine does not compute (the message says what), a size is missing or out of
/// range, or `base` asks for an architecture that such files do not have.
Result<ModelSpec> ModelFromConfig(const Json& config, const ModelSpec& base);

/// Reads `folder`/config.json.
Result<ModelSpec> ReadModelConfig(Env& env, const std::string& folder, const ModelSpec& base);

/// The head of the weights, by the file of a folder.
struct ImportedHead {
  std::string head;  ///< As in ModelSpec, or "": the weights are those of a body alone.
  int64_t classes = 0;
  std::vector<std::string> class_names;  ///< Of id2label; empty when they are LABEL_0, LABEL_1, ...
};

/// Reads `folder`/config.json. Errors as ReadModelConfig.
Result<ImportedHead> ReadHead(Env& env, const std::string& folder);

/// Whether the folder has the weights of `model`'s head; otherwise that head is a new one.
bool HasHead(const ImportedHead& imported, const ModelSpec& model);

/// Puts the sizes of the folder `job.model.import_path` into `job.model`, or those of a job with
/// phases into these (SpreadImportedSizes), and what that of `job.model.peft.import_path` says into
/// `job.model.peft`; nothing without one. Changes nothing when it is called again. Errors as
/// ReadModelConfig and ReadAdapterConfig, and kInvalid when the model cannot do what the job asks
/// of it.
Status ResolveImportedModel(Env& env, JobSpec& job);

/// The config.json that ModelFromConfig and transformers (4 and 5) read back, without the ids of
/// special tokens. `classes` are the names of a classifier's classes. kInvalid for a model that
/// transformers does not have.
Result<Json> ModelToConfig(const ModelSpec& model, const std::vector<std::string>& classes = {});

/// Gives the memory for a weight: `shape` elements, row-major; more for the token embedding and the
/// classifier when the engine pads the vocabulary (the rows past it are left as they are).
using WeightBuffer = std::function<Result<std::span<float>>(const HuggingFaceTensor&)>;

/// Where the weights of a head come from.
enum class HeadWeights : uint8_t {
  kFromFile,
  /// Not from the file, whatever it has of a head. A bert's pooler is taken if it is there.
  kLeaveAsTheyAre,
};

/// Fills the engine's weights from the safetensors of a Hugging Face folder (one file or shards;
/// F32, BF16 or F16; with or without the prefix "transformer.", "model.", "bert." or "vit."; norms
/// of gamma and beta; with what torch.compile and wrappers of PyTorch put into names). Buffers that
/// some versions store with the weights are ignored, and so are heads that the model does not
/// have and copies of what they are tied to. Of a bert whose classifier is untied the decoder's
/// bias is taken, as in transformers 5. kInvalid names every missing and unknown tensor, the tensor
/// whose shape or type differs, with both shapes, a copy that differs from what it is tied to, or
/// the tensor with a weight that is NaN or infinite.
Status ImportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightBuffer& buffer, HeadWeights head = HeadWeights::kFromFile);

/// Gives the values of a weight as WeightBuffer does; valid until the next call.
using WeightValues = std::function<Result<std::span<const float>>(const HuggingFaceTensor&)>;

struct ExportOptions {
  const Tokenizer* tokenizer = nullptr;  ///< None: no files of a tokenizer are written.
  UsageFiles imported;                   ///< Of the model that training began with.
  std::vector<std::string> classes;      ///< Names of the classes, for id2label; none: LABEL_0, ...
  std::string preprocessor_json;         ///< Content of preprocessor_config.json; empty: none.
  DType dtype = DType::kF32;             ///< Of the weights: kF32, kBF16 or kF16.
  /// Writes matrices of linear layers that have two of four numbers in their rows as the library
  /// compressed-tensors does (two_of_four_bitmask.h), and says so in config.json.
  bool compresses = false;
};

/// The preprocessor_config.json that scales images for `model`, a vit, as DataSpec does.
std::string PreprocessorConfig(const ModelSpec& model, const DataSpec& data);

/// Writes a folder that transformers 4 and 5 load unchanged, without missing weights:
/// model.safetensors (shards past 5 GB), generation_config.json of language models (the import's,
/// with the ids of this tokenizer), the files of DescribeTokenizer when there is a tokenizer,
/// preprocessor_config.json, and config.json last. `model.vocab_size` rows of the embedding are
/// written, whatever the engine's padding; layers that share a block are written as equal ones.
/// Each file is replaced atomically. kInvalid as ModelToConfig and DescribeTokenizer, when a weight
/// is past what options.dtype holds, and when options.compresses finds nothing to compress.
Status ExportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightValues& values, const ExportOptions& options);

}  // namespace weft
