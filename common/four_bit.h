#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace weft {

/// How numbers are kept in 4 bits, by blocks of successive ones: y = values[code] * scale, where
/// the scale of a block is its largest magnitude (QLoRA, Dettmers et al. 2023, arXiv 2305.14314).
/// With double quantisation a scale is itself FourBitScales()[code] * scale + mean, where the mean
/// is that of all scales, and kScalesOfBlock successive codes share a scale.
struct FourBitFormat {
  enum class Type : uint8_t {
    kNf4,  ///< Quantiles of a normal distribution.
    kFp4,  ///< One sign, two bits of exponent, one of fraction, as bitsandbytes has them.
  };
  static constexpr int64_t kScalesOfBlock = 256;

  Type type = Type::kNf4;
  int64_t block_size = 64;  ///< A power of two from 32 on; the last block may be short.
  bool double_quantization = true;

  bool operator==(const FourBitFormat&) const = default;
};

/// What each code stands for, relative to the scale.
const std::array<float, 16>& FourBitValues(FourBitFormat::Type type);

/// The same of the 8-bit codes of scales, ascending: bitsandbytes' signed dynamic map (Dettmers
/// 2016, arXiv 1511.04561).
const std::array<float, 256>& FourBitScales();

/// Which blocks of a quantised tensor are here, one after the other, where several ranks have some
/// each: runs of successive ones, one run as far from the next as another. The default is all.
struct FourBitPart {
  int64_t of = 0;      ///< Blocks of the tensor; 0: all of them are here.
  int64_t first = 0;   ///< The first one that is here.
  int64_t run = 0;     ///< Blocks of a run,
  int64_t stride = 0;  ///< and from where one begins to where the next one does.

  bool whole() const { return of == 0; }
  /// Which block of the tensor block `block` of the part is.
  int64_t BlockOf(int64_t block) const {
    return whole() ? block : first + block / run * stride + block % run;
  }

  bool operator==(const FourBitPart&) const = default;
};

/// Where the codes of a tensor, or of a part of one, and their scales lie in successive i32 words:
/// byte offsets. A part of whole blocks has the scales of the tensor, so its numbers are those that
/// are there.
struct FourBitLayout {
  /// `elements`: of the part.
  FourBitLayout(const FourBitFormat& format, int64_t elements, const FourBitPart& part = {});

  int64_t blocks = 0;  ///< Of the part.
  int64_t scales = 0;  ///< f32 [blocks] or, with double quantisation, u8 codes; two codes of
                       ///< elements a byte, from byte 0 on, the first in the upper half.
  int64_t scales_of_scales = 0;  ///< f32, one for each kScalesOfBlock blocks of the tensor: double
                                 ///< quantisation.
  int64_t mean = 0;              ///< f32: double quantisation.
  int64_t words = 0;
};

}  // namespace weft
