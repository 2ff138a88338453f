#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// Brings a matrix U S Vᵀ near U Vᵀ by Newton-Schulz iterations of degree 5 (Jordan et al. 2024,
/// "Muon: An optimizer for hidden layers in neural networks"), with S = (rows or columns)
/// orthonormal: X = M / (|M| + 1e-7), then X = (a I + b X Xᵀ + c (X Xᵀ)²) X with
/// (a, b, c) = (3.4445, -4.7750, 2.0315). Those take singular values above a hundredth of the
/// largest into about [0.68, 1.13] in 5 iterations, fast rather than to 1.
struct OrthogonalizeArgs {
  TensorView matrix;     ///< [rows, columns] f32, contiguous; overwritten.
  TensorView workspace;  ///< OrthogonalizeWorkspace(...) elements of u8, aligned to 64 bytes.
  int64_t iterations = 5;
  DType compute = DType::kF32;  ///< Of the operands of products: kF32 or kBF16; sums are f32.
};

/// Bytes of workspace that a matrix of this shape needs.
int64_t OrthogonalizeWorkspace(int64_t rows, int64_t columns, DType compute);

/// Deterministic for a fixed number of threads, on CUDA for a model of device and a version of
/// cuBLASLt. Where the CPU has no bf16 products they run in f32; on CUDA with bf16 all matrices
/// between products are bf16, on the CPU only operands.
WEFT_DEVICE_OP(Orthogonalize, OrthogonalizeArgs)

}  // namespace weft::kernels
