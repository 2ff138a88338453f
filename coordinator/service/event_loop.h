#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "common/clock.h"

namespace weft::coordinator {

/// One thread that runs tasks one after the other: what runs on it needs no locks. Post may be
/// called from any thread.
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

 private:
  void Run();

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
