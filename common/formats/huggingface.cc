#include "common/formats/huggingface.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>

#include "common/dtype.h"
#include "common/formats/safetensors_index.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kEmbedding = "wte.weight";
constexpr std::string_view kOutput = "lm_head.weight";
constexpr uint64_t kMaxShardBytes = 5'000'000'000;

/// One switch of config.json that must have a certain value, the default when absent.
struct RequiredSwitch {
  const char* key;
  bool value;
  const char* meaning;
};

constexpr RequiredSwitch kSwitches[] = {
    {"tie_word_embeddings", true, "an output projection apart from the embedding"},
    {"scale_attn_weights", true, "attention without the 1/sqrt(head size) scale"},
    {"scale_attn_by_inverse_layer_idx", false, "attention scaled by the layer's number"},
    {"add_cross_attention", false, "cross attention"},
};

Status ReadSize(const Json& config, const char* key, int64_t& out) {
  auto it = config.find(key);
  if (it == config.end()) return InvalidError(std::string("config.json has no ") + key);
  if (!it->is_number_integer() || (it->is_number_unsigned() && it->get<uint64_t>() > 1u << 30)) {
    return InvalidError(std::string(key) + " in config.json must be a whole number, not " +
                        it->dump());
  }
  out = it->get<int64_t>();
  return OkStatus();
}

/// "h.3.attn.bias" and "h.3.attn.masked_bias": the causal mask, stored by old versions.
bool IsMaskBuffer(std::string_view name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

std::vector<uint64_t> FileShape(const Gpt2Tensor& tensor) {
  std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (tensor.conv1d) std::reverse(shape.begin(), shape.end());
  return shape;
}

uint64_t Elements(const Gpt2Tensor& tensor) {
  uint64_t count = 1;
  for (int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
  return count;
}

/// Reads elements [first, first + out.size()) as floats. The type is one of the three below.
void ReadFloats(const SafetensorsView& view, uint64_t first, std::span<float> out) {
  if (view.type == SafetensorsType::kF32) {
    std::memcpy(out.data(), view.bytes.data() + first * sizeof(float), out.size_bytes());
    return;
  }
  const std::byte* from = view.bytes.data() + first * sizeof(uint16_t);
  bool brain = view.type == SafetensorsType::kBF16;
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    out[i] = brain ? ToFloat(BFloat16{bits}) : ToFloat(Half{bits});
  }
}

bool IsReadable(SafetensorsType type) {
  return type == SafetensorsType::kF32 || type == SafetensorsType::kBF16 ||
         type == SafetensorsType::kF16;
}

/// Copies a weight into the engine's layout.
void Load(const SafetensorsView& view, const Gpt2Tensor& tensor, std::span<float> out) {
  if (!tensor.conv1d) {
    ReadFloats(view, 0, out.first(Elements(tensor)));
    return;
  }
  const auto rows = static_cast<uint64_t>(tensor.shape[1]);
  const auto columns = static_cast<uint64_t>(tensor.shape[0]);
  // Sixteen rows at a time, so that each written cache line is filled at once.
  constexpr uint64_t kRows = 16;
  std::vector<float> block(kRows * columns);
  for (uint64_t row = 0; row < rows; row += kRows) {
    uint64_t count = std::min(kRows, rows - row);
    ReadFloats(view, row * columns, std::span(block).first(count * columns));
    for (uint64_t column = 0; column < columns; ++column) {
      for (uint64_t r = 0; r < count; ++r) {
        out[column * rows + row + r] = block[r * columns + column];
      }
    }
  }
}

/// Hands the engine's weight to a file in the file's layout.
Status Store(std::span<const float> values, const Gpt2Tensor& tensor, const ByteSink& sink) {
  if (!tensor.conv1d) return sink(std::as_bytes(values.first(Elements(tensor))));
  const auto rows = static_cast<uint64_t>(tensor.shape[1]);
  const auto columns = static_cast<uint64_t>(tensor.shape[0]);
  constexpr uint64_t kRows = 64;
  std::vector<float> block(kRows * columns);
  for (uint64_t row = 0; row < rows; row += kRows) {
    uint64_t count = std::min(kRows, rows - row);
    for (uint64_t column = 0; column < columns; ++column) {
      for (uint64_t r = 0; r < count; ++r) {
        block[r * columns + column] = values[column * rows + row + r];
      }
    }
    WEFT_RETURN_IF_ERROR(sink(std::as_bytes(std::span(block).first(count * columns))));
  }
  return OkStatus();
}

using Views = std::map<std::string_view, const SafetensorsView*>;

/// The file's tensors by unprefixed name, without what carries no weights.
Result<Views> UsefulTensors(const SafetensorsFolder& files) {
  Views views;
  for (const auto& [name, view] : files.tensors()) {
    std::string_view plain = name;
    if (plain.starts_with(kPrefix)) plain.remove_prefix(kPrefix.size());
    if (IsMaskBuffer(plain)) continue;
    if (!views.emplace(plain, view).second) {
      return InvalidError("the weights hold " + std::string(plain) +
                          " twice, with and without the prefix " + std::string(kPrefix));
    }
  }
  auto output = views.find(kOutput);
  if (output == views.end()) return views;
  auto embedding = views.find(kEmbedding);
  if (embedding != views.end() && embedding->second->type == output->second->type &&
      std::ranges::equal(embedding->second->bytes, output->second->bytes)) {
    views.erase(output);
    return views;
  }
  return InvalidError(
      "lm_head.weight differs from wte.weight: a model whose output projection is not tied to its "
      "embedding cannot be imported");
}

std::string Join(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

/// The weights must be exactly those of the model, in shapes and types that can be read.
Status CheckTensors(const std::vector<Gpt2Tensor>& tensors, const Views& views) {
  std::vector<std::string> missing;
  std::map<std::string_view, bool> known;
  for (const Gpt2Tensor& tensor : tensors) {
    known[tensor.name] = true;
    if (!views.contains(tensor.name)) missing.push_back(tensor.name);
  }
  std::vector<std::string> unknown;
  for (const auto& [name, view] : views) {
    if (!known.contains(name)) unknown.emplace_back(name);
  }
  if (!missing.empty() || !unknown.empty()) {
    std::string text = "the weights do not fit the model:";
    if (!missing.empty()) text += " missing " + Join(missing) + ";";
    if (!unknown.empty()) text += " unknown " + Join(unknown) + ";";
    return InvalidError(text + " hint: config.json must belong to these weights");
  }
  for (const Gpt2Tensor& tensor : tensors) {
    const SafetensorsView& view = *views.at(tensor.name);
    std::vector<uint64_t> expected = FileShape(tensor);
    if (view.shape != expected) {
      return InvalidError("tensor " + tensor.name + " is " + DescribeTensor(view.type, view.shape) +
                          " in the file, but the model needs " +
                          DescribeTensor(SafetensorsType::kF32, expected));
    }
    if (!IsReadable(view.type)) {
      return InvalidError("tensor " + tensor.name + " has type " +
                          std::string(SafetensorsTypeName(view.type)) +
                          "; F32, BF16 and F16 can be imported");
    }
  }
  return OkStatus();
}

Status WriteTokenizer(Env& env, const std::string& folder, const ModelSpec& model,
                      const Gpt2ExportOptions& options) {
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, JoinPath(folder, "tokenizer.json"), options.tokenizer_json));
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["model_max_length"] = model.context;
  config["clean_up_tokenization_spaces"] = false;
  if (!options.end_token_text.empty()) {
    config["bos_token"] = options.end_token_text;
    config["eos_token"] = options.end_token_text;
    config["unk_token"] = options.end_token_text;
  }
  return WriteFileAtomic(env, JoinPath(folder, "tokenizer_config.json"), config.dump(2) + "\n");
}

}  // namespace

std::vector<Gpt2Tensor> Gpt2Tensors(const ModelSpec& model) {
  const int64_t width = model.width;
  const int64_t inner = MlpWidth(model);
  std::vector<Gpt2Tensor> tensors;
  auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    tensors.push_back({name + ".weight", {out, in}, true});
    tensors.push_back({name + ".bias", {out}, false});
  };
  auto norm = [&](const std::string& name) {
    tensors.push_back({name + ".weight", {width}, false});
    tensors.push_back({name + ".bias", {width}, false});
  };
  tensors.push_back({std::string(kEmbedding), {model.vocab_size, width}, false});
  tensors.push_back({"wpe.weight", {model.context, width}, false});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer);
    norm(block + ".ln_1");
    linear(block + ".attn.c_attn", 3 * width, width);
    linear(block + ".attn.c_proj", width, width);
    norm(block + ".ln_2");
    linear(block + ".mlp.c_fc", inner, width);
    linear(block + ".mlp.c_proj", width, inner);
  }
  norm("ln_f");
  return tensors;
}

Result<ModelSpec> Gpt2FromConfig(const Json& config, const ModelSpec& base) {
  if (!config.is_object()) return InvalidError("config.json is not a JSON object");
  if (std::string type = config.contains("model_type") ? config["model_type"].dump() : "absent";
      type != "\"gpt2\"") {
    return InvalidError("model_type in config.json is " + type + "; only \"gpt2\" can be imported");
  }
  if (auto it = config.find("activation_function");
      it != config.end() && *it != "gelu_new" && *it != "gelu_pytorch_tanh") {
    return InvalidError("activation_function in config.json is " + it->dump() +
                        "; only \"gelu_new\" (tanh GELU) is computed");
  }
  for (const RequiredSwitch& item : kSwitches) {
    auto it = config.find(item.key);
    if (it != config.end() && *it != item.value) {
      return InvalidError(std::string(item.key) + " in config.json is " + it->dump() + ": " +
                          item.meaning + " is not supported");
    }
  }
  ModelSpec model = base;
  model.family = "gpt2";
  model.mlp_width = 0;
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_layer", model.layers));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_embd", model.width));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_head", model.heads));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "n_positions", model.context));
  WEFT_RETURN_IF_ERROR(ReadSize(config, "vocab_size", model.vocab_size));
  if (auto it = config.find("n_inner"); it != config.end() && !it->is_null()) {
    WEFT_RETURN_IF_ERROR(ReadSize(config, "n_inner", model.mlp_width));
  }
  if (auto it = config.find("layer_norm_epsilon"); it != config.end()) {
    if (!it->is_number()) {
      return InvalidError("layer_norm_epsilon in config.json is " + it->dump());
    }
    model.norm_epsilon = it->get<double>();
  }
  if (Result<ModelSpec> checked = FromJson<ModelSpec>(ToJson(model)); !checked.ok()) {
    return checked.status().WithContext("config.json does not give a model");
  }
  if (model.vocab_size < 1 || model.width % model.heads != 0) {
    return InvalidError("config.json does not give a model: vocab_size " +
                        std::to_string(model.vocab_size) + " must be positive and n_embd " +
                        std::to_string(model.width) + " a multiple of n_head " +
                        std::to_string(model.heads));
  }
  return model;
}

Result<ModelSpec> ReadGpt2Config(Env& env, const std::string& folder, const ModelSpec& base) {
  const std::string path = JoinPath(folder, "config.json");
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, 16 << 20));
  Result<Json> config = ParseJson(text);
  if (!config.ok()) return config.status().WithContext(path);
  Result<ModelSpec> model = Gpt2FromConfig(*config, base);
  if (!model.ok()) return model.status().WithContext(path);
  return model;
}

Status ResolveImportedModel(Env& env, JobSpec& job) {
  if (job.model.import_path.empty()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(job.model, ReadGpt2Config(env, job.model.import_path, job.model));
  if (SequenceLength(job) <= job.model.context) return OkStatus();
  return InvalidError("train.sequence_length " + std::to_string(SequenceLength(job)) +
                      " is longer than the context " + std::to_string(job.model.context) +
                      " of the model in " + job.model.import_path);
}

Json Gpt2ToConfig(const ModelSpec& model, std::optional<int64_t> end_token) {
  Json config;
  config["architectures"] = {"GPT2LMHeadModel"};
  config["model_type"] = "gpt2";
  config["activation_function"] = "gelu_new";
  config["n_layer"] = model.layers;
  config["n_embd"] = model.width;
  config["n_head"] = model.heads;
  config["n_inner"] = model.mlp_width > 0 ? Json(model.mlp_width) : Json(nullptr);
  config["n_positions"] = model.context;
  config["n_ctx"] = model.context;
  config["vocab_size"] = model.vocab_size;
  config["layer_norm_epsilon"] = model.norm_epsilon;
  config["initializer_range"] = model.initializer_range;
  config["resid_pdrop"] = model.dropout;
  config["embd_pdrop"] = model.dropout;
  config["attn_pdrop"] = 0.0;
  config["scale_attn_weights"] = true;
  config["scale_attn_by_inverse_layer_idx"] = false;
  config["reorder_and_upcast_attn"] = false;
  config["tie_word_embeddings"] = true;
  config["torch_dtype"] = "float32";
  config["use_cache"] = true;
  config["bos_token_id"] = end_token ? Json(*end_token) : Json(nullptr);
  config["eos_token_id"] = config["bos_token_id"];
  return config;
}

Status ImportGpt2(Env& env, const std::string& folder, const ModelSpec& model,
                  const WeightBuffer& buffer) {
  WEFT_ASSIGN_OR_RETURN(SafetensorsFolder files, SafetensorsFolder::Open(env, folder));
  Result<Views> views = UsefulTensors(files);
  if (!views.ok()) return views.status().WithContext("importing " + folder);
  std::vector<Gpt2Tensor> tensors = Gpt2Tensors(model);
  if (Status s = CheckTensors(tensors, *views); !s.ok()) {
    return s.WithContext("importing " + folder);
  }
  for (const Gpt2Tensor& tensor : tensors) {
    WEFT_ASSIGN_OR_RETURN(std::span<float> out, buffer(tensor));
    WEFT_CHECK(out.size() >= Elements(tensor), "buffer too small for " + tensor.name);
    Load(*views->at(tensor.name), tensor, out);
    const std::span<float> values = out.first(Elements(tensor));
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return InvalidError("importing " + folder + ": tensor '" + tensor.name +
                          "' holds NaN or infinite weights; hint: nothing can be trained from "
                          "them, look at how the folder was made");
    }
  }
  return OkStatus();
}

Status ExportGpt2(Env& env, const std::string& folder, const ModelSpec& model,
                  const WeightValues& values, const Gpt2ExportOptions& options) {
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  std::vector<SafetensorsTensor> tensors;
  for (const Gpt2Tensor& tensor : Gpt2Tensors(model)) {
    SafetensorsTensor entry;
    entry.name = std::string(kPrefix) + tensor.name;
    entry.type = SafetensorsType::kF32;
    entry.shape = FileShape(tensor);
    entry.produce = [&values, tensor](const ByteSink& sink) -> Status {
      WEFT_ASSIGN_OR_RETURN(std::span<const float> from, values(tensor));
      WEFT_CHECK(from.size() >= Elements(tensor), "too few values for " + tensor.name);
      return Store(from, tensor, sink);
    };
    tensors.push_back(std::move(entry));
  }
  WEFT_RETURN_IF_ERROR(WriteSafetensorsFolder(env, folder, std::move(tensors), kMaxShardBytes));
  if (!options.tokenizer_json.empty()) {
    WEFT_RETURN_IF_ERROR(WriteTokenizer(env, folder, model, options));
  }
  const Json config = Gpt2ToConfig(model, options.end_token);
  Json generation;
  generation["_from_model_config"] = true;
  generation["bos_token_id"] = config["bos_token_id"];
  generation["eos_token_id"] = config["eos_token_id"];
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomic(env, JoinPath(folder, "generation_config.json"), generation.dump(2) + "\n"));
  return WriteFileAtomic(env, JoinPath(folder, "config.json"), config.dump(2) + "\n");
}

}  // namespace weft
