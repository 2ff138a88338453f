#pragma once

#include <atomic>
#include <cstdint>
#include <numeric>
#include <string>

#include "common/rng.h"
#include "tests/gpu/host/executor.h"

namespace weft::host_cuda {

/// Threads of the operating system that run blocks.
inline constexpr int kWorkers = 2;
inline constexpr uint32_t kMostThreads = 1024;  ///< Of a block.

/// [0, count) in an order of its own: (first + i * stride) % count. Next() goes from one to the
/// next without a division.
struct Order {
  uint64_t count, first, stride;

  Order(uint64_t size, uint64_t seed, uint64_t draw) : count(size) {
    const Philox4 words = Philox({.seed = seed, .step = 0, .site = 0}, draw);
    first = words.v[0] % size;
    stride = 1 + words.v[1] % size;
    while (std::gcd(stride, size) != 1) ++stride;
    stride %= size;
  }
  uint64_t operator[](uint64_t i) const { return (first + i * stride) % count; }
  uint64_t Next(uint64_t at) const {
    at += stride;
    return at >= count ? at - count : at;
  }
};

/// Runs those blocks of a launch whose place in `blocks` is `worker` modulo kWorkers, one at a
/// time, on the thread that calls. What went wrong, and sets `stop`; empty: nothing did.
std::string RunBlocks(const Launch& launch, const Order& blocks, uint64_t worker, uint64_t seed,
                      std::atomic<bool>& stop);

/// "(x, y, z)".
std::string ToString(const Index3& at);

}  // namespace weft::host_cuda
