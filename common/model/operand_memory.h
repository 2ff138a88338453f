#pragma once

#include <cstdint>

#include "common/model/memory_model.h"
#include "common/model/streamed_units.h"

namespace weft {

/// Bytes of what products in a format keep besides their operands.
int64_t FormatStateBytes(const MemoryInputs& inputs);

/// Numbers of the matrices of dense products that a CUDA device has copies of, where products of
/// blocks are in a format: the classifier's, those of dense blocks, of routers and of adapters, but
/// none that are stored as products read them.
int64_t DenseCopies(const MemoryInputs& inputs);

/// Bytes of the weights of MLPs in the form in which a technique multiplies by them, of those that
/// are there at a time.
int64_t TechniqueOperandBytes(const MemoryInputs& inputs);

/// Bytes by which that form takes more than packed copies of dense weights, or less: of the dense
/// steps or the others, which need more. Ranks that gather weights have them in that form for one
/// block at a time.
int64_t TechniqueOperandsBeyondDense(const MemoryInputs& inputs);

/// Bytes by which a technique that multiplies by the weights of MLPs in a form of its own keeps
/// more than dense products: of its state, too.
int64_t TechniqueProductBytes(const MemoryInputs& inputs);

/// Bytes of what the weights of one block become, where they are quantised, while the block
/// computes with them: numbers, and packed copies. Where products read these alone they are made
/// one after the other of the numbers of one matrix.
int64_t DequantizedBytes(const MemoryInputs& inputs);

/// Bytes of the matrices that products read in place of weights (MergedNumbers), besides packed
/// copies of them.
int64_t MergedBytes(const MemoryInputs& inputs);

/// Copies of the weights for the forward pass.
int64_t PackedBytes(const MemoryInputs& inputs);

/// Numbers of offloaded weights that stay on the device: MemoryInputs::kept, or what is frozen.
StreamedUnit KeptOnDevice(const MemoryInputs& inputs);

/// Bytes of offloaded weights on the device in addition to packed copies: the ones that operations
/// read as stored, and matrices that products read in addition to the packed copy, as those for AMX
/// and on CUDA do not.
int64_t OperandBytes(const MemoryInputs& inputs);

/// Bytes of offloaded weights that go up after an update: those, packed copies that the host makes,
/// and what techniques bring besides. Other copies are made on the device.
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
