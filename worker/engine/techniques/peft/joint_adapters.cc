#include "worker/engine/techniques/peft/joint_adapters.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/model/technique_cost.h"
#include "common/spec/shard_ranks.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/techniques/peft/joint_adapters_cost.h"

namespace weft::engine {

Initializer JointAdapters::StartOf(const Parameter& parameter, Initializer start) const {
  const AdapterSpec& adapter = adapters_[static_cast<size_t>(parameter.row_part)];
  start.drawn_as = OwnTensorName(parameter.name, adapter.name);
  return start;
}

Status JointAdapters::OnTraining(const TrainingParts& parts) {
  parts_ = parts;
  ParameterSet& parameters = *parts.parameters;
  trained_.assign(adapters_.size(), {});
  const std::vector<ParameterPart> whole = TrainedParts(parameters);
  for (const UpdatedParameters& updated : parts.updated) {
    for (const ParameterPart& part : updated.parts.empty() ? whole : updated.parts) {
      if (part.count() == 0) continue;
      trained_[static_cast<size_t>(parameters[part.index].row_part)].parts.push_back(part);
    }
  }
  if (parameters.gradients()) all_gradients_ = parameters.gradients().As<float>();
  // What an optimizer updates is in one place.
  Context state = parts.ContextOf(parts.updated.front());
  WEFT_ASSIGN_OR_RETURN(norms_, ReadbackOf<NormSums>::New(state, adapters_.size()));
  return OkStatus();
}

TensorView JointAdapters::GradientOf(const ParameterPart& part) const {
  TensorView gradient = part.gradient;
  if (all_gradients_ == nullptr) return gradient;
  gradient.data =
      parts_.parameters->gradients().As<float>() + (part.gradient.As<float>() - all_gradients_);
  return gradient;
}

Result<std::vector<NormSums>> JointAdapters::Measure(Context& state) {
  const ParameterSet& parameters = *parts_.parameters;
  for (size_t k = 0; k < trained_.size(); ++k) {
    std::vector<kernels::NormTensor> tensors;
    for (const ParameterPart& part : trained_[k].parts) {
      if (parameters.Counts(part)) tensors.push_back(NormTensorOf(GradientOf(part)));
    }
    WEFT_RETURN_IF_ERROR(engine::Measure(state, tensors, norms_.device() + k));
  }
  WEFT_RETURN_IF_ERROR(norms_.Fetch(state));
  WEFT_ASSIGN_OR_RETURN(const NormSums* own, norms_.Wait());
  std::vector<NormSums> sums(own, own + trained_.size());
  // Tensor- and expert-parallel ranks and the stages of a pipeline have other parts of the network.
  const bool whole = !parameters.sharded() && !parameters.of_stage();
  if (!parts_.shards_updates && whole) return sums;
  // Ranks with the same parts all count them, and expert-parallel ones once more as a replica.
  const int64_t groups = GradientRanks(parts_.plan->mesh) / ShardRanks(*parts_.plan);
  const auto copies =
      parts_.shards_updates ? static_cast<double>(groups * parameters.expert_ranks()) : 1;
  std::vector<double> squares, non_finite;
  for (const NormSums& each : sums) squares.push_back(each.squares / copies);
  for (const NormSums& each : sums) non_finite.push_back(static_cast<double>(each.non_finite));
  for (std::vector<double>* values : {&squares, &non_finite}) {
    if (parts_.shards_updates) WEFT_RETURN_IF_ERROR(parts_.sum_scalars(*values));
    if (!whole) WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(*values));
  }
  for (size_t k = 0; k < sums.size(); ++k) {
    sums[k] = {squares[k], static_cast<int64_t>(non_finite[k])};
  }
  return sums;
}

Status JointAdapters::BeforeUpdate(Context& state, const PendingUpdate& update) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<NormSums> norms, Measure(state));
  const double most = parts_.job->train.gradient_clip_norm;
  for (size_t k = 0; k < trained_.size(); ++k) {
    // The passes have divided by the targets of all adapters. Without any there is no gradient.
    const int64_t own = std::max<int64_t>(update.part_targets[k], 1);
    const double share = static_cast<double>(update.targets) / static_cast<double>(own);
    const double norm = share * norms[k].Norm() / update.loss_scale;
    trained_[k].gradient_norm = norm;
    if (norms[k].non_finite > 0) continue;  // the update is not made
    const double factor = share * (most > 0 && norm > most ? most / (norm + 1e-6) : 1);
    for (const ParameterPart& part : trained_[k].parts) {
      WEFT_RETURN_IF_ERROR(
          kernels::Scale(state.stream, {GradientOf(part), static_cast<float>(factor)}));
    }
  }
  return OkStatus();
}

void JointAdapters::ReportLosses(const JointLosses& losses, std::string_view metric,
                                 std::map<std::string, double>& metrics) const {
  for (size_t k = 0; k < losses.parts(); ++k) {
    const double loss = losses.sums[k] / static_cast<double>(losses.targets[k]);
    if (std::isfinite(loss)) metrics[std::string(metric) + "/" + adapters_[k].name] = loss;
  }
}

void JointAdapters::OnStepEnd(const FinishedStep& step) const {
  ReportLosses(step.joint, kAdapterLossMetric, *step.metrics);
  for (size_t k = 0; k < trained_.size(); ++k) {
    const double norm = trained_[k].gradient_norm;
    if (!std::isfinite(norm)) continue;
    (*step.metrics)[std::string(kAdapterGradientNormMetric) + "/" + adapters_[k].name] = norm;
  }
}

void JointAdapters::OnEvaluated(const JointLosses& losses,
                                std::map<std::string, double>& metrics) const {
  ReportLosses(losses, kAdapterValidationLossMetric, metrics);
}

}  // namespace weft::engine
