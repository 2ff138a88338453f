#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {

/// Keys and values of the tokens generated so far, for one layer and one sequence.
struct KeyValueCache {
  Tensor keys;    ///< [capacity, width], compute type
  Tensor values;  ///< [capacity, width]
  int64_t length = 0;
};

/// Causal multi-head self-attention (Vaswani et al. 2017, arXiv 1706.03762) with one projection to
/// queries, keys and values, named `name`.c_attn, and one after it, `name`.c_proj.
class SelfAttention {
 public:
  SelfAttention(ParameterSet* parameters, const std::string& name, int64_t width, int64_t heads,
                double deviation, double output_deviation, DType compute);

  Status Pack(Context& context);

  /// [count, width] -> the same. With a `cache` (evaluation only) the tokens follow those in it,
  /// and are appended to it.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x, const TokenBatch& batch,
                        KeyValueCache* cache = nullptr) const;

 private:
  Result<Value> Attend(Context& context, Tape& tape, const Value& qkv,
                       const TokenBatch& batch) const;

  Linear qkv_;
  Linear output_;
  int64_t width_;
  int64_t heads_;
};

}  // namespace weft::engine
