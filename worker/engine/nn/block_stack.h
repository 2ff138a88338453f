#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/engine/nn/transformer_block.h"

namespace weft::engine {

struct BlockStackOptions {
  int64_t first = 0;  ///< Layer of the model that is the first here, where others are elsewhere.
  int64_t layers = 1;
  /// Blocks with parameters of their own; each serves layers / distinct successive layers, and its
  /// gradients are the sums over them (Lan et al. 2020, arXiv 1909.11942).
  int64_t distinct = 1;
  /// Of distinct block `index`.
  std::function<TransformerBlockOptions(int64_t index)> block;
  /// By layer: "keep" what the backward pass needs, or "recompute" it; layers past its end keep.
  std::vector<std::string> memory_policy;
};

/// The blocks of a transformer, one after the other.
class BlockStack {
 public:
  BlockStack(ParameterSet* parameters, const BlockStackOptions& options,
             const ProductOptions& products);

  Status Pack(Context& context, Repack what);

  /// `caches`, one a layer, in generation only.
  Result<Residual> Forward(Context& context, Tape& tape, Value x, const TokenBatch& batch,
                           std::vector<KeyValueCache>* caches = nullptr) const;

 private:
  Result<Residual> Recomputed(Context& context, Tape& tape, const TransformerBlock& block,
                              const Residual& x, const TokenBatch& batch, int64_t use) const;

  const ParameterSet* parameters_;
  int64_t first_unit_;  ///< That of the first block; each has one.
  int64_t first_;
  int64_t layers_;
  std::vector<std::string> memory_policy_;
  std::vector<TransformerBlock> blocks_;
};

}  // namespace weft::engine
