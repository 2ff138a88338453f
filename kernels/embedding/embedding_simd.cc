#include "kernels/embedding/embedding_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

template <class T>
void Add(const float* a, const float* b, T* out, int64_t width) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    Store(out + c, b == nullptr ? Load(a + c) : Load(a + c) + Load(b + c));
  }
  if (c < width) {
    VecF sum = LoadPart(a + c, width - c);
    if (b != nullptr) sum += LoadPart(b + c, width - c);
    StorePart(out + c, sum, width - c);
  }
}

template <class T>
void Accumulate(const T* from, float* to, int64_t width) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) Store(to + c, Load(to + c) + Load(from + c));
  if (c < width) {
    StorePart(to + c, LoadPart(to + c, width - c) + LoadPart(from + c, width - c), width - c);
  }
}

}  // namespace

const EmbeddingKernels kEmbeddingKernels = {
    .add_f32 = Add<float>,
    .add_bf16 = Add<BFloat16>,
    .accumulate_f32 = Accumulate<float>,
    .accumulate_bf16 = Accumulate<BFloat16>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
