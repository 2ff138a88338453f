#pragma once

// Operations that treat elements one by one: one kernel for all of them.

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Loads of a thread that are under way together.
template <class Map>
constexpr int MapUnroll() {
  if constexpr (requires { Map::kUnroll; }) {
    return Map::kUnroll;
  } else {
    return 4;
  }
}

/// Blocks of a multiprocessor at the least: 128 registers a thread. Without a word on it the
/// compiler keeps to 32, and spills.
inline constexpr int kMapBlocks = 2;

/// Applies `map` to [0, count). A map has
///   template <int kCount> __device__ auto Load(int64_t i) const;    reads elements from i on
///   template <int kCount> __device__ void Store(int64_t i, const Loaded&) const;
/// and, where fewer than four loads should be under way together, `static constexpr int kUnroll`.
/// A block reads all it needs of its elements before it writes them, so outputs may be inputs.
template <int kCount, class Map>
__global__ void __launch_bounds__(kBlockThreads, kMapBlocks) MapKernel(Map map, int64_t count) {
  constexpr int kUnroll = MapUnroll<Map>();
  const int64_t first = (int64_t{blockIdx.x} * kUnroll * kBlockThreads + threadIdx.x) * kCount;
  constexpr int64_t kStep = int64_t{kBlockThreads} * kCount;
  if (first + (kUnroll - 1) * kStep + kCount <= count) {
    decltype(map.template Load<kCount>(0)) loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = map.template Load<kCount>(first + u * kStep);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) map.template Store<kCount>(first + u * kStep, loaded[u]);
    return;
  }
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kStep;
    if (i + kCount <= count) {
      map.template Store<kCount>(i, map.template Load<kCount>(i));
    } else {
      for (int64_t k = i; k < count; ++k) map.template Store<1>(k, map.template Load<1>(k));
    }
  }
}

/// y = function(x), element by element in f32.
template <class X, class Y, class Function>
struct UnaryMap {
  const X* x;
  Y* y;
  Function function;

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return LoadPacked<kCount>(x + i);
  }
  template <int kCount>
  __device__ void Store(int64_t i, const Packed<X, kCount>& loaded) const {
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = function(loaded[k]);
    StoreFloats(y + i, values);
  }
};

/// Elements of two tensors.
template <class A, class B, int kCount>
struct PackedPair {
  Packed<A, kCount> a;
  Packed<B, kCount> b;
};

/// y = function(a, b), element by element in f32.
template <class A, class B, class Y, class Function>
struct BinaryMap {
  const A* a;
  const B* b;
  Y* y;
  Function function;

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return PackedPair<A, B, kCount>{LoadPacked<kCount>(a + i), LoadPacked<kCount>(b + i)};
  }
  template <int kCount>
  __device__ void Store(int64_t i, const PackedPair<A, B, kCount>& loaded) const {
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = function(loaded.a[k], loaded.b[k]);
    StoreFloats(y + i, values);
  }
};

/// Runs `map` on [0, count), kCount elements at a time when `aligned` (all its addresses are
/// multiples of 16).
template <int kCount, class Map>
Status LaunchMap(const Stream& stream, std::string_view op, const Map& map, int64_t count,
                 bool aligned) {
  const auto launch = [&]<int kPart>() {
    constexpr int64_t kBlock = int64_t{MapUnroll<Map>()} * kBlockThreads * kPart;
    return Launch(stream, op, {.grid = {CeilDiv(count, kBlock)}, .block = {kBlockThreads}},
                  MapKernel<kPart, Map>, map, count);
  };
  return aligned ? launch.template operator()<kCount>() : launch.template operator()<1>();
}

}  // namespace weft::kernels::cuda
