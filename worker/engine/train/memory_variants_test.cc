// The same as memory_test.cc for what techniques change of a network.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/engine/testing/padded_documents.h"
#include "worker/engine/train/memory_testing.h"

namespace weft::engine {
namespace {

TEST(PredictMemoryTest, FollowsWhatIsSharedFrozenFactorisedOrWithoutNorms) {
  const struct {
    const char* name;
    void (*change)(ModelSpec&);
  } variants[] = {
      {"post-norm", [](ModelSpec& m) { m.norm_position = "post"; }},
      {"no norms", [](ModelSpec& m) { m.norm_position = "none"; }},
      {"layer scale", [](ModelSpec& m) { m.initialization.method = "layer_scale"; }},
      {"rezero", [](ModelSpec& m) { m.initialization.method = "rezero"; }},
      {"fixup", [](ModelSpec& m) { m.initialization.method = "fixup"; }},
      {"one block", [](ModelSpec& m) { m.distinct_blocks = 1; }},
      {"factorised", [](ModelSpec& m) { m.embedding_width = 64; }},
      {"expanded", [](ModelSpec& m) { m.over_parameterization.kind = "linear_expansion"; }},
      {"widely expanded",
       [](ModelSpec& m) {
         m.over_parameterization = {"linear_expansion", {"*.mlp.*"}, 3.0, 3};
       }},
      {"copies",
       [](ModelSpec& m) {
         m.over_parameterization = {"majority_kernels", {}, 1.0, 4};
       }},
      {"low-rank cores", [](ModelSpec& m) { m.low_rank_core.rank = 32; }},
      {"branches", [](ModelSpec& m) { m.over_parameterization.kind = "branches"; }},
      {"monarch", [](ModelSpec& m) { m.structured_matrices.kind = "monarch"; }},
      {"monarch with attention",
       [](ModelSpec& m) {
         m.structured_matrices = {"monarch", {"*"}, 2};
       }},
      {"monarch llama with part of attention",
       [](ModelSpec& m) {
         m.family = "llama";
         m.structured_matrices = {"monarch", {"*mlp*", "*k_proj*"}, 4};
       }},
      {"pixelfly without low rank",
       [](ModelSpec& m) { m.structured_matrices = {"pixelfly", {"*"}, 4, 32, 0.5, 0}; }},
      {"pixelfly",
       [](ModelSpec& m) { m.structured_matrices = {"pixelfly", {"*"}, 4, 16, 0.6, 0.5}; }},
      {"lora", [](ModelSpec& m) { m.peft.method = "lora"; }},
      {"lora everywhere",
       [](ModelSpec& m) {
         m.peft.method = "lora";
         m.peft.rank = 32;
         m.peft.target_modules = {"all-linear"};
       }},
      {"lora of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "lora";
         m.peft.target_modules = {"q_proj", "v_proj", "down_proj"};
       }},
      {"lora of a llama's classifier",
       [](ModelSpec& m) {
         m.family = "llama";
         m.untied_classifier = true;
         m.peft.method = "lora";
         m.peft.rank = 32;
         m.peft.target_modules = {"q_proj", "lm_head"};
       }},
      {"dora of a llama's classifier",
       [](ModelSpec& m) {
         m.family = "llama";
         m.untied_classifier = true;
         m.peft.method = "lora";
         m.peft.use_dora = true;
         m.peft.target_modules = {"q_proj", "lm_head"};
       }},
      {"two adapters", SetTwoAdapters},
      {"two adapters with dropout in a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         SetTwoAdapters(m);
         m.peft.rank = 32;
         m.peft.dropout = 0.1;
       }},
      {"dora",
       [](ModelSpec& m) {
         m.peft.method = "lora";
         m.peft.use_dora = true;
         m.peft.target_modules = {"all-linear"};
       }},
      {"dora with dropout",
       [](ModelSpec& m) {
         m.peft.method = "lora";
         m.peft.use_dora = true;
         m.peft.dropout = 0.1;
         m.peft.target_modules = {"all-linear"};
       }},
      {"dora with dropout of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "lora";
         m.peft.use_dora = true;
         m.peft.dropout = 0.1;
         m.peft.target_modules = {"q_proj", "v_proj", "gate_proj"};
       }},
      {"lora of the embedding",
       [](ModelSpec& m) {
         m.peft.method = "lora";
         m.peft.rank = 32;
         m.peft.target_modules = {"wte", "c_attn"};
       }},
      {"trained tokens of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "selective";
         m.peft.trainable_token_indices = {1, 2, 3, 5, 8, 13};
       }},
      {"lora of a mixture",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
         m.experts_per_token = 2;
         m.peft.method = "lora";
         m.peft.target_modules = {"all-linear"};
       }},
      {"qlora",
       [](ModelSpec& m) {
         m.peft.method = "lora";
         m.weight_quantization.type = "nf4";
       }},
      {"qlora of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "lora";
         m.peft.target_modules = {"all-linear"};
         m.weight_quantization = {.type = "fp4", .double_quantization = false};
       }},
      {"qlora of a mixture",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
         m.experts_per_token = 2;
         m.peft.method = "lora";
         m.weight_quantization.type = "nf4";
       }},
      {"oft of a mixture",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
         m.experts_per_token = 2;
         m.peft.method = "oft";
       }},
      {"pfeiffer of a mixture",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
         m.experts_per_token = 2;
         m.peft.method = "pfeiffer";
       }},
      {"parallel of a mixture",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
         m.experts_per_token = 2;
         m.peft.method = "parallel";
       }},
      {"prompt of a mixture",
       [](ModelSpec& m) {
         m.family = "llama";
         m.experts = 4;
         m.experts_per_token = 2;
         m.peft.method = "prompt";
         m.peft.num_virtual_tokens = 4;
       }},
      {"loha everywhere",
       [](ModelSpec& m) {
         m.peft.method = "loha";
         m.peft.target_modules = {"all-linear"};
       }},
      {"lokr of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "lokr";
         m.peft.target_modules = {"q_proj", "v_proj", "down_proj"};
       }},
      {"oft everywhere",
       [](ModelSpec& m) {
         m.peft.method = "oft";
         m.peft.target_modules = {"all-linear"};
       }},
      {"vera of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "vera";
         m.peft.rank = 64;
         m.peft.target_modules = {"all-linear"};
       }},
      {"houlsby", [](ModelSpec& m) { m.peft.method = "houlsby"; }},
      {"wide pfeiffer of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "pfeiffer";
         m.peft.reduction_factor = 2;
       }},
      {"parallel", [](ModelSpec& m) { m.peft.method = "parallel"; }},
      {"prompt",
       [](ModelSpec& m) {
         m.peft.method = "prompt";
         m.peft.num_virtual_tokens = 4;
       }},
      {"prefix of a llama",
       [](ModelSpec& m) {
         m.family = "llama";
         m.peft.method = "prefix";
         m.peft.num_virtual_tokens = 4;
       }},
      {"long prefix",
       [](ModelSpec& m) {
         m.peft.method = "prefix";
         m.peft.num_virtual_tokens = 64;
       }},
      {"lora of a bert",
       [](ModelSpec& m) {
         m.family = "bert";
         m.peft.method = "lora";
       }},
      {"prompt of a bert",
       [](ModelSpec& m) {
         m.family = "bert";
         m.peft.method = "prompt";
         m.peft.num_virtual_tokens = 4;
       }},
      {"prefix of a classification",
       [](ModelSpec& m) {
         m.family = "bert";
         m.head = "classification";
         m.classes = 5;
         m.peft.method = "prefix";
         m.peft.num_virtual_tokens = 4;
         m.peft.modules_to_save = {"classifier"};
       }},
      // The rate is so small that no branch is skipped here.
      {"divided branches", [](ModelSpec& m) { m.stochastic_depth.rate = 0.01; }},
      {"frozen embedding", [](ModelSpec& m) { m.freeze = {"transformer.w*"}; }},
      {"frozen below",
       [](ModelSpec& m) {
         m.freeze = {"transformer.w*", "transformer.h.0.*", "transformer.h.1.*"};
       }},
  };
  for (const auto& variant : variants) {
    SCOPED_TRACE(variant.name);
    ModelSpec model = SmallModel(4, 4, 700, 128);
    variant.change(model);
    for (int64_t recomputed : {0, 3}) CheckPrediction(model, 2, "fp32", recomputed);
    if (model.peft.method == "none") CheckPrediction(model, 2, "fp32", 4);
    if (model.over_parameterization.kind != "none" || model.low_rank_core.rank > 0 ||
        model.structured_matrices.kind != "none") {
      CheckPrediction(model, 2, "bf16_pure", 0);
    }
    if (model.structured_matrices.kind != "none" || model.peft.method != "none") {
      CheckPrediction(model, 2, "bf16", 0);
    }
  }
}

constexpr double kOnePercent = 0.01;

/// Sizes are whole lines, so that nothing is padded: what tiny networks differ by.
JobSpec EvenLlama(const std::string& method) {
  JobSpec job = TinyJob(4);
  job.model = SmallModel(3, 4, 1024, 128);
  job.model.family = "llama";
  job.model.width = 256;
  job.model.kv_heads = 2;
  job.model.mlp_width = 704;
  job.model.peft.method = method;
  return job;
}

/// All but the workspace.
double SumOf(const MemoryBreakdown& memory) {
  return static_cast<double>(memory.parameters_bytes + memory.gradients_bytes +
                             memory.optimizer_bytes + memory.activations_bytes);
}

struct PredictedAndMeasured {
  MemoryBreakdown predicted;
  MemoryBreakdown measured;
};

/// Of two steps of two micro-batches of two sequences: of `source`, or where there is none of
/// sequences of as many tokens as go with the context.
PredictedAndMeasured MemoryOf(JobSpec job, const std::string& precision,
                              BatchSource* source = nullptr) {
  job.train.sequence_length = job.model.context - VirtualTokensOf(job.model).Total();
  const Plan plan = TinyPlan(precision, 2, 2);
  const auto batches = BatchesFor(job.model);
  TinyTraining run(job, plan, source == nullptr ? *batches : *source);
  run.Step();
  const MemoryMachine machine{ProductsOf(PrecisionOf(precision).products)};
  return {PredictMemory(MemoryInputsOf(job, plan, machine)), run.Step().peak_memory};
}

TEST(PredictMemoryTest, AdaptersAndQuantisedWeightsAreWithinOnePercent) {
  for (const char* quantized : {"none", "nf4"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(quantized) + " in " + precision);
      JobSpec job = EvenLlama("lora");
      job.model.peft.rank = 16;
      job.model.peft.target_modules = {"all-linear"};
      job.model.weight_quantization.type = quantized;
      const PredictedAndMeasured memory = MemoryOf(job, precision);
      const auto near = [&](const char* name, int64_t MemoryBreakdown::*part) {
        EXPECT_NEAR(static_cast<double>(memory.predicted.*part) /
                        static_cast<double>(memory.measured.*part),
                    1, kOnePercent)
            << name << ": predicted " << memory.predicted.*part << ", measured "
            << memory.measured.*part;
      };
      near("parameters", &MemoryBreakdown::parameters_bytes);
      near("gradients", &MemoryBreakdown::gradients_bytes);
      near("optimizer", &MemoryBreakdown::optimizer_bytes);
      near("activations", &MemoryBreakdown::activations_bytes);
    }
  }
}

// Some train so little that what it takes is lost among the rest: the sum counts.
TEST(PredictMemoryTest, OtherMethodsAreWithinOnePercentOfTheSum) {
  for (const char* method : {"adalora", "vera", "ia3", "miss", "p_tuning"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " in " + precision);
      JobSpec job = EvenLlama(method);
      PeftSpec& peft = job.model.peft;
      if (peft.method == "adalora" || peft.method == "vera") peft.target_modules = {"all-linear"};
      if (peft.method == "p_tuning") peft.num_virtual_tokens = 8;
      const PredictedAndMeasured memory = MemoryOf(job, precision);
      EXPECT_NEAR(SumOf(memory.predicted) / SumOf(memory.measured), 1, kOnePercent)
          << "predicted " << SumOf(memory.predicted) << ", measured " << SumOf(memory.measured);
    }
  }
}

// Padding has no virtual tokens, and takes as much as tokens do.
TEST(PredictMemoryTest, VirtualTokensOfPaddedRowsAreWithinOnePercentOfTheSum) {
  for (const char* method : {"prompt", "p_tuning", "prefix"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::string(method) + " in " + precision);
      JobSpec job = EvenLlama(method);
      job.model.peft.num_virtual_tokens = 16;
      job.data.batching = "pad_fixed";
      PaddedDocuments documents(job.model.vocab_size, job.model.context - 16);
      const PredictedAndMeasured memory = MemoryOf(job, precision, &documents);
      EXPECT_NEAR(SumOf(memory.predicted) / SumOf(memory.measured), 1, kOnePercent)
          << "predicted " << SumOf(memory.predicted) << ", measured " << SumOf(memory.measured);
      EXPECT_LE(static_cast<double>(memory.measured.workspace_bytes),
                (1 + kTolerance) * static_cast<double>(memory.predicted.workspace_bytes));
    }
  }
}

// Frozen weights in a format have no operands for their gradients; those of adapters are dense.
TEST(PredictMemoryTest, HoldsForAdaptersOnWeightsInFp8) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool dora : {false, true}) {
      SCOPED_TRACE(std::string(family) + (dora ? " dora" : " lora"));
      ModelSpec model = SmallModel(4, 4, 700, 256);
      model.family = family;
      if (model.family == "llama") {
        model.kv_heads = 1;
        model.mlp_width = 352;
      }
      model.peft.method = "lora";
      model.peft.use_dora = dora;
      model.peft.target_modules = {"all-linear"};
      for (int64_t recomputed : {0, 3}) CheckPrediction(model, 2, "fp8", recomputed);
    }
  }
}

// What frozen products read is not kept, nor made again.
TEST(PredictMemoryTest, HoldsWhereProductsAreFrozen) {
  for (const char* family : {"gpt2", "llama"}) {
    ModelSpec model = SmallModel(4, 4, 700, 256);
    model.family = family;
    const bool llama = model.family == "llama";
    if (llama) {
      model.kv_heads = 1;
      model.mlp_width = 352;
    }
    const std::vector<std::string> blocks = {llama ? "model.layers.*" : "transformer.h.*",
                                             llama ? "model.embed*" : "transformer.w*"};
    for (const std::vector<std::string>& frozen :
         {std::vector<std::string>{"*.mlp.*"}, {"*attn.*"}, {"*.mlp.*", "*attn.*"}, blocks}) {
      model.freeze = frozen;
      SCOPED_TRACE(model.family + ", frozen " + frozen.back());
      for (int64_t recomputed : {0, 3, 4}) CheckPrediction(model, 2, "fp32", recomputed);
      if (frozen != blocks) {
        CheckActivations(model, "bf16", std::vector<std::string>(4, "attention"), 1);
        CheckActivations(model, "bf16", {"recompute", "attention", "attention"}, 1, {}, 8);
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
