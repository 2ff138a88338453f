#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::host_cuda {

/// A piece of a stream's work: returns what went wrong, empty when nothing did. Device memory is
/// open while it runs.
using Work = std::function<std::string()>;

}  // namespace weft::host_cuda

// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's.

/// A captured sequence of work.
struct CUgraph_st {
  std::vector<weft::host_cuda::Work> nodes;
};

/// A stream: work that waits to be run, in order. Under CUDA's name, so that its handle is one.
struct CUstream_st {
  std::deque<weft::host_cuda::Work> queue;
  uint64_t enqueued = 0;
  uint64_t done = 0;
  std::string failure;                  ///< The first; stays.
  std::unique_ptr<CUgraph_st> capture;  ///< While one is under way.
  std::string capture_failure;
};

/// A point in a stream's work.
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t position = 0;
  std::chrono::steady_clock::time_point passed;
};

// NOLINTEND(readability-identifier-naming)

namespace weft::host_cuda {

// Unless a test asks for more, work runs as soon as it is enqueued. Deferred work runs when
// somebody waits for it, and no sooner: a host that reads a result without waiting, or writes over
// what an asynchronous copy still has to read, gets other bits than it should. One lock guards all
// streams.

/// Streams are made and ended by these.
CUstream_st* NewStream();
void EndStream(CUstream_st* stream);

/// Runs everything enqueued on all streams, as calls that free memory do.
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

/// Copies as cudaMemcpyAsync does, with what that means for memory that is not page-locked: it is
/// read at once, and written before the call returns.
std::string CopyLater(CUstream_st* stream, void* to, const void* from, size_t bytes);

void RecordEvent(CUevent_st* event, CUstream_st* stream);
bool HasPassed(const CUevent_st* event);
/// Runs what was enqueued before the event was recorded.
std::string Synchronize(CUevent_st* event);
std::string WaitForEvent(CUstream_st* stream, CUevent_st* event);

/// How often somebody waited for work that was not done yet, since the start of the process.
int64_t Waits();

}  // namespace weft::host_cuda
