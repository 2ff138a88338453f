#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/mask_choice.h"
#include "worker/engine/techniques/structured_pruning/coefficients.h"
#include "worker/engine/techniques/structured_pruning/structured_pruning_cost.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/weight_snapshot.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {
namespace {

/// The search for an Early-Bird ticket (You et al. 2020, arXiv 1909.11957; for transformers Chen et
/// al. 2021, arXiv 2101.00063): learns coefficients, and ends when the units with the largest ones
/// are the same for some time. Of tensor-parallel ranks each has the coefficients of its heads and
/// neurons, and all have the masks of the blocks that they compute.
class StructuredPruning : public Technique {
 public:
  /// `tensor_ranks`: as in TechniqueInputs.
  StructuredPruning(ModelSpec model, Collective* tensor_ranks)
      : model_(std::move(model)), tensor_ranks_(tensor_ranks) {}

  Status OnParameters(ParameterSet& parameters) override {
    parameters_ = &parameters;
    const int64_t count = parameters.size();
    for (int64_t i = 0; i < count; ++i) {
      const Parameter weight = parameters[i];
      if (!weight.output_weight()) continue;
      const PrunedUnits units = UnitsBefore(model_, weight.role);
      if (units.count == 0) continue;
      const std::vector<ParameterInfo> sources =
          CoefficientSources(model_, {weight, weight.name, {weight.shape[0], weight.shape[1]}});
      weights_.push_back({.weight = i,
                          .units = units,
                          .heads = weight.role == ParameterRole::kAttentionOutput,
                          .mask = std::vector<uint8_t>(static_cast<size_t>(units.count), 0)});
      // A tensor-parallel rank has some columns of the weight, those of whole heads or neurons.
      Shard coefficients = weight.shard.InColumns(units.columns);
      coefficients.axis = 0;
      parameters.Derive(i, {{.name = sources[0].name,
                             .shape = weight.shape,
                             .initializer = weight.initializer,
                             .parts = {},
                             .shard = weight.shard},
                            {.name = sources[1].name,
                             .shape = {sources[1].shape[0]},
                             .initializer = {.mean = 1},
                             .parts = {},
                             .shard = coefficients}});
    }
    parameters.AddValuesHook([this](Context& context, ValuesFrom from) {
      return from == ValuesFrom::kCheckpoint ? MergeCoefficients(context, *parameters_)
                                             : StartCoefficients(context);
    });
    return OkStatus();
  }

  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    return initial_.Allocate(parts, InitialWeights());
  }

  Status BeforeStep(int64_t step) override { return step == 0 ? initial_.Take() : OkStatus(); }

  Status BeforeForward(Context& context, std::optional<int64_t>) override {
    return MergeCoefficients(context, *parameters_);
  }

  Status OnDerivedGradients(Context& state, std::span<const int64_t> derived, int64_t) override {
    WEFT_RETURN_IF_ERROR(SplitCoefficientGradients(state, *parameters_, derived));
    for (const Weight& each : weights_) {
      if (std::find(derived.begin(), derived.end(), each.weight) == derived.end()) continue;
      const int64_t coefficients = CoefficientsOf(each);
      WEFT_RETURN_IF_ERROR(
          kernels::AddSign(state.stream, {.x = parameters_->value(coefficients),
                                          .y = parameters_->gradient(coefficients),
                                          .factor = static_cast<float>(each.units.penalty)}));
    }
    return OkStatus();
  }

  Status OnStepEnd(const FinishedStep& step) override {
    const int64_t next = step.step + 1;
    const StructuredPruningSpec& spec = model_.structured_pruning;
    if (next % spec.interval != 0 && next != parts_.job->train.steps) return OkStatus();
    ProfileScope scope(parts_.context->profiler, "choose units");
    WEFT_ASSIGN_OR_RETURN(const double distance, ChooseMasks(step.step));
    if (masks() > 0) {
      step.metrics->emplace(kMaskDistanceMetric, distance);
      small_distances() = distance < spec.mask_distance ? small_distances() + 1 : 0;
    }
    ++masks();
    return OkStatus();
  }

  bool Finished() const override { return search_[1] >= kSmallMaskDistances; }

  std::vector<NamedTensor> StateTensors() override {
    std::vector<NamedTensor> tensors = initial_.Named();
    const StateName name = TicketMasks();
    for (Weight& each : weights_) {
      tensors.push_back({.name = name.prefix + (*parameters_)[each.weight].name + name.suffix,
                         .view = {each.mask.data(), DType::kU8, {std::ssize(each.mask)}},
                         .parameter = CoefficientsOf(each),
                         .columns = 0});  // the whole mask on each tensor-parallel rank
    }
    tensors.push_back(
        {.name = "structured_pruning/search", .view = {search_.data(), DType::kI32, {2}}});
    return tensors;
  }

 private:
  /// A weight that ends a sub-layer.
  struct Weight {
    int64_t weight = 0;  ///< Index of the parameter.
    PrunedUnits units;
    bool heads = false;
    std::vector<uint8_t> mask;  ///< Of all units, those of other ranks too; 1: kept.
  };

  int32_t& masks() { return search_[0]; }
  int32_t& small_distances() { return search_[1]; }
  int64_t CoefficientsOf(const Weight& each) const {
    return (*parameters_)[each.weight].first_source + 1;
  }

  /// The network starts as it would without coefficients.
  Status StartCoefficients(const Context& context) const {
    for (const Weight& each : weights_) {
      const int64_t coefficients = CoefficientsOf(each);
      WEFT_RETURN_IF_ERROR(kernels::Cast(
          context.stream,
          {.x = parameters_->value(each.weight), .y = parameters_->value(coefficients - 1)}));
      WEFT_RETURN_IF_ERROR(
          kernels::Fill(context.stream, {.x = parameters_->value(coefficients), .value = 1}));
    }
    return OkStatus();
  }

  /// Keeps the units with the largest coefficients in each block, equal ones at random. Returns the
  /// share of heads, or of neurons, whichever is more, that the last masks of all blocks had
  /// otherwise. All ranks ask for it.
  Result<double> ChooseMasks(int64_t step) {
    std::array<double, 4> counts = {0, 0, 0, 0};  // changed neurons and all, changed heads and all
    for (Weight& each : weights_) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> coefficients,
                            WholeValue(*parameters_, CoefficientsOf(each), tensor_ranks_));
      std::vector<float> scores(each.mask.size(), 0.0f);
      const size_t of_unit = coefficients.size() / scores.size();
      for (size_t i = 0; i < coefficients.size(); ++i) {
        scores[i / of_unit] += std::fabs(coefficients[i]);
      }
      const std::string site = (*parameters_)[each.weight].name + "/units";
      const PhiloxKey ties{parts_.context->seed, static_cast<uint32_t>(step),
                           SiteHash(site.c_str())};
      const std::vector<uint8_t> mask = KeepLargest(scores, each.units.kept, ties);
      const size_t kind = each.heads ? 2 : 0;
      for (size_t i = 0; i < mask.size(); ++i) counts[kind] += mask[i] != each.mask[i] ? 1 : 0;
      counts[kind + 1] += static_cast<double>(mask.size());
      std::copy(mask.begin(), mask.end(), each.mask.begin());
    }
    // Stages have other blocks. Tensor-parallel ranks count the same masks, which no share shows.
    WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(counts));
    return std::max(counts[0] / std::max(counts[1], 1.0), counts[2] / std::max(counts[3], 1.0));
  }

  ModelSpec model_;
  Collective* tensor_ranks_;
  TrainingParts parts_;
  ParameterSet* parameters_ = nullptr;
  std::vector<Weight> weights_;
  WeightSnapshot initial_;
  std::array<int32_t, 2> search_ = {0, 0};  ///< Masks so far, and small distances in a row.
};

}  // namespace

std::unique_ptr<Technique> NewStructuredPruning(const TechniqueInputs& inputs) {
  if (inputs.model.structured_pruning.method == "none") return nullptr;
  return std::make_unique<StructuredPruning>(inputs.model, inputs.tensor_ranks);
}

}  // namespace weft::engine
