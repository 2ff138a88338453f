#pragma once

#include "kernels/stream.h"

// Kernels with one fault each, which the host execution must find.
namespace weft::kernels::cuda {

/// Threads of a block, or blocks, write different values to data[0].
Status RunRaceInBlock(const Stream& stream, float* data);
Status RunRaceBetweenBlocks(const Stream& stream, float* data);

/// data[i] = (i + 1) % 256 for 256 threads that pass their numbers on through shared memory,
/// without a barrier between.
Status RunMissingBarrier(const Stream& stream, float* data);

/// The same over the lanes of a warp, without __syncwarp.
Status RunMissingWarpBarrier(const Stream& stream, float* data);

/// data[0] = data[count].
Status RunReadBehind(const Stream& stream, float* data, int count);

/// data[0] = element `index` of a shared array of 32, or of dynamic shared memory for 32.
Status RunReadBehindShared(const Stream& stream, float* data, int index);
Status RunReadBehindDynamic(const Stream& stream, float* data, int index);

/// Thread 3 returns, or goes to another barrier, where the others wait.
Status RunThreadLeaves(const Stream& stream);
Status RunTwoBarriers(const Stream& stream);

/// Lane 5 takes no part in a shuffle of all lanes.
Status RunLaneMissing(const Stream& stream);

/// Reads 16 bytes at data + 1.
Status RunMisaligned(const Stream& stream, float* data);

/// Copies data[4..8) to shared memory and from there to data[0..4) without waiting, or without ever
/// waiting.
Status RunEarlyRead(const Stream& stream, float* data);
Status RunUnawaitedCopy(const Stream& stream, float* data);

}  // namespace weft::kernels::cuda
