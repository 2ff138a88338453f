#include "tests/gpu/host/streams.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "tests/gpu/host/device_memory.h"

namespace weft::host_cuda {
namespace {

std::recursive_mutex& Lock() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

// Guarded by Lock().
bool deferred = false;
std::set<CUstream_st*>& Streams() {
  static auto* streams = new std::set<CUstream_st*>;
  return *streams;
}

std::atomic<int64_t> waits{0};
std::atomic<bool> skipped{false};

std::string Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return "";
}

bool Reachable(const void* at, size_t bytes) {
  return IsDeviceMemory(at, bytes) || IsPinnedMemory(at, bytes);
}

}  // namespace

CUstream_st* NewStream() {
  const std::lock_guard lock(Lock());
  return *Streams().insert(new CUstream_st).first;
}

void EndStream(CUstream_st* stream) {
  const std::lock_guard lock(Lock());
  (void)RunUntil(stream, stream->enqueued);
  Streams().erase(stream);
  delete stream;
}

void SynchronizeAll() {
  const std::lock_guard lock(Lock());
  for (CUstream_st* stream : Streams()) (void)RunUntil(stream, stream->enqueued);
}

void DeferWork(bool defer) {
  const std::lock_guard lock(Lock());
  deferred = defer;
}

void SkipWork(bool skip) {
  skipped = skip;
}

bool WorkIsSkipped() {
  return skipped;
}

std::string Enqueue(CUstream_st* stream, Work work) {
  const std::lock_guard lock(Lock());
  if (skipped) work = [] { return std::string(); };
  if (stream->capture != nullptr) {
    stream->capture->nodes.push_back(std::move(work));
    return "";
  }
  stream->queue.push_back(std::move(work));
  ++stream->enqueued;
  return deferred ? stream->failure : RunUntil(stream, stream->enqueued);
}

std::string RunUntil(CUstream_st* stream, uint64_t position) {
  const std::lock_guard lock(Lock());
  const DeviceAccess open;
  while (stream->done < position && !stream->queue.empty()) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    ++stream->done;
    std::string failure = work();
    // Without deferral a failure is the call's that caused it; a device would not recover.
    if (!deferred) return failure;
    if (stream->failure.empty()) stream->failure = std::move(failure);
  }
  return stream->failure;
}

std::string Synchronize(CUstream_st* stream) {
  const std::lock_guard lock(Lock());
  if (stream->done < stream->enqueued) ++waits;
  if (stream->capture != nullptr) {
    stream->capture_failure = "a stream was waited for while it was captured";
    return stream->capture_failure;
  }
  return RunUntil(stream, stream->enqueued);
}

std::string CopyLater(CUstream_st* stream, void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(Lock());
  if (!Reachable(from, bytes)) {
    if (stream->capture != nullptr) {
      return stream->capture_failure = "a copy from pageable memory cannot be captured";
    }
    const auto* first = static_cast<const std::byte*>(from);
    return Enqueue(stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
      return Copy(to, staged.data(), staged.size());
    });
  }
  std::string failure = Enqueue(stream, [=] { return Copy(to, from, bytes); });
  if (failure.empty() && !Reachable(to, bytes)) return Synchronize(stream);
  return failure;
}

void RecordEvent(CUevent_st* event, CUstream_st* stream) {
  const std::lock_guard lock(Lock());
  event->stream = stream;
  event->position = stream->enqueued + 1;
  (void)Enqueue(stream, [event]() -> std::string {
    event->passed = std::chrono::steady_clock::now();
    return "";
  });
}

bool HasPassed(const CUevent_st* event) {
  const std::lock_guard lock(Lock());
  return event->stream == nullptr || event->stream->done >= event->position;
}

std::string Synchronize(CUevent_st* event) {
  const std::lock_guard lock(Lock());
  if (!HasPassed(event)) ++waits;
  return event->stream == nullptr ? "" : RunUntil(event->stream, event->position);
}

std::string WaitForEvent(CUstream_st* stream, CUevent_st* event) {
  const std::lock_guard lock(Lock());
  if (event->stream == nullptr) return "";
  return Enqueue(stream, [other = event->stream, position = event->position] {
    return RunUntil(other, position);
  });
}

int64_t Waits() {
  return waits;
}

}  // namespace weft::host_cuda
