#pragma once

#include <cstdint>
#include <memory>

#include "common/spec/peft_spec.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// A matrix [out, in] that is computed from a weight W and the tensors of its adapter.
class MergedWeight {
 public:
  virtual ~MergedWeight() = default;

  /// Makes `merged`, which is W, the matrix: f32, contiguous. It stays W, bit for bit, where the
  /// adapter is as it started.
  virtual Status Merge(Context& context, const TensorView& merged) const = 0;

  /// The gradients of the tensors that `to.dtensors` has a place for, from that of the matrix,
  /// which is f32 and contiguous. `weight` is W, as it is stored.
  virtual Status Gradients(Context& context, const TensorView& weight, const Tensor& gradient,
                           const WeightGradientTarget& to) const = 0;
};

/// That of spec.method for `weight`, a weight of `layer` with an adapter:
///   loha  W + scale (W1a W1b) * (W2a W2b), element by element (FedPara, arXiv 2108.06098)
///   lokr  W + scale kron(W1, W2), each a matrix or a product of two (LyCORIS, arXiv 2309.14859)
///   vera  W + diag(b) B diag(d) A, where all share A and B (arXiv 2310.11454)
///   oft   W Rᵀ, where R is block-diagonal, of CayleyForward (arXiv 2306.07280)
std::unique_ptr<MergedWeight> NewMergedWeight(const LinearLayer& layer, const PeftSpec& spec,
                                              const OutputWeight& weight);

}  // namespace weft::engine
