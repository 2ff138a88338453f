#pragma once

#include <cstdint>

#include "common/rng.h"
#include "kernels/stream.h"

// Kernels of the tests, each of which uses some of ptx.h on a known problem.
namespace weft::kernels::cuda {

/// c [16, 8] f32 = a [16, 16] times b, in bf16 or f16 on the tensor cores, where b is [16, 8], or
/// its transpose [8, 16]. Rows of a from `rows` on count as zeros.
Status RunTensorCores(const Stream& stream, DType dtype, const void* a, const void* b,
                      bool transposed, int rows, float* c);

/// Words 0 to 4 * blocks of the key's Philox stream.
Status RunPhilox(const Stream& stream, const PhiloxKey& key, int blocks, uint32_t* words);

/// y [64] = x [64] reversed by the first two of three warps, which meet at a barrier of their own.
Status RunNamedBarrier(const Stream& stream, const float* x, float* y);

}  // namespace weft::kernels::cuda
