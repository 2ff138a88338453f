// Times the planner on clusters of GPUs: what `weft plan` takes on this machine's processor, and
// how much memory. Prints a row of Markdown for each job.
#include <sys/resource.h>

#include <cstdio>
#include <ctime>
#include <string>

#include "coordinator/planner/planner.h"

namespace weft::planner {
namespace {

/// Eight H100 as a worker reports them, with rates of the maker.
WorkerProfile Machine(int64_t number) {
  WorkerProfile worker;
  worker.worker_id = "machine-" + std::to_string(number);
  worker.device = "cuda";
  worker.isa = "avx512_bf16";
  worker.cores = 96;
  worker.memory_bytes = worker.memory_limit_bytes = int64_t{1} << 40;
  worker.loopback_bytes_per_second = 50e9;
  for (int64_t index = 0; index < 8; ++index) {
    DeviceSpec device;
    device.index = index;
    device.uuid = worker.worker_id + "-" + std::to_string(index);
    device.name = "NVIDIA H100 80GB HBM3";
    device.compute_capability = "9.0";
    device.memory_bytes = 85'899'345'920;
    device.memory_limit_bytes = device.memory_bytes / 100 * 92;
    device.copy_bytes_per_second = 2.6e12;
    for (int64_t m : {256, 1024, 4096, 8192}) {
      const double thin = static_cast<double>(m) / static_cast<double>(m + 512);
      device.gemm.push_back({"bf16", m, m, m, 1, 700e12 * thin});
    }
    for (int64_t other = 0; other < 8; ++other) {
      if (other != index) device.links.push_back({other, "nvlink", true, 300e9});
    }
    worker.devices.push_back(device);
  }
  return worker;
}

struct Case {
  const char* name;
  int64_t machines;
  int64_t layers, width, heads, kv_heads, mlp_width, sequence_length, global_batch;
  int64_t zero_stage;
};

JobSpec JobOf(const Case& wanted) {
  JobSpec job;
  job.name = "speed";
  job.data.train = {"tokens.bin"};
  job.model.family = "llama";
  job.model.layers = wanted.layers;
  job.model.width = wanted.width;
  job.model.heads = wanted.heads;
  job.model.kv_heads = wanted.kv_heads;
  job.model.mlp_width = wanted.mlp_width;
  job.model.vocab_size = 128'256;
  job.model.context = job.train.sequence_length = wanted.sequence_length;
  job.train.global_batch = wanted.global_batch;
  job.train.precision = "bf16";
  job.resources.device = "cuda";
  job.resources.zero_stage = wanted.zero_stage;
  return job;
}

int Run() {
  const Case cases[] = {
      {"7B on 64", 8, 32, 4096, 32, 32, 11008, 4096, 1024, 3},
      {"175B on 512", 64, 96, 12288, 96, 96, 32768, 2048, 1536, 3},
      {"7B on 64, any mesh", 8, 32, 4096, 32, 32, 11008, 4096, 1024, 0},
      {"175B on 512, any mesh", 64, 96, 12288, 96, 96, 32768, 2048, 1536, 0},
      {"405B on 16,384, any mesh", 2048, 126, 16384, 128, 8, 53248, 4096, 16384, 0},
      {"405B on 16,384", 2048, 126, 16384, 128, 8, 53248, 4096, 16384, 3},
  };
  std::printf("| job | plans | seconds | plans a second | peak memory |\n|---|---|---|---|---|\n");
  for (const Case& wanted : cases) {
    ClusterProfile cluster;
    for (int64_t i = 0; i < wanted.machines; ++i) cluster.workers.push_back(Machine(i));
    const JobSpec job = JobOf(wanted);
    const std::clock_t start = std::clock();
    const Result<PlanReport> report =
        wanted.zero_stage > 0 ? PlanJob(job, cluster) : PlanAnyMesh(job, cluster);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    if (!report.ok()) {
      std::fprintf(stderr, "%s: %.2f s, %s\n", wanted.name, seconds,
                   report.status().ToString().c_str());
      continue;
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto plans = static_cast<double>(report->candidates_considered);
    std::printf("| %s | %.0f | %.3f | %.0f | %ld MiB |\n", wanted.name, plans, seconds,
                plans / seconds, usage.ru_maxrss >> 10);
  }
  return 0;
}

}  // namespace
}  // namespace weft::planner

int main() {
  return weft::planner::Run();
}
