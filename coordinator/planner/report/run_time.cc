#include "coordinator/planner/report/run_time.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/duration_text.h"
#include "common/model/checkpoint_interval.h"
#include "common/model/model_shape.h"
#include "common/number.h"
#include "common/spec/growth_fit.h"
#include "common/spec/local_steps.h"
#include "common/spec/phase_search.h"
#include "common/spec/phases.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/report/explanation.h"
#include "coordinator/planner/report/save_interval.h"

namespace weft::planner {
namespace {

// What follows is assumed: no worker measures it.

/// From the dispatch until ranks are processes that know each other. On GPUs they also load their
/// kernels and make a context.
constexpr double kProcessorStartSeconds = 1;
constexpr double kDeviceStartSeconds = 10;
/// The first step allocates, packs weights and chooses kernels: it takes as long as this many.
constexpr double kFirstStep = 2;
/// One thread draws a random number, or computes one of a grown tensor in float64.
constexpr double kDrawnNumberSeconds = 10e-9;
constexpr double kGrownNumberSeconds = 20e-9;
/// A weight and two moments, as most optimizers keep them.
constexpr double kNumbersOfState = 3;

/// How one rank takes part in validations.
struct ForwardPasses {
  double slowest = 0;  ///< Of a micro-batch through the slowest rank of a pipeline.
  double all = 0;      ///< Through all of them.

  explicit ForwardPasses(const Timeline& timeline) {
    for (const TimelineRank& rank : timeline.ranks) {
      double own = 0;
      for (const TimelineStep& step : rank.steps) {
        if (step.op == "F" && step.micro_batch == 0) own += step.end - step.start;
      }
      slowest = std::max(slowest, own);
      all += own;
    }
  }

  /// This many sequences, which data-parallel ranks partition.
  double Seconds(const Plan& plan, int64_t sequences) const {
    if (sequences == 0) return 0;
    const int64_t replicas = plan.mesh.data * plan.mesh.expert;
    const int64_t of_rank = (sequences + replicas - 1) / replicas;
    // A last micro-batch that is smaller takes less time.
    const double passes = D(of_rank) / D(plan.micro_batch);
    return all + std::max(passes - 1, 0.0) * slowest - std::max(1 - passes, 0.0) * all;
  }
};

/// How often something happens within the training that is due every `every_steps` (0: never). At
/// its end nothing is due any more.
int64_t TimesWithin(const TrainSpec& train, int64_t every_steps) {
  if (every_steps == 0 || train.steps <= 1) return 0;
  const int64_t last = LastOuterStep(train, train.steps - 1);
  return last / std::max(every_steps, train.local_steps);
}

bool HasValidation(const DataSpec& data) {
  return !data.validation.empty() || data.validation_fraction > 0;
}

void AddCheckpoints(const JobSpec& own, const ClusterProfile& cluster, const Plan& plan,
                    bool searches, RunTime& time) {
  const int64_t machines = std::ssize(MachinesOf(plan, cluster));
  const SaveCosts costs = ExpectedSaveCosts(own.train, cluster, plan,
                                            plan.device == "cpu" ? machines : RankCount(plan.mesh));
  int64_t every = own.checkpoint.every_steps;
  if (own.checkpoint.interval == "auto") {
    if (const int64_t best = StepsBetweenSaves(costs); best > 0) every = best;
  }
  const int64_t within = TimesWithin(own.train, every);
  // The last one, and that of a search, are written while nothing else is done.
  const int64_t last = searches ? 2 : 1;
  time.checkpoints = within + last;
  time.checkpoint_seconds =
      D(within + last) * costs.stall_seconds + D(last) * costs.background_seconds;
}

/// To read what the phase before has saved, by one thread of each rank.
double ReadSeconds(const ClusterProfile& cluster, const Plan& plan, double numbers) {
  double longest = 0;
  for (const UsedMachine& machine : MachinesOf(plan, cluster)) {
    const ProcessorRates rates(*machine.worker, DType::kF32);
    // A copy reads and writes each byte.
    const double bytes = 2 * numbers * D(static_cast<int64_t>(DTypeSize(DType::kF32)));
    longest = std::max(longest, bytes / rates.MemoryBytesPerSecond({1, machine.ranks}));
  }
  return longest;
}

/// Numbers of the phase's model that are made from those of the one before, and of the larger model
/// that is mixed in, which are read.
double GrowSeconds(const JobSpec& job, size_t phase, const JobSpec& own,
                   const ClusterProfile& cluster, const Plan& plan) {
  double read = D(ShapeOf(JobOfPhase(job, phase - 1)).counts.Total());
  if (const std::optional<size_t> mixed = MixedPhase(job, phase)) {
    read += D(ShapeOf(JobOfPhase(job, *mixed)).counts.Total());
  }
  const bool moments = OptimizerStateOf(job.phases[phase].growth) != "new";
  // Stages make their blocks, all other ranks whole tensors.
  const double made = D(ShapeOf(own).counts.Total()) / D(plan.mesh.pipeline);
  return ReadSeconds(cluster, plan, kNumbersOfState * read) +
         kGrownNumberSeconds * made * (moments ? kNumbersOfState : 1);
}

/// The parts that take some time, under the names people see.
std::vector<std::pair<std::string, double>> PartsOf(const RunTime& time) {
  const auto counted = [](int64_t count, const char* what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  std::vector<std::pair<std::string, double>> parts = {
      {"start", time.start_seconds},
      {"weights", time.weights_seconds},
      {"learning of the growth", time.growth_fit_seconds},
      {"warm-up", time.warm_up_seconds},
      {"steps", time.steps_seconds},
      {counted(time.validations, "validation"), time.validation_seconds},
      {counted(time.checkpoints, "checkpoint"), time.checkpoint_seconds}};
  std::erase_if(parts, [](const auto& part) { return part.second <= 0; });
  return parts;
}

}  // namespace

double TotalSeconds(const RunTime& time) {
  return time.start_seconds + time.weights_seconds + time.growth_fit_seconds +
         time.warm_up_seconds + time.steps_seconds + time.validation_seconds +
         time.checkpoint_seconds;
}

void AddTo(RunTime& sum, const RunTime& time) {
  sum.start_seconds += time.start_seconds;
  sum.weights_seconds += time.weights_seconds;
  sum.growth_fit_seconds += time.growth_fit_seconds;
  sum.warm_up_seconds += time.warm_up_seconds;
  sum.steps_seconds += time.steps_seconds;
  sum.validations += time.validations;
  sum.validation_seconds += time.validation_seconds;
  sum.checkpoints += time.checkpoints;
  sum.checkpoint_seconds += time.checkpoint_seconds;
}

RunTime RunTimeOf(const JobSpec& job, size_t phase, const ClusterProfile& cluster, const Plan& plan,
                  const Timeline& timeline) {
  const JobSpec own = JobOfPhase(job, phase);
  const bool phased = !job.phases.empty();
  const bool searches = phased && job.phases[phase].search.steps > 0;
  const ForwardPasses passes(timeline);
  RunTime time;
  time.start_seconds = plan.device == "cpu" ? kProcessorStartSeconds : kDeviceStartSeconds;
  time.warm_up_seconds = (kFirstStep - 1) * plan.prediction.step_seconds;
  const double parts = D(plan.mesh.tensor * plan.mesh.pipeline * plan.mesh.expert);
  time.weights_seconds =
      kDrawnNumberSeconds * D(ShapeOf(own).counts.Total()) / parts / D(plan.threads_per_rank);
  const double plain = D(own.train.steps) * plan.prediction.step_seconds;
  time.steps_seconds = plain;
  if (HasValidation(own.data)) {
    // Also at the end, and of weights that come from before, from the phase or from its search.
    time.validations = TimesWithin(own.train, own.train.eval_every_steps) + 1 +
                       (phase > 0 ? 1 : 0) + (searches ? 1 : 0);
    time.validation_seconds = D(time.validations) * passes.Seconds(plan, own.train.eval_sequences);
  }
  AddCheckpoints(own, cluster, plan, searches, time);
  if (phase > 0) {
    time.weights_seconds += GrowSeconds(job, phase, own, cluster, plan);
    // In proportion to what is computed. Ranks that share a model each compute all of it.
    const double alike = D(plan.mesh.tensor * plan.mesh.pipeline * plan.mesh.context);
    time.growth_fit_seconds =
        alike * plain * GrowthFitFlops(job, phase) / (D(own.train.steps) * StepFlops(own));
  }
  if (searches) {
    const PhaseSearchSpec& search = job.phases[phase].search;
    time.steps_seconds = SearchFlopsShare(job, phase) * plain;
    for (const PhaseSize& size : PhaseSizes(search, own.model)) {
      const double share = StepFlops(WithSize(own, size)) / StepFlops(own);
      time.validation_seconds +=
          share * passes.Seconds(plan, kComparedBatches * own.train.global_batch);
      ++time.validations;
    }
  }
  return time;
}

std::string RunTimeText(const RunTime& time) {
  std::string text = HumanDuration(TotalSeconds(time));
  const char* separator = ": ";
  for (const auto& [name, seconds] : PartsOf(time)) {
    text += std::exchange(separator, ", ") + name + " " + HumanDuration(seconds);
  }
  return text;
}

}  // namespace weft::planner
