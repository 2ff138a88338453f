#include "common/exact_sum.h"

#include <bit>
#include <cmath>

namespace weft {
namespace {

constexpr int kLimbBits = 32;
constexpr uint64_t kLimbMask = (uint64_t{1} << kLimbBits) - 1;
constexpr int kLeastExponent = -1074;  // of the last bit of the first limb
// Each term adds less than 2^33 to a limb.
constexpr int64_t kMostPending = int64_t{1} << 29;

constexpr int kFractionBits = 52;
constexpr uint64_t kFractionMask = (uint64_t{1} << kFractionBits) - 1;

}  // namespace

void ExactSum::Add(double term) {
  if (!std::isfinite(term)) {
    special_ += term;
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(term);
  const uint64_t exponent = bits >> kFractionBits & 0x7ff;
  uint64_t mantissa = bits & kFractionMask;
  if (exponent > 0) mantissa |= uint64_t{1} << kFractionBits;
  const uint64_t position = exponent > 0 ? exponent - 1 : 0;
  const size_t limb = position / kLimbBits;
  const int shift = static_cast<int>(position % kLimbBits);
  const uint64_t low = (mantissa & kLimbMask) << shift;
  const uint64_t high = (mantissa >> kLimbBits) << shift;
  const int64_t sign = term < 0 ? -1 : 1;
  limbs_[limb] += sign * static_cast<int64_t>(low & kLimbMask);
  limbs_[limb + 1] += sign * static_cast<int64_t>((low >> kLimbBits) + (high & kLimbMask));
  limbs_[limb + 2] += sign * static_cast<int64_t>(high >> kLimbBits);
  if (++pending_ == kMostPending) Carry();
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum added = other;
  added.Carry();
  Carry();
  for (size_t i = 0; i < kLimbs; ++i) limbs_[i] += added.limbs_[i];
  special_ += added.special_;
  Carry();
}

// Afterwards all limbs but the last are in [0, 2^32): a sum has one form.
void ExactSum::Carry() {
  for (size_t i = 0; i + 1 < kLimbs; ++i) {
    const int64_t carry = limbs_[i] >> kLimbBits;
    limbs_[i] -= carry * (int64_t{1} << kLimbBits);
    limbs_[i + 1] += carry;
  }
  pending_ = 0;
}

double ExactSum::Value() const {
  if (special_ != 0) return special_;
  ExactSum sum = *this;
  sum.Carry();
  const bool negative = sum.limbs_.back() < 0;
  if (negative) {
    for (int64_t& limb : sum.limbs_) limb = -limb;
    sum.Carry();
  }
  // From the lowest up, all but the last addition round far below the last bit of the result.
  double value = 0;
  for (size_t i = 0; i < kLimbs; ++i) {
    value += std::ldexp(static_cast<double>(sum.limbs_[i]),
                        kLeastExponent + kLimbBits * static_cast<int>(i));
  }
  return negative ? -value : value;
}

std::array<double, ExactSum::kParts> ExactSum::Parts() const {
  ExactSum sum = *this;
  sum.Carry();
  std::array<double, kParts> parts;
  for (size_t i = 0; i < kLimbs; ++i) parts[i] = static_cast<double>(sum.limbs_[i]);
  parts[kLimbs] = special_;
  return parts;
}

ExactSum ExactSum::FromParts(std::span<const double, kParts> parts) {
  ExactSum sum;
  for (size_t i = 0; i < kLimbs; ++i) sum.limbs_[i] = static_cast<int64_t>(parts[i]);
  sum.special_ = parts[kLimbs];
  sum.Carry();
  return sum;
}

}  // namespace weft
