#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace weft::planner {

/// As many as the machine runs at once.
inline int ThreadsOfMachine() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Calls work(i) for i below `count` on so many threads, in order but for what they do at once.
/// Stops early when a call returns false.
template <class Work>
void OnThreads(int threads, size_t count, const Work& work) {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      if (!work(i)) next = count;
    }
  };
  std::vector<std::jthread> others;
  for (int t = 1; t < std::min<int>(threads, static_cast<int>(count)); ++t) {
    others.emplace_back(run);
  }
  run();
}

}  // namespace weft::planner
