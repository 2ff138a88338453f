#include "worker/daemon/time_ledger.h"

#include <algorithm>

namespace weft::daemon {

std::string_view TimeClassName(TimeClass time_class) {
  switch (time_class) {
    case TimeClass::kStartup:
      return "startup";
    case TimeClass::kRecovery:
      return "recovery";
    case TimeClass::kUseful:
      return "useful";
    case TimeClass::kRework:
      return "rework";
    case TimeClass::kStall:
      return "stall";
  }
  return "?";
}

void TimeLedger::Give(TimeClass time_class, Nanoseconds amount) {
  totals_[static_cast<int>(time_class)] += amount;
  last_ += amount;
}

void TimeLedger::OnStep(Nanoseconds now, int64_t step, Nanoseconds step_time) {
  if (now <= last_) return;
  bool first = last_step_ < 0;
  if (step <= last_step_) done_before_ = std::max(done_before_, last_step_);  // it went back
  // Several steps may have passed since the last report; each is taken to be as long as this one.
  int64_t steps = first ? 1 : std::max<int64_t>(1, step - last_step_);
  Nanoseconds working = std::min(now - last_, step_time * steps);
  Nanoseconds before = now - last_ - working;
  Give(IdleClass(), before);
  int64_t again = std::clamp<int64_t>(done_before_ - (step - steps), 0, steps);
  Nanoseconds rework = working * again / steps;
  Give(TimeClass::kRework, rework);
  Give(TimeClass::kUseful, working - rework);
  last_step_ = step;
}

void TimeLedger::Finish(Nanoseconds now) {
  if (now > last_) Give(IdleClass(), now - last_);
}

TimeClass TimeLedger::IdleClass() const {
  if (last_step_ >= 0) return TimeClass::kStall;
  return done_before_ > 0 ? TimeClass::kRecovery : TimeClass::kStartup;
}

}  // namespace weft::daemon
