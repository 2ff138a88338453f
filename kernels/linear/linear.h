#pragma once

#include <cstdint>
#include <memory>

#include "kernels/activation/activation.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// The weight of y = x Wᵀ + b in the layout the GEMM library likes best, made from the stored
/// matrix once per optimizer step and used by every micro-batch's forward and backward. Owns its
/// memory, reported by Bytes(); on CUDA that is a copy in the compute type, taken at the first
/// Pack(), or nothing where the stored matrix has that type. Not thread-safe.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;

  /// (Re)packs from the stored weight [out, in], f32 or bf16 (on CUDA also of type compute()),
  /// which products may read, too: it stays as it is until the next Pack() or the last product.
  virtual Status Pack(const Stream& stream, const TensorView& master) = 0;

  /// Whether products read the stored matrix, too, and not the packed copy alone.
  virtual bool reads_master() const { return true; }

  /// Bytes held by the packed copy.
  virtual int64_t Bytes() const = 0;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  DType compute() const { return compute_; }

 protected:
  PackedWeight(int64_t out_features, int64_t in_features, DType compute)
      : out_features_(out_features), in_features_(in_features), compute_(compute) {}

 private:
  int64_t out_features_;
  int64_t in_features_;
  DType compute_;
};

namespace cpu {
Result<std::unique_ptr<PackedWeight>> NewPackedWeight(Device device, int64_t out_features,
                                                      int64_t in_features, DType compute);
}
namespace cuda {
Result<std::unique_ptr<PackedWeight>> NewPackedWeight(Device device, int64_t out_features,
                                                      int64_t in_features, DType compute);
}

/// `compute` is the type of x, y and the packed copy: one of kFloatTypes. Products accumulate in
/// f32.
inline Result<std::unique_ptr<PackedWeight>> NewPackedWeight(Device device, int64_t out_features,
                                                             int64_t in_features, DType compute) {
  return device.type == DeviceType::kCuda
             ? cuda::NewPackedWeight(device, out_features, in_features, compute)
             : cpu::NewPackedWeight(device, out_features, in_features, compute);
}

/// y = x Wᵀ + bias, and active = GELU(y); or y += x Wᵀ.
struct LinearForwardArgs {
  TensorView x;  ///< [M, in] compute type
  const PackedWeight* weight = nullptr;
  TensorView bias = {};    ///< [out] f32, or none
  TensorView y;            ///< [M, out] compute type (or f32, without `active`)
  TensorView active = {};  ///< [M, out] compute type, contiguous as y then is, or none
  GeluForm gelu = GeluForm::kTanh;
  bool accumulate = false;  ///< y += instead of y =; not with a bias or `active`
};

/// dx = dy W; of an x that is GELU(before) the gradient goes on to that: dx = dy W * GELU'(before).
struct LinearBackwardInputArgs {
  TensorView dy;  ///< [M, out] compute type
  const PackedWeight* weight = nullptr;
  TensorView dx;            ///< [M, in] compute type
  bool accumulate = false;  ///< dx += instead of dx =; not with `before`
  TensorView before = {};   ///< [M, in] compute type, contiguous as dx then is, or none
  TensorView active = {};   ///< [M, in] likewise, or none: with `before`, becomes GELU(before)
  GeluForm gelu = GeluForm::kTanh;
};

/// dW += dyᵀ x and db += column sums of dy (both f32), or = when `accumulate` is false.
struct LinearBackwardWeightArgs {
  TensorView x;             ///< [M, in] compute type
  TensorView dy;            ///< [M, out] compute type
  TensorView dweight = {};  ///< [out, in] f32, or none
  TensorView dbias = {};    ///< [out] f32, or none
  bool accumulate = true;
};

/// All three: sizes must agree (kInvalid otherwise); inputs and outputs do not overlap; rows of x,
/// y, dx and dy may be strided. Deterministic for a fixed number of threads, on CUDA for a model of
/// device and a version of cuBLASLt. GELU and its derivative are taken while a product is written
/// where that is faster, and of values that are then not rounded in between. f32 operands are
/// multiplied as f32 everywhere, not as TF32; on CUDA a bias is rounded to the type of y before it
/// is added.
WEFT_DEVICE_OP(LinearForward, LinearForwardArgs)
WEFT_DEVICE_OP(LinearBackwardInput, LinearBackwardInputArgs)
WEFT_DEVICE_OP(LinearBackwardWeight, LinearBackwardWeightArgs)

}  // namespace weft::kernels
