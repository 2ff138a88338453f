#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/job_spec.h"
#include "common/spec/phase_spec.h"
#include "common/status.h"
#include "coordinator/planner/report/phase_plans.h"

namespace weft::planner {

/// Phases of a V-cycle, and what they are predicted to take. Its JSON is what users and programs
/// see.
struct PhaseProposal {
  std::vector<PhaseSpec> phases;
  PhasePlans plans;
  double scratch_seconds = 0;
  double scratch_flops = 0;
  double budget_seconds = 0;
  std::string assumed;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("phases", "For the job, in place of train.steps."), self.phases);
    visit(Field("plans", "Of the phases, with their seconds and FLOPs and the sums."), self.plans);
    visit(Field("scratch_seconds", "Of train.steps of the model without phases.").Unit("seconds"),
          self.scratch_seconds);
    visit(Field("scratch_flops", "The same.").Unit("FLOP"), self.scratch_flops);
    visit(Field("budget_seconds", "That the phases were to take; 0: no budget.").Unit("seconds"),
          self.budget_seconds);
    visit(Field("assumed", "What nobody predicts."), self.assumed);
  }
};

/// Plans the phases of a job: PlanPhases, or a coordinator that does.
using PhasePlanner = std::function<Result<PhasePlans>(const JobSpec&)>;

/// Proposes a V-cycle of two levels (Zou et al. 2024, arXiv 2404.07999) for `job`, which has no
/// phases: 0.05 of train.steps train the model, 1.2 times as many a model of half its layers, width
/// and heads, and 0.3 of them the model again. Its authors have 0.05, 0.5 and 0.5;
/// docs/benchmarks/growth.md has both.
///
/// With budget_seconds above 0 all steps are scaled so that the whole job takes no more than that,
/// and little less. kInvalid where a size is odd, or the budget or train.steps leave no step for a
/// phase. Errors as `plan`.
Result<PhaseProposal> ProposePhases(const JobSpec& job, double budget_seconds,
                                    const PhasePlanner& plan);

/// The lines of a job that ask for these phases, as YAML, and as its comments what each phase is
/// predicted to take, their sum next to training from scratch, and what is assumed. Ends with a
/// newline.
std::string FormatProposal(const PhaseProposal& proposal);

}  // namespace weft::planner
