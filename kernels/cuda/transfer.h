#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/status.h"
#include "kernels/stream.h"

struct CUevent_st;

namespace weft::kernels::cuda {

/// A piece of this process's PinnedArena: page-locked host memory, which the copy engines of all
/// devices read and write by themselves, at full speed while nobody waits. Not thread-safe.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// kExhausted when there is not as much; kUnavailable without a CUDA back end.
  static Result<PinnedMemory> Allocate(size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// A point in the work of a stream. Not thread-safe.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// `timed`: for SecondsSince.
  static Result<Event> Create(const Stream& stream, bool timed = false);

  explicit operator bool() const { return handle_ != nullptr; }

  /// The point is after everything enqueued on `stream` so far; placed while a graph is recorded,
  /// after that part of the latest run.
  Status Place(const Stream& stream);
  /// What is enqueued on `stream` from now on waits for the recorded point; nobody else does.
  Status Block(const Stream& stream) const;
  /// Returns when the stream has passed the recorded point; at once where none was recorded.
  Status Wait() const;
  /// Whether it has.
  Result<bool> Passed() const;

  /// Between two timed points that their streams have passed.
  Result<double> SecondsSince(const Event& earlier) const;

 private:
  CUevent_st* handle_ = nullptr;
};

// Copies and fills in the order of a stream. Those between a device and memory that is not pinned
// cost the caller time: from such memory it may change once the call returns, and into it the call
// waits for the stream. Pinned memory is read and written when the stream comes to it.

Status CopyToDevice(const Stream& stream, void* to, const void* host, size_t bytes);
Status CopyToHost(const Stream& stream, void* host, const void* from, size_t bytes);

/// Copies `rows` rows of `width` bytes, one every `to_pitch` and `from_pitch` bytes, within the
/// device.
Status CopyRowsOnDevice(const Stream& stream, void* to, size_t to_pitch, const void* from,
                        size_t from_pitch, size_t width, size_t rows);

Status FillBytes(const Stream& stream, void* to, uint8_t value, size_t bytes);

/// Memory of a device.
struct MemoryInfo {
  size_t free = 0;
  size_t total = 0;
};
Result<MemoryInfo> MemoryOf(int device);

}  // namespace weft::kernels::cuda
