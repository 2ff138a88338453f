#include "kernels/group_quantize/group_quantize_simd.h"

#include "kernels/cpu/vec_philox.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

constexpr int kGroup = 128;

typedef uint8_t VecB __attribute__((vector_size(kLanes)));

constexpr float kLargestFloat = 0x1.fffffep127f;

// The least and the largest lane, zeros without their sign; a NaN where there is one.
WEFT_INLINE void Reduce(VecF low, VecF high, VecI nan, float& least, float& largest) {
  least = low[0];
  largest = high[0];
  int any = nan[0];
  for (int i = 1; i < kLanes; ++i) {
    least = low[i] < least ? low[i] : least;
    largest = high[i] > largest ? high[i] : largest;
    any |= nan[i];
  }
  least = any != 0 ? __builtin_nanf("") : least + 0.0f;
  largest += 0.0f;
}

template <class T>
void Quantize(const PhiloxKey& key, uint64_t block, int bits, const T* x, int64_t count,
              uint8_t* codes, float* scale) {
  const float first = LoadPart(x, 1)[0];
  VecF low = Set(first), high = low;
  VecI nan = low != low;
  for (int64_t i = 0; i < count; i += kLanes) {
    const VecF v = LoadUpTo(x + i, count - i, first);
    low = Min(v, low);
    high = Max(v, high);
    nan |= v != v;
  }
  float least, largest;
  Reduce(low, high, nan, least, largest);
  const int most = (1 << bits) - 1;
  const float spread = largest - least;
  float step = spread / static_cast<float>(most);
  // One NaN of the many that there are.
  if (!(spread <= kLargestFloat)) least = step = __builtin_nanf("");
  scale[0] = least;
  scale[1] = step;
  const VecF inverse = Set(step > 0 ? 1 / step : 0.0f), offset = Set(least);

  uint8_t code[kGroup] = {};
  VecU words[4];
  for (int64_t i = 0; i < count; i += 4 * kLanes, block += kLanes) {
    PhiloxWords(key, block, words);
    for (int part = 0; part < 4; ++part) {
      const int64_t at = i + part * kLanes, left = count - at;
      if (left <= 0) break;
      const VecF random = __builtin_convertvector(reinterpret_cast<VecI>(words[part] >> 8), VecF);
      const VecF place = (LoadUpTo(x + at, left, first) - offset) * inverse;
      // That product is exact, so the bits do not depend on whether the processor can fuse it.
      VecF v = Fma(random, Set(1.0f / 16777216.0f), place);
      // A NaN gives way to zero.
      v = Min(Max(v, Set(0)), Set(static_cast<float>(most)));
      const VecB q = __builtin_convertvector(__builtin_convertvector(v, VecI), VecB);
      __builtin_memcpy(code + at, &q, sizeof q);
    }
  }
  for (int64_t i = count; i < kGroup; ++i) code[i] = 0;
  const int bytes = 16 * bits;
  for (int j = 0; j < bytes; ++j) {
    unsigned packed = 0;
    for (int part = 0; part * bits < 8; ++part) {
      packed |= static_cast<unsigned>(code[part * bytes + j]) << (part * bits);
    }
    codes[j] = static_cast<uint8_t>(packed);
  }
}

template <class T>
void Dequantize(int bits, const uint8_t* codes, const float* scale, T* y, int64_t count) {
  uint8_t code[kGroup];
  const int bytes = 16 * bits;
  const auto mask = static_cast<uint8_t>((1 << bits) - 1);
  for (int part = 0; part * bits < 8; ++part) {
    for (int j = 0; j < bytes; ++j) {
      code[part * bytes + j] = static_cast<uint8_t>(codes[j] >> (part * bits)) & mask;
    }
  }
  const VecF least = Set(scale[0]), step = Set(scale[1]);
  for (int64_t i = 0; i < count; i += kLanes) {
    VecB q;
    __builtin_memcpy(&q, code + i, sizeof q);
    const VecF v = __builtin_convertvector(__builtin_convertvector(q, VecI), VecF);
    StoreUpTo(y + i, Fma(v, step, least), count - i);
  }
}

}  // namespace

const GroupQuantizeKernels kGroupQuantizeKernels = {
    .f32 = {Quantize<float>, Dequantize<float>},
    .bf16 = {Quantize<BFloat16>, Dequantize<BFloat16>},
    .f16 = {Quantize<Half>, Dequantize<Half>}};

}  // namespace weft::kernels::cpu::WEFT_ISA
