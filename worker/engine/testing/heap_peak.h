#pragma once

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft::engine {

/// The most bytes of the heap that are in use from its construction on.
class HeapPeak {
 public:
  HeapPeak() : start_(InUse()), peak_(start_), watches_([this] { Watch(); }) {}
  ~HeapPeak() { Stop(); }
  HeapPeak(const HeapPeak&) = delete;
  HeapPeak& operator=(const HeapPeak&) = delete;

  /// How many more they were than at the start. Watches no longer.
  int64_t Stop() {
    stops_ = true;
    if (watches_.joinable()) watches_.join();
    return peak_ - start_;
  }

  /// 0 with a sanitizer, which has a heap of its own.
  static int64_t InUse() {
    const auto info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  }

 private:
  void Watch() {
    while (!stops_) {
      peak_ = std::max<int64_t>(peak_, InUse());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  const int64_t start_;
  std::atomic<int64_t> peak_;
  std::atomic<bool> stops_ = false;
  std::thread watches_;
};

}  // namespace weft::engine
