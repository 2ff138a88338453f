#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/quantize_4bit/quantize_4bit.h"
#include "kernels/quantize_4bit/quantize_4bit_check.h"
#include "kernels/quantize_4bit/quantize_4bit_simd.h"

namespace weft::kernels {
namespace {

constexpr int64_t kScales = FourBitFormat::kScalesOfBlock;

/// Finds the nearest of some values.
class Nearest {
 public:
  /// Codes are indices of `values`, in any order.
  template <size_t kCount>
  explicit Nearest(const std::array<float, kCount>& values) {
    std::vector<std::pair<float, int>> sorted;
    for (size_t i = 0; i < kCount; ++i) {
      // -0 is 0 with another code.
      if (values[i] == 0 && std::signbit(values[i])) continue;
      sorted.emplace_back(values[i], static_cast<int>(i));
    }
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) {
      codes_.push_back(static_cast<uint8_t>(sorted[i].second));
      if (i > 0) borders_.push_back((sorted[i - 1].first + sorted[i].first) / 2);
    }
  }

  uint8_t Code(float value) const {
    const auto above = std::lower_bound(borders_.begin(), borders_.end(), value);
    return codes_[static_cast<size_t>(above - borders_.begin())];
  }

 private:
  std::vector<float> borders_;  ///< Between neighbours; such a number belongs to the lower one.
  std::vector<uint8_t> codes_;  ///< Ascending by value.
};

float LargestMagnitude(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) {
    if (!std::isfinite(value)) return NAN;
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

float InverseOf(float scale) {
  return scale > 0 ? 1 / scale : 0;
}

float At(const uint8_t* bytes, int64_t offset) {
  float value = 0;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

void Put(float value, uint8_t* bytes, int64_t offset) {
  std::memcpy(bytes + offset, &value, sizeof value);
}

/// Reads the scales of blocks.
class Scales {
 public:
  Scales(const FourBitFormat& format, const FourBitPart& part, const FourBitLayout& layout,
         const uint8_t* bytes)
      : part_(part), layout_(layout), bytes_(bytes), compressed_(format.double_quantization) {
    if (compressed_) mean_ = At(bytes, layout.mean);
  }

  float Of(int64_t block) const {
    if (!compressed_) return At(bytes_, layout_.scales + 4 * block);
    const float value = FourBitScales()[bytes_[layout_.scales + block]];
    const int64_t of_tensor = part_.BlockOf(block);
    return value * At(bytes_, layout_.scales_of_scales + 4 * (of_tensor / kScales)) + mean_;
  }

 private:
  const FourBitPart& part_;
  const FourBitLayout& layout_;
  const uint8_t* bytes_;
  bool compressed_;
  float mean_ = 0;
};

/// Writes scales as codes. They become what these stand for.
void QuantizeScales(const FourBitLayout& layout, std::vector<float>& scales, uint8_t* bytes) {
  static const Nearest nearest(FourBitScales());
  double sum = 0;
  for (const float scale : scales) sum += scale;
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  Put(mean, bytes, layout.mean);
  for (int64_t first = 0; first < layout.blocks; first += kScales) {
    const int64_t end = std::min(first + kScales, layout.blocks);
    float largest = 0;
    for (int64_t i = first; i < end; ++i) {
      largest = std::max(largest, std::fabs(scales[static_cast<size_t>(i)] - mean));
    }
    Put(largest, bytes, layout.scales_of_scales + 4 * (first / kScales));
    const float inverse = InverseOf(largest);
    for (int64_t i = first; i < end; ++i) {
      bytes[layout.scales + i] = nearest.Code((scales[static_cast<size_t>(i)] - mean) * inverse);
    }
  }
}

}  // namespace

Status Quantize4Bit(const FourBitFormat& format, std::span<const float> x,
                    std::span<int32_t> words) {
  if (!IsFourBitFormat(format)) {
    return InvalidError("Quantize4Bit: block_size is not a power of two from 32 on");
  }
  const auto count = static_cast<int64_t>(x.size());
  const FourBitLayout layout(format, count);
  if (std::ssize(words) != layout.words) {
    return InvalidError("Quantize4Bit: " + std::to_string(words.size()) + " words for " +
                        std::to_string(count) + " numbers, which need " +
                        std::to_string(layout.words));
  }
  std::fill(words.begin(), words.end(), 0);
  if (count == 0) return OkStatus();
  const Nearest nearest(FourBitValues(format.type));
  auto* const bytes = reinterpret_cast<uint8_t*>(words.data());
  std::vector<float> scales(static_cast<size_t>(layout.blocks));
  cpu::ParallelFor(layout.blocks, 16, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * format.block_size;
      const auto size = static_cast<size_t>(std::min(format.block_size, count - begin));
      const std::span<const float> own = x.subspan(static_cast<size_t>(begin), size);
      const float scale = scales[static_cast<size_t>(block)] = LargestMagnitude(own);
      const float inverse = InverseOf(scale);
      for (size_t i = 0; i < size; ++i) {
        const unsigned code = nearest.Code(own[i] * inverse);
        uint8_t& byte = bytes[(static_cast<size_t>(begin) + i) / 2];
        byte = static_cast<uint8_t>(byte | (i % 2 == 0 ? code << 4 : code));
      }
    }
  });
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i])) continue;
    return InvalidError("Quantize4Bit: not all numbers are finite, first in block " +
                        std::to_string(i) + " of " + std::to_string(format.block_size));
  }
  if (format.double_quantization) {
    QuantizeScales(layout, scales, bytes);
    return OkStatus();
  }
  std::memcpy(bytes + layout.scales, scales.data(), scales.size() * sizeof(float));
  return OkStatus();
}

Status Take4BitPart(const FourBitFormat& format, const FourBitPart& part, int64_t elements,
                    std::span<const int32_t> tensor, std::span<int32_t> words) {
  if (!IsFourBitFormat(format) || part.whole() || !IsFourBitPart(format, part, elements)) {
    return InvalidError("Take4BitPart: not a part of whole blocks of the tensor");
  }
  const FourBitLayout from(format, part.of * format.block_size);
  const FourBitLayout to(format, elements, part);
  if (std::ssize(tensor) != from.words || std::ssize(words) != to.words) {
    return InvalidError("Take4BitPart: " + std::to_string(words.size()) + " words out of " +
                        std::to_string(tensor.size()) + ", which are " + std::to_string(to.words) +
                        " out of " + std::to_string(from.words));
  }
  std::fill(words.begin(), words.end(), 0);
  const auto* const all = reinterpret_cast<const uint8_t*>(tensor.data());
  auto* const own = reinterpret_cast<uint8_t*>(words.data());
  const auto copy = [&](int64_t first, int64_t second, int64_t count) {
    std::memcpy(own + first, all + second, static_cast<size_t>(count));
  };
  const int64_t codes = format.block_size / 2;
  const int64_t scale = format.double_quantization ? 1 : 4;
  for (int64_t block = 0; block < to.blocks; block += part.run) {
    const int64_t run = std::min(part.run, to.blocks - block), begin = part.BlockOf(block);
    copy(block * codes, begin * codes, run * codes);
    copy(to.scales + block * scale, from.scales + begin * scale, run * scale);
  }
  if (!format.double_quantization) return OkStatus();
  copy(to.scales_of_scales, from.scales_of_scales, from.mean + 4 - from.scales_of_scales);
  return OkStatus();
}

Status cpu::Dequantize4Bit(const Stream& stream, const Dequantize4BitArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckDequantize4Bit(stream, args));
  const int64_t count = args.y.shape.Elements(), block_size = args.format.block_size;
  const FourBitLayout layout(args.format, count, args.part);
  if (count == 0) return OkStatus();
  const auto* const bytes = reinterpret_cast<const uint8_t*>(args.words.As<int32_t>());
  const Scales scales(args.format, args.part, layout, bytes);
  const float* const values = FourBitValues(args.format.type).data();
  WithFloatType(args.y.dtype, [&]<class T>() {
    const FourBitLoop<T>& loop = PickFourBitKernels().Of<T>();
    ParallelFor(layout.blocks, 64, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * block_size;
        loop.dequantize(bytes + begin / 2, values, scales.Of(block), args.y.As<T>() + begin,
                        std::min(block_size, count - begin));
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels
