#pragma once

#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"

namespace weft::planner {

inline constexpr int64_t kGiB = int64_t{1} << 30;

/// GPT-2 of 124M on sequences of 256.
inline JobSpec SmallGpt2() {
  JobSpec job;
  job.name = "small";
  job.data.train = {"a.txt"};
  job.model.layers = 12;
  job.model.width = 768;
  job.model.heads = 12;
  job.model.vocab_size = 50257;
  job.model.context = 1024;
  job.train.sequence_length = 256;
  job.train.global_batch = 16;
  job.train.steps = 1000;
  return job;
}

/// A machine whose rates all are measured; `speed` multiplies those of its products.
inline WorkerProfile CpuMachine(const std::string& id, int64_t cores, int64_t memory,
                                double speed = 1) {
  WorkerProfile worker;
  worker.worker_id = id;
  worker.isa = "avx512_bf16";
  worker.cores = cores;
  worker.memory_bytes = worker.memory_limit_bytes = memory;
  worker.copy_bytes_per_second = 20e9;
  worker.loopback_bytes_per_second = 1e9;
  for (const int64_t m : {64, 512, 4096}) {
    worker.gemm.push_back({"bf16", m, 768, 768, 1, speed * 200e9});
    worker.gemm.push_back({"fp32", m, 768, 768, 1, speed * 100e9});
  }
  return worker;
}

/// A machine with GPUs all joined by NVLink, whose products were not measured.
inline WorkerProfile GpuMachine(const std::string& id, int gpus, int64_t memory,
                                const std::string& capability = "9.0") {
  WorkerProfile worker;
  worker.worker_id = id;
  worker.device = "cuda";
  worker.cores = 64;
  worker.memory_bytes = worker.memory_limit_bytes = 512 * kGiB;
  worker.loopback_bytes_per_second = 5e9;
  for (int index = 0; index < gpus; ++index) {
    DeviceSpec device;
    device.index = index;
    device.uuid = id + "-" + std::to_string(index);
    device.compute_capability = capability;
    device.memory_bytes = device.memory_limit_bytes = memory;
    for (int other = 0; other < gpus; ++other) {
      if (other != index) device.links.push_back({other, "nvlink", true, 300e9});
    }
    worker.devices.push_back(device);
  }
  return worker;
}

}  // namespace weft::planner
