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

/// Of the steps from scratch, as the authors have them for GPT-2: 5,000, 50,000 and 50,000 steps
/// next to 100,000.
constexpr double kFirst = 0.05, kSmall = 0.5, kLast = 0.5;
/// Of the smallest model, and of the middle one on its way up in a cycle of three levels.
constexpr double kSmallLearningRate = 4, kMiddleLearningRate = 2;

constexpr const char* kAssumed =
    "shares of the steps are those of the authors' example for GPT-2 (0.05 of the steps from "
    "scratch, 0.5 of them small, 0.5 whole; arXiv 2404.07999), again for the half model where "
    "there are three levels; no model of the loss says that it comes out equal";

/// Sizes of a level, 0 being the whole model, and the share of the steps that it trains.
struct Share {
  int64_t level;
  double steps;
};

std::vector<Share> SharesOf(int64_t levels) {
  if (levels == 2) return {{0, kFirst}, {1, kSmall}, {0, kLast}};
  return {{0, kFirst}, {1, kSmall * kFirst}, {2, kSmall * kSmall}, {1, kSmall * kLast}, {0, kLast}};
}

Status CheckSizes(const ModelSpec& model, int64_t levels) {
  const int64_t factor = int64_t{1} << (levels - 1);
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", model.layers}, {"width", model.width}, {"heads", model.heads}};
  for (const auto& [name, size] : sizes) {
    if (size > 0 && size % factor == 0) continue;
    return InvalidError("a V-cycle of " + std::to_string(levels) + " levels divides model." + name +
                        " by " + std::to_string(factor) + ", and it is " + std::to_string(size));
  }
  return OkStatus();
}

/// `job` with the phases of a V-cycle whose steps are `scale` times their shares of train.steps.
Result<JobSpec> CycleOf(const JobSpec& job, int64_t levels, double scale) {
  WEFT_RETURN_IF_ERROR(CheckSizes(job.model, levels));
  const std::vector<Share> shares = SharesOf(levels);
  JobSpec cycle = job;
  cycle.phases.resize(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    PhaseSpec& phase = cycle.phases[i];
    const auto [level, share] = shares[i];
    phase.steps = std::llround(scale * share * D(job.train.steps));
    if (phase.steps < 1) {
      return InvalidError("a V-cycle of " + std::to_string(levels) + " levels has no step of " +
                          PhaseTitle(cycle, i) + ": the model would have " +
                          FormatNumber("%.3g", scale * D(job.train.steps)) +
                          " steps from scratch; hint: more train.steps, or a larger budget");
    }
    phase.warmup_steps = i == 0 ? phase.steps : 0;
    if (level > 0) {
      phase.layers = job.model.layers >> level;
      phase.width = job.model.width >> level;
    }
    const bool up = i > 0 && level < shares[i - 1].level;
    if (i > 0) phase.growth.method = up ? "decoalesce" : "coalesce";
    const bool bottom = level == levels - 1;
    if (level > 0 && (bottom || up)) {
      phase.learning_rate =
          (bottom ? kSmallLearningRate : kMiddleLearningRate) * job.optimizer.learning_rate;
    }
    if (!up && !bottom) phase.schedule = "constant";
  }
  WEFT_RETURN_IF_ERROR(ValidateJob(cycle));
  return cycle;
}

/// A V-cycle and its plans.
struct PlannedCycle {
  JobSpec job;
  PhasePlans plans;
};

Result<PlannedCycle> PlanCycle(const JobSpec& job, int64_t levels, double scale,
                               const PhasePlanner& plan) {
  PlannedCycle cycle;
  WEFT_ASSIGN_OR_RETURN(cycle.job, CycleOf(job, levels, scale));
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
Result<PlannedCycle> FitToBudget(const JobSpec& job, int64_t levels, double budget,
                                 PlannedCycle cycle, const PhasePlanner& plan) {
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
    Result<PlannedCycle> next = PlanCycle(job, levels, scale, plan);
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
  WEFT_ASSIGN_OR_RETURN(PlannedCycle cycle, PlanCycle(job, 2, 1, plan));
  Result<PlannedCycle> deeper = PlanCycle(job, 3, 1, plan);
  if (!deeper.ok() && deeper.status().code() != StatusCode::kInvalid) return deeper.status();
  PhaseProposal proposal;
  proposal.levels = 2;
  if (!deeper.ok()) {
    proposal.levels_because = "three levels are impossible: " + deeper.status().message();
  } else {
    const double two = cycle.plans.seconds, three = deeper->plans.seconds;
    if (three < two) {
      proposal.levels = 3;
      cycle = *std::move(deeper);
    }
    proposal.levels_because = "with the steps of the recipe two levels take " + HumanDuration(two) +
                              ", three take " + HumanDuration(three);
  }
  if (budget_seconds > 0) {
    WEFT_ASSIGN_OR_RETURN(
        cycle, FitToBudget(job, proposal.levels, budget_seconds, std::move(cycle), plan));
  }
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
  lines += "# " + std::to_string(proposal.levels) + " levels: " + proposal.levels_because + "\n";
  lines += "# assumed: " + proposal.assumed + "\n";
  return lines;
}

}  // namespace weft::planner
