#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "coordinator/service/event_loop.h"

namespace weft::coordinator {

class PlanningPool;

/// A piece of planning that was handed to a pool. From any thread.
class PlanTicket {
 public:
  /// To be looked at now and then: whether the answer is of no use any more.
  std::stop_token stop() const { return source_.get_token(); }
  /// It was asked to stop because it took longer than its budget.
  bool overran() const { return overran_; }

 private:
  friend class PlanningPool;

  std::stop_source source_;
  std::atomic<bool> overran_ = false;
  std::function<void(const PlanTicket&)> work_;
  std::chrono::nanoseconds budget_{0};
};

/// A bounded number of threads that plan, so that the event loop and the threads of calls never do.
/// Work has a budget of time, and ends early when whoever asked for it is gone. Work that waits is
/// in a line. The first thread takes the head of it and the others its end: a flood of slow work
/// delays what is before it, and after it, by one piece of work at most.
class PlanningPool {
 public:
  /// Called exactly once, with a stop already requested where it was cancelled before its turn.
  using Work = std::function<void(const PlanTicket&)>;

  /// `threads`: 2 at least. 0: none, and whoever drives the pool calls RunFirst, as a simulation
  /// does.
  PlanningPool(const Clock& clock, int threads,
               size_t most_waiting = std::numeric_limits<size_t>::max());
  ~PlanningPool() { Stop(); }
  PlanningPool(const PlanningPool&) = delete;
  PlanningPool& operator=(const PlanningPool&) = delete;

  /// Has a thread call `work`, which is asked to stop `budget` after it began. Null where too much
  /// waits already, or the pool was stopped.
  std::shared_ptr<PlanTicket> Add(std::chrono::nanoseconds budget, Work work);

  /// What of the work waits still for its turn goes to the end of the line, in this order.
  void MoveToEnd(const std::vector<std::shared_ptr<PlanTicket>>& tickets);

  /// Asks the work to stop. What waits still for its turn has it at once, on this thread.
  void Cancel(const std::shared_ptr<PlanTicket>& ticket);

  /// Cancels all, and waits until no work is left.
  void Stop();

  /// Looks at the clock again; for a ManualClock that was moved.
  void Wake() { watch_.Wake(); }

  /// For a pool without threads: does the work at the head of the line on this thread, without
  /// looking at its budget. Whether there was any.
  bool RunFirst();

 private:
  void Serve(bool from_head);

  EventLoop watch_;  ///< Of budgets.
  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<PlanTicket>> waiting_;  ///< The line, its head first.
  std::vector<std::shared_ptr<PlanTicket>> running_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::coordinator
