#include "worker/engine/train/step_totals.h"

#include <array>
#include <limits>
#include <span>
#include <vector>

#include "kernels/step_totals/step_totals.h"
#include "worker/engine/train/exact_numbers.h"
#include "worker/engine/train/state_context.h"

namespace weft::engine {
Result<StepTotals> StepTotals::New(const TrainerParts& parts, const TrainingRanks* ranks) {
  StepTotals totals;
  totals.parts_ = parts;
  totals.ranks_ = ranks;
  WEFT_ASSIGN_OR_RETURN(totals.numbers_, ReadbackOf<Numbers>::New(*parts.context));
  return totals;
}

StepTotals::Numbers* StepTotals::of_update() const {
  return parts_.model->parameters().offloaded() ? numbers_.host() : numbers_.device();
}

kernels::UpdateGate StepTotals::gate() const {
  return {.factor = &of_update()->factor, .made = &of_update()->made};
}

Status StepTotals::MeasureGradientsOfRank() {
  ProfileScope scope(parts_.context->profiler, "gradient norm");
  const ParameterSet& parameters = parts_.model->parameters();
  Context state = StateContextOf(*parts_.context, parameters);
  return MeasureGradients(state, parameters, ranks_->updated_parts(), &of_update()->gradients);
}

void StepTotals::TakeLoss() {
  const ExactLoss& loss = micro_batches_->total_loss();
  numbers_.host()->loss = {loss.sum.Value(), loss.right};
}

// The same on any mesh: what ranks have is added as if one had all of it.
Status StepTotals::SumLossesExactly(bool fails, PhaseSeconds& seconds) {
  ExactLoss loss = micro_batches_->total_loss();
  if (fails) loss.sum.Add(std::numeric_limits<double>::infinity());
  exact_gradients_ = {};
  // Several ranks may have the same parts: the first ones count them.
  if (!ranks_->updated_parts().empty() && parts_.reducer->first_shards()) {
    exact_gradients_ = MeasureGradientsExactly(parts_.model->parameters(), ranks_->updated_parts());
  }
  std::vector<double> sums;
  AppendTo(sums, loss.sum, loss.right);
  AppendTo(sums, exact_gradients_.squares, exact_gradients_.non_finite);
  WEFT_RETURN_IF_ERROR(ranks_->SumScalars(sums, seconds));
  TakeFrom(std::span(sums).last(kExactNumbers), exact_gradients_.squares,
           exact_gradients_.non_finite);
  const std::span of_loss = std::span(sums).first(kExactNumbers);
  // The last stage alone has computed it.
  if (parts_.pipeline != nullptr) WEFT_RETURN_IF_ERROR(parts_.pipeline->SumScalars(of_loss));
  TakeFrom(of_loss, loss.sum, loss.right);
  numbers_.host()->loss = {loss.sum.Value(), loss.right};
  return OkStatus();
}

Status StepTotals::MeasureExactly(PhaseSeconds& seconds) {
  if (ranks_->updated_parts().empty()) {
    exact_gradients_ = MeasureGradientsExactly(parts_.model->parameters(), {});
  }
  std::vector<double> sums;
  AppendTo(sums, exact_gradients_.squares, exact_gradients_.non_finite);
  WEFT_RETURN_IF_ERROR(ranks_->SumOverReplica(sums, seconds));
  TakeFrom(sums, exact_gradients_.squares, exact_gradients_.non_finite);
  numbers_.host()->gradients = {exact_gradients_.squares.Value(), exact_gradients_.non_finite};
  return OkStatus();
}

Status StepTotals::SumLosses(bool fails, PhaseSeconds& seconds) {
  if (micro_batches_ != nullptr) return SumLossesExactly(fails, seconds);
  Context& context = *parts_.context;
  const bool offloaded = parts_.model->parameters().offloaded();
  const bool shares = !ranks_->updated_parts().empty();
  if (shares && !offloaded) WEFT_RETURN_IF_ERROR(MeasureGradientsOfRank());
  WEFT_RETURN_IF_ERROR(numbers_.Fetch(context));
  WEFT_RETURN_IF_ERROR(numbers_.Wait().status());
  // What comes from the device does not know them.
  if (shares && offloaded) WEFT_RETURN_IF_ERROR(MeasureGradientsOfRank());
  BatchLoss& loss = numbers_.host()->loss;
  if (fails) loss.sum = std::numeric_limits<double>::infinity();
  NormSums& gradients = numbers_.host()->gradients;
  std::array<double, 4> sums = {loss.sum, static_cast<double>(loss.right), gradients.squares,
                                static_cast<double>(gradients.non_finite)};
  // Several ranks may have the same parts: the first ones count them.
  if (shares && !parts_.reducer->first_shards()) sums[2] = sums[3] = 0;
  WEFT_RETURN_IF_ERROR(ranks_->SumScalars(std::span(sums).first(shares ? 4 : 2), seconds));
  // The last stage alone has computed it.
  if (parts_.pipeline != nullptr) {
    WEFT_RETURN_IF_ERROR(parts_.pipeline->SumScalars(std::span(sums).first(2)));
  }
  loss = {sums[0], static_cast<int64_t>(sums[1])};
  WEFT_RETURN_IF_ERROR(numbers_.Store(context, &Numbers::loss));
  if (!shares) return OkStatus();
  gradients = {sums[2], static_cast<int64_t>(sums[3])};
  return numbers_.Store(context, &Numbers::gradients);
}

Status StepTotals::Measure(bool groups, PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  Context state = StateContextOf(context, parameters);
  {
    ProfileScope scope(context.profiler, "gradient norm");
    CountWork(context.profiler, 0, static_cast<double>(parameters.GradientCount()) * sizeof(float));
    if (ranks_->updated_parts().empty() && micro_batches_ == nullptr) {
      WEFT_RETURN_IF_ERROR(MeasureGradients(state, parameters, &of_update()->gradients));
    }
  }
  if (groups) {
    ProfileScope scope(context.profiler, "norms by group");
    WEFT_RETURN_IF_ERROR(
        MeasureGroups(state, parameters, of_update()->groups, ranks_->updated_parts()));
  }
  WEFT_RETURN_IF_ERROR(SumOverShards(groups, seconds));
  return micro_batches_ == nullptr ? OkStatus() : MeasureExactly(seconds);
}

// Each rank has measured what it counts.
Status StepTotals::SumOverShards(bool groups, PhaseSeconds& seconds) {
  if (parts_.tensor == nullptr && parts_.experts == nullptr && parts_.pipeline == nullptr) {
    return OkStatus();
  }
  Context& context = *parts_.context;
  if (!parts_.model->parameters().offloaded()) {
    WEFT_RETURN_IF_ERROR(numbers_.Fetch(context));
    WEFT_RETURN_IF_ERROR(numbers_.Wait().status());
  }
  std::vector<NormSums*> norms = {&numbers_.host()->gradients};
  // Expert-parallel ranks that shard updates have summed these with the losses: one reports them.
  const bool summed = !ranks_->updated_parts().empty() && parts_.experts != nullptr;
  if (summed && parts_.experts->rank() > 0) *norms[0] = {};
  if (groups) {
    for (GroupSums& group : numbers_.host()->groups) {
      norms.push_back(&group.gradients);
      norms.push_back(&group.values);
    }
  }
  std::vector<double> sums;
  for (const NormSums* norm : norms) {
    sums.push_back(norm->squares);
    sums.push_back(static_cast<double>(norm->non_finite));
  }
  WEFT_RETURN_IF_ERROR(ranks_->SumOverReplica(sums, seconds));
  for (size_t i = 0; i < norms.size(); ++i) {
    *norms[i] = {sums[2 * i], static_cast<int64_t>(sums[2 * i + 1])};
  }
  WEFT_RETURN_IF_ERROR(numbers_.Store(context, &Numbers::gradients));
  return numbers_.Store(context, &Numbers::groups);
}

Status StepTotals::Decide(const Decision& decision) {
  const Context state = StateContextOf(*parts_.context, parts_.model->parameters());
  Numbers* numbers = of_update();
  return kernels::DecideUpdate(
      state.stream,
      {.loss_sum = &numbers->loss.sum,
       .square_sum = &numbers->gradients.squares,
       .non_finite = &numbers->gradients.non_finite,
       .targets = state.Number(static_cast<double>(decision.targets), &StepNumbers::targets),
       .loss_scale = state.Number(decision.loss_scale, &StepNumbers::loss_scale),
       .loss_limit = state.Number(decision.loss_limit, &StepNumbers::loss_limit),
       .clip_norm = decision.clip_norm,
       .factor = &numbers->factor,
       .made = &numbers->made});
}

Status StepTotals::SumGroups(PhaseSeconds& seconds) {
  // Where this rank has no part, it has those of other stages by now.
  if (parts_.reducer == nullptr || !parts_.reducer->shares_updates()) return OkStatus();
  const size_t sums = parts_.model->parameters().values_sharded() ? 2 : 1;
  std::array<double, 2 * kParameterGroups> squares;
  GroupSums* groups = numbers_.host()->groups;
  for (size_t g = 0; g < kParameterGroups; ++g) {
    squares[g] = groups[g].gradients.squares;
    squares[kParameterGroups + g] = groups[g].values.squares;
  }
  WEFT_RETURN_IF_ERROR(
      ranks_->SumOverParts(std::span(squares).first(sums * kParameterGroups), seconds));
  for (size_t g = 0; g < kParameterGroups; ++g) {
    groups[g].gradients.squares = squares[g];
    groups[g].values.squares = squares[kParameterGroups + g];
  }
  return OkStatus();
}

}  // namespace weft::engine
