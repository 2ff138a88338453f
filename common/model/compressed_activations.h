#pragma once

#include <cstdint>

#include "common/model/model_shape.h"
#include "common/model/remat_schedule.h"

namespace weft {

/// Bytes of `elements` elements quantised to `bits` each, in groups of 128 with two f32 numbers
/// (kernels/group_quantize).
inline int64_t CodeBytes(int64_t elements, int64_t bits) {
  return (elements + 127) / 128 * (16 * bits + 8);
}

/// The quantised activations of a plan's blocks (worker/engine/nn/block_stack.h).
struct CompressedBlocks {
  int64_t blocks = 0;      ///< Times that a block quantises all it saves,
  int64_t attentions = 0;  ///< all but the inside of attention,
  int64_t inputs = 0;      ///< or what it is recomputed from.
};
CompressedBlocks CompressedBlocksOf(const RematPlan& plan);

/// Tensors that are dequantised for the backward pass of a block, at most: inputs that it is
/// recomputed from, which stay meanwhile,
struct RestoredTensors {
  bool in_block = false;  ///< and those that it reads, one at a time, where it quantises,
  int64_t inputs = 0;     ///< which are this many inputs,
  int64_t alone = 0;      ///< or these, of a block that does not quantise.
};
RestoredTensors RestoredTensorsOf(const RematPlan& plan);

/// Bytes of the tensors, of `tokens` tokens and `element_bytes` an element, that the blocks of
/// `plan` quantise, and of their quantised form: read and written in a forward pass, and again
/// backward. With 0 bytes an element, of the quantised form alone.
int64_t CompressedBytes(const RematPlan& plan, const ModelShape& shape, int64_t tokens,
                        int64_t element_bytes, int64_t bits);

}  // namespace weft
