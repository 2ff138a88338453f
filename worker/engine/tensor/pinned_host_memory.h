#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "kernels/cuda/transfer.h"
#include "worker/engine/tensor/memory_source.h"

namespace weft::engine {

/// Page-locked memory of the process, piece by piece from its arena (PinnedMemory): what copies
/// between it and a CUDA device read and write while nobody waits.
class PinnedHostMemory : public MemorySource {
 public:
  Device device() const override { return {}; }
  void* Take(size_t bytes, int64_t limit_bytes) override;
  /// Waits for what the device still copies.
  void Give(void* memory, size_t bytes) override;
  /// To lock memory, and to give it back, takes time.
  bool reuses() const override { return false; }
  int64_t held_bytes() const override { return held_bytes_; }
  int64_t system_allocations() const override { return system_allocations_; }

 private:
  std::map<void*, kernels::cuda::PinnedMemory> pieces_;
  int64_t held_bytes_ = 0;
  int64_t system_allocations_ = 0;
};

}  // namespace weft::engine
