#include "worker/engine/techniques/peft/peft_cost.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/full_match.h"
#include "common/glob.h"
#include "common/model/memory_model.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/spec_json.h"
#include "worker/engine/techniques/peft/bottleneck_cost.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& PruningTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StochasticDepthTechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();

namespace {

using namespace features;

const Feature kPeft = {
    .name = "parameter-efficient tuning",
    .setting = "model.peft",
    .asked = [](const JobSpec& job) { return AsksForPeft(job.model); },
    .shown = [](const JobSpec& job) { return "model.peft " + job.model.peft.method; }};

/// Needs whole weights or inputs in one place; "": nothing does.
std::string WholeSetting(const PeftSpec& spec) {
  if (spec.method == "ia3" || spec.method == "miss" || MergesWeights(spec)) {
    return "method " + spec.method;
  }
  if (spec.method != "lora") return "";
  if (spec.use_dora) return "use_dora";
  if (spec.init == "pissa" || spec.init == "olora") return "init " + spec.init;
  return spec.dropout > 0 ? "dropout" : "";
}

const Feature kSettings[] = {
    {.name = "parameter-efficient tuning of some blocks",
     .setting = "model.peft.layers_to_transform",
     .asked =
         [](const JobSpec& job) {
           return AsksForPeft(job.model) && !job.model.peft.layers_to_transform.empty();
         },
     .shown = [](const JobSpec&) { return std::string("model.peft.layers_to_transform"); }},
    {.name = "parameter-efficient tuning other than plain lora",
     .setting = "model.peft.method other than lora, use_dora, dropout, init pissa or olora",
     .asked = [](const JobSpec& job) { return !WholeSetting(job.model.peft).empty(); },
     .shown = [](const JobSpec& job) { return "model.peft." + WholeSetting(job.model.peft); }},
    {.name = "factors that all adapters share",
     .setting = "model.peft.method vera",
     .asked = [](const JobSpec& job) { return job.model.peft.method == "vera"; },
     .shown = [](const JobSpec&) { return std::string("model.peft.method vera"); }},
    {.name = "virtual tokens",
     .setting = "model.peft.method prompt, p_tuning or prefix",
     .asked = [](const JobSpec& job) { return HasVirtualTokens(job.model.peft); },
     .shown =
         [](const JobSpec& job) {
           return "model.peft.method " + job.model.peft.method + " (virtual tokens)";
         }}};
const Feature& kInSomeBlocks = kSettings[0];
const Feature& kOtherThanLora = kSettings[1];
const Feature& kVera = kSettings[2];
const Feature& kVirtualTokens = kSettings[3];

/// The name of the layer of a weight.
std::string LayerOf(const std::string& weight) {
  constexpr std::string_view kEnd = ".weight";
  return weight.ends_with(kEnd) ? weight.substr(0, weight.size() - kEnd.size()) : weight;
}

/// Whether `layer` is what an entry of target_modules says.
bool IsNamed(const std::string& layer, const std::string& target) {
  return target == "all-linear" || GlobMatches(target, layer) || layer.ends_with("." + target);
}

bool AnyNames(const std::vector<std::string>& targets, const std::string& layer) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return IsNamed(layer, target); });
}

/// What an entry of rank_pattern or alpha_pattern is a regular expression of.
std::string PatternOfLastParts(const std::string& pattern) {
  return "(.*\\.)?(" + pattern + ")";
}

/// Of a map of peft's patterns what the first says that describes the layer of `weight`.
template <class T>
T ByPattern(const std::map<std::string, T>& patterns, const std::string& weight, T otherwise) {
  const std::string layer = LayerOf(weight);
  for (const auto& [pattern, value] : patterns) {
    const Result<bool> fits = FullMatch(PatternOfLastParts(pattern), layer);
    if (fits.ok() && *fits) return value;
  }
  return otherwise;
}

/// Whether a parameter is what an entry of modules_to_save says.
bool IsOfModule(const std::string& parameter, const std::string& module) {
  if (module.find('*') != std::string::npos) return GlobMatches(module, parameter);
  return ("." + parameter).find("." + module + ".") != std::string::npos;
}

std::vector<std::string> FeedforwardModules(const ModelSpec& model) {
  const std::vector<std::string>& named = model.peft.feedforward_modules;
  if (!named.empty() || !model.peft.target_modules.empty()) return named;
  if (model.family == "gpt2") return {"mlp.c_proj"};
  if (model.family == "llama") return {"down_proj"};
  return {"output.dense"};
}

/// The weights of the layers of blocks.
std::vector<ParameterInfo> BlockWeights(const ModelSpec& model) {
  std::vector<ParameterInfo> weights;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (ParameterInfo& parameter : PlainBlockParameters(model, block)) {
      if (parameter.block_matrix()) weights.push_back(std::move(parameter));
    }
  }
  return weights;
}

Status CheckTargets(const ModelSpec& model, const std::vector<std::string>& targets,
                    const std::string& field) {
  std::vector<std::string> layers, endings;
  for (const ParameterInfo& weight : BlockWeights(model)) {
    layers.push_back(LayerOf(weight.name));
    endings.push_back(layers.back().substr(layers.back().rfind('.') + 1));
  }
  for (const std::string& target : targets) {
    const auto named = [&](const std::string& layer) { return IsNamed(layer, target); };
    if (std::any_of(layers.begin(), layers.end(), named)) continue;
    const std::string nearest = NearestName(target, endings);
    return InvalidError(
        "model.peft." + field + " '" + target + "' names no linear layer of a block; hint: " +
        (nearest.empty() ? "names are like " + layers.front() : "did you mean '" + nearest + "'?"));
  }
  return OkStatus();
}

/// Whether `pattern` is a regular expression that describes a layer.
Status CheckRegex(const ModelSpec& model, const std::string& pattern, const std::string& field) {
  std::string layer;
  for (const ParameterInfo& weight : BlockWeights(model)) {
    layer = LayerOf(weight.name);
    const Result<bool> fits = FullMatch(pattern, layer);
    if (!fits.ok()) return fits.status().WithContext("model.peft." + field);
    if (*fits) return OkStatus();
  }
  return InvalidError("model.peft." + field + " '" + pattern +
                      "' describes no linear layer of a block; hint: names are like " + layer);
}

Status CheckSaved(const ModelSpec& model) {
  std::vector<std::string> modules;
  for (const std::string& module : model.peft.modules_to_save) {
    bool found = false;
    for (const ParameterInfo& parameter : PlainParametersOf(model)) {
      found = found || IsOfModule(parameter.name, module);
      const std::string own = parameter.name.substr(0, parameter.name.rfind('.'));
      modules.push_back(own.substr(own.rfind('.') + 1));
    }
    if (found) continue;
    const std::string nearest = NearestName(module, modules);
    return InvalidError("model.peft.modules_to_save '" + module + "' names nothing of the model" +
                        (nearest.empty() ? "" : "; hint: did you mean '" + nearest + "'?"));
  }
  return OkStatus();
}

/// Settings of the method that ask for another one.
Status CheckSettings(const PeftSpec& spec) {
  const auto only = [&](bool asked, const char* field, const std::string& method,
                        std::initializer_list<std::string_view> others = {}) {
    const bool fits = spec.method == method ||
                      std::find(others.begin(), others.end(), spec.method) != others.end();
    return !asked || fits ? OkStatus()
                          : InvalidError("model.peft." + std::string(field) + " with method " +
                                         spec.method + "; hint: model.peft.method " + method);
  };
  const PeftSpec unset;
  WEFT_RETURN_IF_ERROR(only(spec.use_rslora, "use_rslora", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.use_dora, "use_dora", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.dropout > 0, "dropout", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.init != "default", "init", "lora"));
  WEFT_RETURN_IF_ERROR(only(spec.loraplus_lr_ratio != 1, "loraplus_lr_ratio", "lora"));
  WEFT_RETURN_IF_ERROR(
      only(!spec.alpha_pattern.empty(), "alpha_pattern", "lora", {"loha", "lokr"}));
  WEFT_RETURN_IF_ERROR(only(!spec.feedforward_modules.empty(), "feedforward_modules", "ia3"));
  WEFT_RETURN_IF_ERROR(
      only(!spec.rank_pattern.empty(), "rank_pattern", "lora", {"miss", "loha", "lokr"}));
  WEFT_RETURN_IF_ERROR(only(spec.decompose_both, "decompose_both", "lokr"));
  WEFT_RETURN_IF_ERROR(
      only(spec.decompose_factor != unset.decompose_factor, "decompose_factor", "lokr"));
  WEFT_RETURN_IF_ERROR(only(spec.oft_block_size != unset.oft_block_size, "oft_block_size", "oft"));
  WEFT_RETURN_IF_ERROR(only(spec.d_initial != unset.d_initial, "d_initial", "vera"));
  if (spec.use_dora && spec.dropout > 0) {
    return InvalidError(
        "model.peft.use_dora with dropout does not work yet; hint: model.peft.dropout 0");
  }
  if (!spec.target_modules.empty() && !spec.target_regex.empty()) {
    return InvalidError(
        "model.peft.target_modules and target_regex say the same in two ways; hint: one of them");
  }
  const bool targets = !spec.target_modules.empty() || !spec.target_regex.empty();
  if (!AdaptsWeights(spec) && targets) {
    const std::string instead = spec.method == "selective" ? "modules_to_save" : "method lora";
    return InvalidError("model.peft.method " + spec.method +
                        " has no adapters of weights, and there are targets for them; hint: "
                        "model.peft." +
                        instead);
  }
  if (spec.method == "selective" && spec.modules_to_save.empty()) {
    return InvalidError(
        "model.peft.method selective trains what modules_to_save names, and it names nothing; "
        "hint: model.peft.modules_to_save ['*.bias']");
  }
  return OkStatus();
}

std::vector<Refusal> Rows() {
  std::vector<Refusal> rows = {
      {&kPeft, &kTensorGrid, kNotYet, "resources.tensor_rows 1"},
      {&kPeft, &kExperts, kNotYet, kOneOfTwo},
      {&kPeft, &kOffloadOptimizer, kNotYet, "resources.offload_optimizer none"},
      {&kPeft, &OverParameterizationTechniqueCost().feature(),
       "one trains more numbers than a weight has, the other fewer", kOneOfTwo},
      {&kPeft, &Sparse24TechniqueCost().feature(), kNotYet, kOneOfTwo},
      {&kPeft, &StructuredMatricesTechniqueCost().feature(), kNotYet, kOneOfTwo},
      {&kPeft, &PruningTechniqueCost().feature(), "the weights that it removes are frozen",
       kOneOfTwo},
  };
  // Formats of products that are techniques themselves.
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->precision() == nullptr) continue;
    rows.push_back({&kPeft, &technique->feature(), kNotYet, "train.precision bf16"});
  }
  rows.push_back({&kInSomeBlocks, &kPipelineParallel, "all stages have equal blocks",
                  "adapters in all blocks"});
  rows.push_back({&kOtherThanLora, &kTensorParallel, kNotYet, "resources.tensor_parallel 1"});
  rows.push_back({&kOtherThanLora, &kZeroParameters, kNotYet, "resources.zero_stage 2"});
  rows.push_back({&kVera, &kPipelineParallel, kNotYet, "resources.pipeline_parallel 1"});
  const Refusal of_virtual_tokens[] = {
      {&kVirtualTokens, &kTensorParallel, kNotYet, "resources.tensor_parallel 1"},
      {&kVirtualTokens, &kContextParallel, "each rank has a part of the tokens of a sequence",
       "resources.context_parallel 1"},
      {&kVirtualTokens, &kPipelineParallel, kNotYet, "resources.pipeline_parallel 1"},
      {&kVirtualTokens, &kZeroParameters, kNotYet, "resources.zero_stage 2"},
      {&kVirtualTokens, &kActivationCompression,
       "values are rounded by their position in the whole batch", "resources.activation_bits 0"},
      {&kVirtualTokens, &kMaskDocuments,
       "each document of a row has its own, and no prediction of memory counts them",
       "data.mask_documents false"},
      {&kVirtualTokens, &kNoConcatenation, "memory is predicted for a sequence a row",
       "data.batching concatenate"},
      {&kVirtualTokens, &kEncoder, kNotYet, "model.family gpt2 or llama"},
      {&kVirtualTokens, &kSlidingWindow, "a window leaves virtual tokens behind",
       "model.sliding_window 0"},
      {&kVirtualTokens, &kEmbeddingWidth, kNotYet, "model.embedding_width 0"},
      {&kVirtualTokens, &StochasticDepthTechniqueCost().settings().front(), kNotYet,
       "model.stochastic_depth.mode batch"},
  };
  rows.insert(rows.end(), std::begin(of_virtual_tokens), std::end(of_virtual_tokens));
  return rows;
}

/// Numbers of workspace for the products of a layer, some of whose weights are targets.
struct LayerNumbers {
  int64_t ranks = 0;    ///< Of all factors,
  int64_t largest = 0;  ///< and of the largest one.
  int64_t out = 0;      ///< Of its results, where they are scaled.
  int64_t in = 0;       ///< Of its inputs, where they are scaled or dropped.

  void Add(const PeftSpec& spec, const ParameterInfo& weight, bool scales_inputs) {
    if (spec.method == "ia3") {
      if (scales_inputs) in = weight.shape[1];
      return;
    }
    const int64_t rank = RankOf(spec, weight.name);
    ranks += rank;
    largest = std::max(largest, rank);
    if (spec.dropout > 0) in = weight.shape[1];
  }
};

class PeftCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "peft"; }
  const Feature& feature() const override { return kPeft; }
  std::span<const Feature> settings() const override { return kSettings; }

  std::span<const Refusal> refusals() const override {
    static const std::vector<Refusal> rows = Rows();
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const PeftSpec& spec = job.model.peft;
    if (!AsksForPeft(job.model)) {
      if (ToJson(spec) == ToJson(PeftSpec())) return OkStatus();
      return InvalidError("model.peft has settings and no method; hint: model.peft.method lora");
    }
    if (!job.model.freeze.empty()) {
      return InvalidError(
          "model.freeze with model.peft, which says what is trained; hint: leave model.freeze "
          "out, and name what is trained besides in model.peft.modules_to_save");
    }
    WEFT_RETURN_IF_ERROR(CheckSettings(spec));
    WEFT_RETURN_IF_ERROR(CheckBottlenecks(job.model));
    WEFT_RETURN_IF_ERROR(CheckVirtualTokens(job));
    // Its sizes are not known yet.
    if (!job.model.import_path.empty()) return OkStatus();
    return CheckPeftNames(job.model);
  }

  std::vector<ParameterInfo> AdaptersOf(const ModelSpec& model,
                                        const ParameterInfo& weight) const override {
    if (!IsTarget(model, weight)) return {};
    return AdapterOf(model, weight);
  }

  std::vector<ParameterInfo> GraftsOf(const ModelSpec& model,
                                      const ParameterInfo& output) const override {
    std::vector<ParameterInfo> tensors = BottleneckTensors(model, output);
    return tensors.empty() ? PrefixTensors(model, output) : tensors;
  }
  std::vector<ParameterInfo> EmbeddingGraftsOf(const ModelSpec& model) const override {
    return VirtualTokenTensors(model);
  }
  VirtualTokenCounts VirtualTokensOf(const ModelSpec& model) const override {
    if (!HasVirtualTokens(model.peft)) return {};
    const int64_t count = model.peft.num_virtual_tokens;
    return model.peft.method == "prefix" ? VirtualTokenCounts{.in_attention = count}
                                         : VirtualTokenCounts{.in_blocks = count};
  }
  int64_t SavedByGrafts(const ModelSpec& model, SubLayer sub_layer) const override {
    return SavedByBottlenecks(model, sub_layer);
  }
  // What those after a sub-layer read has a gradient of its own.
  bool ChangesBranches(const ModelSpec& model) const override {
    return HasBottlenecks(model.peft) && model.peft.method != "parallel";
  }

  bool ReadsFrozenWeights(const ModelSpec& model) const override {
    const PeftSpec& spec = model.peft;
    return MergesWeights(spec) || spec.use_dora || spec.init == "pissa" || spec.init == "olora";
  }
  bool FreezesAny(const ModelSpec& model) const override { return AsksForPeft(model); }
  bool Freezes(const ModelSpec& model, const ParameterInfo& parameter) const override {
    if (parameter.adapter != AdapterSide::kNone) return IsSharedFactor(parameter.name);
    return AsksForPeft(model) && !IsSavedWhole(model, parameter.name);
  }

  // What is between the factors of one weight; in the backward pass its gradients for all weights
  // of a layer, too. Scaled results are computed again, and have a gradient before their scale.
  ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer) const override {
    if (!AdaptsWeights(model.peft)) return WorkspaceOfBottlenecks(model, sub_layer);
    if (MergesWeights(model.peft)) {
      return {.weights = MergedGradientNumbers(model, sub_layer)};
    }
    ProductNumbers most;
    for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
      LayerNumbers layer;
      int64_t deferred = 0, out = 0;
      const auto end_layer = [&] {
        most.forward = std::max(most.forward, layer.largest + layer.in);
        most.backward =
            std::max(most.backward, layer.ranks + layer.largest + 2 * layer.out + layer.in);
        deferred += layer.ranks + layer.out + (model.peft.method == "ia3" ? layer.in : 0);
      };
      for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
        const bool here =
            sub_layer == SubLayer::kMlp ? IsMlp(weight.role) : IsAttention(weight.role);
        if (!here || !weight.block_matrix()) continue;
        if (!weight.stacked) {
          end_layer();
          layer = {};
          out = 0;
        }
        out += weight.shape[0];
        const bool target = IsTarget(model, weight);
        const bool scales_inputs = target && ScalesInputs(model, weight);
        if (target) layer.Add(model.peft, weight, scales_inputs);
        const bool scales =
            target && (model.peft.method == "ia3" ? !scales_inputs : model.peft.use_dora);
        if (scales || layer.out > 0) layer.out = out;
      }
      end_layer();
      most.deferred = std::max(most.deferred, deferred);
    }
    return most;
  }

  void AddStepWork(const ModelShape& shape, const TrainSpec&, StepWork& work) const override {
    if (MergesWeights(shape.spec.peft)) AddMergeWork(shape.spec, work);
  }

  int64_t MergedNumbers(const ModelSpec& model) const override {
    return MergesWeights(model.peft) ? MergedNumbersOf(model) : 0;
  }

  // When weights are packed after an update: the merged weight of a layer, and what an adapter adds
  // to it, on the way to that twice.
  int64_t WorkspaceBytes(const MemoryInputs& inputs) const override {
    constexpr int64_t kF32 = 4;
    const ModelSpec& model = inputs.shape.spec;
    return MergesWeights(model.peft) ? 3 * kF32 * LargestMerged(model) : 0;
  }
};

}  // namespace

const TechniqueCost& PeftTechniqueCost() {
  static const PeftCost cost;
  return cost;
}

bool AdaptsWeights(const PeftSpec& spec) {
  return spec.method != "none" && spec.method != "selective" && !HasBottlenecks(spec) &&
         !HasVirtualTokens(spec);
}

std::vector<std::string> TargetModules(const ModelSpec& model) {
  if (!model.peft.target_modules.empty() || !model.peft.target_regex.empty()) {
    return model.peft.target_modules;
  }
  if (model.peft.method == "ia3") {
    if (model.family == "gpt2") return {"c_attn", "mlp.c_proj"};
    if (model.family == "llama") return {"k_proj", "v_proj", "down_proj"};
    return {"key", "value", "output.dense"};
  }
  if (model.family == "gpt2") return {"c_attn"};
  if (model.family == "llama") return {"q_proj", "v_proj"};
  return {"query", "value"};
}

bool IsTarget(const ModelSpec& model, const ParameterInfo& weight) {
  if (!AdaptsWeights(model.peft)) return false;
  if (!weight.block_matrix() || weight.expert >= 0) return false;
  const std::vector<int64_t>& blocks = model.peft.layers_to_transform;
  if (!blocks.empty() && std::find(blocks.begin(), blocks.end(), weight.block) == blocks.end()) {
    return false;
  }
  if (IsSavedWhole(model, weight.name)) return false;
  const std::string layer = LayerOf(weight.name);
  if (model.peft.target_regex.empty()) return AnyNames(TargetModules(model), layer);
  const Result<bool> fits = FullMatch(model.peft.target_regex, layer);
  return fits.ok() && *fits;
}

bool ScalesInputs(const ModelSpec& model, const ParameterInfo& weight) {
  return model.peft.method == "ia3" && AnyNames(FeedforwardModules(model), LayerOf(weight.name));
}

bool IsSavedWhole(const ModelSpec& model, const std::string& parameter) {
  const std::vector<std::string>& modules = model.peft.modules_to_save;
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return IsOfModule(parameter, module); });
}

std::vector<ParameterInfo> AdapterOf(const ModelSpec& model, const ParameterInfo& weight) {
  const PeftSpec& spec = model.peft;
  if (MergesWeights(spec)) return MergedTensors(model, weight);
  const int64_t out = weight.shape[0], in = weight.shape[1];
  std::vector<ParameterInfo> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, AdapterSide side,
                       bool again) {
    ParameterInfo& info = tensors.emplace_back(weight);
    info.name = LayerOf(weight.name) + "." + name;
    info.shape = std::move(shape);
    info.parts.clear();
    info.adapter = side;
    info.multiplied_again = again;
  };
  if (spec.method == "ia3") {
    const bool inputs = ScalesInputs(model, weight);
    add("ia3_l", {inputs ? in : out}, inputs ? AdapterSide::kInput : AdapterSide::kOutput, !inputs);
    return tensors;
  }
  const int64_t rank = RankOf(spec, weight.name);
  if (spec.method == "miss") {
    add("miss_block", {out, rank}, AdapterSide::kOutput, false);
    return tensors;
  }
  add("lora_A.weight", {rank, in}, AdapterSide::kInput, true);
  add("lora_B.weight", {out, rank}, AdapterSide::kOutput, spec.use_dora);
  if (spec.use_dora) add("lora_magnitude_vector", {out}, AdapterSide::kOutput, true);
  return tensors;
}

int64_t RankOf(const PeftSpec& spec, const std::string& weight) {
  return ByPattern(spec.rank_pattern, weight, spec.rank);
}

double LoraScale(const PeftSpec& spec, const std::string& weight) {
  const auto rank = static_cast<double>(RankOf(spec, weight));
  return ByPattern(spec.alpha_pattern, weight, spec.alpha) /
         (spec.use_rslora ? std::sqrt(rank) : rank);
}

Status CheckPeftNames(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  WEFT_RETURN_IF_ERROR(CheckSaved(model));
  for (const int64_t layer : spec.layers_to_transform) {
    if (layer >= 0 && layer < DistinctBlocks(model)) continue;
    return InvalidError("model.peft.layers_to_transform has " + std::to_string(layer) +
                        ", and the model has blocks 0 to " +
                        std::to_string(DistinctBlocks(model) - 1) + "; hint: one of these");
  }
  if (!AdaptsWeights(spec)) return OkStatus();
  WEFT_RETURN_IF_ERROR(CheckTargets(model, TargetModules(model), "target_modules"));
  if (!spec.target_regex.empty()) {
    WEFT_RETURN_IF_ERROR(CheckRegex(model, spec.target_regex, "target_regex"));
  }
  WEFT_RETURN_IF_ERROR(CheckTargets(model, spec.feedforward_modules, "feedforward_modules"));
  for (const auto& [pattern, rank] : spec.rank_pattern) {
    WEFT_RETURN_IF_ERROR(CheckRegex(model, PatternOfLastParts(pattern), "rank_pattern"));
    if (rank >= 1 && rank <= 4096) continue;
    return InvalidError("model.peft.rank_pattern '" + pattern + "' has the rank " +
                        std::to_string(rank) + "; hint: 1 to 4096");
  }
  for (const auto& [pattern, alpha] : spec.alpha_pattern) {
    WEFT_RETURN_IF_ERROR(CheckRegex(model, PatternOfLastParts(pattern), "alpha_pattern"));
    if (!(alpha < 0)) continue;
    return InvalidError("model.peft.alpha_pattern '" + pattern + "' is negative; hint: 0 or more");
  }
  for (const ParameterInfo& weight : BlockWeights(model)) {
    if (!IsTarget(model, weight)) continue;
    if (ScalesInputs(model, weight) && !EndsSubLayer(weight.role)) {
      return InvalidError("model.peft.feedforward_modules names " + LayerOf(weight.name) +
                          ", which does not end a sub-layer; hint: leave it out");
    }
    WEFT_RETURN_IF_ERROR(CheckMerge(spec, weight));
    const int64_t most = std::min(weight.shape[0], weight.shape[1]);
    const bool from_weight = spec.init == "pissa" || spec.init == "olora";
    if ((from_weight && RankOf(spec, weight.name) > most) ||
        (spec.method == "miss" && RankOf(spec, weight.name) > weight.shape[1])) {
      return InvalidError("model.peft.rank " + std::to_string(RankOf(spec, weight.name)) +
                          " is more than " + LayerOf(weight.name) + " has, " +
                          std::to_string(most) + "; hint: a smaller rank");
    }
  }
  return OkStatus();
}

}  // namespace weft
