#pragma once

#include <cstdint>
#include <memory>

#include "kernels/linear/linear.h"

namespace weft::kernels::cpu {

/// A weight packed for one of the CPU's matrix engines, with the products that use it. Arguments
/// are checked by the caller: matrices of the compute type with as many rows, at least one.
class CpuWeight : public PackedWeight {
 public:
  /// y = x Wᵀ + bias; also `active`, where FusesGelu().
  virtual Status Forward(const LinearForwardArgs& args) const = 0;

  /// dx = dy W, or dx += dy W; through GELU where FusesGeluGradient().
  virtual Status BackwardInput(const LinearBackwardInputArgs& args) const = 0;

  /// Whether Forward() and BackwardInput() heed what their arguments say of GELU.
  virtual bool FusesGelu() const { return false; }
  virtual bool FusesGeluGradient() const { return false; }

 protected:
  using PackedWeight::PackedWeight;
};

/// Whether the AMX kernels serve these sizes on this CPU: bf16, and multiples of 32.
bool AmxServes(int64_t out_features, int64_t in_features, DType compute);

/// A weight for the AMX kernels; AmxServes() must hold. kExhausted when there is no memory.
Result<std::unique_ptr<CpuWeight>> NewAmxWeight(int64_t out_features, int64_t in_features);

/// dweight (+)= dyᵀ x and, unless it is none, dbias (+)= column sums of dy, by the AMX kernels;
/// AmxServes() must hold.
void AmxBackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                       const TensorView& dbias, bool accumulate);

/// Whether the kernels that split f32 for AMX serve these sizes on this CPU: f32 or f16, and
/// multiples of 32.
bool SplitServes(int64_t out_features, int64_t in_features, DType compute);

/// A weight for the kernels that split f32, which has no packed copy; SplitServes() must hold.
std::unique_ptr<CpuWeight> NewSplitWeight(int64_t out_features, int64_t in_features, DType compute);

/// dweight (+)= dyᵀ x by the kernels that split f32; SplitServes() must hold.
void SplitBackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                         bool accumulate);

/// Whether the kernels for f32 vectors serve products of any type on this CPU: where there is no
/// AVX-512.
bool F32Serves();

/// A weight for the kernels for f32 vectors, which has no packed copy.
std::unique_ptr<CpuWeight> NewF32Weight(int64_t out_features, int64_t in_features, DType compute);

/// dweight (+)= dyᵀ x and, unless it is none, dbias (+)= column sums of dy, by the kernels for f32
/// vectors.
void F32BackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                       const TensorView& dbias, bool accumulate);

}  // namespace weft::kernels::cpu
