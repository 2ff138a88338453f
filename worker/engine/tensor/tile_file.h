#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/engine/tensor/async_file.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Memory of `context` for tiles of a file: `bytes` of it, beginning at a block of the file system.
Result<Tensor> NewTileMemory(Context& context, Component component, int64_t bytes);

/// A scratch file below the host memory pool (async_file.h), read and written in tiles of fixed
/// sizes. Each tile that is read is compared with the XXH3 of what was written. A tile that was
/// never written is zero. Reads may run in one thread and writes in another, where no tile is read
/// before who reads it has heard of the end of its last write.
class TileFile {
 public:
  /// Makes a file in the directory of `host`, which outlives it, with tiles of this many bytes
  /// (multiples of AsyncFile::kAlignment). kExhausted when the disk has no room for them.
  static Result<std::unique_ptr<TileFile>> New(HostMemoryPool* host,
                                               const std::vector<int64_t>& tile_bytes,
                                               AsyncFile::Queue queue = AsyncFile::Queue::kBest);
  /// Waits for what is under way.
  ~TileFile();

  /// `memory` stays until the read is finished.
  Status StartRead(size_t tile, void* memory);
  /// kCorrupt when it is not what was written.
  Status FinishRead(size_t tile);
  /// `memory` stays as it is until the write is finished.
  Status StartWrite(size_t tile, const void* memory);
  Status FinishWrite(size_t tile);

  /// Reads or replaces bytes of a tile from byte `at` on, while nothing else goes on. Of one tile
  /// after the other a part may be asked for: the last one stays in `cache`, as large as any tile,
  /// until Flush, which is before anything else is done.
  Status Read(Tensor& cache, size_t tile, size_t at, std::span<std::byte> to);
  Status Write(Tensor& cache, size_t tile, size_t at, std::span<const std::byte> from);
  /// Writes what was replaced, and forgets the tile.
  Status Flush(Tensor& cache);

  size_t tiles() const { return tiles_.size(); }
  AsyncFile& file() { return *file_; }

 private:
  struct Tile {
    size_t bytes = 0;
    uint64_t offset = 0;
    std::optional<uint64_t> hash = std::nullopt;  ///< Of what is there; none: nothing.
    void* memory = nullptr;                       ///< Where it is being read to.
    int64_t pending = 0;                          ///< Number of what is under way.
  };

  TileFile(HostMemoryPool* host, const std::vector<int64_t>& tile_bytes);
  Status Load(Tensor& cache, size_t tile);

  HostMemoryPool* host_;
  std::vector<Tile> tiles_;
  int64_t bytes_ = 0;
  bool counted_ = false;
  std::unique_ptr<AsyncFile> file_;  ///< Its queue reads.
  std::unique_ptr<IoQueue> writes_;
  int64_t cached_ = -1;
  bool replaced_ = false;  ///< Some of it, since it was read.
};

}  // namespace weft::engine
