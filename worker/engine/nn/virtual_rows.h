#pragma once

#include <cstdint>
#include <optional>

#include "common/model/technique_cost.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {

/// A batch with the rows that blocks have.
struct BlockRows {
  TokenBatch batch;
  std::optional<TokenBatch::Extended> extended;  ///< With virtual tokens.
  Tensor token_rows;  ///< Of tokens among rows of the blocks; none: all are.
};

/// What a network with virtual tokens makes of batches.
struct VirtualRowsOptions {
  VirtualTokenCounts tokens;
  int64_t context = 0;     ///< Positions that there are. Fails where they are too few.
  bool in_caches = false;  ///< Caches of keys and values have the virtual tokens already.
};
Result<BlockRows> RowsOfBlocks(Context& context, const TokenBatch& batch,
                               const VirtualRowsOptions& options);

/// x [tokens, width] and `tokens`, whose positions come before theirs, at the rows of `extended`.
/// Learned positions are added to them; all of that times `share`.
Result<Value> PutVirtualTokens(Context& context, Tape& tape, const Value& x,
                               const VirtualTokens& tokens,
                               const std::optional<Embedding>& positions, float share,
                               const TokenBatch::Extended& extended);

}  // namespace weft::engine
