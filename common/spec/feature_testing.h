#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/phases.h"
#include "common/spec/testing.h"

namespace weft::features {

using Change = void (*)(JobSpec& job);

/// The feature of a technique, or one of its settings().
inline const Feature* FeatureOf(std::string_view technique, int64_t setting = -1) {
  for (const TechniqueCost* each : TechniqueCosts()) {
    if (each->name() != technique) continue;
    return setting < 0 ? &each->feature() : &each->settings()[static_cast<size_t>(setting)];
  }
  return nullptr;
}

/// Gives a job two phases, where it has none. The second one adds blocks.
inline void AskForPhases(JobSpec& job) {
  if (!job.phases.empty()) return;
  job.schedule.warmup_steps = 10;
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 100;
  job.phases[0].layers = job.model.layers - 2;
  job.phases[1].growth.method = "stack";
}

/// Gives a job two phases, where it has none. The second one adds columns alone.
inline void AskForWidth(JobSpec& job) {
  AskForPhases(job);
  job.phases[0].layers = job.model.layers;
  job.phases[0].width = job.model.width * 2 / 3;
  job.phases[1].growth.method = "fpi";
}

inline GrowthSpec& GrowthOf(JobSpec& job) {
  AskForPhases(job);
  return job.phases[1].growth;
}

inline PeftSpec& Lora(JobSpec& job) {
  job.model.peft.method = "lora";
  return job.model.peft;
}

/// By feature, what makes a job ask for it, with all that it needs.
inline const std::map<const Feature*, Change>& Changes() {
  static const auto* const changes = new std::map<const Feature*, Change>{
      {&kTensorParallel, [](JobSpec& job) { job.resources.tensor_parallel = 2; }},
      {&kTensorParallel2d,
       [](JobSpec& job) { job.resources.tensor_parallel = job.resources.tensor_rows = 2; }},
      {&kSequenceParallel,
       [](JobSpec& job) {
         job.resources.tensor_parallel = 2;
         job.resources.sequence_parallel = true;
       }},
      {&kContextParallel, [](JobSpec& job) { job.resources.context_parallel = 2; }},
      {&kPipelineParallel, [](JobSpec& job) { job.resources.pipeline_parallel = 2; }},
      {&kZeroBubble,
       [](JobSpec& job) {
         job.resources.pipeline_parallel = 2;
         job.resources.pipeline_schedule = "zero_bubble";
       }},
      {&kExpertParallel,
       [](JobSpec& job) {
         job.model.family = "llama";
         job.model.experts = 4;
         job.resources.expert_parallel = 2;
       }},
      {&kZero, [](JobSpec& job) { job.resources.zero_stage = 1; }},
      {&kZeroGradients, [](JobSpec& job) { job.resources.zero_stage = 2; }},
      {&kZeroParameters, [](JobSpec& job) { job.resources.zero_stage = 3; }},
      {&kZeroParametersOnDevice, [](JobSpec& job) { job.resources.zero_stage = 3; }},
      {&kBf16Reduction, [](JobSpec& job) { job.resources.gradient_reduction = "bf16"; }},
      {&kLocalSteps, [](JobSpec& job) { job.train.local_steps = 8; }},
      {&kLocalStepsOffloaded,
       [](JobSpec& job) {
         job.train.local_steps = 8;
         job.resources.offload_optimizer = "host";
       }},
      {&kTimedRounds,
       [](JobSpec& job) {
         job.train.local_steps = 1;
         job.train.local_round_seconds = 60;
       }},
      {FeatureOf("sub_networks"),
       [](JobSpec& job) {
         job.train.local_steps = 8;
         job.train.local_sub_networks = true;
       }},
      {&kMeshDeterminism,
       [](JobSpec& job) {
         job.train.deterministic = "mesh";
         job.resources.threads_per_rank = 1;
       }},
      {&kSharedTables, [](JobSpec& job) { job.resources.pipeline_parallel = 2; }},
      {&kReplay, [](JobSpec& job) { job.train.replay_every_steps = 10; }},
      {&kBatchWarmup,
       [](JobSpec& job) {
         job.train.batch_warmup_steps = 2;
         job.train.batch_warmup_start = 16;
       }},
      {&kTryPlans, [](JobSpec& job) { job.resources.try_plans = 2; }},
      {&kPeerSnapshots, [](JobSpec& job) { job.checkpoint.peer_every_steps = 1; }},
      {&kPhases, AskForPhases},
      {&kOtherTensors, [](JobSpec& job) { job.model.peft.method = "lora"; }},
      {&kPhaseSearch,
       [](JobSpec& job) {
         AskForWidth(job);
         job.phases[0].search.steps = 40;
         job.phases[0].search.layers = {2, 4, 6};
       }},
      {&kSearchedTechniques,
       [](JobSpec& job) { job.train.sampled_layers = 2 * job.model.layers; }},
      {&kMultiLevelGrowth,
       [](JobSpec& job) {
         GrowthSpec& growth = GrowthOf(job);
         growth.method = "decoalesce";
         growth.alpha = 1;
         job.phases[0].layers = job.model.layers / 2;
       }},
      {&kLearnedGrowth, [](JobSpec& job) { GrowthOf(job).method = "ligo"; }},
      {&kGrowthOtherThanStack, [](JobSpec& job) { GrowthOf(job).method = "fpi"; }},
      {&kGrowthOfDepth, AskForPhases},
      {&kGrowthOfWidth, AskForWidth},
      {&kGrowthOfWidthByCopies, AskForWidth},
      {&kOtherImages,
       [](JobSpec& job) {
         AskForPhases(job);
         job.model.family = "vit";
         job.model.image_size = 32;
         job.model.patch_size = 8;
         job.data.train = {"train-images-idx3-ubyte"};
         job.phases[0].image_size = 16;
       }},
      {&kNewBlocksNotCopied, [](JobSpec& job) { GrowthOf(job).new_blocks = "random"; }},
      {&kIdentityBlocks, [](JobSpec& job) { GrowthOf(job).new_blocks = "identity"; }},
      {&kFreezeOld, [](JobSpec& job) { GrowthOf(job).freeze_old = true; }},
      {&kKeptGrowthState, [](JobSpec& job) { GrowthOf(job).optimizer_state = "kept"; }},
      {&kAsymmetricGrowthState, [](JobSpec& job) { GrowthOf(job).optimizer_state = "asymmetric"; }},
      {&kCuda, [](JobSpec& job) { job.resources.device = "cuda"; }},
      {&kEmulatedMemory, [](JobSpec& job) { job.resources.device_memory_bytes = 1 << 30; }},
      {&kEmulatedLink,
       [](JobSpec& job) {
         job.resources.offload_optimizer = "host";
         job.resources.host_link_bytes_per_second = 1 << 30;
       }},
      {&kOffloadOptimizer, [](JobSpec& job) { job.resources.offload_optimizer = "host"; }},
      {&kOffloadParameters,
       [](JobSpec& job) {
         job.resources.offload_optimizer = job.resources.offload_parameters = "host";
       }},
      {&kParametersInFile,
       [](JobSpec& job) {
         job.resources.offload_optimizer = "host";
         job.resources.offload_parameters = "nvme";
         job.resources.offload_directory = "/x";
       }},
      {&kOffloadActivations, [](JobSpec& job) { job.resources.offload_activations = "host"; }},
      {&kDelayedUpdate,
       [](JobSpec& job) {
         job.resources.offload_optimizer = "host";
         job.resources.delayed_update = true;
       }},
      {&kDeviceUpdatedUnits,
       [](JobSpec& job) {
         job.resources.offload_optimizer = "host";
         job.resources.device_updated_units = {1};
       }},
      {&kResidentUnits,
       [](JobSpec& job) {
         job.resources.offload_optimizer = job.resources.offload_parameters = "host";
         job.resources.resident_units = {1};
       }},
      {&kRecomputeSegments, [](JobSpec& job) { job.resources.recompute = "optimal"; }},
      {&kCompressedSegments,
       [](JobSpec& job) {
         job.resources.recompute = "block";
         job.resources.recompute_segment = 2;
         job.resources.activation_bits = 4;
       }},
      {&kOffloadedOptimal,
       [](JobSpec& job) {
         job.resources.recompute = "optimal";
         job.resources.offload_activations = "host";
       }},
      {&kActivationCompression, [](JobSpec& job) { job.resources.activation_bits = 4; }},
      {&kBf16Pure, [](JobSpec& job) { job.train.precision = "bf16_pure"; }},
      {&kLossScaling, [](JobSpec& job) { job.train.precision = "fp16"; }},
      {FeatureOf("fp8"), [](JobSpec& job) { job.train.precision = "fp8"; }},
      {FeatureOf("sparse24"), [](JobSpec& job) { job.train.sparsity.method = "measure"; }},
      {FeatureOf("sparse24", 0), [](JobSpec& job) { job.train.sparsity.method = "masked_decay"; }},
      {FeatureOf("sparse24", 1),
       [](JobSpec& job) {
         job.train.sparsity = {.method = "sr_ste", .gradient_estimate = "exact"};
       }},
      {FeatureOf("sparse24", 2),
       [](JobSpec& job) {
         job.train.sparsity.method = "slope";
         job.train.sparsity.adapter_rank = 4;
       }},
      {FeatureOf("sparse24", 3),
       [](JobSpec& job) {
         job.train.sparsity = {.method = "step", .gradient_estimate = "exact"};
       }},
      {FeatureOf("sparse24", 4),
       [](JobSpec& job) { job.train.sparsity.method = "activations"; }},
      {FeatureOf("gradient_noise_scale"),
       [](JobSpec& job) { job.train.gradient_noise_scale = true; }},
      {FeatureOf("preference_optimization"),
       [](JobSpec& job) {
         job.train.preference.method = "dpo";
         job.data.format = "preference";
         job.data.batching = "pad_dynamic";
       }},
      {FeatureOf("averaging"), [](JobSpec& job) { job.train.averaging.kind = "ema"; }},
      {FeatureOf("pruning"), [](JobSpec& job) { job.train.pruning.method = "magnitude"; }},
      {FeatureOf("pruning", 0),
       [](JobSpec& job) {
         job.train.pruning.method = "magnitude";
         job.train.pruning.distribution = "global";
       }},
      {FeatureOf("pruning", 1), [](JobSpec& job) { job.train.pruning.method = "rigl"; }},
      {FeatureOf("pruning", 2), [](JobSpec& job) { job.train.pruning.method = "synflow"; }},
      {FeatureOf("pruning", 3), [](JobSpec& job) { job.train.pruning.method = "grasp"; }},
      {FeatureOf("pruning", 4),
       [](JobSpec& job) {
         job.train.pruning.method = "lottery_ticket";
         job.train.pruning.rounds = 1;
       }},
      {FeatureOf("pruning", 5), [](JobSpec& job) { job.train.pruning.method = "random"; }},
      {FeatureOf("pruning", 6),
       [](JobSpec& job) {
         job.train.pruning.method = "magnitude";
         job.train.pruning.products = "sparse";
       }},
      {&kSpikeGuard, [](JobSpec& job) { job.train.guard.spike_deviations = 6; }},
      {&kGradientClipValue, [](JobSpec& job) { job.train.gradient_clip_value = 1; }},
      {&kWholeTensorOptimizer, [](JobSpec& job) { job.optimizer.name = "muon"; }},
      {&kOtherThanAdamW, [](JobSpec& job) { job.optimizer.name = "lion"; }},
      {&kNoAdamMoments, [](JobSpec& job) { job.optimizer.name = "lion"; }},
      {&kNoParameterMoments, [](JobSpec& job) { job.optimizer.name = "adafactor"; }},
      {&kNoMupRates, [](JobSpec& job) { job.optimizer.name = "sgd"; }},
      {&kLars, [](JobSpec& job) { job.optimizer.name = "lars"; }},
      {&kScheduleFree,
       [](JobSpec& job) {
         job.optimizer.name = "schedule_free_adamw";
         job.schedule.kind = "constant";
       }},
      {&kOtherThanConstant, [](JobSpec& job) { job.schedule.kind = "cosine"; }},
      {FeatureOf("over_parameterization"),
       [](JobSpec& job) { job.model.over_parameterization.kind = "linear_expansion"; }},
      {FeatureOf("low_rank_core"), [](JobSpec& job) { job.model.low_rank_core.rank = 8; }},
      {FeatureOf("low_rank_core", 0),
       [](JobSpec& job) {
         job.model.low_rank_core.rank = 8;
         job.model.low_rank_core.layers = {"*"};
       }},
      {FeatureOf("value_learning"),
       [](JobSpec& job) {
         job.model.untied_classifier = true;
         job.train.value_learning.base.import_path = "/base";
       }},
      {FeatureOf("nested_model"), [](JobSpec& job) { job.train.nested_model.layers = 1; }},
      {FeatureOf("stochastic_depth"), [](JobSpec& job) { job.model.stochastic_depth.rate = 0.2; }},
      {FeatureOf("stochastic_depth", 0),
       [](JobSpec& job) {
         job.model.stochastic_depth = {.rate = 0.2, .decay = "linear", .mode = "sample"};
       }},
      {FeatureOf("sequence_warmup"),
       [](JobSpec& job) {
         job.train.sequence_warmup_start = 8;
         job.train.sequence_warmup_steps = 10;
       }},
      {FeatureOf("layer_sampling"),
       [](JobSpec& job) { job.train.sampled_layers = 2 * job.model.layers; }},
      {FeatureOf("structured_pruning"),
       [](JobSpec& job) { job.model.structured_pruning.method = "early_bird"; }},
      {FeatureOf("structured_pruning", 0),
       [](JobSpec& job) {
         job.model.structured_pruning.method = "early_bird";
         job.model.structured_pruning.head_density = 0.5;
       }},
      {FeatureOf("structured_pruning", 1),
       [](JobSpec& job) { job.model.structured_pruning.method = "early_bird"; }},
      {FeatureOf("structured_matrices"),
       [](JobSpec& job) { job.model.structured_matrices.kind = "monarch"; }},
      {FeatureOf("structured_matrices", 0),
       [](JobSpec& job) {
         job.model.structured_matrices = {"monarch", {"*.0.*"}, 2};
       }},
      {FeatureOf("peft"), [](JobSpec& job) { job.model.peft.method = "lora"; }},
      {FeatureOf("peft", 0), [](JobSpec& job) { Lora(job).layers_to_transform = {0}; }},
      {FeatureOf("weight_quantization"),
       [](JobSpec& job) {
         job.model.weight_quantization.type = "nf4";
         // No weight that ends a sub-layer, which structured pruning trains.
         job.model.freeze = {job.model.family == "llama" ? "*.0.*.q_proj.*" : "*.0.*.c_attn.*"};
       }},
      {FeatureOf("weight_quantization", 0),
       [](JobSpec& job) {
         job.model.weight_quantization.type = "nf4";
         job.model.peft.method = "lora";
         job.model.peft.use_dora = true;
       }},
      {&kReadFrozenWeights,
       [](JobSpec& job) {
         job.model.peft.method = "loha";
         job.model.freeze.clear();  // the method says what is trained
       }},
      {FeatureOf("peft", 1),
       [](JobSpec& job) {
         job.model.peft.method = "prefix";
         job.model.peft.prefix_projection = true;
         job.train.sequence_length = job.model.context - job.model.peft.num_virtual_tokens;
       }},
      {FeatureOf("peft", 3), [](JobSpec& job) { job.model.peft.method = "adalora"; }},
      {FeatureOf("peft", 2),
       [](JobSpec& job) {
         job.model.peft.method = "prompt";
         job.train.sequence_length = job.model.context - job.model.peft.num_virtual_tokens;
       }},
      {FeatureOf("peft", 4), [](JobSpec& job) { Lora(job).trainable_token_indices = {0}; }},
      {FeatureOf("peft", 5), [](JobSpec& job) { job.model.peft.method = "miss"; }},
      {FeatureOf("peft", 6), [](JobSpec& job) { Lora(job).use_dora = true; }},
      {FeatureOf("peft", 7), [](JobSpec& job) { Lora(job).dropout = 0.1; }},
      {FeatureOf("peft", 8),
       [](JobSpec& job) {
         job.model.peft.method = "lora";
         job.model.peft.adapters.resize(2);
         job.model.peft.adapters[0].name = "one";
         job.model.peft.adapters[1].name = "two";
       }},
      {FeatureOf("peft", 9), [](JobSpec& job) { Lora(job).use_dora = true; }},
      {FeatureOf("peft", 10), [](JobSpec& job) { Lora(job).init = "pissa"; }},
      {FeatureOf("peft", 11), [](JobSpec& job) { Lora(job).import_path = "folder"; }},
      {FeatureOf("peft", 12), [](JobSpec& job) { Lora(job).modules_to_save = {"*.bias"}; }},
      {FeatureOf("peft", 13),
       [](JobSpec& job) {
         job.model.peft.method = "prompt";
         job.model.peft.modules_to_save = {"wpe"};
         job.train.sequence_length = job.model.context - job.model.peft.num_virtual_tokens;
       }},
      {FeatureOf("peft", 14), [](JobSpec& job) { job.model.peft.method = "loha"; }},
      {FeatureOf("peft", 15),
       [](JobSpec& job) {
         Lora(job).use_dora = true;
         job.model.peft.dropout = 0.1;
        }},
      {FeatureOf("peft", 16),
       [](JobSpec& job) {
         job.model.peft.method = "prefix";
         job.model.peft.prefix_projection = true;
         job.train.sequence_length = job.model.context - job.model.peft.num_virtual_tokens;
         job.resources.pipeline_parallel = 2;
         job.model.untied_classifier = true;
       }},
      {FeatureOf("peft", 17),
       [](JobSpec& job) {
         Lora(job);
         job.resources.offload_optimizer = job.resources.offload_parameters = "host";
       }},
      {FeatureOf("peft", 18),
       [](JobSpec& job) {
         job.model.experts = 4;
         Lora(job).modules_to_save = {"*.experts.0.*"};
       }},
      {FeatureOf("peft", 19),
       [](JobSpec& job) {
         job.model.experts = 4;
         Lora(job).target_modules = {"w1", "w2", "w3"};
       }},
      {FeatureOf("peft", 20),
       [](JobSpec& job) {
         job.model.peft.method = "prefix";
         job.train.sequence_length = job.model.context - job.model.peft.num_virtual_tokens;
       }},
      {FeatureOf("peft", 21),
       [](JobSpec& job) {
         job.model.untied_classifier = true;
         Lora(job).target_modules = {"lm_head"};
       }},
      {FeatureOf("peft", 22),
       [](JobSpec& job) {
         job.model.untied_classifier = true;
         Lora(job).target_modules = {"lm_head"};
       }},
      {FeatureOf("peft", 23),
       [](JobSpec& job) {
         job.model.family = "bert";
         Lora(job).target_modules = {"transform.dense"};
       }},
      {&kImport, [](JobSpec& job) { job.model.import_path = "folder"; }},
      {&kNetworkInitialization, [](JobSpec& job) { job.model.initialization.method = "rezero"; }},
      {&kNormFreeInitialization, [](JobSpec& job) { job.model.initialization.method = "t_fixup"; }},
      {&kBranchScaling, [](JobSpec& job) { job.model.initialization.method = "layer_scale"; }},
      {&kFixup, [](JobSpec& job) { job.model.initialization.method = "fixup"; }},
      {&kMup, [](JobSpec& job) { job.model.initialization.method = "mup"; }},
      {&kLlama, [](JobSpec& job) { job.model.family = "llama"; }},
      {&kOtherThanLlama, [](JobSpec& job) { job.model.family = "gpt2"; }},
      {&kEncoder, [](JobSpec& job) { job.model.family = "bert"; }},
      {&kDecoder, [](JobSpec& job) { job.model.family = "gpt2"; }},
      {&kBert, [](JobSpec& job) { job.model.family = "bert"; }},
      {&kVit, [](JobSpec& job) { job.model.family = "vit"; }},
      {&kCausalHead, [](JobSpec& job) { job.model.head = "causal_lm"; }},
      {&kEncoderHead, [](JobSpec& job) { job.model.head = "masked_lm"; }},
      {&kTokenHead, [](JobSpec& job) { job.model.head = "causal_lm"; }},
      {&kMaskedHead,
       [](JobSpec& job) {
         job.model.family = "bert";
         job.model.head = "masked_lm";
       }},
      {&kNorms, [](JobSpec& job) { job.model.norm_position = "pre"; }},
      {&kNotPostNorm, [](JobSpec& job) { job.model.norm_position = "pre"; }},
      {&kNotPreNorm, [](JobSpec& job) { job.model.norm_position = "post"; }},
      {&kPostNorm, [](JobSpec& job) { job.model.norm_position = "post"; }},
      {&kTiedWithoutNorm, [](JobSpec& job) { job.model.norm_position = "post"; }},
      {&kDropout, [](JobSpec& job) { job.model.dropout = 0.1; }},
      {&kAttentionDropout, [](JobSpec& job) { job.model.attention_dropout = 0.1; }},
      {&kKvHeads,
       [](JobSpec& job) {
         job.model.heads = 6;
         job.model.kv_heads = 2;
       }},
      {&kRopeScaling, [](JobSpec& job) { job.model.rope_scaling.kind = "linear"; }},
      {&kSlidingWindow, [](JobSpec& job) { job.model.sliding_window = 64; }},
      {&kHeadWidth,
       [](JobSpec& job) { job.model.head_width = 2 * job.model.width / job.model.heads; }},
      {&kQkvBias, [](JobSpec& job) { job.model.qkv_bias = true; }},
      {&kSquaredRelu, [](JobSpec& job) { job.model.activation = "squared_relu"; }},
      {&kOtherThanSquaredRelu, [](JobSpec& job) { job.model.activation = "auto"; }},
      {&kEmbeddingWidth, [](JobSpec& job) { job.model.embedding_width = 64; }},
      {FeatureOf("structural_growth"),
       [](JobSpec& job) {
         MaskedGrowth growth{job.model, {}};
         growth.before.layers -= 1;
         growth.growth.method = "msg";
         growth.growth.ramp_steps = 1;
         SetPhaseGrowth(growth, job);
       }},
      {FeatureOf("rewarming"),
       [](JobSpec& job) {
         PhaseGrowth growth{job.model, {}};
         growth.before.mlp_width = MlpWidth(job.model) / 2;
         growth.growth.method = "sparkling";
         growth.growth.optimizer_state = "new";
         growth.growth.rewarm_steps = 1;
         SetPhaseGrowth(growth, job);
       }},
      {&kNoBlocks, [](JobSpec& job) { job.model.layers = 0; }},
      {&kDistinctBlocks, [](JobSpec& job) { job.model.distinct_blocks = 2; }},
      {&kExperts, [](JobSpec& job) { job.model.experts = 4; }},
      {&kFreeze, [](JobSpec& job) { job.model.freeze = {"*.0.*"}; }},
      {&kUnevenFreeze,
       [](JobSpec& job) {
         job.model.experts = 4;
         job.model.freeze = {"*.experts.0.*"};
       }},
      {&kFrozenAttentionOutputs,
       [](JobSpec& job) {
         const bool llama = job.model.family == "llama";
         job.model.freeze = {llama ? "*.self_attn.o_proj.*" : "*.attn.c_proj.*"};
       }},
      {&kFrozenMlpOutputs,
       [](JobSpec& job) {
         const bool llama = job.model.family == "llama";
         job.model.freeze = {llama ? "*.mlp.down_proj.*" : "*.mlp.c_proj.*"};
       }},
      {&kNoConcatenation, [](JobSpec& job) { job.data.batching = "best_fit"; }},
      {&kMaskDocuments, [](JobSpec& job) { job.data.mask_documents = true; }},
      {&kPlainText, [](JobSpec& job) { job.data.format = "text"; }},
      {&kTextClasses,
       [](JobSpec& job) {
         job.model.family = "bert";
         job.model.head = "classification";
         job.data.batching = "pad_uniform";
       }},
      {&kParsedTokens, [](JobSpec& job) { job.data.special_tokens = "parse"; }},
      {&kSecondText,
       [](JobSpec& job) {
         job.model.family = "bert";
         job.data.batching = "pad_uniform";
         job.data.second_text_field = "answer";
       }},
  };
  return *changes;
}

/// `job`, asking for `feature`.
inline JobSpec With(JobSpec job, const Feature* feature) {
  Changes().at(feature)(job);
  return job;
}

}  // namespace weft::features
