#include "kernels/norm_stat/norm_stat_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

typedef float HalfF __attribute__((vector_size(kVecBytes / 2)));
typedef double VecD __attribute__((vector_size(kVecBytes)));
constexpr int kDoubles = kVecBytes / 8;

// How many elements ahead are fetched: past the page where the processor's own fetching ends.
constexpr int64_t kAhead = 2048;

WEFT_INLINE VecD Widen(const float* from) {
  HalfF half;
  __builtin_memcpy(&half, from, sizeof half);
  return __builtin_convertvector(half, VecD);
}

void Block(const float* x, int64_t count, double* sum_of_squares, int64_t* non_finite) {
  VecD low = {}, high = {};
  VecI bad = {};
  auto add = [&](const float* from) __attribute__((always_inline)) {
    VecD a = Widen(from), b = Widen(from + kDoubles);
    low += a * a;
    high += b * b;
    VecI bits = reinterpret_cast<VecI>(Load(from));
    bad -= (bits & 0x7f800000) == 0x7f800000;  // A true lane is -1.
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __builtin_prefetch(x + i + kAhead);
    add(x + i);
  }
  if (i < count) {
    float tail[kLanes];
    Store(tail, LoadPart(x + i, count - i));
    add(tail);
  }
  double sum = 0;
  for (int lane = 0; lane < kDoubles; ++lane) sum += low[lane] + high[lane];
  int64_t bad_count = 0;
  for (int lane = 0; lane < kLanes; ++lane) bad_count += bad[lane];
  *sum_of_squares = sum;
  *non_finite = bad_count;
}

}  // namespace

const NormStatKernels kNormStatKernels = {.block = Block};

}  // namespace weft::kernels::cpu::WEFT_ISA
