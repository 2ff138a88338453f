#include "worker/engine/techniques/structured_pruning/structured_pruning_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/spec/features.h"
#include "common/spec/spec_defaults.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();

namespace {

using namespace features;

bool Asks(const ModelSpec& model) {
  return model.structured_pruning.method != "none";
}

const Feature kStructuredPruning = {.name = "structured pruning",
                                    .setting = "model.structured_pruning",
                                    .asked = [](const JobSpec& job) { return Asks(job.model); },
                                    .shown =
                                        [](const JobSpec& job) {
                                          return "model.structured_pruning.method " +
                                                 job.model.structured_pruning.method;
                                        }};

const Feature kSettings[] = {
    {.name = "pruning of heads",
     .setting = "model.structured_pruning.head_density below 1",
     .asked =
         [](const JobSpec& job) {
           return Asks(job.model) && job.model.structured_pruning.head_density < 1;
         },
     .shown = [](const JobSpec&) { return std::string("model.structured_pruning.head_density"); }},
    {.name = "pruning of neurons",
     .setting = "model.structured_pruning.neuron_density below 1",
     .asked =
         [](const JobSpec& job) {
           return Asks(job.model) && job.model.structured_pruning.neuron_density < 1;
         },
     .shown =
         [](const JobSpec&) { return std::string("model.structured_pruning.neuron_density"); }}};
const Feature& kHeads = kSettings[0];
const Feature& kNeurons = kSettings[1];

constexpr std::string_view kTrainedOutputs = "coefficients are trained with the weights they scale";
constexpr std::string_view kUnitsOfFactors = "units would have to be left out of factors";
constexpr std::string_view kLeftOut = "leave it out of model.freeze";

class StructuredPruningCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "structured_pruning"; }
  const Feature& feature() const override { return kStructuredPruning; }
  std::span<const Feature> settings() const override { return kSettings; }

  std::span<const Refusal> refusals() const override {
    static const Refusal rows[] = {
        {&kStructuredPruning, &kZeroParameters, kMadeOfOthers, "resources.zero_stage 2"},
        {&kStructuredPruning, &kTensorParallel2d,
         "gradients of coefficients would have to be summed over the rows of the grid",
         "resources.tensor_rows 1"},
        {&kStructuredPruning, &kOffloadOptimizer, kOnDeviceAlone,
         "resources.offload_optimizer none"},
        {&kStructuredPruning, &kReplay, kPlainPasses, kOneOfTwo},
        {&kStructuredPruning, &kMeshDeterminism, kOtherBits, kOneOfTwo},
        {&kStructuredPruning, &kLocalSteps, "each rank would keep other units", kOneOfTwo},
        {&kStructuredPruning, &kExperts, kDenseLayersAlone, kOneOfTwo},
        {&kStructuredPruning, &kBf16Pure, "steps of coefficients near 1 are lost in bf16",
         "train.precision bf16"},
        {&kStructuredPruning, &kLossScaling,
         "penalties would be added to gradients that have a scale", "train.precision bf16"},
        {&kStructuredPruning, &kScheduleFree, "the export of a search has the initial weights",
         "another optimizer"},
        {&kStructuredPruning, &OverParameterizationTechniqueCost().feature(), kUnitsOfFactors,
         kOneOfTwo},
        {&kStructuredPruning, &Sparse24TechniqueCost().feature(),
         "each leaves weights out by masks of its own", kOneOfTwo},
        {&kStructuredPruning, &StructuredMatricesTechniqueCost().feature(), kUnitsOfFactors,
         kOneOfTwo},
        {&kHeads, &kOtherThanLlama,
         "config.json has no head_dim, and heads are hidden_size over their number",
         "model.structured_pruning.head_density 1"},
        {&kHeads, &kFrozenAttentionOutputs, kTrainedOutputs, kLeftOut},
        {&kNeurons, &kFrozenMlpOutputs, kTrainedOutputs, kLeftOut},
    };
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const StructuredPruningSpec& spec = job.model.structured_pruning;
    if (!Asks(job.model)) {
      if (HasDefaults(spec)) return OkStatus();
      return InvalidError(
          "model.structured_pruning has settings and no method; hint: "
          "model.structured_pruning.method early_bird");
    }
    if (spec.head_density == 1 && spec.neuron_density == 1) {
      return InvalidError(
          "model.structured_pruning keeps all heads and all neurons; hint: neuron_density 0.6");
    }
    return OkStatus();
  }

  std::vector<ParameterInfo> SourcesOf(const ModelSpec& model,
                                       const ParameterInfo& parameter) const override {
    return CoefficientSources(model, parameter);
  }

  // Merging reads a weight and writes its product with the coefficients; the gradients of both read
  // its gradient and the weight, and write as much.
  void AddStepWork(const ModelShape& shape, const TrainSpec&, StepWork& work) const override {
    if (!Asks(shape.spec)) return;
    const auto numbers = static_cast<double>(shape.derived);
    work.f32_numbers += 5 * numbers;
    work.flops += 4 * numbers;
  }

  // The first weights, in f32.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    return Asked(job) ? 4 * parameter.Elements() : 0;
  }

  std::vector<StateName> ExportedAverages(const JobSpec& job, int64_t) const override {
    if (!Asked(job)) return {};
    return {InitialWeights()};
  }

  std::optional<ExportedTicket> Ticket(const ModelSpec& model) const override {
    if (!Asks(model)) return std::nullopt;
    return ExportedTicket{TicketModel(model), TicketMasks()};
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {{kMaskDistanceMetric,
             "Share of heads and neurons that the last two masks keep or leave out differently; "
             "absent in steps without a new mask."}};
  }
};

}  // namespace

const TechniqueCost& StructuredPruningTechniqueCost() {
  static const StructuredPruningCost cost;
  return cost;
}

PrunedUnits UnitsBefore(const ModelSpec& model, ParameterRole role) {
  const StructuredPruningSpec& spec = model.structured_pruning;
  if (!Asks(model)) return {};
  const auto share = [](double density, int64_t count) {
    return std::llround(density * static_cast<double>(count));
  };
  if (role == ParameterRole::kAttentionOutput && spec.head_density < 1) {
    const int64_t count = KvHeads(model);
    return {.count = count,
            .kept = std::clamp<int64_t>(share(spec.head_density, count), 1, count),
            .columns = HeadWidth(model),
            .penalty = spec.head_penalty};
  }
  if (role == ParameterRole::kMlpDown && spec.neuron_density < 1) {
    constexpr int64_t kMultiple = 8;
    const int64_t count = MlpWidth(model);
    const int64_t kept = kMultiple * share(spec.neuron_density / kMultiple, count);
    return {.count = count,
            .kept = std::clamp(kept, std::min(kMultiple, count), count),
            .columns = 1,
            .penalty = spec.neuron_penalty};
  }
  return {};
}

std::vector<ParameterInfo> CoefficientSources(const ModelSpec& model, const ParameterInfo& weight) {
  if (!weight.output_weight() || weight.frozen) return {};
  const PrunedUnits units = UnitsBefore(model, weight.role);
  if (units.count == 0) return {};
  ParameterInfo unscaled = weight, coefficients = weight;
  unscaled.name += ".unscaled";
  coefficients.name += ".coefficients";
  coefficients.shape = {weight.shape[1] / units.columns};
  return {std::move(unscaled), std::move(coefficients)};
}

ModelSpec TicketModel(const ModelSpec& model) {
  const PrunedUnits heads = UnitsBefore(model, ParameterRole::kAttentionOutput);
  const PrunedUnits neurons = UnitsBefore(model, ParameterRole::kMlpDown);
  ModelSpec ticket = model;
  ticket.structured_pruning = {};
  if (heads.count > 0) {
    ticket.head_width = HeadWidth(model);
    ticket.heads = model.heads / heads.count * heads.kept;
    ticket.kv_heads = heads.kept;
  }
  if (neurons.count > 0) ticket.mlp_width = neurons.kept;
  return ticket;
}

StateName TicketMasks() {
  return {"structured_pruning/", "/mask"};
}

StateName InitialWeights() {
  return {"structured_pruning/", "/initial"};
}

}  // namespace weft
