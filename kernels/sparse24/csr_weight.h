#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/cuda/cusparse_library.h"
#include "kernels/cuda/device.h"
#include "kernels/sparse24/sparse24.h"

namespace weft::kernels::cuda {

/// Which elements of a matrix there are, in CSR, on the host.
struct CsrPattern {
  std::vector<int32_t> row_offsets;  ///< rows + 1
  std::vector<int32_t> columns;      ///< Of each element; they rise within a row.
  std::vector<uint32_t> places;      ///< Where each is in W, rows without gaps.
};

/// Patterns of the elements of W [out, in] that a mask of kernels/sparse24_mask keeps: those of W,
/// and those of Wᵀ. kExhausted for more than 2^31 - 1 elements.
struct CsrPatterns {
  CsrPattern weight, transpose;

  static Result<CsrPatterns> Of(const std::vector<uint16_t>& mask, int64_t out, int64_t in);
};

/// A sparse matrix in CSR on a device, for cuSPARSE.
class CsrMatrix {
 public:
  /// Takes the elements of a matrix of that many columns, without values. Waits for the device.
  Status SetPattern(const Stream& stream, const CsrPattern& pattern, int64_t columns,
                    DType compute);
  /// Takes the values of W, f32 or bf16, rounded to the compute type.
  Status Take(const Stream& stream, const TensorView& weight);
  /// to [lines, rows] (+)= from [lines, columns] Aᵀ; both of the compute type.
  Status Multiply(const Stream& stream, std::string_view op, const TensorView& from, bool add,
                  const TensorView& to) const;

  size_t bytes() const {
    return row_offsets_.bytes() + columns_.bytes() + places_.bytes() + values_.bytes();
  }

 private:
  int64_t rows_ = 0, column_count_ = 0, count_ = 0;
  DType compute_ = DType::kF32;
  DeviceMemory row_offsets_, columns_, places_, values_;
};

/// W in CSR, for y = x Wᵀ, and its transpose likewise, for dx = dy W: with the transpose of a
/// matrix cuSPARSE gives other bits each time.
class CsrWeight final : public SparseWeight {
 public:
  CsrWeight(int64_t out_features, int64_t in_features, DType compute)
      : SparseWeight(out_features, in_features, compute) {}

  Status SetMask(const Stream& stream, const TensorView& mask) override;
  Status SetMask(const Stream& stream, const TensorView& mask, MaskSides /*known*/) override {
    return SetMask(stream, mask);
  }
  MaskSides mask_sides() const override { return {}; }
  Status Pack(const Stream& stream, const TensorView& weight) override;
  int64_t Bytes() const override {
    return static_cast<int64_t>(weight_.bytes() + transpose_.bytes());
  }

  /// y = x Wᵀ + bias and dx = dy W, of arguments that were checked; kInvalid before Pack().
  Status Forward(const Stream& stream, std::string_view op, const TensorView& x,
                 const TensorView& bias, const TensorView& y) const;
  Status BackwardInput(const Stream& stream, std::string_view op, const TensorView& dy,
                       const TensorView& dx) const;

 private:
  Status CheckPacked() const;

  CsrMatrix weight_, transpose_;
  bool has_mask_ = false, packed_ = false;
};

}  // namespace weft::kernels::cuda
