#pragma once

#include <cstdint>

#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/techniques/sub_networks/partition.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// A trained parameter of a block whose numbers are each of one unit, a head or a neuron: some
/// successive rows (once, or in each of three blocks of rows for queries, keys and values together)
/// or, of the weight that ends the sub-layer, some successive columns. Not thread-safe.
class DividedParameter {
 public:
  /// Whether parameter `index` is one, of a network without experts.
  static bool Divides(const ParameterSet& parameters, int64_t index);

  /// `units`: of its sub-layer. `parameters` outlives this.
  DividedParameter(const ParameterSet* parameters, int64_t index, int64_t units);

  int64_t index() const { return index_; }

  /// From now on these units are this rank's. Takes memory from `context` the first time.
  Status SetOwn(Context& context, const OwnUnits& units);

  /// Gives the numbers of units of others the values that they have in `values` (f32, of the
  /// parameter's shape). Overwrites the gradient, which nobody needs.
  Status Restore(const Context& context, const TensorView& values) const;

  /// Multiplies the gradient by `factor` where it is of units of this rank, and makes it zero
  /// elsewhere.
  Status KeepOwn(Context& context, float factor) const;

 private:
  /// Views it as a matrix with a row for each part of a unit; columns stay as they are.
  TensorView AsRows(const TensorView& view) const;

  const ParameterSet* parameters_;
  int64_t index_;
  int64_t units_;
  bool columns_;
  int64_t blocks_;                 ///< Of rows.
  Tensor others_;                  ///< [k] i32, rows of units of others; none of columns.
  Tensor own_mask_, others_mask_;  ///< [columns] f32, 1 or 0; none of rows.
};

}  // namespace weft::engine
