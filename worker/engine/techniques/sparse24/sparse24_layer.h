#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/train_spec.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// The mask of the weight of a layer.
class Sparse24Layer {
 public:
  explicit Sparse24Layer(const LinearLayer& layer) : layer_(layer) {}

  const LinearLayer& layer() const { return layer_; }
  /// Its mask in the layout of kernels/sparse24_mask; none where the weight stays dense.
  const TensorView& mask() const { return mask_.view(); }
  /// Its rows for the outputs [column, column + columns).
  TensorView mask_of(int64_t column, int64_t columns) const;
  /// The same for the gradient of the input, where HasBackwardMasks; else none.
  const TensorView& backward_mask() const { return backward_mask_.view(); }

  /// Says whether the weight is to be sparse, once it is known what is trained. kInvalid where its
  /// sizes do not allow it.
  Status Choose(const SparsitySpec& spec);
  /// Allocates the masks of a weight that is.
  Status Allocate(Context& context, const SparsitySpec& spec);

  /// Has the mask keep all, before one has been searched. Products stay dense.
  Status KeepAll(const Stream& stream);
  /// Searches for the mask of the weight as it is now: a sharded one has been brought in the type
  /// in which it is held, so that the mask is that of one rank. `tensor_ranks`: the tensor-parallel
  /// ranks, or null; all of them call it.
  Status FindMask(Context& context, const SparsitySpec& spec, Collective* tensor_ranks);
  /// What s_ste multiplies by: such that the first sparse weight is as near to the weight as it can
  /// be, of all tensor-parallel ranks together. 0: not known yet. Part of the state.
  float scale() const { return scale_; }
  /// The mask has been overwritten.
  void Changed() { ++version_; }
  /// Another number for each mask; 0: none has been searched.
  int64_t version() const { return version_; }
  /// Bits that FindMask changed, on this rank.
  Result<int64_t> CountFlips(Context& context) const;

  /// One of the stacked weights, and its rows of the mask.
  struct Part {
    int64_t parameter = 0;
    TensorView mask;           ///< [rows / 4, in / 4] u16
    TensorView backward_mask;  ///< Likewise, or none.
    float* scale = nullptr;    ///< That of the layer.
  };
  std::vector<Part> Parts();

 private:
  Status FindScale(Context& context, const TensorView& weight, Collective* tensor_ranks);
  Status FindBackwardMask(const Stream& stream, const TensorView& weight);

  LinearLayer layer_;
  bool chosen_ = false;
  Tensor mask_, backward_mask_;
  Tensor flips_;  ///< [out / 4] i32, of the last search.
  int64_t version_ = 0;
  float scale_ = 0;
};

}  // namespace weft::engine
