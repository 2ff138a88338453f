#include "worker/engine/models/decoder.h"

#include "common/model/model_sizes.h"
#include "worker/engine/autograd/scale.h"
#include "worker/engine/nn/initialization.h"
#include "worker/engine/nn/rows.h"

namespace weft::engine {
namespace {

int64_t RegisterVocabulary(ParameterSet& parameters, const std::string& name, const ModelSpec& spec,
                           int64_t width, ParameterRole role, const TensorParallel* ranks) {
  if (ranks == nullptr) {
    return parameters.Register(name, {spec.vocab_size, width}, role,
                               {.padded_rows = PaddedVocabulary(spec.vocab_size)});
  }
  Shard shard = ranks->Rows({spec.vocab_size});
  const int64_t rows = shard.size();
  if (ranks->rows() > 1) shard = shard.Across(ranks->FeatureColumns(width));
  // All ranks have room for the largest part: other parameters are at the same place on each.
  const int64_t columns = ranks->columns();
  const int64_t padded = PaddedVocabulary((spec.vocab_size + columns - 1) / columns);
  return parameters.Register(name, {rows, ranks->Features(width)}, role,
                             {.padded_rows = padded, .shard = std::move(shard)});
}

int64_t RegisterPositions(ParameterSet& parameters, const std::string& name, const ModelSpec& spec,
                          const TensorParallel* ranks) {
  const int64_t width = EmbeddingWidth(spec);
  const ParameterRole role = ParameterRole::kPositionEmbedding;
  if (ranks == nullptr) return parameters.Register(name, {spec.context, width}, role);
  return parameters.Register(name, {spec.context, ranks->Features(width)}, role,
                             {.shard = ranks->FeatureColumns(width)});
}

// The table or matrix that classifies, or the part of it whose logits are added.
PackedParameter ClassifierOf(ParameterSet* parameters, int64_t index, DType type,
                             const ModelOptions& options) {
  if (!options.logits_part) return {parameters, index, type};
  return {parameters, index, type, *options.logits_part};
}

NormOptions With(const TensorParallel* ranks, const ColumnMask* mask, NormOptions norm) {
  norm.ranks = ranks;
  norm.mask = mask;
  return norm;
}

// All blocks in one stage where there is no pipeline.
PipelinePart PartOf(const ModelSpec& spec, const ModelOptions& options) {
  return options.pipeline.value_or(PipelinePart{{{0, spec.layers}}, true, true});
}

// What the blocks of a stage, or this many layers without a pipeline, do with their saved tensors.
RematPlan RematOfStage(const ModelSpec& spec, const ModelOptions& options,
                       const PipelinePart::Stage& stage, int64_t layers) {
  if (!options.pipeline) return RematOf(options, layers).value();
  if (!options.recompute_schedule.empty()) {
    return StageOf(RematOf(options, spec.layers).value(), stage.first_block, stage.blocks).value();
  }
  std::vector<std::string> policies;
  for (int64_t i = stage.first_block; i < stage.first_block + stage.blocks; ++i) {
    const auto index = static_cast<size_t>(i);
    const bool told = index < options.block_memory_policy.size();
    policies.push_back(told ? options.block_memory_policy[index] : "keep");
  }
  RematPlan plan = RematOfPolicies(policies, stage.blocks, options.recompute_segment);
  return options.offload_activations ? AllOnHost(std::move(plan)) : plan;
}

std::vector<BlockStack> Stacks(ParameterSet* parameters, const ModelSpec& spec,
                               const ModelOptions& options, const DecoderOptions& family,
                               const Grafter& grafter, const ColumnMask* mask,
                               const LayersOfPass& layers_of_pass, const ProductOptions& products) {
  const auto block = [&](int64_t index) {
    TransformerBlockOptions own = family.block(index);
    own.attention.context = options.context;
    if (own.experts) {
      own.experts->ranks = options.experts;
      own.experts->sequences = options.context;
    }
    own.attention_norm = With(options.tensor, mask, std::move(own.attention_norm));
    own.mlp_norm = With(options.tensor, mask, std::move(own.mlp_norm));
    return own;
  };
  std::vector<BlockStack> stacks;
  for (const PipelinePart::Stage& stage : PartOf(spec, options).stages) {
    stacks.emplace_back(
        parameters,
        BlockStackOptions{
            .first = stage.first_block,
            .layers = stage.blocks,
            .distinct = options.pipeline ? stage.blocks : DistinctBlocks(spec),
            .layers_of_pass = layers_of_pass,
            .network_blocks = DistinctBlocks(spec),
            .block = block,
            .remat = [=](int64_t layers) { return RematOfStage(spec, options, stage, layers); },
            .activation_bits = options.activation_bits,
            .context = options.context,
            .grafter = grafter,
            .parameters_stay = !options.pipeline,
            .operations = options.block_operations},
        products);
  }
  return stacks;
}

// Which of the network's blocks those of a rank of a pipeline are.
std::vector<Shard::Range> BlocksOf(const PipelinePart& part) {
  std::vector<Shard::Range> blocks;
  for (const PipelinePart::Stage& stage : part.stages) {
    blocks.push_back({stage.first_block, stage.first_block + stage.blocks});
  }
  return blocks;
}

// What is put at the table of tokens where it classifies alone.
Grafts TableGrafts(ParameterSet* parameters, const ModelSpec& spec, int64_t table,
                   const Grafter& grafter, const ProductOptions& products) {
  Grafts grafts;
  if (table < 0 || !grafter) return grafts;
  grafter({.parameters = parameters,
           .products = &products,
           .width = spec.width,
           .token_table = table,
           .looks_up = false},
          grafts);
  return grafts;
}

// The loss is a sum over targets: what is a mean over the batch weighs as much as all of them.
void SetAuxiliaryScale(Tape& tape, const TokenBatch& batch,
                       kernels::StepValue<float> gradient_scale) {
  tape.SetAuxiliaryScale(gradient_scale.value * static_cast<float>(batch.target_count));
}

std::optional<Linear> Projection(bool wanted, ParameterSet* parameters, const std::string& name,
                                 int64_t in, int64_t out, DType compute) {
  if (!wanted) return std::nullopt;
  return Linear(parameters, {{{name, out, ParameterRole::kEmbeddingProjection}}, in, true},
                compute);
}

}  // namespace

Decoder::Decoder(const ModelSpec& spec, const ModelOptions& options, const DecoderOptions& family)
    : LanguageModel(spec, options),
      spec_(spec),
      part_(PartOf(spec, options)),
      precision_(*options.precision),
      tensor_(options.tensor),
      tokens_(part_.first || (part_.last && !spec.untied_classifier)
                  ? RegisterVocabulary(parameters_, family.token_embedding, spec,
                                       EmbeddingWidth(spec), ParameterRole::kTokenEmbedding,
                                       tensor_)
                  : -1),
      positions_(family.position_embedding.empty() || !part_.first
                     ? -1
                     : RegisterPositions(parameters_, family.position_embedding, spec, tensor_)),
      embedding_(&parameters_, part_.first ? tokens_ : -1, positions_, precision_.activations),
      virtual_tokens_(VirtualTokensOf(spec)),
      embedding_in_(Projection(FactorisedEmbedding(spec) && part_.first, &parameters_,
                               "embedding_in", EmbeddingWidth(spec), spec.width,
                               precision_.products)),
      embedding_grafts_(
          part_.first ? EmbeddingGrafts(&parameters_, spec.width, tokens_, family.embedding_dropout,
                                        DropoutOf(spec), grafter(), precision_.products)
                      : TableGrafts(&parameters_, spec, tokens_, grafter(), precision_.products)),
      rotary_(family.rotary),
      stages_(Stacks(&parameters_, spec, options, family, grafter(), stream_mask(),
                     layers_of_pass(), {precision_.products, block_products(), tensor_})),
      final_norm_(NormPositionOf(spec) == "pre" && part_.last
                      ? std::optional<Norm>(std::in_place, &parameters_,
                                            With(tensor_, stream_mask(), family.final_norm))
                      : std::nullopt),
      embedding_out_(Projection(FactorisedEmbedding(spec) && !spec.untied_classifier && part_.last,
                                &parameters_, "embedding_out", spec.width, EmbeddingWidth(spec),
                                precision_.products)),
      has_logits_part_(options.logits_part.has_value()),
      output_scale_(static_cast<float>(OutputScale(spec))) {
  if (part_.last) {
    const int64_t classifier =
        !spec.untied_classifier
            ? tokens_
            : RegisterVocabulary(parameters_, family.classifier, spec, spec.width,
                                 ParameterRole::kClassifier, tensor_);
    classifier_.emplace(ClassifierOf(&parameters_, classifier, precision_.classifier, options));
    head_.emplace(&parameters_, &*classifier_, spec.vocab_size, -1, false, tensor_);
    head_->Adapt(&parameters_, outer_products(), precision_.classifier);
    head_->SetAddedLogits(added_logits());
    if (!spec.untied_classifier) head_->SetTrainedRows(embedding_grafts_.trained_rows());
  }
  if (embedding_grafts_.virtual_tokens() != nullptr && positions_ >= 0) {
    virtual_positions_.emplace(&parameters_, positions_, -1, precision_.activations);
  }
  SetStarts(spec, parameters_);
  if (!spec.untied_classifier && tokens_ >= 0) parameters_.UseInLastUnit(tokens_);
  if (options.pipeline) {
    parameters_.SetStage();
    if (ProductsFactory* products = block_products()) {
      products->SetStage(BlocksOf(part_), spec.layers);
    }
    if (tokens_ >= 0 && !spec.untied_classifier) {
      parameters_.SetSharedByStages(tokens_, part_.first);
      if (const TrainedTableRows* rows = embedding_grafts_.trained_rows()) {
        parameters_.SetSharedByStages(rows->parameter, part_.first);
      }
    }
  }
  if (options.experts != nullptr) {
    parameters_.SetExpertRank(options.experts->rank(), options.experts->degree());
  }
  if (tensor_ == nullptr) return;
  parameters_.SetTensorRank(tensor_->rank(), tensor_->sequence());
  if (positions_ >= 0) parameters_.SetSeesAllRows(positions_);
}

Status Decoder::Pack(Context& context, Repack what) {
  if (rotary_) WEFT_RETURN_IF_ERROR(rotary_->Prepare(context));
  if (embedding_in_) WEFT_RETURN_IF_ERROR(embedding_in_->Pack(context, what));
  WEFT_RETURN_IF_ERROR(embedding_grafts_.Pack(context, what));
  if (ProductsFactory* products = block_products()) {
    WEFT_RETURN_IF_ERROR(products->StartPack(context, what));
  }
  for (BlockStack& stage : stages_) WEFT_RETURN_IF_ERROR(stage.Pack(context, what));
  if (embedding_out_) WEFT_RETURN_IF_ERROR(embedding_out_->Pack(context, what));
  if (!classifier_) return OkStatus();
  WEFT_RETURN_IF_ERROR(classifier_->Pack(context, head_->has_trained_rows() ? Repack::kAll : what));
  return head_->Pack(context, what);
}

Result<BlockRows> Decoder::RowsOf(Context& context, const TokenBatch& batch,
                                  const std::vector<KeyValueCache>* caches) const {
  // Caches that have something have the virtual tokens.
  const bool in_caches = caches != nullptr && caches->front().length > 0;
  WEFT_ASSIGN_OR_RETURN(
      BlockRows rows,
      RowsOfBlocks(context, batch,
                   {.tokens = virtual_tokens_, .context = spec_.context, .in_caches = in_caches}));
  if (tensor_ != nullptr && tensor_->sequence()) {
    WEFT_RETURN_IF_ERROR(tensor_->CheckRows(rows.batch.count));
  }
  return rows;
}

Result<Value> Decoder::Embed(Context& context, Tape& tape, const TokenBatch& batch,
                             const std::optional<TokenBatch::Extended>& extended) const {
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, 0));
  WEFT_ASSIGN_OR_RETURN(Value x,
                        embedding_.Forward(context, tape, batch.tokens,
                                           extended ? extended->token_positions : batch.positions));
  WEFT_ASSIGN_OR_RETURN(x,
                        embedding_grafts_.ForwardTokens(context, tape, std::move(x), batch.tokens));
  const bool puts = embedding_grafts_.virtual_tokens() != nullptr && extended->added_rows;
  const auto put = [&](float share) {
    return PutVirtualTokens(context, tape, x, *embedding_grafts_.virtual_tokens(),
                            virtual_positions_, share, *extended);
  };
  // Where ranks have parts of the rows, virtual tokens are rows of the sum, too. All ranks have
  // them: each has its share of the sum, and of their gradient.
  const bool shards_tokens = tensor_ != nullptr && tensor_->sequence();
  if (puts && shards_tokens) {
    WEFT_ASSIGN_OR_RETURN(x, put(1 / static_cast<float>(tensor_->degree())));
  }
  WEFT_ASSIGN_OR_RETURN(x, ReduceFromTensorParallelRegion(context, tape, tensor_, std::move(x)));
  if (embedding_in_) {
    WEFT_ASSIGN_OR_RETURN(x, embedding_in_->Forward(context, tape, x));
  }
  if (puts && !shards_tokens) {
    WEFT_ASSIGN_OR_RETURN(x, put(1.0f));
  }
  const TokenBatch& rows = puts ? extended->batch : batch;
  const int64_t first_row =
      rows.first_token + (tensor_ != nullptr ? tensor_->FirstRow(rows.count) : 0);
  WEFT_ASSIGN_OR_RETURN(x, embedding_grafts_.Forward(GraftPlace::kEmbedding, context, tape,
                                                     std::move(x), {.first_row = first_row}));
  WEFT_RETURN_IF_ERROR(LeaveUnit(context, tape, parameters_, 0, x.needs_gradient()));
  return x;
}

// By value: the stream is gone when this returns.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Result<Value> Decoder::ClassifierInput(Context& context, Tape& tape, Residual stream,
                                       const Tensor& token_rows) const {
  const bool shards_tokens = tensor_ != nullptr && tensor_->sequence();
  if (token_rows && !shards_tokens) {
    WEFT_ASSIGN_OR_RETURN(const Value sum, Sum(context, tape, stream));
    stream = {};
    WEFT_ASSIGN_OR_RETURN(stream.stream, GatherRows(context, tape, sum, token_rows));
  }
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, parameters_.units() - 1));
  Value hidden;
  if (final_norm_) {
    WEFT_ASSIGN_OR_RETURN(Norm::Output last, final_norm_->Forward(context, tape, stream));
    hidden = std::move(last.normalized);
  } else {
    WEFT_ASSIGN_OR_RETURN(hidden, Sum(context, tape, stream));
  }
  if (embedding_out_) {
    WEFT_ASSIGN_OR_RETURN(hidden, embedding_out_->Forward(context, tape, hidden));
  }
  if (output_scale_ != 1) {
    WEFT_ASSIGN_OR_RETURN(hidden, Scale(context, tape, std::move(hidden), output_scale_));
  }
  WEFT_ASSIGN_OR_RETURN(ShardsInput in,
                        CopyToTensorParallelRegion(context, tape, tensor_, std::move(hidden)));
  if (token_rows && shards_tokens) return GatherRows(context, tape, in.value, token_rows);
  return std::move(in.value);
}

Result<Value> Decoder::Hidden(Context& context, Tape& tape, const TokenBatch& batch,
                              std::vector<KeyValueCache>* caches) const {
  WEFT_ASSIGN_OR_RETURN(const BlockRows rows, RowsOf(context, batch, caches));
  WEFT_ASSIGN_OR_RETURN(Value x, Embed(context, tape, batch, rows.extended));
  WEFT_ASSIGN_OR_RETURN(Residual stream,
                        stages_.front().Forward(context, tape, std::move(x), rows.batch, caches));
  return ClassifierInput(context, tape, std::move(stream), rows.token_rows);
}

Result<HeadTargets> Decoder::TargetsOf(Context& context, const TokenBatch& batch) const {
  HeadTargets targets{batch.targets, batch.gradient_weights, batch.losses, Tensor()};
  if (const AddedLogits* added = added_logits()) {
    WEFT_ASSIGN_OR_RETURN(targets.source_hidden, added->source->HiddenStates(context, batch));
  }
  return targets;
}

Result<Value> Decoder::Stage(Context& context, Tape& tape, int64_t stage, Value x,
                             const TokenBatch& batch, kernels::StepValue<float> gradient_scale,
                             BatchLoss* total) const {
  SetAuxiliaryScale(tape, batch, gradient_scale);
  const auto index = static_cast<size_t>(stage);
  WEFT_ASSIGN_OR_RETURN(const BlockRows rows, RowsOf(context, batch, nullptr));
  if (part_.first && index == 0) {
    WEFT_ASSIGN_OR_RETURN(x, Embed(context, tape, batch, rows.extended));
  }
  WEFT_ASSIGN_OR_RETURN(Residual stream,
                        stages_[index].Forward(context, tape, std::move(x), rows.batch, nullptr));
  // One tensor goes to the next stage: the sum, not its two terms.
  if (!part_.last || index + 1 < stages_.size()) return Sum(context, tape, stream);
  WEFT_ASSIGN_OR_RETURN(const Value hidden,
                        ClassifierInput(context, tape, std::move(stream), rows.token_rows));
  WEFT_ASSIGN_OR_RETURN(const HeadTargets targets, TargetsOf(context, batch));
  WEFT_RETURN_IF_ERROR(head_->Loss(context, tape, hidden, targets, gradient_scale, total));
  WEFT_RETURN_IF_ERROR(LeaveUnit(context, tape, parameters_, parameters_.units() - 1, true));
  return Value();
}

Status Decoder::Loss(Context& context, Tape& tape, const TokenBatch& batch,
                     kernels::StepValue<float> gradient_scale, BatchLoss* total) const {
  SetAuxiliaryScale(tape, batch, gradient_scale);
  // First, while nothing of this network is in memory yet.
  WEFT_ASSIGN_OR_RETURN(const HeadTargets targets, TargetsOf(context, batch));
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, nullptr));
  WEFT_RETURN_IF_ERROR(head_->Loss(context, tape, hidden, targets, gradient_scale, total));
  return LeaveUnit(context, tape, parameters_, parameters_.units() - 1, true, true);
}

Result<Tensor> Decoder::Logits(Context& context, const TokenBatch& batch,
                               std::vector<KeyValueCache>* caches) const {
  if (tensor_ != nullptr || parameters_.values_sharded() || parameters_.of_stage() ||
      has_logits_part_) {
    return InvalidError("logits are for models that are not sharded");
  }
  Tape tape(nullptr);
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, caches));
  return head_->Logits(context, hidden.tensor);
}

Result<Tensor> Decoder::HiddenStates(Context& context, const TokenBatch& batch) const {
  Tape tape(nullptr);
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, nullptr));
  return std::move(hidden.tensor);
}

Status Decoder::AddLogits(Context& context, const Tensor& hidden, const Tensor& logits) const {
  const int64_t columns = classifier_->packed()->out_features();
  CountWork(context.profiler,
            2.0 * static_cast<double>(hidden.shape().Elements()) * static_cast<double>(columns));
  return kernels::LinearForward(context.stream, {.x = hidden,
                                                 .weight = classifier_->packed(),
                                                 .y = logits.Columns(0, columns),
                                                 .accumulate = true});
}

}  // namespace weft::engine
