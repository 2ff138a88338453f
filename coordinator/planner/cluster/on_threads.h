#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::planner {

/// The number of threads that the machine runs at once.
inline int ThreadsOfMachine() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Threads that wait for work: starting some takes longer than many a piece of it.
class ThreadPool {
 public:
  /// Makes a pool of this many threads, the caller's among them.
  explicit ThreadPool(int threads) : threads_(std::max(threads, 1)) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls work(i) for i below `count`, in order except what is done at once. Stops early when a
  /// call returns false. `work` must not call it.
  template <class Work>
  void Run(size_t count, const Work& work) {
    std::atomic<size_t> next = 0;
    const auto run = [&] {
      for (size_t i = next++; i < count; i = next++) {
        if (!work(i)) next = count;
      }
    };
    if (threads_ == 1 || count < 2) return run();
    Together([](const void* own) { (*static_cast<const decltype(run)*>(own))(); }, &run);
  }

 private:
  using Call = void (*)(const void*);

  /// Has all threads call it.
  void Together(Call call, const void* argument);
  void Serve();

  const int threads_;
  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  Call call_ = nullptr;
  const void* argument_ = nullptr;
  int64_t calls_ = 0;  ///< Of Together.
  int busy_ = 0;       ///< Of the others.
  bool over_ = false;
  std::vector<std::thread> others_;
};

/// The same on threads of its own.
template <class Work>
void OnThreads(int threads, size_t count, const Work& work) {
  ThreadPool(std::min(threads, static_cast<int>(std::min<size_t>(count, 1024)))).Run(count, work);
}

}  // namespace weft::planner
