// Quantised frozen weights, against a network whose weights are what these stand for.
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/spec/job_spec.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/weight_quantization/quantized_testing.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/saved_files.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

/// `method`: of model.peft, or dora, or what the factors of lora start from.
JobSpec Job(const std::string& family, const std::string& method = "lora") {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model.family = family;
  const bool decomposes = method == "pissa" || method == "olora";
  job.model.peft.method = method == "dora" || decomposes ? "lora" : method;
  job.model.peft.use_dora = method == "dora";
  if (decomposes) job.model.peft.init = method;
  job.model.weight_quantization = {.type = "nf4", .block_size = 32};
  job.optimizer.learning_rate = 1e-2;
  return job;
}

ModelSpec WithInit(ModelSpec model, const std::string& init) {
  model.peft.init = init;
  return model;
}

TEST(WeightQuantization, ComputesWhatTheDequantizedNetworkDoesBitForBit) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* type : {"nf4", "fp4"}) {
      for (const auto& [precision, method] :
           {std::pair("fp32", "lora"), std::pair("bf16", "lora"), std::pair("fp16", "lora"),
            std::pair("fp32", "dora")}) {
        for (const char* policy : {"keep", "recompute"}) {
          SCOPED_TRACE(std::string(family) + " " + type + " " + precision + " " + method + " " +
                       policy);
          JobSpec job = Job(family, method);
          if (job.model.family == "llama") {
            job.model.kv_heads = 1;
            job.model.mlp_width = 56;
          }
          job.model.weight_quantization.type = type;
          Plan plan = TinyPlan(precision, 2, 2);
          plan.block_memory_policy = {policy, policy};
          TinyRun quantized(job.model, ModelOptionsOf(plan));
          TinyRun plain(Unquantized(job.model), ModelOptionsOf(plan));
          Couple(job.model, quantized.model->parameters(), plain.model->parameters());
          ASSERT_TRUE(plain.model->Pack(plain.context).ok());
          ASSERT_TRUE(quantized.model->Pack(quantized.context).ok());
          RandomTokens tokens{job.model.vocab_size, job.model.context};
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
  }
}

TEST(WeightQuantization, ParametersAreThoseThatAreCounted) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    for (const std::vector<std::string>& saved :
         std::vector<std::vector<std::string>>{{}, {"*q_proj.weight", "*.c_fc.weight"}}) {
      SCOPED_TRACE(family + (saved.empty() ? std::string() : " some trained"));
      ModelSpec spec = Job(family).model;
      if (!saved.empty() && spec.family != "gpt2" && spec.family != "llama") continue;
      if (!saved.empty()) {
        spec.peft.target_modules = {spec.family == "llama" ? "down_proj" : "c_attn"};
        spec.peft.modules_to_save = {saved[spec.family == "llama" ? 0 : 1]};
      }
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
      int64_t quantized = 0;
      for (const ParameterInfo& info : counted) {
        const Parameter& parameter = parameters[*parameters.Find(info.name)];
        EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
        if (info.quantized_words == 0) continue;
        quantized += info.Elements();
        EXPECT_TRUE(info.frozen && info.block_matrix());
        const double bits =
            32.0 * static_cast<double>(info.quantized_words) / static_cast<double>(info.Elements());
        EXPECT_NEAR(bits, 4.3, 0.1) << info.name;
      }
      EXPECT_EQ(ModelShape(spec).quantized, quantized);
      EXPECT_EQ(ModelShape(spec).counts.Total(), ModelShape(Unquantized(spec)).counts.Total());
      EXPECT_GT(quantized, 0);
    }
  }
}

TEST(WeightQuantization, TrainingLeavesTheWordsAndResumesBitForBit) {
  RandomTokens tokens{TinyModel().vocab_size, TinyModel().context};
  for (const char* method : {"lora", "pissa", "dora", "ia3", "miss", "selective"}) {
    for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
      SCOPED_TRACE(std::string(method) + " " + precision);
      JobSpec job = Job("gpt2", method);
      if (job.model.peft.method == "selective") job.model.peft.modules_to_save = {"*.bias"};
      TinyTraining whole(job, TinyPlan(precision, 2, 2), tokens);
      const ParameterSet& parameters = whole.model->parameters();
      const auto words = [&] {
        std::vector<int32_t> all;
        for (int64_t i = 0; i < parameters.size(); ++i) {
          if (parameters[i].quantized_words == 0) continue;
          const TensorView view = parameters.held_value(i).view;
          all.insert(all.end(), view.As<int32_t>(), view.As<int32_t>() + view.shape.Elements());
        }
        return all;
      };
      const std::vector<int32_t> before = words();
      EXPECT_FALSE(before.empty());
      const double first = whole.Step().loss;
      for (int i = 0; i < 3; ++i) whole.Step();
      EXPECT_LT(whole.trainer->Evaluate()->loss, first);
      EXPECT_EQ(words(), before);
      TinyTraining resumed(job, TinyPlan(precision, 2, 2), tokens);
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
    }
  }
}

TEST(WeightQuantization, ReadsAFolderAndExportsWhatTheWeightsStandFor) {
  for (const int64_t experts : {0, 4}) {
    SCOPED_TRACE(std::to_string(experts) + " experts");
    const std::string folder = ::testing::TempDir() + "quantized" + std::to_string(experts);
    JobSpec job = Job("llama");
    job.model.kv_heads = 1;
    job.model.experts = experts;
    TinyRun base(Unquantized(job.model), ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *base.model, {}).ok());
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *run.model).ok());
    // Those of the base, quantised here; adapters start at nothing.
    Couple(job.model, run.model->parameters(), base.model->parameters());
    TinyRun other(job.model, ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *other.model).ok());
    const ParameterSet& imported = other.model->parameters();
    for (int64_t i = 0; i < imported.size(); ++i) {
      const TensorView a = imported.held_value(i).view;
      const TensorView b = run.model->parameters().held_value(i).view;
      if (imported[i].quantized_words == 0) continue;
      EXPECT_EQ(std::memcmp(a.data, b.data, a.Bytes()), 0) << imported[i].name;
    }
    ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *other.model, {}).ok());
    TinyRun merged(Unquantized(job.model), ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *merged.model).ok());
    for (int64_t i = 0; i < base.model->parameters().size(); ++i) {
      if (base.model->parameters()[i].adapter != AdapterSide::kNone) continue;
      EXPECT_EQ(ValuesOf(merged.model->parameters().value(i)),
                ValuesOf(base.model->parameters().value(i)))
          << base.model->parameters()[i].name;
    }
  }
}

// Factors come off what the words stand for, and the rest becomes words again.
TEST(WeightQuantization, FactorsOfAWeightLeaveAQuantizedRest) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* init : {"pissa", "olora"}) {
      for (const bool dora : {false, true}) {
        SCOPED_TRACE(std::string(family) + " " + init + (dora ? " dora" : ""));
        JobSpec job = Job(family, init);
        job.model.peft.rank = 4;
        job.model.peft.alpha = 8;
        job.model.peft.target_modules = {"all-linear"};
        job.model.peft.use_dora = dora;
        const TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
        const ParameterSet& parameters = run.model->parameters();
        // Such a start of a network that has what the words of its weights stand for.
        TinyRun plain(WithInit(Unquantized(job.model), "default"),
                      ModelOptionsOf(TinyPlan("fp32")));
        TinyRun words(WithInit(job.model, "default"), ModelOptionsOf(TinyPlan("fp32")));
        Couple(job.model, words.model->parameters(), plain.model->parameters());
        TinyRun whole(Unquantized(job.model), ModelOptionsOf(TinyPlan("fp32")));
        ParameterSet& expected = whole.model->parameters();
        for (int64_t i = 0; i < expected.size(); ++i) {
          const TensorView from = plain.model->parameters().value(i);
          std::memcpy(expected.value(i).data, from.data, from.Bytes());
        }
        ASSERT_TRUE(expected.OnValues(whole.context, ValuesFrom::kImported).ok());
        int64_t rests = 0;
        for (int64_t i = 0; i < parameters.size(); ++i) {
          const Parameter& parameter = parameters[i];
          if (parameter.adapter != AdapterSide::kOutput || parameter.shape.rank < 2) continue;
          const std::vector<float> a = ValuesOf(parameters.value(i - 1));
          const std::vector<float> b = ValuesOf(parameters.value(i));
          EXPECT_EQ(a, ValuesOf(expected.value(i - 1))) << parameter.name;
          EXPECT_EQ(b, ValuesOf(expected.value(i))) << parameter.name;
          const int64_t weight = *parameters.Find(parameter.adapter_of);
          ASSERT_GT(parameters[weight].quantized_words, 0);
          ParameterSet& other = words.model->parameters();
          ASSERT_TRUE(other.Quantize(weight, ValuesOf(expected.value(weight))).ok());
          const TensorView own = parameters.held_value(weight).view;
          EXPECT_EQ(std::memcmp(own.data, other.held_value(weight).view.data, own.Bytes()), 0)
              << parameters[weight].name;
          ++rests;
          if (!dora) continue;
          // Lengths are those of the rows that the layer multiplies by.
          const auto rows = parameters[weight].shape[0], columns = parameters[weight].shape[1];
          std::vector<float> rest(static_cast<size_t>(rows * columns));
          ASSERT_TRUE(
              parameters.Dequantize({}, weight, {rest.data(), DType::kF32, {rows * columns}}).ok());
          const std::vector<float> lengths = ValuesOf(parameters.value(i + 1));
          ASSERT_EQ(std::ssize(lengths), rows);
          for (int64_t row = 0; row < rows; ++row) {
            double squares = 0;
            for (int64_t c = 0; c < columns; ++c) {
              double sum = rest[row * columns + c];
              for (int64_t k = 0; k < 4; ++k) {
                sum += 2.0 * b[row * 4 + k] * a[k * columns + c];
              }
              squares += sum * sum;
            }
            EXPECT_NEAR(lengths[row], std::sqrt(squares), 1e-5 * std::sqrt(squares));
          }
        }
        EXPECT_EQ(rests, job.model.family == "llama" ? 14 : 8);
      }
    }
  }
}

TEST(WeightQuantization, MeshesFollowOneRank) {
  const struct {
    const char* name;
    void (*change)(Plan& plan);
  } ways[] = {
      {"data", [](Plan& plan) { plan.mesh.data = 2; }},
      {"data, sharded updates",
       [](Plan& plan) {
         plan.mesh.data = 2;
         plan.zero_stage = 2;
       }},
      {"data, sharded parameters",
       [](Plan& plan) {
         plan.mesh.data = 2;
         plan.zero_stage = 3;
       }},
      {"data, sharded parameters in groups",
       [](Plan& plan) {
         plan.mesh.data = 4;
         plan.micro_batch = 1;
         plan.accumulation_steps = 4;
         plan.zero_stage = 3;
         plan.zero_shard_ranks = 2;
       }},
      {"pipeline",
       [](Plan& plan) {
         plan.mesh.pipeline = 2;
         plan.stage_blocks = {1, 1};
       }},
  };
  for (const char* method : {"lora", "dora", "pissa"}) {
    MeshCase c{Job("llama", method), TinyPlan("fp32", 2, 2)};
    c.job.train.steps = 4;
    c.plan.bucket_bytes = 4000;
    const MeshOutcome whole = TrainOnMesh(c).front();
    for (const auto& way : ways) {
      SCOPED_TRACE(std::string(method) + ", " + way.name);
      MeshCase meshes = c;
      way.change(meshes.plan);
      meshes.plan.accumulation_steps /= meshes.plan.mesh.data;
      ExpectFollows(TrainOnMesh(meshes), whole, 2e-5, 1e-4);
    }
  }
}

// Each has the rows or the columns of what one rank has, with its scales. Products with 64 inputs,
// or 32 of a rank, in blocks of 32; there are more than 256 of these in queries, keys and values of
// gpt2, which are one matrix.
TEST(WeightQuantization, TensorParallelRanksFollowOne) {
  const struct {
    const char* name;
    void (*change)(Plan& plan);
  } ways[] = {
      {"tensor", [](Plan&) {}},
      {"data, sharded parameters",
       [](Plan& plan) {
         plan.mesh.data = 2;
         plan.zero_stage = 3;
       }},
      {"pipeline",
       [](Plan& plan) {
         plan.mesh.pipeline = 2;
         plan.stage_blocks = {1, 1};
       }},
  };
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* method : {"lora", "dora", "pissa"}) {
      MeshCase c{Job(family, method), TinyPlan("fp32", 2, 2)};
      c.job.model.width = 64;
      c.job.model.mlp_width = 128;
      c.job.train.steps = 4;
      c.plan.bucket_bytes = 4000;
      const MeshOutcome whole = TrainOnMesh(c).front();
      for (const auto& way : ways) {
        SCOPED_TRACE(std::string(family) + " " + method + ", " + way.name);
        MeshCase meshes = c;
        meshes.plan.mesh.tensor = 2;
        way.change(meshes.plan);
        meshes.plan.accumulation_steps /= meshes.plan.mesh.data;
        const std::vector<MeshOutcome> ranks = TrainOnMesh(meshes);
        ExpectFollows(ranks, whole, 2e-5, 1e-4);
        // What is not trained is the same bit for bit.
        SavedState state;
        for (const MeshOutcome& rank : ranks) state.Add(rank.state);
        int64_t words = 0;
        for (const auto& [name, values] : whole.state.tensors) {
          if (!name.ends_with(".scales") && !whole.state.tensors.contains(name + ".scales"))
            continue;
          EXPECT_EQ(state.tensors.at(name), values) << name;
          ++words;
        }
        EXPECT_GT(words, 0);
      }
    }
  }
}

// Ranks have some rows or columns, successive elements, or both; scales are in bytes or f32.
TEST(WeightQuantization, CheckpointsAreReadOnOtherMeshesBitForBit) {
  struct RunConfig {
    const char* name;
    void (*change)(Plan& plan);
  };
  const RunConfig one = {"one rank", [](Plan&) {}};
  const RunConfig sharded = {"data, sharded parameters", [](Plan& plan) {
                               plan.mesh.data = 2;
                               plan.zero_stage = 3;
                             }};
  const RunConfig tensor = {"tensor", [](Plan& plan) { plan.mesh.tensor = 2; }};
  const RunConfig both = {"tensor and data, sharded parameters", [](Plan& plan) {
                            plan.mesh.tensor = plan.mesh.data = 2;
                            plan.zero_stage = 3;
                          }};
  const RunConfig stages = {"tensor and pipeline", [](Plan& plan) {
                              plan.mesh.tensor = plan.mesh.pipeline = 2;
                              plan.stage_blocks = {1, 1};
                            }};
  for (const char* family : {"gpt2", "llama"}) {
    MeshCase c{Job(family), TinyPlan("fp32", 2, 2)};
    c.job.model.width = 64;
    c.job.model.mlp_width = 128;
    c.job.model.weight_quantization.double_quantization = c.job.model.family == "gpt2";
    c.plan.bucket_bytes = 4000;
    const auto on_ranks = [&](const RunConfig& way, const auto& run) {
      MeshCase meshes = c;
      way.change(meshes.plan);
      meshes.plan.accumulation_steps /= meshes.plan.mesh.data;
      RunRanks(static_cast<int>(meshes.ranks()), std::chrono::seconds(60), [&](Collective& world) {
        MeshRank rank(meshes, world);
        run(rank, world);
      });
    };
    for (const RunConfig& from : {one, sharded, tensor, both, stages}) {
      SavedFiles files;
      on_ranks(from, [&](MeshRank& rank, Collective& world) {
        ASSERT_TRUE(rank.trainer->Step().ok());
        files.Write(*rank.trainer, world);
      });
      for (const RunConfig& to : {one, both}) {
        SCOPED_TRACE(std::string(family) + ", " + from.name + " to " + to.name);
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
}

// Parameters of a rank are those that are counted, and hold half of the codes and scales.
TEST(WeightQuantization, PartsOfTensorParallelRanksAreThoseThatAreCounted) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    JobSpec job = Job(family);
    job.model.width = 64;
    job.model.mlp_width = 128;
    const std::vector<ParameterInfo> whole = ParametersOf(job.model);
    const std::vector<ParameterInfo> counted = ParametersOfRank(job.model, 2);
    const auto check = [&](Collective& group) {
      const TensorParallel tensor(&group);
      ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
      options.tensor = &tensor;
      const TinyRun run(job.model, options);
      const ParameterSet& parameters = run.model->parameters();
      for (size_t i = 0; i < counted.size(); ++i) {
        const int64_t words = counted[i].quantized_words;
        EXPECT_EQ(parameters[*parameters.Find(counted[i].name)].quantized_words, words)
            << counted[i].name;
        if (words == 0) continue;
        // Besides them are a few scales of scales, and the mean.
        EXPECT_GE(2 * words, whole[i].quantized_words);
        EXPECT_LE(2 * words, whole[i].quantized_words + 8);
      }
    };
    RunRanks(2, std::chrono::seconds(60), check);
  }
}

TEST(WeightQuantization, NamesWhatDoesNotFit) {
  const auto refusal = [](const JobSpec& job) { return std::string(ValidateJob(job).message()); };
  JobSpec job = Job("gpt2");
  job.data.train = {"a.txt"};
  EXPECT_EQ(refusal(job), "");
  job.model.weight_quantization.block_size = 48;
  EXPECT_THAT(refusal(job), HasSubstr("block_size 48 is not a power of two; hint: 64 or 128"));
  job = Job("gpt2", "none");
  job.data.train = {"a.txt"};
  EXPECT_THAT(refusal(job), HasSubstr("and nothing is frozen; hint: model.peft.method lora"));
  job = Job("gpt2");
  job.data.train = {"a.txt"};
  job.model.peft.method = "vera";
  EXPECT_THAT(refusal(job), HasSubstr("computes with the values of frozen weights"));
  job = Job("gpt2", "dora");
  job.data.train = {"a.txt"};
  job.resources.pipeline_parallel = 2;
  EXPECT_EQ(refusal(job), "");
  job.resources.pipeline_schedule = "zero_bubble";
  EXPECT_THAT(refusal(job), HasSubstr("with model.peft.use_dora does not go with "
                                      "resources.pipeline_schedule zero_bubble"));
  job.model.peft.use_dora = false;
  EXPECT_EQ(refusal(job), "");
  job.model.peft.method = "ia3";
  EXPECT_THAT(refusal(job), HasSubstr("with model.peft.method ia3 does not go with "));
  job = Job("gpt2");
  job.data.train = {"a.txt"};
  job.model.width = 96;
  job.resources.ranks = job.resources.tensor_parallel = 2;
  EXPECT_THAT(refusal(job), HasSubstr("block_size 32 would cut blocks: with "
                                      "resources.tensor_parallel 2 products have 96, 48 and 192 "
                                      "inputs (the width, a rank's heads, its part of the MLP); "
                                      "hint: a smaller resources.tensor_parallel"));
  job.model.width = 128;
  EXPECT_EQ(refusal(job), "");
  job.model.weight_quantization.block_size = 128;
  EXPECT_THAT(refusal(job), HasSubstr("hint: block_size 64"));
  job = Job("gpt2");
  job.data.train = {"a.txt"};
  job.model.weight_quantization.type = "none";
  EXPECT_THAT(refusal(job), HasSubstr("has settings and no type"));
}

}  // namespace
}  // namespace weft::engine
