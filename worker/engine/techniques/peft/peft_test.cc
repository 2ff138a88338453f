// Adapters on a frozen network, against the network itself and its merged weights.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

/// LoRA on these layers, with a scale of 2.
JobSpec Job(std::vector<std::string> targets = {"all-linear"}, const std::string& family = "gpt2") {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model.family = family;
  job.model.peft.method = "lora";
  job.model.peft.rank = 4;
  job.model.peft.alpha = 8;
  job.model.peft.target_modules = std::move(targets);
  job.optimizer.learning_rate = 1e-2;
  job.train.eval_sequences = 8;
  return job;
}

ModelSpec TinyVit(ModelSpec model) {
  model.family = "vit";
  model.vocab_size = 0;
  model.image_size = 12;
  model.patch_size = 3;
  model.image_channels = 1;
  model.classes = 3;
  return model;
}

TEST(PeftTest, StartsAsTheNetworkBitForBit) {
  auto batch = TinyTokens().Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(family) + " " + precision);
      // Products that a CPU fuses with a GELU do not round its input in bf16.
      const bool fuses = std::string(family) == "gpt2" && std::string(precision) == "bf16";
      const JobSpec job = fuses ? Job({"c_attn", "c_proj"}, family) : Job({"all-linear"}, family);
      TinyRun run(job.model, ModelOptionsOf(TinyPlan(precision)));
      TinyRun plain(WithoutPeft(job.model), ModelOptionsOf(TinyPlan(precision)));
      if (precision == std::string("bf16")) RoundMatrices(plain);
      EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
    }
  }
}

TEST(PeftTest, FactorsStartAsInPeft) {
  const TinyRun run(Job().model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  int64_t inputs = 0;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const Doubles values = AsDoubles(parameters.value(i));
    if (parameters[i].adapter == AdapterSide::kOutput) {
      EXPECT_EQ(values, Doubles(values.size(), 0.0)) << parameters[i].name;
    }
    if (parameters[i].adapter != AdapterSide::kInput) continue;
    ++inputs;
    const double most = 1 / std::sqrt(static_cast<double>(parameters[i].shape[1]));
    double square = 0;
    for (const double value : values) {
      EXPECT_LE(std::fabs(value), most);
      square += value * value;
    }
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(values.size())) / most, 1 / std::sqrt(3),
                0.08);
  }
  EXPECT_EQ(inputs, 8);
}

TEST(PeftTest, ParametersAreThoseThatAreCounted) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    for (const std::vector<std::string>& targets :
         std::vector<std::vector<std::string>>{{}, {"all-linear"}, {"*.1.*"}}) {
      for (const std::vector<int64_t>& blocks : std::vector<std::vector<int64_t>>{{}, {1}}) {
        SCOPED_TRACE(family + (targets.empty() ? "" : " " + targets[0]));
        ModelSpec spec = Job(targets, family).model;
        spec.peft.layers_to_transform = blocks;
        if (spec.family == "llama") spec.kv_heads = 1;
        if (spec.family == "vit") {
          spec.image_size = 12;
          spec.patch_size = 3;
          spec.image_channels = 1;
          spec.classes = 10;
          spec.vocab_size = 0;
        }
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
          EXPECT_EQ(std::vector<int64_t>(parameter.shape.dims.begin(),
                                         parameter.shape.dims.begin() + parameter.shape.rank),
                    info.shape);
          EXPECT_EQ(info.frozen, info.adapter_of.empty()) << info.name;
          EXPECT_EQ(static_cast<bool>(parameters.gradient(*index)), !info.frozen) << info.name;
          if (!info.frozen) trained += info.Elements();
        }
        EXPECT_EQ(ModelShape(spec).trained, trained);
        EXPECT_GT(trained, 0);
      }
    }
  }
}

TEST(PeftTest, TrainingChangesAdaptersAlone) {
  CountingTokens tokens(7, 16);
  for (const char* name : {"adamw", "muon"}) {
    SCOPED_TRACE(name);
    JobSpec job = Job();
    job.optimizer.name = name;
    job.schedule.kind = "constant";
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    const ParameterSet& parameters = run.model->parameters();
    const std::vector<std::vector<float>> before = ValuesOf(parameters);
    const double first = run.Step().loss;
    for (int i = 0; i < 25; ++i) run.Step();
    EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.05);
    const std::vector<std::vector<float>> after = ValuesOf(parameters);
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(after[at] == before[at], parameters[i].adapter == AdapterSide::kNone)
          << parameters[i].name;
    }
    // The state of the optimizer is that of adapters.
    for (const NamedTensor& tensor : run.trainer->StateTensors()) {
      const bool of_adapter = tensor.name.find(".lora_") != std::string::npos;
      if (of_adapter || parameters.Find(tensor.name).ok()) continue;
      EXPECT_LT(tensor.view.shape.Elements(), 8) << tensor.name;
    }
  }
}

std::string Folder(const std::string& name) {
  return ::testing::TempDir() + name;
}

TEST(PeftTest, TheNetworkIsThatOfTheMergedWeights) {
  auto batch = TinyTokens().Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = Folder("peft");
  for (const char* family : {"gpt2", "llama"}) {
    for (const std::vector<std::string>& targets :
         std::vector<std::vector<std::string>>{{}, {"all-linear"}}) {
      SCOPED_TRACE(std::string(family) + (targets.empty() ? "" : " all"));
      const JobSpec job = Job(targets, family);
      TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
      Perturb(run, 0.1);
      ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *run.model, {}).ok());
      TinyRun merged(WithoutPeft(job.model), ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *merged.model).ok());
      ASSERT_TRUE(merged.model->Pack(merged.context).ok());
      EXPECT_LT(Difference(Wide(run.Logits(*batch)), Wide(merged.Logits(*batch))), 1e-5);
      EXPECT_NEAR(run.Differentiate(*batch), merged.Differentiate(*batch), 1e-3);
      const ParameterSet& adapted = run.model->parameters();
      const ParameterSet& whole = merged.model->parameters();
      const double scale = LoraScale(job.model.peft, "");
      int64_t factors = 0;
      for (int64_t i = 0; i < adapted.size(); ++i) {
        if (adapted[i].adapter != AdapterSide::kInput) continue;
        factors += 2;
        const int64_t weight = *whole.Find(adapted[i].adapter_of);
        const Doubles dw = AsDoubles(whole.gradient(weight));
        const int64_t out = whole[weight].shape[0], in = whole[weight].shape[1];
        const int64_t rank = job.model.peft.rank;
        const Doubles a = AsDoubles(adapted.value(i)), b = AsDoubles(adapted.value(i + 1));
        EXPECT_LT(Difference(AsDoubles(adapted.gradient(i)),
                             Scaled(Times(Transposed(b, out, rank), dw, rank, out, in), scale)),
                  1e-4)
            << adapted[i].name;
        EXPECT_LT(Difference(AsDoubles(adapted.gradient(i + 1)),
                             Scaled(Times(dw, Transposed(a, rank, in), out, in, rank), scale)),
                  1e-4)
            << adapted[i + 1].name;
      }
      const bool llama = family == std::string("llama");
      const int64_t layers = targets.empty() ? (llama ? 2 : 1) : llama ? 7 : 4;
      EXPECT_EQ(factors, 2 * 2 * layers);

      // Adapters can be put on such a folder.
      TinyRun again(job.model, ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *again.model).ok());
      ASSERT_TRUE(again.model->Pack(again.context).ok());
      EXPECT_EQ(again.Logits(*batch), merged.Logits(*batch)) << "B is zero";
    }
  }
}

TEST(PeftTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens = TinyTokens();
  for (const char* method : {"lora", "loha", "lokr", "oft", "vera"}) {
    for (const PrecisionRecipe* precision : AllPrecisions()) {
      SCOPED_TRACE(std::string(method) + " " + std::string(precision->name));
      JobSpec job = Job();
      job.model.peft.method = method;
      if (precision->block_products != nullptr && MergesWeights(job.model.peft)) continue;
      Plan plan = TinyPlan(std::string(precision->name), 2, 2);
      TinyTraining whole(job, plan, tokens);
      for (int i = 0; i < 3; ++i) whole.Step();
      // Recomputation computes the same again.
      plan.block_memory_policy = {"recompute", "recompute"};
      TinyTraining resumed(job, plan, tokens);
      ASSERT_TRUE(resumed.model->parameters().Initialize(99).ok());
      const std::vector<NamedTensor> from = whole.trainer->StateTensors();
      const std::vector<NamedTensor> to = resumed.trainer->StateTensors();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(from[i].name, to[i].name);
        std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
      }
      ASSERT_TRUE(resumed.trainer->Restored(whole.trainer->counters()).ok());
      for (int i = 0; i < 3; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
      EXPECT_EQ(resumed.Parameters(), whole.Parameters());
    }
  }
}

TEST(PeftTest, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2},     {.data = 2, .zero_stage = 1},
      {.tensor = 2},   {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
  };
  for (const char* family : {"gpt2", "llama"}) {
    for (const std::vector<std::string>& targets :
         std::vector<std::vector<std::string>>{{}, {"all-linear"}}) {
      MeshCase c{Job(targets, family), TinyPlan("fp32", 2, 2)};
      c.job.train.steps = 4;
      c.job.train.log_every_steps = 2;
      c.plan.bucket_bytes = 4000;
      const MeshOutcome whole = TrainOnMesh(c).front();
      for (const Parallelism& mesh : meshes) {
        SCOPED_TRACE(std::string(family) + (targets.empty() ? " " : " all ") + mesh.Description());
        ExpectFollows(TrainOnMesh(c.On(mesh)), whole, 2e-5, 1e-4);
      }
    }
  }
}

TEST(PeftTest, ScalesByRankOrItsRoot) {
  PeftSpec spec;
  spec.rank = 16;
  spec.alpha = 32;
  EXPECT_EQ(LoraScale(spec, ""), 2);
  spec.use_rslora = true;
  EXPECT_EQ(LoraScale(spec, ""), 8);
  // Patterns describe the last parts of a name.
  spec.rank_pattern = {{"q_proj", 4}, {R"(layers\.1\.mlp\..*)", 64}};
  spec.alpha_pattern = {{"v_proj", 8}};
  EXPECT_EQ(LoraScale(spec, "model.layers.0.self_attn.q_proj.weight"), 16);
  EXPECT_EQ(LoraScale(spec, "model.layers.1.mlp.up_proj.weight"), 4);
  EXPECT_EQ(LoraScale(spec, "model.layers.0.self_attn.v_proj.weight"), 2);
  EXPECT_EQ(RankOf(spec, "model.layers.11.mlp.up_proj.weight"), 16);
}

TEST(PeftTest, TargetsAreThoseOfTheExpressionInTheseBlocks) {
  ModelSpec model = Job({}, "llama").model;
  model.peft.target_regex = R"(.*\.(q|v)_proj)";
  model.peft.layers_to_transform = {1};
  std::vector<std::string> layers;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.adapter == AdapterSide::kInput) layers.push_back(parameter.adapter_of);
  }
  EXPECT_THAT(layers, ::testing::ElementsAre("model.layers.1.self_attn.q_proj.weight",
                                             "model.layers.1.self_attn.v_proj.weight"));
}

TEST(PeftTest, LayersOfAVitHaveTheNamesOfEitherVersionOfTransformers) {
  const auto adapted = [](const std::string& names, const std::string& method,
                          const std::vector<std::string>& targets) {
    ModelSpec model = TinyVit(Job(targets).model);
    model.peft.method = method;
    model.peft.module_names = names;
    std::vector<std::string> layers;
    for (const ParameterInfo& parameter : ParametersOf(model)) {
      const bool first = parameter.adapter != AdapterSide::kNone &&
                         (layers.empty() || layers.back() != parameter.adapter_of);
      if (first && parameter.block == 1) layers.push_back(parameter.adapter_of);
    }
    return layers;
  };
  using ::testing::ElementsAre;
  const std::string older = "vit.encoder.layer.1.", newer = "vit.layers.1.";
  EXPECT_THAT(adapted("transformers_4", "lora", {}),
              ElementsAre(older + "attention.attention.query.weight",
                          older + "attention.attention.value.weight"));
  EXPECT_THAT(adapted("transformers_5", "lora", {}),
              ElementsAre(newer + "attention.q_proj.weight", newer + "attention.v_proj.weight"));
  EXPECT_THAT(adapted("transformers_4", "ia3", {}),
              ElementsAre(older + "attention.attention.key.weight",
                          older + "attention.attention.value.weight",
                          older + "attention.output.dense.weight", older + "output.dense.weight"));
  EXPECT_THAT(adapted("transformers_5", "ia3", {}),
              ElementsAre(newer + "attention.k_proj.weight", newer + "attention.v_proj.weight",
                          newer + "attention.o_proj.weight", newer + "mlp.fc2.weight"));
  EXPECT_EQ(adapted("transformers_5", "lora", {"all-linear"}).size(), 6u);
}

// The network and its files are the same by either names.
TEST(PeftTest, AVitByTheNamesOfTransformers5TrainsAsByThoseOf4) {
  const std::string folder = ::testing::TempDir() + "peft_vit_names";
  JobSpec job = Job();
  job.model = TinyVit(job.model);
  job.train.sequence_length = 0;
  job.model.dropout = 0.1;
  TinyRun start(job.model, ModelOptionsOf(TinyPlan("fp32")));
  ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *start.model, {}).ok());
  NoiseImages images(job.model);
  std::vector<std::vector<double>> losses;
  std::vector<std::string> files;
  for (const char* names : {"transformers_4", "transformers_5"}) {
    job.model.peft.module_names = names;
    job.model.peft.init = "pissa";  // which follows from the weights, and not from names
    TinyTraining run(job, TinyPlan("fp32"), images);
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *run.model).ok());
    std::vector<double>& own = losses.emplace_back();
    for (int i = 0; i < 4; ++i) own.push_back(run.Step().loss);
    const std::string merged = folder + "/" + names;
    ASSERT_TRUE(ExportWeights(Env::Posix(), merged, *run.model, {}).ok());
    files.push_back(*ReadFile(Env::Posix(), merged + "/model.safetensors"));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(files[0], files[1]);
  EXPECT_NE(files[0], *ReadFile(Env::Posix(), folder + "/model.safetensors"));
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

TEST(PeftTest, NamesWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return std::string(NewModel(context, model, {}).status().message());
  };
  EXPECT_THAT(refusal(Job({"c_atn"}).model),
              HasSubstr("'c_atn' names no linear layer; hint: did you mean 'c_attn'?"));
  ModelSpec model = Job().model;
  model.peft.layers_to_transform = {2};
  EXPECT_THAT(refusal(model), HasSubstr("has 2, and the model has blocks 0 to 1"));
  model = Job().model;
  model.peft.modules_to_save = {"lnf"};
  EXPECT_THAT(refusal(model), HasSubstr("'lnf' names nothing of the model; hint: did you mean"));
  model = Job({}).model;
  model.peft.target_regex = "c_attn";  // describes whole names
  EXPECT_THAT(refusal(model), HasSubstr("'c_attn' describes no linear layer; hint: "));
  model.peft.target_regex = "(";
  EXPECT_THAT(refusal(model), HasSubstr("'(' is no regular expression"));
  model = Job().model;
  model.peft.module_names = "transformers_5";
  EXPECT_THAT(refusal(model), HasSubstr("module_names transformers_5 with family gpt2, whose "
                                        "modules have the same names in both; hint: leave it"));
  model = TinyVit(Job({"query"}).model);
  model.peft.module_names = "transformers_5";
  EXPECT_THAT(refusal(model), HasSubstr("'query' names no linear layer; hint: "));
  model = Job().model;
  model.peft.rank_pattern = {{"q_proj", 2}};
  EXPECT_THAT(refusal(model), HasSubstr("rank_pattern '(.*\\.)?(q_proj)' describes no linear"));
  model = Job({"c_attn"}).model;
  model.peft.method = "ia3";
  model.peft.feedforward_modules = {"c_attn"};
  EXPECT_THAT(refusal(model), HasSubstr("which does not end a sub-layer"));
  model = Job().model;
  model.peft.method = "selective";
  EXPECT_THAT(refusal(model), HasSubstr("selective has no adapters"));
  model.peft.target_modules = {};
  EXPECT_THAT(refusal(model), HasSubstr("and they name nothing"));
  model = Job({}).model;
  model.peft.method = "miss";
  model.peft.use_dora = true;
  EXPECT_THAT(refusal(model), HasSubstr("use_dora with method miss; hint: model.peft.method lora"));
  model = Job().model;
  model.freeze = {"*.0.*"};
  EXPECT_THAT(refusal(model), HasSubstr("model.peft lora does not go with model.freeze"));
  model = Job().model;
  model.peft.method = "none";
  EXPECT_THAT(refusal(model), HasSubstr("has settings and no method"));
}

}  // namespace
}  // namespace weft::engine
