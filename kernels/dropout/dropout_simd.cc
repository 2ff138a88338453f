#include "kernels/dropout/dropout_simd.h"

#include "kernels/cpu/vec_philox.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

WEFT_INLINE VecF Drop(const DropoutDraw& draw, VecU word, VecF x) {
  auto uniform = reinterpret_cast<VecI>(word >> 8);
  return uniform < draw.threshold ? VecF{} : x * draw.scale;
}

template <class T>
void Dropout(const DropoutDraw& draw, uint64_t block, const T* x, T* y, int64_t count) {
  VecU words[4];
  for (int64_t i = 0; i < count; i += 4 * kLanes, block += kLanes) {
    PhiloxWords(draw.key, block, words);
    for (int part = 0; part < 4; ++part) {
      int64_t at = i + part * kLanes, left = count - at;
      if (left >= kLanes) {
        Store(y + at, Drop(draw, words[part], Load(x + at)));
      } else if (left > 0) {
        StorePart(y + at, Drop(draw, words[part], LoadPart(x + at, left)), left);
      }
    }
  }
}

}  // namespace

const DropoutKernels kDropoutKernels = {
    .f32 = {Dropout<float>}, .bf16 = {Dropout<BFloat16>}, .f16 = {Dropout<Half>}};

}  // namespace weft::kernels::cpu::WEFT_ISA
