#pragma once

#include <deque>
#include <memory>
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
  /// A start or an end of something.
  struct Point {
    std::shared_ptr<kernels::cuda::Event> event;
    std::string_view name;
    double PhaseSeconds::*phase = nullptr;  ///< None: a start.
    Profiler::Time enqueued;
    bool repeats = false;  ///< Of a graph, which passes it anew each time.
  };

  /// The time before does not count.
  Status Start(Context& context);

  /// Says that what was enqueued since Start or the last Mark belongs to a phase, which has this
  /// name in profiles.
  Status Mark(Context& context, std::string_view name, double PhaseSeconds::*phase);

  /// Says that what is marked from now on belongs to a graph that is being recorded.
  void StartRecording() { recording_ = true; }
  /// Ends that; the points are the graph's.
  std::vector<Point> TakeRecorded();
  /// A graph with these points has been enqueued. Before it is again they must have been collected.
  void Repeat(const std::vector<Point>& points);

  /// Adds to `seconds` what has been done of what was marked. On a device the end of a step, which
  /// runs while the host goes on, comes with the next one.
  Status Collect(Context& context, PhaseSeconds& seconds);

 private:
  Status Record(Context& context, std::string_view name, double PhaseSeconds::*phase);

  Stopwatch watch_;
  PhaseSeconds done_;
  std::deque<Point> points_;                                   ///< The first has been passed.
  std::vector<std::shared_ptr<kernels::cuda::Event>> unused_;  ///< To be recorded again.
  bool recording_ = false;
  std::vector<Point> recorded_;
  Profiler::Time begin_;  ///< Of points_.front().
};

/// Adds the seconds that a part of the step took, by the host's clock, to `total` and to the
/// profile.
void ChargePhase(const Context& context, std::string_view phase, double seconds, double& total);

}  // namespace weft::engine
