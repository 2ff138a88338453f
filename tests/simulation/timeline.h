#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/rng.h"

namespace weft::simulation {

using Duration = std::chrono::nanoseconds;

/// The time of a simulated cluster and all that will happen in it, which follows from a seed. On
/// one thread.
class Timeline {
 public:
  explicit Timeline(uint64_t seed) : random_({.seed = seed}) {}

  const Clock& clock() const { return clock_; }
  Duration now() const { return clock_.Monotonic(); }

  /// Of events at the same time the one that was made first is the first.
  void After(Duration delay, std::function<void()> event);
  /// When the next event is; nullopt: there is none.
  std::optional<Duration> Next() const;
  /// Lets time pass up to `time`, which is not after the next event, and runs that one if it is
  /// due.
  void RunTo(Duration time);

  Duration Between(Duration least, Duration most);
  bool Chance(double probability) { return random_.Uniform() < probability; }
  /// Below `bound`.
  int64_t Pick(int64_t bound) {
    return static_cast<int64_t>(random_.Below(static_cast<uint64_t>(bound)));
  }

  /// Something happened. WEFT_SIMULATION_TRACE=1 prints it.
  void Note(const std::string& what);
  /// Of all notes and their times: two runs that differ anywhere have different ones.
  uint64_t hash() const { return hash_; }

 private:
  ManualClock clock_;
  PhiloxStream random_;
  std::multimap<Duration, std::function<void()>> events_;
  uint64_t hash_ = 0;
};

}  // namespace weft::simulation
