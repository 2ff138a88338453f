#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "common/status.h"

namespace weft::engine {

/// What went over one direction of a link since the start.
struct LinkTotals {
  int64_t bytes = 0;
  double busy_seconds = 0;    ///< Something was on the way.
  double waited_seconds = 0;  ///< Somebody stood still for it.
};

/// One direction of the link between device memory and host memory: runs jobs in their order on a
/// thread of its own. On the CPU back end, where both are the memory of the process, a rate can be
/// emulated: whoever moves bytes then is held up for as long as the link would take. Thread-safe.
class LinkLane {
 public:
  using Job = std::function<Status()>;

  /// `bytes_per_second`; 0: as fast as it goes.
  explicit LinkLane(int64_t bytes_per_second);
  /// Finishes what is enqueued.
  ~LinkLane();
  LinkLane(const LinkLane&) = delete;
  LinkLane& operator=(const LinkLane&) = delete;

  /// Enqueues a job, which may call Copy and Pass, and returns its number, counted from 1.
  int64_t Enqueue(Job job);

  /// Waits for job `number` and all before it. The first failure of a job is told by every later
  /// call.
  Status WaitFor(int64_t number);
  /// The same in a thread for which nobody waits: its time does not count as waited.
  Status WaitUncounted(int64_t number);

  /// Waits for all jobs.
  Status WaitForAll();

  /// Copies bytes over the link; returns when they have arrived.
  void Copy(void* to, const void* from, size_t bytes);

  /// Accounts for bytes that `move` brings over the link.
  Status Move(size_t bytes, const Job& move);

  LinkTotals totals() const;

 private:
  using Clock = std::chrono::steady_clock;

  void Run();

  const double seconds_per_byte_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int64_t enqueued_ = 0;
  int64_t finished_ = 0;
  bool ends_ = false;
  Status status_;
  Clock::time_point free_at_;  ///< The link has carried all that was given to it.
  LinkTotals totals_;
  std::thread thread_;
};

}  // namespace weft::engine
