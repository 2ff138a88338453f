#pragma once

#include <cstdint>

#include "common/model/memory_model.h"

namespace weft {

/// What products in a format keep beside their operands.
int64_t FormatStateBytes(const MemoryInputs& inputs);

/// Of the packed matrices' numbers, where products of blocks are in a format, those of dense
/// products: the classifier's, and those of dense blocks and of routers.
int64_t DensePacked(const MemoryInputs& inputs);

/// Copies of the weights for the forward pass.
int64_t PackedBytes(const MemoryInputs& inputs);

/// What the device has of offloaded weights beside packed copies: what operations read as it is,
/// and matrices that products read beside the packed copy, which those for AMX and on CUDA do not.
int64_t OperandBytes(const MemoryInputs& inputs);

/// What goes up of offloaded weights after an update: that, and packed copies that are made of what
/// stands on the host. Others are made on the device.
int64_t UploadedBytes(const MemoryInputs& inputs);

/// Of weights that come unit by unit: those that stay, two others that follow each other, and
/// packed copies, with which blocks that do not stay take turns.
int64_t StreamedPeakBytes(const MemoryInputs& inputs);

/// ResidentWeightBytes.
int64_t ResidentBytes(const MemoryInputs& inputs);

/// StreamedWeightBytes of a rank that has whole parameters.
StreamedBytes StreamedWholeBytes(const MemoryInputs& inputs);

/// FiledWeightBytes.
StreamedBytes FiledWholeBytes(const MemoryInputs& inputs);

}  // namespace weft
