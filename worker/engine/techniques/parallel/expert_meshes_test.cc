// Mixtures of experts on meshes of three and more kinds of parallelism, against one rank.
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/expert_run.h"

namespace weft::engine {
namespace {

ModelSpec Model() {
  ModelSpec model = MixtralModel();
  model.layers = 4;
  model.untied_classifier = false;
  return model;
}

void ExpectAllFollow(const std::vector<ExpertRunConfig>& all, const ModelSpec& model = Model()) {
  std::map<double, MeshOutcome> wholes;  // by capacity
  for (const ExpertRunConfig& config : all) {
    SCOPED_TRACE(NameOf(config));
    MeshCase c = CaseOf(config, model);
    c.job.optimizer.layer_decay = 0.9;
    c.job.optimizer.groups.emplace_back().parameters = {"*.0.*.experts.3.*", "*.3.self_attn.*"};
    c.job.optimizer.groups.back().learning_rate_scale = 0.5;
    if (!wholes.contains(config.capacity)) wholes[config.capacity] = TrainOnMesh(c.Whole()).front();
    ExpectFollows(TrainOnMesh(c), wholes[config.capacity], 1e-5, 5e-4);
  }
}

TEST(ExpertMeshes, StagesFollowOneRank) {
  const std::vector<int64_t> twos = {2, 2}, each = {1, 1, 1, 1};
  ExpectAllFollow({{.cut = twos},
                   {.cut = each, .schedule = "gpipe"},
                   {.policy = "recompute", .cut = each, .schedule = "interleaved", .chunks = 2},
                   {.ranks = 2, .zero_stage = 1, .cut = {3, 1}},
                   {.ranks = 2, .expert = 2, .cut = twos, .schedule = "zero_bubble"},
                   {.ranks = 2, .expert = 2, .cut = twos},
                   {.ranks = 4, .expert = 2, .policy = "recompute", .cut = twos},
                   {.ranks = 4, .expert = 4, .capacity = 1, .zero_stage = 1, .cut = twos},
                   {.ranks = 4, .expert = 2, .zero_stage = 1, .cut = twos},
                   {.ranks = 2,
                    .expert = 2,
                    .zero_stage = 1,
                    .cut = each,
                    .schedule = "interleaved",
                    .chunks = 2}});
}

// Ranks have other experts and the same scales.
TEST(ExpertMeshes, ExpertsInFp8FollowOneRank) {
  for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{
           {.ranks = 2, .expert = 2, .precision = "fp8"},
           {.ranks = 4, .expert = 2, .policy = "recompute", .precision = "fp8", .zero_stage = 1}}) {
    SCOPED_TRACE(NameOf(config));
    MeshCase c = CaseOf(config, Model());
    // Roundings choose no expert, and little follows from them.
    c.job.model.experts_per_token = c.job.model.experts;
    c.job.optimizer.learning_rate = 1e-4;
    c.job.train.steps = 4;
    const MeshOutcome whole = TrainOnMesh(c.Whole()).front();
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
    ExpectFollows(ranks, whole, 1e-2, 2e-2);
    for (const MeshOutcome& own : ranks) {
      EXPECT_EQ(own.state.tensors.contains("fp8/scales"), &own == ranks.data());
    }
  }
}

// Chunks of a sequence are balanced together.
TEST(ExpertMeshes, RanksThatShareSequencesFollowOneRank) {
  ExpectAllFollow({{.context = 2},
                   {.ranks = 2, .policy = "recompute", .context = 2},
                   {.ranks = 2, .expert = 2, .context = 2, .method = "ulysses"},
                   {.ranks = 4, .expert = 2, .policy = "recompute", .context = 2},
                   {.ranks = 2, .expert = 2, .context = 3},
                   {.capacity = 0.8, .context = 2},
                   {.ranks = 2, .expert = 2, .capacity = 0.8, .policy = "recompute", .context = 3},
                   {.ranks = 2, .expert = 2, .zero_stage = 1, .context = 2},
                   {.ranks = 4, .expert = 2, .zero_stage = 3, .context = 2},
                   {.ranks = 4, .expert = 2, .zero_stage = 3, .context = 2, .shard_ranks = 4}});
}

TEST(ExpertMeshes, RanksThatShareMatricesFollowOneRank) {
  const std::vector<int64_t> twos = {2, 2};
  ModelSpec model = Model();
  model.kv_heads = 2;
  ExpectAllFollow({{.tensor = 2},
                   {.ranks = 2, .policy = "recompute", .tensor = 2},
                   {.policy = "recompute", .tensor = 2, .sequence = true},
                   {.ranks = 2, .expert = 2, .capacity = 1, .tensor = 2},
                   {.ranks = 4, .expert = 2, .zero_stage = 2, .tensor = 2, .sequence = true},
                   {.ranks = 2, .expert = 2, .zero_stage = 3, .tensor = 2},
                   {.ranks = 2, .expert = 2, .zero_stage = 1, .cut = twos, .tensor = 2}},
                  model);
}

// The same ranks without stages have these bits, where nothing is added up that stages have apart.
TEST(ExpertMeshes, StagesLeaveTheSameBits) {
  ModelSpec model = Model();
  model.untied_classifier = true;
  for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{
           {.ranks = 4, .expert = 2, .cut = {2, 2}},
           {.ranks = 2, .cut = {2, 2}, .schedule = "zero_bubble"},
           {.ranks = 2, .precision = "fp8", .cut = {2, 2}, .schedule = "zero_bubble"},
           {.ranks = 2, .expert = 2, .precision = "fp8", .cut = {2, 2}},
           {.ranks = 2,
           .expert = 2,
           .policy = "recompute",
           .cut = {2, 2},
           .schedule = "zero_bubble"},
           {.ranks = 4, .expert = 4, .capacity = 1, .zero_stage = 1, .cut = {2, 2}}}) {
    SCOPED_TRACE(NameOf(config));
    ExpertRunConfig plain = config;
    plain.cut = {};
    plain.zero_stage = 0;
    const std::vector<MeshOutcome> stages = TrainOnMesh(CaseOf(config, model));
    const std::vector<MeshOutcome> ranks = TrainOnMesh(CaseOf(plain, model));
    size_t compared = 0;
    for (size_t rank = 0; rank < stages.size(); ++rank) {
      for (const auto& [name, values] : stages[rank].values) {
        EXPECT_EQ(values, ranks[rank % ranks.size()].values.at(name)) << name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, ranks.size() * ranks[0].values.size());
  }
}

}  // namespace
}  // namespace weft::engine
