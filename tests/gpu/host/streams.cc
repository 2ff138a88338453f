#include "tests/gpu/host/streams.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
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

// Guarded by Mutex().
bool deferred = false;
std::set<std::shared_ptr<CUstream_st>>& Streams() {
  static auto* streams = new std::set<std::shared_ptr<CUstream_st>>;
  return *streams;
}

std::atomic<int64_t> waits{0};
std::atomic<bool> skipped{false};

// What the calling thread captures.
thread_local CUstream_st* captured = nullptr;

std::string Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return "";
}

bool Reachable(const void* at, size_t bytes) {
  return IsDeviceMemory(at, bytes) || IsPinnedMemory(at, bytes);
}

// Runs what was enqueued before `position`; the lock is free while work runs. The memory is opened
// for all of it at once: each time goes over its pages.
std::string RunUntil(Lock& lock, CUstream_st& stream, uint64_t position) {
  std::optional<DeviceAccess> open;
  while (stream.done < position && stream.done < stream.enqueued) {
    if (stream.running) {
      stream.changed.wait(lock);
      continue;
    }
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.running = true;
    lock.unlock();
    if (!open) open.emplace();
    std::string failure = work();
    lock.lock();
    stream.running = false;
    ++stream.done;
    stream.changed.notify_all();
    // Without deferral a failure is the call's that caused it; a device would not recover.
    if (!deferred) return failure;
    if (stream.failure.empty()) stream.failure = std::move(failure);
  }
  return stream.failure;
}

// Adds a node for a stream that takes part in a capture.
void AddNode(CUstream_st& stream, CUgraph_st::Node node) {
  Capture& capture = *stream.capture;
  if (&stream != capture.origin) node.stream = stream.shared_from_this();
  capture.graph.nodes.push_back(std::move(node));
  ++capture.streams[&stream][&stream];
}

std::string Enqueue(Lock& lock, CUstream_st& stream, Work work) {
  if (skipped) work = [] { return std::string(); };
  if (stream.capture != nullptr) {
    AddNode(stream, {.work = std::move(work)});
    return "";
  }
  stream.queue.push_back(std::move(work));
  ++stream.enqueued;
  if (stream.thread.joinable()) stream.changed.notify_all();
  if (deferred || stream.thread.joinable()) return stream.failure;
  return RunUntil(lock, stream, stream.enqueued);
}

// While the calling thread captures: why it may not do that, which the end of the capture reports.
std::string Refuse(const std::string& what) {
  if (captured == nullptr) return "";
  std::string failure = what + " while the thread captures a stream";
  if (captured->capture->failure.empty()) captured->capture->failure = failure;
  return failure;
}

std::string Record(Lock& lock, CUevent_st& event, CUstream_st& stream) {
  event.stream = stream.shared_from_this();
  event.position = stream.enqueued + 1;
  event.passed = std::make_shared<std::chrono::steady_clock::time_point>();
  event.captured = nullptr;
  return Enqueue(lock, stream, [passed = event.passed]() -> std::string {
    *passed = std::chrono::steady_clock::now();
    return "";
  });
}

// `position`: of a point in the work of `other`.
std::string WaitFor(Lock& lock, CUstream_st& stream, std::shared_ptr<CUstream_st> other,
                    uint64_t position) {
  return Enqueue(lock, stream, [other = std::move(other), position] {
    Lock held(Mutex());
    return RunUntil(held, *other, position);
  });
}

// Waits for a point of a capture, which `stream` joins where it does not take part yet.
std::string WaitWithin(CUstream_st& stream, const CapturedPoint& point) {
  const std::shared_ptr<Capture> capture = point.capture.lock();
  if (capture == nullptr) return "an event of a capture that has ended is waited for";
  if (stream.capture == nullptr) stream.capture = capture;
  if (stream.capture != capture) return Refuse("an event of another capture is waited for");
  Capture::Reach& reach = capture->streams[&stream];
  for (const auto& [other, nodes] : point.reach) reach[other] = std::max(reach[other], nodes);
  AddNode(stream, {.awaited = point.in_launch});
  return "";
}

std::string Synchronize(Lock& lock, CUstream_st& stream) {
  if (std::string refused = Refuse("a stream is waited for"); !refused.empty()) return refused;
  if (stream.done < stream.enqueued) ++waits;
  return RunUntil(lock, stream, stream.enqueued);
}

void RunByItself(CUstream_st& stream) {
  Lock lock(Mutex());
  while (true) {
    stream.changed.wait(lock, [&] { return stream.closing || stream.done < stream.enqueued; });
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
    own->changed.notify_all();
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

std::string BeginCapture(CUstream_st* stream) {
  const Lock lock(Mutex());
  if (captured != nullptr) return "this thread captures another stream";
  if (stream->capture != nullptr) return "another thread captures this stream";
  captured = stream;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->streams[stream] = {};
  return "";
}

std::unique_ptr<CUgraph_st> EndCapture(CUstream_st* stream, std::string* failure) {
  const Lock lock(Mutex());
  if (captured != stream) {
    *failure = "the thread does not capture this stream";
    return nullptr;
  }
  captured = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  for (const auto& [other, reach] : capture->streams) {
    other->capture = nullptr;
    const auto own = reach.find(other);
    if (own == reach.end() || capture->streams[stream][other] == own->second) continue;
    if (capture->failure.empty()) capture->failure = "the work of a stream was not joined";
  }
  *failure = capture->failure;
  if (!failure->empty()) return nullptr;
  return std::make_unique<CUgraph_st>(std::move(capture->graph));
}

std::string LaunchGraph(const CUgraph_st& graph, CUstream_st* stream) {
  Lock lock(Mutex());
  if (stream->capture != nullptr) return Refuse("a graph is launched");
  std::string failure;
  for (const CUgraph_st::Node& node : graph.nodes) {
    CUstream_st& runs = node.stream != nullptr ? *node.stream : *stream;
    std::string of_node = node.event != nullptr ? Record(lock, *node.event, runs)
                          : node.awaited != nullptr
                              ? WaitFor(lock, runs, node.awaited->stream, node.awaited->position)
                              : Enqueue(lock, runs, node.work);
    if (failure.empty()) failure = std::move(of_node);
  }
  return failure;
}

std::string RefuseInCapture(const std::string& what) {
  const Lock lock(Mutex());
  return Refuse(what);
}

bool IsCaptured(CUstream_st* stream) {
  const Lock lock(Mutex());
  return stream->capture != nullptr;
}

std::string Synchronize(CUstream_st* stream) {
  Lock lock(Mutex());
  return Synchronize(lock, *stream);
}

std::string CopyLater(CUstream_st* stream, void* to, const void* from, size_t bytes) {
  Lock lock(Mutex());
  if (!Reachable(from, bytes)) {
    if (stream->capture != nullptr) return Refuse("pageable memory is copied");
    const auto* first = static_cast<const std::byte*>(from);
    return Enqueue(lock, *stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
      return Copy(to, staged.data(), staged.size());
    });
  }
  if (stream->capture != nullptr && !Reachable(to, bytes)) {
    return Refuse("pageable memory is copied to");
  }
  std::string failure = Enqueue(lock, *stream, [=] { return Copy(to, from, bytes); });
  if (failure.empty() && !Reachable(to, bytes)) return Synchronize(lock, *stream);
  return failure;
}

std::string RecordEvent(CUevent_st* event, CUstream_st* stream, bool external) {
  Lock lock(Mutex());
  if (Capture* const capture = stream->capture.get(); capture != nullptr) {
    if (external) {
      event->captured = nullptr;
      AddNode(*stream, {.event = event});
      return "";
    }
    auto point = std::make_shared<CapturedPoint>();
    point->capture = stream->capture;
    point->in_launch = std::make_shared<CUevent_st>();
    point->in_launch->device = event->device;
    capture->graph.points.push_back(point->in_launch);
    AddNode(*stream, {.event = point->in_launch.get()});
    point->reach = capture->streams[stream];
    event->captured = std::move(point);
    return "";
  }
  if (external) return "an event is recorded for a graph and none is captured";
  return Record(lock, *event, *stream);
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
  if (std::string refused = Refuse("an event is waited for"); !refused.empty()) return refused;
  const std::shared_ptr<CUstream_st> stream = event->stream;
  if (stream == nullptr) return "";
  const uint64_t position = event->position;
  if (stream->done < position) ++waits;
  return RunUntil(lock, *stream, position);
}

std::string WaitForEvent(CUstream_st* stream, CUevent_st* event) {
  Lock lock(Mutex());
  if (event->captured != nullptr) return WaitWithin(*stream, *event->captured);
  if (event->stream == nullptr) return "";
  if (stream->capture != nullptr) return Refuse("an event from outside is waited for");
  return WaitFor(lock, *stream, event->stream, event->position);
}

int64_t Waits() {
  return waits;
}

}  // namespace weft::host_cuda
