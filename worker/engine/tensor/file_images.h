#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/tensor/tile_file.h"
#include "worker/engine/tensor/transfer_queue.h"

namespace weft::engine {

/// The threads that read and write files while others compute.
struct FileLanes {
  TransferQueue reads{0};
  TransferQueue writes{0};
};

/// Numbers in a file; a few at a time are in the memory of the host memory pool: images, each as it
/// is in memory, that are asked for by their number. Memory is taken and given back
/// by the one thread that calls this, so that what is held does not depend on the disk.
class FileImages {
 public:
  /// `below`: of the host memory pool, where images are counted as `component`. They have this many
  /// bytes, and are zero. Tier and lanes outlive this.
  static Result<std::unique_ptr<FileImages>> New(const Context& below, Component component,
                                                 FileLanes* lanes,
                                                 const std::vector<int64_t>& bytes);
  /// Waits for what is under way.
  ~FileImages();

  /// Takes memory for image `i` and begins to read it, or with `reads` false leaves that undefined;
  /// nothing where it is in memory.
  Status Start(size_t i, bool reads = true);
  /// Waits until it has been read.
  Status Await(size_t i);
  /// The same in another thread than the one that computes, which does not wait for it.
  Status AwaitUncounted(size_t i);
  /// Where it is in memory; null: nowhere.
  std::byte* memory(size_t i) const {
    return static_cast<std::byte*>(images_[i].memory.view().data);
  }
  /// Makes it zero there. An image of no bytes is nowhere.
  void Clear(size_t i) { std::fill_n(memory(i), images_[i].bytes, std::byte{0}); }
  /// Writes it, once `before` has returned; it stays in memory.
  void Write(size_t i, std::function<Status()> before = {});
  /// Gives back the memory of one that is not being read, once it is written where it is to be.
  void Drop(size_t i);
  /// Writes it, once `before` has returned, and then gives back its memory.
  void WriteBehind(size_t i, std::function<Status()> before = {});
  /// Waits until this many images at most that were dropped are being written.
  Status FinishWrites(size_t most = 0);
  int64_t bytes(size_t i) const { return static_cast<int64_t>(images_[i].bytes); }

  /// Reads or replaces bytes of image `i` from byte `at` on, while no image is in memory.
  Status Read(size_t i, size_t at, std::span<std::byte> to);
  Status Write(size_t i, size_t at, std::span<const std::byte> from);

  AsyncFile& file() { return file_->file(); }

 private:
  struct Image {
    size_t first_tile = 0;
    std::vector<size_t> tiles;  ///< Bytes of each.
    size_t bytes = 0;
    Tensor memory;
    int64_t reading = 0;  ///< Number of the last read and write in their lanes.
    int64_t written = 0;
    bool writes = false;  ///< What is in memory: that write may be under way.
  };
  struct Leaving {
    Tensor memory;
    int64_t job = 0;
  };

  FileImages(const Context& below, Component component, FileLanes* lanes)
      : below_(below), component_(component), lanes_(lanes) {}
  /// Reads or writes all tiles, several of them under way.
  Status MoveTiles(const Image& image, std::byte* memory, bool write);
  /// run(tile, first byte in it, first byte of those asked for, bytes).
  template <class Run>
  Status ForBytes(size_t i, size_t at, size_t bytes, Run&& run);
  Status CloseWindow();

  Context below_;
  const Component component_;
  FileLanes* const lanes_;
  std::vector<Image> images_;
  size_t largest_tile_ = 0;
  std::deque<Leaving> leaving_;
  Tensor window_;  ///< What Read and Write see, where they were the last ones.
  std::unique_ptr<TileFile> file_;
};

}  // namespace weft::engine
