#include "tests/bench/scheduler_simulator/planned_curve.h"

#include <algorithm>

#include "coordinator/planner/planner.h"

namespace weft::bench {
namespace {

constexpr int64_t kMostGpus = 256;
constexpr int64_t kGpusPerMachine = 8;

/// A machine with rates as its maker gives them.
WorkerProfile Machine(int64_t number, int64_t gpus) {
  WorkerProfile worker;
  worker.worker_id = "machine-" + std::to_string(number);
  worker.device = "cuda";
  worker.isa = "avx512_bf16";
  worker.cores = 96;
  worker.memory_bytes = worker.memory_limit_bytes = int64_t{1} << 40;
  worker.loopback_bytes_per_second = worker.network_bytes_per_second = 50e9;
  for (int64_t index = 0; index < gpus; ++index) {
    DeviceSpec device;
    device.index = index;
    device.name = "NVIDIA H100 80GB HBM3";
    device.compute_capability = "9.0";
    device.memory_bytes = int64_t{80} << 30;
    device.memory_limit_bytes = device.memory_bytes / 100 * 92;
    device.copy_bytes_per_second = 2.6e12;
    for (const int64_t m : {256, 1024, 4096, 8192}) {
      const double thin = static_cast<double>(m) / static_cast<double>(m + 512);
      device.gemm.push_back({"bf16", m, m, m, 1, 700e12 * thin});
    }
    for (int64_t other = 0; other < gpus; ++other) {
      if (other != index) device.links.push_back({other, "nvlink", true, 300e9});
    }
    worker.devices.push_back(device);
  }
  return worker;
}

}  // namespace

Result<ScalingCurve> PlannedCurve() {
  JobSpec job;
  job.name = "curve";
  job.data.train = {"tokens.bin"};
  job.model.layers = 24;
  job.model.width = 1024;
  job.model.heads = 16;
  job.model.vocab_size = 50'257;
  job.model.context = 1024;
  job.train.global_batch = 512;
  job.train.precision = "bf16";
  job.resources.device = "cuda";
  std::map<int64_t, double> seconds;
  for (int64_t gpus = 1; gpus <= kMostGpus; gpus *= 2) {
    ClusterProfile cluster;
    for (int64_t first = 0; first < gpus; first += kGpusPerMachine) {
      cluster.workers.push_back(
          Machine(std::ssize(cluster.workers), std::min(gpus, kGpusPerMachine)));
    }
    job.resources.ranks = gpus;
    WEFT_ASSIGN_OR_RETURN(const PlanReport report, planner::PlanJob(job, cluster));
    seconds[gpus] = report.candidates.front().plan.prediction.step_seconds;
  }
  std::map<int64_t, double> speeds;
  for (const auto& [gpus, step] : seconds) speeds[gpus] = seconds.at(1) / step;
  return ScalingCurve(std::move(speeds));
}

}  // namespace weft::bench
