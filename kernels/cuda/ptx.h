#pragma once

// Accesses and instructions that CUDA C++ has no words for, or that tests watch: the only place
// with PTX. tests/gpu/host/include/kernels/cuda/ptx.h replaces it where kernels run on the
// host, and declares the same functions.

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "common/dtype.h"
#include "common/float8.h"

namespace weft::kernels::cuda::ptx {

/// One access of 16, 8 or 4 bytes, aligned to its size.
__device__ __forceinline__ uint4 Load16(const void* from) {
  return *static_cast<const uint4*>(from);
}
__device__ __forceinline__ uint2 Load8(const void* from) {
  return *static_cast<const uint2*>(from);
}
__device__ __forceinline__ void Store16(void* to, uint4 value) {
  *static_cast<uint4*>(to) = value;
}
__device__ __forceinline__ void Store8(void* to, uint2 value) {
  *static_cast<uint2*>(to) = value;
}
__device__ __forceinline__ void Store4(void* to, uint32_t value) {
  *static_cast<uint32_t*>(to) = value;
}

/// Two floats rounded to nearest even, `low` in the lower half of the word.
__device__ __forceinline__ uint32_t PackBFloat16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ uint32_t PackHalf(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ float UnpackHalf(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// Two floats as ToFloat8<T>() converts them, `low` in the lower byte of the lower half.
template <class T>
__device__ __forceinline__ uint32_t PackFloat8(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  if constexpr (std::is_same_v<T, Float8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return uint32_t{ToFloat8<T>(low).bits} | uint32_t{ToFloat8<T>(high).bits} << 8;
#endif
}

/// 2^x to about two units in the last place; what would be subnormal is 0.
__device__ __forceinline__ float Exp2(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}

/// The same number, which the compiler does not know: what follows from it is computed anew
/// instead of being kept in registers from an earlier use or from before a loop.
__device__ __forceinline__ int Anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// Starts copying 16 bytes, both addresses aligned to 16; zeros when not `valid`. The bytes are in
/// shared memory once the thread that asked has waited for the group; others need a barrier then.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(SharedAddress(shared)), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
/// The same of 8 bytes, aligned to 8.
__device__ __forceinline__ void CopyAsync8(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(SharedAddress(shared)), "l"(global), "r"(valid ? 8 : 0)
               : "memory");
}
/// Closes the group of the copies started since the last one.
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all but the latest kGroups groups of this thread.
template <int kGroups>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
}

/// Barrier `id` (1 to 15) among `threads` threads, whole warps, of the block.
__device__ __forceinline__ void SyncNamed(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane 8 i + r gives the address
/// of row r of matrix i, aligned to 16; to[i] becomes elements 2 (lane % 4) and the next of row
/// lane / 4 of matrix i.
__device__ __forceinline__ void LoadMatrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}
/// The same of the transposed matrices.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

/// c += A B on the tensor cores for A [16, 16] and B [16, 8] of T, BFloat16 or Half, sums in f32.
/// With group = lane / 4 and t = lane % 4: a[i] holds row group + 8 (i % 2), columns
/// 2 t + 8 (i / 2) and the next; b[i] rows 2 t + 8 i and the next of column group; c[i] row
/// group + 8 (i / 2) of column 2 t + i % 2.
template <class T>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]);
template <>
__device__ __forceinline__ void MultiplyAdd<BFloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                      const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void MultiplyAdd<Half>(float (&c)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// c += A B for A [16, 32], 2:4 sparse along its rows, and B [32, 8] of T, BFloat16 or Half, sums
/// in f32. a[i] holds the two kept values of row group + 8 (i % 2), columns
/// 4 t + 16 (i / 2) to 4 t + 3 + 16 (i / 2); b[i] and c[i] are as in MultiplyAdd. Where they are is
/// said in `places` of lanes 4 group + 2 kPair and the next, whose number modulo 2 is h: bits
/// 4 q to 4 q + 3 are the column in its four of the first, and of the second times 4, the first
/// being the smaller one, for four q of columns 16 h to 16 h + 15 in row group; bits 16 + 4 q
/// likewise in row group + 8. The other lanes' are not read.
template <class T, int kPair>
__device__ __forceinline__ void MultiplyAddSparse(float (&c)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[4], uint32_t places) {
  static_assert(kPair == 0 || kPair == 1);
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(places), "n"(kPair));
  } else {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(places), "n"(kPair));
  }
}

}  // namespace weft::kernels::cuda::ptx
