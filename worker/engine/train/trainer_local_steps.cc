// What follows from the steps that a rank has made by itself, where ranks make such.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/number.h"
#include "worker/engine/train/trainer.h"

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

Status Trainer::AgreeOnRound(StepReport& report) {
  using enum RoundNumbers::Sum;
  using enum RoundNumbers::Own;
  const bool idle = round_updates_ == 0;
  RoundNumbers all(outer_->world_size());
  all[kLoss] = report.loss * D(report.targets);
  all[kRight] = D(report.right);
  all[kTargets] = D(report.targets);
  all[kTokens] = D(report.tokens);
  all[kPadding] = D(report.padding_tokens);
  all[kRoundTokens] = D(round_tokens_);
  all[kIdle] = idle ? 1 : 0;
  all[kStuck] = idle && !report.overflow ? 1 : 0;
  all.Of(parts_.rank, kUpdates) = D(counters_.updates);
  all.Of(parts_.rank, kSkipped) = D(counters_.skipped_steps);
  all.Of(parts_.rank, kOverflows) = D(counters_.overflows);
  all.Of(parts_.rank, kSpikes) = D(counters_.loss_spikes);
  all.Of(parts_.rank, kScale) = counters_.loss_scale.scale;
  all.Of(parts_.rank, kCleanSteps) = D(counters_.loss_scale.clean_steps);
  WEFT_RETURN_IF_ERROR(outer_->SumScalars(all.values()));
  report.loss = all[kLoss] / all[kTargets];
  report.right = static_cast<int64_t>(all[kRight]);
  report.targets = static_cast<int64_t>(all[kTargets]);
  report.tokens = static_cast<int64_t>(all[kTokens]);
  report.padding_tokens = static_cast<int64_t>(all[kPadding]);
  report.skipped = all[kIdle] > 0;
  report.overflow = report.skipped && all[kStuck] == 0;
  counters_.tokens += static_cast<int64_t>(all[kRoundTokens]);
  counters_.updates = all.Largest(kUpdates);
  counters_.skipped_steps = all.Largest(kSkipped);
  counters_.overflows = all.Largest(kOverflows);
  counters_.loss_spikes = all.Largest(kSpikes);
  const int64_t smallest = all.RankOfSmallestScale();
  counters_.loss_scale = {all.Of(smallest, kScale),
                          static_cast<int64_t>(all.Of(smallest, kCleanSteps))};
  round_updates_ = round_tokens_ = 0;
  return OkStatus();
}

Status Trainer::FinishRound(StepReport& report) {
  Context& context = *parts_.context;
  round_tokens_ += report.tokens - report.padding_tokens;
  if (!AtOuterStep()) {
    // As many as if the others had the same; what they have they tell in the outer step.
    report.tokens *= outer_->world_size();
    report.padding_tokens *= outer_->world_size();
    return OkStatus();
  }
  WEFT_RETURN_IF_ERROR(clock_.Start(context));
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  WEFT_RETURN_IF_ERROR(AgreeOnRound(report));
  WEFT_RETURN_IF_ERROR(outer_->Sum(context));
  WEFT_RETURN_IF_ERROR(
      clock_.Mark(context, "wait for ranks", &PhaseSeconds::communication_exposed));
  WEFT_RETURN_IF_ERROR(outer_->Update(context));
  WEFT_RETURN_IF_ERROR(clock_.Mark(context, "outer step", &PhaseSeconds::optimizer));
  weights_.Changed(Repack::kTrained);
  return clock_.Collect(context, report.seconds);
}

}  // namespace weft::engine
