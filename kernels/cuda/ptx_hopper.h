#pragma once

// What sm_90a adds: products of warpgroups (wgmma), copies of tiles by the tensor memory
// accelerator, barriers in shared memory that count arrivals and bytes, and registers that warps
// hand to each other. Besides ptx.h the only place with PTX, and like it replaced on the host by
// tests/gpu/host/include/kernels/cuda/ptx_hopper.h.

#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include "common/dtype.h"
#include "kernels/cuda/ptx.h"

namespace weft::kernels::cuda::ptx {

/// Whether this code is compiled for a device that has all of it. Where not, nothing here may be
/// called, so a kernel asks `if constexpr` first.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHopper = true;
#else
inline constexpr bool kHopper = false;
#endif

/// Whether the program has such code, as its host code asks.
constexpr bool BuiltForHopper() {
#if defined(__CUDA_ARCH_LIST__)
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch == 900) return true;
  }
#endif
  return false;
}

/// A barrier in shared memory that goes from phase to phase, the first having parity 0: a phase
/// ends when as many arrivals as it was made for and all bytes that were expected have come.
struct alignas(8) PhaseBarrier {
  uint64_t word;
};

/// By one thread; the others may use it after FenceBarrierInit of that thread and __syncthreads.
__device__ __forceinline__ void InitBarrier(PhaseBarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}
/// Lets the copy engine see barriers that this thread has made.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void Arrive(PhaseBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :
               : "r"(SharedAddress(barrier))
               : "memory");
}
/// Arrives, and makes the phase wait for `bytes` more of CopyTile.
__device__ __forceinline__ void ArriveExpecting(PhaseBarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}
/// Waits until the latest phase of this parity has ended; one of parity 1 has before the first.
__device__ __forceinline__ void WaitForPhase(PhaseBarrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}"
      :
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
}

/// Starts copying the box of `map` (kernels/cuda/tensor_map.h) from element x of row y of matrix z
/// on to shared memory; what lies outside the tensor arrives as zeros. By one thread. All bytes of
/// the box count for the barrier's phase, whose end makes them visible to who waits for it.
__device__ __forceinline__ void CopyTile(void* shared, const CUtensorMap* map, int x, int y, int z,
                                         PhaseBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(SharedAddress(shared)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(SharedAddress(barrier))
      : "memory");
}

/// The same of `bytes` bytes, a multiple of 16 as both addresses are.
__device__ __forceinline__ void CopyBytes(void* shared, const void* from, int bytes,
                                          PhaseBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(SharedAddress(shared)), "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

/// Lets copies and products after the next barrier see what this thread has written to shared
/// memory.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Arrives at barrier `id` (1 to 15) of `threads` threads, for which others wait in SyncNamed.
__device__ __forceinline__ void ArriveNamed(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

/// Gives registers back, or takes such: kCount a thread from now on, a multiple of 8 from 24 to
/// 256, by all warps of a warpgroup. A block starts with what its launch bounds allow.
template <int kCount>
__device__ __forceinline__ void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kCount));
}

/// Writes four 8x8 matrices of 16-bit elements, transposed. Word i of a lane holds row lane / 4 of
/// matrix i, columns 2 (lane % 4) and the next; lane 8 i + c gives the address of column c, whose 8
/// elements become 16 bytes.
__device__ __forceinline__ void StoreMatricesTransposed(void* column, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(SharedAddress(column)), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
               : "memory");
}

/// Before products that use registers which this warp has touched since the last.
__device__ __forceinline__ void FenceProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes the group of the products started since the last one.
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all but the latest kGroups groups; until then their sums and left operands in
/// registers must not be touched, nor their operands in shared memory be changed.
template <int kGroups>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kGroups) : "memory");
}

/// Keeps the compiler from moving accesses to registers of products across: called before
/// FenceProducts of those that were written, and after WaitForProducts of those that will be read.
template <int kN>
__device__ __forceinline__ void PinRegisters(float (&c)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
  }
}
template <int kN>
__device__ __forceinline__ void PinRegisters(uint32_t (&a)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
  }
}

/// Starts c += A B (c = A B unless `accumulate`) of a warpgroup, for A [64, 16] and B [16, kN] of
/// T, BFloat16 or Half, sums in f32. Warp w holds rows 16 w and on, c[n] their columns [8 n, 8 n +
/// 8) in the order of ptx::MultiplyAdd. A and B are descriptors of rows along the depth.
template <class T, int kN>
__device__ __forceinline__ void MultiplyAddAsync(float (&c)[kN / 8][4], uint64_t a, uint64_t b,
                                                 bool accumulate);
/// The same with A in registers, in the order of ptx::MultiplyAdd, and B by its columns.
template <class T, int kN>
__device__ __forceinline__ void MultiplyAddAsync(float (&c)[kN / 8][4], const uint32_t (&a)[4],
                                                 uint64_t b, bool accumulate);

#define WEFT_SUMS_4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WEFT_SUMS_16(c, n) \
  WEFT_SUMS_4(c, n), WEFT_SUMS_4(c, n + 1), WEFT_SUMS_4(c, n + 2), WEFT_SUMS_4(c, n + 3)
#define WEFT_SUMS_32(c, n) WEFT_SUMS_16(c, n), WEFT_SUMS_16(c, n + 4)
#define WEFT_SUMS_64(c, n) WEFT_SUMS_32(c, n), WEFT_SUMS_32(c, n + 8)
#define WEFT_SUMS_128(c, n) WEFT_SUMS_64(c, n), WEFT_SUMS_64(c, n + 16)
#define WEFT_NAMES_32                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
  "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define WEFT_NAMES_64                                                   \
  WEFT_NAMES_32                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, " \
  "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "   \
  "%58, %59, %60, %61, %62, %63"
#define WEFT_NAMES_128                                                            \
  WEFT_NAMES_64                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
  "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "   \
  "%94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "      \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "      \
  "%119, %120, %121, %122, %123, %124, %125, %126, %127"

// Both products of an element type and a width, whose sums are operands %0 to %(kN / 2 - 1).
#define WEFT_MULTIPLY(T, kType, kN, kSums, kNames, k0, k1, k2, k3, k4, k5)                      \
  template <>                                                                                   \
  __device__ __forceinline__ void MultiplyAddAsync<T, kN>(float(&c)[kN / 8][4], uint64_t a,     \
                                                          uint64_t b, bool accumulate) {        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " k2                                     \
                 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." kType "." kType " {" kNames \
                 "}, " k0 ", " k1 ", add, 1, 1, 0, 0;\n}"                                       \
                 : kSums                                                                        \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                          \
  }                                                                                             \
  template <>                                                                                   \
  __device__ __forceinline__ void MultiplyAddAsync<T, kN>(                                      \
      float(&c)[kN / 8][4], const uint32_t(&a)[4], uint64_t b, bool accumulate) {               \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " k5                                     \
                 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." kType "." kType " {" kNames \
                 "}, {" k0 ", " k1 ", " k2 ", " k3 "}, " k4 ", add, 1, 1, 1;\n}"                \
                 : kSums                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                          \
                   "r"(static_cast<int>(accumulate)));                                          \
  }
#define WEFT_MULTIPLY_TYPE(T, kType)                                                          \
  WEFT_MULTIPLY(T, kType, 64, WEFT_SUMS_32(c, 0), WEFT_NAMES_32, "%32", "%33", "%34", "%35",  \
                "%36", "%37")                                                                 \
  WEFT_MULTIPLY(T, kType, 128, WEFT_SUMS_64(c, 0), WEFT_NAMES_64, "%64", "%65", "%66", "%67", \
                "%68", "%69")
WEFT_MULTIPLY_TYPE(BFloat16, "bf16")
WEFT_MULTIPLY_TYPE(Half, "f16")
#undef WEFT_MULTIPLY_TYPE
#undef WEFT_MULTIPLY

/// Starts c += A B of a warpgroup for A [64, 32], 2:4 sparse along its rows, and B [32, 256] of T.
/// The descriptor `a` is of the two kept values of each four, [64, 16], in rows along the
/// depth; B is by its columns with kByColumns, otherwise by its rows. `places` of warp w says where
/// they are in rows 16 w to 16 w + 15, as ptx::MultiplyAddSparse has it with kPair, and must not
/// change until the product is waited for.
template <class T, int kPair, bool kByColumns>
__device__ __forceinline__ void MultiplyAddSparseAsync(float (&c)[32][4], uint64_t a, uint64_t b,
                                                       const uint32_t& places) {
#define WEFT_MULTIPLY_SPARSE(kType)                                                         \
  asm volatile(                                                                             \
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                                        \
      "wgmma.mma_async.sp.sync.aligned.m64n256k32.f32." kType "." kType " {" WEFT_NAMES_128 \
      "}, %128, %129, %130, %131, add, 1, 1, 0, %132;\n}"                                   \
      : WEFT_SUMS_128(c, 0)                                                                 \
      : "l"(a), "l"(b), "r"(places), "n"(kPair), "n"(kByColumns ? 1 : 0))
  if constexpr (std::is_same_v<T, Half>) {
    WEFT_MULTIPLY_SPARSE("f16");
  } else {
    WEFT_MULTIPLY_SPARSE("bf16");
  }
#undef WEFT_MULTIPLY_SPARSE
}

#undef WEFT_NAMES_128
#undef WEFT_NAMES_64
#undef WEFT_NAMES_32
#undef WEFT_SUMS_128
#undef WEFT_SUMS_64
#undef WEFT_SUMS_32
#undef WEFT_SUMS_16
#undef WEFT_SUMS_4

}  // namespace weft::kernels::cuda::ptx
