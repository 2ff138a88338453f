// Adapters whose optimizer is offloaded, and networks that come block by block with them, against
// training on the device: the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/techniques/peft/joint_adapters_cost.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

struct AdapterVariant {
  std::string name;
  std::function<void(JobSpec&)> apply;
};

void SetLora(JobSpec& job) {
  PeftSpec& peft = job.model.peft;
  peft.method = "lora";
  peft.rank = 4;
  peft.alpha = 8;
  peft.target_modules = {"all-linear"};
}

void SetTwoAdapters(JobSpec& job) {
  SetLora(job);
  job.model.peft.adapters.resize(2);
  job.model.peft.adapters[0].name = "one";
  job.model.peft.adapters[1].name = "two";
  job.model.peft.adapters[1].learning_rate = 3e-3;
}

void SetQuantized(JobSpec& job, const std::string& type) {
  if (job.model.peft.method == "none") SetLora(job);
  job.model.weight_quantization.type = type;
  job.model.weight_quantization.block_size = 32;
  job.model.weight_quantization.double_quantization = type == "nf4";
}

AdapterVariant Method(const std::string& method) {
  return {method, [=](JobSpec& job) { job.model.peft.method = method; }};
}

AdapterVariant VirtualTokens(const std::string& method) {
  return {method, [=](JobSpec& job) {
            job.model.peft.method = method;
            job.model.peft.num_virtual_tokens = 2;
            job.train.sequence_length = job.model.context - 2;
          }};
}

/// Rows of the table that follow one another, and others.
AdapterVariant TrainedTokens(bool untied) {
  return {untied ? "trained tokens of a llama" : "trained tokens", [=](JobSpec& job) {
            SetLora(job);
            if (untied) job.model.family = "llama";
            job.model.untied_classifier = untied;
            job.model.peft.trainable_token_indices = {1, 3, 4, 40};
          }};
}

AdapterVariant Dora(double dropout) {
  return {dropout > 0 ? "dora with dropout" : "dora", [=](JobSpec& job) {
            SetLora(job);
            job.model.peft.use_dora = true;
            job.model.peft.dropout = dropout;
          }};
}

AdapterVariant MovingRanks() {
  return {"adalora", [](JobSpec& job) {
            job.model.peft.method = "adalora";
            job.model.peft.target_modules = {"all-linear"};
            AdaLoraSpec& spec = job.model.peft.adalora;
            spec.init_r = 4;
            spec.target_r = 2;
            spec.tinit = 1;
            spec.tfinal = 2;
            spec.delta_t = 2;
            job.train.steps = 8;
          }};
}

/// Those that no other offloaded adapters are like.
std::vector<AdapterVariant> OffloadedVariants() {
  return {
      {"two adapters", SetTwoAdapters},
      {"lora of tokens",
       [](JobSpec& job) {
         SetLora(job);
         job.model.peft.target_modules = {"wte", "c_attn"};
       }},
      TrainedTokens(false),
      TrainedTokens(true),
      Dora(0),
      Dora(0.2),
      {"quantised dora",
       [](JobSpec& job) {
         Dora(0).apply(job);
         SetQuantized(job, "nf4");
       }},
      MovingRanks(),
      Method("loha"),
      Method("lokr"),
      Method("vera"),
      {"oft",
       [](JobSpec& job) {
         job.model.peft.method = "oft";
         job.model.peft.oft_block_size = 8;
       }},
  };
}

JobSpec JobOf(const AdapterVariant& variant) {
  JobSpec job = TinyJob(4);
  job.optimizer.learning_rate = 1e-2;
  job.train.gradient_clip_norm = 0.2;
  job.train.eval_sequences = 8;
  variant.apply(job);
  return job;
}

TEST(OffloadedAdaptersTest, HaveTheBitsOfThoseOnTheDevice) {
  for (const AdapterVariant& variant : OffloadedVariants()) {
    const JobSpec job = JobOf(variant);
    const int steps = static_cast<int>(std::min<int64_t>(job.train.steps, 8));
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(variant.name + " " + precision);
      ExpectSame(job, TinyPlan(precision, 2, 2), steps);
    }
    SCOPED_TRACE(variant.name + " in a file");
    Plan plan = TinyPlan("bf16");
    plan.offload_optimizer = "nvme";
    ExpectSame(job, plan, 3);
  }
}

/// Late updates read the gradients of the step before: those of now are elsewhere.
TEST(OffloadedAdaptersTest, EachOfTwoMeasuresItsOwnGradientAlsoWhereUpdatesAreLate) {
  JobSpec job = JobOf({"two adapters", SetTwoAdapters});
  Plan plan = TinyPlan("fp32");
  plan.offload_optimizer = "host";
  plan.delayed_update = true;
  Training training(job, plan, true);
  for (int i = 0; i < 45; ++i) {
    const auto report = training.trainer->Step();
    ASSERT_TRUE(report.ok()) << report.status().message();
    double squares = 0;
    for (const char* name : {"one", "two"}) {
      const std::string metric = std::string(kAdapterGradientNormMetric) + "/" + name;
      ASSERT_TRUE(report->technique_metrics.contains(metric)) << i;
      // The metric is of the mean over half of the targets.
      squares += std::pow(report->technique_metrics.at(metric) / 2, 2);
    }
    EXPECT_NEAR(std::sqrt(squares) / report->gradient_norm, 1, 1e-5) << i;
  }
}

/// What passes compute with after a late update are the weights that a checkpoint has.
TEST(OffloadedAdaptersTest, LateUpdatesReachWeightsThatAreMadeOfThem) {
  const AdapterVariant quantized = {"quantised dora", [](JobSpec& job) {
                                      Dora(0).apply(job);
                                      SetQuantized(job, "nf4");
                                    }};
  for (const AdapterVariant& variant : {Dora(0), quantized, Method("loha"), TrainedTokens(false)}) {
    SCOPED_TRACE(variant.name);
    const JobSpec job = JobOf(variant);
    Plan plan = TinyPlan("bf16");
    Training plain(job, plan, false);
    plan.offload_optimizer = "host";
    plan.delayed_update = true;
    Training late(job, plan, true);
    for (int i = 0; i < 43; ++i) ASSERT_TRUE(late.trainer->Step().ok());
    ASSERT_TRUE(late.trainer->FinishUpdates().ok());
    const auto evaluated = late.trainer->Evaluate();
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/c").ok());
    auto file = WriteTensorFile(env, "/c", 0, 1, late.trainer->StateTensors());
    ASSERT_TRUE(file.ok()) << file.status().message();
    CheckpointManifest manifest;
    manifest.files = {*file};
    const Status loaded = LoadTensors(env, "/c", manifest, plain.trainer->StateTensors());
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    ASSERT_TRUE(plain.trainer->Restored(late.trainer->counters()).ok());
    const auto expected = plain.trainer->Evaluate();
    ASSERT_TRUE(evaluated.ok() && expected.ok());
    EXPECT_EQ(evaluated->loss, expected->loss);
  }
}

Plan StreamingPlan(const std::string& precision, int64_t micro_batch = 2,
                   int64_t accumulation = 2) {
  Plan plan = TinyPlan(precision, micro_batch, accumulation);
  plan.offload_optimizer = "host";
  plan.offload_parameters = "host";
  return plan;
}

std::vector<AdapterVariant> StreamedVariants() {
  return {
      {"lora", SetLora},
      {"two adapters", SetTwoAdapters},
      {"lora from pissa with dropout",
       [](JobSpec& job) {
         SetLora(job);
         job.model.peft.init = "pissa";
         job.model.peft.dropout = 0.2;
       }},
      Method("ia3"),
      Method("miss"),
      Method("houlsby"),
      VirtualTokens("prompt"),
      VirtualTokens("p_tuning"),
      VirtualTokens("prefix"),
      {"biases",
       [](JobSpec& job) {
         job.model.peft.method = "selective";
         job.model.peft.modules_to_save = {"*.bias"};
       }},
      {"nf4", [](JobSpec& job) { SetQuantized(job, "nf4"); }},
      {"fp4 of a llama",
       [](JobSpec& job) {
         job.model.family = "llama";
         job.model.kv_heads = 1;
         job.model.untied_classifier = true;
         SetQuantized(job, "fp4");
       }},
      {"nf4 without adapters",
       [](JobSpec& job) {
         job.model.freeze = {"*.h.0.*", "*.attn.c_attn.weight"};
         job.model.weight_quantization.type = "nf4";
         job.model.weight_quantization.block_size = 32;
       }},
  };
}

TEST(StreamedAdaptersTest, HaveTheBitsOfANetworkOnTheDevice) {
  for (const AdapterVariant& variant : StreamedVariants()) {
    JobSpec job = JobOf(variant);
    job.model.layers = 4;
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(variant.name + " " + precision);
      ExpectSame(job, StreamingPlan(precision), 2);
    }
    SCOPED_TRACE(variant.name + ", recomputed, with units that stay and moments in a file");
    Plan plan = StreamingPlan("bf16");
    plan.offload_optimizer = "nvme";
    plan.offload_activations = "host";
    plan.resident_units = {2, 4};
    plan.block_memory_policy = {"recompute", "keep", "attention", "keep"};
    ExpectSame(job, plan, 2);
  }
}

TEST(StreamedAdaptersTest, BytesOnTheDeviceAndOverTheLinkAreThoseOfThePlanner) {
  for (const bool quantized : {false, true}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(quantized ? "nf4 " : "lora ") + precision);
      JobSpec job = TinyJob(4);
      SetLora(job);
      if (quantized) SetQuantized(job, "nf4");
      job.model.family = "llama";
      job.model.untied_classifier = true;
      job.model.layers = 6;
      job.model.width = 128;
      job.model.vocab_size = 700;  // no size of a block's
      job.model.context = 32;
      Training training(job, StreamingPlan(precision), true);
      ASSERT_TRUE(training.trainer->Step().ok());
      HostMemoryPool& host = *training.context.host;
      const int64_t down = host.down().totals().bytes, up = host.up().totals().bytes;
      const auto report = training.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();

      const MemoryInputs inputs =
          MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf(precision).products)});
      const MemoryBreakdown all = PredictMemory(inputs), predicted = PredictDeviceTier(inputs);
      ExpectPredictedBytes("device", predicted.parameters_bytes,
                           report->device_memory.parameters_bytes);
      ExpectPredictedBytes("both", all.parameters_bytes, report->peak_memory.parameters_bytes);

      int64_t gradients = 0;
      const ParameterSet& parameters = training.model->parameters();
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].trainable()) gradients += 4 * parameters[i].shape.Elements();
      }
      const StreamedBytes streamed = StreamedWeightBytes(inputs);
      EXPECT_EQ(host.down().totals().bytes - down, 2 * gradients);
      // The sums of the first micro-batch come up in the second.
      ExpectPredictedBytes("up", 2 * (streamed.forward + streamed.backward) + gradients,
                           host.up().totals().bytes - up);
    }
  }
}

}  // namespace
}  // namespace weft::engine
