// Runs the scheduler of the coordinator and textbook policies over a cluster of a trace of jobs on
// a virtual clock, and prints a line of JSON for each policy; tests/bench/scheduler runs it over
// many.
//   scheduler_bench --trace FILE --cluster NAME --gpus N [--noise 0.2] [--policy NAME]...
// Or prints the curve along which jobs are resized, or times passes over a long queue:
//   scheduler_bench --curve | --passes
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/json.h"
#include "tests/bench/scheduler_simulator/baselines.h"
#include "tests/bench/scheduler_simulator/planned_curve.h"
#include "tests/bench/scheduler_simulator/production.h"
#include "tests/bench/scheduler_simulator/trace.h"

namespace weft::bench {
namespace {

/// The rules as shipped, with or without resizes.
Outcome SimulateOurs(const Trace& trace, int64_t gpus, const ScalingCurve& curve, bool elastic,
                     const coordinator::SchedulerRules& rules) {
  ProductionOptions options;
  options.rules = rules;
  options.elastic = elastic;
  if (!elastic) options.rules.growth.after_seconds = 0;
  return SimulateProduction(trace, gpus, curve, options);
}

Json RowOf(const std::string& cluster, const std::string& policy, const Trace& trace,
           const Outcome& outcome) {
  const Summary summary = Summarize(trace, outcome);
  return {{"cluster", cluster},
          {"policy", policy},
          {"mean_completion_seconds", summary.mean_completion_seconds},
          {"p99_completion_seconds", summary.p99_completion_seconds},
          {"most_completion_seconds", summary.most_completion_seconds},
          {"mean_slowdown", summary.mean_slowdown},
          {"p99_slowdown", summary.p99_slowdown},
          {"makespan_seconds", summary.makespan_seconds},
          {"preemptions", outcome.preemptions},
          {"resizes", outcome.resizes},
          {"lost_gpu_seconds", outcome.lost_gpu_seconds}};
}

int Fail(const Status& status) {
  std::fprintf(stderr, "scheduler_bench: %s\n", status.message().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  CLI::App app("The scheduler on a virtual clock.");
  std::string trace_path, cluster;
  int64_t gpus = 0;
  double noise = 0.2;
  bool show_curve = false;
  std::vector<std::string> policies = BaselineNames();
  policies.insert(policies.end(), {"weft_fixed", "weft"});
  coordinator::SchedulerRules rules;
  app.add_option("--trace", trace_path, "CSV with the columns vc,job,submit_s,duration_s,gpus");
  app.add_option("--cluster", cluster, "Value of vc");
  app.add_option("--gpus", gpus, "GPUs of the cluster");
  app.add_option("--noise", noise, "Standard deviation of the logarithm of predicted times");
  app.add_option("--policy", policies, "Policies; weft_fixed and weft are ours");
  app.add_option("--age-factor", rules.age_factor, "Of SchedulerRules");
  app.add_option("--preempt-factor", rules.preempt_factor, "Of SchedulerRules");
  app.add_flag("--curve", show_curve, "Prints speeds by number of GPUs");
  CLI11_PARSE(app, argc, argv);
  const Result<ScalingCurve> curve = PlannedCurve();
  if (!curve.ok()) return Fail(curve.status());
  if (show_curve) {
    Json speeds;
    for (const auto& [count, speed] : curve->speeds()) speeds[std::to_string(count)] = speed;
    std::printf("%s\n", speeds.dump().c_str());
    return 0;
  }
  Result<std::map<std::string, Trace>> traces = ReadTraces(trace_path);
  if (!traces.ok()) return Fail(traces.status());
  if (!traces->contains(cluster) || gpus < 1) {
    return Fail(InvalidError("--cluster must be one of " + trace_path + ", with --gpus"));
  }
  Trace& trace = traces->at(cluster);
  AddNoise(trace, noise, 1);
  std::erase_if(trace, [&](const TraceJob& job) { return job.gpus > gpus; });
  for (const std::string& policy : policies) {
    const bool ours = policy.starts_with("weft");
    const Outcome outcome = ours ? SimulateOurs(trace, gpus, *curve, policy == "weft", rules)
                                 : SimulateBaseline(policy, trace, gpus, *curve);
    std::printf("%s\n", RowOf(cluster, policy, trace, outcome).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  return weft::bench::Main(argc, argv);
}
