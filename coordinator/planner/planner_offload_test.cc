#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

TEST(PlanJob, WhatDoesNotFitTheDeviceFitsWithTheOptimizerOnTheHost) {
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.ranks = 1;
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  job.resources.offload_optimizer = "host";
  const Plan roomy = Best(job, cluster);
  EXPECT_EQ(roomy.offload_optimizer, "host");
  EXPECT_EQ(RankCount(roomy.mesh), 1);
  const MemoryBreakdown all = roomy.prediction.memory_per_rank;
  EXPECT_GT(all.optimizer_bytes, 0) << "both tiers count on the worker";
  // Room for half of the state that moves away.
  job.resources.device_memory_bytes =
      TotalBytes(all) - all.runtime_bytes - all.optimizer_bytes - all.gradients_bytes / 2;
  const Plan fits = Best(job, cluster);
  EXPECT_EQ(fits.device_memory_bytes, job.resources.device_memory_bytes);
  job.resources.offload_optimizer = "none";
  const auto refused = PlanJob(job, cluster);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("more than resources.device_memory_bytes"));
  EXPECT_THAT(refused.status().message(), HasSubstr("resources.offload_optimizer host"));
  // A slow link is not hidden.
  job.resources.offload_optimizer = "host";
  job.resources.host_link_bytes_per_second = 10 << 20;
  EXPECT_GT(Best(job, cluster).prediction.time.exposed_communication_seconds,
            10 * fits.prediction.time.exposed_communication_seconds + 0.1);
}

TEST(PlanJob, RanksThatShareTheUpdateHaveLessOnTheHostAndOnTheLink) {
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.ranks = 2;
  job.resources.recompute = "none";
  job.resources.offload_optimizer = "host";
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  MemoryBreakdown all = Best(job, cluster).prediction.memory_per_rank;
  const auto seconds = [&] {
    return Best(job, cluster).prediction.time.exposed_communication_seconds;
  };
  const double fast = seconds();
  job.resources.host_link_bytes_per_second = 10 << 20;
  double slow = seconds();
  EXPECT_GT(slow, fast + 1);
  int64_t values = all.parameters_bytes;
  for (const int64_t stage : {1, 2, 3}) {
    job.resources.zero_stage = stage;
    if (stage > 2) job.resources.offload_parameters = "host";
    const Plan plan = Best(job, cluster);
    EXPECT_EQ(plan.zero_stage, stage);
    EXPECT_EQ(plan.offload_optimizer, "host");
    const MemoryBreakdown& memory = plan.prediction.memory_per_rank;
    EXPECT_LT(memory.optimizer_bytes, all.optimizer_bytes * 6 / 10);
    if (stage > 2) {
      // What comes in each pass is more than what goes up once.
      EXPECT_LT(memory.parameters_bytes, values);
      EXPECT_GT(seconds(), slow);
      continue;
    }
    EXPECT_LT(memory.gradients_bytes, all.gradients_bytes + (stage == 1 ? 1 : 0));
    all.gradients_bytes = memory.gradients_bytes;
    EXPECT_LT(seconds(), slow) << stage;
    slow = seconds();
  }
}

// One rank, so that nothing else is exchanged.
TEST(PlanJob, WeightsAreUploadedOnceMoreAfterAnOuterStep) {
  constexpr int64_t kLink = 10 << 20;
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.ranks = 1;
  job.resources.recompute = "none";
  job.resources.offload_optimizer = "host";
  job.resources.host_link_bytes_per_second = kLink;
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  for (const char* parameters : {"none", "host"}) {
    SCOPED_TRACE(parameters);
    job.resources.offload_parameters = parameters;
    const auto plan_with = [&](int64_t local_steps) {
      job.train.local_steps = local_steps;
      return Best(job, cluster);
    };
    const Plan plain = plan_with(1);
    const DType products = PrecisionOf(plain.precision).products;
    const MemoryMachine machine{ProcessorRates::ProductsOf(cluster.workers.front(), products)};
    // None of the weights that come in every pass are on the device.
    const int64_t weights = UploadedWeightBytes(MemoryInputsOf(job, plain, machine));
    EXPECT_EQ(weights > 0, job.resources.offload_parameters == "none");
    for (const int64_t local_steps : {2, 8}) {
      EXPECT_NEAR(plan_with(local_steps).prediction.time.exposed_communication_seconds -
                      plain.prediction.time.exposed_communication_seconds,
                  static_cast<double>(weights) / kLink / static_cast<double>(local_steps), 1e-9);
    }
  }
}

TEST(PlanJob, RanksThatShareMatricesOrBlocksHaveTheirPartsOnTheHost) {
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  for (const bool pipeline : {false, true}) {
    SCOPED_TRACE(pipeline ? "pipeline" : "tensor");
    JobSpec job = SmallJob();
    ResourceSpec& resources = job.resources;
    resources.micro_batch = 1;
    resources.ranks = 2;
    resources.recompute = "none";
    (pipeline ? resources.pipeline_parallel : resources.tensor_parallel) = 2;
    const MemoryBreakdown plain = Best(job, cluster).prediction.memory_per_rank;
    resources.offload_optimizer = "host";
    const Plan fast = Best(job, cluster);
    const MemoryBreakdown& all = fast.prediction.memory_per_rank;
    EXPECT_EQ(all.optimizer_bytes, plain.optimizer_bytes);
    EXPECT_GT(all.gradients_bytes, plain.gradients_bytes) << "some are on the device meanwhile";
    // The device has room for half of what the optimizer keeps.
    resources.device_memory_bytes =
        TotalBytes(plain) - plain.runtime_bytes - plain.optimizer_bytes / 2;
    EXPECT_EQ(Best(job, cluster).offload_optimizer, "host");
    resources.offload_optimizer = "none";
    EXPECT_FALSE(PlanJob(job, cluster).ok());
    resources.offload_optimizer = "host";
    resources.host_link_bytes_per_second = 10 << 20;
    const double waited = Best(job, cluster).prediction.time.exposed_communication_seconds -
                          fast.prediction.time.exposed_communication_seconds;
    const double once = static_cast<double>(plain.gradients_bytes) / (10 << 20);
    const auto passes = static_cast<double>(fast.accumulation_steps);
    if (pipeline) {
      // Gradients go down and weights come up once.
      EXPECT_GT(waited, once);
      EXPECT_LT(waited, 2.5 * once);
    } else {
      EXPECT_GT(waited, (2 * passes - 1) * once);
    }
    resources.offload_optimizer = "nvme";
    resources.offload_directory = "/disk";
    EXPECT_LT(Best(job, cluster).prediction.memory_per_rank.optimizer_bytes,
              all.optimizer_bytes * 3 / 4);
  }
}

TEST(PlanJob, ActivationsOfAPipelineWaitOnTheHost) {
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.ranks = job.resources.pipeline_parallel = 2;
  job.resources.recompute = "none";
  const Plan plain = Best(job, cluster);
  job.resources.offload_activations = "host";
  job.resources.device_memory_bytes = TotalBytes(plain.prediction.memory_per_rank) -
                                      plain.prediction.memory_per_rank.runtime_bytes -
                                      plain.prediction.memory_per_rank.activations_bytes / 4;
  const Plan fast = Best(job, cluster);
  job.resources.host_link_bytes_per_second = 10 << 20;
  const double waited = Best(job, cluster).prediction.time.exposed_communication_seconds -
                        fast.prediction.time.exposed_communication_seconds;
  EXPECT_GT(waited, 1) << "in every pass";
  job.resources.offload_activations = "none";
  job.resources.host_link_bytes_per_second = 0;
  EXPECT_FALSE(PlanJob(job, cluster).ok());
}

TEST(PlanJob, WeightsOfAPipelineComeInEveryPassOfAMicroBatch) {
  JobSpec job = SmallJob();
  ResourceSpec& resources = job.resources;
  resources.ranks = resources.pipeline_parallel = 2;
  resources.threads_per_rank = 1;
  resources.micro_batch = 1;
  resources.recompute = "none";
  resources.offload_optimizer = "host";
  const ClusterProfile cluster = Cluster(1, 2, 16 * kGiB);
  const auto exposed = [&](int64_t micro_batch, int64_t bytes_per_second) {
    resources.micro_batch = micro_batch;
    resources.host_link_bytes_per_second = bytes_per_second;
    return Best(job, cluster).prediction.time.exposed_communication_seconds;
  };
  // The update's own bytes cross a slow link once a step, weights in both passes of each
  // micro-batch.
  constexpr int64_t kSlow = 10 << 20;
  const double once = exposed(1, kSlow) - exposed(1, 0);
  resources.offload_parameters = "host";
  const double many = exposed(1, kSlow) - exposed(1, 0), few = exposed(4, kSlow) - exposed(4, 0);
  EXPECT_GT(many, 2 * once);
  EXPECT_NEAR(many / few, 4, 1);
  // A device without room for all weights of a stage.
  resources.micro_batch = 1;
  const Plan streamed = Best(job, cluster);
  resources.offload_parameters = "none";
  const Plan resident = Best(job, cluster);
  EXPECT_LT(TotalBytes(streamed.prediction.memory_per_rank),
            TotalBytes(resident.prediction.memory_per_rank));
}

TEST(PlanJob, WeightsOfAPipelineInFilesTakeADiskInEveryPass) {
  JobSpec job = SmallJob();
  ResourceSpec& resources = job.resources;
  resources.ranks = resources.pipeline_parallel = 2;
  resources.micro_batch = 1;
  resources.recompute = "none";
  resources.offload_optimizer = "nvme";
  resources.offload_directory = "/disk";
  const auto plan_of = [&](const std::string& parameters, double disk) {
    resources.offload_parameters = parameters;
    ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
    cluster.workers[0].disk_write_bytes_per_second = disk;
    return Best(job, cluster);
  };
  constexpr double kFast = 1e12, kSlow = 1e8;
  const Plan host = plan_of("host", kFast), file = plan_of("nvme", kFast);
  const MemoryBreakdown &on_host = host.prediction.memory_per_rank,
                        &in_file = file.prediction.memory_per_rank;
  EXPECT_LT(in_file.parameters_bytes, on_host.parameters_bytes);
  EXPECT_LT(in_file.gradients_bytes, on_host.gradients_bytes);
  EXPECT_LT(in_file.optimizer_bytes, on_host.optimizer_bytes * 101 / 100);
  // During the update each pass reads its stage's weights, and gradients are written once.
  const TimeBreakdown fast = file.prediction.time, slow = plan_of("nvme", kSlow).prediction.time;
  const double waited = slow.exposed_communication_seconds - fast.exposed_communication_seconds;
  resources.micro_batch = 4;
  const double fewer = plan_of("nvme", kSlow).prediction.time.exposed_communication_seconds -
                       plan_of("nvme", kFast).prediction.time.exposed_communication_seconds;
  EXPECT_NEAR(waited / fewer, 4, 1);
  EXPECT_GT(slow.optimizer_seconds, plan_of("host", kSlow).prediction.time.optimizer_seconds);
}

TEST(PlanJob, RanksThatShareExpertsReadAndWriteTheMomentsThatTheyUpdate) {
  JobSpec job = SmallJob();
  job.model.family = "llama";
  job.model.experts = 4;
  job.model.experts_per_token = 2;
  ResourceSpec& resources = job.resources;
  resources.ranks = 4;
  resources.expert_parallel = 2;
  resources.zero_stage = 1;
  resources.offload_optimizer = "nvme";
  resources.offload_directory = "/disk";
  ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  cluster.workers[0].disk_write_bytes_per_second = 1e8;
  const OptimizerBytes optimizer =
      OptimizerBytesOf(ShapeOf(job).spec, job, DType::kBF16, 1, 1, resources.expert_parallel);
  const double moments = 4 * static_cast<double>(optimizer.InFileAmong(4, 2));
  EXPECT_NEAR(Best(job, cluster).prediction.time.optimizer_seconds, 2 * moments / (1e8 / 4),
              0.01 * 2 * moments / (1e8 / 4));
}

TEST(PlanAnyMesh, FindsAMeshWhoseRanksHaveTheirPartsOutsideTheirDevices) {
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.offload_optimizer = "host";
  job.resources.ranks = 4;
  job.resources.device_memory_bytes = 56 << 20;
  ASSERT_FALSE(PlanJob(job, cluster).ok()) << "too small for what data-parallel ranks have there";
  const auto any = PlanAnyMesh(job, cluster);
  ASSERT_TRUE(any.ok()) << any.status().message();
  const Plan& best = any->candidates.front().plan;
  EXPECT_EQ(best.offload_optimizer, "host");
  EXPECT_GT(best.mesh.tensor * best.mesh.pipeline, 1);
}

TEST(PlanJob, WeightsInAFileLeaveRoomOnTheHostAndTakeADisk) {
  JobSpec job = SmallJob();
  job.model.layers = 24;
  job.resources.micro_batch = 1;
  job.resources.offload_optimizer = "nvme";
  job.resources.offload_parameters = "host";
  job.resources.offload_directory = "/disk";
  ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  cluster.workers[0].disk_write_bytes_per_second = 4e9;
  job.resources.ranks = 1;
  const Plan host = Best(job, cluster);
  job.resources.ranks = 0;
  job.resources.offload_parameters = "nvme";
  const Plan file = Best(job, cluster);
  EXPECT_EQ(file.offload_parameters, "nvme");
  EXPECT_EQ(RankCount(file.mesh), 1) << "whatever there is room for";
  const MemoryBreakdown &on_host = host.prediction.memory_per_rank,
                        &in_file = file.prediction.memory_per_rank;
  EXPECT_LT(in_file.parameters_bytes, on_host.parameters_bytes / 2);
  EXPECT_LT(in_file.gradients_bytes, on_host.gradients_bytes / 2);
  EXPECT_GE(file.prediction.step_seconds, host.prediction.step_seconds);
  // A tenth of the rate shows in passes and in the update.
  cluster.workers[0].disk_write_bytes_per_second = 4e8;
  const TimeBreakdown fast = file.prediction.time, slow = Best(job, cluster).prediction.time;
  EXPECT_GT(slow.optimizer_seconds, 5 * fast.optimizer_seconds);
  EXPECT_GT(slow.exposed_communication_seconds, fast.exposed_communication_seconds);
}

TEST(PlanJob, ActivationsAndWeightsOnTheHostLeaveRoomOnTheDevice) {
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.offload_optimizer = "host";
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  const auto refused_at = [&](int64_t bytes) {
    job.resources.device_memory_bytes = bytes;
    const auto refused = PlanJob(job, cluster);
    return refused.ok() ? "" : std::string(refused.status().message());
  };
  // The least limit that a plan fits, to a hundredth.
  const auto least = [&] {
    int64_t low = 0, high = 16 * kGiB;
    while (high - low > high / 100) {
      const int64_t middle = (low + high) / 2;
      (refused_at(middle).empty() ? high : low) = middle;
    }
    return high;
  };
  const int64_t optimizer = least();
  EXPECT_THAT(refused_at(optimizer / 2), HasSubstr("resources.offload_parameters host"));
  EXPECT_THAT(refused_at(optimizer / 2), HasSubstr("resources.offload_activations host"));
  job.resources.offload_activations = "host";
  const int64_t activations = least();
  EXPECT_LT(activations, optimizer);
  job.resources.offload_parameters = "host";
  const int64_t parameters = least();
  EXPECT_LT(parameters, activations);
  job.resources.device_memory_bytes = parameters;
  const Plan plan = Best(job, cluster);
  EXPECT_EQ(plan.offload_activations, "host");
  EXPECT_EQ(plan.offload_parameters, "host");
  EXPECT_LT(plan.bucket_bytes, int64_t{25} << 20) << "gradients of a block";
  // A slow link shows: weights come up twice for each micro-batch, activations go and come.
  job.resources.host_link_bytes_per_second = 10 << 20;
  const double slow = Best(job, cluster).prediction.time.exposed_communication_seconds;
  job.resources.offload_activations = "none";
  job.resources.device_memory_bytes = 0;
  const double without = Best(job, cluster).prediction.time.exposed_communication_seconds;
  EXPECT_GT(slow, without + 1);
  EXPECT_GT(without, plan.prediction.time.exposed_communication_seconds + 1);
}

TEST(PlanJob, AnOptimalPlanSendsWhatTheLinkHidesAndRecomputesTheRest) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 8;
  job.resources.recompute = "optimal";
  const ClusterProfile cluster = Cluster(1, 4, 64 * kGiB);
  const Plan kept = Best(job, cluster);
  const MemoryBreakdown memory = kept.prediction.memory_per_rank;
  // Room for a half of the activations.
  const int64_t limit = TotalBytes(memory) - memory.runtime_bytes - memory.activations_bytes / 2;
  job.resources.device_memory_bytes = limit;
  const Plan pure = Best(job, cluster);
  EXPECT_GT(pure.prediction.time.recompute_seconds, 0);
  job.resources.offload_activations = "host";
  job.resources.recompute = "none";
  double before = 0;
  for (const int64_t link : {int64_t{1} << 20, int64_t{100} << 20, int64_t{1} << 30, kGiB * 100}) {
    SCOPED_TRACE(link);
    job.resources.host_link_bytes_per_second = link;
    job.resources.recompute = "none";
    const Plan all = Best(job, cluster);
    job.resources.recompute = "optimal";
    const Plan joint = Best(job, cluster);
    auto schedule = ParseRemat(joint.recompute_schedule, 12);
    ASSERT_TRUE(schedule.ok()) << schedule.status().ToString();
    // Memory and time are cut into steps.
    EXPECT_LE(joint.prediction.step_seconds, 1.02 * pure.prediction.step_seconds);
    EXPECT_LE(joint.prediction.step_seconds, 1.02 * all.prediction.step_seconds);
    if (before > 0) {
      EXPECT_LE(joint.prediction.step_seconds, 1.02 * before);
    }
    before = joint.prediction.step_seconds;
    EXPECT_TRUE(link > int64_t{1} << 20 || !Transfers(*schedule));
    if (link == kGiB * 100) {
      EXPECT_TRUE(Transfers(*schedule));
      EXPECT_EQ(joint.prediction.time.recompute_seconds, 0);
      EXPECT_EQ(joint.prediction.time.exposed_communication_seconds, 0);
    }
  }
  // Where both tiers count, what is sent makes no room.
  job.resources.device_memory_bytes = 0;
  job.resources.memory_per_rank_bytes = TotalBytes(memory) - memory.activations_bytes / 2;
  const Plan counted = Best(job, cluster);
  EXPECT_LE(TotalBytes(counted.prediction.memory_per_rank), job.resources.memory_per_rank_bytes);
}

TEST(PlanJob, WhatDoesNotFitAGpuFitsWithItsStateOnTheHost) {
  JobSpec job = Gpt2Job();
  job.resources.device = "cuda";
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  WorkerProfile worker = GpuWorker("g", 1, 40 * kGiB);
  worker.cores = 32;
  worker.copy_bytes_per_second = 400e9;  // which eight cores do not draw
  worker.memory_bytes = worker.memory_limit_bytes = 64 * kGiB;
  const auto cluster = [&] { return ClusterProfile{{worker}}; };
  const auto refusal = [&] {
    const auto report = PlanJob(job, cluster());
    return report.ok() ? "" : std::string(report.status().message());
  };
  const Plan alone = Best(job, cluster());
  const MemoryBreakdown all = alone.prediction.memory_per_rank;
  EXPECT_LE(alone.threads_per_rank, 8);
  // No room for the moments.
  worker.devices[0].memory_limit_bytes = TotalBytes(all) - all.optimizer_bytes / 2;
  EXPECT_THAT(refusal(), HasSubstr("resources.offload_optimizer host"));
  job.resources.offload_optimizer = "host";
  const Plan host = Best(job, cluster());
  EXPECT_EQ(host.device, "cuda");
  EXPECT_EQ(host.offload_optimizer, "host");
  EXPECT_EQ(host.threads_per_rank, 32) << "the update is theirs";
  EXPECT_EQ(RankCount(host.mesh), 1);
  EXPECT_GT(host.prediction.time.optimizer_seconds, 4 * alone.prediction.time.optimizer_seconds);
  // Both tiers count, the host's on the worker.
  EXPECT_GT(TotalBytes(host.prediction.memory_per_rank), worker.devices[0].memory_limit_bytes);
  EXPECT_LE(BytesOfRank(host, 0), worker.devices[0].memory_limit_bytes);
  worker.memory_limit_bytes = kGiB;
  EXPECT_THAT(refusal(), HasSubstr("of its worker's memory"));
  worker.memory_limit_bytes = 64 * kGiB;
  // A slow link is not hidden.
  const double fast = host.prediction.time.exposed_communication_seconds;
  worker.devices[0].upload_bytes_per_second = worker.devices[0].download_bytes_per_second = 1e9;
  const double slow = Best(job, cluster()).prediction.time.exposed_communication_seconds;
  EXPECT_GT(slow, fast + 0.1);
  // Weights that come block by block leave room for more.
  worker.devices[0].memory_limit_bytes = BytesOfRank(host, 0) / 10 * 9;
  EXPECT_THAT(refusal(), HasSubstr("resources.offload_parameters host"));
  EXPECT_THAT(refusal(), HasSubstr("resources.offload_activations host"));
  job.resources.offload_parameters = job.resources.offload_activations = "host";
  const Plan everything = Best(job, cluster());
  EXPECT_GT(everything.prediction.time.exposed_communication_seconds, slow);
}

// Its activations alone or all, of as many ranks as there are GPUs, except what GPUs lack.
TEST(PlanJob, OffloadIsOfGpusWhereTheyHaveTheTiers) {
  JobSpec job = Gpt2Job();
  job.resources.offload_activations = "host";
  WorkerProfile worker = GpuWorker("g", 4, 40 * kGiB);
  worker.memory_bytes = worker.memory_limit_bytes = 64 * kGiB;
  const ClusterProfile cluster{{worker}};
  EXPECT_EQ(Best(job, cluster).device, "cuda");
  EXPECT_EQ(RankCount(Best(job, cluster).mesh), 4);
  job.resources.ranks = 2;
  EXPECT_EQ(Best(job, cluster).device, "cuda");
  EXPECT_EQ(RankCount(Best(job, cluster).mesh), 2);
  job.resources.host_link_bytes_per_second = 1 << 30;
  EXPECT_EQ(Best(job, cluster).device, "cpu") << "which the link is emulated on";
  job.resources.host_link_bytes_per_second = 0;
  job.train.local_steps = 8;
  EXPECT_EQ(Best(job, cluster).device, "cuda");
  job.resources.offload_optimizer = "host";
  EXPECT_EQ(Best(job, cluster).device, "cpu") << "whose hosts sum what was learned";
}

TEST(PlanJob, GpusOfAMachineShareItsCoresMemoryAndUpdate) {
  JobSpec job = Gpt2Job();
  job.resources.device = "cuda";
  job.resources.ranks = 4;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.offload_optimizer = "host";
  WorkerProfile worker = GpuWorker("g", 4, 40 * kGiB);
  worker.cores = 32;
  worker.copy_bytes_per_second = 100e9;
  worker.memory_bytes = worker.memory_limit_bytes = 256 * kGiB;
  const auto plan = [&] { return Best(job, ClusterProfile{{worker}}); };
  const auto on_host = [](const Plan& of) {
    return TotalBytes(of.prediction.memory_per_rank) - BytesOfRank(of, 0);
  };
  const Plan whole = plan();
  EXPECT_EQ(RankCount(whole.mesh), 4);
  EXPECT_EQ(whole.threads_per_rank, 8) << "a GPU's share";
  int64_t held = on_host(whole);
  for (const int64_t stage : {1, 2, 3}) {
    job.resources.zero_stage = stage;
    if (stage > 2) job.resources.offload_parameters = "host";
    const Plan shared = plan();
    EXPECT_LT(shared.prediction.time.optimizer_seconds,
              whole.prediction.time.optimizer_seconds / 2);
    EXPECT_LT(on_host(shared), held) << stage;
    held = on_host(shared);
  }
  // Each has a link of its own.
  for (const int64_t stage : {0, 1, 2, 3}) {
    job.resources.zero_stage = stage;
    job.resources.offload_parameters = stage > 2 ? "host" : "none";
    const auto exposed = [&] { return plan().prediction.time.exposed_communication_seconds; };
    worker.devices = GpuWorker("g", 4, 40 * kGiB).devices;
    const double fast = exposed();
    for (DeviceSpec& device : worker.devices) {
      device.upload_bytes_per_second = device.download_bytes_per_second = 1e9;
    }
    EXPECT_GT(exposed(), fast + 0.02) << stage;
  }
  // The worker has room for three of them.
  worker.memory_limit_bytes = 4 * held - held / 2;
  EXPECT_THAT(std::string(PlanJob(job, ClusterProfile{{worker}}).status().message()),
              HasSubstr("leaves no room for 4 ranks"));
}

}  // namespace
}  // namespace weft::planner
