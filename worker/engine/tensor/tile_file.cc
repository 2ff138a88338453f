#include "worker/engine/tensor/tile_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/hash.h"

namespace weft::engine {
namespace {

uint64_t HashOf(const void* data, size_t bytes) {
  return Hash64({static_cast<const std::byte*>(data), bytes});
}

}  // namespace

// Blocks of the allocator begin at cache lines.
Result<Tensor> NewTileMemory(Context& context, Component component, int64_t bytes) {
  constexpr auto kBlock = static_cast<int64_t>(AsyncFile::kAlignment);
  WEFT_ASSIGN_OR_RETURN(Tensor memory,
                        Tensor::New(context, component, DType::kU8, {bytes + kBlock}));
  const auto at = reinterpret_cast<uintptr_t>(memory.view().data);
  return memory.Elements((kBlock - static_cast<int64_t>(at % AsyncFile::kAlignment)) % kBlock,
                         bytes);
}

TileFile::TileFile(HostMemoryPool* host, const std::vector<int64_t>& tile_bytes) : host_(host) {
  for (const int64_t bytes : tile_bytes) {
    WEFT_CHECK(bytes % static_cast<int64_t>(AsyncFile::kAlignment) == 0, "tiles are whole blocks");
    tiles_.push_back(
        {.bytes = static_cast<size_t>(bytes), .offset = static_cast<uint64_t>(bytes_)});
    bytes_ += bytes;
  }
  bytes_ = std::max(bytes_, static_cast<int64_t>(AsyncFile::kAlignment));
}

Result<std::unique_ptr<TileFile>> TileFile::New(HostMemoryPool* host,
                                                const std::vector<int64_t>& tile_bytes,
                                                AsyncFile::Queue queue) {
  std::unique_ptr<TileFile> made(new TileFile(host, tile_bytes));
  WEFT_ASSIGN_OR_RETURN(made->file_, AsyncFile::Create(host->directory(), made->bytes_, queue));
  WEFT_ASSIGN_OR_RETURN(made->writes_, made->file_->NewQueue(queue));
  host->files().bytes += made->bytes_;
  made->counted_ = true;
  return made;
}

TileFile::~TileFile() {
  writes_.reset();
  if (counted_) host_->files().bytes -= bytes_;
}

Status TileFile::StartRead(size_t tile, void* memory) {
  Tile& t = tiles_[tile];
  t.memory = memory;
  if (!t.hash) {
    std::memset(memory, 0, t.bytes);
    return OkStatus();
  }
  host_->files().moved_bytes += static_cast<int64_t>(t.bytes);
  WEFT_ASSIGN_OR_RETURN(t.pending, file_->queue().Start(false, memory, t.bytes, t.offset));
  return OkStatus();
}

Status TileFile::FinishRead(size_t tile) {
  const Tile& t = tiles_[tile];
  if (!t.hash) return OkStatus();
  WEFT_RETURN_IF_ERROR(file_->queue().Wait(t.pending));
  if (HashOf(t.memory, t.bytes) == *t.hash) return OkStatus();
  return CorruptError(file_->path() + " at byte " + std::to_string(t.offset) +
                      " is not what was written there; hint: the disk under "
                      "resources.offload_directory loses data");
}

Status TileFile::StartWrite(size_t tile, const void* memory) {
  Tile& t = tiles_[tile];
  t.hash = HashOf(memory, t.bytes);
  host_->files().moved_bytes += static_cast<int64_t>(t.bytes);
  WEFT_ASSIGN_OR_RETURN(t.pending,
                        writes_->Start(true, const_cast<void*>(memory), t.bytes, t.offset));
  return OkStatus();
}

Status TileFile::FinishWrite(size_t tile) {
  return writes_->Wait(tiles_[tile].pending);
}

Status TileFile::Flush(Tensor& cache) {
  const auto tile = static_cast<size_t>(std::exchange(cached_, -1));
  if (!std::exchange(replaced_, false)) return OkStatus();
  WEFT_RETURN_IF_ERROR(StartWrite(tile, cache.view().data));
  return FinishWrite(tile);
}

Status TileFile::Load(Tensor& cache, size_t tile) {
  if (cached_ == static_cast<int64_t>(tile)) return OkStatus();
  WEFT_RETURN_IF_ERROR(Flush(cache));
  WEFT_RETURN_IF_ERROR(StartRead(tile, cache.view().data));
  WEFT_RETURN_IF_ERROR(FinishRead(tile));
  cached_ = static_cast<int64_t>(tile);
  return OkStatus();
}

Status TileFile::Read(Tensor& cache, size_t tile, size_t at, std::span<std::byte> to) {
  WEFT_RETURN_IF_ERROR(Load(cache, tile));
  std::memcpy(to.data(), static_cast<std::byte*>(cache.view().data) + at, to.size());
  return OkStatus();
}

Status TileFile::Write(Tensor& cache, size_t tile, size_t at, std::span<const std::byte> from) {
  WEFT_RETURN_IF_ERROR(Load(cache, tile));
  std::memcpy(static_cast<std::byte*>(cache.view().data) + at, from.data(), from.size());
  replaced_ = true;
  return OkStatus();
}

}  // namespace weft::engine
