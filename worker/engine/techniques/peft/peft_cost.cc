#include "worker/engine/techniques/peft/peft_cost.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_name.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/spec/mixture_of_experts.h"
#include "common/spec/spec_defaults.h"
#include "worker/engine/techniques/peft/adalora_cost.h"
#include "worker/engine/techniques/peft/adapter_tensors_cost.h"
#include "worker/engine/techniques/peft/adapter_workspace_cost.h"
#include "worker/engine/techniques/peft/bottleneck_cost.h"
#include "worker/engine/techniques/peft/joint_adapters_cost.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_settings_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/techniques/peft/token_adapters_cost.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"

namespace weft {

const TechniqueCost& GradientNoiseScaleTechniqueCost();
const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& PruningTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StochasticDepthTechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& StructuredPruningTechniqueCost();

namespace {

using namespace features;

const Feature kPeft = {
    .name = "parameter-efficient tuning",
    .setting = "model.peft",
    .asked = [](const JobSpec& job) { return AsksForPeft(job.model); },
    .shown = [](const JobSpec& job) { return "model.peft " + job.model.peft.method; }};

bool IsLora(const ModelSpec& model) {
  return model.peft.method == "lora";
}

std::string MethodOf(const JobSpec& job) {
  return "model.peft.method " + job.model.peft.method;
}

/// UnevenExperts of what model.peft.modules_to_save names.
std::string UnevenSaved(const ModelSpec& model) {
  if (model.experts == 0 || model.peft.modules_to_save.empty()) return "";
  return UnevenExperts(
      model, [&](const std::string& parameter) { return IsSavedWhole(model, parameter); });
}

/// The field that names the targets.
std::string TargetsOf(const JobSpec& job) {
  return job.model.peft.target_regex.empty() ? "model.peft.target_modules"
                                             : "model.peft.target_regex";
}

std::string ShownOuter(const JobSpec& job) {
  return TargetsOf(job) + " with " + OuterTarget(job.model);
}

const Feature kSettings[] = {
    {.name = "parameter-efficient tuning of some blocks",
     .setting = "model.peft.layers_to_transform",
     .asked =
         [](const JobSpec& job) {
           return AsksForPeft(job.model) && !job.model.peft.layers_to_transform.empty();
         },
     .shown = [](const JobSpec&) { return std::string("model.peft.layers_to_transform"); }},
    {.name = "prefixes that a network makes",
     .setting = "model.peft.prefix_projection",
     .asked = [](const JobSpec& job) { return job.model.peft.prefix_projection; },
     .shown = [](const JobSpec&) { return std::string("model.peft.prefix_projection"); }},
    {.name = "virtual tokens",
     .setting = "model.peft.method prompt, p_tuning or prefix",
     .asked = [](const JobSpec& job) { return HasVirtualTokens(job.model.peft); },
     .shown = [](const JobSpec& job) { return MethodOf(job) + " (virtual tokens)"; }},
    {.name = "ranks that move between layers",
     .setting = "model.peft.method adalora",
     .asked = [](const JobSpec& job) { return IsAdaLora(job.model.peft); },
     .shown = MethodOf},
    {.name = "adapters of the token embedding",
     .setting = "model.peft.target_modules with the token embedding, trainable_token_indices",
     .asked = [](const JobSpec& job) { return HasTokenAdapter(job.model); },
     .shown =
         [](const JobSpec& job) {
           return job.model.peft.trainable_token_indices.empty()
                      ? "model.peft.target_modules with " + LayerOf(TokenTable(job.model))
                      : std::string("model.peft.trainable_token_indices");
         }},
    {.name = "parameter-efficient tuning by another method than lora",
     .setting = "model.peft.method other than lora",
     .asked = [](const JobSpec& job) { return AsksForPeft(job.model) && !IsLora(job.model); },
     .shown = MethodOf},
    {.name = "adapters whose values make weights",
     .setting = "model.peft.method adalora, loha, lokr, oft or vera, or use_dora",
     .asked =
         [](const JobSpec& job) {
           const PeftSpec& spec = job.model.peft;
           return IsAdaLora(spec) || MergesWeights(spec) || spec.use_dora;
         },
     .shown =
         [](const JobSpec& job) {
           return job.model.peft.use_dora ? std::string("model.peft.use_dora") : MethodOf(job);
         }},
    {.name = "dropout of the inputs of adapters",
     .setting = "model.peft.dropout",
     .asked = [](const JobSpec& job) { return job.model.peft.dropout > 0; },
     .shown = [](const JobSpec&) { return std::string("model.peft.dropout"); }},
    {.name = "several adapters in one job",
     .setting = "model.peft.adapters",
     .asked = [](const JobSpec& job) { return HasJointAdapters(job.model.peft); },
     .shown = [](const JobSpec&) { return std::string("model.peft.adapters"); }},
    {.name = "DoRA",
     .setting = "model.peft.use_dora",
     .asked = [](const JobSpec& job) { return job.model.peft.use_dora; },
     .shown = [](const JobSpec&) { return std::string("model.peft.use_dora"); }},
    {.name = "factors that start as a part of their weight",
     .setting = "model.peft.init pissa or olora",
     .asked = [](const JobSpec& job) { return DecomposesWeights(job.model.peft); },
     .shown = [](const JobSpec& job) { return "model.peft.init " + job.model.peft.init; }},
    {.name = "an adapter of a folder",
     .setting = "model.peft.import_path",
     .asked = [](const JobSpec& job) { return !job.model.peft.import_path.empty(); },
     .shown = [](const JobSpec&) { return std::string("model.peft.import_path"); }},
    {.name = "modules trained whole besides adapters",
     .setting = "model.peft.modules_to_save",
     .asked = [](const JobSpec& job) { return !job.model.peft.modules_to_save.empty(); },
     .shown = [](const JobSpec&) { return std::string("model.peft.modules_to_save"); }},
    {.name = "virtual tokens with positions that are trained",
     .setting =
         "model.peft.method prompt or p_tuning with the positions of gpt2 in modules_to_save",
     .asked = [](const JobSpec& job) { return TrainsVirtualPositions(job.model); },
     .shown =
         [](const JobSpec& job) {
           return MethodOf(job) + " with trained positions (model.peft.modules_to_save)";
         },
     .of_folder = true},
    {.name = "adapters that are merged into their weights",
     .setting = "model.peft.method loha, lokr, oft or vera",
     .asked = [](const JobSpec& job) { return MergesWeights(job.model.peft); },
     .shown = MethodOf},
    {.name = "DoRA with dropped inputs",
     .setting = "model.peft.use_dora with model.peft.dropout",
     .asked =
         [](const JobSpec& job) { return job.model.peft.use_dora && job.model.peft.dropout > 0; },
     .shown =
         [](const JobSpec&) { return std::string("model.peft.use_dora with model.peft.dropout"); }},
    {.name = "prefixes that a network makes, in a pipeline",
     .setting = "model.peft.prefix_projection with resources.pipeline_parallel 2 or more",
     .asked =
         [](const JobSpec& job) {
           return job.model.peft.prefix_projection && kPipelineParallel.asked(job);
         },
     .shown =
         [](const JobSpec& job) {
           return "model.peft.prefix_projection with " + kPipelineParallel.shown(job);
         }},
    {.name = "adapters whose gradients need factors that come block by block",
     .setting = "model.peft.method lora or ia3 with resources.offload_parameters",
     .asked =
         [](const JobSpec& job) {
           const std::string& method = job.model.peft.method;
           return (method == "lora" || method == "ia3") && kOffloadParameters.asked(job);
         },
     .shown =
         [](const JobSpec& job) {
           return MethodOf(job) + " with " + kOffloadParameters.shown(job);
         }},
    {.name = "some experts of a layer trained whole",
     .setting = "model.peft.modules_to_save with some of the experts of a layer",
     .asked = [](const JobSpec& job) { return !UnevenSaved(job.model).empty(); },
     .shown =
         [](const JobSpec& job) {
           return "model.peft.modules_to_save, which names " + UnevenSaved(job.model);
         },
     .of_folder = true},
    {.name = "adapters of experts",
     .setting = "model.peft.target_modules with experts",
     .asked = [](const JobSpec& job) { return HasExpertAdapters(job.model); },
     .shown = [](const JobSpec& job) { return TargetsOf(job) + " with experts"; },
     .of_folder = true},
    {.name = "prefixes",
     .setting = "model.peft.method prefix",
     .asked = [](const JobSpec& job) { return job.model.peft.method == "prefix"; },
     .shown = MethodOf},
    {.name = "adapters outside the blocks",
     .setting = "model.peft.target_modules with a layer outside the blocks",
     .asked = [](const JobSpec& job) { return !OuterTarget(job.model).empty(); },
     .shown = ShownOuter,
     .of_folder = true},
    {.name = "an adapter of the classifier",
     .setting = "model.peft.target_modules with the classifier",
     .asked = [](const JobSpec& job) { return AdaptsClassifier(job.model); },
     .shown = ShownOuter,
     .of_folder = true},
    {.name = "adapters outside the blocks of an encoder",
     .setting = "model.peft.target_modules with a layer outside the blocks of bert or vit",
     .asked =
         [](const JobSpec& job) { return kEncoder.asked(job) && !OuterTarget(job.model).empty(); },
     .shown = ShownOuter,
     .of_folder = true},
};
const Feature& kInSomeBlocks = kSettings[0];
const Feature& kProjectsPrefix = kSettings[1];
const Feature& kVirtualTokens = kSettings[2];
const Feature& kAdaLora = kSettings[3];
const Feature& kTokenAdapters = kSettings[4];
const Feature& kNotLora = kSettings[5];
const Feature& kMakesWeights = kSettings[6];
const Feature& kDropsInputs = kSettings[7];
const Feature& kJointAdapters = kSettings[8];
const Feature& kDora = kSettings[9];
const Feature& kDecomposes = kSettings[10];
const Feature& kImportsAdapter = kSettings[11];
const Feature& kSavesModules = kSettings[12];
const Feature& kVirtualPositions = kSettings[13];
const Feature& kMerges = kSettings[14];
const Feature& kDroppedDora = kSettings[15];
const Feature& kPrefixOfStages = kSettings[16];
const Feature& kFactorsComeAndGo = kSettings[17];
const Feature& kSavesSomeExperts = kSettings[18];
const Feature& kAdaptsExperts = kSettings[19];
const Feature& kPrefixes = kSettings[20];
const Feature& kAdaptsOuter = kSettings[21];
const Feature& kAdaptsClassifier = kSettings[22];
const Feature& kAdaptsOuterOfEncoder = kSettings[23];

constexpr std::string_view kNotOfFusedExperts =
    "transformers 5 has the experts of a layer in one tensor, and peft does not have this for it";

std::vector<Refusal> Rows() {
  std::vector<Refusal> rows = {
      {&kPeft, &kNoBlocks, "there are no layers to adapt", "model.layers 1 or more"},
      {&kPeft, &kTensorParallel2d, kBothSides, "resources.tensor_rows 1"},
      {&kPeft, &kParametersInFile, "sizes of files are those of what is trained",
       "resources.offload_parameters host"},
      {&kPeft, &kDeviceUpdatedUnits, "what is trained is little, and in all units",
       "resources.offload_optimizer host without device_updated_units"},
      {&kPeft, &OverParameterizationTechniqueCost().feature(),
       "one trains more numbers than a weight has, the other fewer", kOneOfTwo},
      {&kPeft, &Sparse24TechniqueCost().feature(), "the weights that it masks are frozen",
       kOneOfTwo},
      {&kPeft, &StructuredMatricesTechniqueCost().feature(),
       "a structured matrix, which is trained, is in the place of the weight", kOneOfTwo},
      {&kPeft, &StructuredPruningTechniqueCost().feature(),
       "the units that it removes are of frozen weights", kOneOfTwo},
      {&kPeft, &PruningTechniqueCost().feature(), "the weights that it removes are frozen",
       kOneOfTwo},
      {&kPeft, &kFreeze, "it says what is trained",
       "leave model.freeze out, and name what is trained besides in model.peft.modules_to_save"},
  };
  // Formats of products that are techniques themselves.
  const auto add_formats = [&](const Feature& feature, std::string_view hint) {
    for (const TechniqueCost* technique : TechniqueCosts()) {
      if (technique->precision() == nullptr) continue;
      rows.push_back({&feature, &technique->feature(), kOneProducts, hint});
    }
  };
  add_formats(kMerges, "model.peft.method lora, or train.precision bf16");
  add_formats(kDroppedDora, "model.peft.dropout 0, or train.precision bf16");
  rows.push_back({&kMakesWeights, &kOffloadParameters,
                  "weights would have to be made again of what comes from the host",
                  "resources.offload_parameters none"});
  rows.push_back({&kFactorsComeAndGo, &kZeroBubble,
                  "when deferred gradients need the factors, they are gone",
                  "resources.pipeline_schedule 1f1b"});
  rows.push_back({&kInSomeBlocks, &kPipelineParallel, "all stages have equal blocks",
                  "adapters in all blocks"});
  rows.push_back({&kSavesSomeExperts, &kExpertParallel,
                  "expert-parallel ranks train all experts of a layer, or none",
                  "all of them, or resources.expert_parallel 1"});
  rows.push_back({&kAdaptsExperts, &kJointAdapters,
                  "the rows of an expert are not in the order of the adapters",
                  "the layers of the attention in model.peft.target_modules"});
  rows.push_back({&kAdaptsExperts, &kDropsInputs,
                  "masks are drawn by position in the batch, and the choices of the router say "
                  "which rows an expert gets",
                  "model.peft.dropout 0"});
  rows.push_back({&kAdaptsExperts, &kNotLora, kNotOfFusedExperts,
                  "the layers of the attention in model.peft.target_modules, or model.peft.method "
                  "lora"});
  rows.push_back({&kAdaptsExperts, &kDora, kNotOfFusedExperts, "model.peft.use_dora false"});
  rows.push_back({&kAdaptsExperts, &kDecomposes, kNotOfFusedExperts, "model.peft.init default"});
  rows.push_back(
      {&kAdaptsOuterOfEncoder, &kDropsInputs,
       "masks are drawn by position in the batch, and such a layer reads some rows of it",
       "model.peft.dropout 0"});
  rows.push_back({&kAdaptsOuter, &kJointAdapters,
                  "a classifier takes the rows in chunks, and not those of one adapter",
                  "targets in the blocks"});
  rows.push_back(
      {&kAdaptsOuter, &kOffloadParameters, kOnDeviceAlone, "resources.offload_parameters none"});
  rows.push_back({&kAdaptsClassifier, &kDroppedDora,
                  "all logits would be computed twice, of dropped inputs and of others",
                  "model.peft.dropout 0, or model.peft.use_dora false"});
  rows.push_back({&kPrefixOfStages, &kMeshDeterminism,
                  "stages add up their gradients of what all attentions share",
                  "data parallelism alone"});
  rows.push_back({&kProjectsPrefix, &kOffloadParameters,
                  "all blocks compute with what comes with the embeddings",
                  "resources.offload_parameters none"});
  const Refusal of_virtual_tokens[] = {
      {&kVirtualTokens, &kContextParallel, "each rank has a part of the tokens of a sequence",
       "resources.context_parallel 1"},
      {&kVirtualTokens, &kActivationCompression,
       "values are rounded by their position in the whole batch", "resources.activation_bits 0"},
      {&kVirtualTokens, &kMaskDocuments,
       "each document of a row would have its own, and no prediction of memory knows how many "
       "documents there are",
       "data.mask_documents false"},
      {&kVirtualTokens, &kVit, "peft puts virtual tokens before those of texts alone",
       "model.family gpt2, llama or bert"},
      {&kVirtualTokens, &kEmbeddingWidth,
       "virtual tokens would have to go through the projection of the embedding",
       "model.embedding_width 0"},
      {&kVirtualTokens, &StochasticDepthTechniqueCost().settings().front(),
       "sequences would have to be skipped with their virtual tokens",
       "model.stochastic_depth.mode batch"},
  };
  rows.insert(rows.end(), std::begin(of_virtual_tokens), std::end(of_virtual_tokens));
  rows.push_back({&kPrefixes, &kMaskedHead,
                  "masked language models of transformers take no keys and values from outside",
                  "model.peft.method prompt or p_tuning, or model.head classification"});
  rows.push_back({&kVirtualPositions, &kSequenceParallel,
                  "ranks would have to divide virtual tokens with the others",
                  "resources.sequence_parallel false"});
  rows.push_back({&kDropsInputs, &kContextParallel, "masks are drawn for whole sequences",
                  "model.peft.dropout 0"});
  rows.push_back({&kDropsInputs, &StochasticDepthTechniqueCost().settings().front(),
                  "masks are drawn by position in the whole batch",
                  "model.peft.dropout 0, or model.stochastic_depth.mode batch"});
  const Refusal of_adalora[] = {
      {&kAdaLora, &kLossScaling, "it adds to gradients", "train.precision bf16"},
      {&kAdaLora, &kReplay, kPlainPasses, kOneOfTwo},
      {&kAdaLora, &kMeshDeterminism, kOtherBits, kOneOfTwo},
      {&kAdaLora, &kLocalSteps, "each rank would choose other ranks of factors", kOneOfTwo},
      {&kAdaLora, &kGradientClipValue, "ranks are scored by gradients that one factor clips",
       "train.gradient_clip_norm"},
      {&kAdaLora, &kScheduleFree, "its average keeps what is masked", "another optimizer"},
      {&kAdaLora, &kDelayedUpdate, "ranks are chosen once an update has been made",
       "resources.delayed_update false"},
  };
  rows.insert(rows.end(), std::begin(of_adalora), std::end(of_adalora));
  const Refusal of_joint_adapters[] = {
      {&kJointAdapters, &kNotLora, "the method would have to adapt a part of the rows alone",
       "model.peft.method lora"},
      {&kJointAdapters, &kDora, "magnitudes would have to be those of each adapter's rows",
       "model.peft.use_dora false"},
      {&kJointAdapters, &kDecomposes, "each is taken off the weight that all share",
       "model.peft.init default"},
      {&kJointAdapters, &kImportsAdapter, "the folder has one adapter", "a job for each"},
      {&kJointAdapters, &kSavesModules, "the network that all adapters share stays as it is",
       "leave model.peft.modules_to_save out"},
      {&kJointAdapters, &kTokenAdapters,
       "tokens would have to be looked up in the table of each adapter",
       "adapters of linear layers alone, without trainable_token_indices"},
      {&kJointAdapters, &kLocalSteps, kSummedEveryStep, "train.local_steps 1"},
      {&kJointAdapters, &kBatchWarmup, "a batch that grows would have to keep equal parts",
       "train.batch_warmup_steps 0"},
      {&kJointAdapters, &kMeshDeterminism, kOtherBits, kOneOfTwo},
      {&kJointAdapters, &kEncoder, "the loss of each adapter is that of next tokens",
       "model.family gpt2 or llama"},
      {&kJointAdapters, &StochasticDepthTechniqueCost().settings().front(),
       "sequences of a batch are left out, and an adapter has its part of all",
       "model.stochastic_depth.mode batch"},
      {&kJointAdapters, &GradientNoiseScaleTechniqueCost().feature(),
       "each adapter has a gradient of its own", kOneOfTwo},
  };
  rows.insert(rows.end(), std::begin(of_joint_adapters), std::end(of_joint_adapters));
  rows.push_back(
      {&kTokenAdapters, &kOffloadParameters, kOnDeviceAlone, "resources.offload_parameters none"});
  return rows;
}

class PeftCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "peft"; }
  const Feature& feature() const override { return kPeft; }
  std::span<const Feature> settings() const override { return kSettings; }

  std::span<const Refusal> refusals() const override {
    static const std::vector<Refusal> rows = Rows();
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const PeftSpec& spec = job.model.peft;
    if (!AsksForPeft(job.model)) {
      if (HasDefaults(spec)) return OkStatus();
      return InvalidError("model.peft has settings and no method; hint: model.peft.method lora");
    }
    WEFT_RETURN_IF_ERROR(CheckSettings(spec));
    WEFT_RETURN_IF_ERROR(CheckBottlenecks(job.model));
    WEFT_RETURN_IF_ERROR(CheckVirtualTokens(job));
    WEFT_RETURN_IF_ERROR(CheckAdaLora(job));
    WEFT_RETURN_IF_ERROR(CheckJointAdapters(job));
    // Its sizes are not known yet.
    if (!job.model.import_path.empty()) return OkStatus();
    WEFT_RETURN_IF_ERROR(CheckPeftNames(job.model));
    return CheckMergeOnRanks(job);
  }

  std::vector<ParameterInfo> AdaptersOf(const ModelSpec& model,
                                        const ParameterInfo& weight) const override {
    if (!IsTarget(model, weight)) return {};
    std::vector<ParameterInfo> tensors = AdapterOf(model, weight);
    if (model.peft.method != "vera" || !IsFirstTarget(model, weight)) return tensors;
    for (ParameterInfo& factor : SharedFactors(model, weight)) tensors.push_back(std::move(factor));
    return tensors;
  }

  std::vector<ParameterInfo> GraftsOf(const ModelSpec& model,
                                      const ParameterInfo& weight) const override {
    std::vector<ParameterInfo> tensors = BottleneckTensors(model, weight);
    return tensors.empty() ? PrefixTensors(model, weight) : tensors;
  }
  std::vector<ParameterInfo> EmbeddingGraftsOf(const ModelSpec& model) const override {
    std::vector<ParameterInfo> tensors = VirtualTokenTensors(model);
    for (ParameterInfo& tensor : TokenAdapterTensors(model)) tensors.push_back(std::move(tensor));
    return tensors;
  }
  VirtualTokenCounts VirtualTokensOf(const ModelSpec& model) const override {
    return CountsOfVirtualTokens(model.peft);
  }
  int64_t SavedByGrafts(const ModelSpec& model, SubLayer sub_layer) const override {
    return SavedByBottlenecks(model, sub_layer);
  }
  int64_t RowsAfterMlp(const ModelSpec& model) const override { return RowsOfBottlenecks(model); }
  ProductNumbers WorkspaceOfGrafts(const ModelSpec& model, SubLayer sub_layer) const override {
    return WorkspaceOfBottlenecks(model, sub_layer);
  }
  // The result of a sub-layer that one reads has a gradient of its own.
  bool ChangesBranches(const ModelSpec& model) const override {
    return model.peft.method == "houlsby";
  }

  // What a start takes off quantised weights is gone once the rest has been quantised again.
  bool ReadsFrozenWeights(const ModelSpec& model) const override {
    const bool whole = model.weight_quantization.type == "none";
    return MergesWeights(model.peft) || (whole && DecomposesWeights(model.peft));
  }
  bool FreezesAny(const ModelSpec& model) const override { return AsksForPeft(model); }
  void TrainWhole(ModelSpec& model) const override { model.peft = {}; }
  bool Freezes(const ModelSpec& model, const ParameterInfo& parameter) const override {
    if (parameter.adapter != AdapterSide::kNone) return parameter.replicated;
    return AsksForPeft(model) && !IsSavedWhole(model, parameter.name);
  }
  // Their weights keep what the factors leave.
  bool ChangesFrozenWeights(const ModelSpec& model) const override {
    return DecomposesWeights(model.peft);
  }

  ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer,
                                     int64_t columns) const override {
    if (!AdaptsWeights(model.peft)) return {};
    if (MergesWeights(model.peft)) return {.weights = MergedGradientNumbers(model, sub_layer)};
    return WorkspaceOfAdapters(model, sub_layer, columns);
  }

  // Dropped inputs. With DoRA the gradient of results before their scale, and these again.
  int64_t WorkspaceOfClassifier(const ModelSpec& model, int64_t columns) const override {
    if (!AdaptsClassifier(model)) return 0;
    if (model.peft.use_dora) return 2 * columns;
    return model.peft.dropout > 0 ? model.width : 0;
  }

  void AddStepWork(const ModelShape& shape, const TrainSpec&, StepWork& work) const override {
    if (IsAdaLora(shape.spec.peft)) AddAdaLoraWork(shape.spec, work);
  }

  double TrainedPasses(const ModelSpec& model, const TrainSpec&) const override {
    return IsAdaLora(model.peft) ? static_cast<double>(AdaLoraPasses(model.peft.adalora)) : 0;
  }

  int64_t MergedNumbers(const ModelSpec& model, int64_t block) const override {
    return MergesWeights(model.peft) ? MergedNumbersOf(model, block) : 0;
  }
  void AddMergeWork(const ModelSpec& model, StepWork& work) const override {
    if (MergesWeights(model.peft)) AddWorkOfMerging(model, work);
  }

  // When weights are packed after an update: the merged weight of a layer, and what an adapter adds
  // to it, on the way to that twice. AdaLoRA works where parameters are updated.
  int64_t WorkspaceBytes(const MemoryInputs& inputs) const override {
    const ModelSpec& model = inputs.shape.spec;
    if (MergesWeights(model.peft)) return 3 * kF32 * LargestMerged(model);
    return inputs.offload_optimizer ? 0 : WorkspaceOfRanks(model);
  }
  int64_t HostWorkspaceBytes(const MemoryInputs& inputs) const override {
    return WorkspaceOfRanks(inputs.shape.spec);
  }

  std::vector<JobSpec> JointJobs(const JobSpec& job) const override {
    return JointAdapterJobs(job);
  }
  std::vector<DataList> DataLists(JobSpec& job) const override { return JointAdapterData(job); }
  std::vector<TechniqueMetric> Metrics() const override { return JointAdapterMetrics(); }

  // Sensitivity and uncertainty of each number, in f32.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    const bool scored = IsAdaLora(job.model.peft) && parameter.adapter != AdapterSide::kNone;
    return scored ? 8 * parameter.Elements() : 0;
  }

 private:
  static constexpr int64_t kF32 = 4;

  static int64_t WorkspaceOfRanks(const ModelSpec& model) {
    return IsAdaLora(model.peft) ? kF32 * AdaLoraWorkspace(model) : 0;
  }
};

}  // namespace

const Feature& AdapterDropoutFeature() {
  return kDropsInputs;
}

const Feature& JointAdaptersFeature() {
  return kJointAdapters;
}

const Feature& VirtualTokensFeature() {
  return kVirtualTokens;
}

const TechniqueCost& PeftTechniqueCost() {
  static const PeftCost cost;
  return cost;
}

}  // namespace weft
