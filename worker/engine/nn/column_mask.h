#pragma once

#include <cstdint>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/graft.h"

namespace weft::engine {

/// Numbers that the columns of a value are multiplied by, the same for all rows: 1 for the first
/// ones and one share, from 0 to 1, for all others. Not thread-safe.
class ColumnMask {
 public:
  /// The share of those after the first `kept` of `columns` columns is 0.
  ColumnMask(int64_t kept, int64_t columns)
      : kept_(kept), columns_(columns), masks_(kept < columns) {}

  /// Whether any column is multiplied by another number than 1.
  bool masks() const { return masks_; }

  /// Renews the mask, for passes that begin later; with memory from `context` the first time.
  Status SetShare(Context& context, float share);

  /// [columns] f32, once SetShare has been called with something to multiply by.
  const Tensor& values() const { return values_; }

  /// y = x times the mask, and for gradients the same: neither is saved. x and y [rows, columns]
  /// may be one.
  Status Apply(Context& context, const TensorView& x, const TensorView& y) const;

 private:
  int64_t kept_;
  int64_t columns_;
  bool masks_;
  Tensor values_;
};

/// Multiplies a value by a mask, in place where nothing else reads it; without a mask that masks
/// the value itself.
class MaskColumns : public Graft {
 public:
  /// `mask` outlives this.
  explicit MaskColumns(const ColumnMask* mask) : mask_(mask) {}

  Result<Value> Forward(Context& context, Tape& tape, Value x, const GraftUse& use) const override;

 private:
  const ColumnMask* mask_;
};

}  // namespace weft::engine
