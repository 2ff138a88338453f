#include "kernels/embedding/embedding_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

template <class W, class T>
void Add(const W* a, const W* b, T* out, int64_t width) {
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

template <class T>
constexpr EmbeddingLoops<T> kLoopsOf = {Add<float, T>, Add<BFloat16, T>, Accumulate<T>};

const EmbeddingKernels kEmbeddingKernels = {
    .f32 = kLoopsOf<float>,
    .bf16 = kLoopsOf<BFloat16>,
    .f16 = kLoopsOf<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
