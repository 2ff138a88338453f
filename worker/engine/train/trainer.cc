#include "worker/engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "common/failpoint.h"
#include "kernels/cpu/parallel.h"
#include "kernels/norm_stat/norm_stat.h"
#include "worker/engine/nn/over_parameterization.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/train/group_norms.h"
#include "worker/engine/train/guard.h"

namespace weft::engine {
namespace {

Status Validate(const JobSpec& job, const Plan& plan, const TrainerParts& parts) {
  const int64_t ranks = parts.reducer != nullptr ? parts.reducer->world_size() : 1;
  if (RankCount(plan.mesh) != ranks || plan.mesh.data != ranks) {
    return InvalidError("a plan for " + std::to_string(RankCount(plan.mesh)) + " ranks, " +
                        std::to_string(plan.mesh.data) + " of them data-parallel, cannot run on " +
                        std::to_string(ranks));
  }
  if (plan.micro_batch * plan.accumulation_steps * ranks != job.train.global_batch) {
    return InvalidError("micro_batch " + std::to_string(plan.micro_batch) +
                        " x accumulation_steps " + std::to_string(plan.accumulation_steps) + " x " +
                        std::to_string(ranks) + " ranks is not train.global_batch " +
                        std::to_string(job.train.global_batch));
  }
  const int64_t unit = BatchSchedule(job.train).unit();
  if (unit % (plan.micro_batch * ranks) != 0) {
    return InvalidError("train.batch_warmup_start " + std::to_string(unit) +
                        " is not a multiple of micro_batch " + std::to_string(plan.micro_batch) +
                        " x " + std::to_string(ranks) + " ranks");
  }
  if (job.train.gradient_noise_scale && plan.accumulation_steps * ranks == 1) {
    return InvalidError(
        "train.gradient_noise_scale compares a part of the batch with the whole, and this plan has "
        "one micro-batch on one rank; hint: resources.micro_batch");
  }
  if (parts.rank < 0 || parts.rank >= ranks) {
    return InvalidError("rank " + std::to_string(parts.rank) + " of " + std::to_string(ranks));
  }
  const PrecisionRecipe& precision = parts.model->precision();
  if (&precision != ModelOptionsOf(plan).precision) {
    return InvalidError("the model was made for precision " + std::string(precision.name) +
                        ", the plan's precision is " + plan.precision);
  }
  if (parts.model->fp8() != nullptr && parts.model->fp8()->spec() != job.train.fp8) {
    return InvalidError("the model was made for another train.fp8 than the job has");
  }
  return OkStatus();
}

/// A part of the step took `seconds`.
void Charge(const Context& context, std::string_view phase, double seconds, double& total) {
  total += seconds;
  if (context.profiler != nullptr) context.profiler->AddPhase(phase, seconds);
}

}  // namespace

ModelOptions ModelOptionsOf(const Plan& plan, const TrainSpec& train) {
  return {.precision = &PrecisionOf(plan.precision),
          .with_gradients = true,
          .block_memory_policy = plan.block_memory_policy,
          .fp8 = train.fp8};
}

Trainer::Trainer(const JobSpec& job, const Plan& plan, const TrainerParts& parts)
    : job_(job),
      plan_(plan),
      parts_(parts),
      batches_(job.train),
      gradients_(parts.model->parameters().DifferentiatedGradients()) {
  if (parts.model->precision().loss_scaling) {
    counters_.loss_scale = FirstLossScale(job.train.loss_scaling);
  }
}

Result<std::unique_ptr<Trainer>> Trainer::New(const JobSpec& job, const Plan& plan,
                                              const TrainerParts& parts) {
  WEFT_RETURN_IF_ERROR(Validate(job, plan, parts));
  kernels::cpu::SetThreads(static_cast<int>(plan.threads_per_rank));
  parts.context->seed = static_cast<uint64_t>(job.train.seed);
  std::unique_ptr<Trainer> trainer(new Trainer(job, plan, parts));
  WEFT_ASSIGN_OR_RETURN(
      trainer->updater_,
      Updater::New(*parts.context, job, parts.model->parameters(),
                   parts.model->precision().products == DType::kF32 ? DType::kF32 : DType::kBF16));
  if (job.train.gradient_noise_scale) {
    WEFT_ASSIGN_OR_RETURN(trainer->noise_scale_, NoiseScale::New(*parts.context));
  }
  return trainer;
}

Status Trainer::Pack(std::optional<int64_t> step) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  if (parameters.factoring() != Factoring::kMixture) step.reset();
  if (!stale_ && step == packed_step_) return OkStatus();
  const MixtureKey key{context.seed, step.value_or(0)};
  WEFT_RETURN_IF_ERROR(MergeWeights(context, parameters, step ? &key : nullptr));
  ProfileScope scope(context.profiler, "pack weights");
  WEFT_RETURN_IF_ERROR(parts_.model->Pack(context, stale_.value_or(Repack::kTrained)));
  stale_.reset();
  packed_step_ = step;
  return OkStatus();
}

Result<std::vector<Trainer::MicroBatch>> Trainer::LoadBatches(StepReport& own) {
  std::vector<MicroBatch> batches;
  const int64_t step = DataStep();
  const int64_t micro_batches = batches_.At(step) / (plan_.micro_batch * world_size());
  for (int64_t k = 0; k < micro_batches; ++k) {
    const int64_t first = (parts_.rank * micro_batches + k) * plan_.micro_batch;
    WEFT_ASSIGN_OR_RETURN(Batch batch, parts_.train->Get(step, first, plan_.micro_batch));
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens, TokenBatch::New(*parts_.context, batch, first));
    own.targets += batch.target_count;
    own.tokens += tokens.count;
    own.padding_tokens += batch.padding_tokens;
    batches.push_back({std::move(tokens), batch.target_count});
  }
  return batches;
}

Status Trainer::SumScalars(std::span<double> values, PhaseSeconds& seconds) {
  if (parts_.reducer == nullptr) return OkStatus();
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->SumScalars(values));
  Charge(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status Trainer::FinishReduction(PhaseSeconds& seconds) {
  if (parts_.reducer == nullptr) return OkStatus();
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->Finish());
  Charge(*parts_.context, "wait for gradients", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Result<double> Trainer::Squares(const TensorView& gradients) {
  const kernels::NormTensor all{gradients.As<float>(), gradients.shape.Elements()};
  double squares = 0;
  int64_t non_finite = 0;
  WEFT_RETURN_IF_ERROR(
      kernels::NormStat(parts_.context->stream, {std::span(&all, 1), &squares, &non_finite}));
  return squares;
}

// The gradients of the first micro-batch of this rank alone: before the next one adds to them, and
// before the reduction gets hold of them.
Status Trainer::MeasureSmallBatch(const TensorView& gradient) {
  WEFT_ASSIGN_OR_RETURN(const double squares, Squares(gradient));
  small_squares_ += squares;
  return OkStatus();
}

// `targets`: of the first micro-batch of this rank, whose gradients are sums over them divided by
// those of the whole batch.
Status Trainer::EstimateNoiseScale(int64_t targets, StepReport& report) {
  if (noise_scale_ == nullptr) return OkStatus();
  const auto ranks = static_cast<double>(world_size());
  const double to_mean =
      static_cast<double>(report.targets) / static_cast<double>(targets) / report.loss_scale;
  std::array<double, 1> squares = {targets > 0 ? small_squares_ * to_mean * to_mean : 0.0};
  WEFT_RETURN_IF_ERROR(SumScalars(squares, report.seconds));
  const auto large = static_cast<double>(batches_.At(DataStep()));
  const auto small = static_cast<double>(plan_.micro_batch);
  if (!report.skipped && large > small) {
    noise_scale_->Add(small, squares[0] / ranks, large,
                      large_squares_ / (report.loss_scale * report.loss_scale));
  }
  report.noise_scale = noise_scale_->Value();
  return OkStatus();
}

Result<BatchLoss> Trainer::ForwardAndBackward(std::vector<MicroBatch> batches, int64_t targets,
                                              PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  GradientReducer* reducer = parts_.reducer;
  const auto gradient_scale =
      static_cast<float>(counters_.loss_scale.scale / static_cast<double>(targets));
  BatchLoss sums;
  small_squares_ = 0;
  gradients_.StartStep();
  for (size_t k = 0; k < batches.size(); ++k) {
    const bool last = k + 1 == batches.size();
    Stopwatch watch;
    ParameterGradients::ReadyHook hook;
    if (reducer != nullptr) {
      WEFT_RETURN_IF_ERROR(reducer->Begin(last));
      const bool measure = noise_scale_ != nullptr && k == 0;
      if (last) {
        hook = [this, reducer, measure](int64_t index) {
          if (measure) {
            WEFT_RETURN_IF_ERROR(MeasureSmallBatch(parts_.model->parameters().gradient(index)));
          }
          return reducer->OnGradientReady(index);
        };
      }
    }
    gradients_.StartPass(std::move(hook));
    Tape tape(&gradients_);
    WEFT_ASSIGN_OR_RETURN(BatchLoss loss,
                          parts_.model->Loss(context, tape, batches[k].tokens, gradient_scale));
    sums.sum += loss.sum;
    sums.right += loss.right;
    batches[k] = {};
    Charge(context, "forward", watch.Lap(), seconds.forward);
    WEFT_RETURN_IF_ERROR(tape.RunBackward(context));
    WEFT_RETURN_IF_ERROR(gradients_.FinishPass(context));
    if (noise_scale_ != nullptr && k == 0 && !(last && reducer != nullptr)) {
      WEFT_RETURN_IF_ERROR(
          MeasureSmallBatch(parts_.model->parameters().differentiated_gradients()));
    }
    Charge(context, "backward", watch.Lap(), seconds.backward);
  }
  return sums;
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

// Also after a step that was skipped: its magnitudes are as true as any.
Status Trainer::UpdateFp8Scales(PhaseSeconds& seconds) {
  Fp8Scaling* fp8 = parts_.model->fp8();
  if (fp8 == nullptr) return OkStatus();
  const TensorView magnitudes = fp8->magnitudes();
  if (parts_.reducer != nullptr && magnitudes) {
    Stopwatch watch;
    WEFT_RETURN_IF_ERROR(parts_.reducer->Maximum(magnitudes));
    Charge(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  }
  ProfileScope scope(parts_.context->profiler, "FP8 scales");
  return fp8->FinishStep(*parts_.context, counters_.step);
}

Status Trainer::Update(StepReport& report) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  if (noise_scale_ != nullptr) {
    // Of the same gradients as those of the first micro-batch: of weights, not of their factors.
    WEFT_ASSIGN_OR_RETURN(large_squares_, Squares(parameters.differentiated_gradients()));
  }
  WEFT_RETURN_IF_ERROR(SplitGradients(context, parameters, {context.seed, counters_.step}));
  {
    ProfileScope scope(context.profiler, "gradient norm");
    CountWork(context.profiler, 0, static_cast<double>(parameters.GradientCount()) * sizeof(float));
    WEFT_ASSIGN_OR_RETURN(GradientNorm gradient, MeasureGradients(context, parameters));
    report.gradient_norm = gradient.norm / report.loss_scale;
    report.non_finite_gradients = gradient.non_finite;
    const StepVerdict verdict =
        JudgeStep(job_.train.guard, counters_.recent_losses, report.loss, gradient.non_finite == 0);
    report.skipped = verdict != StepVerdict::kSound;
    report.spike = verdict == StepVerdict::kSpike;
  }
  UpdateLossScale(report);
  if (report.skipped) return OkStatus();
  RememberLoss(job_.train.guard, report.loss, counters_.recent_losses);
  if ((counters_.step + 1) % job_.train.log_every_steps == 0) {
    ProfileScope scope(context.profiler, "norms by group");
    WEFT_ASSIGN_OR_RETURN(report.norms, MeasureGroups(context, parameters, report.loss_scale));
  }
  {
    ProfileScope scope(context.profiler, "update");
    WEFT_RETURN_IF_ERROR(updater_->Update(context, {.learning_rate = report.learning_rate,
                                                    .gradient_norm = report.gradient_norm,
                                                    .loss_scale = report.loss_scale,
                                                    .update = counters_.updates + 1}));
  }
  ++counters_.updates;
  stale_ = stale_.value_or(Repack::kTrained);
  return Pack(counters_.step + 1);
}

Result<StepReport> Trainer::Step() {
  StepReport report;
  report.step = counters_.step;
  report.loss_scale = counters_.loss_scale.scale;
  report.learning_rate = ScheduledLearningRate(job_.schedule, PeakLearningRate(job_),
                                               counters_.step, job_.train.steps);
  parts_.context->step = counters_.step;
  WEFT_RETURN_IF_ERROR(Pack(counters_.step));

  Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(std::vector<MicroBatch> batches, LoadBatches(report));
  Charge(*parts_.context, "data", watch.Lap(), report.seconds.data);
  std::array<double, 3> counts = {static_cast<double>(report.targets),
                                  static_cast<double>(report.tokens),
                                  static_cast<double>(report.padding_tokens)};
  WEFT_RETURN_IF_ERROR(SumScalars(counts, report.seconds));
  report.targets = static_cast<int64_t>(counts[0]);
  report.tokens = static_cast<int64_t>(counts[1]);
  report.padding_tokens = static_cast<int64_t>(counts[2]);
  if (report.targets == 0) {
    return InvalidError("step " + std::to_string(counters_.step) +
                        " has no targets; hint: look at the data, every token is ignored");
  }

  const int64_t first_targets = batches.front().targets;
  WEFT_ASSIGN_OR_RETURN(BatchLoss own_loss,
                        ForwardAndBackward(std::move(batches), report.targets, report.seconds));
  WEFT_RETURN_IF_ERROR(FinishReduction(report.seconds));
  if (!Failpoint("trainer.loss").ok()) own_loss.sum = std::numeric_limits<double>::infinity();
  std::array<double, 2> loss = {own_loss.sum, static_cast<double>(own_loss.right)};
  WEFT_RETURN_IF_ERROR(SumScalars(loss, report.seconds));
  report.loss = loss[0] / static_cast<double>(report.targets);
  report.right = static_cast<int64_t>(loss[1]);

  watch.Lap();
  WEFT_RETURN_IF_ERROR(Update(report));
  Charge(*parts_.context, "optimizer", watch.Lap(), report.seconds.optimizer);
  WEFT_RETURN_IF_ERROR(EstimateNoiseScale(first_targets, report));
  WEFT_RETURN_IF_ERROR(UpdateFp8Scales(report.seconds));
  ++counters_.step;
  counters_.tokens += report.tokens;
  if (report.skipped) ++counters_.skipped_steps;
  if (report.spike) ++counters_.loss_spikes;
  if (report.overflow) ++counters_.overflows;
  report.peak_memory = parts_.context->allocator->Peaks();
  report.step_memory = parts_.context->allocator->TakeRecentPeaks();
  return report;
}

void Trainer::ExchangeWeights(const std::vector<AveragedParameter>& averages) {
  if (averages.empty()) return;
  Exchange(averages);
  stale_ = stale_.value_or(Repack::kTrained);
}

Result<EvaluationReport> Trainer::Evaluate() {
  if (parts_.validation == nullptr) return NotFoundError("the job has no validation data");
  const std::vector<AveragedParameter> averages = updater_->Averages(counters_.updates);
  ExchangeWeights(averages);
  Result<EvaluationReport> report = EvaluateWeights();
  ExchangeWeights(averages);
  return report;
}

Result<EvaluationReport> Trainer::EvaluateWeights() {
  WEFT_RETURN_IF_ERROR(Pack(std::nullopt));
  Stopwatch watch;
  Context& context = *parts_.context;
  int64_t count = parts_.validation->Sequences();
  if (job_.train.eval_sequences > 0) count = std::min(count, job_.train.eval_sequences);
  const int64_t end = count * (parts_.rank + 1) / world_size();
  std::array<double, 3> sums = {0, 0, 0};  // loss, targets, right answers
  for (int64_t first = count * parts_.rank / world_size(); first < end;) {
    const int64_t sequences = std::min(plan_.micro_batch, end - first);
    WEFT_ASSIGN_OR_RETURN(Batch batch, parts_.validation->Get(0, first, sequences));
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens, TokenBatch::New(context, batch, first));
    Tape tape(nullptr);
    WEFT_ASSIGN_OR_RETURN(BatchLoss loss, parts_.model->Loss(context, tape, tokens, 1.0f));
    sums[0] += loss.sum;
    sums[1] += static_cast<double>(batch.target_count);
    sums[2] += static_cast<double>(loss.right);
    first += sequences;
  }
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(SumScalars(sums, ignored));
  if (sums[1] == 0) return InvalidError("the validation data has no targets");
  return EvaluationReport{sums[0] / sums[1], static_cast<int64_t>(sums[1]),
                          static_cast<int64_t>(sums[2]), watch.Lap()};
}

Result<bool> Trainer::WeightsAreFinite() {
  const ParameterSet& parameters = parts_.model->parameters();
  std::vector<kernels::NormTensor> all;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const TensorView value = parameters.value(i);
    const bool f32 = value.dtype == DType::kF32;
    all.push_back({f32 ? value.As<float>() : nullptr, value.shape.Elements(),
                   f32 ? nullptr : value.As<BFloat16>()});
  }
  double sum_of_squares = 0;
  int64_t non_finite = 0;
  WEFT_RETURN_IF_ERROR(
      kernels::NormStat(parts_.context->stream, {all, &sum_of_squares, &non_finite}));
  return non_finite == 0;
}

std::vector<NamedTensor> Trainer::StateTensors() const {
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  for (NamedTensor& tensor : updater_->StateTensors()) tensors.push_back(std::move(tensor));
  if (const Fp8Scaling* fp8 = parts_.model->fp8()) {
    for (NamedTensor& tensor : fp8->StateTensors()) tensors.push_back(std::move(tensor));
  }
  if (noise_scale_ == nullptr) return tensors;
  for (NamedTensor& tensor : noise_scale_->StateTensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

void Trainer::Restored(const TrainCounters& counters) {
  counters_ = counters;
  stale_ = Repack::kAll;
  if (parts_.model->fp8() != nullptr) parts_.model->fp8()->Restored(counters.step);
}

}  // namespace weft::engine
