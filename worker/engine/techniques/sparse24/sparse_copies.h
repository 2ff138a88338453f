#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/sparse24/sparse24.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/techniques/sparse24/sparse24_layer.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// A weight under a mask in the form that sparse products read, and the account of its memory.
struct SparseCopy {
  std::unique_ptr<kernels::SparseWeight> weight;
  ExternalBytes held;
};

/// Unused copies, for weights of the same size. Where ranks gather parameters, those of one block
/// serve the next. Not thread-safe.
class SpareSparseCopies {
 public:
  /// Returns an unused or a new copy, with undefined mask and content.
  Result<SparseCopy> Take(Context& context, int64_t out, int64_t in, DType compute);

  void Give(SparseCopy copy) {
    if (copy.weight != nullptr) spare_.push_back(std::move(copy));
  }

  /// Frees them.
  void Clear() { spare_.clear(); }

 private:
  std::vector<SparseCopy> spare_;
};

/// What the sparse products of a layer read in place of its weight: that under its mask and, where
/// the gradient of the input has a mask of its own, under that one. Not thread-safe.
class SparseCopies : public DerivedCopies {
 public:
  /// `soft`: of weights that are thresholded as s_ste does. Both others outlive this.
  SparseCopies(const Sparse24Layer* layer, bool soft, SpareSparseCopies* spare)
      : layer_(layer), soft_(soft), spare_(spare) {}

  /// Says whether Make makes them from now on; what there is of unused ones is freed.
  void Use(bool used);
  bool used() const { return used_; }
  /// After Make.
  const kernels::SparseWeight* forward() const { return forward_.weight.get(); }
  const kernels::SparseWeight* backward() const {
    return (backward_.weight != nullptr ? backward_ : forward_).weight.get();
  }

  bool trained() const override { return true; }
  /// Leaves it to Make, which alone knows the values and the masks.
  Status Reserve(Context& /*context*/) override { return OkStatus(); }
  Status Make(Context& context) override;
  bool read_values() const override { return false; }
  void Drop() override;

 private:
  /// What the weights for a mask of the layer have found of it.
  struct InspectedMask {
    int64_t version = 0;  ///< Sparse24Layer::version; 0: none was inspected.
    kernels::MaskSides sides = {};
  };

  Status Pack(Context& context, const TensorView& mask, const TensorView& weight, SparseCopy& copy,
              InspectedMask& inspected);
  Status SetMask(const Stream& stream, const TensorView& mask, kernels::SparseWeight& weight,
                 InspectedMask& inspected) const;

  const Sparse24Layer* layer_;
  bool soft_;
  SpareSparseCopies* spare_;
  bool used_ = false;
  SparseCopy forward_, backward_;
  int64_t mask_version_ = 0;  ///< Of the masks that these copies have.
  InspectedMask forward_mask_, backward_mask_;
};

}  // namespace weft::engine
