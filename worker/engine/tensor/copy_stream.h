#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/transfer.h"
#include "worker/engine/tensor/allocator.h"

namespace weft::engine {

/// Which way bytes go between a device and its host.
enum class LinkDirection : uint8_t { kDown, kUp };

/// One direction of the link between a CUDA device and pinned host memory: a stream of its own,
/// which waits for other streams, and they for it, by events; the host waits for none of them. Two
/// threads do not enqueue at the same time.
class CopyStream {
 public:
  /// `device` becomes the current one of the calling thread, for good.
  static Result<std::unique_ptr<CopyStream>> New(int device, LinkDirection direction);
  /// Waits for what is under way.
  ~CopyStream();

  Stream stream() const { return stream_->stream(); }

  /// A point after what is enqueued on `stream` so far, to Follow.
  static Result<kernels::cuda::Event> PointOf(const Stream& stream);
  /// A point after what is enqueued here so far.
  Result<kernels::cuda::Event> Point() { return PointOf(stream_->stream()); }
  /// Makes what is enqueued here from now on wait for `point`.
  Status Follow(const kernels::cuda::Event& point) { return point.Block(stream_->stream()); }

  /// Enqueues a copy; the host's memory is pinned.
  Status Copy(void* to, const void* from, size_t bytes);

  /// Takes the memory that Convert needs, once, of the host memory pool's.
  Status ReserveStaging(Allocator& host);
  /// The same upwards into elements of another float type, which the calling thread converts to
  /// piece by piece: while one goes up it makes the next. Both contiguous, of the same size.
  Status Convert(const TensorView& to, const TensorView& from);

 private:
  /// A piece on its way.
  struct Stage {
    BlockRef memory;
    kernels::cuda::Event sent;
  };

  explicit CopyStream(LinkDirection direction) : direction_(direction) {}

  const LinkDirection direction_;
  std::unique_ptr<kernels::cuda::StreamState> stream_;
  std::array<Stage, 2> stages_;
  size_t next_ = 0;  ///< Stage.
};

}  // namespace weft::engine
