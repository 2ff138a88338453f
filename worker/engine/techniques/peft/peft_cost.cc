#include "worker/engine/techniques/peft/peft_cost.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/glob.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/spec_json.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& PruningTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();

namespace {

using namespace features;

const Feature kPeft = {
    .name = "parameter-efficient tuning",
    .setting = "model.peft",
    .asked = [](const JobSpec& job) { return AsksForPeft(job.model); },
    .shown = [](const JobSpec& job) { return "model.peft " + job.model.peft.method; }};

const Feature kSettings[] = {
    {.name = "parameter-efficient tuning of some blocks",
     .setting = "model.peft.layers_to_transform",
     .asked =
         [](const JobSpec& job) {
           return AsksForPeft(job.model) && !job.model.peft.layers_to_transform.empty();
         },
     .shown = [](const JobSpec&) { return std::string("model.peft.layers_to_transform"); }}};
const Feature& kInSomeBlocks = kSettings[0];

/// The name of the layer of a weight.
std::string LayerOf(const std::string& weight) {
  constexpr std::string_view kEnd = ".weight";
  return weight.ends_with(kEnd) ? weight.substr(0, weight.size() - kEnd.size()) : weight;
}

/// Whether `layer` is what an entry of target_modules says.
bool IsNamed(const std::string& layer, const std::string& target) {
  return target == "all-linear" || GlobMatches(target, layer) || layer.ends_with("." + target);
}

Status CheckTargets(const ModelSpec& model) {
  std::vector<std::string> layers, endings;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (const ParameterInfo& parameter : PlainBlockParameters(model, block)) {
      if (!parameter.block_matrix()) continue;
      layers.push_back(LayerOf(parameter.name));
      endings.push_back(layers.back().substr(layers.back().rfind('.') + 1));
    }
  }
  for (const std::string& target : TargetModules(model)) {
    const auto named = [&](const std::string& layer) { return IsNamed(layer, target); };
    if (std::any_of(layers.begin(), layers.end(), named)) continue;
    const std::string nearest = NearestName(target, endings);
    return InvalidError(
        "model.peft.target_modules '" + target + "' names no linear layer of a block; hint: " +
        (nearest.empty() ? "names are like " + layers.front() : "did you mean '" + nearest + "'?"));
  }
  for (const int64_t layer : model.peft.layers_to_transform) {
    if (layer >= 0 && layer < DistinctBlocks(model)) continue;
    return InvalidError("model.peft.layers_to_transform has " + std::to_string(layer) +
                        ", and the model has blocks 0 to " +
                        std::to_string(DistinctBlocks(model) - 1) + "; hint: one of these");
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
  return rows;
}

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
      if (spec.target_modules.empty() && spec.layers_to_transform.empty()) return OkStatus();
      return InvalidError("model.peft has settings and no method; hint: model.peft.method lora");
    }
    if (!job.model.freeze.empty()) {
      return InvalidError(
          "model.freeze with model.peft, which trains its own tensors alone; hint: leave "
          "model.freeze out");
    }
    if (!job.model.import_path.empty()) return OkStatus();  // its sizes are not known yet
    return CheckTargets(job.model);
  }

  std::vector<ParameterInfo> AdaptersOf(const ModelSpec& model,
                                        const ParameterInfo& weight) const override {
    if (!IsTarget(model, weight)) return {};
    return LoraFactors(model.peft, weight);
  }

  bool FreezesAny(const ModelSpec& model) const override { return AsksForPeft(model); }
  bool Freezes(const ModelSpec& model, const ParameterInfo& parameter) const override {
    return AsksForPeft(model) && parameter.adapter == AdapterSide::kNone;
  }

  // What is between the factors of one weight; in the backward pass its gradients for all weights
  // of a layer, too.
  ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer) const override {
    if (!AsksForPeft(model)) return {};
    ProductNumbers most;
    for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
      int64_t layer = 0, largest = 0, all = 0;
      for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
        const bool here =
            sub_layer == SubLayer::kMlp ? IsMlp(weight.role) : IsAttention(weight.role);
        if (!here || !weight.block_matrix()) continue;
        if (!weight.stacked) layer = 0;
        if (!IsTarget(model, weight)) continue;
        layer += model.peft.rank;
        all += model.peft.rank;
        largest = std::max(largest, layer);
      }
      const int64_t one = all > 0 ? model.peft.rank : 0;
      most.forward = std::max(most.forward, one);
      most.backward = std::max(most.backward, largest + one);
      most.deferred = std::max(most.deferred, all);
    }
    return most;
  }
};

}  // namespace

const TechniqueCost& PeftTechniqueCost() {
  static const PeftCost cost;
  return cost;
}

std::vector<std::string> TargetModules(const ModelSpec& model) {
  if (!model.peft.target_modules.empty()) return model.peft.target_modules;
  if (model.family == "gpt2") return {"c_attn"};
  if (model.family == "llama") return {"q_proj", "v_proj"};
  return {"query", "value"};
}

bool IsTarget(const ModelSpec& model, const ParameterInfo& weight) {
  if (!AsksForPeft(model) || !weight.block_matrix() || weight.expert >= 0) return false;
  const std::vector<int64_t>& blocks = model.peft.layers_to_transform;
  if (!blocks.empty() && std::find(blocks.begin(), blocks.end(), weight.block) == blocks.end()) {
    return false;
  }
  const std::string layer = LayerOf(weight.name);
  const std::vector<std::string> targets = TargetModules(model);
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return IsNamed(layer, target); });
}

std::vector<ParameterInfo> LoraFactors(const PeftSpec& spec, const ParameterInfo& weight) {
  const auto factor = [&](const std::string& name, std::vector<int64_t> shape, AdapterSide side) {
    ParameterInfo info = weight;
    info.name = LayerOf(weight.name) + "." + name + ".weight";
    info.shape = std::move(shape);
    info.parts.clear();
    info.adapter = side;
    return info;
  };
  std::vector<ParameterInfo> factors = {
      factor("lora_A", {spec.rank, weight.shape[1]}, AdapterSide::kInput),
      factor("lora_B", {weight.shape[0], spec.rank}, AdapterSide::kOutput)};
  factors[0].multiplied_again = true;
  return factors;
}

double LoraScale(const PeftSpec& spec) {
  const auto rank = static_cast<double>(spec.rank);
  return spec.alpha / (spec.use_rslora ? std::sqrt(rank) : rank);
}

}  // namespace weft
