#include "common/formats/peft_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/peft_adalora.h"
#include "common/formats/peft_config.h"
#include "common/formats/peft_names.h"
#include "common/formats/peft_norms.h"
#include "common/formats/peft_prompt.h"
#include "common/formats/peft_tokens.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "common/model/model_sizes.h"
#include "common/model/outer_layers.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"
#include "common/spec/spec_json.h"
#include "common/text.h"

namespace weft {
namespace {

constexpr std::string_view kWrapped = ".base_layer";  // what peft puts into names of adapted layers
constexpr std::array<std::string_view, 24> kTensors = {
    ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector",
    ".lora_A",        ".lora_B",        ".lora_E",
    ".hada_w1_a",     ".hada_w1_b",     ".hada_w2_a",
    ".hada_w2_b",     ".lokr_w1",       ".lokr_w1_a",
    ".lokr_w1_b",     ".lokr_w2",       ".lokr_w2_a",
    ".lokr_w2_b",     ".oft_R.weight",  ".vera_lambda_b",
    ".vera_lambda_d", ".ia3_l",         ".miss_block",
    kTableFactorA,    kTableFactorB,    kTokenRows};
/// The prefix of tensors that all adapters share, instead of kNetworkPrefix.
constexpr std::string_view kSharedPrefix = "base_model.";
constexpr std::array<std::string_view, 2> kShared = {"vera_A", "vera_B"};
// Methods that peft lacks have folders of Weft's own, which peft cannot take for its own.
constexpr char kOwnConfigName[] = "weft_adapter.json";
constexpr char kOwnWeightsName[] = "weft_adapter.safetensors";
/// The largest configuration that is read; one that names 50 000 layers is smaller.
constexpr uint64_t kMostConfigBytes = uint64_t{4} << 20;
/// The most of a tensor's name that messages have.
constexpr size_t kNameBytes = 200;

bool HasOwnFolder(const PeftSpec& spec) {
  return spec.method == "houlsby" || spec.method == "pfeiffer" || spec.method == "parallel";
}

/// The version of folders of a method: in version 1 an adapter of pfeiffer read the MLP's result
/// without the residual stream.
int64_t OwnVersionOf(const PeftSpec& spec) {
  return spec.method == "pfeiffer" ? 2 : 1;
}

/// Before the names of the network. With virtual tokens peft puts nothing around the network.
std::string PrefixOf(const PeftSpec& spec) {
  if (HasOwnFolder(spec)) return "";
  return std::string(HasPromptFolder(spec) ? kSharedPrefix : kNetworkPrefix);
}

/// Those of lora, which also has layers outside the blocks.
constexpr std::array<std::string_view, 3> kLoraTensors = {".lora_A.weight", ".lora_B.weight",
                                                          ".lora_magnitude_vector"};

/// The layer that a tensor of the file adapts; "": none.
std::string LayerOfTensor(const std::string& name) {
  if (!name.starts_with(kNetworkPrefix)) return "";
  for (const std::string_view end : kTensors) {
    if (!name.ends_with(end)) continue;
    std::string layer =
        name.substr(kNetworkPrefix.size(), name.size() - kNetworkPrefix.size() - end.size());
    if (end == kTokenRows && layer.ends_with(kTokenWrapper)) {
      layer.erase(layer.size() - kTokenWrapper.size());
    }
    return layer;
  }
  return "";
}

/// The name in files of a tensor of adapters.
std::string FileNameOf(const PeftSpec& spec, const std::string& parameter) {
  const bool shared = std::find(kShared.begin(), kShared.end(), parameter) != kShared.end();
  if (parameter.ends_with(kTokenRows) && spec.method == "lora") {
    const std::string layer = parameter.substr(0, parameter.size() - kTokenRows.size());
    return PrefixOf(spec) + layer + std::string(kTokenWrapper) + std::string(kTokenRows);
  }
  return (shared ? std::string(kSharedPrefix) : PrefixOf(spec)) + parameter;
}

bool IsShared(const std::string& name) {
  return name.starts_with(kSharedPrefix) &&
         std::find(kShared.begin(), kShared.end(), name.substr(kSharedPrefix.size())) !=
             kShared.end();
}

/// The norm that a tensor of the file is for; "": none.
std::string NormOfTensor(const std::string& name) {
  const size_t end = name.rfind(kNormTensors);
  if (!name.starts_with(kNetworkPrefix) || end == std::string::npos || end < kNetworkPrefix.size())
    return "";
  const std::string tensor = name.substr(end + kNormTensors.size());
  if (tensor != ".weight" && tensor != ".bias") return "";
  return name.substr(kNetworkPrefix.size(), end - kNetworkPrefix.size());
}

/// The layers that tensors of a file may adapt.
struct FileLayers {
  std::set<std::string> any = {};      ///< By whichever method,
  std::set<std::string> of_lora = {};  ///< and by lora alone.

  bool Has(const std::string& layer, const std::string& tensor) const {
    if (any.contains(layer)) return true;
    return of_lora.contains(layer) &&
           std::any_of(kLoraTensors.begin(), kLoraTensors.end(),
                       [&](std::string_view end) { return tensor.ends_with(end); });
  }
};

/// kInvalid where the file adapts layers of the network that get no adapters here: it names them.
Status CheckLayers(const SafetensorsFile& file, const FileLayers& adaptable,
                   const ModelSpec& model) {
  std::set<std::string> others = {TiedLayer(model)};
  for (const HuggingFaceTensor& tensor : NetworkTensors(model)) {
    others.insert(LayerOf(tensor.name));
  }
  std::set<std::string> adapted;
  for (const SafetensorsView& tensor : file.tensors()) {
    const std::string layer = LayerOfTensor(tensor.name);
    const bool rows_of_tied = tensor.name.ends_with(kTokenRows) && layer == TiedLayer(model);
    if (layer.empty() || adaptable.Has(layer, tensor.name) || rows_of_tied) continue;
    if (others.contains(layer)) adapted.insert(layer);
  }
  if (adapted.empty()) return OkStatus();
  constexpr size_t kNamed = 3;
  std::string names;
  size_t named = 0;
  for (const std::string& layer : adapted) {
    if (named == kNamed) break;
    names += (named++ > 0 ? ", " : "") + layer;
  }
  if (adapted.size() > named) names += " and " + std::to_string(adapted.size() - named) + " more";
  return InvalidError(
      std::string(kAdapterWeightsName) + " adapts " + names +
      ", and adapters are trained on linear layers, without routers and a classifier that has the "
      "token embedding as its weight, and on the token embedding; outside the blocks those of LORA "
      "alone; hint: an adapter without these layers (target_modules), or with them trained whole "
      "(modules_to_save)");
}

/// The layers that the file adapts. Other tensors must be some of the model's own.
Result<std::set<std::string>> LayersOfFile(const SafetensorsFile& file, const ModelSpec& model) {
  FileLayers known{.any = AdaptableLayers(model, /*adapted=*/false)};
  for (const ParameterInfo& weight : OuterWeights(model)) {
    known.of_lora.insert(LayerOf(weight.name));
  }
  WEFT_RETURN_IF_ERROR(CheckLayers(file, known, model));
  const std::set<std::string> norms = NormLayers(model);
  bool has_rows = false;
  std::set<std::string> own, layers;
  for (const HuggingFaceTensor& tensor : NetworkTensors(model)) own.insert(tensor.name);
  for (const SafetensorsView& tensor : file.tensors()) {
    if (IsShared(tensor.name)) continue;
    const std::string layer = LayerOfTensor(tensor.name);
    if (tensor.name.ends_with(kTokenRows) &&
        (known.any.contains(layer) || layer == TiedLayer(model))) {
      has_rows = true;
      continue;
    }
    if (known.Has(layer, tensor.name)) {
      layers.insert(layer);
      continue;
    }
    if (const std::string norm = NormOfTensor(tensor.name); norms.contains(norm)) {
      layers.insert(norm);
      continue;
    }
    std::string name =
        tensor.name.starts_with(kNetworkPrefix) ? tensor.name.substr(kNetworkPrefix.size()) : "";
    if (const size_t at = name.find(kWrapped); at != std::string::npos) {
      name.erase(at, kWrapped.size());
    }
    // transformers has such heads of decoders, which no family has here.
    if (name.starts_with("score.")) {
      return InvalidError(std::string(kAdapterWeightsName) +
                          " has the head of a classifier (score), and a " + model.family +
                          " classifies nothing here; hint: an adapter for generating text, or a "
                          "classifier of the family bert");
    }
    if (layer.empty() && own.contains(name)) continue;
    return InvalidError(std::string(kAdapterWeightsName) + " has a tensor '" +
                        ClipText(tensor.name, kNameBytes) +
                        "', which is neither of an adapter of a linear layer of the model, "
                        "of its token embedding or of a norm, nor of the model; hint: "
                        "model.import_path must be the adapter's base model");
  }
  if (layers.empty() && !has_rows) {
    return InvalidError(std::string(kAdapterWeightsName) + " has no adapter");
  }
  return layers;
}

/// The table of tokens, which peft writes besides its factors: whoever reads the adapter has it in
/// place of that of the network.
std::optional<HuggingFaceTensor> SavedTable(const SafetensorsFile& file, const ModelSpec& model) {
  if (!AdaptsTokenLayer(model)) return std::nullopt;
  const std::string layer = TokenLayer(model), weight = ".weight";
  const std::string name = PrefixOf(model.peft) + layer + std::string(kWrapped) + weight;
  if (file.Find(name) == nullptr) return std::nullopt;
  return HuggingFaceTensor{
      name, layer + weight, {model.vocab_size, EmbeddingWidth(model)}, false, {}};
}

/// The shape in files of a tensor besides the patch projection, which is a convolution there; none:
/// it is of another layer.
std::vector<int64_t> ShapeOfPatches(const ModelSpec& model, const ParameterInfo& parameter) {
  const bool of_patches = parameter.role == ParameterRole::kEmbeddingProjection &&
                          parameter.adapter != AdapterSide::kNeither;
  if (!of_patches) return {};
  const int64_t rows = parameter.shape.front(), size = model.patch_size;
  if (!parameter.matrix()) return {1, rows, 1, 1};
  if (parameter.adapter == AdapterSide::kOutput) return {rows, parameter.shape.back(), 1, 1};
  return {rows, model.image_channels, size, size};
}

/// Its shape in files, where it is another one.
void SetFileShape(const ModelSpec& model, const ParameterInfo& parameter,
                  HuggingFaceTensor& tensor) {
  tensor.file_shape = ShapeOfPatches(model, parameter);
  tensor.transposed =
      parameter.name.ends_with(".miss_block") || parameter.name.ends_with(kTableFactorA);
  if (parameter.name.ends_with(".lora_E")) tensor.file_shape = {parameter.shape[0], 1};
  if (!parameter.name.ends_with(".ia3_l")) return;
  const bool inputs = parameter.adapter == AdapterSide::kInput;
  tensor.file_shape = {inputs ? 1 : parameter.shape[0], inputs ? parameter.shape[0] : 1};
}

/// A matrix [rows, columns] as [columns, rows].
std::vector<float> Turned(std::span<const float> values, int64_t rows, int64_t columns) {
  std::vector<float> turned(values.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < columns; ++k) {
      turned[static_cast<size_t>(k * rows + i)] = values[static_cast<size_t>(i * columns + k)];
    }
  }
  return turned;
}

/// The text of a configuration. kInvalid where it is too large to be one of an adapter.
Result<std::string> ReadConfigText(Env& env, const std::string& folder, const std::string& name) {
  const std::string path = JoinPath(folder, name);
  WEFT_ASSIGN_OR_RETURN(const uint64_t bytes, env.FileSize(path));
  if (bytes <= kMostConfigBytes) return ReadFile(env, path, kMostConfigBytes);
  return InvalidError(name + " has " + std::to_string(bytes) + " bytes, and at most " +
                      std::to_string(kMostConfigBytes) +
                      " are read; hint: the file as the library has written it");
}

/// The adapter_config.json of a folder.
Result<Json> ReadConfig(Env& env, const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(env, folder, kPeftConfigName));
  WEFT_ASSIGN_OR_RETURN(Json config, ParseJson(text));
  if (config.is_object()) return config;
  return InvalidError(std::string(kPeftConfigName) + " is no object");
}

/// kInvalid where the weights are what peft wrote before its version 0.7.
Status CheckNoPickle(Env& env, const std::string& folder) {
  constexpr char kPickle[] = "adapter_model.bin";
  const bool pickle = !env.FileExists(JoinPath(folder, kAdapterWeightsName)) &&
                      env.FileExists(JoinPath(folder, kPickle));
  if (!pickle) return OkStatus();
  return InvalidError(
      folder + " has a PyTorch pickle, " + kPickle + ", and no " + kAdapterWeightsName +
      "; hint: convert it in Python: safetensors.torch.save_file(torch.load('" + kPickle +
      "', map_location='cpu', weights_only=True), '" + kAdapterWeightsName + "')");
}

/// What weft_adapter.json says.
Result<PeftSpec> ReadOwnConfig(const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(const Json config, ParseJson(text));
  if (!config.is_object() || !config.contains("version") || !config.contains("adapter")) {
    return InvalidError(std::string(kOwnConfigName) +
                        " has no version and adapter; hint: export the adapter again");
  }
  WEFT_ASSIGN_OR_RETURN(PeftSpec spec, FromJson<PeftSpec>(config["adapter"]));
  if (!HasOwnFolder(spec)) {
    return InvalidError(std::string(kOwnConfigName) + " has method " + spec.method +
                        ", which has other folders; hint: houlsby, pfeiffer or parallel");
  }
  const int64_t version = OwnVersionOf(spec);
  if (config["version"] == version) return spec;
  return InvalidError(std::string(kOwnConfigName) + " of " + spec.method + " is not of version " +
                      std::to_string(version) +
                      "; hint: train the adapter again, or use the release that exported it");
}

/// The types of the tensors of the file that an adapter was read from, by name.
Result<std::map<std::string, SafetensorsType>> TypesOfFile(Env& env, const PeftSpec& spec,
                                                           const std::string& folder) {
  std::map<std::string, SafetensorsType> types;
  if (folder.empty()) return types;
  WEFT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                        SafetensorsFile::Open(env, JoinPath(folder, AdapterWeightsName(spec))));
  for (const SafetensorsView& view : file.tensors()) types.emplace(view.name, view.type);
  return types;
}

Json OwnConfig(PeftSpec spec) {
  spec.import_path.clear();
  return Json{{"version", OwnVersionOf(spec)}, {"adapter", ToJson(spec)}};
}

/// The tensors of the network that are trained, as peft names them.
void AddSavedTensors(const ModelSpec& model, std::vector<HuggingFaceTensor>& tensors) {
  std::set<std::string> trained, adapted;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!parameter.adapter_of.empty()) adapted.insert(LayerOf(parameter.adapter_of));
    const bool saved = parameter.adapter == AdapterSide::kNone && !parameter.frozen;
    if (saved) trained.insert(parameter.name);
  }
  constexpr std::string_view kBias = ".bias";
  const std::set<std::string> norms =
      TunesNorms(model) ? NormLayers(model) : std::set<std::string>();
  for (HuggingFaceTensor& tensor : NetworkTensors(model)) {
    if (!trained.contains(tensor.parameter)) continue;
    std::string name = tensor.name;
    if (name.ends_with(kBias)) {
      const std::string layer = name.substr(0, name.size() - kBias.size());
      if (adapted.contains(layer)) name = layer + std::string(kWrapped) + std::string(kBias);
    }
    if (const size_t end = name.rfind('.'); norms.contains(name.substr(0, end))) {
      name.insert(end, kNormTensors);
    }
    tensor.name = PrefixOf(model.peft) + name;
    tensors.push_back(std::move(tensor));
  }
}

}  // namespace

std::string AdapterWeightsName(const PeftSpec& spec) {
  return HasOwnFolder(spec) ? kOwnWeightsName : kAdapterWeightsName;
}

std::vector<HuggingFaceTensor> AdapterTensors(const ModelSpec& model) {
  std::vector<HuggingFaceTensor> tensors;
  if (HasPromptFolder(model.peft)) {
    const bool prefix = model.peft.method == "prefix";
    const int64_t columns = prefix ? 2 * model.layers * KvWidth(model) : model.width;
    tensors.push_back({kPromptTensorName, "", {model.peft.num_virtual_tokens, columns}, false, {}});
    AddSavedTensors(model, tensors);
    return tensors;
  }
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.adapter == AdapterSide::kNone) continue;
    tensors.push_back(
        {FileNameOf(model.peft, parameter.name), parameter.name, parameter.shape, false, {}});
    SetFileShape(model, parameter, tensors.back());
  }
  if (IsTokenRowsAlone(model.peft) && !TiedLayer(model).empty()) {
    // peft writes the rows for the classifier, too.
    HuggingFaceTensor again = tensors.back();
    again.name = PrefixOf(model.peft) + TiedLayer(model) + std::string(kTokenRows);
    tensors.insert(tensors.begin(), std::move(again));
  }
  AddSavedTensors(model, tensors);
  return tensors;
}

Result<PeftSpec> ReadAdapterConfig(Env& env, const std::string& folder, const ModelSpec& model) {
  const auto in_folder = [&](const Status& status) {
    return status.WithContext("the adapter in " + folder);
  };
  if (env.FileExists(JoinPath(folder, kOwnConfigName))) {
    const Result<std::string> text = ReadConfigText(env, folder, kOwnConfigName);
    if (!text.ok()) return in_folder(text.status());
    Result<PeftSpec> spec = ReadOwnConfig(*text);
    return spec.ok() ? std::move(spec) : in_folder(spec.status());
  }
  const Result<Json> config = ReadConfig(env, folder);
  if (!config.ok()) return in_folder(config.status());
  if (const Status base = CheckBaseName(env, *config, model.import_path); !base.ok()) {
    return in_folder(base);
  }
  WEFT_RETURN_IF_ERROR(CheckNoPickle(env, folder));
  if (IsPromptConfig(*config)) {
    Result<PeftSpec> spec = PromptFromConfig(*config, model);
    return spec.ok() ? std::move(spec) : in_folder(spec.status());
  }
  WEFT_ASSIGN_OR_RETURN(const SafetensorsFile file,
                        SafetensorsFile::Open(env, JoinPath(folder, kAdapterWeightsName)));
  const ModelSpec named = NamedAsIn(file, model);
  const Result<std::set<std::string>> layers = LayersOfFile(file, named);
  Result<PeftSpec> spec =
      PeftFromConfig(*config, named, layers.ok() ? *layers : std::set<std::string>());
  if (!spec.ok()) return in_folder(spec.status());
  if (!layers.ok()) return in_folder(layers.status());
  return spec;
}

Status ImportAdapter(Env& env, const std::string& folder, const ModelSpec& model,
                     const WeightBuffer& buffer) {
  const std::string path = JoinPath(folder, AdapterWeightsName(model.peft));
  WEFT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(env, path));
  KeptRanks kept;
  if (model.peft.method == "adalora") {
    WEFT_ASSIGN_OR_RETURN(const Json config, ReadConfig(env, folder));
    WEFT_ASSIGN_OR_RETURN(kept, KeptRanksFrom(config, model));
  }
  std::vector<HuggingFaceTensor> tensors = AdapterTensors(model);
  if (const std::optional<HuggingFaceTensor> table = SavedTable(file, model)) {
    tensors.push_back(*table);
  }
  std::set<std::string_view> known;
  if (HasPromptFolder(model.peft)) {
    WEFT_RETURN_IF_ERROR(ImportPrompt(file, path, model, buffer));
    known.insert(kPromptTensorName);
    tensors.erase(tensors.begin());
  }
  for (const HuggingFaceTensor& tensor : tensors) {
    known.insert(tensor.name);
    const SafetensorsView* const view = file.Find(tensor.name);
    if (view == nullptr) {
      return InvalidError(path + " has no tensor '" + tensor.name +
                          "', which model.peft asks for; hint: the file must be whole");
    }
    if (const std::vector<uint64_t> shape = KeptShape(tensor, kept); view->shape != shape) {
      return InvalidError(path + ": tensor '" + tensor.name + "' is " +
                          DescribeTensor(view->type, view->shape) + ", but the model needs " +
                          DescribeTensor(SafetensorsType::kF32, shape));
    }
    if (!IsReadable(view->type)) {
      return InvalidError(path + ": tensor '" + tensor.name + "' has type " +
                          std::string(SafetensorsTypeName(view->type)) +
                          "; F32, BF16 and F16 can be imported");
    }
  }
  for (const SafetensorsView& view : file.tensors()) {
    if (known.contains(view.name)) continue;
    return InvalidError(path + " has a tensor '" + ClipText(view.name, kNameBytes) +
                        "', which model.peft does not have");
  }
  for (const HuggingFaceTensor& tensor : tensors) {
    WEFT_ASSIGN_OR_RETURN(const std::span<float> out, buffer(tensor));
    WEFT_CHECK(out.size() >= ElementCount(tensor), "buffer too small for " + tensor.name);
    const std::span<float> values = out.first(ElementCount(tensor));
    const SafetensorsView& view = *file.Find(tensor.name);
    if (kept.empty()) {
      ReadFloats(view, 0, values);
    } else {
      std::vector<float> of_file(TakeKept(tensor, kept, values).size());
      ReadFloats(view, 0, of_file);
      PlaceKept(tensor, kept, of_file, values);
    }
    if (tensor.transposed) {
      std::ranges::copy(Turned(values, tensor.shape[1], tensor.shape[0]), values.begin());
    }
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return InvalidError(path + ": tensor '" + tensor.name + "' holds NaN or infinite numbers");
    }
  }
  return OkStatus();
}

Status ExportAdapter(Env& env, const std::string& folder, const ModelSpec& model,
                     const AdapterOrigin& origin, const WeightValues& values) {
  const bool own = HasOwnFolder(model.peft);
  Json config = OwnConfig(model.peft);
  KeptRanks kept;
  if (!own) {
    if (model.peft.method == "adalora") {
      WEFT_ASSIGN_OR_RETURN(kept, KeptRanksOf(model, values));
    }
    WEFT_ASSIGN_OR_RETURN(config, ConfigOfPeft(model, origin, kept));
    if (DistinctBlocks(model) != model.layers) {
      return InvalidError(
          "layers that share a block share its adapter, which peft does not have; hint: --format "
          "hf");
    }
  }
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  WEFT_ASSIGN_OR_RETURN(const auto types, TypesOfFile(env, model.peft, origin.read_from));
  std::vector<SafetensorsTensor> tensors;
  PromptValues prompt;
  if (HasPromptFolder(model.peft)) {
    WEFT_ASSIGN_OR_RETURN(prompt, PromptOf(model, values));
  }
  for (const HuggingFaceTensor& tensor : AdapterTensors(model)) {
    SafetensorsTensor entry;
    entry.name = tensor.name;
    entry.shape = KeptShape(tensor, kept);
    if (const auto type = types.find(tensor.name); type != types.end()) entry.type = type->second;
    entry.produce = [&values, &prompt, &kept, tensor,
                     type = entry.type](const ByteSink& sink) -> Status {
      const bool made = tensor.name == kPromptTensorName;
      if (made) return WriteFloats(type, tensor.name, prompt.values, sink);
      WEFT_ASSIGN_OR_RETURN(const std::span<const float> from, values(tensor));
      WEFT_CHECK(from.size() >= ElementCount(tensor), "too few values for " + tensor.name);
      const std::span<const float> floats = from.first(ElementCount(tensor));
      if (!kept.empty()) {
        const std::vector<float> of_file = TakeKept(tensor, kept, floats);
        return WriteFloats(type, tensor.name, of_file, sink);
      }
      if (!tensor.transposed) return WriteFloats(type, tensor.name, floats, sink);
      const std::vector<float> turned = Turned(floats, tensor.shape[0], tensor.shape[1]);
      return WriteFloats(type, tensor.name, turned, sink);
    };
    tensors.push_back(std::move(entry));
  }
  SafetensorsMetadata metadata;
  if (!origin.base_sha256.empty()) metadata[kBaseHashKey] = origin.base_sha256;
  WEFT_RETURN_IF_ERROR(WriteSafetensors(env, JoinPath(folder, AdapterWeightsName(model.peft)),
                                        std::move(tensors), metadata)
                           .status());
  return WriteFileAtomic(env, JoinPath(folder, own ? kOwnConfigName : kPeftConfigName),
                         config.dump(2) + "\n");
}

}  // namespace weft
