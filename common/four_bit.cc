#include "common/four_bit.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft {
namespace {

int64_t Words(int64_t bytes) {
  return (bytes + 3) / 4 * 4;
}

std::array<float, 256> MakeScales() {
  // For each of seven powers of ten twice as many numbers between a tenth of it and itself as for
  // the one below.
  std::vector<float> values = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int count = 1 << i;
    const double power = std::pow(10.0, i - 6);
    for (int k = 0; k < count; ++k) {
      const double middle = 0.1 + 0.9 * (k + 0.5) / count;
      values.push_back(static_cast<float>(power * middle));
      values.push_back(static_cast<float>(-power * middle));
    }
  }
  std::sort(values.begin(), values.end());
  std::array<float, 256> scales{};
  std::copy_n(values.begin(), scales.size(), scales.begin());
  return scales;
}

}  // namespace

const std::array<float, 16>& FourBitValues(FourBitFormat::Type type) {
  static constexpr std::array<float, 16> kNf4 = {
      -1.0f,          -0.696192801f, -0.525073051f, -0.394917488f, -0.284441382f, -0.184773430f,
      -0.0910500363f, 0.0f,          0.0795802996f, 0.160930201f,  0.246112302f,  0.337915242f,
      0.440709829f,   0.562617004f,  0.722956836f,  1.0f};
  static constexpr std::array<float, 16> kFp4 = {
      0.0f,  0.0625f / 12,  8.0f / 12,  1.0f,  4.0f / 12,  6.0f / 12,  2.0f / 12,  3.0f / 12,
      -0.0f, -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12};
  return type == FourBitFormat::Type::kNf4 ? kNf4 : kFp4;
}

const std::array<float, 256>& FourBitScales() {
  static const std::array<float, 256> scales = MakeScales();
  return scales;
}

FourBitLayout::FourBitLayout(const FourBitFormat& format, int64_t elements, const FourBitPart& part)
    : blocks((elements + format.block_size - 1) / format.block_size),
      scales(Words((elements + 1) / 2)) {
  if (!format.double_quantization) {
    words = scales / 4 + blocks;
    return;
  }
  constexpr int64_t kScales = FourBitFormat::kScalesOfBlock;
  scales_of_scales = scales + Words(blocks);
  const int64_t of_tensor = part.whole() ? blocks : part.of;
  mean = scales_of_scales + 4 * ((of_tensor + kScales - 1) / kScales);
  words = mean / 4 + 1;
}

}  // namespace weft
