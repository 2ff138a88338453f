#pragma once

// The functions of kernels/cuda/ptx_hopper.h for the host execution.

#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "kernels/cuda/ptx.h"
#include "tests/gpu/host/hopper.h"

namespace weft::kernels::cuda::ptx {

inline constexpr bool kHopper = true;
constexpr bool BuiltForHopper() {
  return true;
}

struct alignas(8) PhaseBarrier {
  uint64_t word;
};

inline void InitBarrier(PhaseBarrier* barrier, int arrivals) {
  host_cuda::CurrentHopper().InitBarrier(barrier, arrivals);
}
inline void FenceBarrierInit() {}
inline void Arrive(PhaseBarrier* barrier) {
  host_cuda::CurrentHopper().Arrive(barrier, 0);
}
inline void ArriveExpecting(PhaseBarrier* barrier, int bytes) {
  host_cuda::CurrentHopper().Arrive(barrier, bytes);
}
inline void WaitForPhase(PhaseBarrier* barrier, uint32_t parity,
                         host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::CurrentHopper().WaitForPhase(barrier, parity, site);
}
inline void CopyTile(void* shared, const CUtensorMap* map, int x, int y, int z,
                     PhaseBarrier* barrier) {
  host_cuda::CurrentHopper().CopyTile(shared, *map, x, y, z, barrier);
}

inline void CopyBytes(void* shared, const void* from, int bytes, PhaseBarrier* barrier) {
  host_cuda::CurrentHopper().CopyBytes(shared, from, bytes, barrier);
}

inline void FenceAsyncProxy() {
  host_cuda::CurrentHopper().FenceAsyncProxy();
}
inline void ArriveNamed(int id, int threads, host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::ArriveNamed(id, threads, site);
}

template <int kCount>
void LowerRegisters() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  host_cuda::CurrentHopper().SetRegisters(kCount, false);
}
template <int kCount>
void RaiseRegisters() {
  static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
  host_cuda::CurrentHopper().SetRegisters(kCount, true);
}

inline void StoreMatricesTransposed(void* column, const uint32_t (&words)[4],
                                    host_cuda::Site site = host_cuda::Site::Here()) {
  uint32_t out[4];
  host_cuda::WithWarp(0xffffffffu, host_cuda::GatherTransposed, words, 4, out, 4, site);
  Store16(column, {out[0], out[1], out[2], out[3]});
}

inline void FenceProducts() {
  host_cuda::CurrentHopper().FenceProducts();
}
inline void CommitProducts() {
  host_cuda::CurrentHopper().CommitProducts();
}
template <int kGroups>
void WaitForProducts(host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::CurrentHopper().WaitForProducts(kGroups, site);
}

template <class T, int kN>
void PinRegisters(T (&)[kN][4]) {}

template <class T, int kN>
void MultiplyAddAsync(float (&c)[kN / 8][4], uint64_t a, uint64_t b, bool accumulate,
                      host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::CurrentHopper().StartProduct({.left = nullptr,
                                           .left_matrix = a,
                                           .right_matrix = b,
                                           .sums = c[0],
                                           .columns = kN,
                                           .accumulate = accumulate,
                                           .by_columns = false,
                                           .half = std::is_same_v<T, Half>},
                                          site);
}
template <class T, int kN>
void MultiplyAddAsync(float (&c)[kN / 8][4], const uint32_t (&a)[4], uint64_t b, bool accumulate,
                      host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::CurrentHopper().StartProduct({.left = a,
                                           .left_matrix = 0,
                                           .right_matrix = b,
                                           .sums = c[0],
                                           .columns = kN,
                                           .accumulate = accumulate,
                                           .by_columns = true,
                                           .half = std::is_same_v<T, Half>},
                                          site);
}

template <class T, int kPair, bool kByColumns>
void MultiplyAddSparseAsync(float (&c)[32][4], uint64_t a, uint64_t b, const uint32_t& places,
                            host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::CurrentHopper().StartProduct({.left = nullptr,
                                           .left_matrix = a,
                                           .right_matrix = b,
                                           .sums = c[0],
                                           .columns = 256,
                                           .accumulate = true,
                                           .by_columns = kByColumns,
                                           .half = std::is_same_v<T, Half>,
                                           .metadata = &places,
                                           .selector = kPair},
                                          site);
}

}  // namespace weft::kernels::cuda::ptx
