#include "worker/engine/train/local_rounds.h"

#include <algorithm>
#include <cstddef>

#include "common/number.h"

namespace weft::engine {
namespace {

/// Numbers of all ranks: what they add up, then what each has by itself. There each has a slot,
/// which is zero on the others, so that their sum is what each has put in.
class RoundNumbers {
 public:
  enum Sum : uint8_t { kLoss, kRight, kTargets, kTokens, kPadding, kRoundTokens, kIdle, kStuck };
  enum Own : uint8_t { kUpdates, kSkipped, kOverflows, kSpikes, kScale, kCleanSteps };

  explicit RoundNumbers(int64_t ranks)
      : ranks_(ranks), values_(kSums + static_cast<size_t>(ranks) * kOwns) {}

  double& operator[](Sum sum) { return values_[sum]; }
  double& Of(int64_t rank, Own own) {
    return values_[kSums + static_cast<size_t>(rank) * kOwns + own];
  }
  /// Once they are summed.
  int64_t Largest(Own own) {
    double largest = 0;
    for (int64_t rank = 0; rank < ranks_; ++rank) largest = std::max(largest, Of(rank, own));
    return static_cast<int64_t>(largest);
  }
  int64_t RankOfSmallestScale() {
    int64_t found = 0;
    for (int64_t rank = 1; rank < ranks_; ++rank) {
      if (Of(rank, kScale) < Of(found, kScale)) found = rank;
    }
    return found;
  }
  std::vector<double>& values() { return values_; }

 private:
  static constexpr size_t kSums = kStuck + 1;
  static constexpr size_t kOwns = kCleanSteps + 1;
  int64_t ranks_;
  std::vector<double> values_;
};

}  // namespace

Result<std::unique_ptr<LocalRounds>> LocalRounds::New(Context& state, const TrainSpec& train,
                                                      const ParameterSet& parameters,
                                                      GradientReducer* ranks, int64_t rank) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<OuterStep> outer,
                        OuterStep::New(state, train, parameters, ranks));
  return std::unique_ptr<LocalRounds>(new LocalRounds(std::move(outer), train, rank));
}

void LocalRounds::EstimateAll(StepReport& report) const {
  report.tokens *= outer_->world_size();
  report.padding_tokens *= outer_->world_size();
}

Result<double> LocalRounds::Agree(TrainCounters& counters, StepReport& report) {
  using enum RoundNumbers::Sum;
  using enum RoundNumbers::Own;
  const double own_targets = D(report.targets);
  // A worker that has just joined has made no step.
  const bool idle = updates_ == 0 && tokens_ > 0;
  RoundNumbers all(outer_->world_size());
  all[kLoss] = report.loss * D(report.targets);
  all[kRight] = D(report.right);
  all[kTargets] = D(report.targets);
  all[kTokens] = D(report.tokens);
  all[kPadding] = D(report.padding_tokens);
  all[kRoundTokens] = D(tokens_);
  all[kIdle] = idle ? 1 : 0;
  all[kStuck] = idle && !report.overflow ? 1 : 0;
  all.Of(rank_, kUpdates) = D(counters.updates);
  all.Of(rank_, kSkipped) = D(counters.skipped_steps);
  all.Of(rank_, kOverflows) = D(counters.overflows);
  all.Of(rank_, kSpikes) = D(counters.loss_spikes);
  all.Of(rank_, kScale) = counters.loss_scale.scale;
  all.Of(rank_, kCleanSteps) = D(counters.loss_scale.clean_steps);
  WEFT_RETURN_IF_ERROR(outer_->SumScalars(all.values()));
  report.loss = all[kLoss] / all[kTargets];
  report.right = static_cast<int64_t>(all[kRight]);
  report.targets = static_cast<int64_t>(all[kTargets]);
  report.tokens = static_cast<int64_t>(all[kTokens]);
  report.padding_tokens = static_cast<int64_t>(all[kPadding]);
  report.skipped = all[kIdle] > 0;
  report.overflow = report.skipped && all[kStuck] == 0;
  counters.tokens += static_cast<int64_t>(all[kRoundTokens]);
  counters.updates = all.Largest(kUpdates);
  counters.skipped_steps = all.Largest(kSkipped);
  counters.overflows = all.Largest(kOverflows);
  counters.loss_spikes = all.Largest(kSpikes);
  const int64_t smallest = all.RankOfSmallestScale();
  counters.loss_scale = {all.Of(smallest, kScale),
                         static_cast<int64_t>(all.Of(smallest, kCleanSteps))};
  // Where no worker has learned anything their weights do not matter.
  if (!by_time_ || all[kTargets] == 0) return 1.0;
  return D(outer_->world_size()) * own_targets / all[kTargets];
}

Status LocalRounds::Finish(Context& context, StepClock& clock,
                           const std::function<Status()>& on_learned, TrainCounters& counters,
                           StepReport& report) {
  TrainCounters agreed = counters;
  StepReport of_all = report;
  WEFT_ASSIGN_OR_RETURN(const double weight, Agree(agreed, of_all));
  WEFT_RETURN_IF_ERROR(outer_->Subtract(context));
  WEFT_RETURN_IF_ERROR(on_learned());
  WEFT_RETURN_IF_ERROR(outer_->Sum(context, weight));
  counters = std::move(agreed);
  report = std::move(of_all);
  updates_ = tokens_ = 0;
  WEFT_RETURN_IF_ERROR(clock.Mark(context, "wait for ranks", &PhaseSeconds::communication_exposed));
  WEFT_RETURN_IF_ERROR(outer_->Update(context));
  return clock.Mark(context, "outer step", &PhaseSeconds::optimizer);
}

Status LocalRounds::Restored(const Context& context, bool restored) {
  updates_ = tokens_ = 0;
  return outer_->Restored(context, restored);
}

}  // namespace weft::engine
