#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/spec/shard_ranks.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/techniques/gradient_noise_scale/gradient_noise_scale_cost.h"
#include "worker/engine/techniques/gradient_noise_scale/noise_scale.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Compares the gradients of the first micro-batch of each rank with those of the whole batch.
/// Derived parameters count, not their sources: these are the gradients that both have.
class GradientNoiseScale : public Technique {
 public:
  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    const auto parameters = static_cast<size_t>(parts.parameters->size());
    WEFT_ASSIGN_OR_RETURN(first_, ReadbackOf<NormSums>::New(*parts.context, parameters));
    WEFT_ASSIGN_OR_RETURN(whole_, ReadbackOf<NormSums>::New(*parts.context, 1 + parameters));
    return OkStatus();
  }

  bool ObservesFirstGradients() const override { return true; }

  void OnFirstMicroBatch() override { measured_ = derived_measured_ = 0; }

  Status OnFirstGradient(Context& context, const TensorView& gradient) override {
    return Measure(context, {NormTensorOf(gradient)}, first_.device() + measured_++);
  }

  // All ranks have them whole.
  Status OnDerivedGradients(Context& state, std::span<const int64_t> derived, int64_t) override {
    if (!MeasuresParts()) return OkStatus();
    std::vector<kernels::NormTensor> gradients;
    for (const int64_t index : derived) {
      gradients.push_back(NormTensorOf(parts_.parameters->gradient(index)));
    }
    return Measure(state, gradients, whole_.device() + ++derived_measured_);
  }

  Status OnGradients(Context& state, int64_t) override {
    const ParameterSet& parameters = *parts_.parameters;
    const bool offloaded = parameters.offloaded();
    // Without derived parameters, ranks that update different parts add up their norms themselves.
    if (MeasuresParts()) {
      WEFT_RETURN_IF_ERROR(MeasureParts(state));
    } else if (!parts_.shards_updates) {
      NormSums* const sums = offloaded ? whole_.host() : whole_.device();
      const bool in_pieces = parameters.file() != nullptr || parameters.keeps_some_on_device();
      WEFT_RETURN_IF_ERROR(
          in_pieces ? MeasureGradients(state, parameters, sums)
                    : Measure(state, {NormTensorOf(parameters.differentiated_gradients())}, sums));
      if (!offloaded) WEFT_RETURN_IF_ERROR(whole_.Fetch(*parts_.context));
    }
    WEFT_RETURN_IF_ERROR(first_.Fetch(*parts_.context));
    return offloaded ? first_.Wait().status() : OkStatus();
  }

  // The gradients of the first micro-batch are sums over its targets, divided by those of the whole
  // batch.
  Status OnStepEnd(const FinishedStep& step) override {
    double squares = 0;
    for (size_t part = 0; part < measured_; ++part) squares += first_.host()[part].squares;
    const double to_mean = static_cast<double>(step.targets) /
                           static_cast<double>(step.first_targets) / step.loss_scale;
    // Each shard group has all parts.
    const int64_t groups = GradientRanks(parts_.plan->mesh) / ShardRanks(*parts_.plan);
    std::array<double, 2> sums = {
        step.first_targets > 0 ? squares * to_mean * to_mean : 0.0,
        MeasuresParts() ? whole_.host()->squares / static_cast<double>(groups) : 0.0};
    WEFT_RETURN_IF_ERROR(parts_.sum_scalars(sums));
    const auto [small, of_parts] = sums;
    const auto batch = static_cast<double>(step.batch);
    const auto micro_batch = static_cast<double>(parts_.plan->micro_batch);
    if (step.applied && batch > micro_batch) {
      estimate_.Add(micro_batch, small / static_cast<double>(parts_.data_ranks), batch,
                    WholeSquares(step, of_parts) / (step.loss_scale * step.loss_scale));
    }
    if (const std::optional<double> value = estimate_.Value()) {
      step.metrics->emplace(kNoiseScaleMetric, *value);
    }
    return OkStatus();
  }

  std::vector<NamedTensor> StateTensors() override { return estimate_.StateTensors(); }

 private:
  /// Whether ranks that shard updates update sources of derived parameters: the norm that they add
  /// up is then of other gradients.
  bool MeasuresParts() const { return parts_.shards_updates && parts_.parameters->has_derived(); }

  /// Each rank has a part of the gradients of plain parameters.
  Status MeasureParts(Context& state) {
    const ParameterSet& parameters = *parts_.parameters;
    std::vector<kernels::NormTensor> plain;
    for (const UpdatedParameters& updated : parts_.updated) {
      for (const ParameterPart& part : updated.parts) {
        if (parameters[part.index].source_of < 0) plain.push_back(NormTensorOf(part.gradient));
      }
    }
    WEFT_RETURN_IF_ERROR(Measure(state, plain, whole_.device()));
    return whole_.Fetch(*parts_.context);
  }

  /// Squares of the gradients of the whole batch, with the loss scale. `of_parts`: of those that
  /// ranks have parts of.
  double WholeSquares(const FinishedStep& step, double of_parts) const {
    if (MeasuresParts()) {
      double squares = of_parts;
      for (size_t i = 1; i <= derived_measured_; ++i) squares += whole_.host()[i].squares;
      return squares;
    }
    return parts_.shards_updates ? step.gradient_squares : whole_.host()->squares;
  }

  TrainingParts parts_;
  NoiseScale estimate_;
  ReadbackOf<NormSums> first_;  ///< Of the first micro-batch, in `measured_` parts.
  size_t measured_ = 0;
  /// Sums of the whole batch: over all gradients, or over the parts of this rank and then, in
  /// `derived_measured_` parts, over all derived parameters.
  ReadbackOf<NormSums> whole_;
  size_t derived_measured_ = 0;
};

}  // namespace

std::unique_ptr<Technique> NewGradientNoiseScale(const TechniqueInputs& inputs) {
  return inputs.train.gradient_noise_scale ? std::make_unique<GradientNoiseScale>() : nullptr;
}

}  // namespace weft::engine
