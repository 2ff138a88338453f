// Virtual tokens of a BERT: where they are, and what reads them.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/peft_adapter.h"
#include "common/model/parameter_list.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVirtual = 3;
constexpr int64_t kLength = 8;
constexpr int64_t kClasses = 5;

struct Case {
  const char* method;
  bool projects = false;
  bool masked = false;  ///< Otherwise it classifies texts.
};

std::vector<Case> Cases() {
  return {{"prompt"},
          {"p_tuning"},
          {"prefix"},
          {"prefix", true},
          {"prompt", false, true},
          {"p_tuning", false, true}};
}

std::string NameOf(const Case& c) {
  return std::string(c.projects ? "projected " : "") + c.method + (c.masked ? " masked" : "");
}

ModelSpec ModelOf(const Case& c) {
  ModelSpec model = TinyModel();
  model.family = "bert";
  model.head = c.masked ? "masked_lm" : "classification";
  model.classes = c.masked ? 0 : kClasses;
  model.peft.method = c.method;
  model.peft.num_virtual_tokens = kVirtual;
  model.peft.prefix_projection = c.projects;
  if (!c.masked) model.peft.modules_to_save = {"classifier"};
  return model;
}

/// The tokens of two pairs of texts from place `from` on, the second of them shorter, with padding
/// where both are in the batch. Both have the same tokens at the places of virtual ones.
Batch PairsFrom(int64_t from, bool masked, int64_t first_pair = 0) {
  const int64_t all = kVirtual + kLength, length = first_pair == 0 ? all - from : all - from - 3;
  Batch batch;
  batch.sequences = 2 - first_pair;
  batch.length = length;
  for (int64_t pair = first_pair; pair < 2; ++pair) {
    const auto row = static_cast<int32_t>(batch.tokens.size());
    const int64_t own = pair == 0 ? length : all - from - 3;
    batch.sequence_starts.push_back(row);
    if (own < length) batch.sequence_starts.push_back(row + static_cast<int32_t>(own));
    batch.lengths.push_back(static_cast<int32_t>(own));
    for (int64_t i = 0; i < length; ++i) {
      const int64_t place = from + i, differs = place < kVirtual ? 0 : 11 * pair;
      batch.tokens.push_back(static_cast<int32_t>((7 * place + differs + 3) % 50));
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.token_types.push_back(place < kVirtual + 3 ? 0 : 1);
      const bool asked = place == kVirtual + 1 || place == kVirtual + 4;
      if (!masked) continue;
      batch.targets.push_back(asked ? static_cast<int32_t>(place) : kernels::kIgnoreTarget);
      if (asked) batch.target_rows.push_back(row + static_cast<int32_t>(i));
    }
    if (!masked) batch.labels.push_back(static_cast<int32_t>(2 * pair + 1));
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
  batch.target_count = masked ? std::ssize(batch.target_rows) : batch.sequences;
  return batch;
}

/// Matrices as large that products keep the size of what they read: losses in f32 then resolve what
/// virtual tokens change.
void EnlargeFrozen(TinyRun& run) {
  ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].frozen || parameters[i].shape.rank < 2) continue;
    const TensorView view = parameters.value(i);
    const std::vector<float> added =
        Normal(static_cast<size_t>(view.shape.Elements()), 90 + static_cast<uint64_t>(i), 0.2);
    for (size_t k = 0; k < added.size(); ++k) view.As<float>()[k] += added[k];
  }
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

// The first of them is then what the pooler reads, as in peft.
TEST(EncoderVirtualTokens, PromptsOfRealTokensAreTheseTokens) {
  for (const bool masked : {false, true}) {
    SCOPED_TRACE(masked ? "masked" : "classified");
    const ModelSpec model = ModelOf({"prompt", false, masked});
    TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun plain(WithoutPeft(model), ModelOptionsOf(TinyPlan("fp32")));
    const Batch whole = PairsFrom(0, masked);
    const ParameterSet& of_plain = plain.model->parameters();
    const auto table = of_plain.Find("bert.embeddings.word_embeddings.weight");
    const auto prompt = run.model->parameters().Find("prompt_embeddings");
    ASSERT_TRUE(table.ok() && prompt.ok());
    const float* const vectors = of_plain.value(*table).As<float>();
    float* const values = run.model->parameters().value(*prompt).As<float>();
    for (int64_t i = 0; i < kVirtual; ++i) {
      const float* const vector = vectors + whole.tokens[static_cast<size_t>(i)] * model.width;
      std::copy(vector, vector + model.width, values + i * model.width);
    }
    ASSERT_TRUE(run.model->Pack(run.context).ok());
    EXPECT_LT(Difference(Wide(run.Logits(PairsFrom(kVirtual, masked))), Wide(plain.Logits(whole))),
              1e-5);
  }
}

TEST(EncoderVirtualTokens, NoTokenSeesPadding) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    TinyRun run(ModelOf(c), ModelOptionsOf(TinyPlan("fp32")));
    const std::vector<float> both = run.Logits(PairsFrom(kVirtual, c.masked));
    const std::vector<float> alone = run.Logits(PairsFrom(kVirtual, c.masked, 1));
    ASSERT_EQ(both.size(), 2 * alone.size());
    const std::vector<float> second(both.end() - std::ssize(alone), both.end());
    EXPECT_LT(Difference(Wide(second), Wide(alone)), 1e-5);
    // They do something.
    TinyRun plain(WithoutPeft(ModelOf(c)), ModelOptionsOf(TinyPlan("fp32")));
    const Doubles without = Wide(plain.Logits(PairsFrom(kVirtual, c.masked)));
    EXPECT_GT(Difference(Wide(both), without), 1e-3);
  }
}

TEST(EncoderVirtualTokens, TheLossChangesAsGradientsSay) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    TinyRun run(ModelOf(c), ModelOptionsOf(TinyPlan("fp32")));
    EnlargeFrozen(run);
    const Batch batch = PairsFrom(kVirtual, c.masked);
    const double loss = run.Differentiate(batch);
    EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Loss(batch); }), 0);
  }
}

TEST(EncoderVirtualTokens, ParametersAreThoseThatAreCounted) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    const ModelSpec model = ModelOf(c);
    const std::vector<ParameterInfo> counted = ParametersOf(model);
    const TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    ASSERT_EQ(parameters.size(), std::ssize(counted));
    for (const ParameterInfo& info : counted) {
      const auto index = parameters.Find(info.name);
      ASSERT_TRUE(index.ok()) << info.name;
      const Parameter& parameter = parameters[*index];
      EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
      EXPECT_EQ(parameter.unit, info.unit) << info.name;
      EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
      const bool whole = info.name.starts_with("classifier.") && !c.masked;
      EXPECT_EQ(info.frozen, info.adapter == AdapterSide::kNone && !whole) << info.name;
    }
  }
}

TEST(EncoderVirtualTokens, MeshesFollowOneRank) {
  for (const Case& method : {Case{"prompt"}, Case{"prefix", true}}) {
    MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
    c.job.resources.device = "cpu";
    c.job.model = ModelOf(method);
    c.job.train.sequence_length = kLength;
    c.job.train.steps = 3;
    c.job.train.log_every_steps = 1;
    c.job.optimizer.learning_rate = 3e-3;
    c.plan.bucket_bytes = 4000;
    c.tokens = [] {
      return std::make_unique<RandomLabelled>(TinyModel().vocab_size, kLength, kClasses);
    };
    const MeshOutcome whole = TrainOnMesh(c).front();
    for (const int64_t stage : {0, 1, 3}) {
      SCOPED_TRACE(NameOf(method) + ", stage " + std::to_string(stage));
      MeshCase meshes = c;
      meshes.plan.mesh.data = 2;
      meshes.plan.accumulation_steps = 1;
      meshes.plan.zero_stage = stage;
      meshes.plan.block_memory_policy = {"recompute", "attention"};
      ExpectFollows(TrainOnMesh(meshes), whole, 2e-5, 1e-4);
    }
  }
}

TEST(EncoderVirtualTokens, AFolderHasThemAndTheClassifier) {
  const std::string folder = ::testing::TempDir() + "encoder_virtual_tokens";
  for (const Case& c : Cases()) {
    SCOPED_TRACE(NameOf(c));
    TinyRun run(ModelOf(c), ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    const Status written = ExportAdapterWeights(Env::Posix(), folder, *run.model);
    ASSERT_TRUE(written.ok()) << written.message();
    ModelSpec again = WithoutPeft(ModelOf(c));
    const auto peft = ReadAdapterConfig(Env::Posix(), folder, again);
    ASSERT_TRUE(peft.ok()) << peft.status().message();
    EXPECT_EQ(peft->modules_to_save, ModelOf(c).peft.modules_to_save);
    again.peft = *peft;
    TinyRun read(again, ModelOptionsOf(TinyPlan("fp32")));
    const Status imported = ImportAdapterWeights(Env::Posix(), folder, *read.model);
    ASSERT_TRUE(imported.ok()) << imported.message();
    ASSERT_TRUE(read.model->Pack(read.context).ok());
    const Batch batch = PairsFrom(kVirtual, c.masked);
    EXPECT_LT(Difference(Wide(read.Logits(batch)), Wide(run.Logits(batch))), 1e-5);
  }
}

TEST(EncoderVirtualTokens, NamesWhatDoesNotFit) {
  const auto refusal = [](const Case& c, const std::string& batching) {
    JobSpec job = TinyJob(4);
    job.model = ModelOf(c);
    job.train.sequence_length = kLength;
    job.data.batching = batching;
    return std::string(ValidateJob(job).message());
  };
  EXPECT_EQ(refusal({"prompt"}, "pad_uniform"), "");
  EXPECT_EQ(refusal({"prefix", true}, "pad_fixed"), "");
  EXPECT_EQ(refusal({"prompt", false, true}, "concatenate"), "");
  EXPECT_THAT(refusal({"prefix", false, true}, "concatenate"),
              HasSubstr("model.peft.method prefix does not go with model.head masked_lm, because "
                        "masked language models of transformers take no keys and values"));
}

}  // namespace
}  // namespace weft::engine
