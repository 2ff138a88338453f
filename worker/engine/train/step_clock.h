#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "kernels/cuda/transfer.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// Where the time of steps goes: by the host's clock on a CPU, by events in its stream on a device,
/// whose work the host only enqueues. Not thread-safe.
class StepClock {
 public:
  /// The time before does not count.
  Status Start(Context& context);

  /// What was enqueued since Start or the last Mark belongs to a phase, which has this name in
  /// profiles.
  Status Mark(Context& context, std::string_view name, double PhaseSeconds::*phase);

  /// Adds to `seconds` what has been done of what was marked. On a device the end of a step, which
  /// runs while the host goes on, comes with the next one.
  Status Collect(Context& context, PhaseSeconds& seconds);

 private:
  struct Point {
    kernels::cuda::Event event;
    std::string_view name;
    double PhaseSeconds::*phase = nullptr;  ///< None: a start.
    Profiler::Time enqueued;
  };

  Status Record(Context& context, std::string_view name, double PhaseSeconds::*phase);

  Stopwatch watch_;
  PhaseSeconds done_;
  std::deque<Point> points_;                  ///< The first has been passed.
  std::vector<kernels::cuda::Event> unused_;  ///< To be recorded again.
  Profiler::Time begin_;                      ///< Of points_.front().
};

}  // namespace weft::engine
