#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

/// A sum of f64 numbers without rounding: neither the order nor the grouping of its terms changes a
/// bit. A fixed-point number as wide as the range of f64, in limbs of 32 bits (Kulisch 2008,
/// "Computer Arithmetic and Validity", the long accumulator). A value; not thread-safe.
class ExactSum {
 public:
  void Add(double term);
  void Add(const ExactSum& other);

  /// The sum, rounded once: to the nearest number or the one next to it, always the same for the
  /// same terms. Infinite or NaN as the sum of terms that are not finite is.
  double Value() const;

  /// Numbers of Parts().
  static constexpr size_t kParts = 69;

  /// What the sum is made of: parts of up to a million sums, added number by number in any order,
  /// are without rounding those of the sum of all.
  std::array<double, kParts> Parts() const;
  static ExactSum FromParts(std::span<const double, kParts> parts);

 private:
  // From 2^-1074 to 2^1024, and room for carries.
  static constexpr size_t kLimbs = kParts - 1;

  void Carry();

  std::array<int64_t, kLimbs> limbs_ = {};
  int64_t pending_ = 0;  ///< Terms since the last Carry.
  double special_ = 0;   ///< The sum of terms that are not finite.
};

}  // namespace weft
