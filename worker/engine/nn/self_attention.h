#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/attention_dropout.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/nn/rotary.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {

/// Keys and values of the tokens generated so far, for one layer and one sequence.
struct KeyValueCache {
  Tensor keys;    ///< [capacity, kv_heads * head_dim], compute type
  Tensor values;  ///< the same
  int64_t length = 0;
};

struct SelfAttentionOptions {
  /// Names of the projections to queries, keys and values: three, or one that holds them as three
  /// blocks of rows.
  std::vector<std::string> qkv;
  std::string output;  ///< Name of the projection after attention.
  int64_t width = 0;   ///< Of the residual stream.
  int64_t heads = 1;
  int64_t kv_heads = 1;  ///< heads / kv_heads successive heads share keys and values.
  int64_t head_dim = 0;
  bool causal = true;
  int64_t window = 0;  ///< Causal only: keys seen, a token's own and those before; 0: all.
  /// Rotates queries and keys by their positions; shared by the blocks of a model, which prepares
  /// it.
  std::shared_ptr<const RotaryTable> rotary = nullptr;
  bool qkv_bias = true;
  bool output_bias = true;
  double logit_scale = 1;  ///< On top of 1 / sqrt(head_dim).
  /// Context-parallel ranks, or none; each token attends to those of all of them.
  const ContextParallel* context = nullptr;
  double dropout = 0;  ///< Of the attention weights.
  std::string dropout_site = {};
};

/// Multi-head self-attention (Vaswani et al. 2017, arXiv 1706.03762), with grouped queries when
/// there are fewer heads of keys and values (Ainslie et al. 2023, arXiv 2305.13245). Queries, keys
/// and values are one product, whatever their names. Tensor-parallel ranks (products.tensor) have
/// equal numbers of query heads, and the key and value heads that belong to them.
class SelfAttention {
 public:
  SelfAttention(ParameterSet* parameters, const SelfAttentionOptions& options,
                const ProductOptions& products);

  Status Pack(Context& context, Repack what);

  /// [count, width] -> the same. `use` is the index of the layer among those that share this, from
  /// 0. With a `cache` (evaluation only) the tokens follow those in it, and are appended to it.
  /// `prefix`: keys and values before those of each run, in the added rows of batch.attended; or
  /// none.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x, const TokenBatch& batch,
                        int64_t use = 0, KeyValueCache* cache = nullptr,
                        const VirtualTokens* prefix = nullptr) const;
  /// Computes Forward and saves x alone: the backward pass recomputes queries, keys, values and the
  /// result of attention, but not the projection after it (selective recomputation, Korthikanti et
  /// al. 2022, arXiv 2205.05198, where attention is one operation that saves no scores).
  Result<Value> ForwardRecomputed(Context& context, Tape& tape, const Value& x,
                                  const TokenBatch& batch, int64_t use = 0,
                                  const VirtualTokens* prefix = nullptr) const;

 private:
  // Queries, keys and values of x, and of the prefix where there is one, rotated.
  Result<Value> Project(Context& context, Tape& tape, const Value& x, const TokenBatch& batch,
                        const VirtualTokens* prefix) const;
  // The rows of `qkv` and of the prefix, which has no queries.
  Result<Value> PutPrefix(Context& context, Tape& tape, const Value& qkv,
                          const TokenBatch::Extended& rows, const VirtualTokens& prefix) const;
  // Rotates the columns of queries and keys, in place.
  Status Rotate(Context& context, const Tensor& qkv, const Tensor& positions, bool inverse) const;
  // Heads of queries, and of keys and values, that are here and not left out: in groups of the same
  // size as all heads.
  struct HeadCounts {
    int64_t queries = 0;
    int64_t keys = 0;
  };
  HeadCounts HeadsOf(const Tensor& qkv) const;
  // The result of attention, and the saved tensor that restores it in the backward pass.
  struct Attended {
    Value value;
    SavedTensor saved;
  };
  Result<Attended> Attend(Context& context, Tape& tape, const Value& qkv, const TokenBatch& batch,
                          int64_t use) const;
  // The same of the tokens, where other rows attend, too.
  Result<Attended> AttendTokens(Context& context, Tape& tape, const Value& qkv,
                                const TokenBatch& batch, int64_t use) const;
  // The product after attention.
  Result<Value> Output(Context& context, Tape& tape, Value attended, SavedTensor saved) const;
  // Dropout of the weights, in training; drawn by position in the global batch and by head of the
  // model, so that micro-batches, ranks and recomputation draw the same.
  kernels::AttentionDropout DropoutOf(const Context& context, const Tape& tape,
                                      const TokenBatch& batch, int64_t use) const;
  // FLOPs of one product over the pairs of a query and a key that this rank computes.
  double Flops(const std::vector<int32_t>& starts, int64_t heads) const;

  const TensorParallel* tensor_;    ///< Tensor-parallel ranks, or none.
  const ContextParallel* context_;  ///< Context-parallel ranks, or none.
  Linear qkv_;
  Linear output_;
  int64_t heads_;  ///< That are here.
  int64_t kv_heads_;
  int64_t head_dim_;
  float logit_scale_;  ///< In all.
  bool causal_;
  int64_t window_;
  std::shared_ptr<const RotaryTable> rotary_;
  float dropout_;
  uint32_t dropout_site_;
};

}  // namespace weft::engine
