#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace weft {

/// Time as the code sees it, so that tests can hold it in their hand. Decisions (leases, timeouts)
/// use Monotonic(); UnixSeconds() is for people only.
class Clock {
 public:
  virtual ~Clock() = default;

  /// Never goes back; unrelated to wall time.
  virtual std::chrono::nanoseconds Monotonic() const = 0;

  /// Seconds since 1970-01-01 UTC.
  virtual double UnixSeconds() const = 0;

  /// The machine's clock.
  static const Clock& System();
};

/// A clock that moves only when told to. Thread-safe.
class ManualClock : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override {
    return std::chrono::nanoseconds(nanoseconds_.load());
  }
  double UnixSeconds() const override { return 1.7e9 + static_cast<double>(nanoseconds_) * 1e-9; }
  void Advance(std::chrono::nanoseconds by) { nanoseconds_ += by.count(); }

 private:
  std::atomic<int64_t> nanoseconds_{0};
};

/// A span of time in seconds.
constexpr double ToSeconds(std::chrono::duration<double> span) {
  return span.count();
}

/// `seconds` cut to whole nanoseconds; they must be fewer than 2^63 ns, about 292 years.
constexpr std::chrono::nanoseconds FromSeconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

/// Seconds that have passed on `clock` since its Monotonic() was `begin`.
double SecondsSince(const Clock& clock, std::chrono::nanoseconds begin);

/// Seconds since `begin` on the machine's clock, negative before it: for code whose time no test
/// sets.
double SecondsSince(std::chrono::steady_clock::time_point begin);

/// RFC 3339 in UTC with milliseconds, "2026-01-31T12:00:00.000Z".
std::string FormatTime(double unix_seconds);

}  // namespace weft
