#include "coordinator/planner/planner.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/model/step_extent.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(PlanJob, MicroBatchesHaveAsManySequencesOfEachAdapter) {
  JobSpec job = SmallJob();
  job.model.peft.method = "lora";
  job.model.peft.adapters.resize(3);
  for (size_t k = 0; k < 3; ++k) job.model.peft.adapters[k].name = std::string(1, "abc"[k]);
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const Result<PlanReport> report = PlanJob(job, Cluster(3, 6, 8 * kGiB));
  ASSERT_TRUE(report.ok()) << report.status().message();
  int64_t several = 0;
  for (const PlanCandidate& candidate : report->candidates) {
    EXPECT_EQ(candidate.plan.micro_batch % 3, 0);
    if (candidate.plan.mesh.data > 1) ++several;
  }
  EXPECT_GT(several, 0) << "of two, four or eight ranks each has a multiple of three";
}

TEST(PlanJob, PlansNetworksWithoutBlocks) {
  for (const char* recompute : {"auto", "none", "block", "optimal"}) {
    SCOPED_TRACE(recompute);
    JobSpec job = SmallJob();
    job.model.layers = 0;
    job.resources.recompute = recompute;
    const ClusterProfile cluster = Cluster(2, 4, 8 * kGiB);
    const Result<PlanReport> report = PlanJob(job, cluster);
    ASSERT_TRUE(report.ok()) << report.status().message();
    const Plan& plan = report->candidates.front().plan;
    CheckFits(job, cluster, plan);
    EXPECT_GT(plan.prediction.tokens_per_second, 0);
    EXPECT_EQ(plan.mesh.tensor * plan.mesh.pipeline, 1);
    job.resources.recompute = "auto";
    job.resources.offload_optimizer = "host";
    const Result<PlanReport> offloaded = PlanJob(job, cluster);
    ASSERT_TRUE(offloaded.ok()) << offloaded.status().message();
    EXPECT_GT(offloaded->candidates.front().plan.bucket_bytes, 0);
  }
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
          bool infeasible_began = false;
          double previous = 0;
          for (const PlanCandidate& candidate : report->candidates) {
            EXPECT_FALSE(candidate.reason.empty());
            infeasible_began = infeasible_began || !candidate.feasible;
            EXPECT_EQ(candidate.feasible, !infeasible_began);
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

// Half of the branches of blocks are skipped.
TEST(PlanJob, WorkThatTrainingSkipsTakesNoTime) {
  const JobSpec plain = Gpt2Job();
  JobSpec job = plain;
  job.model.stochastic_depth = {.rate = 0.5, .decay = "uniform", .mode = "batch"};
  const ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  const auto predicted = [&](const JobSpec& of) {
    Result<PlanReport> report = PlanJob(of, cluster);
    WEFT_CHECK(report.ok(), report.status().message());
    return report->candidates[0].plan.prediction;
  };
  const Prediction all = predicted(plain), half = predicted(job);
  const ModelShape shape = ShapeOf(plain);
  double blocks = 0, products = 0;
  const int64_t length = SequenceLength(plain);
  for (const Gemm& gemm : WeightGemms(shape, length, length, 4)) {
    products += gemm.Flops();
    if (ComputedShare(ShapeOf(job).computed, gemm.role) < 1) blocks += gemm.Flops();
  }
  // Attention is small compared with them, and belongs to blocks, too.
  const double expected = 1 - 0.5 * blocks / products;
  EXPECT_NEAR(half.time.gemm_seconds / all.time.gemm_seconds, expected, 0.06);
  EXPECT_NEAR(half.model_flops_per_step / all.model_flops_per_step, expected, 0.06);
  EXPECT_LT(half.time.memory_bound_seconds, all.time.memory_bound_seconds);
  EXPECT_EQ(half.time.optimizer_seconds, all.time.optimizer_seconds);
}

// Memory is for the largest step, time and FLOPs are of the mean one.
TEST(PlanJob, StepsThatDifferTakeTheMemoryOfTheLargestAndTheTimeOfTheMean) {
  const ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  const auto predicted = [&](const JobSpec& of) {
    EXPECT_TRUE(ValidateJob(of).ok()) << ValidateJob(of).message();
    Result<PlanReport> report = PlanJob(of, cluster);
    WEFT_CHECK(report.ok(), report.status().message());
    return report->candidates[0].plan.prediction;
  };
  JobSpec few = Gpt2Job();
  few.resources.micro_batch = 1;
  few.resources.recompute = "none";
  few.resources.ranks = 1;
  few.model.layers = 6;
  JobSpec sampled = few, shared = few;
  sampled.train.sampled_layers = 12;
  shared.model.layers = 12;
  shared.model.distinct_blocks = 6;
  const Prediction mean = predicted(sampled), most = predicted(shared), least = predicted(few);
  EXPECT_EQ(TotalBytes(mean.memory_per_rank), TotalBytes(most.memory_per_rank));
  // 7.14 of 12 layers, and the classifier.
  const double share = MeanStepOf(sampled).flops;
  EXPECT_NEAR(mean.model_flops_per_step, share * most.model_flops_per_step,
              1e-9 * most.model_flops_per_step);
  EXPECT_NEAR(mean.time.gemm_seconds, share * most.time.gemm_seconds,
              1e-9 * most.time.gemm_seconds);
  EXPECT_EQ(mean.time.optimizer_seconds, most.time.optimizer_seconds);
  EXPECT_GT(mean.step_seconds, least.step_seconds);

  JobSpec grows = few;
  grows.train.steps = 1000;
  grows.train.sequence_warmup_steps = 1000;
  grows.train.sequence_warmup_start = 8;
  const Prediction grown = predicted(grows);
  EXPECT_EQ(TotalBytes(grown.memory_per_rank), TotalBytes(least.memory_per_rank));
  EXPECT_NEAR(grown.time.gemm_seconds / least.time.gemm_seconds, 0.5, 0.05);
  EXPECT_NEAR(grown.tokens_per_second / least.tokens_per_second,
              0.5 * least.step_seconds / grown.step_seconds, 0.01);
}

// The base of value learning costs its weights, its hidden states and a forward pass; the folder
// is not read.
TEST(PlanJob, CountsTheNetworkWhoseLogitsAreAdded) {
  const ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  const auto predicted = [&](const JobSpec& of) {
    EXPECT_TRUE(ValidateJob(of).ok()) << ValidateJob(of).message();
    Result<PlanReport> report = PlanJob(of, cluster);
    WEFT_CHECK(report.ok(), report.status().message());
    return report->candidates[0].plan.prediction;
  };
  JobSpec job = Gpt2Job();
  job.model.untied_classifier = true;
  job.resources.micro_batch = 1;
  job.resources.recompute = "none";
  job.resources.ranks = 1;
  JobSpec value = job;
  value.train.value_learning.base = job.model;
  value.train.value_learning.base.import_path = "/nowhere";
  const Prediction alone = predicted(job), both = predicted(value);
  // Forward and backward of the model, and a forward pass of the base, which is as large.
  EXPECT_NEAR(both.model_flops_per_step / alone.model_flops_per_step, 4.0 / 3, 1e-9);
  EXPECT_NEAR(both.time.gemm_seconds / alone.time.gemm_seconds, 4.0 / 3, 0.02);
  EXPECT_EQ(both.time.optimizer_seconds, alone.time.optimizer_seconds);
  // The frozen network has neither gradients nor state of an optimizer.
  EXPECT_EQ(both.memory_per_rank.parameters_bytes, 2 * alone.memory_per_rank.parameters_bytes);
  EXPECT_EQ(both.memory_per_rank.gradients_bytes, alone.memory_per_rank.gradients_bytes);
  EXPECT_EQ(both.memory_per_rank.optimizer_bytes, alone.memory_per_rank.optimizer_bytes);
  // Tensor-parallel ranks have all of it, of its logits their part.
  const auto added = [](const Prediction& with, const Prediction& without) {
    return static_cast<double>(with.memory_per_rank.parameters_bytes -
                               without.memory_per_rank.parameters_bytes);
  };
  job.resources.ranks = job.resources.tensor_parallel = 2;
  value.resources.ranks = value.resources.tensor_parallel = 2;
  const Prediction part_alone = predicted(job), part = predicted(value);
  EXPECT_LE(added(part, part_alone), added(both, alone));
  EXPECT_GT(added(part, part_alone), 0.9 * added(both, alone));
  EXPECT_GT(part.time.gemm_seconds - part_alone.time.gemm_seconds,
            0.7 * (both.time.gemm_seconds - alone.time.gemm_seconds));
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

TEST(PlanJob, CutsABatchForATechniqueThatComparesMicroBatches) {
  JobSpec job = SmallJob();
  job.resources.ranks = 1;
  job.train.global_batch = 2;
  EXPECT_EQ(Best(job, Cluster(1, 4, 16 * kGiB)).micro_batch, 2);
  job.train.gradient_noise_scale = true;
  EXPECT_EQ(Best(job, Cluster(1, 4, 16 * kGiB)).micro_batch, 1);
}

TEST(PlanJob, KeepsWithinTheFewestAndTheMostRanks) {
  JobSpec job = SmallJob();
  const ClusterProfile cluster = Cluster(2, 4, 8 * kGiB);
  for (const bool any_mesh : {false, true}) {
    const auto plans = [&] {
      const auto report = any_mesh ? PlanAnyMesh(job, cluster, 1) : PlanJob(job, cluster);
      return report.ok() ? report->candidates : std::vector<PlanCandidate>{};
    };
    job.resources.min_ranks = 2;
    job.resources.max_ranks = 4;
    ASSERT_FALSE(plans().empty());
    for (const PlanCandidate& candidate : plans()) {
      EXPECT_GE(RankCount(candidate.plan.mesh), 2);
      EXPECT_LE(RankCount(candidate.plan.mesh), 4);
    }
    job.resources.max_ranks = 1;
    job.resources.min_ranks = 0;
    ASSERT_FALSE(plans().empty());
    EXPECT_EQ(RankCount(plans().front().plan.mesh), 1);
  }
  job.resources.min_ranks = 16;
  job.resources.max_ranks = 0;
  EXPECT_THAT(PlanJob(job, cluster).status().message(), HasSubstr("resources.min_ranks"));
}

TEST(PlanJob, TakesNoMoreRanksThanATechniqueHasPartsFor) {
  JobSpec job = SmallJob();
  job.model.heads = 2;
  job.train.local_steps = 8;
  const auto most_ranks = [&] {
    int64_t most = 0;
    for (const bool any_mesh : {false, true}) {
      const auto report = any_mesh ? PlanAnyMesh(job, Cluster(2, 4, 8 * kGiB), 1)
                                   : PlanJob(job, Cluster(2, 4, 8 * kGiB));
      EXPECT_TRUE(report.ok()) << report.status().message();
      if (!report.ok()) return most;
      for (const PlanCandidate& candidate : report->candidates) {
        most = std::max(most, RankCount(candidate.plan.mesh));
      }
    }
    return most;
  };
  EXPECT_GT(most_ranks(), 2);
  job.train.local_sub_networks = true;
  EXPECT_EQ(most_ranks(), 2);
}

TEST(PlanJob, CountsWhatTensorParallelRanksSendForANestedNetwork) {
  JobSpec job = Gpt2Job();
  job.resources.ranks = job.resources.tensor_parallel = 2;
  job.resources.threads_per_rank = 2;
  job.resources.micro_batch = 2;
  const auto exposed = [&] {
    return Best(job, Cluster(1, 4, 64 * kGiB)).prediction.time.exposed_communication_seconds;
  };
  const double alone = exposed();
  EXPECT_GT(alone, 0);
  // In half of the steps a third of the blocks once more: of 4 x 12 + 2 sums of the stream and a
  // gather, 4 x 4 + 2 and a gather.
  job.train.nested_model = {.layers = 4, .joint_share = 0.5};
  EXPECT_NEAR(exposed() / alone, 1 + 0.5 * 18 / 50, 0.02);
}

TEST(PlanJob, CountsTheStepWorkOfTechniquesOnceInAReplicaOfTheModel) {
  JobSpec job = Gpt2Job();
  job.model.low_rank_core.rank = 64;
  job.resources.threads_per_rank = 2;
  job.resources.micro_batch = 2;
  const auto flops = [&](int64_t tensor, int64_t pipeline, int64_t data) {
    job.resources.tensor_parallel = tensor;
    job.resources.pipeline_parallel = pipeline;
    job.resources.ranks = tensor * pipeline * data;
    return Best(job, Cluster(2, 4, 64 * kGiB)).prediction.model_flops_per_step;
  };
  const double one = flops(1, 1, 1);
  EXPECT_DOUBLE_EQ(flops(2, 1, 1), one);
  EXPECT_DOUBLE_EQ(flops(1, 2, 1), one);
  // Each of two replicas makes its weights.
  const double two = flops(1, 1, 2);
  EXPECT_GT(two, one);
  EXPECT_DOUBLE_EQ(flops(2, 1, 2), two);
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

  const auto images = [&](int64_t side) {
    return predict([&](JobSpec& job) {
      job.model.family = "vit";
      job.model.vocab_size = 0;
      job.model.classes = 10;
      job.model.image_size = side;
      job.train.sequence_length = 0;
    });
  };
  const auto small = images(112), large = images(224);
  // Four times the patches, and a class token; the optimizer has as much to do as before.
  EXPECT_GT(large.model_flops_per_step / small.model_flops_per_step, 3.9);
  EXPECT_GT(large.step_seconds / small.step_seconds, 2);
  EXPECT_EQ(large.memory_per_rank.gradients_bytes - small.memory_per_rank.gradients_bytes,
            4 * (14 * 14 - 7 * 7) * 768);
}

TEST(PlanJob, PlansSixtyFourWorkersAsFastAsAFew) {
  JobSpec job = Gpt2Job();
  job.train.global_batch = 512;
  // The least processor time of some, so that whoever else uses the machine does not count.
  const auto seconds = [&](int workers) {
    const ClusterProfile cluster = Cluster(workers, 64, 256 * kGiB);
    double least = 1e9;
    for (int i = 0; i < 5; ++i) {
      const std::clock_t start = std::clock();
      EXPECT_TRUE(PlanJob(job, cluster).ok());
      least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return least;
  };
  // There are more meshes of them, but what is slower than the best is not looked at.
  const double few = seconds(4), many = seconds(64);
  EXPECT_LT(many, 4 * few);
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
  EXPECT_THAT(text, Not(HasSubstr("trained"))) << "nothing is frozen";
  EXPECT_EQ(FormatPlanReport({}), "No plans.\n");
}

TEST(PlanJob, SuggestsFourBitsForFrozenWeightsThatDoNotFit) {
  const ClusterProfile cluster = Cluster(1, 1, kGiB / 16);
  const auto refusal = [&](const JobSpec& job) { return PlanJob(job, cluster).status().message(); };
  const auto suggests = HasSubstr("model.weight_quantization.type nf4");
  JobSpec job = Gpt2Job();
  EXPECT_THAT(refusal(job), AllOf(HasSubstr("no plan fits"), Not(suggests)));
  job.model.peft.method = "lora";
  EXPECT_THAT(refusal(job), AllOf(HasSubstr("no plan fits"), suggests));
  job.model.peft.method = "loha";
  EXPECT_THAT(refusal(job), Not(suggests)) << "its products read merged weights";
  job.model.peft.method = "lora";
  job.model.weight_quantization.type = "nf4";
  EXPECT_THAT(refusal(job), AllOf(HasSubstr("no plan fits"), Not(suggests)));
}

TEST(FormatPlanReport, ShowsWhatFrozenWeightsSave) {
  JobSpec job = Gpt2Job();
  job.model.peft.method = "lora";
  job.model.peft.rank = 8;
  const PlanReport report = *PlanJob(job, Cluster(1, 2, 64 * kGiB));
  // Of each block the factors of the product to queries, keys and values.
  EXPECT_EQ(report.trained_parameters, 12 * 8 * (768 + 3 * 768));
  EXPECT_GT(report.skipped_weight_gradient_flops, 0);
  EXPECT_GT(report.unkept_activation_bytes, 0);
  const std::string text = FormatPlanReport(report);
  for (const char* part : {"trained", "295 K of 125 M (0.24 %)", "weight gradients skipped",
                           "FLOPs a step", "activations not kept"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace weft::planner
