#pragma once

#include <cstdint>
#include <functional>

#include "common/status.h"
#include "kernels/linear/matmul.h"

namespace weft::kernels::cpu {

/// Length of the sums of bf16 numbers that oneDNN is given: a multiple of this, always. On AMX,
/// oneDNN 2.6.3 of Debian 12 multiplies other lengths (63, 1087, 2111, ..) wrongly, without a word
/// or with SIGILL (oneDNN #1661), and a NaN in one row may reach others (#5717).
constexpr int64_t kSumMultiple = 32;

/// A sum in two parts: `whole` numbers that the library adds up as they are stored, and the `rest`,
/// fewer than kSumMultiple, which is padded with zeros to kSumMultiple unless it is 0.
struct SumParts {
  int64_t whole;
  int64_t rest;
};

/// The parts of a sum of `k` products of numbers of type `input`. Only sums of bf16 have a rest.
SumParts SplitSum(DType input, int64_t k);

/// Runs one product whose shape has a sum without a rest.
using LibraryProduct = std::function<Status(const MatmulShape& shape, const void* a, const void* b,
                                            const float* bias, void* c)>;

/// Computes the product `shape`, whose sum has a rest, by calls of `run` for sums that have none:
/// of the whole part, and of the rest from copies padded with zeros. A narrower result than f32 is
/// summed in f32 and rounded once. `b.rest` is that of a PackedMatrix, or null where b is not
/// packed. Rows of a that are longer than its sum are allowed. With a_transposed c is f32. Scratch
/// memory belongs to the calling thread and is bounded, apart from kSumMultiple rows of each
/// matrix.
Status RunPaddedSum(const MatmulShape& shape, const void* a, const MatmulRight& b,
                    const float* bias, void* c, const LibraryProduct& run);

}  // namespace weft::kernels::cpu
