#include "coordinator/planner/report/propose_phases.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "common/spec/phases.h"

namespace weft::planner {
namespace {

/// Steps of the small model, and of the last phase, for each step of the first.
constexpr double kLater = 10;
constexpr double kSmallLearningRate = 4;

Status CheckHalves(const ModelSpec& model) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", model.layers}, {"width", model.width}, {"heads", model.heads}};
  for (const auto& [name, size] : sizes) {
    if (size % 2 == 0) continue;
    return InvalidError("a V-cycle halves model." + std::string(name) + ", which is " +
                        std::to_string(size) + "; hint: phases of your own");
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<PhaseSpec>> ProposeVCycle(const JobSpec& job) {
  if (!job.phases.empty()) {
    return InvalidError("phases are proposed for a job that has none; hint: leave phases out");
  }
  WEFT_RETURN_IF_ERROR(CheckHalves(job.model));
  JobSpec cycle = job;
  cycle.phases.resize(3);
  PhaseSpec &first = cycle.phases[0], &small = cycle.phases[1], &last = cycle.phases[2];
  small.layers = job.model.layers / 2;
  small.width = job.model.width / 2;
  small.learning_rate = kSmallLearningRate * job.optimizer.learning_rate;
  small.growth.method = "coalesce";
  last.growth.method = "decoalesce";
  const double large_flops = StepFlops(job), small_flops = StepFlops(JobOfPhase(cycle, 1));
  const double budget = static_cast<double>(job.train.steps) * large_flops;
  const double unit = budget / (large_flops + kLater * (small_flops + large_flops));
  first.steps = std::llround(unit);
  small.steps = std::llround(kLater * unit);
  // What rounding left, and no more than the budget.
  const double left = budget - static_cast<double>(first.steps) * large_flops -
                      static_cast<double>(small.steps) * small_flops;
  last.steps = static_cast<int64_t>(left / large_flops);
  if (first.steps < 1 || last.steps < 1) {
    return InvalidError("train.steps " + std::to_string(job.train.steps) +
                        " leaves no step for the first phase of a V-cycle; hint: 20 or more");
  }
  first.schedule = "constant";
  first.warmup_steps = first.steps;
  small.warmup_steps = last.warmup_steps = 0;
  WEFT_RETURN_IF_ERROR(ValidateJob(cycle));
  return cycle.phases;
}

std::string PhaseLines(const std::vector<PhaseSpec>& phases) {
  std::string lines = "phases:\n";
  for (const PhaseSpec& phase : phases) {
    lines += "  - { steps: " + std::to_string(phase.steps);
    if (phase.layers >= 0) lines += ", layers: " + std::to_string(phase.layers);
    if (phase.width > 0) lines += ", width: " + std::to_string(phase.width);
    if (phase.learning_rate > 0) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.6g", phase.learning_rate);
      lines += std::string(", learning_rate: ") + text;
    }
    if (phase.warmup_steps >= 0) lines += ", warmup_steps: " + std::to_string(phase.warmup_steps);
    if (!phase.schedule.empty()) lines += ", schedule: " + phase.schedule;
    if (phase.growth.method != "none") {
      lines += ", growth: { method: " + phase.growth.method + " }";
    }
    lines += " }\n";
  }
  return lines;
}

}  // namespace weft::planner
