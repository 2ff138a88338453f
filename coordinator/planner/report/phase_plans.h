#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/field.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/spec/plan_query.h"
#include "common/status.h"
#include "coordinator/planner/report/run_time.h"

namespace weft::planner {

/// A phase of a job and the best plan for it.
struct PhasePlan {
  std::string phase;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t parameters = 0;
  int64_t steps = 0;
  int64_t tokens_per_step = 0;
  std::string mesh;
  Plan plan;
  RunTime run;
  double seconds = 0;
  double flops = 0;
  double price = 0;
  double kilowatt_hours = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("phase", "Its number and name."), self.phase);
    visit(Field("layers", "Of its model."), self.layers);
    visit(Field("width", "Of its model."), self.width);
    visit(Field("heads", "Of its model."), self.heads);
    visit(Field("parameters", "Of its model, with those of adapters."), self.parameters);
    visit(Field("steps", "Optimizer steps."), self.steps);
    visit(Field("tokens_per_step", "Over all ranks."), self.tokens_per_step);
    visit(Field("mesh", "Degrees of parallelism."), self.mesh);
    visit(Field("plan", "With its prediction."), self.plan);
    visit(Field("run", "Where its time goes."), self.run);
    visit(Field("seconds", "From its dispatch to its end: the sum of the parts of run.")
              .Unit("seconds"),
          self.seconds);
    visit(Field("flops",
                "Of all its steps, and of what learns its growth operator; without "
                "recomputation.")
              .Unit("FLOP"),
          self.flops);
    visit(Field("price", "Of seconds; 0: not known."), self.price);
    visit(Field("kilowatt_hours", "Of seconds; 0: not known.").Unit("kWh"), self.kilowatt_hours);
  }
};

/// The plans of all phases of a job, which run one after the other. Its JSON is what users and
/// programs see.
struct PhasePlans {
  std::string job;
  std::vector<PhasePlan> phases;
  int64_t steps = 0;
  RunTime run;
  double seconds = 0;
  double flops = 0;
  double price = 0;
  double kilowatt_hours = 0;
  std::string currency;
  double planning_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("job", "Its name."), self.job);
    visit(Field("phases", "In the order in which they run."), self.phases);
    visit(Field("steps", "Of all phases."), self.steps);
    visit(Field("run", "Where the time goes, of all phases."), self.run);
    visit(Field("seconds",
                "From the start of the first phase to the end of the last one, when "
                "none has to wait for machines.")
              .Unit("seconds"),
          self.seconds);
    visit(Field("flops", "Of all phases.").Unit("FLOP"), self.flops);
    visit(Field("price", "Of all phases; 0: not known."), self.price);
    visit(Field("kilowatt_hours", "Of all phases; 0: not known.").Unit("kWh"), self.kilowatt_hours);
    visit(Field("currency", "Of all prices."), self.currency);
    visit(Field("planning_seconds", "Time the planner took.").Unit("seconds"),
          self.planning_seconds);
  }
};

/// ExplainPlan of each phase of a job that has some, with its best plan. Errors as there, with the
/// phase; kInvalid also for a wish of `query` that is of one plan: frontier, measure,
/// finish_within_seconds.
Result<PhasePlans> PlanPhases(const JobSpec& job, const ClusterProfile& cluster,
                              const PlanQuery& query, const std::stop_token& stop = {});

/// Tables for people, of the plans and of where their time goes: a row for each phase and one for
/// all. Ends with a newline.
std::string FormatPhasePlans(const PhasePlans& plans);

}  // namespace weft::planner
