// What an attempt reports: of each step, of evaluations, of memory, and at its end.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "common/model/memory_text.h"
#include "common/model/step_extent.h"
#include "kernels/cuda/transfer.h"
#include "worker/engine/train/guard.h"
#include "worker/trainer/attempt.h"
#include "worker/trainer/grown_state.h"
#include "worker/trainer/run_folder.h"

namespace weft::trainer {
namespace {

using std::chrono::steady_clock;

std::optional<double> IfFinite(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

/// " accuracy 91.3 %", where there is one.
std::string AccuracyText(std::optional<double> accuracy) {
  if (!accuracy) return "";
  const auto permille = std::llround(*accuracy * 1000);
  return " accuracy " + std::to_string(permille / 10) + "." + std::to_string(permille % 10) + " %";
}

/// " <name> <value>" of each.
std::string MetricsText(const std::map<std::string, double>& metrics) {
  std::ostringstream text;
  for (const auto& [name, value] : metrics) text << " " << name << " " << value;
  return text.str();
}

}  // namespace

Status Attempt::ReportStep(const engine::StepReport& report) {
  const engine::TrainCounters& counters = trainer_->counters();
  // A round that ended early, since a rank was lost, may be less than a step of the job.
  if (counters.step == reported_step_) return OkStatus();
  ProgressMessage progress;
  progress.step = counters.step;
  progress.steps_total = spec_.job.train.steps;
  progress.loss = IfFinite(report.loss);
  if (classifies()) progress.accuracy = report.Accuracy();
  progress.gradient_norm = IfFinite(report.gradient_norm);
  progress.learning_rate = report.learning_rate;
  progress.skipped = report.skipped;
  progress.overflow = report.overflow;
  progress.non_finite_gradients = report.non_finite_gradients;
  progress.loss_scale = report.loss_scale;
  progress.technique_metrics = report.technique_metrics;
  progress.tokens = counters.tokens;
  progress.padding_ratio = static_cast<double>(report.padding_tokens) /
                           static_cast<double>(std::max<int64_t>(report.tokens, 1));
  // A round by time reports the means over its steps as times.
  const int64_t last = std::exchange(reported_step_, counters.step);
  progress.steps = counters.step - last;
  const auto steps = static_cast<double>(progress.steps);
  progress.step_seconds =
      speed_->Steps(steady_clock::now(), progress.steps, report.tokens - report.padding_tokens);
  progress.tokens_per_second = speed_->tokens_per_second();
  const double waited = report.seconds.communication_exposed + std::exchange(vote_seconds_, 0);
  progress.phases = {report.seconds.data / steps,
                     report.seconds.forward / steps,
                     report.seconds.backward / steps,
                     waited / steps,
                     report.seconds.optimizer / steps,
                     std::exchange(checkpoint_stall_, 0) / steps,
                     std::exchange(evaluation_seconds_, 0) / steps};
  progress.memory_peak = peak_memory_ = report.peak_memory;
  progress.memory_step = report.step_memory;
  progress.tiers = report.tiers;
  std::vector<CollectiveUse> totals = accounts_.Totals();
  progress.collectives = Difference(totals, reported_collectives_);
  reported_collectives_ = std::move(totals);
  progress.norms = report.norms;
  progress.spike = report.spike;
  progress.rolled_back = std::exchange(rolled_back_, false);
  progress.damaged_checkpoints = std::exchange(damaged_checkpoints_, 0);
  progress.skipped_steps = counters.skipped_steps;
  progress.loss_spikes = counters.loss_spikes;
  progress.rollbacks = counters.rollbacks;
  training_seconds_ += steps * progress.step_seconds;
  if (saves_) {
    saves_->OnStep(progress.step_seconds - progress.phases.checkpoint_stall -
                   progress.phases.evaluation);
  }
  if (curve_) {
    WEFT_RETURN_IF_ERROR(
        curve_->Append(counters.step, report.loss, report.learning_rate, progress.accuracy));
    if (IsDue(spec_.job.train.log_every_steps, last, counters.step) || trainer_->finished()) {
      WEFT_LOG_INFO << "step " << counters.step << "/" << progress.steps_total << " loss "
                    << report.loss << AccuracyText(progress.accuracy) << " gradient norm "
                    << report.gradient_norm << " learning rate " << report.learning_rate << " "
                    << std::llround(progress.tokens_per_second) << " tokens/s"
                    << (report.padding_tokens > 0
                            ? " padding " +
                                  std::to_string(std::llround(progress.padding_ratio * 100)) + " %"
                            : "")
                    << MetricsText(report.technique_metrics);
    }
  }
  reporter_.Report(progress);
  return OkStatus();
}

void Attempt::CountSkipped(const engine::StepReport& report) {
  // An overflow that lowered the loss scale is how the scale is found, and nothing to worry about.
  if (report.overflow) return;
  const bool local = !trainer_->AtOuterStep();
  if (!local) skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
  if (!report.skipped || !(first_rank() || local)) return;
  const engine::TrainCounters& counters = trainer_->counters();
  const std::string step = "step " + std::to_string(counters.step);
  if (makes_local_steps() && !local) {
    Event("warning", step + ": a rank has dropped all its updates since the last outer step");
    return;
  }
  Event("warning", step + (local ? " of rank " + std::to_string(spec_.rank) : "") + ": " +
                       (report.spike ? "the loss of " + engine::DescribeSpike(
                                                            counters.recent_losses, report.loss)
                                     : "the loss or a gradient is not finite") +
                       "; its update was dropped");
}

Status Attempt::EvaluateNow() {
  if (data_.validation == nullptr) return OkStatus();
  // A profile is of the steps alone.
  engine::Profiler* const profiler = std::exchange(context_.profiler, nullptr);
  int64_t sequences = data_.validation->Sequences();
  if (spec_.job.train.eval_sequences > 0) {
    sequences = std::min(sequences, spec_.job.train.eval_sequences);
  }
  ReportEvaluating(sequences);
  WEFT_RETURN_IF_ERROR(Failpoint("trainer.before_evaluation"));
  WEFT_ASSIGN_OR_RETURN(engine::EvaluationReport report, trainer_->Evaluate());
  ReportActivity("training");
  context_.profiler = profiler;
  evaluation_seconds_ += report.seconds;
  validation_loss_ = IfFinite(report.loss);
  if (classifies()) validation_accuracy_ = report.Accuracy();
  if (first_rank() && validation_loss_) {
    const int64_t step = trainer_->counters().step;
    WEFT_LOG_INFO << "step " << step << " validation loss " << report.loss
                  << AccuracyText(validation_accuracy_) << MetricsText(report.technique_metrics);
    reporter_.Report(
        EvaluationMessage{step, report.loss, validation_accuracy_, report.technique_metrics});
  }
  return OkStatus();
}

void Attempt::ReportEvaluating(int64_t sequences) {
  ActivityMessage message{"evaluating"};
  message.sequences = sequences;
  activity_.Report(std::move(message));
}

Status Attempt::EvaluateGrown() {
  WEFT_RETURN_IF_ERROR(EvaluateNow());
  start_validation_loss_ = validation_loss_;
  if (!first_rank()) return OkStatus();
  if (start_validation_loss_) {
    std::ostringstream text;
    text << "the grown weights have validation loss " << *start_validation_loss_;
    if (loss_before_) text << ", after " << *loss_before_ << " at the end of the phase before";
    Event("info", text.str());
  }
  return SaveGrowthLosses(env_, spec_.run_dir,
                          {loss_before_, start_validation_loss_, fit_flops_, spec_.start.growth});
}

void Attempt::LogMemory() {
  std::string text =
      "memory of this rank: the plan expected " + MemoryText(spec_.plan.prediction.memory_per_rank);
  if (device_ != nullptr) {
    text += "; it held at most, part by part, " + MemoryText(device_->allocator().Peaks());
  }
  if (const int64_t limit = spec_.job.resources.memory_per_rank_bytes; limit > 0) {
    text += "; resources.memory_per_rank_bytes allows " + HumanBytes(limit);
  }
  if (spec_.plan.device == "cuda") {
    const auto memory = kernels::cuda::MemoryOf(static_cast<int>(spec_.device_index));
    if (memory.ok()) {
      text += "; of the " + HumanBytes(static_cast<int64_t>(memory->total)) + " of GPU " +
              std::to_string(spec_.device_index) + ", " +
              HumanBytes(static_cast<int64_t>(memory->free)) + " are free";
    }
  }
  Event("error", text);
}

double Attempt::RunSeconds() const {
  return seconds_before_ + SecondsSince(begin_);
}

void Attempt::NoteSeconds() {
  if (!first_rank()) return;
  const Status saved = SaveRunSeconds(env_, spec_.run_dir, RunSeconds());
  if (saved.ok()) return;
  Event("warning", "summary.json may leave out the time of this attempt, which cannot be noted: " +
                       saved.message());
}

RunSummary Attempt::Summarize() const {
  const engine::TrainCounters& counters = trainer_->counters();
  RunSummary summary;
  summary.job_id = spec_.job_id;
  summary.epoch = spec_.epoch;
  summary.steps = counters.step;
  summary.skipped_steps = counters.skipped_steps;
  summary.parameters = parameters_;
  summary.trained_parameters = trained_parameters_;
  summary.tokens = counters.tokens;
  const int64_t searched = chosen_ ? chosen_->tokens : 0;
  JobSpec planned = spec_.job;
  planned.resources.ranks = spec_.world_size;
  summary.training_flops =
      static_cast<double>(counters.tokens - searched) * MeanFlopsPerToken(planned, counters.step) +
      fit_flops_;
  if (curve_) summary.train_loss_nats = curve_->RecentMean();
  summary.start_validation_loss_nats = start_validation_loss_;
  summary.validation_loss_nats = validation_loss_;
  if (curve_) summary.train_accuracy = curve_->RecentAccuracy();
  summary.validation_accuracy = validation_accuracy_;
  summary.unigram_entropy_nats = data_.unigram_entropy;
  summary.resumed_from_step = first_step_;
  summary.seconds = RunSeconds();
  if (chosen_) {
    summary.chosen_layers = chosen_->layers;
    if (chosen_->image_size > 0) summary.chosen_image_size = chosen_->image_size;
    summary.training_flops += chosen_->training_flops;
    summary.seconds += chosen_->seconds;
  }
  if (training_seconds_ > 0) {
    summary.tokens_per_second =
        static_cast<double>(counters.tokens - first_tokens_) / training_seconds_;
  }
  if (speed_) {
    summary.median_step_seconds = speed_->MedianSeconds();
    summary.timed_steps = speed_->timed_steps();
  }
  summary.memory_peak = peak_memory_;
  summary.checkpoint_path = engine::CheckpointPath(spec_.run_dir, counters.step);
  return summary;
}

void Attempt::Event(const std::string& level, const std::string& text) {
  WEFT_LOG_AT(level == "info"      ? LogLevel::kInfo
              : level == "warning" ? LogLevel::kWarning
                                   : LogLevel::kError)
      << text;
  reporter_.Report(EventMessage{level, text});
}

void Attempt::ReportDamaged(const StartPoint& start) {
  for (const std::string& warning : start.warnings) Event("warning", warning);
  damaged_checkpoints_ += std::ssize(start.warnings);
}

}  // namespace weft::trainer
