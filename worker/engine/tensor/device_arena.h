#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/free_pieces.h"
#include "worker/engine/tensor/memory_source.h"

namespace weft::engine {

/// The memory of a CUDA device in few large chunks, cut to size (FreePieces). Steps that ask for
/// the same sizes in the same order take nothing from the device after the first ones, which
/// matters: to ask means to wait for all of its work. What is given back may still be read by work
/// that is enqueued; whoever takes it next must use it on the same stream, after that work.
class DeviceArena : public MemorySource {
 public:
  struct Options {
    int device = 0;
    size_t first_chunk_bytes = 0;            ///< Taken at once; 0: none.
    size_t chunk_bytes = size_t{256} << 20;  ///< Smallest that is taken later.
  };

  /// kUnavailable without a CUDA back end; kExhausted when the first chunk is not to be had.
  static Result<std::unique_ptr<DeviceArena>> New(const Options& options);

  Device device() const override { return {DeviceType::kCuda, options_.device}; }
  void* Take(size_t bytes, int64_t limit_bytes) override;
  void Give(void* memory, size_t bytes) override;
  bool reuses() const override { return true; }
  bool IsFree(const void* at, size_t bytes) const override;
  int64_t held_bytes() const override { return held_bytes_; }
  int64_t system_allocations() const override { return static_cast<int64_t>(chunks_.size()); }

 private:
  explicit DeviceArena(const Options& options) : options_(options) {}

  bool AddChunk(size_t bytes);

  const Options options_;
  std::vector<kernels::cuda::DeviceMemory> chunks_;
  int64_t held_bytes_ = 0;
  kernels::cuda::FreePieces free_;
};

}  // namespace weft::engine
