#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "common/clock.h"
#include "worker/engine/tensor/progress_observer.h"
#include "worker/trainer/reporter.h"

namespace weft::trainer {

/// Reports what a rank does, and that something long goes on. Thread-safe.
class ActivityReporter : public engine::ProgressObserver {
 public:
  static constexpr std::chrono::nanoseconds kAliveEvery = std::chrono::seconds(1);

  /// `reporter` and `clock` outlive this.
  explicit ActivityReporter(Reporter& reporter, const Clock& clock = Clock::System())
      : reporter_(reporter), clock_(clock), next_(Next()) {}

  void Report(ActivityMessage message) { reporter_.Report(std::move(message)); }

  /// An AliveMessage, kAliveEvery at most.
  void OnProgress() override {
    int64_t due = next_.load(std::memory_order_relaxed);
    if (clock_.Monotonic().count() < due) return;
    // Of threads that come here at once, one reports.
    if (next_.compare_exchange_strong(due, Next())) reporter_.Report(AliveMessage{});
  }

  void OnExchange(bool begins) override { Report({begins ? "exchanging" : "training"}); }

 private:
  int64_t Next() const { return (clock_.Monotonic() + kAliveEvery).count(); }

  Reporter& reporter_;
  const Clock& clock_;
  std::atomic<int64_t> next_;
};

}  // namespace weft::trainer
