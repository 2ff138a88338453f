#include "tests/simulation/timeline.h"

#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>

#include "common/hash.h"

namespace weft::simulation {

void Timeline::After(Duration delay, std::function<void()> event) {
  events_.emplace(now() + delay, std::move(event));
}

std::optional<Duration> Timeline::Next() const {
  if (events_.empty()) return std::nullopt;
  return events_.begin()->first;
}

void Timeline::RunTo(Duration time) {
  if (time > now()) clock_.Advance(time - now());
  if (events_.empty() || events_.begin()->first > now()) return;
  const std::function<void()> event = std::move(events_.begin()->second);
  events_.erase(events_.begin());
  event();
}

Duration Timeline::Between(Duration least, Duration most) {
  return least + Duration(Pick((most - least).count() + 1));
}

void Timeline::Note(const std::string& what) {
  static const bool shown = std::getenv("WEFT_SIMULATION_TRACE") != nullptr;
  const std::string line = std::to_string(now().count()) + " " + what;
  hash_ = hash_ * 31 + Hash64(std::as_bytes(std::span(line)));
  if (shown) std::printf("%9.3f  %s\n", ToSeconds(now()), what.c_str());
}

}  // namespace weft::simulation
