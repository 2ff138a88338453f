#include "worker/daemon/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "common/spec/phases.h"

namespace weft::daemon {
namespace {

/// A loss beyond 709 nats has no perplexity in a double, and JSON knows no infinity.
double Perplexity(double loss) {
  return std::min(std::exp(loss), std::numeric_limits<double>::max());
}

void TakeMetrics(const std::map<std::string, double>& metrics, v1::Progress& progress) {
  for (const auto& [name, value] : metrics) (*progress.mutable_technique_metrics())[name] = value;
}

}  // namespace

PhasePlace PlaceOfPhase(const JobSpec& job, size_t phase) {
  PhasePlace place;
  place.steps_before = StepsBefore(job, phase);
  const double flops = StepFlops(JobOfPhase(job, phase));
  for (size_t i = phase + 1; i < PhaseCount(job); ++i) {
    const JobSpec later = JobOfPhase(job, i);
    place.steps_after += later.train.steps;
    place.work_after += static_cast<double>(later.train.steps) * StepFlops(later) / flops;
  }
  return place;
}

void ProgressRecord::Take(const trainer::ProgressMessage& message) {
  constexpr int kRecentLosses = 120;
  progress_.set_step(place_.steps_before + message.step);
  progress_.set_steps_total(place_.steps_before + message.steps_total + place_.steps_after);
  progress_.set_learning_rate(message.learning_rate);
  progress_.set_tokens(place_.tokens_before + message.tokens);
  progress_.set_tokens_per_second(message.tokens_per_second);
  progress_.set_step_seconds(message.step_seconds);
  mean_step_seconds_ = mean_step_seconds_ == 0
                           ? message.step_seconds
                           : 0.9 * mean_step_seconds_ + 0.1 * message.step_seconds;
  const auto left = static_cast<double>(message.steps_total - message.step);
  progress_.set_eta_seconds(mean_step_seconds_ * (left + place_.work_after));
  progress_.set_skipped_steps(message.skipped_steps);
  progress_.set_loss_spikes(message.loss_spikes);
  progress_.set_rollbacks(message.rollbacks);
  // What is not finite is not reported: the last finite value remains.
  if (message.gradient_norm) progress_.set_gradient_norm(*message.gradient_norm);
  if (!message.norms.empty()) progress_.clear_norms();
  for (const GroupNorm& norm : message.norms) {
    v1::GroupNorm& group = *progress_.add_norms();
    group.set_group(norm.group);
    group.set_gradient(norm.gradient);
    group.set_parameter(norm.parameter);
  }
  if (message.accuracy) progress_.set_accuracy(*message.accuracy);
  TakeMetrics(message.technique_metrics, progress_);
  if (!message.loss) return;
  progress_.set_loss(*message.loss);
  progress_.set_perplexity(Perplexity(*message.loss));
  if (progress_.recent_losses_size() == kRecentLosses) {
    progress_.mutable_recent_losses()->erase(progress_.recent_losses().begin());
  }
  progress_.add_recent_losses(*message.loss);
}

void ProgressRecord::Take(const trainer::StartedMessage& message) {
  if (message.resumed_from.empty()) return;
  progress_.set_checkpoint_step(place_.steps_before + message.step);
}

void ProgressRecord::Take(const trainer::EvaluationMessage& message) {
  progress_.set_validation_loss(message.loss);
  progress_.set_validation_perplexity(Perplexity(message.loss));
  progress_.set_validation_step(place_.steps_before + message.step);
  if (message.accuracy) progress_.set_validation_accuracy(*message.accuracy);
  TakeMetrics(message.technique_metrics, progress_);
}

void ProgressRecord::Take(const trainer::CheckpointMessage& message) {
  if (message.state != "verified") return;
  progress_.set_checkpoint_step(place_.steps_before + message.step);
}

}  // namespace weft::daemon
