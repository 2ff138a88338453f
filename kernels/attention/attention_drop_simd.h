#pragma once

#include "kernels/attention/attention_simd.h"
#include "kernels/cpu/vec_philox.h"

/// What decides over the weights of a tile, whose rows are keys and whose columns are queries. Its
/// users begin a vector of columns, and then go over the rows two at a time from row 0 on.
namespace weft::kernels::cpu::WEFT_ISA {

/// All weights stay.
struct KeepsAll {
  WEFT_INLINE void BeginColumns(int64_t) {}
  WEFT_INLINE void NextTwoRows(int64_t) {}
  WEFT_INLINE VecF Even(VecF weight) const { return weight; }
  WEFT_INLINE VecF Odd(VecF weight) const { return weight; }
};

/// Dropout as attention_dropout.h says.
class DropsSome {
 public:
  /// Column 0 is the query of token `token`; row 0 is key `key`, a multiple of kKeysPerBlock.
  WEFT_INLINE DropsSome(const AttentionDraw& draw, int64_t head, int64_t token, int64_t key)
      : draw_(draw),
        token_(draw.first_token + static_cast<uint32_t>(token)),
        block_((draw.first_head + static_cast<uint32_t>(head)) << kKeyBlockBits |
               static_cast<uint32_t>(key / kKeysPerBlock)) {}

  WEFT_INLINE void BeginColumns(int64_t column) {
    for (int i = 0; i < kLanes; ++i) tokens_[i] = token_ + static_cast<uint32_t>(column + i);
  }
  WEFT_INLINE void NextTwoRows(int64_t row) {
    const int64_t within = row % kKeysPerBlock;
    if (within == 0) {
      const auto block = static_cast<uint32_t>(row / kKeysPerBlock);
      PhiloxBlocks(draw_.key, tokens_, VecU{} + (block_ + block), words_);
    }
    word_ = words_[within / 2];
  }
  WEFT_INLINE VecF Even(VecF weight) const { return Keep(word_ & 0xffffu, weight); }
  WEFT_INLINE VecF Odd(VecF weight) const { return Keep(word_ >> 16, weight); }

 private:
  WEFT_INLINE VecF Keep(VecU number, VecF weight) const {
    return reinterpret_cast<VecI>(number) < draw_.threshold ? VecF{} : weight;
  }

  const AttentionDraw& draw_;
  uint32_t token_, block_;
  VecU tokens_;
  VecU words_[4];
  VecU word_;
};

/// Calls fn with what decides over the tile's weights.
template <class Fn>
WEFT_INLINE void WithDropout(const AttentionWork& work, int64_t head, int64_t token, int64_t key,
                             Fn&& fn) {
  if (work.dropout.threshold > 0) {
    fn(DropsSome(work.dropout, head, token, key));
  } else {
    fn(KeepsAll());
  }
}

}  // namespace weft::kernels::cpu::WEFT_ISA
