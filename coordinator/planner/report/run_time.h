#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/field.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft::planner {

struct Timeline;

/// Where the time of a run goes, from its dispatch to its end, when nothing fails, no machine has
/// to be waited for, and the data are prepared.
struct RunTime {
  double start_seconds = 0;
  double weights_seconds = 0;
  double growth_fit_seconds = 0;
  double warm_up_seconds = 0;
  double steps_seconds = 0;
  int64_t validations = 0;
  double validation_seconds = 0;
  int64_t checkpoints = 0;
  double checkpoint_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(
        Field("start_seconds", "Until processes run and know each other; assumed.").Unit("seconds"),
        self.start_seconds);
    visit(Field("weights_seconds",
                "To draw the weights, or to read a checkpoint and grow them from it.")
              .Unit("seconds"),
          self.weights_seconds);
    visit(Field("growth_fit_seconds", "To learn a growth operator.").Unit("seconds"),
          self.growth_fit_seconds);
    visit(Field("warm_up_seconds", "What the first step takes longer than others; assumed.")
              .Unit("seconds"),
          self.warm_up_seconds);
    visit(Field("steps_seconds", "All steps.").Unit("seconds"), self.steps_seconds);
    visit(Field("validations", "That hold up the training."), self.validations);
    visit(Field("validation_seconds",
                "All validations; 0 also with train.eval_sequences 0, as nobody knows how many "
                "there are.")
              .Unit("seconds"),
          self.validation_seconds);
    visit(Field("checkpoints", "That hold up the training."), self.checkpoints);
    visit(Field("checkpoint_seconds",
                "That the training waits for checkpoints; without the rates that the cluster does "
                "not report.")
              .Unit("seconds"),
          self.checkpoint_seconds);
  }
};

/// The sum of the parts.
double TotalSeconds(const RunTime& time);

/// Part by part.
void AddTo(RunTime& sum, const RunTime& time);

/// The run of phase `phase` (0 of a job without phases) of `job` by `plan`, which is for `cluster`.
/// `timeline`: TimelineOf of that plan. Pure.
RunTime RunTimeOf(const JobSpec& job, size_t phase, const ClusterProfile& cluster, const Plan& plan,
                  const Timeline& timeline);

/// "12s: start 1s, weights 20ms, first step 30ms, steps 9s, 3 validations 1s, 2 checkpoints 1s":
/// parts that take no time are left out.
std::string RunTimeText(const RunTime& time);

}  // namespace weft::planner
