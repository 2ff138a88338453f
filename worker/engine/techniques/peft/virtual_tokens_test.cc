// Virtual tokens against real ones: vectors of tokens, and their keys and values, in their place.
#include "worker/engine/techniques/peft/virtual_tokens.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/models/generate.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"
#include "worker/engine/techniques/peft/virtual_tokens_testing.h"
#include "worker/engine/testing/float64_matrices.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, kLength};
}

/// As long as the context.
std::vector<int32_t> WholeSequence() {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kVirtual + kLength; ++i) tokens.push_back((7 * i + 3) % 50);
  return tokens;
}

Batch BatchOf(const std::vector<int32_t>& tokens, int32_t first_position = 0) {
  Batch batch;
  batch.sequences = 1;
  batch.length = std::ssize(tokens);
  batch.tokens = tokens;
  batch.targets.assign(tokens.size(), 1);
  batch.target_count = std::ssize(tokens);
  batch.positions.resize(tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), first_position);
  batch.sequence_starts = {0, static_cast<int32_t>(tokens.size())};
  return batch;
}

/// What the plain network says of the tokens behind the first ones.
Doubles LogitsBehind(TinyRun& plain, const std::vector<int32_t>& tokens, int64_t first) {
  const Doubles all = Wide(plain.Logits(BatchOf(tokens)));
  return {all.begin() + first * plain.model->spec().vocab_size, all.end()};
}

void SetValue(TinyRun& run, const std::string& name, const std::vector<float>& values) {
  ParameterSet& parameters = run.model->parameters();
  const auto index = parameters.Find(name);
  ASSERT_TRUE(index.ok()) << name;
  ASSERT_EQ(parameters.value(*index).shape.Elements(), std::ssize(values));
  std::copy(values.begin(), values.end(), parameters.value(*index).As<float>());
}

std::vector<int32_t> End(const std::vector<int32_t>& tokens) {
  return {tokens.begin() + kVirtual, tokens.end()};
}

TEST(VirtualTokensTest, PromptsOfRealTokensAreTheseTokens) {
  const std::vector<int32_t> tokens = WholeSequence();
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const JobSpec job = JobOf(Methods()[0], family);
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun plain(WithoutPeft(job.model), ModelOptionsOf(TinyPlan("fp32")));
    const std::vector<float> table = ValuesOf(plain.model->parameters().value(0));
    const int64_t width = job.model.width;
    std::vector<float> prompt;
    for (int64_t i = 0; i < kVirtual; ++i) {
      const auto row = table.begin() + tokens[static_cast<size_t>(i)] * width;
      prompt.insert(prompt.end(), row, row + width);
    }
    SetValue(run, "prompt_embeddings", prompt);
    EXPECT_LT(
        Difference(Wide(run.Logits(BatchOf(End(tokens)))), LogitsBehind(plain, tokens, kVirtual)),
        1e-6);
  }
}

TEST(VirtualTokensTest, PrefixesOfKeysAndValuesOfRealTokensAreTheseTokens) {
  const std::vector<int32_t> tokens = WholeSequence();
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const JobSpec job = JobOf(Methods()[2], family);
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun plain(WithoutPeft(job.model), ModelOptionsOf(TinyPlan("fp32")));
    const int64_t kv = KvWidth(job.model);
    std::vector<KeyValueCache> caches(static_cast<size_t>(job.model.layers));
    for (KeyValueCache& cache : caches) {
      for (Tensor* tensor : {&cache.keys, &cache.values}) {
        *tensor = *Tensor::New(plain.context, Component::kWorkspace, DType::kF32, {kVirtual, kv});
      }
    }
    const auto batch =
        TokenBatch::New(plain.context, BatchOf({tokens.begin(), tokens.begin() + kVirtual}), 0);
    auto& model = static_cast<LanguageModel&>(*plain.model);
    ASSERT_TRUE(model.Logits(plain.context, *batch, &caches).ok());
    for (int64_t layer = 0; layer < job.model.layers; ++layer) {
      const KeyValueCache& cache = caches[static_cast<size_t>(layer)];
      std::vector<float> prefix;
      for (int64_t i = 0; i < kVirtual; ++i) {
        for (const Tensor& tensor : {cache.keys, cache.values}) {
          const float* const row = tensor.As<float>() + i * kv;
          prefix.insert(prefix.end(), row, row + kv);
        }
      }
      const std::string block = family == std::string("gpt2")
                                    ? "transformer.h." + std::to_string(layer) + ".attn.c_proj"
                                    : "model.layers." + std::to_string(layer) + ".self_attn.o_proj";
      SetValue(run, block + ".prefix", prefix);
    }
    EXPECT_LT(
        Difference(Wide(run.Logits(BatchOf(End(tokens)))), LogitsBehind(plain, tokens, kVirtual)),
        1e-5);
  }
}

TEST(VirtualTokensTest, EachDocumentOfARowSeesThem) {
  const std::vector<int32_t> tokens = WholeSequence();
  const std::vector<int32_t> first(tokens.begin(), tokens.begin() + 5);
  const std::vector<int32_t> second(tokens.begin() + 5, tokens.begin() + kLength);
  Batch both = BatchOf({tokens.begin(), tokens.begin() + kLength});
  both.sequence_starts = {0, 5, kLength};
  for (int32_t i = 5; i < kLength; ++i) both.positions[static_cast<size_t>(i)] = i - 5;
  for (const Method& method : Methods()) {
    for (const char* family : kFamilies) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      TinyRun run(JobOf(method, family).model, ModelOptionsOf(TinyPlan("fp32")));
      Doubles apart = Wide(run.Logits(BatchOf(first)));
      const Doubles behind = Wide(run.Logits(BatchOf(second)));
      apart.insert(apart.end(), behind.begin(), behind.end());
      EXPECT_LT(Difference(Wide(run.Logits(both)), apart), 1e-5);
    }
  }
}

TEST(VirtualTokensTest, CachedTokensFollowThem) {
  const std::vector<int32_t> tokens = End(WholeSequence());
  for (const Method& method : Methods()) {
    for (const char* family : kFamilies) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      TinyRun run(JobOf(method, family).model, ModelOptionsOf(TinyPlan("fp32")));
      auto& model = static_cast<LanguageModel&>(*run.model);
      std::vector<int32_t> sequence(tokens.begin(), tokens.begin() + 3);
      GenerateOptions options;
      options.max_new_tokens = kLength;
      options.sampling.temperature = 0;
      const auto generated = Generate(run.context, model, sequence, options);
      ASSERT_TRUE(generated.ok()) << generated.status().message();
      // As many as there are positions, and one behind the last.
      EXPECT_EQ(std::ssize(*generated), kLength - 3 + 1);
      for (const int32_t token : *generated) {
        const std::vector<float> logits = run.Logits(BatchOf(sequence));
        const auto last = logits.end() - run.model->spec().vocab_size;
        EXPECT_EQ(std::max_element(last, logits.end()) - last, token);
        sequence.push_back(token);
      }
    }
  }
}

TEST(VirtualTokensTest, TheLossChangesAsGradientsSay) {
  const Result<Batch> batch = TinyTokens().Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const Method& method : Methods()) {
    for (const char* family : {"gpt2", "llama", "mistral"}) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      TinyRun run(JobOf(method, family).model, ModelOptionsOf(TinyPlan("fp32")));
      const double loss = run.Differentiate(*batch);
      EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Loss(*batch); }), 0);
    }
  }
}

TEST(VirtualTokensTest, ParametersAreThoseThatAreCounted) {
  for (const Method& method : Methods()) {
    for (const char* family : kFamilies) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      const ModelSpec spec = JobOf(method, family).model;
      const std::vector<ParameterInfo> counted = ParametersOf(spec);
      const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
      const ParameterSet& parameters = run.model->parameters();
      ASSERT_EQ(parameters.size(), std::ssize(counted));
      EXPECT_EQ(parameters.ElementCount(), ModelShape(spec).counts.Total());
      int64_t trained = 0;
      for (const ParameterInfo& info : counted) {
        const auto index = parameters.Find(info.name);
        ASSERT_TRUE(index.ok()) << info.name;
        const Parameter& parameter = parameters[*index];
        EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
        EXPECT_EQ(parameter.unit, info.unit) << info.name;
        EXPECT_EQ(parameter.read_directly && parameter.adapter != AdapterSide::kNone,
                  info.read_directly)
            << info.name;
        EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
        EXPECT_EQ(info.frozen, info.adapter == AdapterSide::kNone) << info.name;
        if (!info.frozen) trained += info.Elements();
      }
      EXPECT_EQ(ModelShape(spec).trained, trained);
    }
  }
}

TEST(VirtualTokensTest, PromptsStartAtTokens) {
  const TinyRun run(JobOf(Methods()[0]).model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  const int64_t width = TinyModel().width;
  const std::vector<float> table = ValuesOf(parameters.value(0));
  const std::vector<float> prompt =
      ValuesOf(parameters.value(*parameters.Find("prompt_embeddings")));
  for (int64_t i = 0; i < kVirtual; ++i) {
    int64_t equal = 0;
    for (int64_t token = 0; token < TinyModel().vocab_size; ++token) {
      equal += std::equal(prompt.begin() + i * width, prompt.begin() + (i + 1) * width,
                          table.begin() + token * width)
                   ? 1
                   : 0;
    }
    EXPECT_EQ(equal, 1) << i;
  }
}

TEST(VirtualTokensTest, TrainingChangesThemAloneWhateverIsRecomputed) {
  CountingTokens tokens(7, kLength);
  for (const Method& method : Methods()) {
    for (const char* family : {"gpt2", "llama"}) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      JobSpec job = JobOf(method, family);
      job.schedule.kind = "constant";
      Plan plan = TinyPlan("fp32", 2, 2);
      TinyTraining run(job, plan, tokens);
      plan.block_memory_policy = {"recompute", "attention"};
      TinyTraining recomputed(job, plan, tokens);
      const ParameterSet& parameters = run.model->parameters();
      const std::vector<std::vector<float>> before = ValuesOf(parameters);
      const double first = run.Step().loss;
      EXPECT_EQ(recomputed.Step().loss, first);
      for (int i = 0; i < 25; ++i) ASSERT_EQ(run.Step().loss, recomputed.Step().loss);
      EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.01);
      const std::vector<std::vector<float>> after = ValuesOf(parameters);
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(after[at] == before[at], parameters[i].adapter == AdapterSide::kNone)
            << parameters[i].name;
      }
    }
  }
}

TEST(VirtualTokensTest, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2},
      {.data = 2, .zero_stage = 1},
      {.data = 2, .zero_stage = 2},
      {.data = 2, .zero_stage = 3},
      {.data = 2, .zero_stage = 3, .tensor = 2},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
      {.data = 2, .zero_stage = 1, .pipeline = 2},
      {.tensor = 2, .pipeline = 2},
  };
  const std::vector<Method> methods = Methods();
  for (size_t i = 0; i < methods.size(); ++i) {
    for (const bool llama : {false, true}) {
      const std::string family = llama ? "llama" : "gpt2";
      MeshCase c{JobOf(methods[i], family), TinyPlan("fp32", 2, 2)};
      c.job.model.kv_heads = 2;
      c.job.train.steps = 4;
      c.job.train.log_every_steps = 2;
      c.plan.bucket_bytes = 4000;
      const MeshOutcome whole = TrainOnMesh(c).front();
      // Every mesh has every method in one of the families, which has the next mesh in the other.
      const size_t first = (i + (llama ? 1 : 0)) % 2;
      for (size_t k = first; k < meshes.size(); k += 2) {
        SCOPED_TRACE(std::string(methods[i].name) + ", " + family + ", " + meshes[k].Description());
        ExpectFollows(TrainOnMesh(c.On(meshes[k])), whole, 2e-5, 1e-4);
      }
    }
  }
}

TEST(VirtualTokensTest, AFolderHasWhatBecomesOfThem) {
  const Batch batch = BatchOf(End(WholeSequence()));
  const std::string folder = ::testing::TempDir() + "virtual_tokens";
  for (const Method& method : Methods()) {
    SCOPED_TRACE(method.name);
    const JobSpec job = JobOf(method, "llama");
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    EXPECT_THAT(ExportWeights(Env::Posix(), folder, *run.model, {}).message(),
                HasSubstr("there are no weights of the network that do the same"));
    ASSERT_TRUE(ExportAdapterWeights(Env::Posix(), folder, *run.model).ok());
    // Without the network that has made them.
    JobSpec again = job;
    again.model.peft = {};
    again.model.peft.method = job.model.peft.method == "prefix" ? "prefix" : "prompt";
    again.model.peft.import_path = folder;
    ASSERT_TRUE(ResolveImportedModel(Env::Posix(), again).ok());
    EXPECT_EQ(again.model.peft.num_virtual_tokens, kVirtual);
    TinyRun read(again.model, ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportAdapterWeights(Env::Posix(), folder, *read.model).ok());
    ASSERT_TRUE(read.model->Pack(read.context).ok());
    EXPECT_LT(Difference(Wide(read.Logits(batch)), Wide(run.Logits(batch))), 1e-5);
    again.model.layers = 1;
    again.model.peft.import_path = folder;
    EXPECT_THAT(ResolveImportedModel(Env::Posix(), again).message(),
                HasSubstr("has num_layers 2, and the model has 1"));
  }
}

TEST(VirtualTokensTest, NamesWhatDoesNotFit) {
  const auto refusal = [](const Method& method, void (*change)(JobSpec & job)) {
    JobSpec job = JobOf(method);
    change(job);
    return ValidateJob(job).message();
  };
  const std::vector<Method> methods = Methods();
  EXPECT_EQ(refusal(methods[0], [](JobSpec&) {}), "");
  EXPECT_THAT(refusal(methods[0], [](JobSpec& job) { job.train.sequence_length = 13; }),
              HasSubstr("hint: train.sequence_length 12, or fewer virtual tokens"));
  EXPECT_THAT(refusal(methods[0], [](JobSpec& job) { job.model.peft.encoder_hidden_size = 8; }),
              HasSubstr("encoder_hidden_size with method prompt"));
  EXPECT_THAT(refusal(methods[1], [](JobSpec& job) { job.model.peft.prefix_projection = true; }),
              HasSubstr("prefix_projection with method p_tuning"));
  EXPECT_THAT(refusal(methods[2], [](JobSpec& job) { job.model.peft.layers_to_transform = {0}; }),
              HasSubstr("which is for all layers"));
  EXPECT_THAT(refusal(methods[2], [](JobSpec& job) { job.resources.context_parallel = 2; }),
              HasSubstr("virtual tokens"));
  static constexpr auto shards_tokens = [](JobSpec& job) {
    job.resources.tensor_parallel = 2;
    job.resources.sequence_parallel = true;
  };
  EXPECT_EQ(refusal(methods[0], shards_tokens), "");
  EXPECT_THAT(refusal(methods[0],
                      [](JobSpec& job) {
                        shards_tokens(job);
                        job.model.peft.num_virtual_tokens = 3;
                      }),
              HasSubstr("12 tokens and 3 virtual tokens cannot be partitioned over 2 "
                        "tensor-parallel ranks"));
  EXPECT_THAT(
      refusal(methods[0],
              [](JobSpec& job) {
                shards_tokens(job);
                job.model.peft.modules_to_save = {"wpe"};
              }),
      HasSubstr("model.peft.method prompt with trained positions (model.peft.modules_to_save) "
                "does not go with resources.sequence_parallel"));
  EXPECT_THAT(
      refusal(methods[3],
              [](JobSpec& job) {
                job.resources.offload_optimizer = job.resources.offload_parameters = "host";
              }),
      HasSubstr("model.peft.prefix_projection does not go with resources.offload_parameters host"));
}

}  // namespace
}  // namespace weft::engine
