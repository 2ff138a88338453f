#include "coordinator/service/event_loop.h"

#include <utility>

namespace weft::coordinator {

void EventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EventLoop::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void EventLoop::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void EventLoop::PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    timers_.emplace(clock_.Monotonic() + delay, std::move(task));
  }
  changed_.notify_all();
}

void EventLoop::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

std::deque<std::function<void()>> EventLoop::TakeReady() {
  while (!timers_.empty() && timers_.begin()->first <= clock_.Monotonic()) {
    tasks_.push_back(std::move(timers_.begin()->second));
    timers_.erase(timers_.begin());
  }
  return std::exchange(tasks_, {});
}

bool EventLoop::RunReady() {
  std::unique_lock lock(mutex_);
  const std::deque<std::function<void()>> batch = TakeReady();
  lock.unlock();
  for (const auto& task : batch) task();
  return !batch.empty();
}

std::optional<std::chrono::nanoseconds> EventLoop::NextTimer() {
  const std::lock_guard lock(mutex_);
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first;
}

void EventLoop::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (std::deque<std::function<void()>> batch = TakeReady(); !batch.empty()) {
      lock.unlock();
      for (auto& task : batch) task();
      batch.clear();
      lock.lock();
      continue;
    }
    if (stopping_) return;
    auto ready = [&] { return stopping_ || woken_ || !tasks_.empty(); };
    if (timers_.empty()) {
      changed_.wait(lock, [&] { return ready() || !timers_.empty(); });
    } else {
      auto first = timers_.begin()->first;
      changed_.wait_for(lock, first - clock_.Monotonic(), [&] {
        return ready() || timers_.empty() || timers_.begin()->first != first;
      });
    }
    woken_ = false;
  }
}

}  // namespace weft::coordinator
