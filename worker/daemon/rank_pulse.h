#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"

namespace weft::daemon {

/// What the kernel knows of a process (proc(5): stat and io). Counts grow from its start.
struct ProcessUse {
  char state = '?';         ///< As in /proc/PID/stat: R, S, D, T, ...
  std::string waits_in;     ///< A collective that its main thread waits in; empty: none known.
  int64_t cpu_ticks = 0;    ///< User and system time. Unit: clock ticks.
  int64_t page_faults = 0;  ///< Pages that came from a disk.
  int64_t io_bytes = 0;     ///< Read and written, also within the page cache.
};

/// nullopt when the process is gone.
std::optional<ProcessUse> ReadProcessUse(pid_t pid);

/// When a rank last showed a sign of life. While it trains that is a message, which follows each
/// step and, in long ones, parts of it; or a page that came from a disk, as on a machine short of
/// memory. A rank may wait for a hung peer with a busy processor, or while it writes a checkpoint
/// in the background. While ranks exchange what they learned (exchanging) data that are moved
/// count, too. In all else (starting, evaluating, saving, loading) so does the use of a processor;
/// before the first step only for so long, as a rank may spin in vain.
///
/// Time in which nobody looked (Take, Sample) does not count as silence beyond kLongestGap: then
/// this daemon, or the whole machine, was stopped or starved, and the rank probably with it.
class RankPulse {
 public:
  using Duration = std::chrono::nanoseconds;

  static constexpr std::chrono::seconds kLongestGap{5};

  /// `longest_spin`: a start reads, writes or reports more often than this.
  RankPulse(Duration now, Duration longest_spin)
      : life_at_(now), other_life_at_(now), sampled_at_(now), longest_spin_(longest_spin) {}

  void OnMessage(Duration now) { life_at_ = other_life_at_ = now; }
  /// As in weft.v1.RunningAttempt.activity.
  void SetActivity(const std::string& activity) { activity_ = activity; }
  /// Looks at the process, once a second at most.
  void Sample(pid_t pid, Duration now);
  /// The same with what was read of it.
  void Take(const ProcessUse& use, Duration now);

  const std::string& activity() const { return activity_; }
  double SilentSeconds(Duration now) const { return ToSeconds(now - life_at_); }
  /// "sleeping", "stopped", "sleeping in all-reduce"
  std::string StateText() const;

 private:
  std::string activity_ = "starting";
  Duration life_at_;
  Duration other_life_at_;  ///< The last sign of life other than the use of a processor.
  Duration sampled_at_;
  Duration longest_spin_;
  ProcessUse use_;
};

}  // namespace weft::daemon
