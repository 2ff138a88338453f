#pragma once

// The functions of kernels/cuda/ptx.h for the host execution.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <cuda_runtime.h>

#include "common/dtype.h"
#include "common/float8.h"
#include "tests/gpu/host/hopper.h"

namespace weft::kernels::cuda::ptx {

inline void CheckAligned(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) {
    host_cuda::Fail("accesses " + std::to_string(bytes) + " bytes at a misaligned address");
  }
}

inline uint4 Load16(const void* from) {
  CheckAligned(from, 16);
  uint4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline uint2 Load8(const void* from) {
  CheckAligned(from, 8);
  uint2 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline void Store16(void* to, uint4 value) {
  CheckAligned(to, 16);
  host_cuda::CurrentHopper().NoteStore(to, 16);
  std::memcpy(to, &value, sizeof value);
}
inline void Store8(void* to, uint2 value) {
  CheckAligned(to, 8);
  host_cuda::CurrentHopper().NoteStore(to, 8);
  std::memcpy(to, &value, sizeof value);
}
inline void Store4(void* to, uint32_t value) {
  CheckAligned(to, 4);
  host_cuda::CurrentHopper().NoteStore(to, 4);
  std::memcpy(to, &value, sizeof value);
}

inline uint32_t PackBFloat16(float low, float high) {
  return uint32_t{ToBFloat16(low).bits} | uint32_t{ToBFloat16(high).bits} << 16;
}
inline uint32_t PackHalf(float low, float high) {
  return uint32_t{ToHalf(low).bits} | uint32_t{ToHalf(high).bits} << 16;
}
inline float UnpackHalf(uint16_t bits) {
  return ToFloat(Half{bits});
}

template <class T>
uint32_t PackFloat8(float low, float high) {
  return uint32_t{ToFloat8<T>(low).bits} | uint32_t{ToFloat8<T>(high).bits} << 8;
}

inline float Exp2(float x) {
  const float value = std::exp2(x);
  return value < std::numeric_limits<float>::min() ? 0.0f : value;
}

inline int Anew(int value) {
  return value;
}

inline uint32_t SharedAddress(const void* shared) {
  return host_cuda::CurrentHopper().SharedAddress(shared);
}

inline void CopyAsync16(void* shared, const void* global, bool valid = true) {
  CheckAligned(shared, 16);
  if (valid) CheckAligned(global, 16);
  host_cuda::CopyLater(shared, valid ? global : nullptr, 16);
}
inline void CopyAsync8(void* shared, const void* global, bool valid = true) {
  CheckAligned(shared, 8);
  if (valid) CheckAligned(global, 8);
  host_cuda::CopyLater(shared, valid ? global : nullptr, 8);
}
inline void CopyAsyncCommit() {
  host_cuda::CommitCopies();
}
template <int kGroups>
void CopyAsyncWait() {
  host_cuda::WaitForCopies(kGroups);
}

inline void SyncNamed(int id, int threads, host_cuda::Site site = host_cuda::Site::Here()) {
  host_cuda::SyncNamed(id, threads, site);
}

inline void LoadMatrices(uint32_t (&to)[4], const void* row,
                         host_cuda::Site site = host_cuda::Site::Here()) {
  const uint4 own = Load16(row);
  const uint32_t words[4] = {own.x, own.y, own.z, own.w};
  host_cuda::WithWarp(0xffffffffu, host_cuda::SpreadMatrices, words, 4, to, 4, site);
}
inline void LoadMatricesTransposed(uint32_t (&to)[4], const void* row,
                                   host_cuda::Site site = host_cuda::Site::Here()) {
  const uint4 own = Load16(row);
  const uint32_t words[4] = {own.x, own.y, own.z, own.w};
  host_cuda::WithWarp(0xffffffffu, host_cuda::SpreadTransposed, words, 4, to, 4, site);
}

template <class T>
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 host_cuda::Site site = host_cuda::Site::Here()) {
  uint32_t in[10] = {a[0], a[1], a[2], a[3], b[0], b[1]}, out[4];
  std::memcpy(in + 6, c, sizeof c);
  host_cuda::WithWarp(
      0xffffffffu, std::is_same_v<T, Half> ? host_cuda::MultiplyHalf : host_cuda::MultiplyBFloat16,
      in, 10, out, 4, site);
  std::memcpy(c, out, sizeof c);
}

template <class T, int kPair>
void MultiplyAddSparse(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                       uint32_t places, host_cuda::Site site = host_cuda::Site::Here()) {
  uint32_t in[14] = {a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]}, out[4];
  std::memcpy(in + 8, c, sizeof c);
  in[12] = places;
  in[13] = kPair;
  host_cuda::WithWarp(
      0xffffffffu,
      std::is_same_v<T, Half> ? host_cuda::MultiplySparseHalf : host_cuda::MultiplySparseBFloat16,
      in, 14, out, 4, site);
  std::memcpy(c, out, sizeof c);
}

}  // namespace weft::kernels::cuda::ptx
