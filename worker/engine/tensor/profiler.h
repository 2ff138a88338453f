#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>

namespace weft::engine {

/// Seconds and calls by name of operation. Not thread-safe.
class Profiler {
 public:
  struct Entry {
    double seconds = 0;
    int64_t calls = 0;
  };

  void Add(std::string_view name, double seconds) {
    Entry& entry = entries_[name];
    entry.seconds += seconds;
    ++entry.calls;
  }
  /// Names are string literals.
  const std::map<std::string_view, Entry>& entries() const { return entries_; }
  void Clear() { entries_.clear(); }

 private:
  std::map<std::string_view, Entry> entries_;
};

/// Seconds since construction or the last Lap.
class Stopwatch {
 public:
  double Lap() {
    auto now = std::chrono::steady_clock::now();
    double seconds = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Charges its lifetime to `name`, a string literal; costs nothing without a profiler.
class ProfileScope {
 public:
  ProfileScope(Profiler* profiler, std::string_view name) : profiler_(profiler), name_(name) {}
  ~ProfileScope() {
    if (profiler_ != nullptr) profiler_->Add(name_, watch_.Lap());
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Profiler* profiler_;
  std::string_view name_;
  Stopwatch watch_;
};

}  // namespace weft::engine
