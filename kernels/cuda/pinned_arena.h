#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "common/status.h"
#include "kernels/cuda/free_pieces.h"

namespace weft::kernels::cuda {

/// Pinned host memory (PinnedMemory, kernels/cuda/transfer.h) in few chunks, and hands out pieces
/// of them. Locking memory takes milliseconds; a piece that is asked for again is locked already.
/// Unlocking waits for all that devices do, be it for a message whose sender waits for this very
/// process, so it is left until nothing is used. Thread-safe.
class PinnedArena {
 public:
  static constexpr size_t kAlignment = 256;

  /// `chunk_bytes`: the least that is locked at once.
  explicit PinnedArena(size_t chunk_bytes = size_t{1} << 20) : chunk_bytes_(chunk_bytes) {}
  /// All pieces are back.
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  /// That of this process, which lives as long as it.
  static PinnedArena& OfProcess();

  /// At least `bytes`, at a multiple of kAlignment, for copies from and to the current device of
  /// the calling thread. kExhausted when there is not as much.
  Result<void*> Take(size_t bytes);

  /// Back again; waits for what the device still copies. With the last piece, chunks are unlocked
  /// that were free and too small for what was asked meanwhile. Null does nothing.
  void Give(void* piece);

  /// Locked, used or not.
  size_t locked_bytes() const;

 private:
  struct Chunk {
    size_t bytes;
    bool outgrown = false;
  };
  struct Used {
    size_t bytes;
    int device;
  };

  Status AddChunk(size_t bytes);
  void UnlockOutgrown();

  const size_t chunk_bytes_;
  mutable std::mutex mutex_;
  std::map<char*, Chunk> chunks_;
  FreePieces free_;
  std::map<char*, Used> used_;
};

}  // namespace weft::kernels::cuda
