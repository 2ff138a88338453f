// Mixtures of experts whose frozen experts are quantised, against one with the weights that these
// stand for, and on meshes against one rank.
#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/techniques/weight_quantization/quantized_testing.h"
#include "worker/engine/testing/expert_run.h"
#include "worker/engine/testing/saved_files.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

/// A mixture whose parts on two tensor-parallel ranks are whole blocks of 32.
ModelSpec Mixture() {
  ModelSpec model = MixtralModel();
  model.width = 64;
  model.kv_heads = 2;
  model.mlp_width = 64;
  model.peft.method = "lora";
  model.peft.rank = 4;
  model.peft.target_modules = {"all-linear"};
  model.weight_quantization = {.type = "nf4", .block_size = 32};
  return model;
}

bool OfExpert(const std::string& name) {
  return name.find(".experts.") != std::string::npos;
}

// The same products of the same numbers, so every bit is the same.
TEST(QuantizedExperts, ComputeWhatTheDequantizedMixtureDoes) {
  for (const auto& [precision, type] :
       {std::pair("fp32", "nf4"), std::pair("bf16", "fp4"), std::pair("fp16", "nf4")}) {
    for (const char* policy : {"keep", "recompute"}) {
      SCOPED_TRACE(std::string(precision) + " " + type + " " + policy);
      ModelSpec model = Mixture();
      model.weight_quantization.type = type;
      Plan plan = TinyPlan(precision, 2, 2);
      plan.block_memory_policy = {policy, policy};
      TinyRun quantized(model, ModelOptionsOf(plan));
      TinyRun plain(Unquantized(model), ModelOptionsOf(plan));
      Couple(model, quantized.model->parameters(), plain.model->parameters());
      ASSERT_TRUE(plain.model->Pack(plain.context).ok());
      ASSERT_TRUE(quantized.model->Pack(quantized.context).ok());
      RandomTokens tokens{model.vocab_size, model.context};
      const auto batch = tokens.Get(3, 0, 2);
      ASSERT_TRUE(batch.ok());
      EXPECT_EQ(quantized.Logits(*batch), plain.Logits(*batch));
      EXPECT_EQ(quantized.Differentiate(*batch), plain.Differentiate(*batch));
      const ParameterSet& parameters = plain.model->parameters();
      int64_t trained = 0;
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].trainable()) continue;
        ++trained;
        const int64_t other = *quantized.model->parameters().Find(parameters[i].name);
        EXPECT_EQ(ValuesOf(parameters.gradient(i)),
                  ValuesOf(quantized.model->parameters().gradient(other)))
            << parameters[i].name;
      }
      EXPECT_GT(trained, 0);
    }
  }
}

// All experts are quantised, and no router is. Of two expert-parallel ranks each has half of them.
TEST(QuantizedExperts, AreThoseThatAreCounted) {
  const ModelSpec model = Mixture();
  const std::vector<ParameterInfo> counted = ParametersOf(model);
  const TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  ASSERT_EQ(parameters.size(), std::ssize(counted));
  int64_t quantized = 0, of_experts = 0;
  for (const ParameterInfo& info : counted) {
    const Parameter& parameter = parameters[*parameters.Find(info.name)];
    EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
    if (OfExpert(info.name) && info.is_weight()) {
      EXPECT_GT(info.quantized_words, 0) << info.name;
      of_experts += info.Elements();
    }
    if (info.quantized_words == 0) continue;
    EXPECT_NE(info.role, ParameterRole::kRouter) << info.name;
    quantized += info.Elements();
  }
  EXPECT_EQ(of_experts, model.layers * model.experts * 3 * model.width * model.mlp_width);
  const ModelShape whole(model), half = ModelShape::OfExpertRank(model, 2);
  EXPECT_EQ(whole.quantized, quantized);
  EXPECT_EQ(half.quantized, quantized - of_experts / 2);
  EXPECT_EQ(whole.quantized_block.numbers, quantized / model.layers);
  EXPECT_EQ(half.quantized_block.numbers, (quantized - of_experts / 2) / model.layers);
}

/// A training of a few steps, which trains `saved` whole besides adapters.
MeshCase QuantizedCase(const ExpertRunConfig& config, const std::vector<std::string>& saved = {}) {
  ModelSpec model = Mixture();
  model.peft.modules_to_save = saved;
  MeshCase c = CaseOf(config, model);
  c.job.train.steps = 4;
  return c;
}

/// The names of what a layer has of quantised experts: values, scales, and what else begins with
/// the name of such a weight.
std::vector<std::string> WordsOfExperts(const SavedState& state, int64_t layer) {
  const std::string of_layer = ".layers." + std::to_string(layer) + ".", end = ".weight";
  std::vector<std::string> names;
  for (const auto& [name, values] : state.tensors) {
    if (!OfExpert(name) || name.find(of_layer) == std::string::npos) continue;
    const std::string weight = name.substr(0, name.find(end) + end.size());
    if (state.tensors.contains(weight + ".scales")) names.push_back(name);
  }
  return names;
}

// What is not trained is the same bit for bit, wherever it is. The experts of one layer may be
// trained whole.
TEST(QuantizedExperts, MeshesFollowOneRank) {
  for (const std::vector<std::string>& saved :
       std::vector<std::vector<std::string>>{{}, {"*.layers.1.*.experts.*"}}) {
    const MeshOutcome whole = TrainOnMesh(QuantizedCase({}, saved)).front();
    std::vector<std::string> words = WordsOfExperts(whole.state, 0);
    const std::vector<std::string> of_last = WordsOfExperts(whole.state, 1);
    EXPECT_GT(words.size(), 0u);
    EXPECT_EQ(of_last.size(), saved.empty() ? words.size() : 0u);
    words.insert(words.end(), of_last.begin(), of_last.end());
    for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{
             {.ranks = 4, .expert = 2},
             {.ranks = 4, .expert = 2, .zero_stage = 1},
             {.ranks = 2, .expert = 2, .policy = "recompute", .zero_stage = 3},
             {.ranks = 4, .expert = 2, .zero_stage = 3},
             {.ranks = 2, .expert = 2, .tensor = 2},
             {.ranks = 2, .expert = 2, .cut = {1, 1}}}) {
      SCOPED_TRACE(NameOf(config) + (saved.empty() ? "" : ", trains the experts of a layer"));
      const std::vector<MeshOutcome> ranks = TrainOnMesh(QuantizedCase(config, saved));
      ExpectFollows(ranks, whole, 2e-5, 5e-4);
      SavedState state;
      for (const MeshOutcome& rank : ranks) state.Add(rank.state);
      for (const std::string& name : words) {
        EXPECT_EQ(state.tensors.at(name), whole.state.tensors.at(name)) << name;
      }
    }
  }
}

TEST(QuantizedExperts, CheckpointsAreReadOnOtherMeshesBitForBit) {
  const auto on_ranks = [](const ExpertRunConfig& config, const auto& run) {
    const MeshCase c = QuantizedCase(config);
    RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
      MeshRank rank(c, world);
      run(rank, world);
    });
  };
  const ExpertRunConfig one = {}, one_each = {.ranks = 4, .expert = 4};
  const ExpertRunConfig sharded = {.ranks = 4, .expert = 2, .zero_stage = 3};
  for (const ExpertRunConfig& from : {one, one_each, sharded}) {
    SavedFiles files;
    on_ranks(from, [&](MeshRank& rank, Collective& world) {
      ASSERT_TRUE(rank.trainer->Step().ok());
      files.Write(*rank.trainer, world);
    });
    for (const ExpertRunConfig& to : {one, sharded}) {
      SCOPED_TRACE(NameOf(from) + " to " + NameOf(to));
      SavedState read;
      std::mutex mutex;
      on_ranks(to, [&](MeshRank& rank, Collective&) {
        // Training has left the words as they were at the start.
        ParameterSet& parameters = rank.run.model->parameters();
        const auto words = HeldWords(parameters);
        ASSERT_TRUE(parameters.Initialize(99).ok());
        EXPECT_TRUE(HeldWords(parameters) != words);
        const Status status = files.Read(*rank.trainer);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(HeldWords(parameters) == words);
        const std::lock_guard lock(mutex);
        read.Add(rank.trainer->StateTensors());
      });
      EXPECT_TRUE(read.tensors == files.state().tensors);
    }
  }
}

}  // namespace
}  // namespace weft::engine
