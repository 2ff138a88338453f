// What a joint plan of recomputing and sending activations to the host is worth on a limited device
// behind a slow link.
//
//   planned_offload_bench --device-bytes 110000000 --links 100000000,400000000
//
// Measures this machine as a worker does, and has the planner plan one GPT-2 under a limit of the
// device that not all of its activations fit: recomputing alone, all activations on the host, and
// both together. Trains each plan under that limit over a link of each rate. Prints JSON with the
// predicted and the measured times.

#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "common/model/remat_schedule.h"
#include "coordinator/planner/planner.h"
#include "tests/bench/timed_training.h"
#include "worker/daemon/probe.h"

namespace weft::engine {
namespace {

struct Options {
  int64_t device_bytes = 0;
  std::vector<int64_t> links;
  int64_t steps = 5;
  int64_t width = 128;
  int64_t layers = 12;
  int64_t context = 128;
  int64_t micro_batch = 16;
  std::string directory = "/var/tmp";
};

struct RunConfig {
  const char* name;
  const char* recompute;
  const char* activations;
};

constexpr RunConfig kRunConfigs[] = {{"recompute", "optimal", "none"},
                                     {"all on the host", "none", "host"},
                                     {"both", "optimal", "host"}};

JobSpec JobOf(const Options& options, const RunConfig& way, int64_t link) {
  JobSpec job;
  job.name = "planned-offload-bench";
  job.model.width = options.width;
  job.model.layers = options.layers;
  job.model.heads = options.width / 32;
  job.model.vocab_size = 512;
  job.model.context = options.context;
  job.train.global_batch = options.micro_batch;
  job.train.steps = 1000;
  job.train.precision = "fp32";
  job.schedule.warmup_steps = 0;
  job.resources.ranks = 1;
  job.resources.micro_batch = options.micro_batch;
  job.resources.recompute = way.recompute;
  job.resources.offload_activations = way.activations;
  job.resources.device_memory_bytes = options.device_bytes;
  if (job.resources.offload_activations != "none") job.resources.host_link_bytes_per_second = link;
  return job;
}

Result<Json> Row(const Options& options, const ClusterProfile& cluster, const RunConfig& way,
                 int64_t link) {
  const JobSpec job = JobOf(options, way, link);
  WEFT_ASSIGN_OR_RETURN(const PlanReport report, planner::PlanJob(job, cluster));
  const Plan& plan = report.candidates.front().plan;
  WEFT_ASSIGN_OR_RETURN(const RematPlan remat, RematOf(plan, options.layers));
  WEFT_ASSIGN_OR_RETURN(const Trained trained, Train(job, plan, options.steps));
  const TimeBreakdown& time = plan.prediction.time;
  return Json{{"way", way.name},
              {"link_bytes_per_second", job.resources.host_link_bytes_per_second},
              {"replayed_blocks", ReplayedBlocks(remat)},
              {"replayed_attentions", ReplayedAttentions(remat)},
              {"sent_blocks", SentBlocks(remat)},
              {"operations", RematOperations(remat)},
              {"predicted_step_seconds", plan.prediction.step_seconds},
              {"predicted_stalled_seconds", time.exposed_communication_seconds},
              {"predicted_recompute_seconds", time.recompute_seconds},
              {"step_seconds", trained.step_seconds},
              {"stalled_seconds", trained.stalled_seconds},
              {"device_bytes", trained.device_bytes},
              {"host_bytes", trained.host_bytes},
              {"bytes_down", trained.bytes_down}};
}

Result<Json> Report(const Options& options) {
  const daemon::Machine machine = daemon::ReadMachine();
  WEFT_ASSIGN_OR_RETURN(
      WorkerProfile worker,
      daemon::MeasuredProfile(machine, options.directory + "/planned_offload_profile.json",
                              options.directory, true));
  worker.worker_id = "local";
  worker.host = "127.0.0.1";
  worker.memory_limit_bytes = machine.memory_limit_bytes;
  const ClusterProfile cluster{{worker}};
  Json rows = Json::array();
  for (const RunConfig& way : kRunConfigs) {
    for (const int64_t link : options.links) {
      WEFT_ASSIGN_OR_RETURN(Json row, Row(options, cluster, way, link));
      rows.push_back(std::move(row));
      if (way.activations == std::string("none")) break;
    }
  }
  return Json{{"device_bytes", options.device_bytes},
              {"width", options.width},
              {"layers", options.layers},
              {"tokens", options.micro_batch * options.context},
              {"rows", rows}};
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  weft::engine::Options options;
  CLI::App app("Recomputing and sending activations under a limit, planned and measured.");
  app.add_option("--device-bytes", options.device_bytes)->required();
  app.add_option("--links", options.links, "Bytes a second each way.")->delimiter(',')->required();
  app.add_option("--steps", options.steps)->capture_default_str();
  app.add_option("--width", options.width)->capture_default_str();
  app.add_option("--layers", options.layers)->capture_default_str();
  app.add_option("--context", options.context)->capture_default_str();
  app.add_option("--micro-batch", options.micro_batch)->capture_default_str();
  app.add_option("--directory", options.directory)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = weft::engine::Report(options);
  if (!result.ok()) {
    std::cerr << result.status().message() << "\n";
    return 1;
  }
  std::cout << result->dump(1) << "\n";
  return 0;
}
