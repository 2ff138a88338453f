#pragma once

#include <cstdint>
#include <memory>

#include "kernels/activation/product_activation.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Along which sides a mask keeps two of each four, as far as products are sparse because of that:
/// on a CUDA device, and not in f32.
struct MaskSides {
  bool rows = false;     ///< The forward pass.
  bool columns = false;  ///< The gradient of the input.
};

/// What the masks of a weight keep.
enum class MaskKind : uint8_t {
  kTwoOfFour,     ///< Of neighbours, along one side or both.
  kUnstructured,  ///< Any elements: on CUDA products are cuSPARSE's, of these alone in CSR.
};

/// The weight W of y = x Wᵀ + b under a mask, in the form that the sparse products read. With a
/// transposable 2:4 mask (kernels/sparse24_mask) they do half of the multiply-adds of dense ones.
/// Any other mask is multiplied right, too: on a CPU with the multiply-adds of the elements that it
/// keeps; on CUDA a product of a weight for kTwoOfFour is a dense one when the mask does not keep
/// two of each four along it, and always in f32. Owns its memory, reported by Bytes(). Not
/// thread-safe.
class SparseWeight {
 public:
  virtual ~SparseWeight() = default;

  /// The elements that count from the next Pack() on: [out / 4, in / 4] u16, as
  /// kernels/sparse24_mask has it. On CUDA it waits for the stream, so no graph can record it.
  virtual Status SetMask(const Stream& stream, const TensorView& mask) = 0;

  /// The same without a look at the mask, whose sides another weight of this compute type has found
  /// (mask_sides). It waits for nothing. One of kUnstructured on CUDA looks all the same.
  virtual Status SetMask(const Stream& stream, const TensorView& mask, MaskSides known) = 0;

  /// Those of the mask that was set last.
  virtual MaskSides mask_sides() const = 0;

  /// Takes the values of W [out, in], f32 or bf16, under the mask. On CUDA they are rounded to the
  /// compute type. kInvalid before the first SetMask().
  virtual Status Pack(const Stream& stream, const TensorView& weight) = 0;

  /// Bytes held.
  virtual int64_t Bytes() const = 0;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  DType compute() const { return compute_; }

 protected:
  SparseWeight(int64_t out_features, int64_t in_features, DType compute)
      : out_features_(out_features), in_features_(in_features), compute_(compute) {}

 private:
  int64_t out_features_;
  int64_t in_features_;
  DType compute_;
};

namespace cpu {
Result<std::unique_ptr<SparseWeight>> NewSparseWeight(Device device, int64_t out_features,
                                                      int64_t in_features, DType compute);
}
namespace cuda {
Result<std::unique_ptr<SparseWeight>> NewSparseWeight(Device device, int64_t out_features,
                                                      int64_t in_features, DType compute,
                                                      MaskKind kind);
}

/// `compute` is the type of x and y: one of kFloatTypes. Sums are in f32. kInvalid unless both
/// sizes are multiples of 4; kUnavailable for kUnstructured on CUDA without cuSPARSE.
inline Result<std::unique_ptr<SparseWeight>> NewSparseWeight(Device device, int64_t out_features,
                                                             int64_t in_features, DType compute,
                                                             MaskKind kind = MaskKind::kTwoOfFour) {
  return device.type == DeviceType::kCuda
             ? cuda::NewSparseWeight(device, out_features, in_features, compute, kind)
             : cpu::NewSparseWeight(device, out_features, in_features, compute);
}

/// y = x Wᵀ + bias, and active = activation(y).
struct SparseForwardArgs {
  TensorView x;  ///< [M, in] compute type
  const SparseWeight* weight = nullptr;
  TensorView bias = {};  ///< [out] f32, or none
  TensorView y;          ///< [M, out] compute type
  /// [M, out], of a gated activation [M, out / 2], compute type, contiguous as y then is, or none.
  /// The rows of gate and up in W are multiples of 4.
  TensorView active = {};
  ProductActivation activation = ProductActivation::kTanhGelu;
};

/// dx = dy W; of an x that is activation(before) the gradient goes on to that: dx = dy W *
/// activation'(before), of a gated activation [M, 2 in] as `before` has gate and up.
struct SparseBackwardInputArgs {
  TensorView dy;  ///< [M, out] compute type
  const SparseWeight* weight = nullptr;
  TensorView dx;           ///< [M, in] compute type
  TensorView before = {};  ///< as dx, compute type, contiguous as dx then is, or none
  TensorView active = {};  ///< [M, in] likewise, or none: with `before`, becomes activation(before)
  ProductActivation activation = ProductActivation::kTanhGelu;
};

/// dW += dyᵀ x, or = when `accumulate` is false, where dy is sparse along its rows, as
/// kernels/sparse24_mvue leaves it. What has more than two of four rows is multiplied right on a
/// CPU and in f32; on CUDA it makes its row of dW NaN.
struct SparseBackwardWeightArgs {
  TensorView x;        ///< [M, in]
  TensorView dy;       ///< [M, out] of the type of x; out is a multiple of 4
  TensorView dweight;  ///< [out, in] f32
  bool accumulate = true;
  /// Takes S(dy), as Mvue() of these arguments (without tensors) would make it, instead of dy: the
  /// same result, but S(dy) need not be stored. kUnavailable in f32 on CUDA.
  const MvueArgs* estimate = nullptr;
};

/// dW += dyᵀ x, or = when `accumulate` is false, at the elements that the mask of a weight keeps:
/// the sampled product of two dense matrices (SDDMM). The others stay as they are, or become 0. Of
/// `rows` rows of W.
struct SampledBackwardWeightArgs {
  TensorView x;   ///< [M, in] compute type
  TensorView dy;  ///< [M, rows] compute type; rows is a multiple of 4
  const SparseWeight* weight = nullptr;
  int64_t first_row = 0;  ///< The first of the rows; a multiple of 4.
  TensorView dweight;     ///< [rows, in] f32
  bool accumulate = true;
};

/// All: sizes must agree (kInvalid otherwise); inputs and outputs do not overlap; rows may be
/// strided. Deterministic, for any number of threads, and on CUDA for one model of device.
/// Activations and their derivatives are of products that are rounded to the compute type, with the
/// bits of a pass of their own. They are taken while the product is in the cache of a thread, and
/// on CUDA while its tile is on the way out: sparse tensor cores write tokens along rows. There
/// those of products that are not sparse, of rows that are not multiples of 16 bytes, and (forward)
/// of gates that are no multiple of 64 rows of W are passes of their own, and so are all of
/// products that cuSPARSE or cuSPARSELt computes. These add the bias rounded to the compute type.
WEFT_DEVICE_OP(SparseForward, SparseForwardArgs)
WEFT_DEVICE_OP(SparseBackwardInput, SparseBackwardInputArgs)
WEFT_DEVICE_OP(SparseBackwardWeight, SparseBackwardWeightArgs)
/// kUnavailable on CUDA.
WEFT_DEVICE_OP(SampledBackwardWeight, SampledBackwardWeightArgs)

}  // namespace weft::kernels
