#pragma once

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/planner.h"

namespace weft::planner {

// For tests of PlanJob: jobs and machines.

inline constexpr int64_t kGiB = int64_t{1} << 30;

inline JobSpec SmallJob() {
  JobSpec job;
  job.name = "small";
  job.data.train = {"a.txt"};
  job.train.global_batch = 24;
  return job;
}

inline JobSpec Gpt2Job() {
  JobSpec job = SmallJob();
  job.model.layers = 12;
  job.model.width = 768;
  job.model.heads = 12;
  job.model.vocab_size = 50257;
  job.model.context = 1024;
  job.train.sequence_length = 256;
  job.train.global_batch = 16;
  return job;
}

inline WorkerProfile Worker(const std::string& id, int64_t cores, int64_t memory) {
  WorkerProfile worker;
  worker.worker_id = id;
  worker.isa = "avx512_bf16";
  worker.cores = cores;
  worker.memory_bytes = worker.memory_limit_bytes = memory;
  worker.copy_bytes_per_second = 20e9;
  worker.loopback_bytes_per_second = 2e9;
  for (int64_t threads : {1, 2}) {
    for (int64_t m : {64, 256, 1024, 4096}) {
      const double thin = static_cast<double>(m) / static_cast<double>(m + 64);
      worker.gemm.push_back({"bf16", m, 768, 768, threads, 500e9 * thin * threads});
      worker.gemm.push_back({"fp32", m, 768, 768, threads, 250e9 * thin * threads});
    }
  }
  return worker;
}

inline ClusterProfile Cluster(int workers, int64_t cores, int64_t memory) {
  ClusterProfile cluster;
  for (int i = 0; i < workers; ++i) {
    cluster.workers.push_back(Worker("w" + std::to_string(100 + i), cores, memory));
  }
  return cluster;
}

/// With GPUs all joined by NVLink.
inline WorkerProfile GpuWorker(const std::string& id, int gpus, int64_t memory) {
  WorkerProfile worker = Worker(id, 32, kGiB);
  worker.device = "cuda";
  for (int index = 0; index < gpus; ++index) {
    DeviceSpec device;
    device.index = index;
    device.uuid = id + "-" + std::to_string(index);
    device.compute_capability = "9.0";
    device.memory_bytes = device.memory_limit_bytes = memory;
    device.copy_bytes_per_second = 3e12;
    for (int64_t m : {256, 1024, 4096, 8192}) {
      const double thin = static_cast<double>(m) / static_cast<double>(m + 512);
      device.gemm.push_back({"bf16", m, m, m, 1, 700e12 * thin});
    }
    for (int other = 0; other < gpus; ++other) {
      if (other != index) device.links.push_back({other, "nvlink", true, 300e9});
    }
    worker.devices.push_back(device);
  }
  return worker;
}

/// The plan that comes first.
inline Plan Best(const JobSpec& job, const ClusterProfile& cluster) {
  Result<PlanReport> report = PlanJob(job, cluster);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? report->candidates.front().plan : Plan{};
}

}  // namespace weft::planner
