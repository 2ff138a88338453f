#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace weft::host_cuda {

/// A piece of a stream's work: returns what went wrong, empty when nothing did. Device memory is
/// open while it runs.
using Work = std::function<std::string()>;

struct Capture;
struct CapturedPoint;

}  // namespace weft::host_cuda

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.

struct CUevent_st;
struct CUstream_st;

/// A captured sequence of work, and what is made of it to be launched. What streams that joined the
/// captured one brought runs on them again.
struct CUgraph_st {
  /// One of the three.
  struct Node {
    std::shared_ptr<CUstream_st> stream = {};  ///< None: the one that it is launched on.
    weft::host_cuda::Work work = {};
    CUevent_st* event = nullptr;               ///< A point that each launch passes.
    std::shared_ptr<CUevent_st> awaited = {};  ///< A point of the launch that is waited for.
  };
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<CUevent_st>> points;  ///< Those that are.
};
struct CUgraphExec_st : CUgraph_st {};

/// A stream: work that waits to be run, in order. Under CUDA's name, so that its handle is one.
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  int device = 0;
  std::deque<weft::host_cuda::Work> queue;
  uint64_t enqueued = 0;
  uint64_t done = 0;
  bool running = false;  ///< The work after `done`, on some thread.
  bool closing = false;
  std::condition_variable changed;                    ///< What of these is waited for.
  std::thread thread;                                 ///< Of one that runs by itself.
  std::string failure;                                ///< The first; stays.
  std::shared_ptr<weft::host_cuda::Capture> capture;  ///< That it takes part in.
};

/// A point in a stream's work.
struct CUevent_st {
  int device = 0;
  std::shared_ptr<CUstream_st> stream;
  uint64_t position = 0;
  /// When the stream came to it; of each record anew.
  std::shared_ptr<std::chrono::steady_clock::time_point> passed;
  std::shared_ptr<weft::host_cuda::CapturedPoint> captured;  ///< Instead, of a capture.
};

// NOLINTEND(readability-identifier-naming)

namespace weft::host_cuda {

/// A capture under way. Streams that wait for one of its points join it.
struct Capture {
  CUstream_st* origin = nullptr;
  CUgraph_st graph;
  std::string failure;  ///< The first.
  /// Counts the nodes of each stream that come before what a stream gets next.
  using Reach = std::map<CUstream_st*, size_t>;
  std::map<CUstream_st*, Reach> streams;
};
struct CapturedPoint {
  std::weak_ptr<Capture> capture;
  std::shared_ptr<CUevent_st> in_launch;
  Capture::Reach reach;
};

// Unless a test asks for more, work runs as soon as it is enqueued. Deferred work runs when
// a thread waits for it, and no sooner: a host that reads a result without waiting, or writes over
// what an asynchronous copy still has to read, gets other bits than it should. From any thread: the
// work of a stream runs on whichever waits for it first, that of several streams at the same time.

/// On the current device; `by_itself`: on a thread of its own, as soon as it can, as work does that
/// waits for others than this device's streams.
CUstream_st* NewStream(bool by_itself = false);
void EndStream(CUstream_st* stream);

/// On the current device.
CUevent_st* NewEvent();

/// Runs everything enqueued on all streams of the current device, as calls that free memory do.
void SynchronizeAll();

/// Whether work is deferred from now on.
void DeferWork(bool defer);

/// Whether work is dropped from now on instead of run, and new memory of the device left as it is:
/// what is computed is nothing, what memory it takes is known at any size.
void SkipWork(bool skip);
bool WorkIsSkipped();

/// Appends `work`, to the graph where one is being captured. Returns the failure of the stream.
std::string Enqueue(CUstream_st* stream, Work work);

/// Runs what was enqueued before `position`.
std::string RunUntil(CUstream_st* stream, uint64_t position);

/// Runs everything enqueued; an error within a capture.
std::string Synchronize(CUstream_st* stream);

/// From now on what the calling thread enqueues on `stream` is captured. As in the mode
/// cudaStreamCaptureModeThreadLocal, what would wait or take memory is refused to this thread, and
/// the capture has failed.
std::string BeginCapture(CUstream_st* stream);
/// Ends that. Null, with the first thing that cannot be captured, when there was one: also a stream
/// that joined and was given work which the captured one does not wait for.
std::unique_ptr<CUgraph_st> EndCapture(CUstream_st* stream, std::string* failure);
/// Enqueues all of it.
std::string LaunchGraph(const CUgraph_st& graph, CUstream_st* stream);
/// While the calling thread captures, fails the capture and returns why; otherwise empty.
std::string RefuseInCapture(const std::string& what);
/// Whether `stream` takes part in a capture.
bool IsCaptured(CUstream_st* stream);

/// Copies as cudaMemcpyAsync does, with what that means for memory that is not page-locked: it is
/// read at once, and written before the call returns.
std::string CopyLater(CUstream_st* stream, void* to, const void* from, size_t bytes);

/// Both of the same device. `external`: within a capture the event is passed by each launch of the
/// graph. One that is not orders the streams of the capture.
std::string RecordEvent(CUevent_st* event, CUstream_st* stream, bool external);
bool HasPassed(const CUevent_st* event);
/// Between two events that have passed.
float MillisecondsBetween(const CUevent_st* from, const CUevent_st* to);
/// Runs what was enqueued before the event was recorded.
std::string Synchronize(CUevent_st* event);
std::string WaitForEvent(CUstream_st* stream, CUevent_st* event);

/// How often a thread waited for work that was not done yet, since the start of the process.
int64_t Waits();

}  // namespace weft::host_cuda
