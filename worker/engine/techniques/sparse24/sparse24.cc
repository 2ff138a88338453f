// MLPs with 2:4 sparse weights: masks that are searched every N steps, a decay of what they
// leave out, which may be searched for, and dense training at the beginning or the end.
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sparse24_decay/sparse24_decay.h"
#include "worker/engine/techniques/sparse24/decay_search.h"
#include "worker/engine/techniques/sparse24/moment_switch.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/techniques/sparse24/sparse24_products.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

class Sparse24 : public Technique {
 public:
  Sparse24(const TrainSpec& train, const Sparse24Ranks& ranks)
      : factory_(train.sparsity, ranks),
        first_dense_step_(FirstDenseStep(train)),
        first_adapter_step_(FirstAdapterStep(train)),
        search_(train.sparsity) {
    if (train.sparsity.method == "step") switch_.emplace(train.sparsity.switch_share);
    if (PrunesActivations(train.sparsity)) {
      first_pruned_step_ =
          std::llround(train.sparsity.switch_share * static_cast<double>(train.steps));
    }
    factory_.SetSparse(IsSparse(0));
  }

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override { return &factory_; }

  Status OnParameters(ParameterSet& parameters) override {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].adapter == AdapterSide::kNone) continue;
      const bool first = parameters[i].adapter == AdapterSide::kInput;
      // Tensor-parallel ranks have parts of the same random numbers.
      const auto in = static_cast<double>(parameters[i].logical_shape()[-1]);
      parameters.SetStart(i, {.deviation = first ? 1 / std::sqrt(in) : 0});
    }
    return factory_.ChooseLayers();
  }

  Status OnTraining(const TrainingParts& parts) override {
    if (factory_.spec() != parts.job->train.sparsity) {
      return InvalidError("the model was made for another train.sparsity than the job has");
    }
    WEFT_RETURN_IF_ERROR(CheckTokenGroups(*parts.job, parts.plan->mesh.context));
    parts_ = parts;
    for (const Parameter& parameter : *parts.parameters) {
      adapters_.push_back(parameter.adapter != AdapterSide::kNone);
    }
    WEFT_RETURN_IF_ERROR(search_.OnTraining(parts));
    if (switch_) WEFT_RETURN_IF_ERROR(switch_->OnTraining(parts));
    std::map<int64_t, TensorView> masks;
    for (const Sparse24Layer::Part& part : factory_.Parts()) masks[part.parameter] = part.mask;
    for (const UpdatedParameters& updated : parts.updated) {
      const std::vector<ParameterPart> all =
          updated.parts.empty() ? TrainedParts(*parts.parameters) : updated.parts;
      for (const ParameterPart& part : all) {
        const auto mask = masks.find(part.index);
        if (mask == masks.end() || part.count() == 0) continue;
        decayed_.push_back({part, mask->second, updated.in_host_memory_pool});
      }
    }
    return OkStatus();
  }

  std::string_view WhyNoGraphs() const override { return "masks are searched in some steps alone"; }

  // Masks are searched, and the sparse phase ends, at steps.
  bool WeightsDependOnStep() const override { return has_sparse_weights(); }
  // Masks of a step are those of what the update before it has made of whole weights.
  bool NeedsWholeUpdates() const override { return has_sparse_weights(); }

  ScheduledStep Scheduled(ScheduledStep place) const override { return search_.Scheduled(place); }

  Status BeforeStep(int64_t step) override {
    WEFT_ASSIGN_OR_RETURN(const bool went_back, search_.BeforeStep(step));
    if (went_back) has_masks_ = false;
    return OkStatus();
  }

  Status BeforeForward(Context& context, std::optional<int64_t> step) override {
    if (!has_sparse_weights()) return OkStatus();
    if (step) {
      factory_.SetSparse(IsSparse(*step));
      factory_.SetAdapters(*step >= first_adapter_step_);
      masked_ = IsMasked(*step);
    }
    if (!masked_) {
      return std::exchange(keeps_all_, true) ? OkStatus() : factory_.KeepAll(context.stream);
    }
    const int64_t interval = StepsOfMasks(factory_.spec());
    const bool due = step && *step != searched_step_ && interval > 0 &&
                     Scheduled({.step = *step}).step % interval == 0;
    if (has_masks_ && !due) return OkStatus();
    ProfileScope scope(context.profiler, "2:4 masks");
    WEFT_RETURN_IF_ERROR(factory_.FindMasks(context));
    if (has_masks_) {
      WEFT_ASSIGN_OR_RETURN(flips_, factory_.CountFlips(context));
    }
    has_masks_ = true;
    if (step) searched_step_ = *step;
    return OkStatus();
  }

  bool KeepsSecondMoments(int64_t step) const override {
    return switch_ && switch_->Switched(step);
  }

  std::vector<bool> FrozenIn(int64_t step) const override {
    const bool waits = factory_.spec().adapter_rank > 0 && step < first_adapter_step_;
    return waits ? adapters_ : std::vector<bool>();
  }

  Status BeforeUpdate(Context& state, const PendingUpdate& update) override {
    const SparsitySpec& spec = factory_.spec();
    const auto decay = static_cast<float>(search_.DecayOf(state.step));
    if (!IsSparse(state.step) || decay == 0) return OkStatus();
    if (spec.method != "masked_decay" && !DecaysWeights(spec)) return OkStatus();
    ProfileScope scope(state.profiler, "2:4 decay");
    const Stream& device = parts_.context->stream;
    for (const Decayed& each : decayed_) {
      if (!each.on_host) {
        WEFT_RETURN_IF_ERROR(Decay(each, device, each.mask, decay, update));
        continue;
      }
      WEFT_ASSIGN_OR_RETURN(const HostCopy mask, HostCopy::Of(device, each.mask));
      WEFT_RETURN_IF_ERROR(Decay(each, state.stream, mask.view(), decay, update));
    }
    return OkStatus();
  }

  Status OnStepEnd(const FinishedStep& step) override {
    if (!has_sparse_weights()) factory_.SetSparse(IsSparse(step.step + 1));
    if (switch_) WEFT_RETURN_IF_ERROR(switch_->OnStepEnd(step));
    if (factory_.spec().decay_search_steps > 0) {
      step.metrics->emplace(kDecayMetric, search_.DecayOf(step.step));
    }
    if (!flips_) return OkStatus();
    std::array<double, 2> sums = {static_cast<double>(flips_->changed),
                                  static_cast<double>(flips_->elements)};
    flips_.reset();
    WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(sums));
    if (sums[1] == 0) return OkStatus();
    step.metrics->emplace(kFlipRateMetric, sums[0] / sums[1]);
    search_.Observe(step.step, sums[0] / sums[1]);
    return OkStatus();
  }

  std::vector<NamedTensor> StateTensors() override {
    std::vector<NamedTensor> tensors = search_.StateTensors();
    if (switch_) {
      for (NamedTensor& tensor : switch_->StateTensors()) tensors.push_back(std::move(tensor));
    }
    for (const Sparse24Layer::Part& part : factory_.Parts()) {
      const std::string& name = (*parts_.parameters)[part.parameter].name;
      tensors.push_back({.name = kSparse24Masks + name,
                         .view = part.mask,
                         .parameter = part.parameter,
                         .block = 4});
      if (part.backward_mask) {
        tensors.push_back({.name = kSparse24BackwardMasks + name,
                           .view = part.backward_mask,
                           .parameter = part.parameter,
                           .block = 4});
      }
      if (!HasSoftThresholds(factory_.spec())) continue;
      // Ranks of a pipeline have those of their layers.
      tensors.push_back({.name = kSparse24Scales + name,
                         .view = {part.scale, DType::kF32, {1}},
                         .part = NamedTensor::Place{.whole = {1}}});
    }
    return tensors;
  }

  // Masks of a step are searched at the end of the one before, those of the first at its beginning.
  void OnRestored(int64_t steps) override {
    factory_.SetSparse(IsSparse(steps));
    masked_ = IsMasked(steps);
    has_masks_ = steps > 0 && masked_;
    factory_.MasksChanged();
    searched_step_ = has_masks_ ? steps : -1;
    flips_.reset();
  }

 private:
  struct Decayed {
    ParameterPart part;
    TensorView mask;       ///< Of the whole parameter, on the device.
    bool on_host = false;  ///< The part, in the host memory pool.
  };

  /// Decays a part whose weights, gradients and `mask` are where `stream` works.
  Status Decay(const Decayed& each, const Stream& stream, const TensorView& mask, float decay,
               const PendingUpdate& update) const {
    const TensorView weight = each.part.value.Flat(), gradient = each.part.gradient.Flat();
    if (factory_.spec().method == "masked_decay") {
      return kernels::MaskedDecay(stream, {.weight = weight,
                                           .gradient = gradient,
                                           .mask = mask,
                                           .first = each.part.first,
                                           .decay = decay,
                                           .gate = update.gate});
    }
    return kernels::MaskedWeightDecay(stream, {.weight = weight,
                                               .mask = mask,
                                               .first = each.part.first,
                                               .decay = decay,
                                               .learning_rate = update.learning_rate,
                                               .gate = update.gate});
  }

  /// Whether there are masks of weights, not of activations.
  bool has_sparse_weights() const { return !PrunesActivations(factory_.spec()); }

  /// Whether masks are searched, though the products of the step may be dense.
  bool IsMasked(int64_t step) const { return !switch_ || switch_->Switched(step); }
  bool IsSparse(int64_t step) const {
    return IsMasked(step) && !search_.IsDense(step) && step >= first_pruned_step_ &&
           step < first_dense_step_;
  }

  Sparse24ProductsFactory factory_;
  int64_t first_dense_step_;
  int64_t first_adapter_step_;
  int64_t first_pruned_step_ = 0;  ///< Of activations.
  DecaySearch search_;
  std::optional<MomentSwitch> switch_;  ///< Of step.
  bool masked_ = true;                  ///< In the step that weights were packed for last.
  TrainingParts parts_;
  std::vector<bool> adapters_;  ///< By parameter, whether it is of one.
  std::vector<Decayed> decayed_;
  bool keeps_all_ = false;  ///< Masks before the first one do.
  bool has_masks_ = false;
  int64_t searched_step_ = -1;  ///< The step that they were last searched for.
  std::optional<Sparse24ProductsFactory::Flips> flips_;  ///< Of a search that was not reported.
};

}  // namespace

std::unique_ptr<Technique> NewSparse24(const TechniqueInputs& inputs) {
  if (inputs.train.sparsity.method == "none") return nullptr;
  return std::make_unique<Sparse24>(
      inputs.train, Sparse24Ranks{.tensor = inputs.tensor_ranks,
                                  .context = inputs.context_ranks,
                                  .sequence_length = SequenceLength(inputs.model, inputs.train)});
}

}  // namespace weft::engine
