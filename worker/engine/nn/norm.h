#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/tensor_parallel.h"

namespace weft::engine {

/// The residual stream of a transformer: `stream`, and `delta` that the last sub-layer computed and
/// that the next norm adds to it on the fly (or none).
struct Residual {
  Value stream;
  Value delta;
};

enum class NormKind : uint8_t {
  kLayer,  ///< Ba et al. 2016, arXiv 1607.06450: parameters `name`.weight and `name`.bias.
  kRms,    ///< Zhang and Sennrich 2019, arXiv 1910.07467: `name`.weight alone.
};

struct NormOptions {
  std::string name;
  int64_t width = 0;
  double epsilon = 1e-5;
  NormKind kind = NormKind::kLayer;
  /// The tensor-parallel ranks; those of a column of a 2-D grid hold some features each. Or none.
  const TensorParallel* ranks = nullptr;
  ParameterRole role = ParameterRole::kNorm;
  /// Weighs the columns in the statistics and multiplies the result (kernels/masked_norm), where it
  /// masks any; outlives the norm. Or none. Not with `ranks` of a 2-D grid.
  const ColumnMask* mask = nullptr;
};

/// A norm with the addition before it. Where ranks hold some columns each, they exchange two
/// numbers a row in each direction, for an RMS norm one.
class Norm {
 public:
  Norm(ParameterSet* parameters, const NormOptions& options);

  struct Output {
    Value stream;      ///< stream + delta
    Value normalized;  ///< its norm
  };
  Result<Output> Forward(Context& context, Tape& tape, const Residual& x) const;

 private:
  // Saved by the forward pass for the backward pass, by row.
  struct Statistics {
    Tensor mean;  ///< Of layer norms.
    Tensor scale;
  };
  Status Normalize(Context& context, const Residual& x, const Tensor& sum, const Statistics& rows,
                   const Tensor& y) const;
  Status Differentiate(Context& context, Tape& tape, const Tensor& dy, const Tensor& sum,
                       const Statistics& rows, const Tensor& dsum, const Tensor& dx) const;
  // The same with a mask.
  Status NormalizeMasked(Context& context, const Residual& x, const Tensor& sum,
                         const Statistics& rows, const Tensor& y) const;
  Status DifferentiateMasked(Context& context, Tape& tape, const Tensor& dy, const Tensor& sum,
                             const Statistics& rows, const Tensor& dsum, const Tensor& dx) const;
  // The same for the columns that this rank holds.
  Status NormalizePart(Context& context, const Residual& x, const Tensor& sum,
                       const Statistics& rows, const Tensor& y) const;
  Status DifferentiatePart(Context& context, Tape& tape, const Tensor& dy, const Tensor& sum,
                           const Statistics& rows, const Tensor& dsum, const Tensor& dx) const;
  bool layer() const { return bias_ >= 0; }
  bool masked() const { return mask_ != nullptr && mask_->masks(); }

  const ParameterSet* parameters_;
  Collective* column_group_;  ///< Ranks that have the other columns, or none.
  const ColumnMask* mask_;    ///< Or none.
  int64_t width_;             ///< Of all columns.
  int64_t weight_;
  int64_t bias_;  ///< -1: an RMS norm.
  float epsilon_;
};

}  // namespace weft::engine
