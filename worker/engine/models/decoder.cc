#include "worker/engine/models/decoder.h"

#include "common/model/model_sizes.h"
#include "worker/engine/autograd/scale.h"
#include "worker/engine/nn/initialization.h"

namespace weft::engine {
namespace {

int64_t RegisterVocabulary(ParameterSet& parameters, const std::string& name, const ModelSpec& spec,
                           int64_t width, ParameterRole role, const TensorParallel* ranks) {
  const Shard shard = ranks == nullptr ? Shard{} : ranks->Rows({spec.vocab_size});
  const int64_t rows = ranks == nullptr ? spec.vocab_size : shard.size();
  return parameters.Register(name, {rows, width}, role, PaddedVocabulary(rows), shard);
}

BlockStackOptions StackOptions(const ModelSpec& spec, const ModelOptions& options,
                               const DecoderOptions& family) {
  return {.layers = spec.layers,
          .distinct = DistinctBlocks(spec),
          .block = family.block,
          .memory_policy = options.block_memory_policy};
}

std::optional<Linear> Projection(bool wanted, ParameterSet* parameters, const std::string& name,
                                 int64_t in, int64_t out, DType compute) {
  if (!wanted) return std::nullopt;
  return Linear(parameters, {{{name, out}}, in, true}, compute);
}

}  // namespace

Decoder::Decoder(const ModelSpec& spec, const ModelOptions& options, const DecoderOptions& family)
    : LanguageModel(options),
      spec_(spec),
      precision_(*options.precision),
      tensor_(options.tensor),
      tokens_(RegisterVocabulary(parameters_, family.token_embedding, spec, EmbeddingWidth(spec),
                                 ParameterRole::kTokenEmbedding, tensor_)),
      positions_(family.position_embedding.empty()
                     ? -1
                     : parameters_.Register(family.position_embedding,
                                            {spec.context, EmbeddingWidth(spec)},
                                            ParameterRole::kPositionEmbedding)),
      embedding_(&parameters_, tokens_, positions_, precision_.activations),
      embedding_in_(Projection(FactorisedEmbedding(spec), &parameters_, "embedding_in",
                               EmbeddingWidth(spec), spec.width, precision_.products)),
      embedding_dropout_(family.embedding_dropout, spec.dropout),
      rotary_(family.rotary),
      blocks_(&parameters_, StackOptions(spec, options, family),
              {precision_.products, fp8(), tensor_}),
      final_norm_(NormPositionOf(spec) == "pre"
                      ? std::optional<Norm>(std::in_place, &parameters_, family.final_norm)
                      : std::nullopt),
      embedding_out_(Projection(FactorisedEmbedding(spec) && !spec.untied_classifier, &parameters_,
                                "embedding_out", spec.width, EmbeddingWidth(spec),
                                precision_.products)),
      classifier_(&parameters_,
                  spec.untied_classifier
                      ? RegisterVocabulary(parameters_, family.classifier, spec, spec.width,
                                           ParameterRole::kClassifier, tensor_)
                      : tokens_,
                  precision_.classifier),
      head_(&parameters_, &classifier_, spec.vocab_size, -1, false, tensor_),
      output_scale_(static_cast<float>(OutputScale(spec))) {
  SetStarts(spec, parameters_);
  if (!spec.untied_classifier) parameters_.UseInLastUnit(tokens_);
  if (tensor_ == nullptr) return;
  parameters_.SetTensorRank(tensor_->rank(), tensor_->sequence());
  if (positions_ >= 0) parameters_.SetSeesAllRows(positions_);
}

Status Decoder::Pack(Context& context, Repack what) {
  if (rotary_) WEFT_RETURN_IF_ERROR(rotary_->Prepare(context));
  if (embedding_in_) WEFT_RETURN_IF_ERROR(embedding_in_->Pack(context, what));
  WEFT_RETURN_IF_ERROR(blocks_.Pack(context, what));
  if (embedding_out_) WEFT_RETURN_IF_ERROR(embedding_out_->Pack(context, what));
  return classifier_.Pack(context, what);
}

Result<Value> Decoder::Hidden(Context& context, Tape& tape, const TokenBatch& batch,
                              std::vector<KeyValueCache>* caches) const {
  if (tensor_ != nullptr && tensor_->sequence()) {
    WEFT_RETURN_IF_ERROR(tensor_->CheckRows(batch.count));
  }
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, 0));
  WEFT_ASSIGN_OR_RETURN(Value x, embedding_.Forward(context, tape, batch.tokens, batch.positions));
  WEFT_ASSIGN_OR_RETURN(x, LeaveShards(context, tape, tensor_, std::move(x)));
  if (embedding_in_) {
    WEFT_ASSIGN_OR_RETURN(x, embedding_in_->Forward(context, tape, x));
  }
  WEFT_RETURN_IF_ERROR(LeaveUnit(context, tape, parameters_, 0, x.needs_gradient()));
  const int64_t first_row = tensor_ != nullptr ? tensor_->FirstRow(batch.count) : 0;
  WEFT_ASSIGN_OR_RETURN(
      x, embedding_dropout_.Forward(context, tape, std::move(x), batch.first_token + first_row));
  WEFT_ASSIGN_OR_RETURN(Residual stream,
                        blocks_.Forward(context, tape, std::move(x), batch, caches));
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
  WEFT_ASSIGN_OR_RETURN(ShardsInput in, EnterShards(context, tape, tensor_, std::move(hidden)));
  return std::move(in.value);
}

Status Decoder::Loss(Context& context, Tape& tape, const TokenBatch& batch,
                     kernels::StepValue<float> gradient_scale, BatchLoss* total) const {
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, nullptr));
  WEFT_RETURN_IF_ERROR(head_.Loss(context, tape, hidden, batch.targets, gradient_scale, total));
  return LeaveUnit(context, tape, parameters_, parameters_.units() - 1, true, true);
}

Result<Tensor> Decoder::Logits(Context& context, const TokenBatch& batch,
                               std::vector<KeyValueCache>* caches) const {
  if (tensor_ != nullptr || parameters_.values_sharded()) {
    return InvalidError("logits are for models that are not shared by ranks");
  }
  Tape tape(nullptr);
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, caches));
  return head_.Logits(context, hidden.tensor);
}

}  // namespace weft::engine
