#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::engine {

/// How the positions along one side of a tensor are made of those of a tensor of another model: a
/// sparse matrix [new, old]. A plain value.
class AxisMap {
 public:
  struct Term {
    int64_t old = 0;  ///< Position in the other model.
    double factor = 0;
  };

  /// Each position from the same one.
  static AxisMap Identity(int64_t extent);

  /// Maps what a layer writes. A larger side repeats the smaller one in turns: position i is that
  /// of i modulo the smaller extent, so that equal heads stay whole. A smaller side has the means
  /// of what the larger one would repeat.
  static AxisMap Written(int64_t old_extent, int64_t new_extent);

  /// Maps what a layer reads from positions that Written has made: products keep their sums. A
  /// larger side divides each factor among the repetitions, a smaller one adds them up.
  static AxisMap Read(int64_t old_extent, int64_t new_extent);

  /// The same of a side that is not smaller, with one factor for all positions: sums keep their
  /// root mean square, where terms are independent and those that are repeated are equal (Yu et al.
  /// 2026, arXiv 2602.02472, equation 17). The factor of a side that is a multiple is that of Read.
  static AxisMap ReadEvenly(int64_t old_extent, int64_t new_extent);

  /// The points of a square grid, row by row, that is resized bilinearly: pixel i of a side lies at
  /// (i + 1/2) old_side / new_side - 1/2 of the old one, and beyond an edge is what is at the edge
  /// (PyTorch's interpolate with align_corners false and no antialiasing).
  static AxisMap Resized(int64_t old_side, int64_t new_side);

  /// Positions of the new tensor, and of the old one.
  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  int64_t old_size() const { return old_size_; }

  /// What position `i` is the sum of.
  std::span<const Term> operator[](int64_t i) const;

  /// Adds the positions of `below` after these, in both tensors.
  void Append(const AxisMap& below);

  /// The same map with nothing at positions outside of [first, last) of the new tensor.
  AxisMap Within(int64_t first, int64_t last) const;

  /// The same map with the squares of all factors.
  AxisMap Squared() const;

 private:
  void Add(std::span<const Term> terms);

  std::vector<Term> terms_;
  std::vector<size_t> ends_;  ///< In terms_, of each position.
  int64_t old_size_ = 0;
};

}  // namespace weft::engine
