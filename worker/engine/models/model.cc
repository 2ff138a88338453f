#include "worker/engine/models/model.h"

#include "common/check.h"
#include "common/model/model_sizes.h"
#include "common/model/name_patterns.h"
#include "common/model/technique_cost.h"
#include "common/spec/compatibility.h"
#include "common/spec/context_parallel.h"
#include "common/spec/mixture_of_experts.h"
#include "common/spec/model_family.h"
#include "common/spec/technique_checks.h"
#include "common/spec/tensor_parallel.h"
#include "worker/engine/models/bert.h"
#include "worker/engine/models/decoder.h"
#include "worker/engine/models/gpt2.h"
#include "worker/engine/models/language_model.h"
#include "worker/engine/models/llama.h"
#include "worker/engine/models/vit.h"
#include "worker/engine/techniques/registry.h"

namespace weft::engine {
namespace {

Status ValidateSizes(const ModelSpec& spec) {
  if (spec.family != "vit" && spec.vocab_size < 1) {
    return InvalidError("model.vocab_size " + std::to_string(spec.vocab_size) +
                        " must be at least 1; hint: take it from the tokenizer");
  }
  const bool divides = spec.heads > 0 && (spec.head_width > 0 || spec.width % spec.heads == 0);
  if (!divides || HeadWidth(spec) % 8 != 0 || HeadWidth(spec) < 8 || HeadWidth(spec) > 256) {
    return InvalidError("model.width " + std::to_string(spec.width) + " over model.heads " +
                        std::to_string(spec.heads) +
                        ", or model.head_width, must give heads of 8 to 256 in steps of 8");
  }
  if (spec.heads % KvHeads(spec) != 0) {
    return InvalidError("model.heads " + std::to_string(spec.heads) +
                        " must be a multiple of model.kv_heads " + std::to_string(KvHeads(spec)));
  }
  if (spec.family == "vit" && spec.image_size % spec.patch_size != 0) {
    return InvalidError("model.image_size " + std::to_string(spec.image_size) +
                        " must be a multiple of model.patch_size " +
                        std::to_string(spec.patch_size));
  }
  if (spec.layers > 0 && spec.layers % DistinctBlocks(spec) != 0) {
    return InvalidError("model.layers " + std::to_string(spec.layers) +
                        " must be a multiple of model.distinct_blocks " +
                        std::to_string(DistinctBlocks(spec)));
  }
  return OkStatus();
}

Status ValidateHead(const ModelSpec& spec) {
  if (spec.family != "gpt2" && spec.family != "llama" && spec.family != "bert" &&
      spec.family != "vit") {
    return InvalidError("model.family '" + spec.family +
                        "' is not known; hint: gpt2, llama, bert or vit");
  }
  if (HeadOf(spec) == "classification" && spec.classes < 1) {
    return InvalidError("model.classes " + std::to_string(spec.classes) +
                        " must be at least 1; hint: take it from the data");
  }
  return OkStatus();
}

Status ValidatePrecision(const PrecisionRecipe& precision) {
  if (precision.products == precision.activations &&
      precision.classifier == precision.activations) {
    return OkStatus();
  }
  return InvalidError("precision " + std::string(precision.name) +
                      " multiplies in another type than its activations have, which no operation "
                      "of this build does");
}

// Which part of the experts a rank has: successive context-parallel ranks have the same ones, the
// expert-parallel ranks after them have others.
int64_t PartOfExperts(const ModelOptions& options) {
  const int64_t sequences = options.context != nullptr ? options.context->degree() : 1;
  const int64_t experts = options.experts != nullptr ? options.experts->degree() : 1;
  return options.update_rank / (sequences * experts) * sequences + options.update_rank % sequences;
}

// Freezes what the model registered, lets techniques register more, and allocates all.
template <class T>
Result<std::unique_ptr<T>> Ready(Context& context, const ModelOptions& options,
                                 std::unique_ptr<T> model) {
  ParameterSet& parameters = model->parameters();
  if (parameters.of_stage()) {
    parameters.SetNetwork(GroupedNames(model->spec()), DistinctBlocks(model->spec()));
  }
  WEFT_RETURN_IF_ERROR(parameters.Freeze(model->spec().freeze));
  for (const std::unique_ptr<Technique>& technique : model->techniques()) {
    WEFT_RETURN_IF_ERROR(technique->OnParameters(parameters));
  }
  parameters.ShareAmong(options.update_ranks, options.place_gradients);
  if (options.shard_values) {
    parameters.ShardValues(options.update_rank, PartOfExperts(options));
  }
  if (options.offload) parameters.Offload();
  const bool comes_later =
      options.stream_parameters || options.shard_values || options.parameters_in_file;
  if (!comes_later && TechniquesFreeze(model->spec())) parameters.KeepFrozenOnDevice();
  if (const std::vector<int64_t>& units = options.device_updated_units; !units.empty()) {
    parameters.KeepOnDevice(units);
  }
  if (options.stream_parameters) parameters.StreamValues();
  if (options.parameters_in_file) parameters.KeepInFile();
  WEFT_RETURN_IF_ERROR(parameters.Allocate(context, options.with_gradients,
                                           options.precision->matrices,
                                           FrozenMatrixType(model->spec(), *options.precision)));
  if (ProductsFactory* products = model->block_products()) {
    WEFT_RETURN_IF_ERROR(products->Allocate(context));
  }
  return model;
}

Status ValidateStages(const ModelSpec& spec, const PipelinePart& part) {
  int64_t end = 0;
  for (const PipelinePart::Stage& stage : part.stages) {
    if (stage.blocks < 1 || stage.first_block < end ||
        stage.blocks > spec.layers - stage.first_block) {
      return InvalidError("a pipeline has a stage of " + std::to_string(stage.blocks) +
                          " blocks that begins with block " + std::to_string(stage.first_block) +
                          ", and the model has " + std::to_string(spec.layers));
    }
    end = stage.first_block + stage.blocks;
  }
  if (part.stages.empty()) return InvalidError("a rank of a pipeline has no stage");
  return OkStatus();
}

Status ValidateExperts(const ModelSpec& spec, const ModelOptions& options) {
  const int64_t ranks = options.experts == nullptr ? 1 : options.experts->degree();
  if (spec.experts == 0 && ranks == 1) return OkStatus();
  const std::string named = "model.experts " + std::to_string(spec.experts);
  if (spec.experts == 0 || spec.experts % ranks != 0) {
    return InvalidError(named + " cannot be partitioned over " + std::to_string(ranks) +
                        " ranks; hint: a multiple of them, or resources.expert_parallel 1");
  }
  return OkStatus();
}

// Fields of a precision that was not chosen are none of the model.
TrainSpec TrainOf(const ModelOptions& options) {
  JobSpec job;
  job.train = options.train;
  SetPrecision(job, std::string(options.precision->name));
  return job.train;
}

// A job that asks for `spec` and for what `options` say of its ranks and of where it resides.
JobSpec JobOf(const ModelSpec& spec, const ModelOptions& options) {
  JobSpec job;
  job.model = spec;
  job.model.import_path.clear();  // its sizes are known
  job.train = TrainOf(options);
  // Where no training says how long sequences are, batches do.
  if (job.train.sequence_length == 0) job.train.sequence_length = 1;
  if (options.growth) SetPhaseGrowth(*options.growth, job);
  ResourceSpec& resources = job.resources;
  if (options.tensor != nullptr) {
    resources.tensor_parallel = options.tensor->degree();
    resources.tensor_rows = options.tensor->rows();
    resources.sequence_parallel = options.tensor->sequence();
  }
  if (options.context != nullptr) resources.context_parallel = options.context->degree();
  if (options.experts != nullptr) resources.expert_parallel = options.experts->degree();
  if (options.update_ranks > 1) resources.zero_stage = options.place_gradients ? 2 : 1;
  if (options.shard_values) resources.zero_stage = 3;
  if (options.offload) resources.offload_optimizer = "host";
  if (options.stream_parameters || (options.offload && options.shard_values)) {
    resources.offload_parameters = options.parameters_in_file ? "nvme" : "host";
  }
  resources.device_updated_units = options.device_updated_units;
  return job;
}

Status Validate(const ModelSpec& spec, const ModelOptions& options) {
  WEFT_RETURN_IF_ERROR(ValidateHead(spec));
  WEFT_RETURN_IF_ERROR(CheckCompatibility(JobOf(spec, options)));
  WEFT_RETURN_IF_ERROR(CheckExperts(spec));
  WEFT_RETURN_IF_ERROR(ValidateSizes(spec));
  WEFT_RETURN_IF_ERROR(CheckTechniques(JobOf(spec, options)));
  WEFT_ASSIGN_OR_RETURN(const RematPlan remat, RematOf(options, spec.layers));
  if (options.pipeline && !options.recompute_schedule.empty()) {
    for (const PipelinePart::Stage& stage : options.pipeline->stages) {
      WEFT_RETURN_IF_ERROR(StageOf(remat, stage.first_block, stage.blocks).status());
    }
  }
  if (options.tensor != nullptr) {
    WEFT_RETURN_IF_ERROR(
        CheckTensorParallel(spec, options.tensor->degree(), options.tensor->rows()));
  }
  if (options.context != nullptr) {
    WEFT_RETURN_IF_ERROR(
        CheckContextParallel(spec, options.context->degree(), options.context->method(),
                             options.tensor != nullptr ? options.tensor->columns() : 1));
  }
  return ValidatePrecision(*options.precision);
}

}  // namespace

Result<RematPlan> RematOf(const ModelOptions& options, int64_t layers) {
  Plan plan;
  plan.block_memory_policy = options.block_memory_policy;
  plan.recompute_segment = options.recompute_segment;
  plan.recompute_schedule = options.recompute_schedule;
  plan.offload_activations = options.offload_activations ? "host" : "none";
  return RematOf(plan, layers);
}

Model::Model(const ModelSpec& spec, const ModelOptions& options)
    : techniques_(ModelTechniques(
          {.model = spec,
           .train = TrainOf(options),
           .with_gradients = options.with_gradients,
           .tensor_ranks = options.tensor != nullptr ? &options.tensor->group() : nullptr,
           .context_ranks = options.context,
           .growth = options.growth ? &*options.growth : nullptr,
           .elastic = options.elastic,
           .logits_source = options.logits_source})) {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    if (ProductsFactory* const products = technique->BlockProducts(block_products_)) {
      WEFT_CHECK(block_products_ == nullptr || technique->CombinesProducts(),
                 "two techniques make the products of blocks");
      block_products_ = products;
    }
    if (outer_products_ == nullptr) outer_products_ = technique->OuterProducts();
    if (stream_mask_ == nullptr) stream_mask_ = technique->StreamMask();
    if (added_logits_ == nullptr) added_logits_ = technique->LogitsToAdd();
    if (layers_of_pass_ == nullptr) layers_of_pass_ = technique->LayersOfPasses();
  }
}

Grafter Model::grafter() const {
  return [this](const GraftSite& site, Grafts& grafts) {
    for (const std::unique_ptr<Technique>& technique : techniques_) {
      technique->OnSite(site, grafts);
    }
  };
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): those that override it take it over
Result<Value> Model::Stage(Context&, Tape&, int64_t, Value, const TokenBatch&,
                           kernels::StepValue<float>, BatchLoss*) const {
  return InvalidError("a model of family " + spec().family + " has no stages of a pipeline");
}

Result<std::unique_ptr<LanguageModel>> NewLanguageModel(Context& context, const ModelSpec& spec,
                                                        const ModelOptions& options) {
  WEFT_RETURN_IF_ERROR(Validate(spec, options));
  WEFT_RETURN_IF_ERROR(ValidateExperts(spec, options));
  if (options.with_gradients && options.logits_source == nullptr) {
    if (const std::optional<AddedNetwork> added = AddedNetworkOf(options.train)) {
      return InvalidError("the model trains with the logits of the network in " +
                          added->model->import_path + ", which is not loaded");
    }
  }
  if (HeadOf(spec) != "causal_lm") {
    return InvalidError("a model with model.head " + HeadOf(spec) +
                        " does not predict the next token");
  }
  auto model =
      std::make_unique<Decoder>(spec, options, spec.family == "llama" ? Llama(spec) : Gpt2(spec));
  return Ready<LanguageModel>(context, options, std::move(model));
}

Result<std::unique_ptr<Model>> NewModel(Context& context, const ModelSpec& spec,
                                        const ModelOptions& options) {
  WEFT_RETURN_IF_ERROR(Validate(spec, options));
  WEFT_RETURN_IF_ERROR(ValidateExperts(spec, options));
  if (options.pipeline) WEFT_RETURN_IF_ERROR(ValidateStages(spec, *options.pipeline));
  if (spec.family == "bert") {
    return Ready<Model>(context, options, std::make_unique<Bert>(spec, options));
  }
  if (spec.family == "vit") {
    return Ready<Model>(context, options, std::make_unique<Vit>(spec, options));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LanguageModel> model,
                        NewLanguageModel(context, spec, options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace weft::engine
