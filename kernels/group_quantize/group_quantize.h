#pragma once

#include "common/rng.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Elements that share a scale.
inline constexpr int64_t kQuantizeGroup = 128;

/// Groups of `count` elements; the last one may be short.
inline int64_t QuantizeGroups(int64_t count) {
  return (count + kQuantizeGroup - 1) / kQuantizeGroup;
}

/// Quantised values of 8, 4 or 2 bits for each group of kQuantizeGroup successive elements: with
/// the least and the largest of them and step = (largest - least) / (2^bits - 1),
///   code = floor((x - least) * (1 / step) + u)
/// where u, uniform in [0, 1), is word (first_element + i) of the Philox stream `key`. The mean of
/// least + code * step is x, whatever the bits (Chakrabarti and Moseley 2019, arXiv 1901.07988;
/// Chen et al. 2021, "ActNN", arXiv 2104.14129). A group with a number that is not finite, or whose
/// spread is not, has the values 0 and NaN as least and step, and comes back as NaN. Element j of a
/// group has `bits` bits of byte j % (16 * bits) of its values, from bit j / (16 * bits) * bits on;
/// where there is no such element they are 0. Values and scales are bit for bit the same on every
/// back end and instruction set.
struct GroupQuantizeArgs {
  TensorView x;       ///< f32, bf16 or f16, contiguous
  TensorView codes;   ///< u8 [groups, 16 * bits]
  TensorView scales;  ///< f32 [groups, 2]: least, step
  int64_t bits = 8;
  PhiloxKey key;
  const uint32_t* step = nullptr;  ///< Where key.step lies (kernels/step_value.h), or none.
  uint64_t first_element = 0;      ///< A multiple of 4.
  /// Describes a part of a larger tensor: `run` successive elements are successive ones there, too,
  /// and the next ones begin `run_stride` after them, in words of the stream as well. A multiple of
  /// kQuantizeGroup, and of 4; 0: all elements are successive.
  int64_t run = 0;
  int64_t run_stride = 0;

  /// Word of the first element of a group.
  uint64_t WordOf(int64_t group) const {
    const int64_t element = group * kQuantizeGroup;
    const int64_t from_first = run == 0 ? element : element / run * run_stride + element % run;
    return first_element + static_cast<uint64_t>(from_first);
  }
};

/// y = least + code * step in f32, rounded once where the processor has a fused multiply-add, and
/// then to y's type.
struct GroupDequantizeArgs {
  TensorView codes;   ///< As GroupQuantize leaves them.
  TensorView scales;  ///< As it does.
  int64_t bits = 8;
  TensorView y;  ///< f32, bf16 or f16, contiguous, as many elements as x had
};

WEFT_DEVICE_OP(GroupQuantize, GroupQuantizeArgs)
WEFT_DEVICE_OP(GroupDequantize, GroupDequantizeArgs)

}  // namespace weft::kernels
