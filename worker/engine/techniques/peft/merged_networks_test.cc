// Networks whose weights have adapters merged into them, against those without, on meshes, and in
// peft's folders.
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/peft_adapter.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/model/pipeline_shape.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/merging_testing.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MergedNetworksTest, StartAsTheNetworkBitForBit) {
  auto batch = RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const MergingMethod& method : MergingMethods()) {
    for (const char* family : {"gpt2", "llama"}) {
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(method.name) + " " + family + " " + precision);
        ModelSpec model = MergingModel(method);
        model.family = family;
        TinyRun run(model, ModelOptionsOf(TinyPlan(precision)));
        TinyRun plain(WithoutPeft(model), ModelOptionsOf(TinyPlan(precision)));
        EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
        EXPECT_EQ(run.Differentiate(*batch), plain.Differentiate(*batch));
      }
    }
  }
}

TEST(MergedNetworksTest, OneTensorOfEachAdapterStartsAtZero) {
  for (const MergingMethod& method : MergingMethods()) {
    std::map<std::string, int> zeros;
    for (const ParameterInfo& info : ParametersOf(MergingModel(method))) {
      if (info.adapter_of.empty() || info.replicated) continue;
      zeros[info.adapter_of] += info.starts_at_zero ? 1 : 0;
    }
    EXPECT_FALSE(zeros.empty());
    for (const auto& [weight, count] : zeros) EXPECT_EQ(count, 1) << method.name << " " << weight;
  }
}

TEST(MergedNetworksTest, ParametersAreThoseThatAreCounted) {
  for (const MergingMethod& method : MergingMethods()) {
    for (const char* family : {"gpt2", "llama"}) {
      for (const std::vector<std::string>& targets :
           std::vector<std::vector<std::string>>{{"all-linear"}, {"*.1.*"}, {}}) {
        SCOPED_TRACE(std::string(method.name) + " " + family);
        ModelSpec spec = MergingModel(method, targets);
        spec.family = family;
        const std::vector<ParameterInfo> counted = ParametersOf(spec);
        const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
        const ParameterSet& parameters = run.model->parameters();
        ASSERT_EQ(parameters.size(), std::ssize(counted));
        EXPECT_EQ(parameters.ElementCount(), ModelShape(spec).counts.Total());
        int64_t trained = 0;
        for (const ParameterInfo& info : counted) {
          auto index = parameters.Find(info.name);
          ASSERT_TRUE(index.ok()) << info.name;
          const Parameter& parameter = parameters[*index];
          EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
          EXPECT_EQ(parameter.adapter_of, info.adapter_of);
          EXPECT_EQ(parameter.unit, info.unit);
          EXPECT_EQ(info.read_directly, !info.adapter_of.empty()) << info.name;
          EXPECT_TRUE(parameter.read_directly || !info.read_directly) << info.name;
          EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
          EXPECT_EQ(static_cast<bool>(parameters.gradient(*index)), !info.frozen) << info.name;
          if (!info.frozen) trained += info.Elements();
        }
        EXPECT_EQ(ModelShape(spec).trained, trained);
        EXPECT_GT(trained, 0);
      }
    }
  }
}

TEST(MergedNetworksTest, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2},
      {.data = 2, .zero_stage = 2},
      {.data = 2, .zero_stage = 3},
      {.pipeline = 2},
  };
  for (const MergingMethod& method : MergingMethods()) {
    MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
    c.job.model = MergingModel(method);
    c.job.train.steps = 4;
    c.job.train.log_every_steps = 2;
    c.plan.bucket_bytes = 4000;
    const MeshOutcome whole = TrainOnMesh(c).front();
    for (const Parallelism& mesh : meshes) {
      SCOPED_TRACE(std::string(method.name) + ", " + mesh.Description());
      ExpectFollows(TrainOnMesh(c.On(mesh)), whole, 2e-5, 1e-4);
    }
  }
}

// A stage has what all layers share once, wherever the first target of the network is.
TEST(MergedNetworksTest, StagesHaveTheNumbersThatAreCounted) {
  for (const MergingMethod& method : MergingMethods()) {
    const ModelSpec spec = MergingModel(method);
    for (const int64_t stage : {0, 1}) {
      SCOPED_TRACE(std::string(method.name) + ", stage " + std::to_string(stage));
      ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
      options.pipeline = PipelinePart{{{stage, 1}}, stage == 0, stage == 1};
      const TinyRun run(spec, options);
      const ParameterSet& parameters = run.model->parameters();
      int64_t numbers = 0;
      for (const Parameter& parameter : parameters) numbers += parameter.StoredElements();
      EXPECT_EQ(ShapeOfStage(ModelShape(spec), {1, 1}, stage).stored, numbers);
      if (spec.peft.method != "vera") continue;
      for (const char* factor : {kVeraA, kVeraB}) {
        const Result<int64_t> index = parameters.Find(factor);
        ASSERT_TRUE(index.ok()) << factor;
        EXPECT_EQ(parameters[*index].counted, stage == 0) << factor;
      }
    }
  }
}

TEST(MergedNetworksTest, FoldersOfPeftHaveTheSameNetwork) {
  auto batch = RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = ::testing::TempDir() + "peft_merged";
  for (const MergingMethod& method : MergingMethods()) {
    SCOPED_TRACE(method.name);
    ModelSpec model = MergingModel(method);
    model.family = "llama";
    TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    ASSERT_TRUE(ExportAdapterWeights(Env::Posix(), folder, *run.model).ok());
    ModelSpec read = WithoutPeft(model);
    auto peft = ReadAdapterConfig(Env::Posix(), folder, read);
    ASSERT_TRUE(peft.ok()) << peft.status().message();
    read.peft = *peft;
    TinyRun again(read, ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_NE(again.Logits(*batch), run.Logits(*batch));
    ASSERT_TRUE(ImportAdapterWeights(Env::Posix(), folder, *again.model).ok());
    ASSERT_TRUE(again.model->Pack(again.context).ok());
    EXPECT_EQ(again.Logits(*batch), run.Logits(*batch));
  }
}

TEST(MergedNetworksTest, TheWorkOfPackingIsThatOfTheCostModel) {
  CountingTokens tokens(7, 16);
  for (const MergingMethod& method : MergingMethods()) {
    SCOPED_TRACE(method.name);
    JobSpec job = TinyJob(4);
    job.model = MergingModel(method);
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    run.Step();
    Profiler profiler;
    run.context.profiler = &profiler;
    run.Step();
    run.context.profiler = nullptr;
    const StepWork work = MergeWorkOf(job.model);
    EXPECT_GT(work.f32_numbers, 0);
    EXPECT_GT(work.Flops(), 0);
    EXPECT_EQ(profiler.entries().at("pack weights").flops, work.Flops());
  }
}

TEST(MergedNetworksTest, ShardedWeightsAreMergedInBothPassesOfEachMicroBatch) {
  MeshCase c{TinyJob(4), TinyPlan("fp32", 1, 2)};
  c.job.model = MergingModel(MergingMethods().front());
  c.plan.mesh.data = 2;
  c.plan.zero_stage = 3;
  std::vector<double> flops(2, 0.0);
  RunRanks(2, std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    WEFT_CHECK(rank.trainer->Step().ok(), "the first step");
    Profiler profiler;
    rank.run.context.profiler = &profiler;
    WEFT_CHECK(rank.trainer->Step().ok(), "the second step");
    rank.run.context.profiler = nullptr;
    flops[static_cast<size_t>(world.rank())] = profiler.entries().at("pack weights").flops;
  });
  // The last block is still there when its backward pass begins.
  const double merges = 2 * (2 - 1 / static_cast<double>(c.job.model.layers));
  for (const double each : flops) {
    EXPECT_DOUBLE_EQ(each, merges * MergeWorkOf(c.job.model).Flops());
  }
}

TEST(MergedNetworksTest, SidesAreSplitAsInPeft) {
  PeftSpec spec;
  spec.method = "lokr";
  const auto sizes = [&](int64_t out, int64_t in) {
    ParameterInfo info;
    info.name = "layer.weight";
    info.shape = {out, in};
    return KroneckerOf(spec, info);
  };
  spec.rank = 2;
  EXPECT_THAT(sizes(128, 127).out, ElementsAre(8, 16));
  EXPECT_THAT(sizes(128, 127).in, ElementsAre(1, 127));
  EXPECT_THAT(sizes(256, 72).out, ElementsAre(16, 16));
  EXPECT_THAT(sizes(256, 72).in, ElementsAre(8, 9));
  EXPECT_THAT(sizes(256, 72).factored, ElementsAre(false, true));
  spec.decompose_both = true;
  EXPECT_THAT(sizes(256, 72).factored, ElementsAre(true, true));
  spec.rank = 8;
  EXPECT_THAT(sizes(256, 72).factored, ElementsAre(false, false));
  spec.decompose_factor = 4;
  EXPECT_THAT(sizes(128, 60).out, ElementsAre(4, 32));
  EXPECT_THAT(sizes(128, 60).in, ElementsAre(4, 15));
  spec.decompose_factor = 7;  // does not divide these
  EXPECT_THAT(sizes(128, 60).out, ElementsAre(4, 32));
  EXPECT_THAT(sizes(128, 60).in, ElementsAre(6, 10));
}

TEST(MergedNetworksTest, NamesWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return std::string(NewModel(context, model, {}).status().message());
  };
  ModelSpec model = MergingModel(MergingMethods()[4]);
  for (const int64_t size : {6, 64, 4096}) {
    model.peft.oft_block_size = size;
    EXPECT_THAT(refusal(model), HasSubstr("oft_block_size " + std::to_string(size) +
                                          " does not divide the 32 inputs of"));
  }
  model.peft.oft_block_size = 8;
  EXPECT_EQ(refusal(model), "");
  model.peft.rank_pattern = {{"c_attn", 2}};
  EXPECT_THAT(refusal(model), HasSubstr("rank_pattern with method oft; hint: "));
  model = MergingModel(MergingMethods()[0]);
  model.peft.decompose_both = true;
  EXPECT_THAT(refusal(model), HasSubstr("decompose_both with method loha; hint: model.peft.method "
                                        "lokr"));
  model = MergingModel(MergingMethods()[0]);
  model.peft.d_initial = 1;
  EXPECT_THAT(refusal(model), HasSubstr("d_initial with method loha"));
  model = MergingModel(MergingMethods()[5]);
  model.peft.dropout = 0.1;
  EXPECT_THAT(refusal(model), HasSubstr("dropout with method vera"));
}

}  // namespace
}  // namespace weft::engine
