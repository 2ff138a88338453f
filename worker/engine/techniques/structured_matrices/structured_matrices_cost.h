#pragma once

#include <cstdint>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Sizes of a whole Monarch matrix W [out, in], with as many diagonal blocks in both of its
/// factors: y = x Wᵀ is
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

/// The sizes for a weight [out, in] whose sides fit: the square of the number of blocks divides its
/// smaller side, and the number its larger one.
MonarchSizes MonarchOf(const StructuredMatricesSpec& spec, const std::vector<int64_t>& shape);

/// Sizes of a pixelfly matrix W [out, in] = B + U V, whose B is block-sparse with the mask of a
/// flat block butterfly: it keeps block (i, j) of a square grid where i = j, and where i and j
/// differ in one bit below the stride (i xor j = 2^s < stride). Any other grid is stretched: it
/// keeps (i, j) where (i N / rows, j N / columns), rounded down, is kept in a grid of N x N. N is
/// the largest power of two that neither side is shorter than.
struct PixelflySizes {
  int64_t size = 0;  ///< Side of a block.
  int64_t rows = 0;  ///< Of the grid, as columns.
  int64_t columns = 0;
  int64_t stride = 0;  ///< A power of two; 0: the diagonal alone is over the budget.
  int64_t blocks = 0;  ///< Number of blocks of B.
  int64_t rank = 0;    ///< Rows of V; 0: there are no U and V.

  struct Place {
    int64_t row = 0;
    int64_t column = 0;
  };
  /// The places of the blocks in the grid: by rows, rising in each.
  std::vector<Place> Places() const;
};

/// The largest rank, a multiple of the side of a block, that the share of the low rank pays for,
/// and the largest stride that the rest of the budget pays for.
PixelflySizes PixelflyOf(const StructuredMatricesSpec& spec, const std::vector<int64_t>& shape);

/// Whether `model` has a structured matrix in the place of this weight of a block.
bool IsStructured(const ModelSpec& model, const ParameterInfo& weight);

/// The tensors in its place:
///   monarch: "<weight>.monarch_first" [blocks * blocks * rank, in], rows by (k, l, q), and
///     "<weight>.monarch_second" [blocks * out, blocks * rank], rows by (l, s), columns by (k, q);
///   pixelfly: "<weight>.pixelfly_blocks" [blocks * size, size], and where the rank is not 0
///     "<weight>.pixelfly_in" V [rank, in] and "<weight>.pixelfly_out" U [out, rank].
std::vector<ParameterInfo> StructuredTensors(const StructuredMatricesSpec& spec,
                                             const ParameterInfo& weight);

}  // namespace weft
