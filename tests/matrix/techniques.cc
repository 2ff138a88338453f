#include "tests/matrix/techniques.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/model/technique_cost.h"
#include "common/spec/phases.h"
#include "tests/matrix/methods.h"
#include "tests/matrix/peft_choices.h"

namespace weft::testing {
namespace {

void Nothing(JobSpec&) {}

/// This many ranks times as many.
void AddRanks(ResourceSpec& resources, int64_t factor) {
  resources.ranks *= factor;
}

Choice Data(int64_t ranks) {
  return {"data " + std::to_string(ranks), Effect::kSameNumbers,
          [=](JobSpec& job) { AddRanks(job.resources, ranks); }};
}

Choice Tensor(int64_t ranks, bool sequence) {
  return {"tensor " + std::to_string(ranks) + (sequence ? " with sequence" : ""),
          Effect::kSameNumbers, [=](JobSpec& job) {
            AddRanks(job.resources, ranks);
            job.resources.tensor_parallel = ranks;
            job.resources.sequence_parallel = sequence;
          }};
}

/// A grid of this many rows.
Choice Grid(int64_t rows, int64_t columns) {
  return {"grid " + std::to_string(rows) + " x " + std::to_string(columns), Effect::kSameNumbers,
          [=](JobSpec& job) {
            AddRanks(job.resources, rows * columns);
            job.resources.tensor_parallel = rows * columns;
            job.resources.tensor_rows = rows;
          }};
}

Choice Pipeline(const std::string& schedule, int64_t ranks, int64_t chunks = 1) {
  return {schedule + " " + std::to_string(ranks), Effect::kSameNumbers, [=](JobSpec& job) {
            AddRanks(job.resources, ranks);
            job.resources.pipeline_parallel = ranks;
            job.resources.pipeline_schedule = schedule;
            job.resources.pipeline_chunks = chunks;
          }};
}

Choice Context(const std::string& method, int64_t ranks) {
  return {method + " " + std::to_string(ranks), Effect::kSameNumbers, [=](JobSpec& job) {
            AddRanks(job.resources, ranks);
            job.resources.context_parallel = ranks;
            job.resources.context_method = method;
          }};
}

Choice Experts(int64_t ranks) {
  return {"expert " + std::to_string(ranks), Effect::kSameNumbers, [=](JobSpec& job) {
            AddRanks(job.resources, ranks);
            job.resources.expert_parallel = ranks;
          }};
}

Choice Zero(int64_t stage, Effect effect) {
  return {"zero_stage " + std::to_string(stage), effect,
          [=](JobSpec& job) { job.resources.zero_stage = stage; }};
}

/// Within groups of two ranks.
Choice ZeroInTwos(int64_t stage) {
  return {"zero_stage " + std::to_string(stage) + " in twos", Effect::kSameNumbers,
          [=](JobSpec& job) {
            job.resources.zero_stage = stage;
            job.resources.zero_shard_ranks = 2;
          }};
}

Choice Recompute(const std::string& what, int64_t segment = 1) {
  return {"recompute " + what + (segment > 1 ? " by " + std::to_string(segment) : ""),
          Effect::kKeepsOther, [=](JobSpec& job) {
            job.resources.recompute = what;
            job.resources.recompute_segment = segment;
          }};
}

Choice OffloadOptimizer(const std::string& where, const std::string& directory = "") {
  return {"offload_optimizer " + where, Effect::kSameBits, [=](JobSpec& job) {
            job.resources.offload_optimizer = where;
            job.resources.offload_directory = directory;
          }};
}

/// Patterns of the names of a family.
struct FamilyNames {
  std::string embedding;  ///< All of it.
  std::string tokens;     ///< Their table, or what projects patches of images.
  std::string attention;  ///< Of all blocks.
  std::string block;      ///< The name of a block, before its number.
};

const FamilyNames& NamesOf(const std::string& family) {
  static const auto* const names = new std::map<std::string, FamilyNames>{
      {"gpt2", {"transformer.w*", "*wte*", "*.attn.*", "transformer.h."}},
      {"llama", {"model.embed_tokens.*", "*embed_tokens*", "*.self_attn.*", "model.layers."}},
      {"bert", {"bert.embeddings.*", "*word_embeddings*", "*.attention.*", "bert.encoder.layer."}},
      {"vit", {"vit.embeddings.*", "*patch_embeddings*", "*.attention.*", "vit.encoder.layer."}},
  };
  return names->at(family);
}

/// All up to block `end` - 1, with a table that classifies, too.
Choice FreezeBelow(int64_t end) {
  return {"frozen below " + std::to_string(end), Effect::kOwnTraining, [=](JobSpec& job) {
            const FamilyNames& names = NamesOf(job.model.family);
            job.model.freeze = {names.embedding};
            for (int64_t block = 0; block < end; ++block) {
              job.model.freeze.push_back(names.block + std::to_string(block) + ".*");
            }
          }};
}

/// Tokens, all of attention, and all of the last block.
Choice FreezeParts() {
  return {"frozen parts", Effect::kOwnTraining, [](JobSpec& job) {
            const FamilyNames& names = NamesOf(job.model.family);
            job.model.freeze = {names.tokens, names.attention, names.block + "3.*"};
          }};
}

/// With few steps behind each scale, so that they come and go. The last block of a llama is bf16.
Choice Fp8(const Methods& scalings, const Methods& formats) {
  return {"fp8 " + scalings.Names() + " " + formats.Names(), Effect::kOwnTraining,
          [=](JobSpec& job) {
            job.train.precision = "fp8";
            job.train.fp8.scaling = scalings.Of(job);
            job.train.fp8.formats = formats.Of(job);
            job.train.fp8.history = 3;
            job.train.fp8.bf16_last_blocks = NetworkOf(job) == Network::kLlama ? 1 : 0;
          }};
}

Choice Bits(int64_t bits) {
  return {"activation_bits " + std::to_string(bits), Effect::kOwnTraining,
          [=](JobSpec& job) { job.resources.activation_bits = bits; }};
}

/// Half of the branches of the last block, and fewer before it or as many.
Choice StochasticDepth(const std::string& mode, const std::string& decay) {
  return {"stochastic_depth " + mode, Effect::kOwnTraining, [=](JobSpec& job) {
            job.model.stochastic_depth.rate = 0.5;
            job.model.stochastic_depth.mode = mode;
            job.model.stochastic_depth.decay = decay;
          }};
}

/// Whole layers, at a rate that grows.
Choice ProgressiveLayerDropping() {
  return {"progressive layer dropping", Effect::kOwnTraining, [](JobSpec& job) {
            job.model.stochastic_depth.rate = 0.5;
            job.model.stochastic_depth.unit = "layer";
            job.model.stochastic_depth.gamma = 10;
          }};
}

/// Masks that change, and a dense step at the end.
Choice Sparsity(const Methods& methods, const Methods& estimates) {
  return {"sparsity " + methods.Names(), Effect::kOwnTraining, [=](JobSpec& job) {
            job.train.sparsity.method = methods.Of(job);
            job.train.sparsity.require = true;  // so small that plans find no gain
            job.train.sparsity.gradient_estimate = estimates.Of(job);
            job.train.sparsity.mask_interval = 2;
            if (job.train.sparsity.method == "activations") job.model.activation = "squared_relu";
          }};
}
Choice Sparsity(const Methods& methods) {
  const std::string usual = SparsitySpec().gradient_estimate;
  return Sparsity(methods, {usual, usual, usual});
}
Choice Sparsity(const std::string& method) {
  return Sparsity(Methods{method, method, method});
}

/// Adapters in the second half of the steps.
Choice LazyAdapters() {
  return {"slope with adapters", Effect::kOwnTraining, [](JobSpec& job) {
            job.train.sparsity.method = "slope";
            job.train.sparsity.require = true;
            job.train.sparsity.adapter_rank = 4;
            job.train.sparsity.adapter_share = 0.5;
          }};
}

Choice OverParameterization(const std::string& kind) {
  return {"over_parameterization " + kind, Effect::kOwnTraining,
          [=](JobSpec& job) { job.model.over_parameterization.kind = kind; }};
}

Choice LowRankCore() {
  return {"low_rank_core", Effect::kOwnTraining,
          [](JobSpec& job) { job.model.low_rank_core.rank = 4; }};
}

Choice NestedModel() {
  return {"nested_model", Effect::kOwnTraining,
          [](JobSpec& job) { job.train.nested_model = {.layers = 1, .joint_share = 0.5}; }};
}

/// Monarch matrices for the MLPs, or for attention, too.
Choice Monarch(bool attention) {
  return {attention ? "monarch with attention" : "monarch", Effect::kOwnTraining,
          [=](JobSpec& job) {
            job.model.structured_matrices.kind = "monarch";
            job.model.structured_matrices.blocks = 2;
            if (attention) job.model.structured_matrices.layers = {"*"};
          }};
}

/// Pixelfly for all matrices, with the blocks of the diagonal.
Choice Pixelfly() {
  return {"pixelfly", Effect::kOwnTraining, [](JobSpec& job) {
            job.model.structured_matrices.kind = "pixelfly";
            job.model.structured_matrices.block_size = 16;
            job.model.structured_matrices.density = 0.6;
            job.model.structured_matrices.layers = {"*"};
          }};
}

/// Its checkpoints hold the averages too, which a training without them does not have.
Choice Averaging(const std::string& kind) {
  return {"averaging " + kind, Effect::kOwnTraining,
          [=](JobSpec& job) { job.train.averaging.kind = kind; }};
}

/// Weights are exchanged in every other step.
Choice Pruning(const Methods& methods, const std::string& distribution, const Methods& products) {
  return {"pruning " + methods.Names(), Effect::kOwnTraining, [=](JobSpec& job) {
            job.train.pruning.method = methods.Of(job);
            job.train.pruning.distribution = distribution;
            job.train.pruning.density = 0.4;
            job.train.pruning.interval = 2;
            job.train.pruning.rounds = 5;
            job.train.pruning.products = products.Of(job);
          }};
}

/// Two trainings of five of the ten steps.
Choice LotteryTicket() {
  return {"pruning lottery_ticket", Effect::kOwnTraining, [](JobSpec& job) {
            job.train.pruning.method = "lottery_ticket";
            job.train.pruning.rounds = 1;
          }};
}

/// Masks in every other step; the search goes on to the last step.
Choice StructuredPruning() {
  return {"structured_pruning", Effect::kOwnTraining, [](JobSpec& job) {
            job.model.structured_pruning.method = "early_bird";
            job.model.structured_pruning.interval = 2;
            job.model.structured_pruning.mask_distance = 0;
            if (job.model.family == "llama") job.model.structured_pruning.head_density = 0.5;
          }};
}

/// Half of all sizes and a block fewer before, with masks in the first three steps.
Choice StructuralGrowth() {
  return {"structural_growth", Effect::kOwnTraining, [](JobSpec& job) {
            MaskedGrowth growth{job.model, {}};
            growth.before.layers -= 1;
            growth.before.width /= 2;
            growth.before.heads /= 2;
            growth.before.kv_heads /= 2;
            growth.before.mlp_width /= 2;
            growth.growth.method = "msg";
            growth.growth.ramp_steps = 3;
            SetPhaseGrowth(growth, job);
          }};
}

/// Half of the width before. Updates of what was added are others in all ten steps but the last.
Choice Rewarming() {
  return {"rewarming", Effect::kOwnTraining, [](JobSpec& job) {
            PhaseGrowth growth{job.model, {}};
            growth.before.width /= 2;
            growth.before.heads = std::max<int64_t>(growth.before.heads / 2, 1);
            growth.before.kv_heads /= 2;
            growth.before.mlp_width /= 2;
            growth.growth.method = "sparkling";
            growth.growth.optimizer_state = "new";
            growth.growth.rewarm_steps = 5;
            SetPhaseGrowth(growth, job);
          }};
}

/// On pairs that are made up.
Choice Dpo() {
  return {"dpo", Effect::kOwnTraining, [](JobSpec& job) {
            job.train.preference.method = "dpo";
            job.data.format = "preference";
            job.data.batching = "pad_fixed";
          }};
}

/// Adds its logits to those of a smaller network.
Choice ValueLearning() {
  return {"value_learning", Effect::kOwnTraining, [](JobSpec& job) {
            ModelSpec& base = job.train.value_learning.base;
            base.import_path = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start";
            base.layers = 2;
            base.width = 32;
            base.heads = 2;
            base.mlp_width = 96;
            base.context = 24;
            base.vocab_size = job.model.vocab_size = 67;
            job.model.untied_classifier = true;
            job.train.value_learning.logit_penalty = 0.1;
          }};
}

/// Sequences have all their tokens from the middle of the training on.
Choice SequenceWarmup() {
  return {"sequence_warmup", Effect::kOwnTraining, [](JobSpec& job) {
            job.train.sequence_warmup_start = 8;
            job.train.sequence_warmup_steps = job.train.steps / 2;
          }};
}

/// Up to three times as many layers as blocks.
Choice LayerSampling() {
  return {"layer_sampling", Effect::kOwnTraining,
          [](JobSpec& job) { job.train.sampled_layers = 3 * job.model.layers; }};
}

/// Rounds of half of the steps. Ranks train other networks than one rank does, so that networks
/// have one head, which several cannot share.
Choice SubNetworks() {
  return {"local_sub_networks", Effect::kOwnTraining, [](JobSpec& job) {
            job.train.local_steps = 3;
            job.train.local_sub_networks = true;
            job.model.heads = 1;
            job.model.kv_heads = 0;
          }};
}

/// Measures alone, but its checkpoints hold what it has measured.
Choice NoiseScale() {
  return {"gradient_noise_scale", Effect::kOwnTraining,
          [](JobSpec& job) { job.train.gradient_noise_scale = true; }};
}

/// Networks, meshes, where state resides, and what is frozen.
std::vector<Axis> AxesBeforeTechniques() {
  return {
      {{"gpt2", Effect::kOwnTraining, Nothing},
       {"llama", Effect::kOwnTraining,
        [](JobSpec& job) {
          job.model.family = "llama";
          job.model.kv_heads = 2;
        }},
       {"mixtral", Effect::kOwnTraining,
        [](JobSpec& job) {
          job.model.family = "llama";
          job.model.kv_heads = 2;
          job.model.experts = 4;
          job.model.router_aux_loss = 0;  // of a micro-batch, whose sizes differ
        }},
       {"bert", Effect::kOwnTraining,
        [](JobSpec& job) {
          job.model.family = "bert";
          job.model.head = "masked_lm";
        }},
       {"vit", Effect::kOwnTraining,
        [](JobSpec& job) {
          job.model.family = "vit";
          job.model.image_size = 12;
          job.model.patch_size = 3;
          job.model.image_channels = 1;
          job.model.classes = 3;
          job.model.vocab_size = 0;
        }}},
      {{"data 1", Effect::kSameNumbers, Nothing}, Data(2), Data(4)},
      {{"tensor 1", Effect::kSameNumbers, Nothing},
       Tensor(2, false),
       Tensor(2, true),
       Tensor(4, false),
       Grid(2, 1),
       Grid(2, 2)},
      {{"pipeline 1", Effect::kSameNumbers, Nothing},
       Pipeline("gpipe", 2),
       Pipeline("1f1b", 2),
       Pipeline("1f1b", 4),
       Pipeline("interleaved", 2, 2),
       Pipeline("zero_bubble", 2)},
      {{"context 1", Effect::kSameNumbers, Nothing},
       Context("ring", 2),
       Context("ring", 4),
       Context("ulysses", 2)},
      {{"expert 1", Effect::kSameNumbers, Nothing}, Experts(2), Experts(4)},
      {{"zero_stage 0", Effect::kSameBits, Nothing},
       Zero(1, Effect::kSameBits),
       Zero(2, Effect::kSameNumbers),
       Zero(3, Effect::kSameNumbers),
       ZeroInTwos(1),
       ZeroInTwos(3)},
      {{"recompute none", Effect::kSameBits, Nothing},
       Recompute("attention"),
       Recompute("block"),
       Recompute("block", 2),
       Recompute("optimal")},
      {{"offload_optimizer none", Effect::kSameBits, Nothing},
       OffloadOptimizer("host"),
       OffloadOptimizer("nvme", "/tmp"),
       {"offload_optimizer host except units 0 to 2", Effect::kSameBits,
        [](JobSpec& job) {
          job.resources.offload_optimizer = "host";
          job.resources.device_updated_units = {0, 1, 2};
        }}},
      {{"offload_activations none", Effect::kSameBits, Nothing},
       {"offload_activations host", Effect::kSameBits,
        [](JobSpec& job) { job.resources.offload_activations = "host"; }}},
      {{"offload_parameters none", Effect::kSameBits, Nothing},
       {"offload_parameters host", Effect::kSameBits,
        [](JobSpec& job) { job.resources.offload_parameters = "host"; }},
       {"offload_parameters host, units 1 and 3 once a step", Effect::kSameBits,
        [](JobSpec& job) {
          job.resources.offload_parameters = "host";
          job.resources.resident_units = {1, 3};
        }},
       {"offload_parameters nvme", Effect::kSameBits,
        [](JobSpec& job) {
          job.resources.offload_parameters = "nvme";
          job.resources.offload_directory = "/tmp";
        }}},
      {{"frozen nothing", Effect::kOwnTraining, Nothing}, FreezeBelow(3), FreezeParts()},
  };
}

/// The ways to use a technique, by its name.
const std::map<std::string_view, Axis>& TechniqueAxes() {
  static const auto* const axes = new std::map<std::string_view, Axis>{
      {"over_parameterization",
       {{"plain weights", Effect::kOwnTraining, Nothing},
        OverParameterization("linear_expansion"),
        OverParameterization("majority_kernels"),
        OverParameterization("branches")}},
      {"fp8",
       {{"fp32", Effect::kOwnTraining, Nothing},
        Fp8({"delayed", "current", "delayed"}, {"hybrid", "hybrid", "e4m3"})}},
      {"stochastic_depth",
       {{"all branches", Effect::kOwnTraining, Nothing},
        StochasticDepth("batch", "linear"),
        StochasticDepth("sample", "uniform"),
        ProgressiveLayerDropping()}},
      {"sparse24",
       {{"dense", Effect::kOwnTraining, Nothing},
        Sparsity({"static", "masked_decay", "masked_decay"}),
        Sparsity({"sr_ste", "sr_ste", "sr_ste"}, {"sequential", "exact", "exact"}),
        Sparsity({"s_ste", "s_ste", "s_ste"}, {"exact", "exact", "exact"}),
        Sparsity("step"),
        Sparsity("slope"),
        LazyAdapters(),
        Sparsity({"activations", "measure", "measure"})}},
      {"structured_matrices",
       {{"whole matrices", Effect::kOwnTraining, Nothing},
        Monarch(false),
        Monarch(true),
        Pixelfly()}},
      {"structured_pruning",
       {{"whole blocks", Effect::kOwnTraining, Nothing}, StructuredPruning()}},
      {"gradient_noise_scale", {{"no noise scale", Effect::kSameNumbers, Nothing}, NoiseScale()}},
      {"averaging",
       {{"no averages", Effect::kSameBits, Nothing}, Averaging("ema"), Averaging("lawa")}},
      {"pruning",
       {{"dense", Effect::kOwnTraining, Nothing},
        Pruning({"rigl", "set", "set"}, "erk", {"sparse", "dense", "dense"}),
        Pruning({"snip", "magnitude", "random"}, "uniform", {"dense", "dense", "dense"}),
        Pruning({"synflow", "grasp", "synflow"}, "global", {"dense", "dense", "dense"}),
        LotteryTicket()}},
      {"peft",
       {{"all trained", Effect::kOwnTraining, Nothing},
        Lora(false),
        Lora(true),
        Dora(),
        LoraFrom({"pissa", "olora", "gaussian"}),
        JointAdapters(),
        LoraOfTokens(),
        TrainedTokens(),
        OtherPeft("adalora"),
        OtherPeft("loha"),
        OtherPeft("lokr"),
        OtherPeft("oft"),
        OtherPeft("vera"),
        OtherPeft("ia3"),
        OtherPeft("miss"),
        OtherPeft("houlsby"),
        OtherPeft("pfeiffer"),
        OtherPeft("parallel"),
        VirtualTokens("prompt"),
        VirtualTokens("p_tuning"),
        VirtualTokens("prefix"),
        ProjectedPrefix()}},
      {"weight_quantization",
       {{"weights as they are", Effect::kOwnTraining, Nothing},
        QuantizedWeights("nf4"),
        QuantizedWeights("fp4")}},
      {"low_rank_core", {{"no core", Effect::kOwnTraining, Nothing}, LowRankCore()}},
      {"nested_model", {{"one network", Effect::kOwnTraining, Nothing}, NestedModel()}},
      {"preference_optimization", {{"no preferences", Effect::kOwnTraining, Nothing}, Dpo()}},
      {"structural_growth",
       {{"all of the network", Effect::kOwnTraining, Nothing}, StructuralGrowth()}},
      {"sequence_warmup", {{"whole sequences", Effect::kOwnTraining, Nothing}, SequenceWarmup()}},
      {"layer_sampling", {{"one depth", Effect::kOwnTraining, Nothing}, LayerSampling()}},
      {"sub_networks", {{"networks of all ranks", Effect::kOwnTraining, Nothing}, SubNetworks()}},
      {"value_learning", {{"own logits", Effect::kOwnTraining, Nothing}, ValueLearning()}},
      {"rewarming", {{"one rate of updates", Effect::kOwnTraining, Nothing}, Rewarming()}},
  };
  return *axes;
}

const Axis& AxisOf(const TechniqueCost& technique) {
  const auto axis = TechniqueAxes().find(technique.name());
  WEFT_CHECK(axis != TechniqueAxes().end(), "TechniqueAxes() of tests/matrix/techniques.cc lacks " +
                                                std::string(technique.name()));
  return axis->second;
}

/// The others that are no technique. A deterministic mesh reads the micro-batch, set before it.
std::vector<Axis> AxesBehindTechniques() {
  return {
      {{"activation_bits 0", Effect::kOwnTraining, Nothing}, Bits(8), Bits(4), Bits(2)},
      {{"micro_batch 2", Effect::kSameNumbers, Nothing},
       {"micro_batch 1", Effect::kSameNumbers,
        [](JobSpec& job) { job.resources.micro_batch = 1; }}},
      {{"deterministic run", Effect::kSameNumbers, Nothing},
       {"deterministic mesh", Effect::kSameNumbers,
        [](JobSpec& job) {
          job.train.deterministic = "mesh";
          job.train.logical_micro_batch = job.resources.micro_batch;
        }}},
      {{"no replay", Effect::kSameBits, Nothing},
       {"replay", Effect::kSameBits, [](JobSpec& job) { job.train.replay_every_steps = 2; }}},
  };
}

std::vector<Axis> MakeAxes() {
  std::vector<Axis> axes = AxesBeforeTechniques();
  WEFT_CHECK(TechniqueAxes().size() == TechniqueCosts().size(), "an axis of no technique");
  for (const TechniqueCost* technique : TechniqueCosts()) axes.push_back(AxisOf(*technique));
  for (Axis& axis : AxesBehindTechniques()) axes.push_back(std::move(axis));
  return axes;
}

}  // namespace

const std::vector<Axis>& Axes() {
  static const auto* const axes = new std::vector<Axis>(MakeAxes());
  return *axes;
}

}  // namespace weft::testing
