#include "worker/engine/models/vit.h"

#include "common/model/encoder_names.h"
#include "common/model/model_sizes.h"
#include "kernels/patches/patches.h"
#include "worker/engine/autograd/add.h"
#include "worker/engine/nn/initialization.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/techniques/layer_sampling/elastic_network.h"

namespace weft::engine {
namespace {

NormOptions LayerNorm(const ModelSpec& spec, const ColumnMask* mask, const std::string& name) {
  return {.name = name, .width = spec.width, .epsilon = spec.norm_epsilon, .mask = mask};
}

TransformerBlockOptions Block(const ModelSpec& spec, const ColumnMask* mask, int64_t index) {
  const EncoderBlockNames names = VitBlockNamesOf(spec, index);
  // Of the sites of dropout, which are the same whatever the layers are called.
  const std::string name = "vit.encoder.layer." + std::to_string(index);
  const std::string attention = name + ".attention.";
  return {.norm_position = NormPosition::kPre,
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
                        .dropout_site = attention + "attention.dropout"},
          .mlp_norm = LayerNorm(spec, mask, names.mlp_norm),
          .mlp = {.activation = spec.activation == "squared_relu" ? MlpActivation::kSquaredRelu
                                                                  : MlpActivation::kErfGelu,
                  .up = {names.up},
                  .down = names.down,
                  .width = spec.width,
                  .inner = MlpWidth(spec)},
          .dropout = DropoutOf(spec),
          .attention_dropout = attention + "output.dropout",
          .mlp_dropout = name + ".output.dropout"};
}

}  // namespace

Vit::Vit(const ModelSpec& spec, const ModelOptions& options)
    : Model(spec, options),
      spec_(spec),
      precision_(*options.precision),
      class_token_(&parameters_,
                   parameters_.Register("vit.embeddings.cls_token", {1, spec.width},
                                        ParameterRole::kPositionEmbedding),
                   -1, precision_.activations),
      positions_(&parameters_,
                 parameters_.Register("vit.embeddings.position_embeddings",
                                      {ImagePatches(spec) + 1, spec.width},
                                      ParameterRole::kPositionEmbedding),
                 -1, precision_.activations),
      projection_(&parameters_,
                  {{{"vit.embeddings.patch_embeddings.projection", spec.width,
                     ParameterRole::kEmbeddingProjection}},
                   PatchPixels(spec),
                   true},
                  ProductOptions(precision_.products).Outside(outer_products())),
      embedding_grafts_(EmbeddingGrafts(&parameters_, spec.width, -1, "vit.embeddings.dropout",
                                        DropoutOf(spec), grafter(), precision_.products)),
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
      final_norm_(&parameters_, LayerNorm(spec, stream_mask(), "vit.layernorm")),
      classifier_(&parameters_,
                  parameters_.Register("classifier.weight", {spec.classes, spec.width},
                                       ParameterRole::kClassifier,
                                       {.padded_rows = PaddedVocabulary(spec.classes)}),
                  precision_.classifier),
      head_(&parameters_, &classifier_, spec.classes,
            parameters_.Register("classifier.bias", {spec.classes}, ParameterRole::kClassifier,
                                 {.bias = true, .padded_rows = PaddedVocabulary(spec.classes)}),
            true) {
  head_.Adapt(&parameters_, outer_products(), precision_.classifier);
  SetStarts(spec, parameters_);
  if (options.elastic == nullptr) return;
  const int64_t table = parameters_.Find("vit.embeddings.position_embeddings").value();
  for (const int64_t size : options.elastic->image_sizes) {
    if (size == spec.image_size) continue;
    resized_positions_.emplace_back(&parameters_, table, spec.image_size / spec.patch_size,
                                    size / spec.patch_size, precision_.activations);
  }
}

const ResizedPositions* Vit::ResizedFor(int64_t patches) const {
  for (const ResizedPositions& resized : resized_positions_) {
    if (resized.patches() == patches) return &resized;
  }
  return nullptr;
}

bool Vit::Reads(int64_t patches) const {
  return patches == ImagePatches(spec_) || ResizedFor(patches) != nullptr;
}

Status Vit::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(projection_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(embedding_grafts_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(blocks_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(classifier_.Pack(context, what));
  return head_.Pack(context, what);
}

Result<Value> Vit::Embed(Context& context, Tape& tape, const TokenBatch& batch) const {
  const int64_t patches = batch.length - 1;
  if (!batch.pixels || !Reads(patches) ||
      batch.pixels.shape()[-1] != patches * PatchPixels(spec_)) {
    return InvalidError("the batch does not hold images of " + std::to_string(spec_.image_size) +
                        " x " + std::to_string(spec_.image_size) + " pixels in " +
                        std::to_string(spec_.image_channels) + " colours");
  }
  WEFT_ASSIGN_OR_RETURN(Tensor unfolded,
                        Tensor::New(context, tape.component(), precision_.activations,
                                    {batch.sequences * patches, PatchPixels(spec_)}));
  WEFT_RETURN_IF_ERROR(kernels::UnfoldPatches(
      context.stream, {batch.pixels, spec_.image_channels, spec_.patch_size, unfolded}));
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, 0));
  WEFT_ASSIGN_OR_RETURN(Value projected,
                        projection_.Forward(context, tape, {std::move(unfolded), Value::kNoNode}));

  WEFT_ASSIGN_OR_RETURN(Tensor zeros, ZeroIndices(context, batch.sequences));
  WEFT_ASSIGN_OR_RETURN(Value class_tokens, class_token_.Forward(context, tape, zeros));
  WEFT_ASSIGN_OR_RETURN(Value tokens, MergeRows(context, tape, class_tokens, batch.first_rows,
                                                projected, batch.other_rows));
  const ResizedPositions* const resized = ResizedFor(patches);
  WEFT_ASSIGN_OR_RETURN(Value positions, resized != nullptr
                                             ? resized->Forward(context, tape, batch.positions)
                                             : positions_.Forward(context, tape, batch.positions));
  WEFT_ASSIGN_OR_RETURN(Value sum, Add(context, tape, tokens, positions));
  WEFT_ASSIGN_OR_RETURN(
      sum, embedding_grafts_.Forward(GraftPlace::kEmbedding, context, tape, std::move(sum),
                                     {.first_row = batch.first_token}));
  WEFT_RETURN_IF_ERROR(LeaveUnit(context, tape, parameters_, 0, sum.needs_gradient()));
  return sum;
}

Result<Value> Vit::Features(Context& context, Tape& tape, const TokenBatch& batch) const {
  WEFT_ASSIGN_OR_RETURN(Value x, Embed(context, tape, batch));
  // Recomputed blocks keep the batch, which need not be the images too.
  TokenBatch tokens = batch;
  tokens.pixels = {};
  WEFT_ASSIGN_OR_RETURN(Residual stream, blocks_.Forward(context, tape, std::move(x), tokens));
  // Only the class tokens go on. One gathering of the sum has one gradient; two would have two.
  WEFT_ASSIGN_OR_RETURN(x, Sum(context, tape, stream));
  stream = {};
  WEFT_ASSIGN_OR_RETURN(x, GatherRows(context, tape, x, batch.first_rows));
  WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, parameters_, parameters_.units() - 1));
  WEFT_ASSIGN_OR_RETURN(Norm::Output last, final_norm_.Forward(context, tape, {x, {}}));
  return std::move(last.normalized);
}

Status Vit::Loss(Context& context, Tape& tape, const TokenBatch& batch,
                 kernels::StepValue<float> gradient_scale, BatchLoss* total) const {
  if (!batch.labels) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(Value features, Features(context, tape, batch));
  WEFT_RETURN_IF_ERROR(
      head_.Loss(context, tape, features, {batch.labels, {}, {}}, gradient_scale, total));
  return LeaveUnit(context, tape, parameters_, parameters_.units() - 1, true, true);
}

Result<Tensor> Vit::Logits(Context& context, const TokenBatch& batch) const {
  if (parameters_.values_sharded()) {
    return InvalidError("logits are for models that are not sharded");
  }
  Tape tape(nullptr);
  WEFT_ASSIGN_OR_RETURN(Value features, Features(context, tape, batch));
  return head_.Logits(context, features.tensor);
}

}  // namespace weft::engine
