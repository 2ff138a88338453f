#include "common/formats/huggingface.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "common/dtype.h"
#include "common/formats/safetensors_index.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"

namespace weft {
namespace {

constexpr std::string_view kOutput = "lm_head.weight";
constexpr uint64_t kMaxShardBytes = 5'000'000'000;

/// What the names in a family's files begin with, but for the output projection's; old files leave
/// it out.
std::string_view PrefixOf(const ModelSpec& model) {
  if (model.family == "bert") return "bert.";
  if (model.family == "vit") return "vit.";
  return model.family == "llama" ? "model." : "transformer.";
}

/// Names outside that prefix.
bool IsOfHead(std::string_view name) {
  return name == kOutput || name.starts_with("cls.") || name.starts_with("classifier.");
}

/// What files of a bert or vit hold beside the weights of the model: the positions, the copies of a
/// tied output projection, and heads that it does not have, among them a pooler.
bool IsBesideEncoder(const ModelSpec& model, std::string_view name) {
  if (model.family == "vit") return name.starts_with("vit.pooler.");
  if (model.family != "bert") return false;
  if (name == "bert.embeddings.position_ids" || name.starts_with("cls.seq_relationship.")) {
    return true;
  }
  if (HeadOf(model) != "masked_lm") return name.starts_with("cls.");
  return name.starts_with("bert.pooler.") || name == "cls.predictions.decoder.bias" ||
         (!model.untied_classifier && name == "cls.predictions.decoder.weight");
}

/// Norms that the first files of BERT call gamma and beta.
std::string WithNewName(std::string name) {
  const struct {
    std::string_view old_name, new_name;
  } renamed[] = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}};
  for (const auto& [old_name, new_name] : renamed) {
    if (!name.ends_with(old_name)) continue;
    return name.replace(name.size() - old_name.size(), old_name.size(), new_name);
  }
  return name;
}

/// How a parameter of a vit stands in files, where that is not its shape.
std::vector<int64_t> ShapeInFile(const ModelSpec& model, const ParameterInfo& parameter) {
  if (model.family != "vit") return {};
  if (parameter.name == "vit.embeddings.patch_embeddings.projection.weight") {
    return {model.width, model.image_channels, model.patch_size, model.patch_size};
  }
  if (parameter.kind != ParameterKind::kPositionEmbedding) return {};
  return {1, parameter.shape[0], parameter.shape[1]};
}

/// "transformer.h.3.attn.bias" and ".masked_bias", the causal mask, and "rotary_emb.inv_freq", the
/// rotary frequencies: stored by old versions.
bool IsBuffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

std::vector<uint64_t> FileShape(const HuggingFaceTensor& tensor) {
  std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (tensor.transposed) std::reverse(shape.begin(), shape.end());
  if (!tensor.file_shape.empty()) shape.assign(tensor.file_shape.begin(), tensor.file_shape.end());
  return shape;
}

uint64_t Elements(const HuggingFaceTensor& tensor) {
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
void Load(const SafetensorsView& view, const HuggingFaceTensor& tensor, std::span<float> out) {
  if (!tensor.transposed) {
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
Status Store(std::span<const float> values, const HuggingFaceTensor& tensor, const ByteSink& sink) {
  if (!tensor.transposed) return sink(std::as_bytes(values.first(Elements(tensor))));
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

/// The file's tensors by full name, without what carries no weights.
Result<Views> UsefulTensors(const SafetensorsFolder& files, const ModelSpec& model,
                            std::deque<std::string>& names) {
  const std::string prefix(PrefixOf(model));
  Views views;
  for (const auto& [name, view] : files.tensors()) {
    const bool full = IsOfHead(name) || name.starts_with(prefix);
    const std::string& known = names.emplace_back(WithNewName(full ? name : prefix + name));
    if (IsBuffer(known) || IsBesideEncoder(model, known)) continue;
    if (!views.emplace(known, view).second) {
      return InvalidError("the weights hold " + known + " twice, under an old and a new name");
    }
  }
  auto output = views.find(kOutput);
  if (model.untied_classifier || output == views.end()) return views;
  auto embedding = views.find(HuggingFaceTensors(model).front().name);
  if (embedding != views.end() && embedding->second->type == output->second->type &&
      std::ranges::equal(embedding->second->bytes, output->second->bytes)) {
    views.erase(output);
    return views;
  }
  return InvalidError(
      "lm_head.weight differs from the token embedding, but config.json says that they are tied; "
      "hint: set tie_word_embeddings to false in it");
}

/// Leaves out what has to do with the classifier, and a pooler that is not there.
void LeaveHead(Views& views, std::vector<HuggingFaceTensor>& tensors) {
  std::erase_if(views, [](const auto& entry) { return entry.first.starts_with("classifier."); });
  const bool pooled = std::any_of(views.begin(), views.end(), [](const auto& entry) {
    return entry.first.starts_with("bert.pooler.");
  });
  std::erase_if(tensors, [&](const HuggingFaceTensor& tensor) {
    return tensor.name.starts_with("classifier.") ||
           (!pooled && tensor.name.starts_with("bert.pooler."));
  });
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
Status CheckTensors(const std::vector<HuggingFaceTensor>& tensors, const Views& views) {
  std::vector<std::string> missing;
  std::map<std::string_view, bool> known;
  for (const HuggingFaceTensor& tensor : tensors) {
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
  for (const HuggingFaceTensor& tensor : tensors) {
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
                      const ExportOptions& options) {
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
  for (const auto& [key, text] : options.special_tokens) config[key] = text;
  return WriteFileAtomic(env, JoinPath(folder, "tokenizer_config.json"), config.dump(2) + "\n");
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& model) {
  std::vector<HuggingFaceTensor> tensors;
  const auto add = [&](const ParameterInfo& in_file, const std::string& parameter) {
    if (in_file.kind == ParameterKind::kBranchScale) return;
    const bool transposed =
        model.family == "gpt2" && in_file.block >= 0 && in_file.shape.size() == 2;
    tensors.push_back(
        {in_file.name, parameter, in_file.shape, transposed, ShapeInFile(model, in_file)});
  };
  bool blocks_done = false;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.block < 0) {
      add(parameter, parameter.name);
      continue;
    }
    if (std::exchange(blocks_done, true)) continue;
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      const auto own = BlockParameters(model, layer);
      const auto shared = BlockParameters(model, BlockOfLayer(model, layer));
      for (size_t i = 0; i < own.size(); ++i) add(own[i], shared[i].name);
    }
  }
  return tensors;
}

Status ImportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightBuffer& buffer, HeadWeights head) {
  WEFT_ASSIGN_OR_RETURN(SafetensorsFolder files, SafetensorsFolder::Open(env, folder));
  std::deque<std::string> names;
  Result<Views> views = UsefulTensors(files, model, names);
  if (!views.ok()) return views.status().WithContext("importing " + folder);
  std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(model);
  if (head == HeadWeights::kLeaveAsTheyAre) LeaveHead(*views, tensors);
  if (Status s = CheckTensors(tensors, *views); !s.ok()) {
    return s.WithContext("importing " + folder);
  }
  for (const HuggingFaceTensor& tensor : tensors) {
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

Status ExportModel(Env& env, const std::string& folder, const ModelSpec& model,
                   const WeightValues& values, const ExportOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const Json config,
                        ModelToConfig(model, options.end_token, options.classes));
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  std::vector<SafetensorsTensor> tensors;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
    SafetensorsTensor entry;
    entry.name = tensor.name;
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
  if (!options.preprocessor_json.empty()) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, "preprocessor_config.json"),
                                         options.preprocessor_json));
  }
  if (HeadOf(model) == "causal_lm") {
    Json generation;
    generation["_from_model_config"] = true;
    generation["bos_token_id"] = config["bos_token_id"];
    generation["eos_token_id"] = config["eos_token_id"];
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, "generation_config.json"),
                                         generation.dump(2) + "\n"));
  }
  return WriteFileAtomic(env, JoinPath(folder, "config.json"), config.dump(2) + "\n");
}

}  // namespace weft
