#include "coordinator/planner/cluster/on_threads.h"

namespace weft::planner {

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  begun_.notify_all();
  for (std::thread& other : others_) other.join();
}

void ThreadPool::Together(Call call, const void* argument) {
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
    argument_ = argument;
    ++calls_;
    busy_ = threads_ - 1;
  }
  // The first time, when there is something to do.
  while (std::ssize(others_) < threads_ - 1) others_.emplace_back([this] { Serve(); });
  begun_.notify_all();
  call(argument);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::Serve() {
  std::unique_lock lock(mutex_);
  for (int64_t served = 0;;) {
    begun_.wait(lock, [&] { return over_ || calls_ > served; });
    if (over_) return;
    served = calls_;
    const Call call = call_;
    const void* const argument = argument_;
    lock.unlock();
    call(argument);
    lock.lock();
    if (--busy_ == 0) ended_.notify_one();
  }
}

}  // namespace weft::planner
