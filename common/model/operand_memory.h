#pragma once

#include <cstdint>

#include "common/model/memory_model.h"

namespace weft {

/// Scales and magnitudes of FP8 products, which are four a block, with an input and a gradient
/// each. Their weights are quantised twice, by rows and by columns: the bytes of a bf16 copy.
int64_t Fp8State(const MemoryInputs& inputs);

/// With FP8 operands, the numbers of packed matrices that are not quantised: those of the
/// classifier, of bf16 blocks and of routers.
int64_t PackedBesideFp8(const MemoryInputs& inputs);

/// Copies of the weights for the forward pass.
int64_t PackedBytes(const MemoryInputs& inputs);

/// Bytes of offloaded weights on the device in addition to packed copies: the ones that operations
/// read as stored, and matrices that products read in addition to the packed copy, as those for AMX
/// and on CUDA do not.
int64_t OperandBytes(const MemoryInputs& inputs);

/// Bytes of offloaded weights that go up after an update: those, and packed copies that the host
/// makes. Others are made on the device.
int64_t UploadedBytes(const MemoryInputs& inputs);

/// Bytes of weights that are streamed unit by unit: the cached ones, two successive others, and
/// packed copies, which blocks that are not cached use in turn.
int64_t StreamedPeakBytes(const MemoryInputs& inputs);

/// ResidentWeightBytes.
int64_t ResidentBytes(const MemoryInputs& inputs);

/// StreamedWeightBytes for a rank that has whole parameters.
StreamedBytes StreamedWholeBytes(const MemoryInputs& inputs);

/// FiledWeightBytes.
StreamedBytes FiledWholeBytes(const MemoryInputs& inputs);

}  // namespace weft
