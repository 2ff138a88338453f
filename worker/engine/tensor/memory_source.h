#pragma once

#include <cstddef>
#include <cstdint>

#include "common/status.h"
#include "kernels/tensor_view.h"

namespace weft::engine {

/// Where an Allocator has its memory from. Thread-compatible: the Allocator holds its lock.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  /// Where the memory is.
  virtual Device device() const = 0;

  /// `bytes`, a multiple of 256, aligned to at least 64; null when there is not as much, or when
  /// the source would then hold more than `limit_bytes` (0: no limit) altogether.
  virtual void* Take(size_t bytes, int64_t limit_bytes) = 0;
  virtual void Give(void* memory, size_t bytes) = 0;

  /// Whether what is given back is at hand at once, whatever its size, so that nobody need keep it.
  virtual bool reuses() const = 0;

  /// Whether all of these bytes have been given back.
  virtual bool IsFree(const void*, size_t) const { return false; }

  /// Bytes held from the system, those at hand included.
  virtual int64_t held_bytes() const = 0;

  /// Requests to the system since the start.
  virtual int64_t system_allocations() const = 0;
};

/// The memory of the process: cache lines and huge pages.
class HostMemory : public MemorySource {
 public:
  Device device() const override { return {}; }
  void* Take(size_t bytes, int64_t limit_bytes) override;
  void Give(void* memory, size_t bytes) override;
  bool reuses() const override { return false; }
  int64_t held_bytes() const override { return held_bytes_; }
  int64_t system_allocations() const override { return system_allocations_; }

 private:
  int64_t held_bytes_ = 0;
  int64_t system_allocations_ = 0;
};

}  // namespace weft::engine
