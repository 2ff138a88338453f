#pragma once

// Places in shared memory that one warp fills with tiles ahead of those that multiply them
// (sm_90a).

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/cuda/ptx_hopper.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {

/// Turns through kStages places, and counts phases of their barriers.
template <int kStages>
struct Turn {
  uint32_t number = 0;

  __device__ __forceinline__ int stage() const { return static_cast<int>(number % kStages); }
  /// The parity of the phase that ends when the place was filled.
  __device__ __forceinline__ uint32_t parity() const { return number / kStages % 2; }
  __device__ __forceinline__ void Next() { ++number; }
};

/// Places for tiles: filled by the copying thread, then emptied by `readers` warps.
template <int kStages>
struct Places {
  ptx::PhaseBarrier full[kStages];
  ptx::PhaseBarrier empty[kStages];

  /// By one thread of the block, before all others.
  __device__ __forceinline__ void Init(int fillers, int readers) {
    for (int i = 0; i < kStages; ++i) {
      ptx::InitBarrier(&full[i], fillers);
      ptx::InitBarrier(&empty[i], readers);
    }
  }
  __device__ __forceinline__ void WaitTillEmpty(const Turn<kStages>& turn) {
    ptx::WaitForPhase(&empty[turn.stage()], turn.parity() ^ 1);
  }
  __device__ __forceinline__ void WaitTillFull(const Turn<kStages>& turn) {
    ptx::WaitForPhase(&full[turn.stage()], turn.parity());
  }
  /// By whole warps: none of its lanes will look at the place again.
  __device__ __forceinline__ void Release(const Turn<kStages>& turn) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) ptx::Arrive(&empty[turn.stage()]);
  }
};

}  // namespace weft::kernels::cuda
