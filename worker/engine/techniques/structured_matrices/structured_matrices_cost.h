#pragma once

#include <cstdint>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Sizes of a Monarch matrix W [out, in], with as many diagonal blocks in both of its factors:
/// y = x Wᵀ is
///   m[n, k, l, q] = sum over p of first[k, l, q, p] x[n, k, p],
///   y[n, l, s] = sum over k, q of second[l, s, k, q] m[n, k, l, q].
/// So W is a grid of blocks [out / blocks, in / blocks], each of rank `rank`.
struct MonarchSizes {
  int64_t blocks = 1;
  int64_t in = 0;    ///< Columns of a block of W: numbers of p.
  int64_t out = 0;   ///< Its rows: numbers of s.
  int64_t rank = 0;  ///< Numbers of q.

  /// Columns of m.
  int64_t Middle() const { return blocks * blocks * rank; }
};

/// Those of a weight [out, in] whose sizes fit: the square of the number of blocks divides its
/// smaller side, and the number its larger one.
MonarchSizes MonarchOf(const StructuredMatricesSpec& spec, const std::vector<int64_t>& shape);

/// Whether `model` has a structured matrix in the place of this weight of a block.
bool IsStructured(const ModelSpec& model, const ParameterInfo& weight);

/// The tensors in its place:
///   monarch: "<weight>.monarch_first" [blocks * blocks * rank, in], rows by (k, l, q), and
///     "<weight>.monarch_second" [blocks * out, blocks * rank], rows by (l, s), columns by (k, q).
std::vector<ParameterInfo> StructuredTensors(const StructuredMatricesSpec& spec,
                                             const ParameterInfo& weight);

}  // namespace weft
