#include "worker/engine/nn/embedding.h"

#include <memory>

#include "kernels/embedding/embedding.h"
#include "worker/engine/nn/dropout.h"

namespace weft::engine {
namespace {

kernels::EmbeddingPart PartOf(const Parameter& table) {
  if (table.shard.whole() || table.shard.axis == 1) return {};
  return {table.shard.ranges.front().begin, table.shard.extent};
}

}  // namespace

Result<Value> Embedding::Forward(Context& context, Tape& tape, const Tensor& tokens,
                                 const Tensor& positions) const {
  ProfileScope scope(context.profiler, "embedding forward");
  const TensorView table = parameters_->operand(token_table_);
  const bool positioned = position_table_ >= 0;
  const kernels::EmbeddingPart part = PartOf((*parameters_)[token_table_]);
  // One partial sum has the positions.
  const bool adds_positions = positioned && part.first_row == 0;
  WEFT_ASSIGN_OR_RETURN(Tensor out, Tensor::New(context, tape.component(), compute_,
                                                {tokens.shape()[0], table.shape[-1]}));
  WEFT_RETURN_IF_ERROR(kernels::EmbeddingForward(
      context.stream,
      {.tokens = tokens,
       .positions = adds_positions ? positions.view() : TensorView(),
       .token_table = table,
       .position_table = adds_positions ? parameters_->operand(position_table_) : TensorView(),
       .out = out,
       .part = part}));
  tape.UseParameter(token_table_);
  if (positioned) tape.UseParameter(position_table_);
  const bool trains = tape.Trains(token_table_) || (positioned && tape.Trains(position_table_));
  Value y = tape.NewValue(std::move(out), trains);
  if (!tape.Records(y)) return y;
  tape.Record("embedding backward",
              [this, positioned, part, y_node = y.node, token_ids = tokens, positions](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(TensorView dtokens, t.parameters().Add(ctx, token_table_));
                TensorView dpositions;
                if (positioned) {
                  WEFT_ASSIGN_OR_RETURN(dpositions, t.parameters().Add(ctx, position_table_));
                }
                WEFT_RETURN_IF_ERROR(kernels::EmbeddingBackward(
                    ctx.stream, {token_ids, positions, dy, dtokens, dpositions, part}));
                WEFT_RETURN_IF_ERROR(t.parameters().Done(token_table_));
                return positioned ? t.parameters().Done(position_table_) : OkStatus();
              });
  return y;
}

Grafts EmbeddingGrafts(ParameterSet* parameters, int64_t width, int64_t token_table,
                       const std::string& dropout_site, double dropout, const Grafter& grafter,
                       const ProductOptions& products) {
  Grafts grafts;
  if (dropout > 0) {
    grafts.Put(GraftPlace::kEmbedding, std::make_unique<Dropout>(dropout_site, dropout));
  }
  if (grafter) {
    grafter({.parameters = parameters,
             .products = &products,
             .width = width,
             .token_table = token_table},
            grafts);
  }
  return grafts;
}

}  // namespace weft::engine
