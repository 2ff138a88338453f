#include "coordinator/planner/report/propose_phases.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "common/duration_text.h"
#include "common/number.h"
#include "common/spec/phases.h"
#include "common/text.h"

namespace weft::planner {
namespace {

/// Of the steps from scratch: those that saved most FLOPs at equal loss in the trainings of
/// docs/benchmarks/growth.md.
constexpr double kFirst = 0.05, kSmall = 1.2, kLast = 0.3;
/// Of the small model, over that of the job: of decoders, and of BERT and ViT.
constexpr double kDecoderRate = 4, kEncoderRate = 2;

constexpr const char* kAssumed =
    "0.05 of the steps from scratch are whole, 1.2 times as many small, 0.3 of them whole: what "
    "saved most FLOPs at equal loss in Weft's own trainings of a small GPT, BERT and ViT; no model "
    "of the loss says that it comes out equal";

Status CheckSizes(const ModelSpec& model) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", model.layers}, {"width", model.width}, {"heads", model.heads}};
  for (const auto& [name, size] : sizes) {
    if (size > 0 && size % 2 == 0) continue;
    return InvalidError(std::string("a V-cycle halves model.") + name + ", and it is " +
                        std::to_string(size));
  }
  return OkStatus();
}

/// `job` with the phases of a V-cycle whose steps are `scale` times their shares of train.steps.
Result<JobSpec> CycleOf(const JobSpec& job, double scale) {
  WEFT_RETURN_IF_ERROR(CheckSizes(job.model));
  JobSpec cycle = job;
  cycle.phases.resize(3);
  const double shares[] = {kFirst, kSmall, kLast};
  for (size_t i = 0; i < cycle.phases.size(); ++i) {
    PhaseSpec& phase = cycle.phases[i];
    phase.steps = std::llround(scale * shares[i] * D(job.train.steps));
    if (phase.steps < 1) {
      return InvalidError("a V-cycle has no step of " + PhaseTitle(cycle, i) +
                          ": the model would have " +
                          FormatNumber("%.3g", scale * D(job.train.steps)) +
                          " steps from scratch; hint: more train.steps, or a larger budget");
    }
    // Grown weights with new moments begin at a lower rate, too.
    phase.warmup_steps =
        i == 0 ? std::min(job.schedule.warmup_steps, phase.steps / 4) : phase.steps / 50;
  }
  PhaseSpec &first = cycle.phases[0], &small = cycle.phases[1], &last = cycle.phases[2];
  first.schedule = small.schedule = "constant";
  small.layers = job.model.layers / 2;
  small.width = job.model.width / 2;
  const bool encoder = job.model.family == "bert" || job.model.family == "vit";
  small.learning_rate = (encoder ? kEncoderRate : kDecoderRate) * job.optimizer.learning_rate;
  small.growth.method = "coalesce";
  last.growth.method = "decoalesce";
  WEFT_RETURN_IF_ERROR(ValidateJob(cycle));
  return cycle;
}

/// A V-cycle and its plans.
struct PlannedCycle {
  JobSpec job;
  PhasePlans plans;
};

Result<PlannedCycle> PlanCycle(const JobSpec& job, double scale, const PhasePlanner& plan) {
  PlannedCycle cycle;
  WEFT_ASSIGN_OR_RETURN(cycle.job, CycleOf(job, scale));
  WEFT_ASSIGN_OR_RETURN(cycle.plans, plan(cycle.job));
  return cycle;
}

/// What a run takes however many steps it has.
double FixedSeconds(const RunTime& run) {
  return run.start_seconds + run.weights_seconds + run.growth_fit_seconds + run.warm_up_seconds;
}

/// `cycle` with its steps scaled so that it takes at most `budget`, and little less. Intervals of
/// validations and checkpoints, and what the planner chooses, make the time a function of the steps
/// that has jumps: it is sought between those that take less and those that take more.
Result<PlannedCycle> FitToBudget(const JobSpec& job, double budget, PlannedCycle cycle,
                                 const PhasePlanner& plan) {
  constexpr int kRounds = 10;
  constexpr double kClose = 0.01;
  const double aim = (1 - kClose / 2) * budget;
  struct Tried {
    double scale, seconds;
  };
  std::optional<Tried> under, over;
  std::optional<PlannedCycle> best;
  double scale = 1;
  for (int round = 0; round < kRounds; ++round) {
    const double seconds = cycle.plans.seconds, fixed = FixedSeconds(cycle.plans.run);
    if (seconds > budget) {
      over = {scale, seconds};
    } else {
      under = {scale, seconds};
      if (!best || seconds > best->plans.seconds) best = cycle;
      if (seconds >= (1 - kClose) * budget) break;
    }
    if (fixed >= budget) {
      return InvalidError("the phases take " + HumanDuration(fixed) +
                          " before any step, and the budget is " + HumanDuration(budget) +
                          "; hint: a larger budget, or training without phases");
    }
    if (under && over) {
      const double share = (aim - under->seconds) / (over->seconds - under->seconds);
      scale = std::lerp(under->scale, over->scale, std::clamp(share, 0.1, 0.9));
    } else {
      scale *= std::max(aim - fixed, 0.0) / (seconds - fixed);
    }
    Result<PlannedCycle> next = PlanCycle(job, scale, plan);
    if (!next.ok() && best) break;
    WEFT_ASSIGN_OR_RETURN(cycle, std::move(next));
  }
  if (best) return *std::move(best);
  return InvalidError("no number of steps was found with which the phases take at most " +
                      HumanDuration(budget) + "; hint: a larger budget");
}

std::string Times(double seconds, double flops) {
  return HumanDuration(seconds) + ", " + FormatNumber("%.3g", flops) + " FLOPs";
}

/// "13.4 % fewer seconds".
std::string Saved(double now, double before, const char* what) {
  const double share = 1 - now / before;
  return FormatNumber("%.1f", 100 * std::abs(share)) + " % " + (share < 0 ? "more " : "fewer ") +
         what;
}

std::string PhaseLine(const PhaseSpec& phase) {
  std::string line = "  - { steps: " + std::to_string(phase.steps);
  if (phase.layers >= 0) line += ", layers: " + std::to_string(phase.layers);
  if (phase.width > 0) line += ", width: " + std::to_string(phase.width);
  if (phase.learning_rate > 0) {
    line += ", learning_rate: " + FormatNumber("%.6g", phase.learning_rate);
  }
  if (phase.warmup_steps >= 0) line += ", warmup_steps: " + std::to_string(phase.warmup_steps);
  if (!phase.schedule.empty()) line += ", schedule: " + phase.schedule;
  if (phase.growth.method != "none") line += ", growth: { method: " + phase.growth.method + " }";
  return line + " }\n";
}

}  // namespace

Result<PhaseProposal> ProposePhases(const JobSpec& job, double budget_seconds,
                                    const PhasePlanner& plan) {
  if (!job.phases.empty()) {
    return InvalidError("phases are proposed for a job that has none; hint: leave phases out");
  }
  // One phase with all steps is the job, planned as a phase is.
  JobSpec scratch = job;
  scratch.phases.resize(1);
  scratch.phases[0].steps = job.train.steps;
  WEFT_ASSIGN_OR_RETURN(const PhasePlans whole, plan(scratch));
  WEFT_ASSIGN_OR_RETURN(PlannedCycle cycle, PlanCycle(job, 1, plan));
  if (budget_seconds > 0) {
    WEFT_ASSIGN_OR_RETURN(cycle, FitToBudget(job, budget_seconds, std::move(cycle), plan));
  }
  PhaseProposal proposal;
  proposal.phases = std::move(cycle.job.phases);
  proposal.plans = std::move(cycle.plans);
  proposal.scratch_seconds = whole.seconds;
  proposal.scratch_flops = whole.flops;
  proposal.budget_seconds = budget_seconds;
  proposal.assumed = kAssumed;
  return proposal;
}

std::string FormatProposal(const PhaseProposal& proposal) {
  std::string lines = "phases:\n";
  for (const PhaseSpec& phase : proposal.phases) lines += PhaseLine(phase);
  const PhasePlans& plans = proposal.plans;
  lines += "# predicted:\n";
  for (const PhasePlan& one : plans.phases) {
    lines += "#   " + one.phase + ": " + Times(one.seconds, one.flops) + "\n";
  }
  lines += "#   all: " + Times(plans.seconds, plans.flops) + "\n";
  if (proposal.budget_seconds > 0) {
    lines += "#   the budget: " + HumanDuration(proposal.budget_seconds) + "\n";
  }
  lines += "#   from scratch: " + Times(proposal.scratch_seconds, proposal.scratch_flops) + "\n";
  lines += "# the phases take " + Saved(plans.seconds, proposal.scratch_seconds, "seconds") +
           " and " + Saved(plans.flops, proposal.scratch_flops, "FLOPs") +
           " than training from scratch\n";
  lines += "# assumed: " + proposal.assumed + "\n";
  return lines;
}

}  // namespace weft::planner
