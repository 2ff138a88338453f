#pragma once

// Values in device code: wide loads and stores, conversions, and sums over warps. Device only.

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include "common/dtype.h"
#include "kernels/cuda/ptx.h"

namespace weft::kernels::cuda {

/// Elements of T in an access of 16 bytes.
template <class T>
inline constexpr int kWide = static_cast<int>(16 / sizeof(T));

/// What T holds, as f32.
__device__ __forceinline__ float Widen(float value) {
  return value;
}
__device__ __forceinline__ float Widen(BFloat16 value) {
  return __uint_as_float(uint32_t{value.bits} << 16);
}
__device__ __forceinline__ float Widen(Half value) {
  return ptx::UnpackHalf(value.bits);
}

/// Two values rounded to T (BFloat16 or Half) in a word, `low` in the lower half.
template <class T>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<T, Half>) {
    return ptx::PackHalf(low, high);
  } else {
    return ptx::PackBFloat16(low, high);
  }
}

/// Rounded to T, to nearest even.
template <class T>
__device__ __forceinline__ T Narrow(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return T{static_cast<uint16_t>(Pack<T>(value, 0.0f))};
  }
}

/// kCount elements of T as they lie in memory, in registers: unpacked where they are used.
template <class T, int kCount>
struct Packed {
  static constexpr int kWords = static_cast<int>((kCount * sizeof(T) + 3) / 4);
  uint32_t words[kWords];

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words[i]);
    } else {
      const uint32_t word = words[i / 2];
      return Widen(T{static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16)});
    }
  }
};

/// Reads kCount elements, in accesses of 16 bytes or one of 8 or one by one: `from` is aligned to
/// the smaller of 16 and kCount * sizeof(T) bytes, unless kCount is 1.
template <int kCount, class T>
__device__ __forceinline__ Packed<T, kCount> LoadPacked(const T* from) {
  Packed<T, kCount> packed;
  constexpr int kBytes = static_cast<int>(kCount * sizeof(T));
  if constexpr (kCount == 1) {
    if constexpr (std::is_same_v<T, float>) {
      packed.words[0] = __float_as_uint(*from);
    } else {
      packed.words[0] = from->bits;
    }
  } else if constexpr (kBytes == 8) {
    const uint2 value = ptx::Load8(from);
    packed.words[0] = value.x;
    packed.words[1] = value.y;
  } else {
    static_assert(kBytes % 16 == 0);
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 value = ptx::Load16(from + i * kWide<T>);
      packed.words[4 * i] = value.x;
      packed.words[4 * i + 1] = value.y;
      packed.words[4 * i + 2] = value.z;
      packed.words[4 * i + 3] = value.w;
    }
  }
  return packed;
}

template <int kCount, class T>
__device__ __forceinline__ void LoadFloats(const T* from, float (&to)[kCount]) {
  const Packed<T, kCount> packed = LoadPacked<kCount>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = packed[i];
}

/// Writes kCount elements, rounded to T, with the alignment of LoadPacked.
template <int kCount, class T>
__device__ __forceinline__ void StoreFloats(T* to, const float (&from)[kCount]) {
  if constexpr (kCount == 1) {
    *to = Narrow<T>(from[0]);
  } else {
    constexpr int kWords = static_cast<int>(kCount * sizeof(T) / 4);
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        words[i] = __float_as_uint(from[i]);
      } else {
        words[i] = Pack<T>(from[2 * i], from[2 * i + 1]);
      }
    }
    if constexpr (kWords == 2) {
      ptx::Store8(to, uint2{words[0], words[1]});
    } else {
      static_assert(kWords % 4 == 0);
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        ptx::Store16(to + i * kWide<T>,
                     uint4{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]});
      }
    }
  }
}

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

/// In all lanes of a whole warp: the sum, in a fixed order, or the largest value.
template <class T>
__device__ __forceinline__ T WarpSum(T value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}
__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, bits));
  }
  return value;
}

/// Whether all of these addresses are multiples of 16, as wide accesses need.
template <class... Pointers>
bool Aligned16(const Pointers*... at) {
  return ((reinterpret_cast<uintptr_t>(at) % 16 == 0) && ...);
}

}  // namespace weft::kernels::cuda
