#include "common/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "common/log.h"

namespace weft {
namespace {

enum class Action { kError, kFull, kCrash, kSleep, kSpin };

struct Point {
  Action action = Action::kError;
  int milliseconds = 0;
  int only_nth = 0;  // 0: every time
  int seen = 0;
};

bool ParsePositive(std::string_view text, int& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0;
}

struct Registry {
  std::atomic<bool> active{false};
  std::mutex mutex;
  std::map<std::string, Point, std::less<>> points;

  Registry() {
    const char* config = std::getenv("WEFT_FAILPOINTS");
    if (config == nullptr) return;
    if (Status status = Configure(config); !status.ok()) {
      WEFT_LOG_ERROR << "WEFT_FAILPOINTS: " << status.message();
    }
  }

  Status Configure(const std::string& config) {
    std::map<std::string, Point, std::less<>> parsed;
    size_t begin = 0;
    while (begin < config.size()) {
      size_t end = std::min(config.find(',', begin), config.size());
      std::string entry = config.substr(begin, end - begin);
      begin = end + 1;
      size_t equals = entry.find('=');
      if (equals == std::string::npos || equals == 0) {
        return InvalidError("failpoint '" + entry + "' is not of the form name=action[@N]");
      }
      Point point;
      std::string action = entry.substr(equals + 1);
      if (size_t at = action.find('@'); at != std::string::npos) {
        if (!ParsePositive(std::string_view(action).substr(at + 1), point.only_nth)) {
          return InvalidError("failpoint '" + entry + "': after @ comes a count from 1");
        }
        action.resize(at);
      }
      if (action == "error") {
        point.action = Action::kError;
      } else if (action == "full") {
        point.action = Action::kFull;
      } else if (action == "crash") {
        point.action = Action::kCrash;
      } else if (action.starts_with("sleep:") || action.starts_with("spin:")) {
        point.action = action.starts_with("sleep:") ? Action::kSleep : Action::kSpin;
        const std::string_view time = std::string_view(action).substr(action.find(':') + 1);
        if (!ParsePositive(time, point.milliseconds)) {
          return InvalidError("failpoint '" + entry +
                              "': after the colon come milliseconds from 1");
        }
      } else {
        return InvalidError(
            "failpoint action '" + action +
            "' is unknown; use error, full, crash, sleep:MILLISECONDS or spin:MILLISECONDS");
      }
      parsed[entry.substr(0, equals)] = point;
    }
    std::lock_guard lock(mutex);
    points = std::move(parsed);
    active = !points.empty();
    return OkStatus();
  }
};

Registry& Points() {
  static Registry registry;
  return registry;
}

}  // namespace

Status SetFailpoints(const std::string& config) {
  return Points().Configure(config);
}

Status Failpoint(std::string_view name) {
  Registry& registry = Points();
  if (!registry.active.load(std::memory_order_relaxed)) return OkStatus();
  Point point;
  {
    std::lock_guard lock(registry.mutex);
    auto it = registry.points.find(name);
    if (it == registry.points.end()) return OkStatus();
    ++it->second.seen;
    if (it->second.only_nth != 0 && it->second.seen != it->second.only_nth) return OkStatus();
    point = it->second;
  }
  std::string label(name);
  switch (point.action) {
    case Action::kError:
      return InternalError("failpoint " + label);
    case Action::kFull:
      return ErrnoError("failpoint " + label, ENOSPC);
    case Action::kCrash:
      kill(getpid(), SIGKILL);
      std::abort();
    case Action::kSleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(point.milliseconds));
      return OkStatus();
    case Action::kSpin: {
      using Clock = std::chrono::steady_clock;
      const Clock::time_point end = Clock::now() + std::chrono::milliseconds(point.milliseconds);
      while (Clock::now() < end) {
      }
      return OkStatus();
    }
  }
  return OkStatus();
}

}  // namespace weft
