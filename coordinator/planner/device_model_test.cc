#include "coordinator/planner/device_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "coordinator/planner/cluster/product_rates.h"
#include "coordinator/planner/cluster/step_model.h"
#include "coordinator/planner/planner.h"

namespace weft::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

DeviceSpec Gpu(const std::string& name, const std::string& capability, int64_t gib) {
  DeviceSpec device;
  device.name = name;
  device.compute_capability = capability;
  device.memory_bytes = device.memory_limit_bytes = gib * kGiB;
  return device;
}

ClusterProfile OneGpu(const DeviceSpec& device) {
  WorkerProfile worker;
  worker.worker_id = "g";
  worker.device = "cuda";
  worker.cores = 16;
  worker.memory_bytes = worker.memory_limit_bytes = 64 * kGiB;
  worker.devices = {device};
  return {{worker}};
}

TEST(AcceleratorOf, KnowsNamesAsTheDriverGivesThem) {
  const std::pair<DeviceSpec, const char*> known[] = {
      {Gpu("NVIDIA H100 80GB HBM3", "9.0", 80), "H100-SXM"},
      {Gpu("NVIDIA H100 PCIe", "9.0", 80), "H100-PCIe"},
      {Gpu("NVIDIA H200", "9.0", 141), "H200-SXM"},
      {Gpu("NVIDIA A100-SXM4-40GB", "8.0", 40), "A100-SXM-40GB"},
      {Gpu("NVIDIA A100 80GB PCIe", "8.0", 80), "A100-SXM-80GB"},
      {Gpu("NVIDIA A10", "8.6", 24), "A10"},
      {Gpu("NVIDIA GeForce RTX 4090", "8.9", 24), "RTX-4090"},
      {Gpu("NVIDIA B200", "10.0", 180), "B200-SXM"},
      {Gpu("NVIDIA GB200", "10.0", 186), "GB200-NVL72"},
      {Gpu("NVIDIA A6000", "8.6", 48), "RTX-3090"},
      {Gpu("", "9.0", 80), "H100-SXM"},
      {Gpu("NVIDIA C300", "13.0", 300), "B200-SXM"},
  };
  for (const auto& [device, name] : known) EXPECT_EQ(AcceleratorOf(device).name, name);
  const ProductFormat* fp8 = FindFormat("fp8");
  ASSERT_NE(fp8, nullptr);
  EXPECT_TRUE(Multiplies(Gpu("", "8.9", 1), *fp8));
  EXPECT_TRUE(Multiplies(Gpu("", "12.0", 1), *fp8));
  EXPECT_FALSE(Multiplies(Gpu("", "8.6", 1), *fp8));
  EXPECT_FALSE(Multiplies(Gpu("", "6.1", 1), *fp8));
  EXPECT_FALSE(Multiplies(Gpu("", "", 1), *fp8));
}

TEST(DeviceModel, FollowsTheStepModelAndWhatWasMeasured) {
  DeviceSpec device = Gpu("NVIDIA H100 80GB HBM3", "9.0", 80);
  const AcceleratorSpec& h100 = AcceleratorOf(device);
  const DeviceModel tables(device);
  const auto modelled = [&](const char* precision, double m, double n, double k) {
    return ProductSeconds(h100, tables.stack(), precision, m, n, k);
  };
  for (const char* precision : {"fp32", "bf16", "fp8"}) {
    EXPECT_DOUBLE_EQ(tables.ProductSeconds(precision, 4096, 2048, 1024),
                     modelled(precision, 4096, 2048, 1024));
  }
  EXPECT_EQ(tables.Source(), "the tables for H100-SXM");

  // Small products are slower than modelled, large ones as fast.
  const double small = modelled("bf16", 256, 256, 256);
  device.gemm = {
      {"bf16", 256, 256, 256, 1, 2.0 * 256 * 256 * 256 / (3 * small)},
      {"bf16", 8192, 8192, 8192, 1, 2.0 * 8192 * 8192 * 8192 / modelled("bf16", 8192, 8192, 8192)}};
  const DeviceModel measured(device);
  EXPECT_NEAR(measured.ProductSeconds("bf16", 256, 256, 256) / (3 * small), 1, 0.01);
  EXPECT_NEAR(
      measured.ProductSeconds("bf16", 8192, 8192, 8192) / modelled("bf16", 8192, 8192, 8192), 1,
      0.01);
  const double between =
      measured.ProductSeconds("bf16", 1024, 1024, 1024) / modelled("bf16", 1024, 1024, 1024);
  EXPECT_GT(between, 1.2);
  EXPECT_LT(between, 2.8);
  // FP8 has the factors of bf16, f32 has none.
  EXPECT_NEAR(measured.ProductSeconds("fp8", 256, 256, 256) / modelled("fp8", 256, 256, 256), 3,
              0.05);
  EXPECT_DOUBLE_EQ(measured.ProductSeconds("fp32", 256, 256, 256), modelled("fp32", 256, 256, 256));
  EXPECT_THAT(measured.Source(), HasSubstr("what the worker measured"));
}

JobSpec Llama(const std::string& precision) {
  JobSpec job;
  job.name = "llama";
  job.data.train = {"a.txt"};
  job.model.family = "llama";
  job.model.layers = 16;
  job.model.width = 2048;
  job.model.heads = 16;
  job.model.mlp_width = 5632;
  job.model.vocab_size = 32000;
  job.model.untied_classifier = true;
  job.model.context = 2048;
  job.train.global_batch = 16;
  job.train.precision = precision;
  job.resources.micro_batch = 4;
  job.resources.recompute = "none";
  return job;
}

double PlannedSeconds(const JobSpec& job, const DeviceSpec& device) {
  const Result<PlanReport> report = PlanJob(job, OneGpu(device));
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report->candidates.front().plan.prediction.step_seconds : 0;
}

// Two models of the same step: one counts the products and bytes of this engine, the other those of
// any decoder.
TEST(PlanJob, OnAGpuComesNearTheClosedFormOfTheClusterPlanner) {
  for (const char* name : {"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"}) {
    const DeviceSpec device = Gpu(name, name[7] == 'H' ? "9.0" : "8.0", 79);
    for (const char* precision : {"bf16", "fp8"}) {
      if (precision == std::string("fp8") && !Multiplies(device, *FindFormat(precision))) continue;
      const JobSpec job = Llama(precision);
      const ModelSpec& model = job.model;
      const ClusterRun run{.model = {model.layers, model.width, model.heads, KvHeads(model),
                                     model.mlp_width, true, model.vocab_size, model.context},
                           .micro_batch = 4,
                           .global_batch = 16,
                           .precision = precision};
      const auto closed = PredictStep(AcceleratorOf(device), *FindStack("weft"), run);
      ASSERT_TRUE(closed.ok()) << closed.status().message();
      EXPECT_NEAR(PlannedSeconds(job, device) / closed->Seconds(), 1, 0.15)
          << name << " " << precision;
    }
  }
}

// By the machine's own rates: two tensor-parallel GPUs.
TEST(PlanJob, OnGpusRanksThatShareMatricesPayForTheirSums) {
  const char* name = "NVIDIA H100 80GB HBM3";
  const AcceleratorSpec& accelerator = AcceleratorOf(Gpu(name, "9.0", 79));
  const SoftwareStack stack = *FindStack("weft");
  JobSpec job = Llama("bf16");
  job.resources.ranks = job.resources.tensor_parallel = 2;
  const auto plan = [&](double link) {
    ClusterProfile cluster = OneGpu(Gpu(name, "9.0", 79));
    std::vector<DeviceSpec>& devices = cluster.workers.front().devices;
    devices.push_back(devices.front());
    for (int64_t index = 0; index < 2; ++index) {
      devices[index].index = index;
      devices[index].links = {{1 - index, "nvlink", true, link}};
    }
    const Result<PlanReport> report = PlanJob(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->candidates.front().plan : Plan{};
  };
  const double link = accelerator.link_bytes_per_second * stack.link_share;
  const Plan fast = plan(link), slow = plan(link / 10);
  const ClusterRun run{
      .model = {job.model.layers, job.model.width, job.model.heads, KvHeads(job.model),
                job.model.mlp_width, true, job.model.vocab_size, job.model.context},
      .tensor = 2,
      .micro_batch = 4,
      .global_batch = 16,
      .precision = "bf16"};
  const auto closed = PredictStep(accelerator, stack, run);
  ASSERT_TRUE(closed.ok()) << closed.status().message();
  EXPECT_NEAR(fast.prediction.step_seconds / closed->Seconds(), 1, 0.15);
  // The closed form leaves out the sums of embedding and classifier, two to four a block, and the
  // statistics of the softmax.
  const double sums = closed->tensor_communication * (4 * 16 + 2) / (4 * 16);
  const auto exposed = [](const Plan& of) {
    return of.prediction.time.exposed_communication_seconds;
  };
  EXPECT_GT(exposed(fast), sums);
  EXPECT_NEAR(exposed(fast) / sums, 1, 0.02);
  EXPECT_GT(exposed(slow), 8 * exposed(fast));

  // Frozen blocks below all trained ones have no backward pass.
  job.model.freeze = {"*embed_tokens*", "*.layers.0.*", "*.layers.1.*", "*.layers.2.*",
                      "*.layers.3.*"};
  EXPECT_NEAR(exposed(plan(link)) / exposed(fast), (4.0 * 16 + 2 - 2 * 4) / (4 * 16 + 2), 0.01);
}

TEST(PlanJob, OnGpusEveryPassReducesGradientsThatZeroShards) {
  ClusterProfile cluster = OneGpu(Gpu("NVIDIA H100 80GB HBM3", "9.0", 79));
  std::vector<DeviceSpec>& devices = cluster.workers.front().devices;
  devices.push_back(devices.front());
  for (int64_t index = 0; index < 2; ++index) {
    devices[static_cast<size_t>(index)].index = index;
    devices[static_cast<size_t>(index)].links = {{1 - index, "nvlink", true, 1e9}};
  }
  const auto exposed = [&](int64_t zero_stage, int64_t micro_batch) {
    JobSpec job = Llama("bf16");
    job.resources.ranks = 2;
    job.resources.zero_stage = zero_stage;
    job.resources.micro_batch = micro_batch;
    const Result<PlanReport> report = PlanJob(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok()
               ? report->candidates.front().plan.prediction.time.exposed_communication_seconds
               : 0;
  };
  // 8 sequences a rank in one pass, or in four.
  EXPECT_NEAR(exposed(2, 8), exposed(1, 8), 1e-9);
  EXPECT_NEAR(exposed(1, 2) / exposed(1, 8), 1, 0.3);
  EXPECT_GT(exposed(2, 2), 2 * exposed(1, 2));
}

TEST(PlanJob, PricesFp8AsFp8AndRefusesItWhereItIsNot) {
  const DeviceSpec h100 = Gpu("NVIDIA H100 80GB HBM3", "9.0", 79);
  const double gain = PlannedSeconds(Llama("bf16"), h100) / PlannedSeconds(Llama("fp8"), h100);
  EXPECT_GT(gain, 1.1);
  EXPECT_LT(gain, 1.7) << "attention, classifier, norms and casts stay";
  // Blocks that stay bf16 cost what they cost in bf16.
  JobSpec half = Llama("fp8");
  half.train.fp8.bf16_first_blocks = 8;
  EXPECT_GT(PlannedSeconds(half, h100), 1.03 * PlannedSeconds(Llama("fp8"), h100));
  // Experts with as many rows as a dense model has gain as much.
  JobSpec experts = Llama("bf16");
  experts.model.layers = 4;
  experts.model.experts = experts.model.experts_per_token = 2;
  const double in_bf16 = PlannedSeconds(experts, h100);
  experts.train.precision = "fp8";
  EXPECT_NEAR(in_bf16 / PlannedSeconds(experts, h100), gain, 0.2);
  // The casts of a small model take what the products save.
  JobSpec small = Llama("bf16");
  small.model.width = 512;
  small.model.heads = 8;
  small.model.mlp_width = 1408;
  const double bf16 = PlannedSeconds(small, h100);
  small.train.precision = "fp8";
  EXPECT_GT(PlannedSeconds(small, h100), 0.98 * bf16);

  const Status refused =
      PlanJob(Llama("fp8"), OneGpu(Gpu("NVIDIA A100-SXM4-80GB", "8.0", 79))).status();
  EXPECT_EQ(refused.code(), StatusCode::kExhausted);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("GPU 0 of g: it has no FP8 products (compute capability 8.0"),
                    HasSubstr("train.precision: bf16")));
  EXPECT_GT(PlannedSeconds(Llama("bf16"), Gpu("NVIDIA A100-SXM4-80GB", "8.0", 79)), 0);
}

TEST(PlanJob, MeshesGainByFp8AsOneGpuDoes) {
  const DeviceSpec h100 = Gpu("NVIDIA H100 80GB HBM3", "9.0", 79);
  ClusterProfile cluster = OneGpu(h100);
  std::vector<DeviceSpec>& devices = cluster.workers.front().devices;
  devices.push_back(h100);
  for (int64_t index = 0; index < 2; ++index) {
    devices[static_cast<size_t>(index)].index = index;
    devices[static_cast<size_t>(index)].links = {{1 - index, "nvlink", true, 3e11}};
  }
  const auto seconds = [&](const ResourceSpec& mesh, const std::string& precision,
                           int64_t bf16_first_blocks = 0) {
    JobSpec job = Llama(precision);
    job.resources = mesh;
    job.resources.ranks = 2;
    job.train.fp8.bf16_first_blocks = bf16_first_blocks;
    const Result<PlanReport> report = PlanJob(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->candidates.front().plan.prediction.step_seconds : 1;
  };
  const double gain = PlannedSeconds(Llama("bf16"), h100) / PlannedSeconds(Llama("fp8"), h100);
  std::vector<ResourceSpec> meshes(3, Llama("bf16").resources);
  meshes[0].pipeline_parallel = 2;
  meshes[1].context_parallel = 2;
  meshes[2].tensor_parallel = 2;
  for (const ResourceSpec& mesh : meshes) {
    const double own = seconds(mesh, "bf16") / seconds(mesh, "fp8");
    EXPECT_GT(own, 1.1);
    EXPECT_LT(own, gain + 0.1);
    EXPECT_GT(seconds(mesh, "fp8", 8), 1.03 * seconds(mesh, "fp8"));
  }
}

TEST(PlanJob, OnAGpuSaysWhereItsTimesComeFrom) {
  const auto report = PlanJob(Llama("bf16"), OneGpu(Gpu("NVIDIA H100 80GB HBM3", "9.0", 79)));
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->candidates.front().reason, HasSubstr("times by the tables for H100-SXM"));
}

}  // namespace
}  // namespace weft::planner
