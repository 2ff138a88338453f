#include "common/model/frozen_savings.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr int64_t kLayers = 4;
constexpr int64_t kWidth = 256;
constexpr int64_t kMlpWidth = 704;
constexpr int64_t kVocabulary = 1024;
constexpr int64_t kContext = 128;
constexpr int64_t kBatch = 8;
constexpr double kAttentionNumbers = 4.0 * kWidth * kWidth;
constexpr double kMlpNumbers = 3.0 * kMlpWidth * kWidth;

JobSpec Job() {
  JobSpec job;
  job.model.family = "llama";
  job.model.layers = kLayers;
  job.model.width = kWidth;
  job.model.heads = 4;
  job.model.mlp_width = kMlpWidth;
  job.model.vocab_size = kVocabulary;
  job.model.context = kContext;
  job.train.global_batch = kBatch;
  return job;
}

JobSpec JobOf(const std::string& method, const std::vector<std::string>& modules) {
  JobSpec job = Job();
  job.model.peft.method = method;
  job.model.peft.target_modules = modules;
  return job;
}

FrozenSavings SavingsOf(const JobSpec& job) {
  Plan plan;
  plan.precision = "fp32";
  plan.micro_batch = 2;
  plan.accumulation_steps = 4;
  plan.block_memory_policy.assign(kLayers, "keep");
  return SavingsOfFrozen(job, plan);
}

/// FLOPs a step of the gradients of weights with this many numbers.
double GradientFlops(double numbers) {
  return 2 * numbers * kBatch * kContext;
}

TEST(FrozenSavings, AreNoneWhereAllIsTrained) {
  const FrozenSavings savings = SavingsOf(Job());
  EXPECT_EQ(savings.weight_gradient_flops, 0);
  EXPECT_EQ(savings.activation_bytes, 0);
}

TEST(FrozenSavings, AreTheGradientsOfAllWeightsWithAdapters) {
  const double all = GradientFlops(kLayers * (kAttentionNumbers + kMlpNumbers) +
                                   static_cast<double>(kVocabulary * kWidth));
  for (const char* quantized : {"none", "nf4"}) {
    for (const std::vector<std::string>& modules :
         {std::vector<std::string>{"q_proj", "v_proj"}, {"all-linear"}}) {
      JobSpec job = JobOf("lora", modules);
      job.model.weight_quantization.type = quantized;
      EXPECT_DOUBLE_EQ(SavingsOf(job).weight_gradient_flops, all) << quantized << modules.size();
    }
  }
  // Factors of LoHa get theirs from those of the weights.
  EXPECT_DOUBLE_EQ(SavingsOf(JobOf("loha", {"q_proj", "v_proj"})).weight_gradient_flops,
                   all - GradientFlops(kLayers * kAttentionNumbers / 2));
}

TEST(FrozenSavings, AreTheGradientsOfFrozenNames) {
  JobSpec job = Job();
  job.model.freeze = {"*.mlp.*"};
  EXPECT_DOUBLE_EQ(SavingsOf(job).weight_gradient_flops, GradientFlops(kLayers * kMlpNumbers));
}

TEST(FrozenSavings, AreActivationsThatOnlyGradientsOfWeightsRead) {
  // The norm before the MLP is read by gradients of the MLP's weights alone. The last block has it
  // in any case while the passes turn.
  const int64_t row = 2 * kContext * kWidth * int64_t{sizeof(float)};
  const int64_t attention = SavingsOf(JobOf("lora", {"q_proj", "v_proj"})).activation_bytes;
  EXPECT_GE(attention, (kLayers - 1) * row);
  EXPECT_LT(SavingsOf(JobOf("lora", {"all-linear"})).activation_bytes, attention);
}

}  // namespace
}  // namespace weft
