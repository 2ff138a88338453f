#include "worker/engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "common/failpoint.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/train/guard.h"

namespace weft::engine {

Status Trainer::EndStepOfTechniques(int64_t sequences, int64_t first_targets, StepReport& report) {
  const FinishedStep step = {.step = report.step,
                             .applied = !report.skipped,
                             .loss_scale = report.loss_scale,
                             .batch = sequences,
                             .targets = report.targets,
                             .first_targets = first_targets,
                             .gradient_squares = totals_.host().gradients.squares,
                             .metrics = &report.technique_metrics};
  WEFT_RETURN_IF_ERROR(techniques_.OnStepEnd(step));
  report.seconds.communication_exposed += std::exchange(waited_for_techniques_, 0);
  return OkStatus();
}

float Trainer::GradientScale(const StepReport& report) const {
  return static_cast<float>(report.loss_scale / static_cast<double>(report.targets));
}

Status Trainer::SendNumbers(const StepReport& report) {
  if (!on_gpu()) return OkStatus();
  return numbers_.Store(*parts_.context,
                        {.targets = static_cast<double>(report.targets),
                         .loss_scale = report.loss_scale,
                         .loss_limit = SpikeLimit(job_.train.guard, counters_.recent_losses),
                         .update = counters_.updates + 1,
                         .gradient_scale = GradientScale(report),
                         .learning_rate = static_cast<float>(report.learning_rate),
                         .step = static_cast<uint32_t>(counters_.step)});
}

Status Trainer::RunStep(std::vector<MicroBatch> batches, bool loss_fails, StepReport& report) {
  const bool once = launcher_.enqueues();
  const auto gradients = [&] {
    return EnqueueGradients(once ? std::move(batches) : batches, report);
  };
  const auto update = [&] { return EnqueueUpdate(report); };
  if (!SumsLosses() && !loss_fails) {
    return launcher_.Run(0, [&]() -> Status {
      WEFT_RETURN_IF_ERROR(gradients());
      return update();
    });
  }
  WEFT_RETURN_IF_ERROR(launcher_.Run(0, gradients));
  WEFT_RETURN_IF_ERROR(totals_.SumLosses(loss_fails, report.seconds));
  return launcher_.Run(1, update);
}

Status Trainer::EnqueueGradients(std::vector<MicroBatch> batches, StepReport& report) {
  const Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(clock_.Start(*parts_.context));
  WEFT_RETURN_IF_ERROR(totals_.Clear());
  WEFT_RETURN_IF_ERROR(passes_.Run(
      std::move(batches), context.Number(GradientScale(report), &StepNumbers::gradient_scale),
      totals_.loss(), report.seconds));
  return ranks_.FinishGradients(report.seconds);
}

// Every rank sees the same gradients, hence the same scale.
void Trainer::UpdateLossScale(StepReport& report) {
  if (!parts_.model->precision().loss_scaling) return;
  LossScale& now = counters_.loss_scale;
  const LossScale next =
      NextLossScale(job_.train.loss_scaling, now, report.non_finite_gradients > 0);
  report.overflow = next.scale < now.scale;
  now = next;
}

Status Trainer::EnqueueUpdate(StepReport& report) {
  Context& context = *parts_.context;
  Context state = StateContext();
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  WEFT_RETURN_IF_ERROR(techniques_.OnGradients(state, counters_.step));
  WEFT_RETURN_IF_ERROR(totals_.Measure(MeasuresGroups(), report.seconds));
  WEFT_RETURN_IF_ERROR(
      totals_.Decide({.targets = report.targets,
                      .loss_scale = report.loss_scale,
                      .loss_limit = SpikeLimit(job_.train.guard, counters_.recent_losses),
                      .clip_norm = job_.train.gradient_clip_norm}));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  if (offloaded_ != nullptr) {
    return offloaded_->Update(UpdateArgsOf(report), counters_.step, report.seconds);
  }
  WEFT_RETURN_IF_ERROR(totals_.Fetch());
  WEFT_RETURN_IF_ERROR(UpdateParameters(report));
  if (!ranks_.updated_parts().empty()) {
    WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
    WEFT_RETURN_IF_ERROR(ranks_.GatherParameters(report.seconds));
    WEFT_RETURN_IF_ERROR(clock_.Start(context));
  }
  weights_.Changed(Repack::kTrained);
  return weights_.Prepare(counters_.step + 1);
}

StepArgs Trainer::UpdateArgsOf(const StepReport& report) const {
  return {.learning_rate = report.learning_rate,
          .update = counters_.updates + 1,
          .gate = totals_.gate(),
          .gradients = parts_.model->parameters().gradients().As<float>()};
}

Status Trainer::UpdateParameters(const StepReport& report) {
  Context context = StateContext();
  ProfileScope scope(context.profiler, "update");
  return updaters_.main().Update(context, UpdateArgsOf(report));
}

Status Trainer::FinishUpdate(StepReport& report) {
  WEFT_ASSIGN_OR_RETURN(const StepTotals::Numbers* totals, totals_.Wait());
  report.loss = totals->loss.sum / static_cast<double>(report.targets);
  report.right = totals->loss.right;
  report.gradient_norm = totals->gradients.Norm() / report.loss_scale;
  report.non_finite_gradients = totals->gradients.non_finite;
  report.skipped = totals->made == 0;
  report.spike = JudgeStep(job_.train.guard, counters_.recent_losses, report.loss,
                           report.non_finite_gradients == 0) == StepVerdict::kSpike;
  UpdateLossScale(report);
  if (report.skipped) return OkStatus();
  RememberLoss(job_.train.guard, report.loss, counters_.recent_losses);
  if (MeasuresGroups()) {
    WEFT_RETURN_IF_ERROR(totals_.SumGroups(report.seconds));
    report.norms = GroupNorms(parts_.model->parameters(), totals->groups, report.loss_scale);
  }
  ++counters_.updates;
  if (rounds_ != nullptr) rounds_->OnUpdated();
  updaters_.OnApplied();
  return techniques_.OnUpdated(counters_.updates);
}

// Enters what collectives hold into the books of this rank.
Status Trainer::CountCommunication() {
  const int64_t bytes = ranks_.held_bytes();
  if (bytes == 0) return OkStatus();
  return communication_.Set(parts_.context->allocator, Component::kCommunication, bytes);
}

void Trainer::ReportTiers(StepReport& report) {
  report.tiers.device_bytes = TotalBytes(report.step_memory);
  HostMemoryPool* tier = parts_.context->host;
  if (tier == nullptr) return;
  Allocator& host = tier->allocator();
  report.device_memory = report.peak_memory;
  AddTo(report.peak_memory, host.Peaks());
  const MemoryBreakdown held = host.TakeRecentPeaks();
  AddTo(report.step_memory, held);
  report.tiers.host_bytes = TotalBytes(held);
  report.tiers.file_bytes = tier->files().bytes;
  const double waited = tier->WaitedSeconds();
  report.tiers.stall_seconds = waited - std::exchange(waited_for_tiers_, waited);
}

Status Trainer::FinishRound(StepReport& report) {
  Context& context = *parts_.context;
  rounds_->AddStep(report);
  if (!AtOuterStep()) {
    rounds_->EstimateAll(report);
    return OkStatus();
  }
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  WEFT_RETURN_IF_ERROR(rounds_->Finish(context, clock_, counters_, report));
  weights_.Changed(Repack::kTrained);
  return clock_.Collect(context, report.seconds);
}

Result<StepReport> Trainer::Step() {
  Context& context = *parts_.context;
  StepReport report;
  report.step = counters_.step;
  report.loss_scale = counters_.loss_scale.scale;
  report.learning_rate = ScheduledLearningRate(job_.schedule, PeakLearningRate(job_),
                                               counters_.step, job_.train.steps);
  context.step = counters_.step;
  WEFT_RETURN_IF_ERROR(weights_.Prepare(counters_.step));

  Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(StepBatches batches, loader_->Take(DataStep()));
  ChargePhase(context, "data", watch.Lap(), report.seconds.data);
  std::array<double, 3> counts = {static_cast<double>(batches.targets),
                                  static_cast<double>(batches.tokens),
                                  static_cast<double>(batches.padding_tokens)};
  const bool loss_fails = !Failpoint("trainer.loss").ok();
  WEFT_RETURN_IF_ERROR(launcher_.Agree({.batches = batches.micro_batches,
                                        .measures_groups = MeasuresGroups(),
                                        .alone = loss_fails,
                                        .parts = SumsLosses() ? size_t{2} : size_t{1}},
                                       counts, report.seconds));
  report.targets = static_cast<int64_t>(counts[0]);
  report.tokens = static_cast<int64_t>(counts[1]);
  report.padding_tokens = static_cast<int64_t>(counts[2]);
  if (report.targets == 0) {
    return InvalidError("step " + std::to_string(counters_.step) +
                        " has no targets; hint: look at the data, every token is ignored");
  }

  const int64_t first_targets = batches.micro_batches.front().targets;
  WEFT_RETURN_IF_ERROR(SendNumbers(report));
  context.numbers = on_gpu() ? numbers_.device() : nullptr;
  const Status enqueued = RunStep(std::move(batches.micro_batches), loss_fails, report);
  context.numbers = nullptr;
  WEFT_RETURN_IF_ERROR(enqueued);
  if (counters_.step + 1 < job_.train.steps) loader_->Prefetch(DataStep() + 1);
  WEFT_RETURN_IF_ERROR(FinishUpdate(report));
  // No rank has been asked for anything that it is yet to do.
  if (on_gpu()) context.stream.cuda->FreeOutgrown();
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  WEFT_RETURN_IF_ERROR(clock_.Collect(context, report.seconds));
  WEFT_RETURN_IF_ERROR(EndStepOfTechniques(batches.sequences, first_targets, report));
  ++counters_.step;
  if (rounds_ == nullptr) counters_.tokens += report.tokens - report.padding_tokens;
  if (report.skipped) ++counters_.skipped_steps;
  if (report.spike) ++counters_.loss_spikes;
  if (report.overflow) ++counters_.overflows;
  if (rounds_ != nullptr) WEFT_RETURN_IF_ERROR(FinishRound(report));
  WEFT_RETURN_IF_ERROR(CountCommunication());
  report.peak_memory = context.allocator->Peaks();
  report.step_memory = context.allocator->TakeRecentPeaks();
  ReportTiers(report);
  return report;
}

}  // namespace weft::engine
