#include "kernels/cuda/primitives_test_kernels.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
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

Status RunPhilox(const Stream& stream, const PhiloxKey& key, int blocks, uint32_t* words) {
  return Launch(stream, "Philox", {.grid = {CeilDiv(blocks, 64)}, .block = {64}}, PhiloxWords, key,
                blocks, words);
}

Status RunNamedBarrier(const Stream& stream, const float* x, float* y) {
  return Launch(stream, "NamedBarrier", {.grid = {1}, .block = {96}}, NamedBarrier, x, y);
}

}  // namespace weft::kernels::cuda
