#include "coordinator/planner/planner.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_counts.h"
#include "common/model/pipeline_shape.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/rate_model.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

JobSpec SmallJob() {
  JobSpec job;
  job.name = "small";
  job.data.train = {"a.txt"};
  job.train.global_batch = 24;
  return job;
}

JobSpec Gpt2Job() {
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

WorkerProfile Worker(const std::string& id, int64_t cores, int64_t memory) {
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

ClusterProfile Cluster(int workers, int64_t cores, int64_t memory) {
  ClusterProfile cluster;
  for (int i = 0; i < workers; ++i) {
    cluster.workers.push_back(Worker("w" + std::to_string(100 + i), cores, memory));
  }
  return cluster;
}

/// With GPUs all joined by NVLink.
WorkerProfile GpuWorker(const std::string& id, int gpus, int64_t memory) {
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

Plan Best(const JobSpec& job, const ClusterProfile& cluster) {
  Result<PlanReport> report = PlanJob(job, cluster);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? report->candidates.front().plan : Plan{};
}

/// What must hold of every plan that is said to fit.
void CheckFits(const JobSpec& job, const ClusterProfile& cluster, const Plan& plan) {
  const int64_t ranks = RankCount(plan.mesh);
  EXPECT_EQ(ranks * plan.micro_batch * plan.accumulation_steps, job.train.global_batch);
  EXPECT_EQ(static_cast<int64_t>(plan.rank_workers.size()), ranks);
  EXPECT_EQ(static_cast<int64_t>(plan.block_memory_policy.size()), job.model.layers);
  std::map<std::string, int64_t> ranks_on;
  for (const std::string& worker : plan.rank_workers) ++ranks_on[worker];
  const int64_t bytes = TotalBytes(plan.prediction.memory_per_rank);
  for (const WorkerProfile& worker : cluster.workers) {
    EXPECT_LE(ranks_on[worker.worker_id] * bytes, worker.memory_limit_bytes);
    EXPECT_LE(ranks_on[worker.worker_id] * plan.threads_per_rank, worker.cores);
    ranks_on.erase(worker.worker_id);
  }
  EXPECT_TRUE(ranks_on.empty()) << "a rank on no worker of the cluster";
  EXPECT_GT(plan.prediction.step_seconds, 0);
  EXPECT_EQ(plan.prediction.step_seconds, StepSeconds(plan.prediction.time));
}

TEST(PlanJob, EveryCandidateThatFitsKeepsAllLimits) {
  for (int workers : {1, 3}) {
    for (int64_t cores : {1, 2, 6}) {
      for (double gib : {0.7, 1.0, 2.0, 8.0, 64.0}) {
        for (const JobSpec& job : {SmallJob(), Gpt2Job()}) {
          ClusterProfile cluster =
              Cluster(workers, cores, static_cast<int64_t>(gib * static_cast<double>(kGiB)));
          Result<PlanReport> report = PlanJob(job, cluster);
          if (!report.ok()) {
            EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
            continue;
          }
          bool misfits_began = false;
          double previous = 0;
          for (const PlanCandidate& candidate : report->candidates) {
            EXPECT_FALSE(candidate.reason.empty());
            misfits_began = misfits_began || !candidate.feasible;
            EXPECT_EQ(candidate.feasible, !misfits_began);
            if (!candidate.feasible) continue;
            CheckFits(job, cluster, candidate.plan);
            EXPECT_GE(candidate.plan.prediction.step_seconds, previous);
            previous = candidate.plan.prediction.step_seconds;
          }
          EXPECT_TRUE(report->candidates[0].chosen && report->candidates[0].feasible);
        }
      }
    }
  }
}

TEST(PlanJob, MoreMemoryIsNeverSlower) {
  for (int workers : {1, 2}) {
    double previous = 1e30;
    for (double gib = 2.0; gib < 20; gib *= 1.15) {
      Result<PlanReport> report = PlanJob(
          Gpt2Job(), Cluster(workers, 2, static_cast<int64_t>(gib * static_cast<double>(kGiB))));
      if (!report.ok()) {
        EXPECT_EQ(previous, 1e30) << "fitted with less memory";
        continue;
      }
      const double step = report->candidates[0].plan.prediction.step_seconds;
      EXPECT_LE(step, previous) << gib;
      previous = step;
    }
    EXPECT_LT(previous, 1e30);
  }
}

TEST(PlanJob, MoreCoresOrWorkersAreNeverSlower) {
  double previous = 1e30;
  for (int64_t cores : {1, 2, 3, 4, 6, 8, 16, 32}) {
    const double step = Best(Gpt2Job(), Cluster(1, cores, 64 * kGiB)).prediction.step_seconds;
    EXPECT_LE(step, previous) << cores;
    previous = step;
  }
  previous = 1e30;
  for (int workers : {1, 2, 3, 4, 8}) {
    const double step = Best(Gpt2Job(), Cluster(workers, 2, 64 * kGiB)).prediction.step_seconds;
    EXPECT_LE(step, previous) << workers;
    previous = step;
  }
}

TEST(PlanJob, RecomputesAsFewBlocksAsMemoryAllows) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  const Plan all_kept = Best(job, ample);
  EXPECT_EQ(all_kept.block_memory_policy, std::vector<std::string>(12, "keep"));

  job.resources.recompute = "block";
  const Plan all_blocks = Best(job, ample);
  EXPECT_EQ(all_blocks.block_memory_policy, std::vector<std::string>(12, "recompute"));

  job.resources.recompute = "auto";
  job.resources.memory_per_rank_bytes =
      TotalBytes(all_kept.prediction.memory_per_rank) - 300 * (1 << 20);
  const Plan some = Best(job, ample);
  const auto blocks = [&](const char* policy) {
    return std::count(some.block_memory_policy.begin(), some.block_memory_policy.end(), policy);
  };
  // Of 16 x 256 tokens a block keeps 73 MiB, of which the inside of attention is 24, and all but
  // its input 67.
  const int64_t freed = 67 * blocks("recompute") + 24 * blocks("attention");
  EXPECT_GE(freed, 290);
  EXPECT_LE(freed, 400);
  EXPECT_EQ(some.block_memory_policy.front(), "recompute");
  // Attention of many blocks takes less time than all of a few.
  EXPECT_GT(blocks("attention"), 0);
  EXPECT_GT(some.prediction.time.recompute_seconds, 0);
  EXPECT_LT(some.prediction.time.recompute_seconds,
            5.0 / 12 * all_blocks.prediction.time.recompute_seconds);

  job.resources.recompute = "none";
  EXPECT_EQ(PlanJob(job, ample).status().code(), StatusCode::kExhausted);
}

TEST(PlanJob, ObeysEachWayOfRecomputing) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  job.resources.recompute = "attention";
  const Plan attention = Best(job, ample);
  EXPECT_EQ(attention.block_memory_policy, std::vector<std::string>(12, "attention"));
  job.resources.recompute = "block";
  job.resources.memory_per_rank_bytes = 0;
  const Plan block = Best(job, ample);
  job.resources.recompute_segment = 3;
  const Plan segments = Best(job, ample);
  EXPECT_EQ(segments.recompute_segment, 3);
  EXPECT_EQ(segments.block_memory_policy, block.block_memory_policy);
  const auto activations = [](const Plan& plan) {
    return plan.prediction.memory_per_rank.activations_bytes;
  };
  EXPECT_GT(attention.prediction.time.recompute_seconds, 0);
  EXPECT_LT(attention.prediction.time.recompute_seconds,
            block.prediction.time.recompute_seconds / 2);
  EXPECT_GT(activations(attention), activations(block));
}

TEST(PlanJob, AnOptimalScheduleFitsAndIsNoSlowerThanTheChoiceOfAuto) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  const Plan kept = Best(job, ample);
  const int64_t all = TotalBytes(kept.prediction.memory_per_rank);
  job.resources.recompute = "block";
  const int64_t least = TotalBytes(Best(job, ample).prediction.memory_per_rank);
  for (const int64_t limit : {all, all - (all - least) / 4, all - (all - least) / 2, least}) {
    SCOPED_TRACE(limit);
    job.resources.memory_per_rank_bytes = limit;
    job.resources.recompute = "auto";
    const Plan chosen = Best(job, ample);
    job.resources.recompute = "optimal";
    const Plan optimal = Best(job, ample);
    EXPECT_LE(TotalBytes(optimal.prediction.memory_per_rank), limit);
    // Memory is cut into slots, so that a block more may have to be recomputed.
    EXPECT_LE(
        optimal.prediction.time.recompute_seconds,
        1.1 * chosen.prediction.time.recompute_seconds + chosen.prediction.step_seconds * 0.02);
    auto schedule = ParseRemat(optimal.recompute_schedule, 12);
    ASSERT_TRUE(schedule.ok()) << schedule.status().ToString();
    EXPECT_EQ(PoliciesOf(*schedule), optimal.block_memory_policy);
  }
  // Where one replay of every block is not enough.
  job.resources.memory_per_rank_bytes = least - (80 << 20);
  job.resources.recompute = "auto";
  EXPECT_THAT(PlanJob(job, ample).status().message(), HasSubstr("resources.recompute optimal"));
  job.resources.recompute = "optimal";
  const Plan twice = Best(job, ample);
  EXPECT_LE(TotalBytes(twice.prediction.memory_per_rank), job.resources.memory_per_rank_bytes);
  EXPECT_GT(ReplayedBlocks(*ParseRemat(twice.recompute_schedule, 12)), 12);
}

TEST(PlanJob, ObeysWhatTheJobAsksFor) {
  JobSpec job = SmallJob();
  job.resources.ranks = 2;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 3;
  const Plan plan = Best(job, Cluster(1, 4, 16 * kGiB));
  EXPECT_EQ(plan.mesh.data, 2);
  EXPECT_EQ(plan.threads_per_rank, 1);
  EXPECT_EQ(plan.micro_batch, 3);
  EXPECT_EQ(plan.accumulation_steps, 4);
  job.train.precision = "fp32";
  EXPECT_EQ(Best(job, Cluster(1, 4, 16 * kGiB)).precision, "fp32");
}

TEST(PlanJob, RanksThatTheJobLeavesOpenMakeTheMicroBatchThatItAsksFor) {
  JobSpec job = Gpt2Job();
  for (const int64_t micro_batch : {2, 8, 16}) {
    job.resources.micro_batch = micro_batch;
    const Result<PlanReport> report = PlanJob(job, Cluster(2, 8, 64 * kGiB));
    ASSERT_TRUE(report.ok()) << report.status().message();
    for (const PlanCandidate& candidate : report->candidates) {
      const Plan& plan = candidate.plan;
      EXPECT_EQ(plan.micro_batch, micro_batch);
      EXPECT_EQ(plan.mesh.data * plan.micro_batch * plan.accumulation_steps, 16);
    }
  }
}

TEST(PlanJob, WhatDoesNotFitTheDeviceFitsWithTheOptimizerOnTheHost) {
  JobSpec job = SmallJob();
  job.resources.micro_batch = 1;
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
    EXPECT_TRUE(link > int64_t{1} << 20 || !Travels(*schedule));
    if (link == kGiB * 100) {
      EXPECT_TRUE(Travels(*schedule));
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

TEST(PlanJob, RanksShareOutWhatTheJobSays) {
  JobSpec job = SmallJob();
  const ClusterProfile cluster = Cluster(1, 4, 16 * kGiB);
  job.resources.ranks = 1;
  job.resources.zero_stage = 2;
  EXPECT_EQ(Best(job, cluster).zero_stage, 0) << "there is nobody to share with";
  job.resources.ranks = 2;
  const Plan shared = Best(job, cluster);
  EXPECT_EQ(shared.zero_stage, 2);
  job.resources.zero_stage = 0;
  const Plan plain = Best(job, cluster);
  EXPECT_EQ(plain.zero_stage, 0);
  const MemoryBreakdown &less = shared.prediction.memory_per_rank,
                        &more = plain.prediction.memory_per_rank;
  EXPECT_NEAR(
      2.0 * static_cast<double>(less.optimizer_bytes) / static_cast<double>(more.optimizer_bytes),
      1.0, 0.01);
  EXPECT_LT(TotalBytes(less), TotalBytes(more));
  EXPECT_LT(shared.prediction.time.optimizer_seconds, plain.prediction.time.optimizer_seconds);

  // Parameters are gathered, and packed, in every pass.
  job.resources.zero_stage = 3;
  const Plan whole = Best(job, cluster);
  EXPECT_EQ(whole.zero_stage, 3);
  EXPECT_LT(whole.prediction.memory_per_rank.parameters_bytes, more.parameters_bytes);
  EXPECT_GT(whole.prediction.time.memory_bound_seconds,
            shared.prediction.time.memory_bound_seconds);
  EXPECT_GT(whole.prediction.time.exposed_communication_seconds, 0);
}

TEST(PlanJob, GroupsOfRanksShareAmongThemselves) {
  JobSpec job = SmallJob();
  const ClusterProfile cluster = Cluster(2, 2, 16 * kGiB);
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.zero_stage = 1;
  const Plan all = Best(job, cluster);
  EXPECT_EQ(all.zero_shard_ranks, 0);
  job.resources.zero_shard_ranks = 2;
  const Plan groups = Best(job, cluster);
  EXPECT_EQ(groups.zero_shard_ranks, 2);
  EXPECT_NEAR(static_cast<double>(groups.prediction.memory_per_rank.optimizer_bytes) /
                  static_cast<double>(all.prediction.memory_per_rank.optimizer_bytes),
              2.0, 0.01);
  // Twice as much to update; half of the bytes stay within a group, twice as many go between them.
  EXPECT_GT(groups.prediction.time.optimizer_seconds, all.prediction.time.optimizer_seconds);
  EXPECT_GT(groups.prediction.time.exposed_communication_seconds, 0);

  // Fewer workers leave ranks in whole groups, or one alone.
  job.resources.ranks = 0;
  for (const int workers : {1, 2}) {
    auto report = PlanJob(job, Cluster(workers, 3, 16 * kGiB));
    ASSERT_TRUE(report.ok()) << report.status().message();
    for (const PlanCandidate& candidate : report->candidates) {
      const Plan& plan = candidate.plan;
      EXPECT_TRUE(plan.mesh.data == 1 || plan.mesh.data % 2 == 0) << plan.mesh.data;
      EXPECT_EQ(plan.zero_shard_ranks, plan.mesh.data == 1 ? 0 : 2);
    }
  }
}

// A job whose ranks are left open goes on with those that a lost worker leaves.
TEST(PlanJob, FewerWorkersLeaveFewerReplicasOfAMesh) {
  JobSpec job = Gpt2Job();
  job.resources.threads_per_rank = 1;
  job.resources.tensor_parallel = 2;
  job.resources.zero_stage = 1;
  const Plan two = Best(job, Cluster(2, 2, 16 * kGiB)), one = Best(job, Cluster(1, 2, 16 * kGiB));
  EXPECT_EQ(two.mesh.data, 2);
  EXPECT_EQ(two.zero_stage, 1);
  EXPECT_EQ(one.mesh.data, 1);
  EXPECT_EQ(one.zero_stage, 0);
  for (const Plan& plan : {two, one}) {
    EXPECT_EQ(plan.mesh.tensor, 2);
    EXPECT_EQ(plan.micro_batch * plan.accumulation_steps * plan.mesh.data, job.train.global_batch);
  }
  // Moments of what a rank has of the matrices, shared among its replicas.
  job.resources.tensor_parallel = 1;
  job.resources.zero_stage = 0;
  job.resources.ranks = 1;
  const Plan whole = Best(job, Cluster(1, 2, 16 * kGiB));
  EXPECT_NEAR(static_cast<double>(two.prediction.memory_per_rank.optimizer_bytes) /
                  static_cast<double>(whole.prediction.memory_per_rank.optimizer_bytes),
              0.25, 0.02);
}

TEST(PlanJob, RanksShareMatricesWhereTheJobSaysSo) {
  JobSpec job = SmallJob();
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  const auto plan = [&](int64_t tensor, bool sequence) {
    job.resources.tensor_parallel = tensor;
    job.resources.sequence_parallel = sequence;
    return Best(job, Cluster(1, 4, 8 * kGiB));
  };
  const Plan whole = plan(1, false), shared = plan(2, false), rows = plan(2, true);
  EXPECT_EQ(shared.mesh.data, 2);
  EXPECT_EQ(shared.mesh.tensor, 2);
  EXPECT_TRUE(rows.sequence_parallel);
  EXPECT_EQ(shared.accumulation_steps, 2 * whole.accumulation_steps);
  EXPECT_EQ(shared.rank_workers.size(), 4u);
  const MemoryBreakdown &all = whole.prediction.memory_per_rank,
                        &half = shared.prediction.memory_per_rank,
                        &least = rows.prediction.memory_per_rank;
  EXPECT_LT(half.parameters_bytes, 0.6 * static_cast<double>(all.parameters_bytes));
  EXPECT_GT(half.parameters_bytes, 0.5 * static_cast<double>(all.parameters_bytes));
  EXPECT_LT(half.activations_bytes, all.activations_bytes);
  EXPECT_LT(least.activations_bytes, half.activations_bytes);
  EXPECT_GT(shared.prediction.time.exposed_communication_seconds,
            whole.prediction.time.exposed_communication_seconds);
  job.resources.device = "cpu";
  job.model.heads = 4;
  const Plan row = plan(4, false);
  job.resources.tensor_rows = 2;
  const Plan grid = plan(4, false);
  EXPECT_EQ(grid.mesh.tensor, 4);
  EXPECT_EQ(grid.tensor_rows, 2);
  // As large parts of the matrices, smaller ones of the stream, and of four ranks more to send.
  EXPECT_NEAR(static_cast<double>(grid.prediction.memory_per_rank.parameters_bytes) /
                  static_cast<double>(row.prediction.memory_per_rank.parameters_bytes),
              1, 0.1);
  EXPECT_GT(grid.prediction.time.exposed_communication_seconds,
            row.prediction.time.exposed_communication_seconds);
  const Result<PlanReport> report = PlanJob(job, Cluster(1, 4, 8 * kGiB));
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->candidates.front().reason, HasSubstr("a rank of the grid of 2 x 2 sends "));
  EXPECT_THAT(report->candidates.front().reason, HasSubstr("of 1 x 4 it would send "));
}

TEST(PlanJob, RanksShareSequencesWhereTheJobSaysSo) {
  JobSpec job = SmallJob();
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  const auto plan = [&](int64_t context, const std::string& method) {
    job.resources.context_parallel = context;
    job.resources.context_method = method;
    return Best(job, Cluster(1, 4, 8 * kGiB));
  };
  const Plan whole = plan(1, "ring"), ring = plan(2, "ring"), ulysses = plan(2, "ulysses");
  EXPECT_EQ(ring.mesh.data, 2);
  EXPECT_EQ(ring.mesh.context, 2);
  EXPECT_EQ(ring.accumulation_steps, 2 * whole.accumulation_steps);
  EXPECT_EQ(ring.rank_workers.size(), 4u);
  const MemoryBreakdown &all = whole.prediction.memory_per_rank,
                        &half = ring.prediction.memory_per_rank;
  EXPECT_EQ(half.parameters_bytes, all.parameters_bytes);
  EXPECT_NEAR(static_cast<double>(half.activations_bytes),
              static_cast<double>(all.activations_bytes) / 2,
              0.01 * static_cast<double>(all.activations_bytes));
  // As many products, of fewer rows each, and what the ranks tell each other on top.
  EXPECT_GT(ring.prediction.time.exposed_communication_seconds,
            whole.prediction.time.exposed_communication_seconds);
  EXPECT_GT(ulysses.prediction.time.exposed_communication_seconds,
            whole.prediction.time.exposed_communication_seconds);
  const double products = ring.prediction.time.gemm_seconds / whole.prediction.time.gemm_seconds;
  EXPECT_GT(products, 0.99);
  EXPECT_LT(products, 1.4);
  auto report = PlanJob(job, Cluster(1, 4, 8 * kGiB));
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->candidates[0].reason, HasSubstr("2 ranks share each sequence"));
}

TEST(PlanJob, RanksShareExpertsWhereTheJobSaysSo) {
  JobSpec job = SmallJob();
  job.model.family = "llama";
  job.model.experts = 8;
  job.resources.device = "cpu";
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  const auto plan = [&](int64_t ranks, int64_t expert, double capacity) {
    job.resources.ranks = ranks;
    job.resources.expert_parallel = expert;
    job.model.expert_capacity = capacity;
    return Best(job, Cluster(1, 4, 32 * kGiB));
  };
  const Plan whole = plan(4, 1, 1), twos = plan(4, 2, 1), fours = plan(4, 4, 1);
  EXPECT_EQ(twos.mesh.data, 2);
  EXPECT_EQ(twos.mesh.expert, 2);
  EXPECT_EQ(fours.mesh.data, 1);
  EXPECT_EQ(fours.mesh.expert, 4);
  EXPECT_EQ(fours.accumulation_steps, whole.accumulation_steps) << "all see different sequences";
  const auto& all = whole.prediction.memory_per_rank;
  const auto& part = fours.prediction.memory_per_rank;
  const ModelShape shape = ShapeOf(job), of_rank = ModelShape::OfExpertRank(shape.spec, 4);
  EXPECT_EQ(part.optimizer_bytes, 8 * of_rank.trained);
  EXPECT_EQ(part.gradients_bytes, 4 * of_rank.stored_trained);
  EXPECT_LT(part.parameters_bytes, all.parameters_bytes);
  EXPECT_EQ(part.activations_bytes, all.activations_bytes) << "full experts take no more";
  EXPECT_GT(plan(4, 4, 0).prediction.memory_per_rank.activations_bytes, part.activations_bytes)
      << "all tokens of all ranks may come";
  EXPECT_LT(fours.prediction.time.optimizer_seconds, whole.prediction.time.optimizer_seconds);
  EXPECT_GT(fours.prediction.time.exposed_communication_seconds, 0);
  EXPECT_EQ(plan(0, 2, 1).mesh.expert, 2);
  job.resources.expert_parallel = 3;
  EXPECT_EQ(PlanJob(job, Cluster(1, 4, 32 * kGiB)).status().code(), StatusCode::kInvalid);
}

TEST(PlanJob, StagesAreCutPlacedAndPricedWhereTheJobSaysSo) {
  JobSpec job = SmallJob();
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  const auto plan = [&](int64_t pipeline, const char* schedule) {
    job.resources.pipeline_parallel = pipeline;
    job.resources.pipeline_schedule = schedule;
    return Best(job, Cluster(1, 4, 8 * kGiB));
  };
  const Plan whole = plan(1, "1f1b"), staged = plan(2, "1f1b"), all_first = plan(2, "gpipe"),
             split = plan(2, "zero_bubble");
  EXPECT_EQ(staged.mesh.pipeline, 2);
  EXPECT_EQ(staged.mesh.data, 2);
  EXPECT_EQ(staged.rank_workers.size(), 4u);
  EXPECT_EQ(staged.accumulation_steps, 2 * whole.accumulation_steps);
  EXPECT_EQ(staged.stage_blocks, *CutModel(job));
  EXPECT_EQ(all_first.pipeline_schedule, "gpipe");
  const auto bytes = [](const Plan& p) { return p.prediction.memory_per_rank; };
  EXPECT_LT(bytes(staged).parameters_bytes, bytes(whole).parameters_bytes);
  EXPECT_LT(bytes(staged).optimizer_bytes, bytes(whole).optimizer_bytes);
  EXPECT_LT(bytes(staged).activations_bytes, bytes(all_first).activations_bytes);
  EXPECT_LE(split.prediction.step_seconds, staged.prediction.step_seconds * (1 + 1e-9));
  EXPECT_GT(staged.prediction.time.exposed_communication_seconds,
            whole.prediction.time.exposed_communication_seconds);
  job.model.layers = 1;
  EXPECT_THAT(PlanJob(job, Cluster(1, 4, 8 * kGiB)).status().message(),
              HasSubstr("each needs a block"));
}

TEST(PlanJob, StagesOfRanksThatShareMatricesPayInEachPass) {
  JobSpec job = SmallJob();
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.tensor_parallel = 2;
  job.resources.pipeline_parallel = 2;
  const auto exposed = [&](double link) {
    ClusterProfile cluster = Cluster(1, 4, 8 * kGiB);
    cluster.workers[0].loopback_bytes_per_second = link;
    return Best(job, cluster).prediction.time.exposed_communication_seconds;
  };
  // Of two ranks each sum sends the stream once; a stage has half of the blocks, and one has the
  // embedding or the classifier beside them.
  const double bytes = static_cast<double>(SequenceLength(job) * job.model.width * 2);
  const double sums = 4 * static_cast<double>(job.model.layers) / 2 + 1;
  const double passes = 24;
  EXPECT_GT(exposed(1e8) - exposed(1e9), 0.9 * passes * sums * bytes * (1 / 1e8 - 1 / 1e9));
}

TEST(PlanJob, PrecisionDecidesMemoryAndTime) {
  const auto plan = [](const char* precision) {
    JobSpec job = Gpt2Job();
    job.train.precision = precision;
    job.resources.ranks = 1;
    job.resources.threads_per_rank = 4;
    job.resources.micro_batch = 1;
    return Best(job, Cluster(1, 4, 64 * kGiB)).prediction;
  };
  const Prediction f32 = plan("fp32"), bf16 = plan("bf16"), fp16 = plan("fp16"),
                   pure = plan("bf16_pure");
  EXPECT_LT(bf16.step_seconds, fp16.step_seconds) << "multiplied natively";
  EXPECT_LT(bf16.step_seconds, f32.step_seconds);
  EXPECT_LE(pure.step_seconds, bf16.step_seconds);
  EXPECT_LT(pure.memory_per_rank.parameters_bytes, bf16.memory_per_rank.parameters_bytes);
  EXPECT_EQ(fp16.memory_per_rank.parameters_bytes, f32.memory_per_rank.parameters_bytes);
  EXPECT_EQ(fp16.memory_per_rank.activations_bytes, bf16.memory_per_rank.activations_bytes);
}

TEST(PlanJob, CompressedActivationsTakeLessMemoryAndMoreTime) {
  const auto plan = [](int64_t bits) {
    JobSpec job = Gpt2Job();
    job.resources.ranks = 1;
    job.resources.threads_per_rank = 4;
    job.resources.micro_batch = 1;
    job.resources.recompute = "none";
    job.resources.activation_bits = bits;
    return Best(job, Cluster(1, 4, 64 * kGiB)).prediction;
  };
  Prediction before = plan(0);
  const double exact = before.time.memory_bound_seconds;
  for (int64_t bits : {8, 4, 2}) {
    const Prediction fewer = plan(bits);
    EXPECT_LT(fewer.memory_per_rank.activations_bytes, before.memory_per_rank.activations_bytes);
    EXPECT_GT(fewer.time.memory_bound_seconds, exact);
    EXPECT_EQ(fewer.time.gemm_seconds, before.time.gemm_seconds);
    if (bits < 8) {
      EXPECT_LT(fewer.time.memory_bound_seconds, before.time.memory_bound_seconds);
    }
    before = fewer;
  }
}

TEST(PlanJob, PlacesRanksWhereThereIsRoom) {
  ClusterProfile cluster = Cluster(3, 2, 16 * kGiB);
  cluster.workers[1].memory_limit_bytes = 1 << 20;  // too small for any rank
  JobSpec job = SmallJob();
  job.resources.ranks = 2;
  job.resources.threads_per_rank = 2;
  const Plan plan = Best(job, cluster);
  EXPECT_EQ(plan.rank_workers, (std::vector<std::string>{"w100", "w102"}));
}

TEST(PlanJob, SaysWhyNothingFitsAndWhatWouldHelp) {
  Result<PlanReport> report = PlanJob(Gpt2Job(), Cluster(2, 2, kGiB));
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("more than the largest worker offers"));
  EXPECT_THAT(report.status().message(), HasSubstr("largest part: optimizer"));
  EXPECT_THAT(report.status().message(), HasSubstr("hint: offer more memory per rank"));

  JobSpec job = SmallJob();
  job.resources.ranks = 8;
  job.resources.threads_per_rank = 2;
  report = PlanJob(job, Cluster(1, 4, 16 * kGiB));
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("room for 2"));

  EXPECT_EQ(PlanJob(job, {}).status().code(), StatusCode::kUnavailable);
  job.model.heads = 7;
  EXPECT_EQ(PlanJob(job, Cluster(1, 4, kGiB)).status().code(), StatusCode::kInvalid);
}

TEST(PlanJob, SurvivesTheLargestLegalNumbers) {
  JobSpec job = SmallJob();
  job.model.layers = 1024;
  job.model.width = 1 << 17;
  job.model.heads = 1024;
  job.model.mlp_width = 1 << 20;
  job.model.vocab_size = 1 << 24;
  job.model.context = 1 << 20;
  job.train.global_batch = 1 << 24;
  for (int64_t micro : {0, 1 << 24}) {
    job.resources.micro_batch = micro;
    EXPECT_EQ(PlanJob(job, Cluster(2, 4, 64 * kGiB)).status().code(), StatusCode::kExhausted);
  }
}

TEST(PlanJob, IsAFunctionOfItsArguments) {
  const ClusterProfile cluster = Cluster(3, 4, 8 * kGiB);
  ClusterProfile reversed = cluster;
  std::reverse(reversed.workers.begin(), reversed.workers.end());
  const Json report = ToJson(*PlanJob(Gpt2Job(), cluster));
  EXPECT_EQ(ToJson(*PlanJob(Gpt2Job(), cluster)), report);
  EXPECT_EQ(ToJson(*PlanJob(Gpt2Job(), reversed)), report);
}

TEST(PlanJob, CountsTheModelByTheRule) {
  const PlanReport report = *PlanJob(Gpt2Job(), Cluster(1, 2, 64 * kGiB));
  EXPECT_EQ(report.parameters, 124'439'808);
  const Prediction& prediction = report.candidates[0].plan.prediction;
  // 6 N + 6 L C T, times tokens.
  const double tokens = 16 * 256;
  EXPECT_DOUBLE_EQ(prediction.model_flops_per_step,
                   tokens * (6.0 * 124'439'808 + 6.0 * 12 * 768 * 256));
  EXPECT_DOUBLE_EQ(prediction.tokens_per_second, tokens / prediction.step_seconds);
}

TEST(PlanJob, FollowsTheFamilyAndWhatIsFrozenOrShared) {
  const ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  const auto plan = [&](const std::function<void(ModelSpec&)>& change) {
    JobSpec job = Gpt2Job();
    job.resources.micro_batch = 4;
    job.resources.recompute = "none";
    change(job.model);
    return Best(job, cluster).prediction;
  };
  const auto whole = plan([](ModelSpec&) {});
  const auto frozen = plan([](ModelSpec& m) {
    m.freeze = {"transformer.w*", "*.h.0.*", "*.h.1.*"};
  });
  EXPECT_LT(frozen.memory_per_rank.gradients_bytes, whole.memory_per_rank.gradients_bytes);
  EXPECT_LT(frozen.memory_per_rank.optimizer_bytes, whole.memory_per_rank.optimizer_bytes);
  EXPECT_LT(frozen.memory_per_rank.activations_bytes, whole.memory_per_rank.activations_bytes);
  EXPECT_EQ(frozen.memory_per_rank.parameters_bytes, whole.memory_per_rank.parameters_bytes);
  EXPECT_LT(frozen.step_seconds, whole.step_seconds);
  EXPECT_LT(frozen.model_flops_per_step, whole.model_flops_per_step);
  const auto shared = plan([](ModelSpec& m) { m.distinct_blocks = 1; });
  EXPECT_LT(shared.memory_per_rank.parameters_bytes, whole.memory_per_rank.parameters_bytes);
  EXPECT_EQ(shared.memory_per_rank.activations_bytes, whole.memory_per_rank.activations_bytes);
  EXPECT_EQ(shared.model_flops_per_step, whole.model_flops_per_step);
  const auto llama = plan([](ModelSpec& m) {
    m.family = "llama";
    m.mlp_width = 2048;
    m.kv_heads = 3;
  });
  // 12 (2 C^2 (1 + 1/4) + 3 C F) + V C + 25 C.
  const int64_t c = 768;
  const int64_t parameters = 12 * (2 * c * c + c * c / 2 + 3 * c * 2048) + 50257 * c + 25 * c;
  EXPECT_DOUBLE_EQ(llama.model_flops_per_step,
                   16.0 * 256 * (6.0 * static_cast<double>(parameters) + 6.0 * 12 * 768 * 256));
  EXPECT_GT(llama.step_seconds, 0);
}

TEST(PlanJob, CountsTheWorkOfEncodersWhereItIsDone) {
  const ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  const auto predict = [&](const std::function<void(JobSpec&)>& change) {
    JobSpec job = Gpt2Job();
    job.resources.micro_batch = 4;
    job.resources.recompute = "none";
    change(job);
    return Best(job, cluster).prediction;
  };
  const auto gpt2 = predict([](JobSpec&) {});
  const auto bert = predict([](JobSpec& job) { job.model.family = "bert"; });
  // A seventh of the vocabulary's work, twice the attention's.
  EXPECT_LT(bert.model_flops_per_step, gpt2.model_flops_per_step);
  EXPECT_LT(bert.step_seconds, gpt2.step_seconds);
  EXPECT_LT(bert.memory_per_rank.workspace_bytes, gpt2.memory_per_rank.workspace_bytes);
  const auto all = predict([](JobSpec& job) {
    job.model.family = "bert";
    job.data.masking.probability = 1;
  });
  EXPECT_GT(all.model_flops_per_step, gpt2.model_flops_per_step);
  EXPECT_GT(all.step_seconds, bert.step_seconds);

  const auto pictures = [&](int64_t side) {
    return predict([&](JobSpec& job) {
      job.model.family = "vit";
      job.model.vocab_size = 0;
      job.model.classes = 10;
      job.model.image_size = side;
      job.train.sequence_length = 0;
    });
  };
  const auto small = pictures(112), large = pictures(224);
  // Four times the patches, beside a class token; the optimizer has as much to do as before.
  EXPECT_GT(large.model_flops_per_step / small.model_flops_per_step, 3.9);
  EXPECT_GT(large.step_seconds / small.step_seconds, 2);
  EXPECT_EQ(large.memory_per_rank.gradients_bytes - small.memory_per_rank.gradients_bytes,
            4 * (14 * 14 - 7 * 7) * 768);
}

TEST(PlanJob, PlansSixtyFourWorkersInAMoment) {
  ClusterProfile cluster = Cluster(64, 64, 256 * kGiB);
  JobSpec job = Gpt2Job();
  job.train.global_batch = 512;
  // The least processor time of some, so that whoever else uses the machine does not count.
  double seconds = 1e9;
  for (int i = 0; i < 5; ++i) {
    const std::clock_t start = std::clock();
    ASSERT_TRUE(PlanJob(job, cluster).ok());
    seconds = std::min(seconds, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
#ifdef NDEBUG
  EXPECT_LT(seconds, 0.05);
#else
  EXPECT_LT(seconds, 5);
#endif
}

TEST(PlanJob, EachRankHasAGpuOfItsOwnWhereThereAreSome) {
  ClusterProfile cluster{{Worker("big", 64, 512 * kGiB), GpuWorker("g", 4, 40 * kGiB)}};
  cluster.workers[1].devices[1].unusable = "XID 79";
  JobSpec job = Gpt2Job();
  job.resources.ranks = 2;
  Plan plan = Best(job, cluster);
  EXPECT_EQ(plan.device, "cuda");
  EXPECT_EQ(plan.rank_workers, (std::vector<std::string>{"g", "g"}));
  EXPECT_EQ(plan.rank_devices, (std::vector<int64_t>{0, 2}));
  EXPECT_LE(plan.threads_per_rank, 8);
  // The machine's own memory, of 1 GiB, does not limit what is in the GPUs'.
  EXPECT_GT(TotalBytes(plan.prediction.memory_per_rank), kGiB);
  EXPECT_LE(TotalBytes(plan.prediction.memory_per_rank), 40 * kGiB);
  const std::string text = FormatPlanReport(*PlanJob(job, cluster));
  EXPECT_THAT(text, HasSubstr("on g x 2 (GPUs 0, 2)"));

  job.resources.ranks = 4;
  Result<PlanReport> report = PlanJob(job, cluster);
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("have room for 3"));

  job.resources.device = "cpu";
  plan = Best(job, cluster);
  EXPECT_EQ(plan.device, "cpu");
  EXPECT_TRUE(plan.rank_devices.empty());
}

TEST(PlanJob, ExpertsOnGpusCostTheirKernelsAndTheirWay) {
  JobSpec job = SmallJob();
  job.model.family = "llama";
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  const auto plan = [&](int64_t experts, int64_t ranks, int64_t expert_parallel) {
    job.model.experts = experts;
    job.resources.ranks = ranks;
    job.resources.expert_parallel = expert_parallel;
    return Best(job, ClusterProfile{{GpuWorker("g", 4, 40 * kGiB)}});
  };
  const Plan dense = plan(0, 4, 1), whole = plan(8, 4, 1), shared = plan(8, 4, 4);
  const auto seconds = [](const Plan& of) { return of.prediction.time; };
  EXPECT_GT(seconds(whole).overhead_seconds, seconds(dense).overhead_seconds);
  EXPECT_LT(seconds(shared).overhead_seconds, seconds(whole).overhead_seconds) << "fewer of them";
  EXPECT_LT(seconds(shared).optimizer_seconds, seconds(whole).optimizer_seconds);
  // Rows go to experts and back; their gradients stay.
  const double alone = seconds(plan(8, 1, 1)).exposed_communication_seconds;
  EXPECT_EQ(alone, 0);
  EXPECT_GT(seconds(shared).exposed_communication_seconds, 0);
  EXPECT_LT(shared.prediction.memory_per_rank.optimizer_bytes,
            whole.prediction.memory_per_rank.optimizer_bytes / 3);
}

TEST(PlanJob, AGpuIsFasterThanTheProcessorBesideIt) {
  ClusterProfile cluster{{GpuWorker("g", 1, 40 * kGiB)}};
  cluster.workers[0].memory_limit_bytes = 64 * kGiB;
  JobSpec job = Gpt2Job();
  const double gpu = Best(job, cluster).prediction.step_seconds;
  job.resources.device = "cpu";
  EXPECT_LT(20 * gpu, Best(job, cluster).prediction.step_seconds);
}

TEST(PlanJob, WithoutGpusThatWorkItSaysWhatIsWrongWithEach) {
  JobSpec job = SmallJob();
  job.resources.device = "cuda";
  Result<PlanReport> report = PlanJob(job, Cluster(1, 4, 8 * kGiB));
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("no worker offers a GPU"));
  ClusterProfile cluster{{GpuWorker("g", 1, 40 * kGiB)}};
  cluster.workers[0].devices[0].unusable = "XID 79";
  job.resources.device = "auto";
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("GPU 0 of g: XID 79"));
}

TEST(PlanJob, StagesAndGridsOfGpusArePricedAsTheirs) {
  const ClusterProfile cluster{{GpuWorker("g", 8, 40 * kGiB)}};
  JobSpec job = Gpt2Job();
  job.train.global_batch = 256;
  job.resources.micro_batch = 16;
  job.resources.recompute = "none";
  const auto plan = [&](int64_t ranks) {
    job.resources.ranks = ranks;
    return Best(job, cluster);
  };
  const Plan whole = plan(1);
  job.resources.pipeline_parallel = 4;
  const Plan staged = plan(4);
  EXPECT_EQ(staged.device, "cuda");
  EXPECT_EQ(staged.mesh.pipeline, 4);
  const MemoryBreakdown &all = whole.prediction.memory_per_rank,
                        &part = staged.prediction.memory_per_rank;
  EXPECT_LT(part.parameters_bytes, all.parameters_bytes / 2);
  EXPECT_LT(TotalBytes(part), TotalBytes(all));
  // Sixteen micro-batches in four stages, of which the last is the most costly: at least a quarter,
  // and the bubble and what no stage has less of on top.
  EXPECT_GT(staged.prediction.step_seconds, whole.prediction.step_seconds / 4);
  EXPECT_LT(staged.prediction.step_seconds, whole.prediction.step_seconds / 2);
  // What a step costs is paid once, and not in each of its passes.
  EXPECT_LT(staged.prediction.time.overhead_seconds, 2 * whole.prediction.time.overhead_seconds);

  job.resources.pipeline_parallel = 1;
  job.model.heads = 8;
  job.resources.tensor_parallel = 8;
  const Plan row = plan(8);
  job.resources.tensor_rows = 2;
  const Plan grid = plan(8);
  EXPECT_EQ(grid.device, "cuda");
  EXPECT_EQ(grid.tensor_rows, 2);
  EXPECT_LT(grid.prediction.memory_per_rank.activations_bytes,
            row.prediction.memory_per_rank.activations_bytes);
  EXPECT_GT(grid.prediction.time.exposed_communication_seconds, 0);

  job.resources.tensor_rows = job.resources.tensor_parallel = 1;
  job.resources.context_parallel = 2;
  job.resources.context_method = "ulysses";
  const Plan shared = plan(2);
  EXPECT_EQ(shared.device, "cuda");
  EXPECT_EQ(shared.mesh.context, 2);
  EXPECT_GT(shared.prediction.time.exposed_communication_seconds, 0);
}

TEST(PlanJob, RecomputesBlocksToFitIntoAGpu) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = 1;
  job.resources.micro_batch = 16;
  const auto plan = [&](int64_t memory) { return Best(job, {{GpuWorker("g", 1, memory)}}); };
  const auto recomputed = [](const Plan& p) {
    return std::count(p.block_memory_policy.begin(), p.block_memory_policy.end(), "recompute");
  };
  const Plan roomy = plan(40 * kGiB);
  EXPECT_EQ(recomputed(roomy), 0);
  const int64_t less = TotalBytes(roomy.prediction.memory_per_rank) / 10 * 9;
  const Plan tight = plan(less);
  EXPECT_GT(recomputed(tight), 0);
  EXPECT_LE(TotalBytes(tight.prediction.memory_per_rank), less);
  ClusterProfile cluster{{GpuWorker("g", 1, 2 * kGiB)}};
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("the largest GPU offers"));
}

TEST(RateModel, OfAGpuDoesNotCountThreads) {
  WorkerProfile worker = GpuWorker("g", 2, kGiB);
  worker.devices[0].unusable = "lost";
  worker.devices[1].links[0].bytes_per_second = 250e9;
  RateModel rates(worker, DType::kBF16, true);
  for (const GemmRate& rate : worker.devices[1].gemm) {
    EXPECT_NEAR(rates.GemmFlopsPerSecond(rate.m, rate.n, rate.k, 8), rate.flops_per_second,
                0.01 * rate.flops_per_second);
  }
  EXPECT_NEAR(rates.MemoryBytesPerSecond(8, 2), 0.9 * 3e12, 1);
  EXPECT_EQ(rates.LinkBytesPerSecond(true), 250e9);
  EXPECT_EQ(rates.LinkBytesPerSecond(false), worker.loopback_bytes_per_second);
  EXPECT_GT(rates.With(DType::kF32).GemmFlopsPerSecond(4096, 4096, 4096, 1), 1e12);
}

TEST(RateModel, ReturnsWhatWasMeasuredAndStaysBetweenNeighbours) {
  WorkerProfile worker = Worker("w", 4, kGiB);
  RateModel rates(worker, DType::kBF16);
  for (const GemmRate& rate : worker.gemm) {
    if (rate.precision != "bf16") continue;
    EXPECT_NEAR(rates.GemmFlopsPerSecond(rate.m, rate.n, rate.k, rate.threads),
                rate.flops_per_second, 0.01 * rate.flops_per_second);
  }
  const double low = rates.GemmFlopsPerSecond(64, 768, 768, 1);
  const double middle = rates.GemmFlopsPerSecond(128, 768, 768, 1);
  const double high = rates.GemmFlopsPerSecond(256, 768, 768, 1);
  EXPECT_LT(low, middle);
  EXPECT_LT(middle, high);
  EXPECT_GT(rates.GemmFlopsPerSecond(256, 768, 768, 4), high * 2);
}

TEST(RateModel, FallsBackToTheInstructionSet) {
  WorkerProfile worker;
  double previous = 0;
  for (const char* isa : {"baseline", "avx2", "avx512", "avx512_bf16", "amx"}) {
    worker.isa = isa;
    const double rate = RateModel(worker, DType::kBF16).GemmFlopsPerSecond(1024, 1024, 1024, 2);
    EXPECT_GT(rate, previous) << isa;
    previous = rate;
  }
  EXPECT_GT(RateModel(worker, DType::kF32).MemoryBytesPerSecond(1, 1), 0);
  EXPECT_GT(RateModel(worker, DType::kF32).LinkBytesPerSecond(true), 0);
}

TEST(FormatPlanReport, ShowsThePlanAndWhyTheOthersLost) {
  ClusterProfile cluster = Cluster(1, 2, 3 * kGiB);
  const std::string text = FormatPlanReport(*PlanJob(Gpt2Job(), cluster));
  for (const char* part : {"parameters", "124 M", "micro-batch", "activations", "optimizer",
                           "exposed communication", "total", "why", "the step time", "GiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(text.find("\n\n\n"), std::string::npos);
  EXPECT_EQ(text.find(" \n"), std::string::npos) << "trailing spaces";
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(FormatPlanReport({}), "No plans.\n");
}

}  // namespace
}  // namespace weft::planner
