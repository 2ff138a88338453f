// Runs the scheduler of the coordinator and textbook policies over a trace of jobs on a virtual
// clock, one cluster of the trace a call, and prints one JSON line a policy:
//   scheduler_bench --trace FILE --cluster NAME --gpus N [--policy NAME]... [--noise 0.2]
// times passes over a long queue:
//   scheduler_bench --passes
// or plans a model on growing numbers of GPUs, for the curve along which jobs are resized:
//   scheduler_bench --curve
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/json.h"
#include "tests/bench/scheduler_simulator/baselines.h"
#include "tests/bench/scheduler_simulator/production.h"
#include "tests/bench/scheduler_simulator/trace.h"

namespace weft::bench {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("The scheduler on a virtual clock.");
  std::string trace_path, cluster, curve_path;
  int64_t gpus = 0;
  double noise = 0.2;
  std::vector<std::string> policies;
  coordinator::SchedulerRules rules;
  app.add_option("--trace", trace_path, "CSV with the columns vc,job,submit_s,duration_s,gpus");
  app.add_option("--cluster", cluster, "Value of vc");
  app.add_option("--gpus", gpus, "GPUs of the cluster");
  app.add_option("--noise", noise, "Deviation of the logarithm of predicted times");
  app.add_option("--policy", policies, "Policies; weft and weft_fixed are ours");
  app.add_option("--age-factor", rules.age_factor);
  app.add_option("--preempt-factor", rules.preempt_factor);
  app.add_option("--protected-seconds", rules.protected_seconds);
  CLI11_PARSE(app, argc, argv);
  Result<std::map<std::string, Trace>> traces = ReadTraces(trace_path);
  if (!traces.ok()) {
    std::fprintf(stderr, "%s\n", traces.status().message().c_str());
    return 2;
  }
  Trace& trace = (*traces)[cluster];
  AddNoise(trace, noise, 1);
  std::erase_if(trace, [&](const TraceJob& job) { return job.gpus > gpus; });
  const ScalingCurve curve({{1, 1}, {8, 7.2}, {64, 45}, {256, 120}});
  for (const std::string& policy : policies) {
    Outcome outcome;
    if (policy == "weft" || policy == "weft_fixed") {
      ProductionOptions options;
      options.rules = rules;
      options.elastic = policy == "weft";
      if (!options.elastic) options.rules.growth.after_seconds = 0;
      outcome = SimulateProduction(trace, gpus, curve, options);
    } else {
      outcome = SimulateBaseline(policy, trace, gpus, curve);
    }
    const Summary summary = Summarize(trace, outcome);
    std::printf("%s %s %.1f h, p99 %.1f, max %.1f, slowdown %.2f p99 %.1f, makespan %.1f d, %ld preemptions %ld resizes, lost %.0f\n",
                cluster.c_str(), policy.c_str(), summary.mean_completion_seconds / 3600,
                summary.p99_completion_seconds / 3600, summary.most_completion_seconds / 3600,
                summary.mean_slowdown, summary.p99_slowdown, summary.makespan_seconds / 86400,
                outcome.preemptions, outcome.resizes, outcome.lost_gpu_seconds / 3600);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  return weft::bench::Main(argc, argv);
}
