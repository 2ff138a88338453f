#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "worker/engine/tensor/allocator.h"

namespace weft::engine {

/// Seconds since construction or the last Lap.
class Stopwatch {
 public:
  double Lap() {
    auto now = std::chrono::steady_clock::now();
    double seconds = ToSeconds(now - start_);
    start_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Records what takes the time of a rank: sums by name and, once StartTrace was called, every
/// single event. Names are string literals. Not thread-safe except AddCollective and Clear.
class Profiler {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// One row of a trace each.
  enum class Track { kPhases, kOperations, kCollectives };

  struct Entry {
    double seconds = 0;       ///< Operations within it included.
    double self_seconds = 0;  ///< Without them.
    int64_t calls = 0;
    double flops = 0;  ///< 0: not known. Its own, as bytes are.
    double bytes = 0;  ///< 0: not known.
  };
  struct Event {
    Track track = Track::kOperations;
    std::string_view name;
    std::string_view group;  ///< Of a collective: whose it is.
    Time begin;
    double seconds = 0;
    double flops = 0;
    double bytes = 0;
  };
  struct MemorySample {
    Time time;
    MemoryBreakdown live;
  };
  struct Trace {
    std::vector<Event> events;
    std::vector<MemorySample> memory;
    int64_t dropped = 0;  ///< Events past the most that are kept.
  };

  /// Events kept in a trace.
  static constexpr size_t kMaxEvents = 200'000;

  /// Keeps events from now on, and after each operation what `allocator`, which outlives this,
  /// holds.
  void StartTrace(const Allocator* allocator);
  const Trace& trace() const { return trace_; }

  /// An operation begins or ends; they nest. ProfileScope calls them.
  void Open(std::string_view name);
  void Close();

  /// The innermost open operation does this many operations on numbers and moves this many bytes.
  void CountWork(double flops, double bytes);

  /// A part of the step that took `seconds` ends now, or began at `begin`.
  void AddPhase(std::string_view name, double seconds);
  void AddPhase(std::string_view name, double seconds, Time begin);

  /// A collective over `bytes` on this rank that took `seconds` ends now. From any thread. The name
  /// of the `group` outlives this.
  void AddCollective(std::string_view name, std::string_view group, double seconds, double bytes);

  using Entries = std::map<std::string_view, Entry>;
  const Entries& entries(Track track = Track::kOperations) const {
    return entries_[static_cast<size_t>(track)];
  }
  /// Forgets the sums; not while an operation is open.
  void Clear();

 private:
  struct Frame {
    std::string_view name;
    Time begin;
    double inner_seconds = 0;
    double flops = 0;
    double bytes = 0;
  };
  void Keep(const Event& event, double self_seconds);

  std::vector<Frame> open_;
  const Allocator* allocator_ = nullptr;  ///< Set while tracing.
  std::mutex mutex_;                      ///< Guards what follows against AddCollective.
  Entries entries_[3];
  Trace trace_;
};

/// Profiler::CountWork, if there is a profiler.
inline void CountWork(Profiler* profiler, double flops, double bytes = 0) {
  if (profiler != nullptr) profiler->CountWork(flops, bytes);
}

/// Charges its lifetime to `name`, a string literal; costs nothing without a profiler.
class ProfileScope {
 public:
  ProfileScope(Profiler* profiler, std::string_view name) : profiler_(profiler) {
    if (profiler_ != nullptr) profiler_->Open(name);
  }
  ~ProfileScope() {
    if (profiler_ != nullptr) profiler_->Close();
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Profiler* profiler_;
};

}  // namespace weft::engine
