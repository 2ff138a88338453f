#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/rng.h"

namespace weft::engine {

// Masks on the host: a byte for each weight, 1 where it is kept. All are functions of their
// arguments alone: ranks that have the same scores choose the same.

/// Score of what cannot be chosen.
inline constexpr float kNeverChosen = -std::numeric_limits<float>::infinity();

/// Keeps the `count` weights with the largest scores. These are no NaN, and enough of them are
/// larger than kNeverChosen. Of equal ones those whose random words of `ties` are smallest.
std::vector<uint8_t> KeepLargest(std::span<const float> scores, int64_t count,
                                 const PhiloxKey& ties);

/// Drops `count` of the kept weights, those of the smallest magnitude, and keeps `count` of all
/// others, the dropped ones among them, by the largest `growth`. Magnitudes that bf16 does not tell
/// apart are equal: those of weights that are one step of Adam from zero differ by what its sums
/// are rounded to, which is not the same on all meshes.
std::vector<uint8_t> Exchange(std::span<const uint8_t> mask, std::span<const float> magnitudes,
                              std::span<const float> growth, int64_t count,
                              const PhiloxKey& drop_ties, const PhiloxKey& growth_ties);

}  // namespace weft::engine
