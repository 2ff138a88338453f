#include "worker/engine/train/guard.h"

#include <cmath>
#include <cstdio>
#include <limits>

namespace weft::engine {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;
};

/// Moments of the whole window; two passes, in order: the same bits wherever it is computed.
Moments MomentsOf(std::span<const double> window) {
  if (window.empty()) return {};
  const auto count = static_cast<double>(window.size());
  Moments moments;
  for (double loss : window) moments.mean += loss / count;
  double variance = 0;
  for (double loss : window) variance += (loss - moments.mean) * (loss - moments.mean) / count;
  moments.deviation = std::sqrt(variance);
  return moments;
}

}  // namespace

double SpikeLimit(const GuardSpec& guard, std::span<const double> window) {
  if (guard.spike_deviations == 0 || static_cast<int64_t>(window.size()) < guard.window) {
    return std::numeric_limits<double>::infinity();
  }
  const Moments moments = MomentsOf(window);
  return moments.mean + guard.spike_deviations * moments.deviation;
}

StepVerdict JudgeStep(const GuardSpec& guard, std::span<const double> window, double loss,
                      bool finite_gradients) {
  if (!finite_gradients || !std::isfinite(loss)) return StepVerdict::kNotFinite;
  return loss > SpikeLimit(guard, window) ? StepVerdict::kSpike : StepVerdict::kSound;
}

void RememberLoss(const GuardSpec& guard, double loss, std::vector<double>& window) {
  if (guard.spike_deviations == 0) return;
  if (static_cast<int64_t>(window.size()) >= guard.window) window.erase(window.begin());
  window.push_back(loss);
}

std::string DescribeSpike(std::span<const double> window, double loss) {
  const Moments moments = MomentsOf(window);
  char text[160];
  std::snprintf(text, sizeof(text),
                "%.4g is %.3g standard deviations above %.4g, the mean of the last %zu steps", loss,
                moments.deviation > 0 ? (loss - moments.mean) / moments.deviation : INFINITY,
                moments.mean, window.size());
  return text;
}

GuardAction AfterSkips(const GuardSpec& guard, int64_t skipped_in_a_row, int64_t rollbacks) {
  if (skipped_in_a_row < guard.skips_before_rollback) return GuardAction::kGoOn;
  return rollbacks < guard.max_rollbacks ? GuardAction::kRollBack : GuardAction::kGiveUp;
}

TrainCounters AfterRollback(const TrainCounters& bad, const TrainCounters& checkpoint) {
  TrainCounters counters = checkpoint;
  counters.data_offset = bad.step + bad.data_offset - checkpoint.step;
  if (!bad.rounds.unread.empty()) {  // numbers of sequences say where the data goes on
    counters.data_offset = bad.data_offset;
    counters.rounds.unread = {bad.rounds.unread.back()};
  }
  counters.skipped_steps = bad.skipped_steps;
  counters.overflows = bad.overflows;
  counters.loss_spikes = bad.loss_spikes;
  counters.rollbacks = bad.rollbacks + 1;
  return counters;
}

}  // namespace weft::engine
