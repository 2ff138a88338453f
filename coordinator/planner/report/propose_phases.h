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
  int64_t levels = 0;
  std::string levels_because;
  PhasePlans plans;
  double scratch_seconds = 0;
  double scratch_flops = 0;
  double budget_seconds = 0;
  std::string assumed;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("phases", "For the job, in place of train.steps."), self.phases);
    visit(Field("levels", "Sizes of the model."), self.levels);
    visit(Field("levels_because", "Why there is this number of levels."), self.levels_because);
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

/// Proposes a V-cycle for `job`, which has no phases. The shares of train.steps are those of the
/// authors' example for GPT-2 (Zou et al. 2024, arXiv 2404.07999): a twentieth of the steps train
/// the model, half of them a model of half its layers, width and heads, half of them the model
/// again. With three levels the steps of the half model are a V-cycle of their own. The proposal
/// has the number of levels, two or three, whose plans take fewer seconds.
///
/// With budget_seconds above 0 all steps are scaled so that the whole job takes no more than that,
/// and little less. kInvalid where two levels are impossible, or the budget or train.steps leave no
/// step for a phase. Errors as `plan`.
Result<PhaseProposal> ProposePhases(const JobSpec& job, double budget_seconds,
                                    const PhasePlanner& plan);

/// The lines of a job that ask for these phases, as YAML, and as its comments what each phase is
/// predicted to take, their sum next to training from scratch, and what is assumed. Ends with a
/// newline.
std::string FormatProposal(const PhaseProposal& proposal);

}  // namespace weft::planner
