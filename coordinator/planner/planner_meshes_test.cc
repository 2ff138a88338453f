#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/model/pipeline_shape.h"
#include "common/model/remat_schedule.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

TEST(PlanJob, RanksShardWhatTheJobSays) {
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

TEST(PlanJob, GradientsInBFloat16TakeLessOfTheLink) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    JobSpec job = SmallJob();
    job.resources.ranks = 2;
    job.resources.threads_per_rank = 2;
    job.resources.zero_stage = stage;
    const ClusterProfile cluster = Cluster(2, 2, 16 * kGiB);
    const Plan whole = Best(job, cluster);
    EXPECT_EQ(whole.gradient_reduction, "fp32");
    job.resources.gradient_reduction = "bf16";
    const Plan half = Best(job, cluster);
    EXPECT_EQ(half.gradient_reduction, "bf16");
    const double seconds = half.prediction.time.exposed_communication_seconds;
    EXPECT_LT(seconds, whole.prediction.time.exposed_communication_seconds);
    EXPECT_GE(seconds, 0.45 * whole.prediction.time.exposed_communication_seconds);
    EXPECT_GT(half.prediction.memory_per_rank.communication_bytes,
              whole.prediction.memory_per_rank.communication_bytes);
  }
}

TEST(PlanJob, StaysInARackWhereTheNetworkBetweenRacksIsSlow) {
  ClusterProfile cluster = Cluster(4, 1, 16 * kGiB);
  cluster.workers[0].rack = cluster.workers[1].rack = "r0";
  cluster.workers[2].rack = cluster.workers[3].rack = "r1";
  JobSpec job = Gpt2Job();
  const auto plan = [&](double bytes_per_second, double latency_seconds) {
    for (WorkerProfile& worker : cluster.workers) {
      worker.between_racks_bytes_per_second = bytes_per_second;
      worker.between_racks_latency_seconds = latency_seconds;
    }
    return Best(job, cluster);
  };
  EXPECT_EQ(plan(0, 0).rank_workers.size(), 4u);
  EXPECT_EQ(plan(1e6, 0).rank_workers, (std::vector<std::string>{"w100", "w101"}));
  // Across the racks it is as slow as they say.
  job.resources.ranks = 4;
  const double as_within = plan(0, 0).prediction.step_seconds;
  EXPECT_DOUBLE_EQ(plan(1e12, 0).prediction.step_seconds, as_within);
  EXPECT_GT(plan(1e8, 0).prediction.step_seconds, 1.5 * as_within);
  EXPECT_GT(plan(0, 0.01).prediction.step_seconds, as_within);
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
  // As many products, of fewer rows each, and what the ranks exchange on top.
  EXPECT_GT(ring.prediction.time.exposed_communication_seconds,
            whole.prediction.time.exposed_communication_seconds);
  EXPECT_GT(ulysses.prediction.time.exposed_communication_seconds,
            whole.prediction.time.exposed_communication_seconds);
  const double products = ring.prediction.time.gemm_seconds / whole.prediction.time.gemm_seconds;
  EXPECT_GT(products, 0.99);
  EXPECT_LT(products, 1.4);
  auto report = PlanJob(job, Cluster(1, 4, 8 * kGiB));
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->candidates[0].reason, HasSubstr("2 context-parallel ranks"));
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
  EXPECT_EQ(fours.accumulation_steps, whole.accumulation_steps) << "all are data-parallel";
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
  // Each of two tensor-parallel ranks has half of these experts, and sends whole rows.
  job.resources.tensor_parallel = 2;
  const Plan halves = plan(4, 2, 1);
  EXPECT_EQ(halves.mesh.tensor, 2);
  EXPECT_EQ(halves.mesh.expert, 2);
  const ModelShape half = ModelShape::OfExpertRank(shape.spec, 2, 2);
  EXPECT_EQ(half.stored_trained_experts, of_rank.stored_trained_experts);
  const auto& parts = halves.prediction.memory_per_rank;
  EXPECT_EQ(parts.optimizer_bytes, 8 * half.trained);
  EXPECT_EQ(parts.gradients_bytes, 4 * half.stored_trained);
  EXPECT_LT(parts.activations_bytes, twos.prediction.memory_per_rank.activations_bytes);
  job.resources.tensor_parallel = 1;
  // Each rank updates a quarter of what all have, and half of its experts, which two ranks have.
  job.resources.zero_stage = 1;
  const Plan updates = plan(4, 2, 1);
  const int64_t experts = ModelShape::OfExpertRank(shape.spec, 2).stored_trained_experts;
  const int64_t others = shape.trained - shape.stored_trained_experts;
  const auto& shared = updates.prediction.memory_per_rank;
  EXPECT_NEAR(static_cast<double>(shared.optimizer_bytes),
              static_cast<double>(8 * (others / 4 + experts / 2)), 1e4);
  EXPECT_EQ(shared.gradients_bytes, twos.prediction.memory_per_rank.gradients_bytes);
  EXPECT_LT(updates.prediction.time.optimizer_seconds, twos.prediction.time.optimizer_seconds);
  job.resources.zero_stage = 3;
  EXPECT_LT(plan(4, 4, 1).prediction.memory_per_rank.parameters_bytes, part.parameters_bytes);
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

TEST(PlanJob, StagesHaveSchedulesThatFitAndAreNoSlowerThanTheChoiceOfAuto) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = job.resources.pipeline_parallel = 2;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 2;
  const ClusterProfile ample = Cluster(1, 2, 64 * kGiB);
  const auto plan = [&](const char* recompute, int64_t limit) {
    job.resources.recompute = recompute;
    job.resources.memory_per_rank_bytes = limit;
    return Best(job, ample);
  };
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble", "interleaved"}) {
    SCOPED_TRACE(schedule);
    job.resources.pipeline_schedule = schedule;
    job.resources.pipeline_chunks = schedule == std::string("interleaved") ? 2 : 1;
    const int64_t all = TotalBytes(plan("none", 0).prediction.memory_per_rank),
                  least = TotalBytes(plan("block", 0).prediction.memory_per_rank);
    for (const int64_t limit : {all, all - (all - least) / 3, least}) {
      SCOPED_TRACE(limit);
      const Plan chosen = plan("auto", limit), optimal = plan("optimal", limit);
      EXPECT_LE(TotalBytes(optimal.prediction.memory_per_rank), limit);
      // Memory is cut into slots, so that a block more may have to be recomputed.
      EXPECT_LE(optimal.prediction.step_seconds, 1.02 * chosen.prediction.step_seconds);
      auto whole = ParseRemat(optimal.recompute_schedule, 12);
      ASSERT_TRUE(whole.ok()) << whole.status().ToString();
      int64_t first = 0;
      for (const int64_t blocks : optimal.stage_blocks) {
        EXPECT_TRUE(StageOf(*whole, first, blocks).ok());
        first += blocks;
      }
    }
  }
  // Each rank has what it has room for: the first one has twice as many micro-batches under way.
  job.resources.pipeline_schedule = "1f1b";
  job.resources.pipeline_chunks = 1;
  const int64_t all = TotalBytes(plan("none", 0).prediction.memory_per_rank),
                least = TotalBytes(plan("block", 0).prediction.memory_per_rank);
  const Plan both = plan("optimal", (all + least) / 2);
  const RematPlan whole = ParseRemat(both.recompute_schedule, 12).value();
  const int64_t blocks = both.stage_blocks[0];
  EXPECT_GT(
      ReplayedBlocks(*StageOf(whole, 0, blocks)) + ReplayedAttentions(*StageOf(whole, 0, blocks)),
      ReplayedBlocks(*StageOf(whole, blocks, 12 - blocks)) +
          ReplayedAttentions(*StageOf(whole, blocks, 12 - blocks)));
}

TEST(PlanJob, StagesHaveExpertsThatTheirRanksShare) {
  JobSpec job = SmallJob();
  job.model.family = "llama";
  job.model.experts = 8;
  job.model.expert_capacity = 1;
  job.resources.device = "cpu";
  job.resources.ranks = 4;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.pipeline_parallel = 2;
  const auto plan = [&](int64_t expert) {
    job.resources.expert_parallel = expert;
    return Best(job, Cluster(1, 4, 32 * kGiB));
  };
  const Plan alone = plan(1), shared = plan(2);
  EXPECT_EQ(shared.mesh.data, 1);
  EXPECT_EQ(shared.mesh.expert, 2);
  EXPECT_EQ(shared.mesh.pipeline, 2);
  EXPECT_EQ(shared.accumulation_steps, alone.accumulation_steps);
  const ModelShape of_rank = ModelShape::OfExpertRank(ShapeOf(job).spec, 2);
  int64_t most = 0;
  for (const int64_t stage : {0, 1}) {
    most = std::max(most, ShapeOfStages(of_rank, shared.stage_blocks, 2, stage).trained);
  }
  EXPECT_NEAR(static_cast<double>(shared.prediction.memory_per_rank.optimizer_bytes),
              8.0 * static_cast<double>(most), 1e4);
  EXPECT_LT(shared.prediction.memory_per_rank.gradients_bytes,
            alone.prediction.memory_per_rank.gradients_bytes);
  EXPECT_LT(shared.prediction.time.optimizer_seconds, alone.prediction.time.optimizer_seconds);
  // Rows are sent in every pass, whatever stages wait.
  const double exchange = shared.prediction.time.exposed_communication_seconds;
  job.model.experts_per_token = 1;
  EXPECT_LT(plan(2).prediction.time.exposed_communication_seconds, exchange);
}

TEST(PlanJob, StagesThatAreFrozenHaveMoreBlocksAndNoGradients) {
  JobSpec job = SmallJob();
  job.resources.ranks = 2;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.pipeline_parallel = 2;
  const Plan all = Best(job, Cluster(1, 4, 32 * kGiB));
  job.model.freeze = {"transformer.w*"};
  for (int64_t block = 0; block < job.model.layers / 2; ++block) {
    job.model.freeze.push_back("transformer.h." + std::to_string(block) + ".*");
  }
  const Plan half = Best(job, Cluster(1, 4, 32 * kGiB));
  // A forward pass is a third of the work.
  EXPECT_GT(half.stage_blocks[0], all.stage_blocks[0]);
  const ModelShape whole = ShapeOf(job);
  const ModelShape first = ShapeOfStage(whole, half.stage_blocks, 0),
                   last = ShapeOfStage(whole, half.stage_blocks, 1);
  EXPECT_EQ(first.trained + last.trained, whole.trained);
  EXPECT_EQ(first.first_trained_layer, job.model.layers / 2);
  EXPECT_TRUE(last.trained_before);
  EXPECT_EQ(last.first_trained_layer, 0);
  const MemoryBreakdown &memory = half.prediction.memory_per_rank,
                        &full = all.prediction.memory_per_rank;
  EXPECT_LT(memory.gradients_bytes + memory.optimizer_bytes,
            (full.gradients_bytes + full.optimizer_bytes) * 2 / 3);
  EXPECT_LT(StepSeconds(half.prediction.time), 0.8 * StepSeconds(all.prediction.time));
  // Stages that have nothing to train wait for no gradients.
  job.model.freeze.push_back("transformer.h.*");
  const Plan head = Best(job, Cluster(1, 4, 32 * kGiB));
  EXPECT_EQ(FirstTrainedStage(ShapeOf(job).spec, head.stage_blocks), 1);
  EXPECT_LT(StepSeconds(head.prediction.time), StepSeconds(half.prediction.time));
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
  // Each sum of two ranks sends the stream once; a stage has half of the blocks, and one has the
  // embedding or the classifier, too.
  const double bytes = static_cast<double>(SequenceLength(job) * job.model.width * 2);
  const double sums = 4 * static_cast<double>(job.model.layers) / 2 + 1;
  const double passes = 24;
  EXPECT_GT(exposed(1e8) - exposed(1e9), 0.9 * passes * sums * bytes * (1 / 1e8 - 1 / 1e9));
}

}  // namespace
}  // namespace weft::planner
