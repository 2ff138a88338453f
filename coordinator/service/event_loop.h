#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "common/clock.h"

namespace weft::coordinator {

/// One thread that runs tasks one after the other: what runs on it needs no locks. Post may be
/// called from any thread. A loop that is not started has no thread: whoever drives it runs what is
/// ready, as a simulation does, whose runs are the same each time.
class EventLoop {
 public:
  explicit EventLoop(const Clock& clock) : clock_(clock) {}
  ~EventLoop() { Stop(); }
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  /// Runs what was posted, drops timers, joins the thread.
  void Stop();

  void Post(std::function<void()> task);
  /// Runs `task` once `delay` has passed on the clock.
  void PostAfter(std::chrono::nanoseconds delay, std::function<void()> task);
  /// Looks at the clock again; for a ManualClock that was moved.
  void Wake();

  /// For a loop that was not started: runs on this thread what was posted before this call, and
  /// timers whose time has come. Whether there was anything.
  bool RunReady();
  /// When its next timer is due, by the clock; nullopt: it has none.
  std::optional<std::chrono::nanoseconds> NextTimer();

 private:
  void Run();
  /// Takes what is to be run now. Needs mutex_.
  std::deque<std::function<void()>> TakeReady();

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::multimap<std::chrono::nanoseconds, std::function<void()>> timers_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weft::coordinator
