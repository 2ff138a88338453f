// The plan says in what its time goes beyond what the workers measured, and by how much.
#include "coordinator/planner/measured_range.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/planner.h"

namespace weft::planner {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

// Products of 1024 rows, 3 x 256, 256 and 1024 columns, and a padded vocabulary of 1024.
JobSpec Job() {
  JobSpec job;
  job.name = "job";
  job.data.train = {"a.txt"};
  job.model.layers = 4;
  job.model.width = 256;
  job.model.heads = 4;
  job.model.vocab_size = 1024;
  job.model.context = 256;
  job.train.sequence_length = 256;
  job.train.global_batch = 8;
  job.train.precision = "fp32";
  job.resources.ranks = 2;
  job.resources.threads_per_rank = 2;
  job.resources.micro_batch = 4;
  return job;
}

/// That measured products between `least` and `most` on each side.
WorkerProfile Worker(const std::string& id, int64_t cores, int64_t least, int64_t most) {
  WorkerProfile worker;
  worker.worker_id = id;
  worker.isa = "avx2";
  worker.cores = cores;
  worker.memory_bytes = worker.memory_limit_bytes = 16 * kGiB;
  for (const int64_t threads : {1, 2}) {
    worker.gemm.push_back({"fp32", least, least, least, threads, 20e9});
    worker.gemm.push_back({"fp32", most, most, most, threads, 40e9});
  }
  return worker;
}

/// A worker with two GPUs, which have measured nothing.
WorkerProfile GpuWorker() {
  WorkerProfile worker = Worker("g", 8, 128, 1024);
  worker.device = "cuda";
  for (int index = 0; index < 2; ++index) {
    DeviceSpec device;
    device.index = index;
    device.name = "NVIDIA H100 80GB HBM3";
    device.compute_capability = "9.0";
    device.memory_bytes = device.memory_limit_bytes = 80 * kGiB;
    worker.devices.push_back(device);
  }
  return worker;
}

std::string Reason(const JobSpec& job, const ClusterProfile& cluster) {
  const Result<PlanReport> report = PlanJob(job, cluster);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report->candidates.front().reason : "";
}

TEST(OutsideMeasured, IsSilentWithinTwiceOfWhatWasMeasured) {
  EXPECT_THAT(Reason(Job(), {{Worker("w", 4, 128, 1024)}}), Not(HasSubstr("beyond")));
  EXPECT_THAT(Reason(Job(), {{Worker("w", 4, 512, 512)}}), Not(HasSubstr("beyond")));
}

TEST(OutsideMeasured, NamesEachSizeAndHowFarOutItIs) {
  EXPECT_THAT(Reason(Job(), {{Worker("w", 4, 64, 256)}}),
              EndsWith("; beyond what was measured: "
                       "rows of products 1024 (measured: 64 to 256; 4 times the most), "
                       "columns of products 1024 (measured: 64 to 256; 4 times the most), "
                       "inner size of products 1024 (measured: 64 to 256; 4 times the most)"));
  EXPECT_THAT(Reason(Job(), {{Worker("w", 4, 1024, 4096)}}),
              HasSubstr("columns of products 256 (measured: 1024 to 4096; the least is 4 times as "
                        "much)"));
}

TEST(OutsideMeasured, NamesThreadsPrecisionsAndLinks) {
  JobSpec job = Job();
  job.resources.threads_per_rank = 4;
  EXPECT_THAT(Reason(job, {{Worker("w", 8, 128, 1024)}}),
              EndsWith("measured: threads of a rank 4 (measured: 1 to 2; 2 times the most)"));
  job = Job();
  job.train.precision = "bf16";
  EXPECT_THAT(Reason(job, {{Worker("w", 4, 128, 1024)}}),
              EndsWith("measured: products of bf16 (measured: fp32)"));
  // A rank on each of two machines of one kind, which say it once.
  EXPECT_THAT(Reason(Job(), {{Worker("a", 2, 128, 1024), Worker("b", 2, 128, 1024)}}),
              EndsWith("measured: links between machines (measured: within one)"));
  WorkerProfile known = Worker("a", 2, 128, 1024);
  known.network_bytes_per_second = 1e9;
  WorkerProfile alike = known;
  alike.worker_id = "b";
  EXPECT_THAT(Reason(Job(), {{known, alike}}), Not(HasSubstr("between machines")));
}

TEST(OutsideMeasured, OfGpusLooksAtTheirOwnMeasurements) {
  WorkerProfile worker = GpuWorker();
  JobSpec job = Job();
  job.train.precision = "bf16";
  EXPECT_THAT(Reason(job, {{worker}}), EndsWith("measured: products of bf16 (measured: none), "
                                                "links between GPUs (measured: none)"));
  for (DeviceSpec& device : worker.devices) {
    device.gemm.push_back({"bf16", 512, 512, 512, 1, 300e12});
    device.links.push_back({1 - device.index, "nvlink", true, 200e9});
  }
  EXPECT_THAT(Reason(job, {{worker}}), Not(HasSubstr("beyond")));
}

// Sizes were measured of FP8 products, and adapters' products are in bf16.
TEST(OutsideMeasured, OfFp8LooksAtProductsOfWeightsAlone) {
  WorkerProfile worker = GpuWorker();
  for (DeviceSpec& device : worker.devices) {
    device.gemm.push_back({"bf16", 512, 512, 512, 1, 300e12});
    device.gemm.push_back({"fp8", 512, 512, 512, 1, 500e12});
    device.links.push_back({1 - device.index, "nvlink", true, 200e9});
  }
  JobSpec job = Job();
  job.model.peft.method = "lora";
  job.model.peft.rank = 64;
  job.model.peft.target_modules = {"all-linear"};
  job.train.precision = "bf16";
  EXPECT_THAT(Reason(job, {{worker}}), HasSubstr("inner size of products 64 (measured: 512"));
  job.train.precision = "fp8";
  EXPECT_THAT(Reason(job, {{worker}}), Not(HasSubstr("beyond")));
}

}  // namespace
}  // namespace weft::planner
