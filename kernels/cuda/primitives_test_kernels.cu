#include "kernels/cuda/primitives_test_kernels.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/swizzled_tile.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

template <class T>
__global__ void TensorCores(const T* a, const T* b, bool transposed, int rows, float* c) {
  struct alignas(16) Tiles {
    T a[16][16];
    T b[16 * 8];
  };
  WEFT_SHARED(tiles, Tiles);
  const int lane = static_cast<int>(threadIdx.x);
  const int copied = lane / 2;
  ptx::CopyAsync16(&tiles.a[copied][8 * (lane % 2)], a + 8 * lane, copied < rows);
  ptx::CopyAsyncCommit();
  if (lane < 16) ptx::CopyAsync16(tiles.b + 8 * lane, b + 8 * lane);
  ptx::CopyAsyncCommit();
  const int matrix = lane / 8, row = lane % 8;
  uint32_t fragment_a[4], fragment_b[4];
  ptx::CopyAsyncWait<1>();
  __syncthreads();
  ptx::LoadMatrices(fragment_a, &tiles.a[row + 8 * (matrix % 2)][8 * (matrix / 2)]);
  ptx::CopyAsyncWait<0>();
  __syncthreads();
  // Two matrices make b; the other two lane groups read the same.
  if (transposed) {
    ptx::LoadMatrices(fragment_b, tiles.b + row * 16 + 8 * (matrix % 2));
  } else {
    ptx::LoadMatricesTransposed(fragment_b, tiles.b + (row + 8 * (matrix % 2)) * 8);
  }
  float sums[4] = {};
  const uint32_t two[2] = {fragment_b[0], fragment_b[1]};
  ptx::MultiplyAdd<T>(sums, fragment_a, two);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sums[i];
}

template <class T, int kPair>
__global__ void SparseTensorCores(const T* a, const T* b, const uint32_t* places, float* c) {
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, t = lane % 4;
  const auto pack = [](T low, T high) { return low.bits | uint32_t{high.bits} << 16; };
  uint32_t fragment_a[4], fragment_b[4];
  for (int i = 0; i < 4; ++i) {
    const T* two = a + (group + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
    fragment_a[i] = pack(two[0], two[1]);
    const T* column = b + (2 * t + 8 * i) * 8 + group;
    fragment_b[i] = pack(column[0], column[8]);
  }
  float sums[4] = {};
  ptx::MultiplyAddSparse<T, kPair>(sums, fragment_a, fragment_b, places[lane]);
  for (int i = 0; i < 4; ++i) c[(group + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sums[i];
}

constexpr int kTileThreads = 64, kLeftRows = 64, kRightRows = 32;

template <class T, int kColumns>
__global__ void TileProducts(const T* a, const T* b, int rows, int used, float* scores, T* out) {
  using Tile = SwizzledTile<kColumns>;
  constexpr int kM = 2;
  const Tile left{DynamicShared<unsigned char>()}, right{left.at + Tile::Bytes(kLeftRows)};
  left.template CopyAsync<kLeftRows, kTileThreads>(a, kColumns, rows, used);
  right.template CopyAsync<kRightRows, kTileThreads>(b, kColumns, kRightRows, used);
  ptx::CopyAsyncCommit();
  ptx::CopyAsyncWait<0>();
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
  Accumulators<kM, kRightRows / 8> products = {};
  MultiplyByRows<T>(products, left, row, right);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kRightRows / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        scores[(row + 16 * m + AccumulatorRow(i)) * kRightRows + 8 * n + AccumulatorColumn(i)] =
            products[m][n][i];
      }
    }
  }
  LeftFragments<kM, kRightRows / 16> rounded;
  RoundToLeft<T>(rounded, products);
  Accumulators<kM, kColumns / 8> sums = {};
  Multiply<T>(sums, rounded, right, 0);
  StoreRows<T>(left, row, sums);
  left.template CopyOut<16 * kM>(out + row * kColumns, kColumns, row, rows - row, used);
}

__global__ void Exp2OfEach(const float* x, float* y) {
  y[threadIdx.x] = ptx::Exp2(x[threadIdx.x]);
}

__global__ void CopyOfEights(const float* x, int count, float* y) {
  struct alignas(8) Numbers {
    float of[64];
  };
  WEFT_SHARED(numbers, Numbers);
  const int first = 2 * static_cast<int>(threadIdx.x);
  ptx::CopyAsync8(&numbers.of[first], x + first, first < count);
  ptx::CopyAsyncCommit();
  ptx::CopyAsyncWait<0>();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 64; i += kWarp) y[i] = numbers.of[i];
}

__global__ void PhiloxWords(PhiloxKey key, int blocks, uint32_t* words) {
  const int block = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (block >= blocks) return;
  const Philox4 four = Philox(key, static_cast<uint64_t>(block));
  ptx::Store16(words + 4 * block, uint4{four.v[0], four.v[1], four.v[2], four.v[3]});
}

__global__ void NamedBarrier(const float* x, float* y) {
  WEFT_SHARED(numbers, float[64]);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread >= 64) return;
  numbers[thread] = x[thread];
  ptx::SyncNamed(1, 64);
  y[thread] = numbers[63 - thread];
}

}  // namespace

Status RunTensorCores(const Stream& stream, DType dtype, const void* a, const void* b,
                      bool transposed, int rows, float* c) {
  return WithFloatType(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, float>) {
      return InvalidError("tensor cores of f32");
    } else {
      return Launch(stream, "TensorCores", {.grid = {1}, .block = {32}}, TensorCores<T>,
                    static_cast<const T*>(a), static_cast<const T*>(b), transposed, rows, c);
    }
  });
}

Status RunSparseTensorCores(const Stream& stream, DType dtype, const void* a, const void* b,
                            const uint32_t* places, int pair, float* c) {
  return WithFloatType(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, float>) {
      return InvalidError("sparse tensor cores of f32");
    } else {
      return Launch(stream, "SparseTensorCores", {.grid = {1}, .block = {32}},
                    pair == 0 ? SparseTensorCores<T, 0> : SparseTensorCores<T, 1>,
                    static_cast<const T*>(a), static_cast<const T*>(b), places, c);
    }
  });
}

Status RunTileProducts(const Stream& stream, DType dtype, int columns, const void* a, const void* b,
                       int rows, int used, float* scores, void* out) {
  const auto launch = [&]<class T, int kColumns>() {
    return Launch(stream, "TileProducts",
                  {.grid = {1},
                   .block = {kTileThreads},
                   .shared_bytes = SwizzledTile<kColumns>::Bytes(kLeftRows + kRightRows)},
                  TileProducts<T, kColumns>, static_cast<const T*>(a), static_cast<const T*>(b),
                  rows, used, scores, static_cast<T*>(out));
  };
  return WithFloatType(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>) {
      if (columns == 32) return launch.template operator()<T, 32>();
      if (columns == 64) return launch.template operator()<T, 64>();
      if (columns == 96) return launch.template operator()<T, 96>();
      if (columns == 128) return launch.template operator()<T, 128>();
      if (columns == 256) return launch.template operator()<T, 256>();
    }
    return InvalidError("no such tiles");
  });
}

Status RunExp2(const Stream& stream, const float* x, float* y) {
  return Launch(stream, "Exp2", {.grid = {1}, .block = {32}}, Exp2OfEach, x, y);
}

Status RunCopyOfEights(const Stream& stream, const float* x, int count, float* y) {
  return Launch(stream, "CopyOfEights", {.grid = {1}, .block = {32}}, CopyOfEights, x, count, y);
}

Status RunPhilox(const Stream& stream, const PhiloxKey& key, int blocks, uint32_t* words) {
  return Launch(stream, "Philox", {.grid = {CeilDiv(blocks, 64)}, .block = {64}}, PhiloxWords, key,
                blocks, words);
}

Status RunNamedBarrier(const Stream& stream, const float* x, float* y) {
  return Launch(stream, "NamedBarrier", {.grid = {1}, .block = {96}}, NamedBarrier, x, y);
}

}  // namespace weft::kernels::cuda
