// Parameter-efficient tuning: what is frozen, and how adapters start.
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/techniques/peft/adalora.h"
#include "worker/engine/techniques/peft/adalora_cost.h"
#include "worker/engine/techniques/peft/adapter_starts.h"
#include "worker/engine/techniques/peft/bottleneck.h"
#include "worker/engine/techniques/peft/joint_adapters.h"
#include "worker/engine/techniques/peft/joint_adapters_cost.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_products.h"
#include "worker/engine/techniques/peft/peft_settings_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/techniques/peft/token_adapters.h"
#include "worker/engine/techniques/peft/token_adapters_cost.h"
#include "worker/engine/techniques/peft/virtual_tokens.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Deviation of the first layer of a bottleneck, as a BERT starts (Devlin et al. 2018, arXiv
/// 1810.04805) and AdapterHub's adapters do.
constexpr double kBottleneckDeviation = 0.02;

/// Deviation of the factors of AdaLoRA, as in peft.
constexpr double kAdaLoraDeviation = 0.02;

class Peft : public Technique {
 public:
  explicit Peft(const TechniqueInputs& inputs)
      : model_(inputs.model),
        seed_(static_cast<uint64_t>(inputs.train.seed)),
        tensor_ranks_(inputs.tensor_ranks),
        factory_(inputs.model, inputs.tensor_ranks) {
    if (IsAdaLora(model_.peft)) ranks_.emplace(model_);
    if (HasJointAdapters(model_.peft)) joint_.emplace(model_.peft);
  }

  ProductsFactory* BlockProducts(ProductsFactory* before) override {
    if (!AdaptsWeights(model_.peft) && !HasTokenAdapter(model_)) return nullptr;
    factory_.SetBase(before);
    return &factory_;
  }
  bool CombinesProducts() const override { return true; }
  ProductsFactory* OuterProducts() override {
    return AdaptsOuterLayers(model_.peft) ? &factory_ : nullptr;
  }

  void OnSite(const GraftSite& site, Grafts& grafts) override {
    factory_.SetParameters(site.parameters);
    const std::optional<int64_t> drawn = PutBottleneck(model_, site, grafts);
    if (drawn) drawn_.push_back(*drawn);
    if (site.looks_up) virtual_tokens_.Put(model_, site, grafts);
    token_adapter_.Put(model_, site, grafts);
  }

  std::string_view WhyNoGraphs() const override {
    if (ranks_) return "the ranks of adapters are chosen on the host";
    if (joint_) return "the gradients of several adapters are clipped on the host";
    return HasVirtualTokens(model_.peft) ? "rows of virtual tokens are laid out on the host" : "";
  }

  Status OnParameters(ParameterSet& parameters) override {
    WEFT_RETURN_IF_ERROR(CheckPeftNames(model_));
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (parameter.adapter != AdapterSide::kNone) {
        SetStart(parameters, i);
        if (parameter.replicated) SetShared(parameters, i);
      } else if (!IsSavedWhole(model_, parameter.name)) {
        parameters.SetFrozen(i);
      }
    }
    for (const int64_t weight : drawn_) {
      parameters.SetStart(weight, {.deviation = kBottleneckDeviation});
    }
    virtual_tokens_.SetStarts(parameters);
    token_adapter_.SetStarts(parameters, tensor_ranks_);
    if (!ReadsWholeValues()) return OkStatus();
    parameters.AddValuesHook([this, &parameters](Context& context, ValuesFrom from) {
      if (from == ValuesFrom::kCheckpoint) return OkStatus();
      // Sharded values are not gathered before the training.
      starts_with_training_ = parameters.values_sharded() && training_ == nullptr;
      if (starts_with_training_) return OkStatus();
      return StartAtValues(training_ != nullptr ? *training_ : context, parameters);
    });
    return OkStatus();
  }

  Status OnTraining(const TrainingParts& parts) override {
    training_ = parts.context;
    if (starts_with_training_) WEFT_RETURN_IF_ERROR(StartAtValues(*training_, *parts.parameters));
    WEFT_RETURN_IF_ERROR(token_adapter_.OnTraining(training_, *parts.parameters));
    if (joint_) return joint_->OnTraining(parts);
    return ranks_ ? ranks_->OnTraining(parts) : OkStatus();
  }
  Status OnGradients(Context& state, int64_t step) override {
    return ranks_ ? ranks_->OnGradients(state, step) : OkStatus();
  }
  bool ClipsGradients() const override { return joint_.has_value(); }
  Status BeforeUpdate(Context& state, const PendingUpdate& update) override {
    if (joint_) return joint_->BeforeUpdate(state, update);
    if (ranks_) ranks_->BeforeUpdate(update);
    return OkStatus();
  }
  bool ReadsUpdatedParameters() const override { return ranks_.has_value(); }
  bool NeedsWholeUpdates() const override {
    const PeftSpec& spec = model_.peft;
    return ranks_ || MergesWeights(spec) || spec.use_dora || !spec.trainable_token_indices.empty();
  }
  Status OnUpdated(int64_t) override { return ranks_ ? ranks_->OnUpdated() : OkStatus(); }
  Status OnStepEnd(const FinishedStep& step) override {
    if (joint_) joint_->OnStepEnd(step);
    return OkStatus();
  }
  void OnEvaluated(const JointLosses& losses, std::map<std::string, double>& metrics) override {
    if (joint_) joint_->OnEvaluated(losses, metrics);
  }
  std::vector<NamedTensor> StateTensors() override {
    return ranks_ ? ranks_->StateTensors() : std::vector<NamedTensor>();
  }

 private:
  /// Whether something starts at what is computed from values of the network.
  bool ReadsWholeValues() const {
    return model_.peft.method == "prompt" || StartsFromWeights(model_.peft);
  }
  Status StartAtValues(Context& context, ParameterSet& parameters) const {
    return StartsFromWeights(model_.peft)
               ? StartFromWeights(context, model_.peft, parameters, tensor_ranks_)
               : StartAtTokens(context, seed_, parameters, tensor_ranks_);
  }

  /// A factor of all layers: each stage of a pipeline has it, and the first counts it.
  void SetShared(ParameterSet& parameters, int64_t index) const {
    const Parameter& parameter = parameters[index];
    ParameterInfo target;
    target.name = parameter.adapter_of;
    target.block = parameter.block;
    parameters.SetFrozen(index);
    if (parameters.of_stage()) {
      parameters.SetSharedByStages(index, IsFirstTarget(model_, target));
    }
  }

  /// Each starts so that the network is as it is without adapters.
  void SetStart(ParameterSet& parameters, int64_t index) const {
    const PeftSpec& spec = model_.peft;
    const Parameter& parameter = parameters[index];
    if (parameter.adapter == AdapterSide::kNeither) return parameters.SetStart(index, {});
    if (spec.method == "ia3") return parameters.SetStart(index, {.mean = 1});
    if (MergesWeights(spec)) return parameters.SetStart(index, StartOfMerged(parameter));
    if (IsAdaLora(spec)) {
      const bool diagonal = parameter.shape.rank == 1;
      return parameters.SetStart(index, {.deviation = diagonal ? 0 : kAdaLoraDeviation});
    }
    if (parameter.adapter != AdapterSide::kInput) {
      const bool factor = parameter.shape.rank == 2 && spec.method == "lora";
      if (factor) parameters.SetDecayFollowsRate(index);  // as peft has it for LoRA+
      return parameters.SetStart(index, {}, factor ? spec.loraplus_lr_ratio : 1);
    }
    const auto rank = static_cast<double>(parameter.shape[0]);
    const Initializer start = spec.init == "gaussian"
                                  ? Initializer{.deviation = 1 / rank}
                                  : KaimingUniform(parameter, 1 / std::sqrt(3.0));
    parameters.SetStart(index, joint_ ? joint_->StartOf(parameter, start) : start);
  }

  /// Deviation gain / sqrt(columns). With the slope sqrt(5) that peft mostly takes, the gain is
  /// sqrt(1 / 3): uniform up to 1 / sqrt(columns).
  static Initializer KaimingUniform(const Parameter& parameter, double gain) {
    const auto columns = static_cast<double>(parameter.logical_shape()[-1]);
    return {.deviation = gain / std::sqrt(columns), .distribution = Distribution::kUniform};
  }

  /// As in peft.
  Initializer StartOfMerged(const Parameter& parameter) const {
    if (parameter.starts_at_zero) return {};
    if (parameter.replicated) return KaimingUniform(parameter, std::sqrt(2.0));
    const bool scales_ranks = parameter.shape.rank == 1;  // of vera
    if (scales_ranks) return {.mean = model_.peft.d_initial};
    return KaimingUniform(parameter, 1 / std::sqrt(3.0));
  }

  ModelSpec model_;
  uint64_t seed_;
  Collective* tensor_ranks_;
  Context* training_ = nullptr;  ///< Of the device, once there is a training.
  bool starts_with_training_ = false;
  PeftProductsFactory factory_;
  std::optional<AdaLora> ranks_;        ///< That move between layers.
  std::optional<JointAdapters> joint_;  ///< Where there are several.
  std::vector<int64_t> drawn_;          ///< Weights of bottlenecks.
  VirtualTokenSites virtual_tokens_;
  TokenAdapter token_adapter_;
};

}  // namespace

std::unique_ptr<Technique> NewPeft(const TechniqueInputs& inputs) {
  if (inputs.model.peft.method == "none") return nullptr;
  return std::make_unique<Peft>(inputs);
}

}  // namespace weft::engine
