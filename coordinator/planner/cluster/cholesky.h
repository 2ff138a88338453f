#pragma once

#include <vector>

namespace weft::planner {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

/// x of a x = b, for a symmetric, positive a [n, n]; only its lower triangle is read (Cholesky).
/// What is singular to rounding counts as barely positive.
Vector SolveSymmetric(Matrix a, Vector b);

}  // namespace weft::planner
