#include "worker/engine/nn/virtual_rows.h"

#include <memory>
#include <utility>

#include "common/check.h"
#include "worker/engine/autograd/add.h"
#include "worker/engine/autograd/scale.h"
#include "worker/engine/nn/rows.h"

namespace weft::engine {

Result<BlockRows> RowsOfBlocks(Context& context, const TokenBatch& batch,
                               const VirtualRowsOptions& options) {
  BlockRows rows{batch, std::nullopt, Tensor()};
  const int64_t first_position = options.tokens.Total();
  if (first_position == 0) return rows;
  WEFT_CHECK(first_position + batch.length <= options.context,
             "virtual tokens and those of a row fit the positions");
  const bool in_blocks = options.tokens.in_blocks > 0;
  const int64_t added = options.in_caches ? 0 : first_position;
  WEFT_ASSIGN_OR_RETURN(rows.extended, batch.Extend(context, {.count = added,
                                                              .first_position = first_position,
                                                              .ordered = in_blocks}));
  if (!in_blocks) {
    rows.batch.attended = std::make_shared<const TokenBatch::Extended>(*rows.extended);
    return rows;
  }
  rows.batch = rows.extended->batch;
  if (added > 0) rows.token_rows = rows.extended->token_rows;
  return rows;
}

Result<Value> PutVirtualTokens(Context& context, Tape& tape, const Value& x,
                               const VirtualTokens& tokens,
                               const std::optional<Embedding>& positions, float share,
                               const TokenBatch::Extended& extended) {
  WEFT_ASSIGN_OR_RETURN(Value own, tokens.Forward(context, tape));
  if (positions) {
    // Those of the first run are 0, 1, ...
    const Tensor first = extended.batch.positions.Part(0, DType::kI32, {tokens.count()});
    WEFT_ASSIGN_OR_RETURN(const Value added, positions->Forward(context, tape, first));
    WEFT_ASSIGN_OR_RETURN(own, Add(context, tape, own, added));
  }
  if (share != 1) {
    WEFT_ASSIGN_OR_RETURN(own, Scale(context, tape, std::move(own), share));
  }
  WEFT_ASSIGN_OR_RETURN(own,
                        RepeatRows(context, tape, own, extended.runs, 0, x.tensor.shape()[-1]));
  return MergeRows(context, tape, x, extended.token_rows, own, extended.added_rows);
}

}  // namespace weft::engine
