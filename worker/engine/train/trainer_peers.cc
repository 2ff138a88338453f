// A training whose ranks come and go between outer steps.
#include <utility>

#include "worker/engine/train/trainer.h"

namespace weft::engine {

Result<std::optional<StepReport>> Trainer::Regroup(GradientReducer* outer,
                                                   const RoundMembers& members,
                                                   std::span<const RoundPosition> positions) {
  WEFT_ASSIGN_OR_RETURN(const Regrouping how, PlanRegrouping(positions));
  const auto rank = PlaceAmong(members.members, members.number);
  parts_.outer = outer;
  parts_.rank = rank;
  ranks_ = TrainingRanks(parts_);
  sequences_.SetRank(rank);
  rounds_->Regroup(outer, rank);
  const RoundPosition& source = positions[static_cast<size_t>(how.source)];
  if (!how.current[static_cast<size_t>(rank)]) {
    // It takes part with nothing learned.
    WEFT_RETURN_IF_ERROR(rounds_->Restored(*parts_.context, false));
    timed_->Follow(source);
  }
  timed_->Regroup(members);
  std::optional<StepReport> report;
  if (how.ends_round) {
    report = NewReport();
    timed_->Summarize(*report);
    WEFT_RETURN_IF_ERROR(MakeOuterStep(*report));
    WEFT_RETURN_IF_ERROR(memory_.Report(*parts_.context, ranks_.held_bytes(), *report));
  } else {
    timed_->BeginAnew(counters_);
  }
  // A new rank takes the optimizer's state of the source, and with it how many updates that made.
  std::vector<int64_t>& updates = counters_.rounds.updates;
  for (size_t i = 0; i < positions.size() && updates.size() == positions.size(); ++i) {
    if (positions[i].outer_steps < 0) updates[i] = updates[static_cast<size_t>(how.source)];
  }
  return report;
}

Status Trainer::TakeOver(const RoundPosition& source, std::vector<double> speeds,
                         const TrainCounters& counters) {
  WEFT_RETURN_IF_ERROR(Restored(counters));
  timed_->TakeOver(source, std::move(speeds), counters_);
  return OkStatus();
}

}  // namespace weft::engine
