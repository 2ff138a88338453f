#pragma once

#include <cstdint>
#include <vector>

namespace weft::engine {

/// The truncated singular value decomposition of a matrix A [rows, columns]: A is nearest to the
/// sum over i < rank of left[i] right[i]ᵀ, where the two have the square root of singular value i
/// each as their length. Falling singular values.
struct SingularVectors {
  std::vector<double> left;   ///< [rank, rows]
  std::vector<double> right;  ///< [rank, columns]
};

/// `matrix` [rows, columns]; rank at most the smaller side. From the eigenvectors of the smaller of
/// A Aᵀ and Aᵀ A: a singular value is exact to about 1e-8 of the largest.
SingularVectors NearestOfRank(const std::vector<double>& matrix, int64_t rows, int64_t columns,
                              int64_t rank);

}  // namespace weft::engine
