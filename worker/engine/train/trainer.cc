#include "worker/engine/train/trainer.h"

#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/model/technique_cost.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/train/evaluation.h"
#include "worker/engine/train/first_batches.h"
#include "worker/engine/train/guard.h"
#include "worker/engine/train/state_places.h"

namespace weft::engine {
namespace {

double SecondsNow() {
  return ToSeconds(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

Result<StepReport> Trainer::Step() {
  Context& context = *parts_.context;
  if (timed_ != nullptr) {
    timed_->OnStep(SecondsNow());
    counters_.step = timed_->share().step;
  }
  context.step = counters_.step;
  WEFT_RETURN_IF_ERROR(techniques_.BeforeStep(counters_.step));
  StepReport report = NewReport();
  WEFT_RETURN_IF_ERROR(weights_.Prepare(counters_.step));

  const bool loss_fails = !Failpoint("trainer.loss").ok();
  const bool alone =
      loss_fails || ReplacesUpdate() || techniques_.RunsAlone(Scheduled(counters_.step).step);
  WEFT_ASSIGN_OR_RETURN(StepBatches batches, TakeBatches(alone, report));
  WEFT_RETURN_IF_ERROR(Replay(batches, report));
  WEFT_RETURN_IF_ERROR(SendNumbers(report));
  context.numbers = on_gpu() ? numbers_.device() : nullptr;
  const Status enqueued = RunStep(std::move(batches.micro_batches), loss_fails, report);
  context.numbers = nullptr;
  WEFT_RETURN_IF_ERROR(enqueued);
  PrefetchNext();

  WEFT_RETURN_IF_ERROR(FinishUpdate(report));
  // No rank has been asked for anything that it is yet to do.
  if (on_gpu()) context.stream.cuda->FreeOutgrown();
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  WEFT_RETURN_IF_ERROR(clock_.Collect(context, report.seconds));
  WEFT_RETURN_IF_ERROR(EndStepOfTechniques(batches, report));
  CountStep(report);
  if (rounds_ != nullptr) WEFT_RETURN_IF_ERROR(FinishRound(report));
  WEFT_RETURN_IF_ERROR(memory_.Report(context, ranks_.held_bytes(), report));
  return report;
}

StepReport Trainer::NewReport() const {
  StepReport report;
  report.step = counters_.step;
  report.loss_scale = counters_.loss_scale.scale;
  const ScheduledStep at = Scheduled(counters_.step);
  report.learning_rate =
      ScheduledLearningRate(job_.schedule, PeakLearningRate(job_), at.step, at.steps);
  return report;
}

Status Trainer::ComputeGradients(StepReport& report) {
  Context& context = *parts_.context;
  weights_.Changed(Repack::kTrained);
  WEFT_RETURN_IF_ERROR(weights_.Prepare(counters_.step));
  WEFT_ASSIGN_OR_RETURN(StepBatches batches, TakeBatches(true, report));
  WEFT_RETURN_IF_ERROR(SendNumbers(report));
  context.numbers = on_gpu() ? numbers_.device() : nullptr;
  const Status enqueued = EnqueueGradients(std::move(batches.micro_batches), report);
  context.numbers = nullptr;
  return enqueued;
}

Result<StepReport> Trainer::Differentiate() {
  parts_.context->step = counters_.step;
  StepReport report = NewReport();
  WEFT_RETURN_IF_ERROR(ComputeGradients(report));
  if (SumsLosses()) WEFT_RETURN_IF_ERROR(totals_.SumLosses(false, report.seconds));
  WEFT_RETURN_IF_ERROR(totals_.Fetch());
  WEFT_ASSIGN_OR_RETURN(const StepTotals::Numbers* totals, totals_.Wait());
  report.loss = totals->loss.sum / static_cast<double>(report.targets);
  return report;
}

Status Trainer::BeginAnew() {
  const Stream& stream = parts_.context->stream;
  const auto clear = [&](int64_t, const TensorView& piece) { return Clear(stream, piece); };
  for (const NamedTensor& tensor : updaters_.StateTensors()) {
    WEFT_RETURN_IF_ERROR(tensor.stored != nullptr
                             ? tensor.stored->ReplaceFloats(tensor.view.shape.Elements(), clear)
                             : Clear(stream, tensor.view));
  }
  counters_.updates = 0;
  counters_.recent_losses.clear();
  if (parts_.model->precision().loss_scaling) {
    counters_.loss_scale = FirstLossScale(job_.train.loss_scaling);
  }
  weights_.Changed(Repack::kTrained);
  PhaseSeconds ignored;
  return ranks_.GatherParameters(ignored);
}

BatchLoader::Request Trainer::BatchesOf(int64_t step) const {
  const int64_t scheduled = Scheduled(step).step, whole = SequenceLength(job_);
  const int64_t length = techniques_.TrainedLength(scheduled, whole);
  return {scheduled + counters_.data_offset, length < whole ? length : 0};
}

BatchLoader::Request Trainer::BatchesOf(const RoundShare& share) const {
  BatchLoader::Request request = BatchesOf(share.step);
  request.data_step = counters_.data_offset;
  request.sequences = share.sequences;
  request.first_row = share.first_row;
  return request;
}

void Trainer::PrefetchNext() {
  if (timed_ != nullptr) {
    if (timed_->next()) loader_->Prefetch(BatchesOf(*timed_->next()));
  } else if (counters_.step + 1 < job_.train.steps) {
    loader_->Prefetch(BatchesOf(counters_.step + 1));
  }
}

Result<StepBatches> Trainer::TakeBatches(bool alone, StepReport& report) {
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(Failpoint("trainer.wait_for_data"));
  WEFT_ASSIGN_OR_RETURN(StepBatches batches, loader_->Take(Batches()));
  ChargePhase(*parts_.context, "data", watch.Lap(), report.seconds.data);
  std::vector<double> counts = {static_cast<double>(batches.targets),
                                static_cast<double>(batches.tokens),
                                static_cast<double>(batches.padding_tokens)};
  counts.insert(counts.end(), batches.part_targets.begin(), batches.part_targets.end());
  WEFT_RETURN_IF_ERROR(launcher_.Agree({.batches = batches.micro_batches,
                                        .measures_groups = MeasuresGroups(),
                                        .alone = alone,
                                        .parts = SumsLosses() ? size_t{2} : size_t{1}},
                                       counts, report.seconds));
  report.targets = static_cast<int64_t>(counts[0]);
  report.tokens = static_cast<int64_t>(counts[1]);
  report.padding_tokens = static_cast<int64_t>(counts[2]);
  part_targets_.assign(counts.begin() + 3, counts.end());
  if (report.targets == 0) {
    return InvalidError("step " + std::to_string(counters_.step) +
                        " has no targets; hint: look at the data, every token is ignored");
  }
  return batches;
}

Status Trainer::Replay(const StepBatches& batches, StepReport& report) {
  if (replay_ == nullptr || (counters_.step + 1) % job_.train.replay_every_steps != 0) {
    return OkStatus();
  }
  Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(const TokenBatch other,
                        loader_->FirstOf(replay_->other_rank(), BatchesOf(counters_.step)));
  WEFT_ASSIGN_OR_RETURN(wrong_bits_,
                        replay_->Run(batches.micro_batches.front(), other, GradientScale(report)));
  ChargePhase(*parts_.context, "replay", watch.Lap(), report.seconds.forward);
  if (!wrong_bits_) return OkStatus();
  return InternalError("a micro-batch of step " + std::to_string(counters_.step) +
                       " computed twice has other bits");
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

Status Trainer::RunStep(std::vector<TokenBatch> batches, bool loss_fails, StepReport& report) {
  const bool once = launcher_.enqueues();
  // What techniques change is changed before ranks that shard updates measure it with the losses.
  const auto gradients = [&]() -> Status {
    Context& context = *parts_.context;
    Context state = StateContext();
    WEFT_RETURN_IF_ERROR(EnqueueGradients(once ? std::move(batches) : batches, report));
    WEFT_RETURN_IF_ERROR(clock_.Start(context));
    WEFT_RETURN_IF_ERROR(FinishUpdates());
    WEFT_RETURN_IF_ERROR(ranks_.SplitDerived([&](std::span<const int64_t> derived) {
      return techniques_.OnDerivedGradients(state, derived, counters_.step);
    }));
    WEFT_RETURN_IF_ERROR(techniques_.OnGradients(state, counters_.step));
    return clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer);
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

Status Trainer::EnqueueGradients(std::vector<TokenBatch> batches, StepReport& report) {
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(totals_.Clear());
  WEFT_RETURN_IF_ERROR(part_losses_.Clear(context));
  WEFT_RETURN_IF_ERROR(passes_.Run(
      std::move(batches), context.Number(GradientScale(report), &StepNumbers::gradient_scale),
      totals_.loss(), report.seconds));
  if (micro_batches_ != nullptr) totals_.TakeLoss();
  return ranks_.FinishGradients(report.seconds);
}

Status Trainer::EnqueueUpdate(StepReport& report) {
  Context& context = *parts_.context;
  Context state = StateContext();
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(totals_.Measure(MeasuresGroups(), report.seconds));
  WEFT_RETURN_IF_ERROR(totals_.Decide(
      {.targets = report.targets,
       .loss_scale = report.loss_scale,
       .loss_limit = SpikeLimit(job_.train.guard, counters_.recent_losses),
       .clip_norm = techniques_.ClipsGradients() ? 0 : job_.train.gradient_clip_norm}));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  const StepArgs update = {.learning_rate = report.learning_rate,
                           .update = counters_.updates + 1,
                           .gate = totals_.gate(),
                           .keeps_second_moments = techniques_.KeepsSecondMoments(counters_.step),
                           .frozen = techniques_.FrozenIn(counters_.step),
                           .restarted = techniques_.Restarted(),
                           .gradients = parts_.model->parameters().gradients().As<float>()};
  WEFT_RETURN_IF_ERROR(techniques_.BeforeUpdate(
      state, {.learning_rate = state.Number(static_cast<float>(report.learning_rate),
                                            &StepNumbers::learning_rate),
              .gate = update.gate,
              .loss_scale = report.loss_scale,
              .targets = report.targets,
              .part_targets = part_targets_,
              .step = Scheduled(counters_.step).step}));
  if (offloaded_ == nullptr) WEFT_RETURN_IF_ERROR(totals_.Fetch());
  if (ReplacesUpdate()) return OkStatus();
  if (offloaded_ != nullptr) return offloaded_->Update(update, counters_.step, report.seconds);
  {
    ProfileScope scope(context.profiler, "update");
    WEFT_RETURN_IF_ERROR(updaters_.main().Update(context, update));
  }
  WEFT_RETURN_IF_ERROR(techniques_.AfterUpdate(state));
  if (!ranks_.updated_parts().empty()) {
    WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
    WEFT_RETURN_IF_ERROR(ranks_.GatherParameters(report.seconds));
    WEFT_RETURN_IF_ERROR(clock_.Start(context));
  }
  weights_.Changed(Repack::kTrained);
  return weights_.Prepare(counters_.step + 1);
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
  if (report.skipped) return weights_.BringUpdated(counters_.step + 1);
  RememberLoss(job_.train.guard, report.loss, counters_.recent_losses);
  if (MeasuresGroups()) {
    WEFT_RETURN_IF_ERROR(totals_.SumGroups(report.seconds));
    report.norms = GroupNorms(parts_.model->parameters(), totals->groups, report.loss_scale);
  }
  if (ReplacesUpdate()) {
    Context state = StateContext();
    WEFT_RETURN_IF_ERROR(techniques_.InsteadOfUpdate(state, counters_.step));
    weights_.Changed(Repack::kTrained);
    return OkStatus();
  }
  ++counters_.updates;
  if (rounds_ != nullptr) rounds_->OnUpdated();
  updaters_.OnApplied();
  WEFT_RETURN_IF_ERROR(techniques_.OnUpdated(counters_.updates));
  return weights_.BringUpdated(counters_.step + 1);
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

Status Trainer::EndStepOfTechniques(const StepBatches& batches, StepReport& report) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> part_losses,
                        part_losses_.Sum(*parts_.context, ranks_, parts_.pipeline));
  WEFT_RETURN_IF_ERROR(techniques_.OnStepEnd({.step = report.step,
                                              .applied = !report.skipped,
                                              .loss_scale = report.loss_scale,
                                              .batch = batches.sequences,
                                              .targets = report.targets,
                                              .first_targets = batches.first_targets,
                                              .gradient_squares = totals_.host().gradients.squares,
                                              .joint = {part_losses, part_targets_},
                                              .metrics = &report.technique_metrics}));
  report.seconds.communication_exposed += std::exchange(waited_for_techniques_, 0);
  return OkStatus();
}

void Trainer::CountStep(const StepReport& report) {
  if (timed_ == nullptr) ++counters_.step;
  if (rounds_ == nullptr) counters_.tokens += report.tokens - report.padding_tokens;
  if (report.skipped) ++counters_.skipped_steps;
  if (report.spike) ++counters_.loss_spikes;
  if (report.overflow) ++counters_.overflows;
}

bool Trainer::RoundEnds(StepReport& report) {
  if (timed_ == nullptr) return AtOuterStep();
  if (!timed_->Ends(SecondsNow(), report)) return false;
  timed_->Summarize(report);
  return true;
}

Status Trainer::FinishRound(StepReport& report) {
  rounds_->AddStep(report);
  if (!RoundEnds(report)) {
    rounds_->EstimateAll(report);
    return OkStatus();
  }
  return MakeOuterStep(report);
}

Status Trainer::MakeOuterStep(StepReport& report) {
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  // The network between workers may be slow, and so may they.
  if (context.observer != nullptr) context.observer->OnExchange(true);
  if (timed_ != nullptr) {
    WEFT_RETURN_IF_ERROR(
        timed_->Exchange([this](std::span<double> values) { return rounds_->SumScalars(values); },
                         counters_.updates));
  }
  const auto on_learned = [this] {
    Context state = StateContext();
    return techniques_.OnLearned(state);
  };
  WEFT_RETURN_IF_ERROR(rounds_->Finish(context, clock_, on_learned, counters_, report));
  if (timed_ != nullptr) timed_->Finish(counters_);
  if (context.observer != nullptr) context.observer->OnExchange(false);
  weights_.Changed(Repack::kTrained);
  return clock_.Collect(context, report.seconds);
}

Status Trainer::ExchangeWeights(const std::vector<AveragedParameter>& averages) {
  if (averages.empty()) return OkStatus();
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  Context state = StateContext();
  WEFT_RETURN_IF_ERROR(Exchange(state, averages));
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(ranks_.GatherParameters(ignored));
  weights_.Changed(Repack::kTrained);
  return OkStatus();
}

Result<std::vector<AveragedParameter>> Trainer::EvaluatedAverages() {
  WEFT_ASSIGN_OR_RETURN(std::vector<AveragedParameter> all, updaters_.Averages(counters_.updates));
  WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> others,
                        techniques_.EvaluatedAverages(counters_.updates));
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

Result<EvaluationReport> Trainer::Evaluate() {
  if (parts_.validation == nullptr) return NotFoundError("the job has no validation data");
  return EvaluateOn(parts_, job_.train.eval_sequences);
}

Result<EvaluationReport> Trainer::EvaluateTraining(BatchSource* train, int64_t batches) {
  FirstBatches first(train, job_.train.global_batch, batches);
  TrainerParts parts = parts_;
  parts.validation = &first;
  return EvaluateOn(parts, 0);
}

Result<EvaluationReport> Trainer::EvaluateOn(const TrainerParts& parts, int64_t sequences) {
  // One that is late stays so.
  if (offloaded_ != nullptr) WEFT_RETURN_IF_ERROR(offloaded_->FinishUnlessLate());
  WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> averages, EvaluatedAverages());
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  const auto evaluate = [&]() -> Result<EvaluationReport> {
    WEFT_RETURN_IF_ERROR(weights_.Prepare(std::nullopt));
    if (techniques_.JudgesSequences()) return sequences_.Evaluate();
    const auto loss = [&] {
      return EvaluateLoss(parts, ranks_, rounds_.get(),
                          {.sequences = sequences,
                           .micro_batch = plan_.micro_batch,
                           .parts = JointParts(job_),
                           .exact = micro_batches_ != nullptr,
                           .techniques = &techniques_});
    };
    WEFT_ASSIGN_OR_RETURN(EvaluationReport whole, loss());
    const std::string_view metric = techniques_.SubNetworkMetric();
    if (metric.empty()) return whole;
    techniques_.SelectSubNetwork(true);
    weights_.Changed(Repack::kTrained);
    const Status prepared = weights_.Prepare(std::nullopt);
    Result<EvaluationReport> sub = prepared.ok() ? loss() : prepared;
    techniques_.SelectSubNetwork(false);
    weights_.Changed(Repack::kTrained);
    WEFT_RETURN_IF_ERROR(sub.status());
    whole.technique_metrics[std::string(metric)] = sub->loss;
    whole.seconds += sub->seconds;
    return whole;
  };
  Result<EvaluationReport> report = evaluate();
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  return report;
}

Result<bool> Trainer::WeightsAreFinite() {
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  const ParameterSet& parameters = parts_.model->parameters();
  WEFT_ASSIGN_OR_RETURN(const int64_t found, CountNonFiniteWeights(*parts_.context, parameters));
  std::array<double, 1> non_finite = {static_cast<double>(found)};
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(ranks_.SumOverReplica(non_finite, ignored));
  if (parameters.values_sharded()) {
    WEFT_RETURN_IF_ERROR(ranks_.SumOverParts(non_finite, ignored));
  }
  return non_finite[0] == 0;
}

std::vector<NamedTensor> Trainer::StateTensors(int64_t saved_ranks) {
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  if (rounds_ != nullptr) {
    for (NamedTensor& tensor : rounds_->StateTensors()) tensors.push_back(std::move(tensor));
  }
  const size_t of_all_ranks = tensors.size();
  for (NamedTensor& tensor : updaters_.StateTensors()) tensors.push_back(std::move(tensor));
  for (NamedTensor& tensor : techniques_.StateTensors()) tensors.push_back(std::move(tensor));
  MarkPlaces(parts_, tensors, rounds_ == nullptr ? tensors.size() : of_all_ranks);
  if (rounds_ == nullptr) return tensors;
  const int64_t rank = saved_ranks > 0 ? parts_.rank % saved_ranks : parts_.rank;
  for (size_t i = of_all_ranks; i < tensors.size(); ++i) {
    tensors[i].everywhere = false;
    if (rank > 0) tensors[i].name = "rank/" + std::to_string(rank) + "/" + tensors[i].name;
  }
  return tensors;
}

Status Trainer::Restored(const TrainCounters& counters) {
  counters_ = counters;
  weights_.Changed(Repack::kAll);
  // What the first steps do may be different, as where scales have no history.
  launcher_.Forget();
  techniques_.OnRestored(counters.step);
  if (timed_ != nullptr) timed_->Restored(counters_);
  return rounds_ != nullptr ? rounds_->Restored(*parts_.context, counters.step > 0) : OkStatus();
}

}  // namespace weft::engine
