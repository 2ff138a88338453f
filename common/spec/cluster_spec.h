#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// One measured matrix product.
struct GemmRate {
  std::string precision = "fp32";
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t threads = 1;
  double flops_per_second = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("precision", "Type of the inputs.").OneOf({"fp32", "bf16"}), self.precision);
    visit(Field("m", "Rows of the result."), self.m);
    visit(Field("n", "Columns of the result."), self.n);
    visit(Field("k", "Inner size."), self.k);
    visit(Field("threads", "Threads used."), self.threads);
    visit(Field("flops_per_second", "2 m n k over the time.").Unit("FLOP/s"),
          self.flops_per_second);
  }
};

/// A machine as its worker measured it.
struct WorkerProfile {
  std::string worker_id;
  std::string host;
  std::string device = "cpu";
  std::string cpu_model;
  std::string isa;
  int64_t cores = 1;
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;
  std::vector<GemmRate> gemm;
  double copy_bytes_per_second = 0;
  double loopback_bytes_per_second = 0;
  double disk_write_bytes_per_second = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("worker_id", "Stable name of the worker."), self.worker_id);
    visit(Field("host", "Address other ranks can reach."), self.host);
    visit(Field("device", "What the ranks compute on.").OneOf({"cpu", "cuda"}), self.device);
    visit(Field("cpu_model", "Model name of the processor."), self.cpu_model);
    visit(Field("isa", "Widest instruction set in use: baseline, avx2, avx512, avx512_bf16, amx."),
          self.isa);
    visit(Field("cores", "Cores offered to ranks.").Range(1, 65536), self.cores);
    visit(Field("memory_bytes", "Physical memory.").Unit("bytes"), self.memory_bytes);
    visit(Field("memory_limit_bytes", "Memory offered to ranks, all together.").Unit("bytes"),
          self.memory_limit_bytes);
    visit(Field("gemm", "Measured matrix products."), self.gemm);
    visit(Field("copy_bytes_per_second", "Memory copy of all cores, read plus write.")
              .Unit("bytes/s"),
          self.copy_bytes_per_second);
    visit(Field("loopback_bytes_per_second", "TCP over loopback, one stream.").Unit("bytes/s"),
          self.loopback_bytes_per_second);
    visit(
        Field("disk_write_bytes_per_second", "Synced writes to the run directory.").Unit("bytes/s"),
        self.disk_write_bytes_per_second);
  }
};

/// What the planner may place ranks on.
struct ClusterProfile {
  std::vector<WorkerProfile> workers;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("workers", "The machines."), self.workers);
  }
};

}  // namespace weft
