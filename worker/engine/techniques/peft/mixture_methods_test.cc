// Other methods than LoRA on mixtures of experts: they adapt the attention, train parts of the
// network whole, or are grafts. That grafts compute what they should is in tests/parity.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/peft_adapter.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "worker/engine/models/model.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/testing/expert_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

struct Method {
  const char* name;
  std::function<void(PeftSpec&)> change;
};

std::vector<Method> Methods() {
  return {
      {"dora",
       [](PeftSpec& spec) {
         spec.method = "lora";
         spec.use_dora = true;
       }},
      {"adalora",
       [](PeftSpec& spec) {
         spec.method = "adalora";
         spec.rank = PeftSpec().rank;
         spec.adalora.init_r = 4;
         spec.adalora.target_r = 2;
         spec.adalora.tinit = spec.adalora.tfinal = 1;
       }},
      {"loha", [](PeftSpec& spec) { spec.method = "loha"; }},
      {"lokr",
       [](PeftSpec& spec) {
         spec.method = "lokr";
         spec.target_modules = {"q_proj", "o_proj"};
       }},
      {"oft",
       [](PeftSpec& spec) {
         spec.method = "oft";
         spec.oft_block_size = 8;
       }},
      {"vera", [](PeftSpec& spec) { spec.method = "vera"; }},
      {"miss", [](PeftSpec& spec) { spec.method = "miss"; }},
      {"ia3", [](PeftSpec& spec) { spec.method = "ia3"; }},
      {"norms",
       [](PeftSpec& spec) {
         spec.method = "selective";
         spec.modules_to_save = {"input_layernorm", "post_attention_layernorm", "norm"};
       }},
  };
}

std::vector<Method> Bottlenecks() {
  return {
      {"houlsby", [](PeftSpec& spec) { spec.method = "houlsby"; }},
      {"pfeiffer",
       [](PeftSpec& spec) {
         spec.method = "pfeiffer";
         spec.reduction_factor = 4;
       }},
      {"parallel",
       [](PeftSpec& spec) {
         spec.method = "parallel";
         spec.scaling = 4;
       }},
  };
}

constexpr int64_t kVirtual = 4;

std::vector<Method> VirtualTokenMethods() {
  std::vector<Method> methods;
  for (const char* method : {"prompt", "prefix"}) {
    methods.push_back({method, [method](PeftSpec& spec) {
                         spec.method = method;
                         spec.num_virtual_tokens = kVirtual;
                       }});
  }
  methods.push_back({"projected prefix", [](PeftSpec& spec) {
                       spec.method = "prefix";
                       spec.prefix_projection = true;
                       spec.num_virtual_tokens = kVirtual;
                     }});
  return methods;
}

ModelSpec MixtureWithGrafts(const Method& method) {
  ModelSpec model = MixtralModel();
  model.kv_heads = 2;
  method.change(model.peft);
  return model;
}

ModelSpec MixtureWith(const Method& method) {
  ModelSpec model = MixtralModel();
  model.kv_heads = 2;
  model.peft.rank = 4;
  model.peft.alpha = 8;
  method.change(model.peft);
  return model;
}

TEST(MixtureMethods, StartAsTheNetworkAndAreTheirMergedWeights) {
  const ModelSpec plain_model = WithoutPeft(MixtureWith(Methods().front()));
  RandomTokens tokens{plain_model.vocab_size, plain_model.context};
  const auto batch = tokens.Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = ::testing::TempDir() + "peft_of_mixtures";
  TinyRun plain(plain_model, ModelOptionsOf(TinyPlan("fp32")));
  for (const Method& method : Methods()) {
    SCOPED_TRACE(method.name);
    TinyRun run(MixtureWith(method), ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_LT(Difference(Wide(run.Logits(*batch)), Wide(plain.Logits(*batch))), 1e-5);
    Perturb(run, 0.1);
    EXPECT_GT(Difference(Wide(run.Logits(*batch)), Wide(plain.Logits(*batch))), 1e-4);
    ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *run.model, {}).ok());
    TinyRun merged(plain_model, ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *merged.model).ok());
    ASSERT_TRUE(merged.model->Pack(merged.context).ok());
    EXPECT_LT(Difference(Wide(run.Logits(*batch)), Wide(merged.Logits(*batch))), 1e-5);
  }
}

TEST(MixtureMethods, FoldersOfPeftHaveTheSameNetwork) {
  const std::string folder = ::testing::TempDir() + "peft_folders_of_mixtures";
  for (const Method& method : Methods()) {
    SCOPED_TRACE(method.name);
    const ModelSpec model = MixtureWith(method);
    RandomTokens tokens{model.vocab_size, model.context};
    const auto batch = tokens.Get(3, 0, 2);
    ASSERT_TRUE(batch.ok());
    TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    const Status written = ExportAdapterWeights(Env::Posix(), folder, *run.model);
    ASSERT_TRUE(written.ok()) << written.message();
    ModelSpec read = WithoutPeft(model);
    const auto peft = ReadAdapterConfig(Env::Posix(), folder, read);
    ASSERT_TRUE(peft.ok()) << peft.status().message();
    read.peft = *peft;
    EXPECT_EQ(read.peft.method, model.peft.method);
    TinyRun again(read, ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_NE(again.Logits(*batch), run.Logits(*batch));
    ASSERT_TRUE(ImportAdapterWeights(Env::Posix(), folder, *again.model).ok());
    ASSERT_TRUE(again.model->Pack(again.context).ok());
    EXPECT_EQ(again.Logits(*batch), run.Logits(*batch));
  }
}

TEST(MixtureMethods, MeshesFollowOneRank) {
  for (const Method& method : Methods()) {
    const auto case_of = [&](const ExpertRunConfig& config) {
      MeshCase c = CaseOf(config, MixtureWith(method));
      c.job.train.steps = 4;
      return c;
    };
    const MeshOutcome whole = TrainOnMesh(case_of({})).front();
    for (const ExpertRunConfig& config :
         std::vector<ExpertRunConfig>{{.ranks = 2, .expert = 2, .zero_stage = 2},
                                      {.ranks = 2, .expert = 2, .zero_stage = 3, .tensor = 2}}) {
      SCOPED_TRACE(std::string(method.name) + ", " + NameOf(config));
      const bool chooses_ranks = method.name == std::string("adalora");
      ExpectFollows(TrainOnMesh(case_of(config)), whole, 2e-5, chooses_ranks ? 1e-3 : 5e-4);
    }
  }
}

TEST(MixtureMethods, BottlenecksStartAsTheNetworkBitForBit) {
  const ModelSpec plain_model = WithoutPeft(MixtureWithGrafts(Bottlenecks().front()));
  RandomTokens tokens{plain_model.vocab_size, plain_model.context};
  const auto batch = tokens.Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  TinyRun plain(plain_model, ModelOptionsOf(TinyPlan("fp32")));
  for (const Method& method : Bottlenecks()) {
    SCOPED_TRACE(method.name);
    TinyRun run(MixtureWithGrafts(method), ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
    Perturb(run, 0.1);
    EXPECT_NE(run.Logits(*batch), plain.Logits(*batch));
  }
}

// They are behind the mixture, and no expert-parallel rank has others.
TEST(MixtureMethods, BottlenecksAreThoseThatAreCounted) {
  for (const Method& method : Bottlenecks()) {
    SCOPED_TRACE(method.name);
    const ModelSpec model = MixtureWithGrafts(method);
    const std::vector<ParameterInfo> counted = ParametersOf(model);
    const TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    ASSERT_EQ(parameters.size(), std::ssize(counted));
    EXPECT_TRUE(parameters.Find("model.layers.1.block_sparse_moe.adapter_down.weight").ok());
    int64_t trained = 0;
    for (const ParameterInfo& info : counted) {
      const auto index = parameters.Find(info.name);
      ASSERT_TRUE(index.ok()) << info.name;
      const Parameter& parameter = parameters[*index];
      EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
      EXPECT_EQ(parameter.unit, info.unit) << info.name;
      EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
      EXPECT_EQ(info.frozen, info.adapter == AdapterSide::kNone) << info.name;
      if (!info.frozen) trained += info.Elements();
    }
    EXPECT_EQ(ModelShape(model).counts.Total(), parameters.ElementCount());
    EXPECT_EQ(ModelShape(model).trained, trained);
    EXPECT_EQ(ModelShape::OfExpertRank(model, 2).trained, trained);
  }
}

TEST(MixtureMethods, GraftsOnMeshesFollowOneRank) {
  std::vector<Method> methods = Bottlenecks();
  for (Method& method : VirtualTokenMethods()) methods.push_back(std::move(method));
  for (const Method& method : methods) {
    const auto case_of = [&](const ExpertRunConfig& config) {
      MeshCase c = CaseOf(config, MixtureWithGrafts(method));
      c.job.train.steps = 4;
      const int64_t virtual_tokens = VirtualTokensOf(c.job.model).Total();
      if (virtual_tokens > 0) c.job.train.sequence_length = c.job.model.context - virtual_tokens;
      return c;
    };
    const MeshOutcome whole = TrainOnMesh(case_of({})).front();
    for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{
             {.ranks = 2, .expert = 2, .policy = "recompute", .zero_stage = 2},
             {.ranks = 2, .expert = 2, .cut = {1, 1}},
             {.ranks = 2, .expert = 2, .zero_stage = 3, .tensor = 2}}) {
      SCOPED_TRACE(std::string(method.name) + ", " + NameOf(config));
      ExpectFollows(TrainOnMesh(case_of(config)), whole, 2e-5, 5e-4);
    }
  }
}

TEST(MixtureMethods, AFolderHasTheBottlenecks) {
  const std::string folder = ::testing::TempDir() + "bottlenecks_of_mixtures";
  const ModelSpec model = MixtureWithGrafts(Bottlenecks().front());
  TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
  Perturb(run, 0.1);
  ASSERT_TRUE(ExportAdapterWeights(Env::Posix(), folder, *run.model).ok());
  ModelSpec read = WithoutPeft(model);
  const auto peft = ReadAdapterConfig(Env::Posix(), folder, read);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  read.peft = *peft;
  TinyRun again(read, ModelOptionsOf(TinyPlan("fp32")));
  ASSERT_TRUE(ImportAdapterWeights(Env::Posix(), folder, *again.model).ok());
  EXPECT_EQ(again.Parameters(), run.Parameters());
}

TEST(MixtureMethods, NameWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ModelSpec model = MixtralModel();
  const auto refusal = [&](const std::string& method, const std::vector<std::string>& targets) {
    model.peft.method = method;
    model.peft.target_modules = targets;
    return std::string(NewModel(context, model, {}).status().message());
  };
  for (const char* method : {"ia3", "miss", "vera", "loha", "adalora"}) {
    EXPECT_EQ(refusal(method, {"k_proj", "v_proj"}), "");
    for (const char* target : {"w2", "all-linear"}) {
      EXPECT_THAT(refusal(method, {"k_proj", target}),
                  HasSubstr("model.peft.target_modules with experts does not go with "
                            "model.peft.method " +
                            std::string(method)));
    }
  }
}

// peft's default, without the weights of experts.
TEST(MixtureMethods, Ia3ScalesKeysAndValues) {
  ModelSpec model = MixtralModel();
  model.peft.method = "ia3";
  std::vector<std::string> layers;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!parameter.adapter_of.empty() && parameter.block == 0) {
      layers.push_back(parameter.adapter_of);
    }
  }
  EXPECT_THAT(layers, ::testing::ElementsAre("model.layers.0.self_attn.k_proj.weight",
                                             "model.layers.0.self_attn.v_proj.weight"));
}

}  // namespace
}  // namespace weft::engine
