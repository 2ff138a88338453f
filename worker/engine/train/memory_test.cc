// What the planner promises about memory, measured against what the engine's allocator counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/spec/phases.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/engine/train/memory_testing.h"

namespace weft::engine {
namespace {

TEST(PredictMemoryTest, ActivationsOfEveryPolicyAreWithinOnePercent) {
  for (const std::string family : {"gpt2", "llama", "llama with wide heads"}) {
    ModelSpec model = SmallModel(6, 4, 700, 128);
    model.family = family.substr(0, family.find(' '));
    if (family != model.family) model.head_width = model.width / 2;
    if (model.family == "llama") {
      model.kv_heads = 1;
      model.mlp_width = 352;
    }
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(family + " in " + precision);
      CheckActivations(model, precision, {}, 1);
      CheckActivations(model, precision, std::vector<std::string>(6, "attention"), 1);
      CheckActivations(model, precision, {"recompute", "recompute", "recompute", "attention"}, 2);
      for (int64_t segment : {2, 4, 6}) {
        SCOPED_TRACE("segments of " + std::to_string(segment));
        CheckActivations(model, precision, std::vector<std::string>(6, "recompute"), segment);
      }
      SCOPED_TRACE("nested segments");
      CheckActivations(model, precision, {}, 1,
                       {"F_ck 0",        "F_none 1", "F_none 2", "F_none 3", "F_ck 4", "F_none 5",
                        "F_all 4",       "F_all 5",  "B 5",      "B 4",      "F_ck 0", "F_none 1",
                        "F_ck 2",        "F_all 3",  "B 3",      "F_all 2",  "B 2",    "F_ck 0",
                        "F_attention 1", "B 1",      "F_all 0",  "B 0"});
    }
  }
}

ModelSpec Mixtral(int64_t layers, int64_t context) {
  ModelSpec model = SmallModel(layers, 4, 700, context);
  model.family = "llama";
  model.kv_heads = 1;
  model.mlp_width = 96;
  model.experts = 4;
  return model;
}

TEST(PredictMemoryTest, ActivationsOfExpertsAreWithinOnePercent) {
  const ModelSpec model = Mixtral(6, 128);
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    CheckActivations(model, precision, {}, 1);
    CheckActivations(model, precision, std::vector<std::string>(6, "attention"), 1);
    CheckActivations(model, precision, {"recompute", "recompute", "recompute", "attention"}, 2);
    CheckActivations(model, precision, std::vector<std::string>(6, "recompute"), 1);
    CheckActivations(model, precision, std::vector<std::string>(6, "recompute"), 4);
  }
}

TEST(PredictMemoryTest, CompressedActivationsOfExpertsAreWithinOnePercent) {
  // All tokens go to all experts: no choice changes what is kept.
  ModelSpec model = Mixtral(4, 128);
  model.experts_per_token = model.experts;
  for (const auto& [precision, bits] : {std::pair{"fp32", 2}, std::pair{"bf16", 8}}) {
    SCOPED_TRACE(std::string(precision) + ", " + std::to_string(bits));
    CheckActivations(model, precision, {}, 1, {}, bits);
    CheckActivations(model, precision, std::vector<std::string>(4, "attention"), 1, {}, bits);
    for (const int64_t segment : {1, 3}) {
      CheckActivations(model, precision, std::vector<std::string>(4, "recompute"), segment, {},
                       bits);
    }
  }
}

TEST(PredictMemoryTest, HoldsForMasksOfGrowth) {
  for (const char* family : {"gpt2", "llama"}) {
    ModelSpec model = SmallModel(3, 4, 700, 256);
    model.family = family;
    model.mlp_width = 512;
    const std::pair<const char*, std::function<void(ModelSpec&)>> parts[] = {
        {"columns and heads",
         [](ModelSpec& m) {
           m.width = 64;
           m.heads = 2;
         }},
        {"neurons", [](ModelSpec& m) { m.mlp_width = 256; }},
        {"blocks", [](ModelSpec& m) { m.layers = 1; }},
        {"all", [](ModelSpec& m) {
           m.width = 64;
           m.heads = 2;
           m.mlp_width = 256;
           m.layers = 1;
         }}};
    for (const auto& [name, change] : parts) {
      SCOPED_TRACE(std::string(family) + ", " + name);
      MaskedGrowth growth{model, {}};
      change(growth.before);
      growth.growth.method = "msg";
      growth.growth.ramp_steps = 100;
      for (const char* precision : {"fp32", "bf16"}) {
        CheckPrediction(model, 4, precision, 0, growth);
        if (growth.before.width < model.width && growth.before.layers < model.layers) {
          CheckPrediction(model, 4, precision, 3, growth);
        }
      }
    }
  }
}

TEST(PredictMemoryTest, HoldsForUpdatesOfWhatGrowthHasAdded) {
  for (const char* family : {"gpt2", "llama"}) {
    ModelSpec model = SmallModel(3, 4, 2500, 256);
    model.family = family;
    model.mlp_width = 512;
    const std::pair<const char*, std::function<void(ModelSpec&)>> parts[] = {
        {"columns, heads and neurons",
         [](ModelSpec& m) {
           m.width = 64;
           m.heads = 2;
           m.mlp_width = 256;
         }},
        {"neurons", [](ModelSpec& m) { m.mlp_width = 256; }}};
    for (const auto& [name, change] : parts) {
      SCOPED_TRACE(std::string(family) + ", " + name);
      PhaseGrowth growth{model, {}};
      change(growth.before);
      growth.growth.method = "sparkling";
      growth.growth.rewarm_steps = 100;
      for (const char* precision : {"fp32", "bf16"})
        CheckPrediction(model, 4, precision, 0, growth);
    }
  }
}

TEST(PredictMemoryTest, HoldsForNetworksWithoutBlocks) {
  for (const char* family : {"gpt2", "llama"}) {
    ModelSpec model = SmallModel(0, 4, 2500, 256);
    model.family = family;
    for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
      CheckPrediction(model, 8, precision, 0);
    }
  }
}

TEST(PredictMemoryTest, HoldsForExperts) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure", "fp8"}) {
    for (int64_t recomputed : {0, 2, 3}) CheckPrediction(Mixtral(3, 256), 2, precision, recomputed);
  }
}

TEST(PredictMemoryTest, CompressedActivationsAreWithinOnePercent) {
  for (const auto& [family, norms] :
       {std::pair{"gpt2", "pre"}, std::pair{"gpt2", "post"}, std::pair{"llama", "pre"}}) {
    ModelSpec model = SmallModel(4, 4, 700, 128);
    model.family = family;
    model.norm_position = norms;
    for (const auto& [precision, bits] : {std::pair{"fp32", 2}, std::pair{"bf16", 8}}) {
      SCOPED_TRACE(std::string(family) + " " + norms + " in " + precision + ", " +
                   std::to_string(bits));
      const auto check = [&, precision = precision, bits = bits](
                             const std::vector<std::string>& policies, int64_t segment,
                             const std::vector<std::string>& schedule = {}) {
        SCOPED_TRACE((policies.empty() ? "kept" : policies.back()) + " by " +
                     std::to_string(segment) + (schedule.empty() ? "" : ", nested"));
        CheckActivations(model, precision, policies, segment, schedule, bits);
      };
      check({}, 1);
      check(std::vector<std::string>(4, "attention"), 1);
      check({"recompute", "recompute", "attention"}, 1);
      for (const int64_t segment : {1, 2, 3}) {
        check(std::vector<std::string>(4, "recompute"), segment);
      }
      check({}, 1,
            {"F_ck 0", "F_none 1", "F_none 2", "F_all 3", "B 3", "F_ck 0", "F_none 1", "F_all 2",
             "B 2", "F_ck 0", "F_attention 1", "B 1", "F_all 0", "B 0"});
    }
  }
}

// With T tokens, width C and h heads, a block keeps 12 T C elements and 4 + h numbers a token;
// without the inside of attention 8 T C and 4; recomputed T C (Korthikanti et al. 2022, arXiv
// 2205.05198, for this block). In bits, where that is possible, an element takes b + 0.5.
TEST(PredictMemoryTest, EachBlockKeepsTheBytesOfTheFormula) {
  RandomTokens tokens(700, 128);
  for (const int64_t bits : {0, 8, 4, 2}) {
    const double t = 2 * 128, c = 128, h = 4;
    const double element = 2,
                 compressed = bits == 0 ? element : (static_cast<double>(bits) + 0.5) / 8;
    const std::pair<const char*, double> policies[] = {
        {"keep", 3 * t * c * element + 9 * t * c * compressed + (4 + h) * t * 4},
        {"attention", 8 * t * c * compressed + 4 * t * 4},
        {"recompute", t * c * compressed}};
    for (const auto& [policy, bytes] : policies) {
      SCOPED_TRACE(std::string(policy) + " in " + std::to_string(bits) + " bits");
      const auto peak = [&, policy = policy](int64_t layers) {
        JobSpec job = TinyJob(2);
        job.model = SmallModel(layers, 4, 700, 128);
        Plan plan = TinyPlan("bf16", 2, 1);
        plan.activation_bits = bits;
        plan.block_memory_policy = std::vector<std::string>(static_cast<size_t>(layers), policy);
        TinyTraining run(job, plan, tokens);
        return run.Step().peak_memory.activations_bytes;
      };
      // So many that the peak is at the end of the forward pass.
      EXPECT_EQ(static_cast<double>(peak(16) - peak(12)), 4 * bytes);
    }
  }
}

TEST(PredictMemoryTest, CountsTheStateOfEveryOptimizerAndAverage) {
  RandomTokens tokens(2500, 64);
  for (const char* name : {"sgd", "lars", "adam", "adamw", "lamb", "lion", "adafactor", "muon",
                           "schedule_free_adamw"}) {
    for (const char* averaging : {"none", "ema", "lawa"}) {
      if (name == std::string("schedule_free_adamw") && averaging != std::string("none")) continue;
      const char* over_parameterization = averaging == std::string("ema")    ? "linear_expansion"
                                          : averaging == std::string("lawa") ? "majority_kernels"
                                                                             : "none";
      SCOPED_TRACE(std::string(name) + " " + averaging);
      JobSpec job = TinyJob(2);
      job.model.width = 128;
      job.model.vocab_size = 2500;
      job.model.context = 64;
      job.optimizer.name = name;
      job.schedule.kind = "constant";  // as schedule-free averages want it
      job.train.averaging.kind = averaging;
      job.train.averaging.window = 3;
      job.model.over_parameterization.kind = over_parameterization;
      TinyTraining run(job, TinyPlan("fp32", 2, 1), tokens);
      run.Step();
      const MemoryBreakdown measured = run.Step().peak_memory;
      const int64_t predicted = OptimizerBytesOf(job.model, job, DType::kF32).state;
      // Tensors begin on 64 bytes, and blocks of memory have round sizes.
      EXPECT_GE(measured.optimizer_bytes, predicted);
      EXPECT_LE(static_cast<double>(measured.optimizer_bytes - predicted),
                std::max(kTolerance * static_cast<double>(predicted), 65536.0));

      const MemoryInputs inputs = MemoryInputsOf(job, TinyPlan("fp32", 2, 1), {});
      EXPECT_LE(static_cast<double>(measured.workspace_bytes),
                1.03 * static_cast<double>(PredictMemory(inputs).workspace_bytes));
    }
  }
}

TEST(PredictMemoryTest, IsWithinThreePercentOfWhatTheEngineTakes) {
  // One with a wide classifier and short sequences, one that is mostly activations.
  const std::pair<ModelSpec, int64_t> shapes[] = {{SmallModel(2, 2, 2500, 64), 6},
                                                  {SmallModel(3, 4, 700, 256), 2}};
  for (const auto& [shape, micro_batch] : shapes) {
    for (const std::string family : {"gpt2", "llama"}) {
      SCOPED_TRACE(family);
      ModelSpec model = shape;
      model.family = family;
      if (family == "llama") {
        model.kv_heads = 1;
        model.untied_classifier = true;
        model.mlp_width = 352;
      }
      for (const PrecisionRecipe* precision : AllPrecisions()) {
        for (int64_t recomputed : {int64_t{0}, model.layers - 1, model.layers}) {
          CheckPrediction(model, micro_batch, std::string(precision->name), recomputed);
        }
      }
    }
  }
}

ModelSpec Vit(int64_t layers) {
  ModelSpec model = SmallModel(layers, 4, 0, 1);
  model.family = "vit";
  model.classes = 10;
  model.image_size = 64;
  model.patch_size = 4;
  return model;
}

ModelSpec Bert(int64_t layers, const std::string& head) {
  ModelSpec model = SmallModel(layers, 4, 2500, 128);
  model.family = "bert";
  model.head = head;
  model.classes = head == "classification" ? 100 : 0;
  return model;
}

TEST(PredictMemoryTest, HoldsForEncoders) {
  for (const ModelSpec& model :
       {Bert(3, "masked_lm"), Bert(3, "classification"), Bert(1, "masked_lm"), Vit(3)}) {
    SCOPED_TRACE(model.family + " " + model.head);
    for (const char* precision : {"fp32", "bf16"}) {
      for (int64_t recomputed : {int64_t{0}, model.layers - 1, model.layers}) {
        CheckPrediction(model, 4, precision, recomputed);
      }
    }
    ModelSpec frozen = model;
    frozen.freeze = {"*.embeddings.*", "*.layer.0.*"};
    if (model.layers > 1) CheckPrediction(frozen, 4, "fp32", 0);
  }
}

// The operations that the planner counts are those that the engine counts while it runs.
TEST(WeightGemmsTest, AreThoseThatTheEngineRuns) {
  ModelSpec gpt2 = SmallModel(2, 4, 700, 64);
  ModelSpec monarch = gpt2, parts = gpt2, lora = gpt2, lora_of_llama = gpt2;
  monarch.structured_matrices.kind = "monarch";
  parts.family = "llama";
  parts.structured_matrices = {"monarch", {"*.1.*", "*k_proj*"}, 2};
  ModelSpec pixelfly = gpt2;
  pixelfly.structured_matrices = {"pixelfly", {}, 4, 16, 0.6, 0.5};
  ModelSpec houlsby = gpt2, pfeiffer = gpt2, parallel = gpt2;
  houlsby.peft.method = "houlsby";
  pfeiffer.peft.method = "pfeiffer";
  parallel.peft.method = "parallel";
  pfeiffer.family = "llama";
  lora.peft.method = lora_of_llama.peft.method = "lora";
  lora.peft.target_modules = {"all-linear"};
  lora_of_llama.family = "llama";
  ModelSpec lora_of_experts = Mixtral(2, 64);
  lora_of_experts.peft = lora.peft;
  ModelSpec lora_of_down = lora_of_experts;
  lora_of_down.peft.target_modules = {"w2"};
  ModelSpec pfeiffer_of_experts = Mixtral(2, 64), parallel_of_experts = Mixtral(2, 64);
  pfeiffer_of_experts.peft.method = "pfeiffer";
  parallel_of_experts.peft.method = "parallel";
  ModelSpec lora_of_lm_head = lora_of_llama, lora_of_pooler = Bert(2, "classification");
  lora_of_lm_head.untied_classifier = true;
  lora_of_lm_head.peft.target_modules = {"lm_head"};
  lora_of_pooler.peft = lora_of_lm_head.peft;
  lora_of_pooler.peft.target_modules = {"pooler.dense", "classifier"};
  ModelSpec lora_of_transform = Bert(2, "masked_lm"), lora_of_patches = Vit(2);
  lora_of_transform.peft = lora_of_patches.peft = lora_of_lm_head.peft;
  lora_of_transform.peft.target_modules = {"transform.dense"};
  lora_of_patches.peft.target_modules = {"projection", "classifier"};
  ModelSpec loha = lora, oft = lora_of_llama, two = gpt2, two_of_llama = lora_of_llama;
  SetTwoAdapters(two);
  SetTwoAdapters(two_of_llama);
  loha.peft.method = "loha";
  oft.peft.method = "oft";
  ModelSpec ia3 = gpt2, dora = lora, dora_of_llama = lora_of_llama;
  ia3.peft.method = "ia3";
  dora.peft.use_dora = dora_of_llama.peft.use_dora = true;
  ModelSpec dropped_dora = dora, dropped_dora_of_llama = dora_of_llama;
  dropped_dora.peft.dropout = dropped_dora_of_llama.peft.dropout = 0.1;
  ModelSpec dora_of_lm_head = lora_of_lm_head, dora_of_pooler = lora_of_pooler;
  dora_of_lm_head.peft.use_dora = dora_of_pooler.peft.use_dora = true;
  for (ModelSpec model : {gpt2,
                          monarch,
                          parts,
                          pixelfly,
                          lora,
                          lora_of_llama,
                          lora_of_experts,
                          lora_of_down,
                          pfeiffer_of_experts,
                          parallel_of_experts,
                          lora_of_lm_head,
                          lora_of_pooler,
                          lora_of_transform,
                          lora_of_patches,
                          two,
                          two_of_llama,
                          loha,
                          oft,
                          houlsby,
                          pfeiffer,
                          parallel,
                          ia3,
                          dora,
                          dora_of_lm_head,
                          dora_of_pooler,
                          dora_of_llama,
                          dropped_dora,
                          dropped_dora_of_llama,
                          Mixtral(2, 64),
                          Bert(2, "masked_lm"),
                          Bert(2, "classification"),
                          Vit(2)}) {
    for (bool frozen : {false, true}) {
      if (frozen && (model.experts > 0 || model.peft.method != "none")) continue;
      SCOPED_TRACE(model.family + " " + model.head + " " + model.peft.method +
                   (model.peft.use_dora ? " dora" : "") +
                   (model.peft.dropout > 0 ? " dropped" : "") + (frozen ? ", frozen" : ""));
      if (frozen) {
        model.freeze = {model.family == "gpt2"    ? "transformer.w*"
                        : model.family == "llama" ? "*embed*"
                                                  : "*.embeddings.*",
                        "*.0.*"};
      }
      JobSpec job = TinyJob(4);
      job.model = model;
      const auto batches = BatchesFor(model);
      TinyTraining run(job, TinyPlan("fp32", 4, 1), *batches);
      run.Step();
      Profiler profiler;
      run.context.profiler = &profiler;
      run.Step();
      run.context.profiler = nullptr;
      double counted = 0;
      double attention = 0;
      for (const auto& [name, entry] : profiler.entries()) {
        (name.starts_with("attention") ? attention : counted) += entry.flops;
      }
      const ModelShape shape = ShapeOf(job);
      const int64_t length = model.family == "vit" ? ImagePatches(model) + 1 : model.context;
      double products = StepWorkOf(shape, job.train).Flops() + MergeWorkOf(shape.spec).Flops();
      for (const Gemm& gemm : WeightGemms(shape, 4 * length, length, 4)) products += gemm.Flops();
      EXPECT_NEAR(products / counted, 1, 1e-3);

      // A pass forward has two products over all pairs of query and key, a pass backward five. The
      // engine counts each causal pair, the model half of the square without its diagonal.
      const auto layers =
          static_cast<double>(2 * model.layers + 5 * DifferentiatedAttentions(shape));
      const double predicted =
          layers * 4 * static_cast<double>(length * model.width) * TwiceTheKeys(model, length);
      EXPECT_NEAR(predicted / attention, 1, HeadOf(model) == "causal_lm" ? 0.02 : 1e-9);
    }
  }
}

}  // namespace
}  // namespace weft::engine
