#include "worker/engine/tensor/file_images.h"

#include <algorithm>
#include <utility>

#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {
namespace {

// Enough for a disk's full rate, and little to read for a part of it.
constexpr size_t kTileBytes = size_t{4} << 20;
constexpr size_t kTilesInFlight = 4;

}  // namespace

Result<std::unique_ptr<FileImages>> FileImages::New(const Context& below, Component component,
                                                    FileLanes* lanes,
                                                    const std::vector<int64_t>& bytes) {
  std::unique_ptr<FileImages> made(new FileImages(below, component, lanes));
  std::vector<int64_t> tiles;
  for (const int64_t of_image : bytes) {
    Image image;
    image.first_tile = tiles.size();
    image.bytes = (static_cast<size_t>(of_image) + AsyncFile::kAlignment - 1) /
                  AsyncFile::kAlignment * AsyncFile::kAlignment;
    for (size_t at = 0; at < image.bytes; at += kTileBytes) {
      image.tiles.push_back(std::min(kTileBytes, image.bytes - at));
      tiles.push_back(static_cast<int64_t>(image.tiles.back()));
      made->largest_tile_ = std::max(made->largest_tile_, image.tiles.back());
    }
    made->images_.push_back(std::move(image));
  }
  WEFT_ASSIGN_OR_RETURN(made->file_, TileFile::New(below.host, tiles));
  return made;
}

FileImages::~FileImages() {
  (void)lanes_->reads.WaitForAll();
  (void)lanes_->writes.WaitForAll();
}

// What has been started is waited for in any case: its memory goes to others.
Status FileImages::MoveTiles(const Image& image, std::byte* memory, bool write) {
  Status status;
  size_t started = 0, finished = 0, at = 0;
  while (finished < started || (status.ok() && started < image.tiles.size())) {
    const bool starts =
        status.ok() && started < image.tiles.size() && started - finished < kTilesInFlight;
    const size_t tile = image.first_tile + (starts ? started : finished);
    if (starts) {
      status = write ? file_->StartWrite(tile, memory + at) : file_->StartRead(tile, memory + at);
      at += image.tiles[started];
      started += status.ok() ? 1 : 0;
      continue;
    }
    ++finished;
    Status moved = write ? file_->FinishWrite(tile) : file_->FinishRead(tile);
    if (status.ok()) status = std::move(moved);
  }
  return status;
}

Status FileImages::Start(size_t i, bool reads) {
  WEFT_RETURN_IF_ERROR(CloseWindow());
  Image& image = images_[i];
  if (image.memory || image.bytes == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(image.memory,
                        NewTileMemory(below_, component_, static_cast<int64_t>(image.bytes)));
  image.reading = 0;
  if (!reads) return OkStatus();
  image.reading =
      lanes_->reads.Enqueue([this, &image, to = memory(i), after = image.written]() -> Status {
        WEFT_RETURN_IF_ERROR(lanes_->writes.WaitUncounted(after));
        return MoveTiles(image, to, false);
      });
  return OkStatus();
}

Status FileImages::Await(size_t i) {
  Stopwatch watch;
  Status status = AwaitUncounted(i);
  below_.host->files().waited_seconds += watch.Lap();
  return status;
}

Status FileImages::AwaitUncounted(size_t i) {
  return lanes_->reads.WaitUncounted(images_[i].reading);
}

void FileImages::Write(size_t i, std::function<Status()> before) {
  Image& image = images_[i];
  if (!image.memory) return;
  image.writes = true;
  image.written = lanes_->writes.Enqueue(
      [this, &image, from = memory(i), before = std::move(before)]() -> Status {
        if (before) WEFT_RETURN_IF_ERROR(before());
        return MoveTiles(image, from, true);
      });
}

void FileImages::Drop(size_t i) {
  Image& image = images_[i];
  Tensor memory = std::exchange(image.memory, {});
  if (std::exchange(image.writes, false)) leaving_.push_back({std::move(memory), image.written});
}

void FileImages::WriteBehind(size_t i, std::function<Status()> before) {
  Write(i, std::move(before));
  Drop(i);
}

Status FileImages::FinishWrites(size_t most) {
  Stopwatch watch;
  Status status;
  while (leaving_.size() > most) {
    status = lanes_->writes.WaitUncounted(leaving_.front().job);
    leaving_.pop_front();
  }
  below_.host->files().waited_seconds += watch.Lap();
  return status;
}

template <class Run>
Status FileImages::ForBytes(size_t i, size_t at, size_t bytes, Run&& run) {
  if (!window_) {
    WEFT_RETURN_IF_ERROR(FinishWrites());
    WEFT_RETURN_IF_ERROR(lanes_->reads.WaitUncounted(images_[i].reading));
    WEFT_ASSIGN_OR_RETURN(window_,
                          NewTileMemory(below_, component_, static_cast<int64_t>(largest_tile_)));
  }
  WEFT_CHECK(at + bytes <= images_[i].bytes, "within the image");
  for (size_t done = 0; done < bytes;) {
    const size_t from = (at + done) % kTileBytes;
    const size_t count = std::min(bytes - done, kTileBytes - from);
    WEFT_RETURN_IF_ERROR(run(images_[i].first_tile + (at + done) / kTileBytes, from, done, count));
    done += count;
  }
  return OkStatus();
}

Status FileImages::Read(size_t i, size_t at, std::span<std::byte> to) {
  return ForBytes(i, at, to.size(), [&](size_t tile, size_t from, size_t done, size_t count) {
    return file_->Read(window_, tile, from, to.subspan(done, count));
  });
}

Status FileImages::Write(size_t i, size_t at, std::span<const std::byte> from) {
  return ForBytes(i, at, from.size(), [&](size_t tile, size_t to, size_t done, size_t count) {
    return file_->Write(window_, tile, to, from.subspan(done, count));
  });
}

Status FileImages::CloseWindow() {
  if (!window_) return OkStatus();
  WEFT_RETURN_IF_ERROR(file_->Flush(window_));
  window_ = {};
  return OkStatus();
}

}  // namespace weft::engine
