#pragma once

#include <cstdint>

#include "common/rng.h"
#include "kernels/stream.h"

// Kernels of the tests: each uses some of ptx.h on a known problem.
namespace weft::kernels::cuda {

/// c [16, 8] f32 = a [16, 16] times b, in bf16 or f16 on the tensor cores, where b is [16, 8], or
/// its transpose [8, 16]. Rows of a from `rows` on count as zeros.
Status RunTensorCores(const Stream& stream, DType dtype, const void* a, const void* b,
                      bool transposed, int rows, float* c);

/// With A [64, columns] and B [32, columns] in bf16 or f16, where rows of A from `rows` on and
/// columns from `used` on, a multiple of 8, count as zeros: scores [64, 32] f32 = A B^T, and of its
/// rows before `rows` and columns before `used`, out [64, columns] = scores B, by SwizzledTiles of
/// 32, 64, 96, 128 or 256 columns.
Status RunTileProducts(const Stream& stream, DType dtype, int columns, const void* a, const void* b,
                       int rows, int used, float* scores, void* out);

/// c [16, 8] f32 = a times b [32, 8], in bf16 or f16 on the sparse tensor cores: a [16, 16] are the
/// two that are kept of each four in a row, places [32] u32 where they are, as
/// ptx::MultiplyAddSparse has them. It reads those of the lanes of `pair`, 0 or 1.
Status RunSparseTensorCores(const Stream& stream, DType dtype, const void* a, const void* b,
                            const uint32_t* places, int pair, float* c);

/// y [32] = 2^x.
Status RunExp2(const Stream& stream, const float* x, float* y);

/// y [64] = x, by asynchronous copies of 8 bytes; zeros from `count` on, an even number.
Status RunCopyOfEights(const Stream& stream, const float* x, int count, float* y);

/// Words 0 to 4 * blocks of the key's Philox stream.
Status RunPhilox(const Stream& stream, const PhiloxKey& key, int blocks, uint32_t* words);

/// y [64] = x [64] reversed by the first two of three warps, which meet at a barrier of their own.
Status RunNamedBarrier(const Stream& stream, const float* x, float* y);

}  // namespace weft::kernels::cuda
