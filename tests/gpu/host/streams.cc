#include "tests/gpu/host/streams.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "tests/gpu/host/device_memory.h"

namespace weft::host_cuda {
namespace {

std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
using Lock = std::unique_lock<std::mutex>;

// That some stream has got further.
std::condition_variable& Changed() {
  static auto* changed = new std::condition_variable;
  return *changed;
}

// Guarded by Mutex().
bool deferred = false;
std::set<std::shared_ptr<CUstream_st>>& Streams() {
  static auto* streams = new std::set<std::shared_ptr<CUstream_st>>;
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

// Runs what was enqueued before `position`; the lock is free while work runs.
std::string RunUntil(Lock& lock, CUstream_st& stream, uint64_t position) {
  while (stream.done < position && stream.done < stream.enqueued) {
    if (stream.running) {
      Changed().wait(lock);
      continue;
    }
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.running = true;
    lock.unlock();
    std::string failure;
    {
      const DeviceAccess open;
      failure = work();
    }
    lock.lock();
    stream.running = false;
    ++stream.done;
    Changed().notify_all();
    // Without deferral a failure is the call's that caused it; a device would not recover.
    if (!deferred) return failure;
    if (stream.failure.empty()) stream.failure = std::move(failure);
  }
  return stream.failure;
}

std::string Enqueue(Lock& lock, CUstream_st& stream, Work work) {
  if (skipped) work = [] { return std::string(); };
  if (stream.capture != nullptr) {
    stream.capture->nodes.push_back(std::move(work));
    return "";
  }
  stream.queue.push_back(std::move(work));
  ++stream.enqueued;
  if (stream.thread.joinable()) Changed().notify_all();
  if (deferred || stream.thread.joinable()) return stream.failure;
  return RunUntil(lock, stream, stream.enqueued);
}

std::string Synchronize(Lock& lock, CUstream_st& stream) {
  if (stream.done < stream.enqueued) ++waits;
  if (stream.capture != nullptr) {
    stream.capture_failure = "a stream was waited for while it was captured";
    return stream.capture_failure;
  }
  return RunUntil(lock, stream, stream.enqueued);
}

void RunByItself(CUstream_st& stream) {
  Lock lock(Mutex());
  while (true) {
    Changed().wait(lock, [&] { return stream.closing || stream.done < stream.enqueued; });
    if (stream.closing) return;
    (void)RunUntil(lock, stream, stream.enqueued);
  }
}

}  // namespace

CUstream_st* NewStream(bool by_itself) {
  const auto stream = std::make_shared<CUstream_st>();
  stream->device = CurrentDevice();
  if (by_itself) stream->thread = std::thread([&own = *stream] { RunByItself(own); });
  const Lock lock(Mutex());
  Streams().insert(stream);
  return stream.get();
}

void EndStream(CUstream_st* stream) {
  const std::shared_ptr<CUstream_st> own = stream->shared_from_this();
  {
    Lock lock(Mutex());
    (void)RunUntil(lock, *own, own->enqueued);
    Streams().erase(own);
    own->closing = true;
    Changed().notify_all();
  }
  if (own->thread.joinable()) own->thread.join();
}

CUevent_st* NewEvent() {
  auto* event = new CUevent_st;
  event->device = CurrentDevice();
  return event;
}

void SynchronizeAll() {
  Lock lock(Mutex());
  const auto streams = Streams();
  for (const auto& stream : streams) {
    if (stream->device == CurrentDevice()) (void)RunUntil(lock, *stream, stream->enqueued);
  }
}

void DeferWork(bool defer) {
  const Lock lock(Mutex());
  deferred = defer;
}

void SkipWork(bool skip) {
  skipped = skip;
}

bool WorkIsSkipped() {
  return skipped;
}

std::string Enqueue(CUstream_st* stream, Work work) {
  Lock lock(Mutex());
  return Enqueue(lock, *stream, std::move(work));
}

std::string RunUntil(CUstream_st* stream, uint64_t position) {
  Lock lock(Mutex());
  return RunUntil(lock, *stream, position);
}

std::string Synchronize(CUstream_st* stream) {
  Lock lock(Mutex());
  return Synchronize(lock, *stream);
}

std::string CopyLater(CUstream_st* stream, void* to, const void* from, size_t bytes) {
  Lock lock(Mutex());
  if (!Reachable(from, bytes)) {
    if (stream->capture != nullptr) {
      return stream->capture_failure = "a copy from pageable memory cannot be captured";
    }
    const auto* first = static_cast<const std::byte*>(from);
    return Enqueue(lock, *stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
      return Copy(to, staged.data(), staged.size());
    });
  }
  std::string failure = Enqueue(lock, *stream, [=] { return Copy(to, from, bytes); });
  if (failure.empty() && !Reachable(to, bytes)) return Synchronize(lock, *stream);
  return failure;
}

void RecordEvent(CUevent_st* event, CUstream_st* stream) {
  Lock lock(Mutex());
  event->stream = stream->shared_from_this();
  event->position = stream->enqueued + 1;
  event->passed = std::make_shared<std::chrono::steady_clock::time_point>();
  (void)Enqueue(lock, *stream, [passed = event->passed]() -> std::string {
    *passed = std::chrono::steady_clock::now();
    return "";
  });
}

bool HasPassed(const CUevent_st* event) {
  const Lock lock(Mutex());
  return event->stream == nullptr || event->stream->done >= event->position;
}

float MillisecondsBetween(const CUevent_st* from, const CUevent_st* to) {
  const Lock lock(Mutex());
  return std::chrono::duration<float, std::milli>(*to->passed - *from->passed).count();
}

std::string Synchronize(CUevent_st* event) {
  Lock lock(Mutex());
  const std::shared_ptr<CUstream_st> stream = event->stream;
  if (stream == nullptr) return "";
  const uint64_t position = event->position;
  if (stream->done < position) ++waits;
  return RunUntil(lock, *stream, position);
}

std::string WaitForEvent(CUstream_st* stream, CUevent_st* event) {
  Lock lock(Mutex());
  if (event->stream == nullptr) return "";
  return Enqueue(lock, *stream, [other = event->stream, position = event->position] {
    Lock held(Mutex());
    return RunUntil(held, *other, position);
  });
}

int64_t Waits() {
  return waits;
}

}  // namespace weft::host_cuda
