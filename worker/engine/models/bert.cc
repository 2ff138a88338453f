#include "worker/engine/models/bert.h"

#include "common/model/encoder_names.h"
#include "common/model/model_sizes.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/activation.h"
#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/initialization.h"
#include "worker/engine/nn/rows.h"

namespace weft::engine {
namespace {

constexpr const char* kEmbeddings = "bert.embeddings.";
constexpr const char* kTransform = "cls.predictions.transform.";

NormOptions LayerNorm(const ModelSpec& spec, const ColumnMask* mask, const std::string& name,
                      ParameterRole role = ParameterRole::kNorm) {
  return {
      .name = name, .width = spec.width, .epsilon = spec.norm_epsilon, .role = role, .mask = mask};
}

TransformerBlockOptions Block(const ModelSpec& spec, const ColumnMask* mask, int64_t index) {
  const EncoderBlockNames names = BertBlockNamesOf(index);
  const std::string name = "bert.encoder.layer." + std::to_string(index);
  const std::string attention = name + ".attention.";
  return {.norm_position = NormPosition::kPost,
          .branch_scaling = BranchScalingOf(spec),
          .attention_norm = LayerNorm(spec, mask, names.attention_norm),
          .attention = {.qkv = {names.query, names.key, names.value},
                        .output = names.attention_output,
                        .width = spec.width,
                        .heads = spec.heads,
                        .kv_heads = spec.heads,
                        .head_dim = HeadWidth(spec),
                        .causal = false,
                        .logit_scale = AttentionLogitScale(spec),
                        .dropout = AttentionDropoutOf(spec),
                        .dropout_site = attention + "self.dropout"},
          .mlp_norm = LayerNorm(spec, mask, names.mlp_norm),
          .mlp = {.activation = MlpActivation::kErfGelu,
                  .up = {names.up},
                  .down = names.down,
                  .width = spec.width,
                  .inner = MlpWidth(spec)},
          .dropout = DropoutOf(spec),
          .attention_dropout = attention + "output.dropout",
          .mlp_dropout = name + ".output.dropout"};
}

int64_t RegisterTable(ParameterSet& parameters, const ModelSpec& spec, const char* name,
                      int64_t rows, ParameterRole role, int64_t padded_rows = 0) {
  return parameters.Register(kEmbeddings + std::string(name) + "_embeddings.weight",
                             {rows, spec.width}, role, {.padded_rows = padded_rows});
}

// The matrix of the softmax: the token table, or one of its own.
int64_t RegisterClassifier(ParameterSet& parameters, const ModelSpec& spec, bool masked,
                           int64_t tokens) {
  if (masked && !spec.untied_classifier) return tokens;
  const int64_t rows = masked ? spec.vocab_size : spec.classes;
  return parameters.Register(masked ? "cls.predictions.decoder.weight" : "classifier.weight",
                             {rows, spec.width}, ParameterRole::kClassifier,
                             {.padded_rows = PaddedVocabulary(rows)});
}

ClassifierHead Head(ParameterSet& parameters, const ModelSpec& spec, bool masked,
                    const PackedParameter* matrix) {
  const int64_t columns = masked ? spec.vocab_size : spec.classes;
  const int64_t bias = parameters.Register(
      masked ? "cls.predictions.bias" : "classifier.bias", {columns}, ParameterRole::kClassifier,
      {.bias = true, .padded_rows = PaddedVocabulary(columns)});
  return {&parameters, matrix, columns, bias, !masked};
}

}  // namespace

Bert::Bert(const ModelSpec& spec, const ModelOptions& options)
    : Model(spec, options),
      spec_(spec),
      precision_(*options.precision),
      masked_(HeadOf(spec) == "masked_lm"),
      tokens_(RegisterTable(parameters_, spec, "word", spec.vocab_size,
                            ParameterRole::kTokenEmbedding, PaddedVocabulary(spec.vocab_size))),
      positions_(RegisterTable(parameters_, spec, "position", spec.context,
                               ParameterRole::kPositionEmbedding)),
      embedding_(&parameters_, tokens_, positions_, precision_.activations),
      virtual_tokens_(VirtualTokensOf(spec)),
      types_(&parameters_,
             RegisterTable(parameters_, spec, "token_type", TokenTypes(spec),
                           ParameterRole::kPositionEmbedding),
             -1, precision_.activations),
      embedding_norm_(&parameters_,
                      LayerNorm(spec, stream_mask(), kEmbeddings + std::string("LayerNorm"))),
      embedding_grafts_(EmbeddingGrafts(&parameters_, spec.width, tokens_,
                                        "bert.embeddings.dropout", DropoutOf(spec), grafter(),
                                        precision_.products)),
      blocks_(&parameters_,
              {.layers = spec.layers,
               .distinct = DistinctBlocks(spec),
               .layers_of_pass = layers_of_pass(),
               .block = [spec,
                         mask = stream_mask()](int64_t index) { return Block(spec, mask, index); },
               .remat = [options](int64_t layers) { return RematOf(options, layers).value(); },
               .activation_bits = options.activation_bits,
               .grafter = grafter(),
               .operations = options.block_operations},
              {precision_.products, block_products()}),
      dense_(&parameters_,
             {{{masked_ ? kTransform + std::string("dense") : "bert.pooler.dense", spec.width,
                ParameterRole::kHeadTransform}},
              spec.width,
              true},
             ProductOptions(precision_.products).Outside(outer_products())),
      transform_norm_(masked_ ? std::optional<Norm>(std::in_place, &parameters_,
                                                    LayerNorm(spec, stream_mask(),
                                                              kTransform + std::string("LayerNorm"),
                                                              ParameterRole::kHeadNorm))
                              : std::nullopt),
      pooled_dropout_("bert.pooler.dropout", DropoutOf(spec)),
      classifier_(&parameters_, RegisterClassifier(parameters_, spec, masked_, tokens_),
                  precision_.classifier),
      head_(Head(parameters_, spec, masked_, &classifier_)) {
  if (embedding_grafts_.virtual_tokens() != nullptr) {
    virtual_positions_.emplace(&parameters_, positions_, -1, precision_.activations);
  }
  head_.Adapt(&parameters_, outer_products(), precision_.classifier);
  SetStarts(spec, parameters_);
  if (!masked_ || spec.untied_classifier) return;
  parameters_.UseInLastUnit(tokens_);
  head_.SetTrainedRows(embedding_grafts_.trained_rows());
}

Status Bert::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(embedding_grafts_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(blocks_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(dense_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(classifier_.Pack(context, head_.has_trained_rows() ? Repack::kAll : what));
  return head_.Pack(context, what);
}

Result<Value> Bert::Embed(Context& context, Tape& tape, const TokenBatch& batch,
                          const BlockRows& rows) const {
  Tensor types = rows.batch.token_types;
  if (!types) {
    WEFT_ASSIGN_OR_RETURN(types, ZeroIndices(context, rows.batch.count));
  }
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, 0));
  const Tensor& positions = rows.extended ? rows.extended->token_positions : batch.positions;
  WEFT_ASSIGN_OR_RETURN(Value tokens, embedding_.Forward(context, tape, batch.tokens, positions));
  WEFT_ASSIGN_OR_RETURN(
      tokens, embedding_grafts_.ForwardTokens(context, tape, std::move(tokens), batch.tokens));
  if (rows.token_rows) {
    WEFT_ASSIGN_OR_RETURN(
        tokens, PutVirtualTokens(context, tape, tokens, *embedding_grafts_.virtual_tokens(),
                                 virtual_positions_, 1.0f, *rows.extended));
  }
  WEFT_ASSIGN_OR_RETURN(Value segments, types_.Forward(context, tape, types));
  WEFT_ASSIGN_OR_RETURN(
      Norm::Output x,
      embedding_norm_.Forward(context, tape, {std::move(tokens), std::move(segments)}));
  WEFT_ASSIGN_OR_RETURN(
      Value embedded,
      embedding_grafts_.Forward(GraftPlace::kEmbedding, context, tape, std::move(x.normalized),
                                {.first_row = rows.batch.first_token}));
  WEFT_RETURN_IF_ERROR(LeaveUnit(context, tape, parameters_, 0, embedded.needs_gradient()));
  return embedded;
}

Result<Value> Bert::Encode(Context& context, Tape& tape, const TokenBatch& batch,
                           const BlockRows& rows) const {
  WEFT_ASSIGN_OR_RETURN(Value x, Embed(context, tape, batch, rows));
  WEFT_ASSIGN_OR_RETURN(Residual stream, blocks_.Forward(context, tape, std::move(x), rows.batch));
  return Sum(context, tape, stream);
}

// Only the masked positions reach the vocabulary, which is most of the work.
Result<Value> Bert::Predict(Context& context, Tape& tape, Value hidden, const Tensor& rows) const {
  if (rows) {
    WEFT_ASSIGN_OR_RETURN(hidden, GatherRows(context, tape, hidden, rows));
  }
  WEFT_ASSIGN_OR_RETURN(Value x, dense_.Forward(context, tape, hidden));
  WEFT_ASSIGN_OR_RETURN(x, Gelu(context, tape, x, kernels::GeluForm::kErf));
  WEFT_ASSIGN_OR_RETURN(Norm::Output out, transform_norm_->Forward(context, tape, {x, {}}));
  return std::move(out.normalized);
}

Result<Value> Bert::Pool(Context& context, Tape& tape, const Value& hidden,
                         const TokenBatch& batch) const {
  WEFT_ASSIGN_OR_RETURN(Value x, GatherRows(context, tape, hidden, batch.first_rows));
  WEFT_ASSIGN_OR_RETURN(x, dense_.Forward(context, tape, x));
  WEFT_ASSIGN_OR_RETURN(x, Tanh(context, tape, x));
  // No norm follows that would hide them from the classifier.
  if (const ColumnMask* const mask = stream_mask(); mask != nullptr) {
    WEFT_ASSIGN_OR_RETURN(x, MaskColumns(mask).Forward(context, tape, std::move(x), {}));
  }
  return pooled_dropout_.Forward(context, tape, std::move(x), {.first_row = batch.first_sequence});
}

Result<Value> Bert::Features(Context& context, Tape& tape, const TokenBatch& batch) const {
  WEFT_ASSIGN_OR_RETURN(
      const BlockRows rows,
      RowsOfBlocks(context, batch, {.tokens = virtual_tokens_, .context = spec_.context}));
  WEFT_ASSIGN_OR_RETURN(Value hidden, Encode(context, tape, batch, rows));
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, parameters_.units() - 1));
  if (masked_) {
    const Tensor& targets = rows.batch.target_rows;
    return Predict(context, tape, std::move(hidden), targets ? targets : rows.token_rows);
  }
  return Pool(context, tape, hidden, rows.batch);
}

Status Bert::Loss(Context& context, Tape& tape, const TokenBatch& batch,
                  kernels::StepValue<float> gradient_scale, BatchLoss* total) const {
  const Tensor& targets = masked_ ? batch.row_targets : batch.labels;
  if (!targets) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(Value features, Features(context, tape, batch));
  WEFT_RETURN_IF_ERROR(
      head_.Loss(context, tape, features, {targets, {}, {}}, gradient_scale, total));
  return LeaveUnit(context, tape, parameters_, parameters_.units() - 1, true, true);
}

Result<Tensor> Bert::Logits(Context& context, const TokenBatch& batch) const {
  if (parameters_.values_sharded()) {
    return InvalidError("logits are for models that are not sharded");
  }
  Tape tape(nullptr);
  WEFT_ASSIGN_OR_RETURN(Value features, Features(context, tape, batch));
  return head_.Logits(context, features.tensor);
}

}  // namespace weft::engine
