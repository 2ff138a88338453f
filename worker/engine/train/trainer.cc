#include "worker/engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/spec/tensor_parallel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/step_totals/step_totals.h"
#include "worker/engine/nn/over_parameterization.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/train/guard.h"

namespace weft::engine {
namespace {

Status Validate(const JobSpec& job, const Plan& plan, const TrainerParts& parts) {
  const int64_t ranks = parts.reducer != nullptr ? parts.reducer->world_size() : 1;
  const int64_t tensor = parts.tensor != nullptr ? parts.tensor->degree() : 1;
  if (RankCount(plan.mesh) != ranks * tensor || plan.mesh.data != ranks) {
    return InvalidError("a plan for " + std::to_string(RankCount(plan.mesh)) + " ranks, " +
                        std::to_string(plan.mesh.data) + " of them data-parallel, cannot run on " +
                        std::to_string(ranks) +
                        (tensor > 1 ? " times " + std::to_string(tensor) : ""));
  }
  if (tensor > 1 && plan.zero_stage > 0) {
    return InvalidError("plan.zero_stage does not go with tensor parallelism yet; hint: 0");
  }
  WEFT_RETURN_IF_ERROR(
      CheckTensorParallel(job, tensor, parts.tensor != nullptr && parts.tensor->sequence()));
  if (parts.model->parameters().sharded() != (parts.tensor != nullptr)) {
    return InvalidError("the model was made for another mesh than the trainer");
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
  const bool shares = ranks > 1 && !parts.reducer->parts().empty();
  if (shares != (ranks > 1 && plan.zero_stage > 0)) {
    return InvalidError("plan.zero_stage " + std::to_string(plan.zero_stage) + ", but the ranks " +
                        (shares ? "share" : "do not share") + " the updates");
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

/// Where the backward passes leave gradients.
ParameterGradients GradientsOf(const TrainerParts& parts) {
  const ParameterSet& parameters = parts.model->parameters();
  GradientReducer* reducer = parts.reducer;
  if (reducer == nullptr || !reducer->places_gradients()) {
    return ParameterGradients(parameters.DifferentiatedGradients());
  }
  std::vector<bool> trainable;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    trainable.push_back(parameters[i].differentiated());
  }
  return {trainable, [reducer](int64_t index) { return reducer->PlaceGradient(index); }};
}

/// A part of the step took `seconds`.
void Charge(const Context& context, std::string_view phase, double seconds, double& total) {
  total += seconds;
  if (context.profiler != nullptr) context.profiler->AddPhase(phase, seconds);
}

// Says of the state of sharded parameters, whose names hold theirs between slashes, what part it
// is.
void PlaceShards(const ParameterSet& parameters, std::vector<NamedTensor>& tensors) {
  if (!parameters.sharded()) return;
  for (NamedTensor& tensor : tensors) {
    const std::string name = "/" + tensor.name + "/";
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (parameter.shard.whole() || name.find("/" + parameter.name + "/") == std::string::npos) {
        continue;
      }
      WEFT_CHECK(tensor.view.shape == parameter.shape, "state has the shape of its parameter");
      tensor.part = {.whole = parameter.logical_shape(), .shard = parameter.shard};
      break;
    }
  }
}

}  // namespace

ModelOptions ModelOptionsOf(const Plan& plan, const TrainSpec& train) {
  return {.precision = &PrecisionOf(plan.precision),
          .with_gradients = true,
          .block_memory_policy = plan.block_memory_policy,
          .fp8 = train.fp8,
          .update_ranks = plan.zero_stage > 0 ? plan.mesh.data : 1,
          .place_gradients = plan.zero_stage > 1 && plan.mesh.data > 1};
}

Trainer::Trainer(const JobSpec& job, const Plan& plan, const TrainerParts& parts)
    : job_(job), plan_(plan), parts_(parts), batches_(job.train), gradients_(GradientsOf(parts)) {
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
                   parts.model->precision().products == DType::kF32 ? DType::kF32 : DType::kBF16,
                   trainer->parts()));
  Context& context = *parts.context;
  WEFT_ASSIGN_OR_RETURN(trainer->totals_, ReadbackOf<StepTotals>::New(context));
  if (job.train.gradient_noise_scale) {
    trainer->noise_scale_.emplace();
    const auto parts_at_most = static_cast<size_t>(parts.model->parameters().size());
    WEFT_ASSIGN_OR_RETURN(trainer->small_, ReadbackOf<NormSums>::New(context, parts_at_most));
  }
  if (context.stream.device.type == DeviceType::kCuda) {
    WEFT_ASSIGN_OR_RETURN(trainer->stage_, CopyStage::New(context));
    WEFT_ASSIGN_OR_RETURN(trainer->numbers_, ReadbackOf<StepNumbers>::New(context));
    if (const std::string_view why = trainer->WhyNoGraphs(); why.empty()) {
      if (parts.graphs) trainer->graphs_ = std::make_unique<StepGraphs>();
    } else {
      WEFT_LOG_INFO << "training steps are enqueued one operation after the other: " << why;
    }
  }
  return trainer;
}

std::string_view Trainer::WhyNoGraphs() const {
  if (parts_.reducer != nullptr) return "ranks exchange gradients on the way";
  if (parts_.tensor != nullptr) return "ranks share matrices";
  if (!updater_->repeats()) return "the optimizer has numbers of its own";
  if (parts_.model->parameters().factoring() == Factoring::kMixture) {
    return "mixtures of weights are drawn on the host";
  }
  return "";
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

Result<Trainer::StepBatches> Trainer::LoadBatches(int64_t data_step) {
  Context& context = *parts_.context;
  StepBatches loaded;
  loaded.data_step = data_step;
  const int64_t micro_batches = batches_.At(data_step) / (plan_.micro_batch * world_size());
  if (stage_ != nullptr) WEFT_RETURN_IF_ERROR(stage_->StartStep());
  for (int64_t k = 0; k < micro_batches; ++k) {
    const int64_t first = (parts_.rank * micro_batches + k) * plan_.micro_batch;
    WEFT_ASSIGN_OR_RETURN(Batch batch, parts_.train->Get(data_step, first, plan_.micro_batch));
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens, stage_ == nullptr
                                                 ? TokenBatch::New(context, batch, first)
                                                 : TokenBatch::New(*stage_, context, batch, first));
    loaded.targets += batch.target_count;
    loaded.tokens += tokens.count;
    loaded.padding_tokens += batch.padding_tokens;
    loaded.micro_batches.push_back({std::move(tokens), batch.target_count});
  }
  return loaded;
}

Result<Trainer::StepBatches> Trainer::TakeBatches() {
  std::optional<Result<StepBatches>> batches = std::exchange(prefetched_, std::nullopt);
  // After a rollback the data goes on elsewhere.
  if (!batches || !batches->ok() || (*batches)->data_step != DataStep()) {
    batches = LoadBatches(DataStep());
  }
  WEFT_RETURN_IF_ERROR(batches->status());
  if (stage_ != nullptr) WEFT_RETURN_IF_ERROR(stage_->Use(*parts_.context));
  return *std::move(batches);
}

void Trainer::Prefetch() {
  if (stage_ == nullptr || counters_.step + 1 >= job_.train.steps) return;
  // What goes wrong is told when the batches are wanted.
  prefetched_ = LoadBatches(DataStep() + 1);
}

Status Trainer::SumScalars(std::span<double> values, PhaseSeconds& seconds) {
  if (parts_.reducer == nullptr) return OkStatus();
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->SumScalars(values));
  Charge(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status Trainer::FinishReduction(PhaseSeconds& seconds) {
  if (parts_.reducer == nullptr && parts_.tensor == nullptr) return OkStatus();
  Stopwatch watch;
  if (parts_.reducer != nullptr) WEFT_RETURN_IF_ERROR(parts_.reducer->Finish());
  if (parts_.tensor != nullptr) {
    WEFT_RETURN_IF_ERROR(
        SumPartialGradients(*parts_.context, *parts_.tensor, parts_.model->parameters()));
  }
  Charge(*parts_.context, "wait for gradients", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

// The gradients of the first micro-batch of this rank alone: before the next one adds to them, and
// before the reduction gets hold of them.
Status Trainer::MeasureSmallBatch(const TensorView& gradient) {
  return Measure(*parts_.context, {NormTensorOf(gradient)}, small_.device() + small_parts_++);
}

// `targets`: of the first micro-batch of this rank, whose gradients are sums over them divided by
// those of the whole batch.
Status Trainer::EstimateNoiseScale(int64_t targets, StepReport& report) {
  if (!noise_scale_) return OkStatus();
  const auto ranks = static_cast<double>(world_size());
  const double to_mean =
      static_cast<double>(report.targets) / static_cast<double>(targets) / report.loss_scale;
  double small_squares = 0;
  for (size_t part = 0; part < small_parts_; ++part) small_squares += small_.host()[part].squares;
  std::array<double, 1> squares = {targets > 0 ? small_squares * to_mean * to_mean : 0.0};
  WEFT_RETURN_IF_ERROR(SumScalars(squares, report.seconds));
  const auto large = static_cast<double>(batches_.At(DataStep()));
  const auto small = static_cast<double>(plan_.micro_batch);
  if (!report.skipped && large > small) {
    noise_scale_->Add(small, squares[0] / ranks, large,
                      totals_.host()->weights.squares / (report.loss_scale * report.loss_scale));
  }
  report.noise_scale = noise_scale_->Value();
  return OkStatus();
}

StepGraphs::Key Trainer::GraphKey(const std::vector<MicroBatch>& batches) const {
  StepGraphs::Key key = {MeasuresGroups() ? 1 : 0};
  for (const MicroBatch& batch : batches) {
    const TokenBatch& b = batch.tokens;
    key.insert(key.end(), {b.sequences, b.length, b.first_sequence, b.first_token});
    for (const Tensor* tensor :
         {&b.tokens, &b.targets, &b.positions, &b.sequence_starts, &b.token_types, &b.labels,
          &b.target_rows, &b.row_targets, &b.pixels, &b.first_rows, &b.other_rows}) {
      key.push_back(*tensor ? reinterpret_cast<int64_t>(tensor->view().data) : 0);
      key.push_back(*tensor ? tensor->shape().Elements() : 0);
    }
  }
  return key;
}

float Trainer::GradientScale(const StepReport& report) const {
  return static_cast<float>(report.loss_scale / static_cast<double>(report.targets));
}

Status Trainer::SendNumbers(const StepReport& report) {
  if (stage_ == nullptr) return OkStatus();
  return numbers_.Store(*parts_.context,
                        {.targets = static_cast<double>(report.targets),
                         .loss_scale = report.loss_scale,
                         .loss_limit = SpikeLimit(job_.train.guard, counters_.recent_losses),
                         .update = counters_.updates + 1,
                         .gradient_scale = GradientScale(report),
                         .learning_rate = static_cast<float>(report.learning_rate),
                         .step = static_cast<uint32_t>(counters_.step)});
}

Status Trainer::RunStep(std::vector<MicroBatch> batches, StepReport& report) {
  Context& context = *parts_.context;
  const bool loss_fails = !Failpoint("trainer.loss").ok();
  if (graphs_ == nullptr || context.profiler != nullptr || loss_fails) {
    return EnqueueStep(std::move(batches), loss_fails, report);
  }
  return graphs_->Run(context, clock_, GraphKey(batches),
                      [&] { return EnqueueStep(batches, loss_fails, report); });
}

Status Trainer::EnqueueStep(std::vector<MicroBatch> batches, bool loss_fails, StepReport& report) {
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(ForwardAndBackward(std::move(batches), report));
  WEFT_RETURN_IF_ERROR(FinishReduction(report.seconds));
  WEFT_RETURN_IF_ERROR(SumLosses(loss_fails, report.seconds));
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  return EnqueueUpdate(report);
}

Status Trainer::ForwardAndBackward(std::vector<MicroBatch> batches, const StepReport& report) {
  Context& context = *parts_.context;
  GradientReducer* reducer = parts_.reducer;
  const auto gradient_scale = context.Number(GradientScale(report), &StepNumbers::gradient_scale);
  WEFT_RETURN_IF_ERROR(totals_.Clear(context));
  small_parts_ = 0;
  gradients_.StartStep();
  for (size_t k = 0; k < batches.size(); ++k) {
    const bool last = k + 1 == batches.size();
    const bool reduces = reducer != nullptr && (last || reducer->places_gradients());
    ParameterGradients::ReadyHook hook;
    if (reducer != nullptr) {
      WEFT_RETURN_IF_ERROR(reducer->Begin(last));
      const bool measure = noise_scale_ && k == 0;
      if (reduces) {
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
    WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, batches[k].tokens, gradient_scale,
                                            &totals_.device()->loss));
    batches[k] = {};
    WEFT_RETURN_IF_ERROR(clock_.Mark(context, "forward", &PhaseSeconds::forward));
    WEFT_RETURN_IF_ERROR(tape.RunBackward(context));
    WEFT_RETURN_IF_ERROR(gradients_.FinishPass(context));
    if (noise_scale_ && k == 0 && !reduces) {
      WEFT_RETURN_IF_ERROR(
          MeasureSmallBatch(parts_.model->parameters().differentiated_gradients()));
    }
    WEFT_RETURN_IF_ERROR(clock_.Mark(context, "backward", &PhaseSeconds::backward));
  }
  return OkStatus();
}

// Only ranks that must ask each other wait for the device here.
Status Trainer::SumLosses(bool fails, PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  if (parts_.reducer == nullptr && !fails) return OkStatus();
  const bool shares = !parts().empty();
  if (shares) {
    ProfileScope scope(context.profiler, "gradient norm");
    WEFT_RETURN_IF_ERROR(MeasureGradients(context, parts(), &totals_.device()->gradients));
  }
  WEFT_RETURN_IF_ERROR(totals_.Fetch(context));
  WEFT_RETURN_IF_ERROR(totals_.Wait().status());
  BatchLoss& loss = totals_.host()->loss;
  if (fails) loss.sum = std::numeric_limits<double>::infinity();
  NormSums& gradients = totals_.host()->gradients;
  std::array<double, 4> sums = {loss.sum, static_cast<double>(loss.right), gradients.squares,
                                static_cast<double>(gradients.non_finite)};
  WEFT_RETURN_IF_ERROR(SumScalars(std::span(sums).first(shares ? 4 : 2), seconds));
  loss = {sums[0], static_cast<int64_t>(sums[1])};
  WEFT_RETURN_IF_ERROR(totals_.Store(context, &StepTotals::loss));
  if (!shares) return OkStatus();
  gradients = {sums[2], static_cast<int64_t>(sums[3])};
  totals_.host()->weights = gradients;
  WEFT_RETURN_IF_ERROR(totals_.Store(context, &StepTotals::gradients));
  return totals_.Store(context, &StepTotals::weights);
}

// Norms of gradients, of which each rank has measured its own part.
Status Trainer::SumGroups(StepReport& report) {
  if (parts().empty()) return OkStatus();
  std::array<double, kParameterGroups> squares;
  GroupSums* groups = totals_.host()->groups;
  for (size_t g = 0; g < kParameterGroups; ++g) squares[g] = groups[g].gradients.squares;
  WEFT_RETURN_IF_ERROR(SumScalars(squares, report.seconds));
  for (size_t g = 0; g < kParameterGroups; ++g) groups[g].gradients.squares = squares[g];
  return OkStatus();
}

Status Trainer::GatherParameters(PhaseSeconds& seconds) {
  if (parts().empty()) return OkStatus();
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->GatherParameters());
  Charge(*parts_.context, "wait for parameters", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status Trainer::SumOverShards(PhaseSeconds& seconds) {
  if (parts_.tensor == nullptr) return OkStatus();
  Context& context = *parts_.context;
  WEFT_RETURN_IF_ERROR(totals_.Fetch(context));
  WEFT_RETURN_IF_ERROR(totals_.Wait().status());
  std::vector<NormSums*> norms = {&totals_.host()->gradients};
  if (MeasuresGroups()) {
    for (GroupSums& group : totals_.host()->groups) {
      norms.push_back(&group.gradients);
      norms.push_back(&group.values);
    }
  }
  std::vector<double> sums;
  for (const NormSums* norm : norms) {
    sums.push_back(norm->squares);
    sums.push_back(static_cast<double>(norm->non_finite));
  }
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.tensor->SumScalars(sums));
  Charge(context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  for (size_t i = 0; i < norms.size(); ++i) {
    *norms[i] = {sums[2 * i], static_cast<int64_t>(sums[2 * i + 1])};
  }
  WEFT_RETURN_IF_ERROR(totals_.Store(context, &StepTotals::gradients));
  return totals_.Store(context, &StepTotals::groups);
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

Status Trainer::EnqueueUpdate(StepReport& report) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  StepTotals* totals = totals_.device();
  if (noise_scale_) {
    // Of the same gradients as those of the first micro-batch: of weights, not of their factors.
    if (parts().empty()) {
      WEFT_RETURN_IF_ERROR(Measure(context, {NormTensorOf(parameters.differentiated_gradients())},
                                   &totals->weights));
    }
    WEFT_RETURN_IF_ERROR(small_.Fetch(context));
  }
  WEFT_RETURN_IF_ERROR(SplitGradients(context, parameters, {context.seed, counters_.step}));
  {
    ProfileScope scope(context.profiler, "gradient norm");
    CountWork(context.profiler, 0, static_cast<double>(parameters.GradientCount()) * sizeof(float));
    if (parts().empty()) {
      WEFT_RETURN_IF_ERROR(MeasureGradients(context, parameters, &totals->gradients));
    }
  }
  if (MeasuresGroups()) {
    ProfileScope scope(context.profiler, "norms by group");
    WEFT_RETURN_IF_ERROR(MeasureGroups(context, parameters, totals->groups, parts()));
  }
  WEFT_RETURN_IF_ERROR(SumOverShards(report.seconds));
  WEFT_RETURN_IF_ERROR(kernels::DecideUpdate(
      context.stream,
      {.loss_sum = &totals->loss.sum,
       .square_sum = &totals->gradients.squares,
       .non_finite = &totals->gradients.non_finite,
       .targets = context.Number(static_cast<double>(report.targets), &StepNumbers::targets),
       .loss_scale = context.Number(report.loss_scale, &StepNumbers::loss_scale),
       .loss_limit = context.Number(SpikeLimit(job_.train.guard, counters_.recent_losses),
                                    &StepNumbers::loss_limit),
       .clip_norm = job_.train.gradient_clip_norm,
       .factor = &totals->factor,
       .made = &totals->made}));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  WEFT_RETURN_IF_ERROR(totals_.Fetch(context));
  {
    ProfileScope scope(context.profiler, "update");
    WEFT_RETURN_IF_ERROR(
        updater_->Update(context, {.learning_rate = report.learning_rate,
                                   .update = counters_.updates + 1,
                                   .gate = {.factor = &totals->factor, .made = &totals->made}}));
  }
  if (!parts().empty()) {
    WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
    WEFT_RETURN_IF_ERROR(GatherParameters(report.seconds));
    WEFT_RETURN_IF_ERROR(clock_.Start(context));
  }
  stale_ = stale_.value_or(Repack::kTrained);
  return Pack(counters_.step + 1);
}

Status Trainer::FinishUpdate(StepReport& report) {
  WEFT_ASSIGN_OR_RETURN(const StepTotals* totals, totals_.Wait());
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
    WEFT_RETURN_IF_ERROR(SumGroups(report));
    report.norms = GroupNorms(parts_.model->parameters(), totals->groups, report.loss_scale);
  }
  ++counters_.updates;
  return updater_->Made(*parts_.context, counters_.updates);
}

Result<StepReport> Trainer::Step() {
  Context& context = *parts_.context;
  StepReport report;
  report.step = counters_.step;
  report.loss_scale = counters_.loss_scale.scale;
  report.learning_rate = ScheduledLearningRate(job_.schedule, PeakLearningRate(job_),
                                               counters_.step, job_.train.steps);
  context.step = counters_.step;
  WEFT_RETURN_IF_ERROR(Pack(counters_.step));

  Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(StepBatches batches, TakeBatches());
  Charge(context, "data", watch.Lap(), report.seconds.data);
  std::array<double, 3> counts = {static_cast<double>(batches.targets),
                                  static_cast<double>(batches.tokens),
                                  static_cast<double>(batches.padding_tokens)};
  WEFT_RETURN_IF_ERROR(SumScalars(counts, report.seconds));
  report.targets = static_cast<int64_t>(counts[0]);
  report.tokens = static_cast<int64_t>(counts[1]);
  report.padding_tokens = static_cast<int64_t>(counts[2]);
  if (report.targets == 0) {
    return InvalidError("step " + std::to_string(counters_.step) +
                        " has no targets; hint: look at the data, every token is ignored");
  }

  const int64_t first_targets = batches.micro_batches.front().targets;
  WEFT_RETURN_IF_ERROR(SendNumbers(report));
  context.numbers = stage_ == nullptr ? nullptr : numbers_.device();
  const Status enqueued = RunStep(std::move(batches.micro_batches), report);
  context.numbers = nullptr;
  WEFT_RETURN_IF_ERROR(enqueued);
  Prefetch();
  WEFT_RETURN_IF_ERROR(FinishUpdate(report));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "optimizer", &PhaseSeconds::optimizer));
  WEFT_RETURN_IF_ERROR(clock_.Collect(context, report.seconds));
  WEFT_RETURN_IF_ERROR(EstimateNoiseScale(first_targets, report));
  WEFT_RETURN_IF_ERROR(UpdateFp8Scales(report.seconds));
  ++counters_.step;
  counters_.tokens += report.tokens;
  if (report.skipped) ++counters_.skipped_steps;
  if (report.spike) ++counters_.loss_spikes;
  if (report.overflow) ++counters_.overflows;
  report.peak_memory = context.allocator->Peaks();
  report.step_memory = context.allocator->TakeRecentPeaks();
  return report;
}

Status Trainer::ExchangeWeights(const std::vector<AveragedParameter>& averages) {
  if (averages.empty()) return OkStatus();
  WEFT_RETURN_IF_ERROR(Exchange(*parts_.context, averages));
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(GatherParameters(ignored));
  stale_ = stale_.value_or(Repack::kTrained);
  return OkStatus();
}

Result<EvaluationReport> Trainer::Evaluate() {
  if (parts_.validation == nullptr) return NotFoundError("the job has no validation data");
  WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> averages,
                        updater_->Averages(*parts_.context, counters_.updates));
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  Result<EvaluationReport> report = EvaluateWeights();
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  return report;
}

Result<EvaluationReport> Trainer::EvaluateWeights() {
  WEFT_RETURN_IF_ERROR(Pack(std::nullopt));
  Stopwatch watch;
  Context& context = *parts_.context;
  int64_t count = parts_.validation->Sequences();
  if (job_.train.eval_sequences > 0) count = std::min(count, job_.train.eval_sequences);
  const int64_t end = count * (parts_.rank + 1) / world_size();
  WEFT_ASSIGN_OR_RETURN(auto total, ReadbackOf<BatchLoss>::New(context));
  int64_t targets = 0;
  for (int64_t first = count * parts_.rank / world_size(); first < end;) {
    const int64_t sequences = std::min(plan_.micro_batch, end - first);
    WEFT_ASSIGN_OR_RETURN(Batch batch, parts_.validation->Get(0, first, sequences));
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens, TokenBatch::New(context, batch, first));
    Tape tape(nullptr);
    WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, tokens, 1.0f, total.device()));
    targets += batch.target_count;
    first += sequences;
  }
  WEFT_RETURN_IF_ERROR(total.Fetch(context));
  WEFT_ASSIGN_OR_RETURN(const BatchLoss* own, total.Wait());
  std::array<double, 3> sums = {own->sum, static_cast<double>(targets),
                                static_cast<double>(own->right)};
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(SumScalars(sums, ignored));
  if (sums[1] == 0) return InvalidError("the validation data has no targets");
  return EvaluationReport{sums[0] / sums[1], static_cast<int64_t>(sums[1]),
                          static_cast<int64_t>(sums[2]), watch.Lap()};
}

Result<bool> Trainer::WeightsAreFinite() {
  const ParameterSet& parameters = parts_.model->parameters();
  std::vector<kernels::NormTensor> all;
  for (int64_t i = 0; i < parameters.size(); ++i) all.push_back(NormTensorOf(parameters.value(i)));
  WEFT_ASSIGN_OR_RETURN(auto sums, ReadbackOf<NormSums>::New(*parts_.context));
  WEFT_RETURN_IF_ERROR(Measure(*parts_.context, all, sums.device()));
  WEFT_RETURN_IF_ERROR(sums.Fetch(*parts_.context));
  WEFT_ASSIGN_OR_RETURN(const NormSums* measured, sums.Wait());
  std::array<double, 1> non_finite = {static_cast<double>(measured->non_finite)};
  if (parts_.tensor != nullptr) WEFT_RETURN_IF_ERROR(parts_.tensor->SumScalars(non_finite));
  return non_finite[0] == 0;
}

std::vector<NamedTensor> Trainer::StateTensors() {
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  for (NamedTensor& tensor : updater_->StateTensors()) tensors.push_back(std::move(tensor));
  if (const Fp8Scaling* fp8 = parts_.model->fp8()) {
    for (NamedTensor& tensor : fp8->StateTensors()) tensors.push_back(std::move(tensor));
  }
  PlaceShards(parts_.model->parameters(), tensors);
  if (!noise_scale_) return tensors;
  for (NamedTensor& tensor : noise_scale_->StateTensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

void Trainer::Restored(const TrainCounters& counters) {
  counters_ = counters;
  stale_ = Repack::kAll;
  // What the first steps do may be different, as their scales are in FP8.
  if (graphs_ != nullptr) graphs_->Clear();
  if (parts_.model->fp8() != nullptr) parts_.model->fp8()->Restored(counters.step);
}

}  // namespace weft::engine
