#include "worker/engine/train/step_passes.h"

#include <utility>

#include "worker/engine/train/link_stalls.h"
#include "worker/engine/train/pipeline_run.h"

namespace weft::engine {
namespace {

/// By parameter.
std::vector<bool> Differentiated(const TrainerParts& parts) {
  std::vector<bool> differentiated;
  for (const Parameter& parameter : parts.model->parameters()) {
    differentiated.push_back(parameter.differentiated());
  }
  return differentiated;
}

/// Where the backward passes leave gradients.
ParameterGradients GradientsOf(const TrainerParts& parts) {
  GradientReducer* reducer = parts.reducer;
  if (reducer == nullptr || !reducer->places_gradients()) {
    return ParameterGradients(parts.model->parameters().DifferentiatedGradients());
  }
  return {Differentiated(parts), [reducer](int64_t index) { return reducer->PlaceGradient(index); },
          reducer->carries_sums()};
}

}  // namespace

StepPasses::StepPasses(const TrainerParts& parts, TechniqueList* techniques, StepClock* clock,
                       SequencePasses* sequences, PartLosses* part_losses)
    : parts_(parts),
      techniques_(techniques),
      clock_(clock),
      sequences_(sequences),
      part_losses_(part_losses),
      gradients_(GradientsOf(parts)) {}

void StepPasses::SumByMicroBatch(MicroBatchSums* sums) {
  sums_ = sums;
  if (!sums->adds_gradients()) return;
  gradients_ = ParameterGradients(Differentiated(parts_), [sums](int64_t index) {
    return Result<TensorView>(sums->PlaceGradient(index));
  });
  gradients_.TakeByPass();
}

Status StepPasses::OnGradient(int64_t index) {
  if (adds_gradients()) {
    WEFT_ASSIGN_OR_RETURN(const bool complete, sums_->OnGradient(parts_.context->stream, index));
    if (!complete) return OkStatus();
  }
  return parts_.reducer == nullptr ? OkStatus() : parts_.reducer->OnGradientReady(index);
}

Status StepPasses::Run(std::vector<TokenBatch> batches, kernels::StepValue<float> gradient_scale,
                       BatchLoss* total, PhaseSeconds& seconds) {
  if (sums_ != nullptr) {
    sums_->Start();
    total = sums_->loss();
  }
  return parts_.pipeline == nullptr
             ? RunModel(std::move(batches), gradient_scale, total, seconds)
             : RunPipeline(std::move(batches), gradient_scale, total, seconds);
}

Status StepPasses::RunModel(std::vector<TokenBatch> batches,
                            kernels::StepValue<float> gradient_scale, BatchLoss* total,
                            PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  LinkStalls stalls(context.host, &seconds);
  GradientReducer* reducer = parts_.reducer;
  if (techniques_->JudgesSequences()) {
    WEFT_RETURN_IF_ERROR(sequences_->Weigh(batches, total, seconds));
    WEFT_RETURN_IF_ERROR(clock_->Mark(context, "forward", &PhaseSeconds::forward));
    WEFT_ASSIGN_OR_RETURN(total, sequences_->IgnoredLoss());
  }
  techniques_->OnFirstMicroBatch();
  const bool observed = techniques_->ObservesFirstGradients();
  gradients_.StartStep();
  // Each micro-batch has a pass, with a network within the network one of that before it.
  const double sub_weight = techniques_->SubNetworkWeight(context.step);
  const size_t passes = (sub_weight > 0 ? 2 : 1) * batches.size();
  for (size_t pass = 0; pass < passes; ++pass) {
    const size_t k = sub_weight > 0 ? pass / 2 : pass;
    const bool sub = sub_weight > 0 && pass % 2 == 0;
    const bool last = pass + 1 == passes;
    const bool reduces = reducer != nullptr && (last || reducer->places_gradients());
    const bool observe = observed && k == 0;
    ParameterGradients::ReadyHook hook;
    if (reducer != nullptr) WEFT_RETURN_IF_ERROR(reducer->Begin(last));
    if (reduces || adds_gradients()) {
      hook = [this, &context, &parameters, observe](int64_t index) {
        if (observe) {
          WEFT_RETURN_IF_ERROR(techniques_->OnFirstGradient(context, parameters.gradient(index)));
        }
        return OnGradient(index);
      };
    }
    gradients_.StartPass(std::move(hook));
    Tape tape(&gradients_);
    tape.SetFirstRow(batches[k].first_token);
    if (sub) {
      techniques_->SelectSubNetwork(true);
      WEFT_ASSIGN_OR_RETURN(BatchLoss* const ignored, sequences_->IgnoredLoss());
      const auto scale = static_cast<float>(sub_weight * gradient_scale.value);
      WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, batches[k], scale, ignored));
    } else {
      WEFT_RETURN_IF_ERROR(part_losses_->Prepare(context, batches[k]));
      WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, batches[k], gradient_scale, total));
      WEFT_RETURN_IF_ERROR(part_losses_->Add(context, batches[k]));
      if (sums_ != nullptr) sums_->OnLoss();
      batches[k] = {};
    }
    WEFT_RETURN_IF_ERROR(clock_->Mark(context, "forward", &PhaseSeconds::forward));
    stalls.Charge(&PhaseSeconds::forward);
    WEFT_RETURN_IF_ERROR(tape.RunBackward(context));
    WEFT_RETURN_IF_ERROR(gradients_.FinishPass(context));
    if (sub) techniques_->SelectSubNetwork(false);
    if (observe && !reduces) {
      WEFT_RETURN_IF_ERROR(
          techniques_->OnFirstGradient(context, parameters.differentiated_gradients()));
    }
    WEFT_RETURN_IF_ERROR(clock_->Mark(context, "backward", &PhaseSeconds::backward));
    stalls.Charge(&PhaseSeconds::backward);
  }
  return OkStatus();
}

Status StepPasses::RunPipeline(std::vector<TokenBatch> batches,
                               kernels::StepValue<float> gradient_scale, BatchLoss* total,
                               PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  GradientReducer* reducer = parts_.reducer;
  gradients_.StartStep();
  ParameterGradients::ReadyHook hook;
  if (reducer != nullptr) WEFT_RETURN_IF_ERROR(reducer->Begin(true));
  if (reducer != nullptr && !adds_gradients()) {
    // What stages share is complete once they have added theirs (TrainingRanks::FinishGradients):
    // other ranks that have the stages then get what they may cut as they like.
    hook = [&parameters, reducer](int64_t index) {
      return parameters[index].shared_by_stages ? OkStatus() : reducer->OnGradientReady(index);
    };
  }
  gradients_.StartPasses(std::move(hook));
  LinkStalls stalls(context.host, &seconds);
  PipelineRun run({.context = &context,
                   .model = parts_.model,
                   .tensor = parts_.tensor,
                   .pipeline = parts_.pipeline,
                   .clock = clock_,
                   .stalls = &stalls,
                   .part_losses = part_losses_,
                   .on_step = [this]() -> Status {
                     if (sums_ == nullptr) return OkStatus();
                     sums_->OnLoss();
                     for (const int64_t index : gradients_.TakeWritten()) {
                       WEFT_RETURN_IF_ERROR(OnGradient(index));
                     }
                     return OkStatus();
                   }});
  WEFT_RETURN_IF_ERROR(run.Train(std::move(batches), gradients_, gradient_scale, total));
  peak_in_flight_ = run.peak_in_flight();
  WEFT_RETURN_IF_ERROR(gradients_.FinishPass(context));
  return sums_ == nullptr ? OkStatus() : ClearUnused();
}

Status StepPasses::ClearUnused() {
  for (int64_t i = 0; i < parts_.model->parameters().size(); ++i) {
    if (!gradients_.trainable(i)) continue;
    WEFT_ASSIGN_OR_RETURN(const bool cleared, sums_->ClearUnused(parts_.context->stream, i));
    if (cleared && parts_.reducer != nullptr) {
      WEFT_RETURN_IF_ERROR(parts_.reducer->OnGradientReady(i));
    }
  }
  return OkStatus();
}

}  // namespace weft::engine
