#include "worker/engine/train/step_clock.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"

namespace weft::engine {
namespace {

bool OnDevice(const Context& context) {
  return context.stream.device.type == DeviceType::kCuda;
}

}  // namespace

void ChargePhase(const Context& context, std::string_view phase, double seconds, double& total) {
  total += seconds;
  if (context.profiler != nullptr) context.profiler->AddPhase(phase, seconds);
}

Status StepClock::Start(Context& context) {
  watch_.Lap();
  return OnDevice(context) ? Record(context, "", nullptr) : OkStatus();
}

Status StepClock::Mark(Context& context, std::string_view name, double PhaseSeconds::*phase) {
  if (OnDevice(context)) return Record(context, name, phase);
  const double seconds = watch_.Lap();
  done_.*phase += seconds;
  if (context.profiler != nullptr) context.profiler->AddPhase(name, seconds);
  return OkStatus();
}

Status StepClock::Record(Context& context, std::string_view name, double PhaseSeconds::*phase) {
  Point point{{}, name, phase, std::chrono::steady_clock::now(), recording_};
  if (unused_.empty()) {
    WEFT_ASSIGN_OR_RETURN(auto event, kernels::cuda::Event::Create(context.stream, true));
    point.event = std::make_shared<kernels::cuda::Event>(std::move(event));
  } else {
    point.event = std::move(unused_.back());
    unused_.pop_back();
  }
  WEFT_RETURN_IF_ERROR(point.event->Place(context.stream));
  if (recording_) {
    recorded_.push_back(std::move(point));
  } else {
    points_.push_back(std::move(point));
  }
  return OkStatus();
}

std::vector<StepClock::Point> StepClock::TakeRecorded() {
  recording_ = false;
  return std::exchange(recorded_, {});
}

void StepClock::Repeat(const std::vector<Point>& points) {
  const Profiler::Time now = std::chrono::steady_clock::now();
  for (Point point : points) {
    point.enqueued = now;
    points_.push_back(std::move(point));
  }
}

Status StepClock::Collect(Context& context, PhaseSeconds& seconds) {
  while (points_.size() > 1) {
    WEFT_ASSIGN_OR_RETURN(const bool passed, points_[1].event->Passed());
    if (!passed) break;
    Point first = std::move(points_.front());
    points_.pop_front();
    const Point& next = points_.front();
    WEFT_ASSIGN_OR_RETURN(const double between, next.event->SecondsSince(*first.event));
    if (next.phase != nullptr) {
      // The device is never ahead of what was enqueued.
      begin_ = std::max(begin_, first.enqueued);
      done_.*next.phase += between;
      if (context.profiler != nullptr) context.profiler->AddPhase(next.name, between, begin_);
      begin_ += FromSeconds(between);
    }
    if (!first.repeats) unused_.push_back(std::move(first.event));
  }
  const PhaseSeconds done = std::exchange(done_, {});
  for (auto part : {&PhaseSeconds::data, &PhaseSeconds::forward, &PhaseSeconds::backward,
                    &PhaseSeconds::communication_exposed, &PhaseSeconds::optimizer}) {
    seconds.*part += done.*part;
  }
  return OkStatus();
}

}  // namespace weft::engine
