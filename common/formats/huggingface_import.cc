// ImportModel: the weights of a Hugging Face folder into the engine's layout.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <utility>

#include "common/dtype.h"
#include "common/formats/huggingface.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/safetensors_index.h"
#include "common/model/model_sizes.h"

namespace weft {
namespace {

/// What the names in a family's files begin with, except the output projection's; old files leave
/// it out.
std::string_view PrefixOf(const ModelSpec& model) {
  if (model.family == "bert") return "bert.";
  if (model.family == "vit") return "vit.";
  return model.family == "llama" ? "model." : "transformer.";
}

/// Names outside that prefix.
bool IsOfHead(std::string_view name) {
  return name == kOutputProjection || name.starts_with("cls.") || name.starts_with("classifier.");
}

/// What files of a bert or vit hold besides the weights of the model: heads that it does not have,
/// among them a pooler.
bool IsOfOtherHead(const ModelSpec& model, std::string_view name) {
  if (model.family == "vit") return name.starts_with("vit.pooler.");
  if (model.family != "bert") return false;
  if (name.starts_with("cls.seq_relationship.")) return true;
  return name.starts_with(HeadOf(model) == "masked_lm" ? "bert.pooler." : "cls.");
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

/// The name without what wrappers of PyTorch put into it: torch.compile, data parallelism, FSDP,
/// checkpointed activations.
std::string WithoutWrappers(std::string name) {
  for (const std::string_view wrapper :
       {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."}) {
    for (size_t at = name.find(wrapper); at != std::string::npos; at = name.find(wrapper, at)) {
      if (at == 0 || name[at - 1] == '.') {
        name.erase(at, wrapper.size());
      } else {
        at += wrapper.size();
      }
    }
  }
  constexpr std::string_view kParallel = "module.";
  while (name.starts_with(kParallel)) name.erase(0, kParallel.size());
  return name;
}

/// Constants that some versions store with the weights: causal masks, rotary frequencies, the
/// numbers of positions and types.
bool IsBuffer(std::string_view name) {
  constexpr std::array<std::string_view, 8> kEndings = {".attn.bias",
                                                        ".attn.masked_bias",
                                                        ".rotary_emb.inv_freq",
                                                        ".rotary_emb.original_inv_freq",
                                                        ".rotary_emb.cos_cached",
                                                        ".rotary_emb.sin_cached",
                                                        ".embeddings.position_ids",
                                                        ".embeddings.token_type_ids"};
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
}

/// Copies a weight into the engine's layout.
void Load(const SafetensorsView& view, const HuggingFaceTensor& tensor, std::span<float> out) {
  if (!tensor.transposed) {
    ReadFloats(view, 0, out.first(ElementCount(tensor)));
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

using Views = std::map<std::string_view, const SafetensorsView*>;

/// A tensor that is a second name of another's values.
struct TiedTensor {
  std::string copy;
  std::string of;
};

std::vector<TiedTensor> TiedTensors(const ModelSpec& model) {
  if (model.untied_classifier || model.family == "vit") return {};
  const std::string embedding = HuggingFaceTensors(model).front().name;
  if (model.family != "bert") return {{kOutputProjection, embedding}};
  if (HeadOf(model) != "masked_lm") return {};
  return {{kDecoderWeight, embedding}, {kDecoderBias, kPredictionBias}};
}

bool SameValues(const SafetensorsView& a, const SafetensorsView& b) {
  return a.type == b.type && std::ranges::equal(a.bytes, b.bytes);
}

/// Drops copies after a look at what they copy; one that is alone takes the other name.
Status DropCopies(const ModelSpec& model, Views& views, std::deque<std::string>& names) {
  for (const auto& [copy, of] : TiedTensors(model)) {
    const auto second = views.find(copy);
    if (second == views.end()) continue;
    const auto [first, alone] = views.try_emplace(names.emplace_back(of), second->second);
    if (!alone && !SameValues(*first->second, *second->second)) {
      return InvalidError(copy + " differs from " + of +
                          ", but config.json says that they are tied; hint: set "
                          "tie_word_embeddings to false in it if the model was trained so");
    }
    views.erase(second);
  }
  // Untied, only the decoder's bias is computed with; files of transformers 4 have the other name.
  if (model.family != "bert" || !model.untied_classifier) return OkStatus();
  if (const auto old = views.find(kPredictionBias); old != views.end()) {
    views.try_emplace(kDecoderBias, old->second);
    views.erase(old);
  }
  return OkStatus();
}

/// The file's tensors by full name, without what carries no weights.
Result<Views> UsefulTensors(const SafetensorsFolder& files, const ModelSpec& model,
                            std::deque<std::string>& names) {
  const std::string prefix(PrefixOf(model));
  Views views;
  for (const auto& [in_file, view] : files.tensors()) {
    const std::string name = WithoutWrappers(in_file);
    const bool full = IsOfHead(name) || name.starts_with(prefix);
    const std::string& known = names.emplace_back(WithNewName(full ? name : prefix + name));
    if (IsBuffer(known) || IsOfOtherHead(model, known)) continue;
    if (!views.emplace(known, view).second) {
      return InvalidError("the weights hold " + known + " twice, under an old and a new name");
    }
  }
  WEFT_RETURN_IF_ERROR(DropCopies(model, views, names));
  return views;
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

/// What to do about tensors that do not fit, as far as their names say.
std::string HintFor(const std::vector<std::string>& missing,
                    const std::vector<std::string>& unknown) {
  for (const std::string& name : unknown) {
    for (const std::string_view fused : {"qkv_proj", "Wqkv", "query_key_value", "gate_up_proj"}) {
      if (name.find(fused) == std::string::npos) continue;
      return "these weights have several matrices in one (" + std::string(fused) +
             "), which this model_type does not; take a folder whose weights are split, or another "
             "model_type in config.json";
    }
  }
  for (const std::string& name : missing) {
    if (name != kOutputProjection && name != kDecoderWeight) continue;
    return "if the output projection is the token embedding, set tie_word_embeddings to true in "
           "config.json";
  }
  return "config.json must belong to these weights";
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
    return InvalidError(text + " hint: " + HintFor(missing, unknown));
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

}  // namespace

void ReadFloats(const SafetensorsView& view, uint64_t first, std::span<float> out) {
  if (out.empty()) return;
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
    WEFT_CHECK(out.size() >= ElementCount(tensor), "buffer too small for " + tensor.name);
    Load(*views->at(tensor.name), tensor, out);
    const std::span<float> values = out.first(ElementCount(tensor));
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return InvalidError("importing " + folder + ": tensor '" + tensor.name +
                          "' holds NaN or infinite weights; hint: nothing can be trained from "
                          "them, look at how the folder was made");
    }
  }
  return OkStatus();
}

}  // namespace weft
