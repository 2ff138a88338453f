#include "common/clock.h"

#include <cmath>
#include <cstdio>
#include <ctime>

namespace weft {
namespace {

class SystemClock : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  double UnixSeconds() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& Clock::System() {
  static const SystemClock clock;
  return clock;
}

double SecondsSince(const Clock& clock, std::chrono::nanoseconds begin) {
  return ToSeconds(clock.Monotonic() - begin);
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return ToSeconds(std::chrono::steady_clock::now() - begin);
}

std::string FormatTime(double unix_seconds) {
  auto milliseconds = static_cast<int64_t>(std::llround(unix_seconds * 1e3));
  int64_t fraction = (milliseconds % 1000 + 1000) % 1000;  // never negative, also before 1970
  auto seconds = static_cast<std::time_t>((milliseconds - fraction) / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  char text[48];
  std::snprintf(text, sizeof(text), "%s.%03dZ", date, static_cast<int>(fraction));
  return text;
}

}  // namespace weft
