#include "tests/gpu/host/faults.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256;

__global__ void RaceInBlock(float* data) {
  data[0] = static_cast<float>(threadIdx.x);
}

__global__ void RaceBetweenBlocks(float* data) {
  if (threadIdx.x == 0) data[0] = static_cast<float>(blockIdx.x);
}

__global__ void MissingBarrier(float* data) {
  WEFT_SHARED(numbers, float[kThreads]);
  numbers[threadIdx.x] = static_cast<float>(threadIdx.x);
  data[threadIdx.x] = numbers[(threadIdx.x + 1) % kThreads];
}

__global__ void MissingWarpBarrier(float* data) {
  WEFT_SHARED(numbers, float[kWarp]);
  numbers[threadIdx.x] = static_cast<float>(threadIdx.x);
  // Makes lanes meet, and yet orders nothing.
  const float lane = __shfl_sync(kAllLanes, static_cast<float>(threadIdx.x), 1);
  data[threadIdx.x] = numbers[(threadIdx.x + 1) % kWarp] + lane - lane;
}

__global__ void ReadBehind(float* data, int count) {
  if (threadIdx.x == 0) data[0] = data[count];
}

__global__ void ReadBehindShared(float* data, int index) {
  WEFT_SHARED(numbers, float[kWarp]);
  numbers[threadIdx.x] = 0;
  __syncthreads();
  // By a pointer, unknown to the compiler's own check of bounds.
  const float* first = numbers;
  if (threadIdx.x == 0) data[0] = first[index];
}

__global__ void ReadBehindDynamic(float* data, int index) {
  auto* numbers = DynamicShared<float>();
  numbers[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x == 0) data[0] = numbers[index];
}

__global__ void ThreadLeaves() {
  if (threadIdx.x == 3) return;
  __syncthreads();
}

__global__ void TwoBarriers() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void LaneMissing() {
  if (threadIdx.x % kWarp == 5) return;
  (void)__shfl_xor_sync(kAllLanes, 1.0f, 1);
}

__global__ void Misaligned(float* data) {
  if (threadIdx.x == 0) ptx::Store16(data, ptx::Load16(data + 1));
}

__global__ void EarlyRead(float* data) {
  WEFT_SHARED(numbers, float4);
  auto* at = reinterpret_cast<float*>(&numbers);
  ptx::CopyAsync16(at, data + 4);
  ptx::CopyAsyncCommit();
  for (int i = 0; i < 4; ++i) data[i] = at[i];
  ptx::CopyAsyncWait<0>();
}

__global__ void UnawaitedCopy(float* data) {
  WEFT_SHARED(numbers, float4);
  ptx::CopyAsync16(&numbers, data);
  ptx::CopyAsyncCommit();
}

}  // namespace

Status RunRaceInBlock(const Stream& stream, float* data) {
  return Launch(stream, "RaceInBlock", {.grid = {1}, .block = {kThreads}}, RaceInBlock, data);
}
Status RunRaceBetweenBlocks(const Stream& stream, float* data) {
  return Launch(stream, "RaceBetweenBlocks", {.grid = {8}, .block = {32}}, RaceBetweenBlocks, data);
}
Status RunMissingBarrier(const Stream& stream, float* data) {
  return Launch(stream, "MissingBarrier", {.grid = {1}, .block = {kThreads}}, MissingBarrier, data);
}
Status RunMissingWarpBarrier(const Stream& stream, float* data) {
  return Launch(stream, "MissingWarpBarrier", {.grid = {1}, .block = {32}}, MissingWarpBarrier,
                data);
}
Status RunReadBehind(const Stream& stream, float* data, int count) {
  return Launch(stream, "ReadBehind", {.grid = {1}, .block = {32}}, ReadBehind, data, count);
}
Status RunReadBehindShared(const Stream& stream, float* data, int index) {
  return Launch(stream, "ReadBehindShared", {.grid = {1}, .block = {32}}, ReadBehindShared, data,
                index);
}
Status RunReadBehindDynamic(const Stream& stream, float* data, int index) {
  return Launch(stream, "ReadBehindDynamic",
                {.grid = {1}, .block = {32}, .shared_bytes = 32 * sizeof(float)}, ReadBehindDynamic,
                data, index);
}
Status RunThreadLeaves(const Stream& stream) {
  return Launch(stream, "ThreadLeaves", {.grid = {2}, .block = {kThreads}}, ThreadLeaves);
}
Status RunTwoBarriers(const Stream& stream) {
  return Launch(stream, "TwoBarriers", {.grid = {1}, .block = {kThreads}}, TwoBarriers);
}
Status RunLaneMissing(const Stream& stream) {
  return Launch(stream, "LaneMissing", {.grid = {1}, .block = {64}}, LaneMissing);
}
Status RunMisaligned(const Stream& stream, float* data) {
  return Launch(stream, "Misaligned", {.grid = {1}, .block = {32}}, Misaligned, data);
}
Status RunEarlyRead(const Stream& stream, float* data) {
  return Launch(stream, "EarlyRead", {.grid = {1}, .block = {1}}, EarlyRead, data);
}
Status RunUnawaitedCopy(const Stream& stream, float* data) {
  return Launch(stream, "UnawaitedCopy", {.grid = {1}, .block = {1}}, UnawaitedCopy, data);
}

}  // namespace weft::kernels::cuda
