#include "common/spec/compatibility.h"

#include <iterator>
#include <string>
#include <vector>

#include "common/spec/features.h"
#include "common/spec/technique_checks.h"

namespace weft {
namespace {

using namespace features;

constexpr std::string_view kWholeUpdates =
    "resources.offload_optimizer host without device_updated_units";
constexpr std::string_view kDecodersAlone =
    "only the blocks of gpt2 and llama can be divided between ranks";
constexpr std::string_view kDecoderHint = "model.family gpt2 or llama, or data parallelism alone";
constexpr std::string_view kLlamaAlone = "only the blocks of llama have it";
constexpr std::string_view kPapers = "encoders are the networks of their papers";
constexpr std::string_view kWholeMasks = "masks are drawn for whole sequences";
constexpr std::string_view kAllTokens = "attention between ranks is to all earlier tokens";
constexpr std::string_view kOneBlock =
    "a rank has the parameters of one block at a time, and several blocks cannot be recomputed at "
    "once";
constexpr std::string_view kBlockHint = "resources.recompute block or auto, recompute_segment 1";
constexpr std::string_view kEveryStep = "the ranks need each other in every step";
constexpr std::string_view kNoMatrices = "no block has matrices that ranks could share";
constexpr std::string_view kSomeBlocks = "model.layers 1 or more";
constexpr std::string_view kCutProducts = "ranks would add up parts of products";
constexpr std::string_view kWholeProducts = "data parallelism, ZeRO or pipelines";
constexpr std::string_view kAnotherWhole =
    "a rank computes again what another one has, on a whole model of its own";
constexpr std::string_view kWholeReplicas = "data parallelism or ZeRO";
constexpr std::string_view kSameSteps = "the ranks of a worker would have to end a round together";
constexpr std::string_view kCountedRounds = "train.local_steps in place of local_round_seconds";
constexpr std::string_view kOtherUnits = "each stage has other units";
constexpr std::string_view kSomeLeftOut =
    "steps of a search differ in their layers or their tokens";
constexpr std::string_view kNewState = "growth.optimizer_state new";

const Refusal kRows[] = {
    {&kTensorParallel, &kEncoder, kDecodersAlone, kDecoderHint},
    {&kTensorParallel, &kBf16Pure,
     "stochastic rounding draws by the place of a weight in the whole tensor",
     "train.precision bf16"},
    {&kTensorParallel, &kWholeTensorOptimizer,
     "the optimizer looks at whole matrices, and each rank has a part of them",
     "optimizer.name adamw"},
    {&kTensorParallel, &kNoBlocks, kNoMatrices, kSomeBlocks},

    {&kTensorParallel2d, &kSequenceParallel,
     "the grid divides the residual stream by features already", "resources.tensor_rows 1"},
    {&kTensorParallel2d, &kPipelineParallel,
     "stages would have to send each other the parts of a grid", "resources.tensor_rows 1"},
    {&kTensorParallel2d, &kContextParallel,
     "keys and values would have to be exchanged within a grid", "resources.tensor_rows 1"},
    {&kTensorParallel2d, &kDropout, "masks are drawn for whole rows of the residual stream",
     "model.dropout 0 (model.attention_dropout is possible)"},
    {&kTensorParallel2d, &kEmbeddingWidth,
     "the projection of the embedding would have to be divided along both sides",
     "model.embedding_width 0"},
    {&kTensorParallel2d, &kBranchScaling,
     "the initialization scales residual branches, whose features a grid divides",
     "model.initialization.method gpt2"},
    {&kTensorParallel2d, &kExperts, "weights of experts would have to be divided along both sides",
     "resources.tensor_rows 1"},

    {&kContextParallel, &kEncoder, kDecodersAlone, kDecoderHint},
    {&kContextParallel, &kNoBlocks, "no token sees another one", kSomeBlocks},
    {&kContextParallel, &kSlidingWindow, kAllTokens, "model.sliding_window 0"},
    {&kContextParallel, &kAttentionDropout, kWholeMasks, "model.attention_dropout 0"},
    {&kContextParallel, &kDropout, kWholeMasks, "model.dropout 0"},
    {&kContextParallel, &kMaskDocuments, kAllTokens, "leave data.mask_documents out"},
    {&kContextParallel, &kNoConcatenation, "each rank takes equal chunks of full sequences",
     "data.batching concatenate"},

    {&kPipelineParallel, &kEncoder, kDecodersAlone, kDecoderHint},
    {&kPipelineParallel, &kDistinctBlocks, "a block would serve layers of several stages",
     "model.distinct_blocks 0"},
    {&kPipelineParallel, &kZeroGradients,
     "ZeRO reduces the gradients of each micro-batch before the next, and a pipeline has several "
     "in flight",
     "resources.zero_stage 1"},
    {&kPipelineParallel, &kCompressedSegments,
     "segments end with a stage, so that what is rounded would depend on how blocks are cut",
     "resources.recompute auto, recompute_segment 1"},
    {&kPipelineParallel, &kOffloadedOptimal,
     "micro-batches in flight share the link to the host, and a schedule is for one of them",
     "resources.recompute auto"},

    {&kExpertParallel, &kUnevenFreeze,
     "expert-parallel ranks train all experts of a layer, or none",
     "'*.experts.*', or resources.expert_parallel 1"},

    {&kZero, &kWholeTensorOptimizer,
     "the optimizer treats each tensor as a whole, and each rank updates a part",
     "optimizer.name adamw, or resources.zero_stage 0"},
    {&kZeroParameters, &kRecomputeSegments, kOneBlock, kBlockHint},

    {&kBf16Reduction, &kOffloadOptimizer, "gradients are summed in fp32 on their way to the host",
     kOneOfTwo},

    {&kOffloadOptimizer, &kOtherThanAdamW, "the host updates with AdamW alone",
     "optimizer.name adamw"},
    {&kOffloadOptimizer, &kZeroParametersOnDevice,
     "the host updates the shards of the parameters, which then reside there",
     "resources.offload_parameters host, or zero_stage 2"},

    {&kDelayedUpdate, &kZeroGradients,
     "ranks add to their shards of the gradients while the update would read them",
     "resources.zero_stage 1"},

    {&kDeviceUpdatedUnits, &kCuda, "the host of a GPU makes all of the update so far",
     "resources.offload_optimizer host without device_updated_units, or resources.device cpu"},
    {&kDeviceUpdatedUnits, &kOffloadParameters, "offloaded parameters do not reside on the device",
     "resources.offload_parameters none"},
    {&kDeviceUpdatedUnits, &kDelayedUpdate, "the update would be late for some units alone",
     kOneOfTwo},
    {&kDeviceUpdatedUnits, &kZero, "each rank has shards of all units",
     "resources.zero_stage 0, or offload_optimizer host without device_updated_units"},
    {&kDeviceUpdatedUnits, &kPipelineParallel, kOtherUnits, kWholeUpdates},
    {&kDeviceUpdatedUnits, &kLocalSteps, "outer steps are made on the host", kWholeUpdates},

    {&kResidentUnits, &kZeroParameters, "each rank has shards of all units",
     "resources.zero_stage 2, or offload_parameters host without resident_units"},
    {&kResidentUnits, &kPipelineParallel, kOtherUnits,
     "resources.offload_parameters host without resident_units"},

    {&kOffloadParameters, &kDelayedUpdate,
     "the next step would read weights that are being updated", kOneOfTwo},
    {&kOffloadParameters, &kRecomputeSegments, kOneBlock, kBlockHint},

    {&kParametersInFile, &kCuda, "what goes up to a GPU resides in pinned memory for the whole run",
     "resources.offload_parameters host"},
    {&kParametersInFile, &kLocalSteps, "outer steps would have to read and write files", kOneOfTwo},

    {&kCuda, &kEmulatedMemory, "a CPU emulates a device of this memory, and a GPU has its own",
     "leave it out, or resources.device cpu"},
    {&kCuda, &kEmulatedLink, "a CPU emulates a link of this rate, and a GPU has its own",
     "leave it out, or resources.device cpu"},
    {&kCuda, &kLocalStepsOffloaded,
     "only ranks on CPUs sum on their hosts what they have learned so far",
     "resources.offload_optimizer none, or resources.device cpu"},

    {&kLocalSteps, &kZero, kEveryStep, kOneOfTwo},
    {&kLocalSteps, &kExpertParallel, kEveryStep, kOneOfTwo},
    {&kLocalSteps, &kTryPlans, "another number of ranks is another training", kOneOfTwo},
    {&kLocalSteps, &kDelayedUpdate, "an outer step would come before the last update of its round",
     kOneOfTwo},
    {&kLocalSteps, &kScheduleFree, "schedule-free averages would be of one rank", kOneOfTwo},
    {&kLocalSteps, &kSpikeGuard, "the guard compares losses of all ranks in every step", kOneOfTwo},
    {&kLocalSteps, &kPeerSnapshots, "ranks have states of their own between outer steps",
     "lower checkpoint.every_steps"},

    {&kTimedRounds, &kTensorParallel, kSameSteps, kCountedRounds},
    {&kTimedRounds, &kPipelineParallel, kSameSteps, kCountedRounds},
    {&kTimedRounds, &kContextParallel, kSameSteps, kCountedRounds},
    {&kTimedRounds, &kBatchWarmup, "how far ranks get in a round decides which batch comes next",
     kCountedRounds},
    {&kTimedRounds, &kBf16Pure,
     "stochastic rounding draws by the step, and a rank may make several local steps of one",
     "train.precision bf16"},

    {&kMeshDeterminism, &kTensorParallel, kCutProducts, kWholeProducts},
    {&kMeshDeterminism, &kContextParallel, kCutProducts, kWholeProducts},
    {&kMeshDeterminism, &kExpertParallel, kCutProducts, kWholeProducts},
    {&kMeshDeterminism, &kSharedTables,
     "two stages would add to the gradient of one table, each its sum over the micro-batches",
     "model.untied_classifier, or data parallelism alone"},
    {&kMeshDeterminism, &kLocalSteps, "ranks train on their own between outer steps", kOneOfTwo},
    {&kMeshDeterminism, &kBatchWarmup, "batches on the way make no complete binary tree",
     kOneOfTwo},
    {&kMeshDeterminism, &kBf16Reduction, "what ranks exchange would be rounded, and nothing else",
     "resources.gradient_reduction fp32"},
    {&kMeshDeterminism, &kActivationCompression,
     "plans for other meshes may keep other tensors, and round others", kOneOfTwo},
    {&kMeshDeterminism, &kOffloadOptimizer,
     "the host would have to add gradients of micro-batches in a tree", kOneOfTwo},
    {&kMeshDeterminism, &kCuda, "GPUs add the gradients of ranks in an order of NCCL's",
     "resources.device cpu"},

    {&kReplay, &kTensorParallel, kAnotherWhole, kWholeReplicas},
    {&kReplay, &kContextParallel, kAnotherWhole, kWholeReplicas},
    {&kReplay, &kPipelineParallel, kAnotherWhole, kWholeReplicas},
    {&kReplay, &kExpertParallel, kAnotherWhole, kWholeReplicas},
    {&kReplay, &kLocalSteps, "ranks have other weights between outer steps", kOneOfTwo},
    {&kReplay, &kOffloadOptimizer, "gradients of the check would have to stay on the device",
     kOneOfTwo},

    {&kPhases, &kOtherTensors, "growth knows the weights of the network alone",
     "such a job of its own, from the export of this one"},

    {&kPhaseSearch, &kPipelineParallel, kSomeLeftOut, kOneOfTwo},
    {&kPhaseSearch, &kExpertParallel, kSomeLeftOut, kOneOfTwo},
    {&kPhaseSearch, &kZeroParameters, kSomeLeftOut, "resources.zero_stage 2"},
    {&kPhaseSearch, &kLocalSteps, "a search may end amid a round", kOneOfTwo},
    {&kPhaseSearch, &kReplay, kSomeLeftOut, kOneOfTwo},
    {&kPhaseSearch, &kOffloadOptimizer, kSomeLeftOut, kOneOfTwo},
    {&kPhaseSearch, &kOffloadActivations, kSomeLeftOut, kOneOfTwo},
    {&kPhaseSearch, &kRecomputeSegments, kSomeLeftOut,
     "resources.recompute block or auto, recompute_segment 1"},
    {&kPhaseSearch, &kDistinctBlocks, kSomeLeftOut, "model.distinct_blocks 0"},
    {&kPhaseSearch, &kSearchedTechniques, kSomeLeftOut, kOneOfTwo},

    {&kMultiLevelGrowth, &kAsymmetricGrowthState, "it leaves no weight as it was",
     "growth.optimizer_state kept or new"},

    {&kLearnedGrowth, &kOtherImages, "it learns on images as they were",
     "a phase of its own with growth.method none"},
    {&kLearnedGrowth, &kNewBlocksNotCopied, "it mixes all blocks", "growth.new_blocks copy"},
    {&kLearnedGrowth, &kKeptGrowthState, "what is learned of weights is none of their moments",
     kNewState},

    {&kGrowthOfDepth, &kDistinctBlocks, "layers that share blocks are not grown",
     "model.distinct_blocks 0"},
    {&kGrowthOfWidth, &kMup, "muP divides logits by the width",
     "phases that differ in layers alone"},
    {&kGrowthOfWidthByCopies, &kTiedWithoutNorm,
     "no norm before the classifier takes up the factor of the logits",
     "model.untied_classifier true"},
    {&kIdentityBlocks, &kPostNorm, "the norms change what passes through a block",
     "growth.new_blocks copy or random"},
    {&kFreezeOld, &kKeptGrowthState, "added blocks have no state", kNewState},
    {&kFreezeOld, &kGrowthOtherThanStack, "the method adds no blocks of their own",
     "growth.method stack"},
    {&kKeptGrowthState, &kNoParameterMoments, "growth maps the moments of each parameter",
     kNewState},

    {&kNetworkInitialization, &kImport, "imported weights are of a network without it",
     "model.initialization.method auto"},
    {&kNetworkInitialization, &kEncoder, kPapers, "model.initialization.method auto"},
    {&kNetworkInitialization, &kExperts, "the methods scale MLPs without experts",
     "model.initialization.method auto"},
    {&kNormFreeInitialization, &kNorms, "the initialization is for networks without norms",
     "model.norm_position none or auto"},
    {&kFixup, &kLlama, "Fixup needs layers with biases, which llama does not have",
     "model.initialization.method t_fixup"},
    {&kMup, &kNoMupRates, "muP knows the rates of adam, adamw and lion alone",
     "optimizer.name adamw"},

    {&kNoBlocks, &kEncoder, "the class of a sequence would not depend on its tokens", kSomeBlocks},
    {&kNoBlocks, &kDistinctBlocks, "there are no layers to share them", "model.distinct_blocks 0"},
    {&kNoBlocks, &kExperts, "experts are in blocks", "model.experts 0"},
    {&kDistinctBlocks, &kImport, "the layers of the folder have weights of their own",
     "model.distinct_blocks 0"},
    {&kKvHeads, &kOtherThanLlama, kLlamaAlone, "model.family llama"},
    {&kHeadWidth, &kOtherThanLlama, kLlamaAlone, "model.family llama"},
    {&kRopeScaling, &kOtherThanLlama, kLlamaAlone, "model.family llama"},
    {&kSlidingWindow, &kOtherThanLlama, kLlamaAlone, "model.family llama"},
    {&kQkvBias, &kOtherThanLlama, "only the blocks of llama can have or lack them",
     "model.family llama"},
    {&kSquaredRelu, &kLlama, "the MLPs of llama are gated", "model.family gpt2"},
    {&kSquaredRelu, &kBert, "the MLPs of BERT have GELU alone", "model.activation auto"},
    {&kExperts, &kOtherThanLlama, "only the blocks of llama have experts", "model.family llama"},
    {&kEmbeddingWidth, &kEncoder, kPapers, "model.embedding_width 0"},
    {&kBert, &kNotPostNorm, "BERT has its norms after each residual sum",
     "model.norm_position auto"},
    {&kBert, &kCausalHead, "BERT sees the tokens on both sides",
     "model.head masked_lm or classification"},
    {&kVit, &kNotPreNorm, "ViT has its norms before each sub-layer", "model.norm_position auto"},
    {&kVit, &kTokenHead, "ViT sees images, and no tokens", "model.head classification"},
    {&kEncoderHead, &kDecoder, "a decoder predicts the next token", "model.head causal_lm"},

    {&kTextClasses, &kPlainText, "classification needs labels, which plain text does not have",
     "data.format jsonl"},
    {&kSecondText, &kParsedTokens, "a separator spelled in a text would end it",
     "data.special_tokens text"},

    {&kScheduleFree, &kOtherThanConstant, "averages take the place of a schedule",
     "schedule.kind constant, which schedule.warmup_steps may precede"},

    {&kLars, &kGradientClipValue, "the rates of LARS follow the norm of the gradients",
     "train.gradient_clip_norm"},
};

}  // namespace

std::span<const Refusal> Refusals() {
  static const std::vector<Refusal> rows = [] {
    std::vector<Refusal> all(std::begin(kRows), std::end(kRows));
    const std::vector<Refusal> of_techniques = TechniqueRefusals();
    all.insert(all.end(), of_techniques.begin(), of_techniques.end());
    return all;
  }();
  return rows;
}

bool Asks(const JobSpec& job, const Feature& feature) {
  return (!feature.of_folder || job.model.import_path.empty()) && feature.asked(job);
}

const Refusal* FindRefusal(std::span<const Refusal> rows, const JobSpec& job) {
  // Rows of a feature follow one another: most jobs ask for few, and skip the others' rows.
  const Feature* last = nullptr;
  bool asks = false;
  for (const Refusal& row : rows) {
    if (row.feature != last) {
      last = row.feature;
      asks = Asks(job, *last);
    }
    if (asks && Asks(job, *row.with)) return &row;
  }
  return nullptr;
}

std::string RefusalText(const Refusal& row, const JobSpec& job) {
  std::string text = row.feature->shown(job) + " does not go with " + row.with->shown(job);
  text.append(", because ").append(row.because).append("; hint: ").append(row.hint);
  return text;
}

Status CheckCompatibility(const JobSpec& job) {
  const Refusal* row = FindRefusal(Refusals(), job);
  return row == nullptr ? OkStatus() : InvalidError(RefusalText(*row, job));
}

}  // namespace weft
