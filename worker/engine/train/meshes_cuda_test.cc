// Model-parallel ranks on several devices, over NCCL, as threads of one process: against the same
// ranks on CPUs over Gloo, and against one rank that has everything.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

// The host execution is slow under a sanitizer, which learns little from more steps.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kSteps = 2;
#else
constexpr int64_t kSteps = 4;
#endif

struct Allowed {
  double loss = 1e-5;
  double weights = 1e-4;
};
constexpr Allowed kExact, kBf16 = {1e-2, 0.1};

MeshCase CaseOf(const ModelSpec& model, const std::string& precision = "fp32", int64_t batch = 4) {
  MeshCase c;
  c.job = TinyJob(batch);
  c.job.model = model;
  c.job.train.steps = kSteps;
  c.job.train.precision = precision;
  c.job.train.log_every_steps = 2;
  c.job.train.eval_sequences = 3;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.optimizer.learning_rate = 1e-2;
  c.plan = TinyPlan(precision, 1, batch);
  c.plan.bucket_bytes = 4000;
  return c;
}

/// Replicas of what is there so far.
MeshCase Replicated(MeshCase c, int64_t data, int64_t zero_stage = 0) {
  c.plan.mesh.data = data;
  c.plan.accumulation_steps = c.job.train.global_batch / data;
  c.plan.zero_stage = zero_stage;
  return c;
}

ModelSpec Gpt2(int64_t layers) {
  ModelSpec spec = TinyModel();
  spec.layers = layers;
  spec.dropout = 0.1;
  spec.attention_dropout = 0.1;
  return spec;
}

ModelSpec Llama(int64_t layers) {
  ModelSpec spec = TinyModel();
  spec.family = "llama";
  spec.layers = layers;
  spec.kv_heads = 2;
  spec.mlp_width = 48;
  return spec;
}

void ExpectClose(const MeshOutcome& got, const MeshOutcome& want, Allowed allowed) {
  ASSERT_EQ(got.reports.size(), want.reports.size());
  for (size_t step = 0; step < want.reports.size(); ++step) {
    const StepReport &a = got.reports[step], &b = want.reports[step];
    EXPECT_NEAR(a.loss / b.loss, 1, allowed.loss) << step;
    EXPECT_NEAR(a.gradient_norm / b.gradient_norm, 1, 10 * allowed.loss) << step;
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.norms.size(), b.norms.size());
    for (size_t g = 0; g < b.norms.size(); ++g) {
      EXPECT_NEAR(a.norms[g].parameter / b.norms[g].parameter, 1, 10 * allowed.loss);
    }
  }
  EXPECT_NEAR(got.evaluation / want.evaluation, 1, allowed.loss);
}

/// The weights that `got` has are those that `want` has of them: |a - b| / |b| over all.
void ExpectSameWeights(const MeshOutcome& got, const MeshOutcome& want, Allowed allowed) {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : got.values) {
    const auto found = want.values.find(name);
    ASSERT_NE(found, want.values.end()) << name;
    const Shard& shard = want.shards.at(name).whole() ? got.shards.at(name) : Shard();
    const std::vector<float> truth = PartOf(found->second, shard, got.shapes.at(name));
    ASSERT_EQ(values.size(), truth.size());
    for (size_t i = 0; i < truth.size(); ++i) {
      difference += std::pow(double{values[i]} - truth[i], 2);
      norm += std::pow(double{truth[i]}, 2);
    }
  }
  EXPECT_LE(difference, std::pow(allowed.weights, 2) * norm);
}

class MeshesOnCuda : public ::testing::Test {
 protected:
  /// Ranks on devices against ranks on CPUs and, where they meet in every step, one rank on a CPU.
  static void Compare(const MeshCase& c, Allowed allowed = kExact) {
    if (kernels::cuda::DeviceCount() < c.ranks()) {
      GTEST_SKIP() << c.ranks() << " ranks, and fewer devices";
    }
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c, DeviceType::kCuda);
    const std::vector<MeshOutcome> on_cpus = TrainOnMesh(c);
    const bool meet = c.job.train.local_steps == 1;
    const MeshOutcome whole = meet ? TrainOnMesh(c.Whole()).front() : MeshOutcome();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(rank);
      const MeshOutcome &own = ranks[rank], &other = on_cpus[rank];
      for (size_t step = 0; meet && step < own.reports.size(); ++step) {
        EXPECT_EQ(own.reports[step].loss, ranks[0].reports[step].loss) << "the same on all ranks";
        EXPECT_EQ(own.reports[step].gradient_norm, ranks[0].reports[step].gradient_norm);
      }
      EXPECT_EQ(own.groups.calls, other.groups.calls);
      EXPECT_EQ(own.groups.bytes, other.groups.bytes);
      EXPECT_EQ(own.peak_in_flight, other.peak_in_flight);
      ExpectClose(own, other, allowed);
      ExpectSameWeights(own, other, allowed);
      if (!meet) continue;
      ExpectClose(own, whole, allowed);
      ExpectSameWeights(own, whole, allowed);
    }
  }
};

MeshCase Grid(MeshCase c, int64_t tensor, int64_t rows) {
  c.plan.mesh.tensor = tensor;
  c.plan.tensor_rows = rows;
  return c;
}

MeshCase Pipeline(MeshCase c, const std::string& schedule, const std::vector<int64_t>& cut,
                  int64_t chunks = 1) {
  c.plan.mesh.pipeline = static_cast<int64_t>(cut.size()) / chunks;
  c.plan.pipeline_schedule = schedule;
  c.plan.pipeline_chunks = chunks;
  c.plan.stage_blocks = cut;
  return c;
}

TEST_F(MeshesOnCuda, StagesOfAPipeline) {
  Compare(Pipeline(CaseOf(Gpt2(4)), "1f1b", {1, 1, 1, 1}));
}

TEST_F(MeshesOnCuda, StagesOfAPipelineThatRecomputes) {
  MeshCase c = Pipeline(CaseOf(Gpt2(2), "bf16"), "gpipe", {1, 1});
  c.plan.block_memory_policy = {"recompute", "recompute"};
  Compare(c, kBf16);
}

TEST_F(MeshesOnCuda, StagesWhoseWeightGradientsWait) {
  Compare(Replicated(Pipeline(CaseOf(Llama(3)), "zero_bubble", {2, 1}), 2, 1));
}

TEST_F(MeshesOnCuda, SeveralStagesARankAndSharedMatrices) {
  MeshCase c = Pipeline(CaseOf(Llama(4)), "interleaved", {1, 1, 1, 1}, 2);
  c.plan.mesh.tensor = 2;
  Compare(c);
}

// Features of the residual stream on two rows, heads and the like on two columns.
TEST_F(MeshesOnCuda, GridsThatShareMatrices) {
  ModelSpec model = Gpt2(2);
  model.dropout = 0;  // of whole rows
  Compare(Grid(CaseOf(model), 4, 2));
}

TEST_F(MeshesOnCuda, RanksThatShareFeaturesAlone) {
  Compare(Grid(CaseOf(Llama(1)), 2, 2));
}

TEST_F(MeshesOnCuda, ReplicasOfGridsThatShardParameters) {
  Compare(Replicated(Grid(CaseOf(Llama(2), "bf16"), 2, 2), 2, 3), kBf16);
}

MeshCase Sharing(MeshCase c, int64_t context, const std::string& method) {
  c.plan.mesh.context = context;
  c.job.resources.context_method = method;
  return c;
}

TEST_F(MeshesOnCuda, RanksHaveAllTokensOfSomeHeads) {
  ModelSpec model = Llama(2);
  model.heads = 4;
  Compare(Sharing(CaseOf(model), 4, "ulysses"));
}

TEST_F(MeshesOnCuda, TwoRanksHaveAllTokensOfSomeHeads) {
  Compare(Sharing(CaseOf(Llama(1), "bf16"), 2, "ulysses"), kBf16);
}

TEST_F(MeshesOnCuda, SequencesWhoseKeysGoRound) {
  Compare(Sharing(CaseOf(Llama(2)), 4, "ring"));
}

TEST_F(MeshesOnCuda, SequencesWhoseKeysGoRoundTwoRanks) {
  Compare(Sharing(CaseOf(Llama(1), "bf16"), 2, "ring"), kBf16);
}

TEST_F(MeshesOnCuda, RanksThatShareSequencesAndParameters) {
  Compare(Sharing(Replicated(CaseOf(Llama(2)), 1, 3), 2, "ring"));
}

TEST_F(MeshesOnCuda, RanksThatShareSequencesAndMatrices) {
  MeshCase c = Sharing(CaseOf(Llama(1)), 2, "ring");
  c.plan.mesh.tensor = 2;
  c.plan.sequence_parallel = true;
  Compare(c);
}

TEST_F(MeshesOnCuda, StagesWhoseRanksShareSequences) {
  Compare(Sharing(Pipeline(CaseOf(Llama(2)), "1f1b", {1, 1}), 2, "ulysses"));
}

ModelSpec Mixtral(int64_t layers) {
  ModelSpec model = Llama(layers);
  model.experts = 4;
  model.experts_per_token = 2;
  model.router_aux_loss = 0.05;
  return model;
}

/// The case with expert-parallel groups of `expert` replicas.
MeshCase SharingExperts(MeshCase c, int64_t expert) {
  c.plan.mesh.data /= expert;
  c.plan.mesh.expert = expert;
  return c;
}

TEST_F(MeshesOnCuda, RanksThatShareExperts) {
  Compare(SharingExperts(Replicated(CaseOf(Mixtral(1)), 2), 2));
}

TEST_F(MeshesOnCuda, RanksThatShareExpertsAndUpdates) {
  Compare(SharingExperts(Replicated(CaseOf(Mixtral(1)), 4, 1), 2));
}

TEST_F(MeshesOnCuda, RanksThatShareExpertsAndUpdatesInGroups) {
  MeshCase c = SharingExperts(Replicated(CaseOf(Mixtral(1)), 4, 1), 2);
  c.plan.zero_shard_ranks = 2;
  Compare(c);
}

TEST_F(MeshesOnCuda, RanksThatShareExpertsAndParameters) {
  Compare(SharingExperts(Replicated(CaseOf(Mixtral(2)), 4, 3), 2));
}

TEST_F(MeshesOnCuda, RanksThatShareMatricesAndExperts) {
  Compare(SharingExperts(Replicated(Grid(CaseOf(Mixtral(1)), 2, 1), 2), 2));
}

TEST_F(MeshesOnCuda, RanksThatShareMatricesOfExpertsAndTokens) {
  MeshCase c = Grid(CaseOf(Mixtral(2)), 2, 1);
  c.plan.sequence_parallel = true;
  Compare(c);
}

TEST_F(MeshesOnCuda, StagesOfExperts) {
  Compare(Pipeline(CaseOf(Mixtral(2)), "1f1b", {1, 1}));
}

TEST_F(MeshesOnCuda, StagesOfExpertsWhoseWeightsWait) {
  Compare(SharingExperts(Replicated(Pipeline(CaseOf(Mixtral(2)), "zero_bubble", {1, 1}), 2), 2));
}

TEST_F(MeshesOnCuda, StagesWhoseRanksShareExperts) {
  Compare(SharingExperts(Replicated(Pipeline(CaseOf(Mixtral(2)), "1f1b", {1, 1}), 2, 1), 2));
}

TEST_F(MeshesOnCuda, RanksThatShareSequencesAndExperts) {
  MeshCase c = SharingExperts(Replicated(CaseOf(Mixtral(1)), 2), 2);
  Compare(Sharing(c, 2, "ring"));
}

// They are rounded as often on processors, where sums are made in f32.
TEST_F(MeshesOnCuda, GradientsAreSentInBFloat16) {
  for (const int64_t zero_stage : {0, 2}) {
    MeshCase c = Replicated(CaseOf(Llama(1)), 2, zero_stage);
    c.plan.gradient_reduction = "bf16";
    Compare(c, kBf16);
  }
}

TEST_F(MeshesOnCuda, RanksThatRarelyMeet) {
  MeshCase c = Replicated(CaseOf(Gpt2(1)), 2);
  c.job.train.local_steps = 2;
  Compare(c);
}

TEST_F(MeshesOnCuda, RanksThatRarelyMeetAndTrainPartsOfTheNetwork) {
  for (const auto& [precision, allowed] : {std::pair{"fp32", kExact}, {"bf16_pure", kBf16}}) {
    MeshCase c = Replicated(CaseOf(Llama(1), precision), 2);
    c.job.train.local_steps = 2;
    c.job.train.local_sub_networks = true;
    Compare(c, allowed);
  }
}

TEST_F(MeshesOnCuda, WorkersThatRarelyMeetAndShareSequences) {
  MeshCase c = Sharing(Replicated(CaseOf(Llama(1)), 2), 2, "ring");
  c.job.train.local_steps = 2;
  Compare(c);
}

}  // namespace
}  // namespace weft::engine
