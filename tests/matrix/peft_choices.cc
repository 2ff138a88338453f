#include "tests/matrix/peft_choices.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::testing {
namespace {

/// All linear layers that any adapter goes with: not those of experts.
std::vector<std::string> LinearLayers(const JobSpec& job) {
  if (job.model.experts > 0) return {"q_proj", "k_proj", "v_proj", "o_proj"};
  return {"all-linear"};
}

}  // namespace

Choice Lora(bool everywhere) {
  return {everywhere ? "lora everywhere" : "lora", Effect::kOwnTraining, [=](JobSpec& job) {
            job.model.peft.method = "lora";
            job.model.peft.rank = 4;
            if (everywhere) job.model.peft.target_modules = {"all-linear"};
          }};
}

Choice Dora() {
  return {"dora", Effect::kOwnTraining, [](JobSpec& job) {
            job.model.peft.method = "lora";
            job.model.peft.rank = 4;
            job.model.peft.use_dora = true;
            job.model.peft.modules_to_save = {"*.bias"};
          }};
}

Choice LoraFrom(const Methods& inits) {
  return {"lora " + inits.Names(), Effect::kOwnTraining, [=](JobSpec& job) {
            job.model.peft.method = "lora";
            job.model.peft.rank = 4;
            job.model.peft.init = inits.Of(job);
            job.model.peft.dropout = 0.2;
            job.model.peft.target_modules = LinearLayers(job);
          }};
}

Choice QuantizedWeights(const std::string& type) {
  return {"weights in " + type, Effect::kOwnTraining, [=](JobSpec& job) {
            if (job.model.peft.method == "none") Lora(true).apply(job);
            job.model.width = std::max<int64_t>(job.model.width, 64);
            job.model.weight_quantization.type = type;
            job.model.weight_quantization.block_size = 32;
            job.model.weight_quantization.double_quantization = type == "nf4";
          }};
}

Choice JointAdapters() {
  return {"two adapters", Effect::kOwnTraining, [](JobSpec& job) {
            PeftSpec& peft = job.model.peft;
            peft.method = "lora";
            peft.rank = 4;
            peft.target_modules = LinearLayers(job);
            peft.adapters.resize(2);
            peft.adapters[0].name = "one";
            peft.adapters[1].name = "two";
            peft.adapters[1].learning_rate = job.optimizer.learning_rate / 2;
          }};
}

Choice LoraOfTokens() {
  return {"lora of tokens", Effect::kOwnTraining, [](JobSpec& job) {
            const std::string& family = job.model.family;
            PeftSpec& peft = job.model.peft;
            peft.method = "lora";
            peft.rank = 4;
            // ViT has no tokens: validation refuses these names there.
            peft.target_modules = {"wte", "c_attn"};
            if (family == "llama") {
              job.model.untied_classifier = true;
              peft.target_modules = {"embed_tokens", "q_proj", "lm_head"};
            }
            if (family == "bert") peft.target_modules = {"word_embeddings", "query"};
          }};
}

Choice TrainedTokens() {
  return {"trained tokens", Effect::kOwnTraining, [](JobSpec& job) {
            PeftSpec& peft = job.model.peft;
            if (NetworkOf(job) == Network::kLlama) {
              peft.method = "selective";
              peft.modules_to_save = {"input_layernorm"};
            } else {
              peft.method = "lora";
              peft.rank = 4;
            }
            peft.trainable_token_indices = {1, 3, 4};
          }};
}

Choice OtherPeft(const std::string& method) {
  return {method, Effect::kOwnTraining, [=](JobSpec& job) { job.model.peft.method = method; }};
}

Choice VirtualTokens(const std::string& method) {
  return {method, Effect::kOwnTraining, [=](JobSpec& job) {
            job.model.peft.method = method;
            job.model.peft.num_virtual_tokens = 2;
            job.model.context += 2;
            job.train.sequence_length = job.model.context - 2;
          }};
}

Choice ProjectedPrefix() {
  return {"projected prefix", Effect::kOwnTraining, [](JobSpec& job) {
            VirtualTokens("prefix").apply(job);
            job.model.peft.prefix_projection = true;
          }};
}

}  // namespace weft::testing
