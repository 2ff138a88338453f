#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/cuda/device.h"
#include "kernels/stream.h"

namespace weft::kernels::cuda {

/// A matrix that is 2:4 sparse along its rows, in bf16 or f16, as cuSPARSELt compresses it. The
/// library chooses how to multiply without measuring anything, once for sizes and strides, which is
/// kept with the stream: the choice is the same on all ranks with one model of device, and after a
/// restart.
class CusparseLtMatrix {
 public:
  /// Whether the library takes matrices of these sizes.
  static bool Takes(int64_t rows, int64_t columns) {
    return rows % kGrain == 0 && columns % kGrain == 0;
  }

  /// Gets memory for a matrix that it takes. kUnavailable without cuSPARSELt.
  Status Reserve(const Stream& stream, int64_t rows, int64_t columns, DType dtype);
  /// Bytes that Compress() works in.
  size_t buffer_bytes() const { return buffer_bytes_; }
  /// Takes [rows, columns] without gaps, of each four neighbours in a row two zeros at the least.
  /// `dense` and `buffer` are aligned to 16 bytes.
  Status Compress(const Stream& stream, const void* dense, void* buffer);
  /// to [lines, rows] = from [lines, columns] Aᵀ + bias, f32 or none, which is rounded. Lines that
  /// are no multiple of 16, or not aligned to 16 bytes, are copied to ones that are.
  Status Multiply(const Stream& stream, std::string_view op, const TensorView& from,
                  const TensorView& bias, const TensorView& to) const;

  size_t bytes() const { return compressed_.bytes(); }

 private:
  static constexpr int64_t kGrain = 16;

  int64_t rows_ = 0, columns_ = 0;
  DType dtype_ = DType::kBF16;
  DeviceMemory compressed_;
  size_t buffer_bytes_ = 0;
};

}  // namespace weft::kernels::cuda
