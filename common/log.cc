#include "common/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

namespace weft {
namespace {

spdlog::level::level_enum SpdLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

struct LogState {
  std::shared_ptr<spdlog::logger> logger = spdlog::stderr_color_mt("weft");
  bool json = false;

  LogState() { Configure("weft", LogLevel::kInfo); }

  void Configure(const std::string& process, LogLevel default_level) {
    const char* level = std::getenv("WEFT_LOG");
    const char* format = std::getenv("WEFT_LOG_FORMAT");
    json = format != nullptr && std::string_view(format) == "json";
    logger->set_level(level != nullptr ? spdlog::level::from_str(level) : SpdLevel(default_level));
    // In JSON form the message arrives quoted and escaped by WriteLog.
    logger->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","process":")" +
                                   process + R"(","message":%v})"
                             : "%Y-%m-%dT%H:%M:%S.%eZ %^%-7l%$ " + process + ": %v",
                        spdlog::pattern_time_type::utc);
    logger->flush_on(spdlog::level::debug);
  }
};

LogState& State() {
  static LogState state;
  return state;
}

}  // namespace

void InitLog(std::string_view process, LogLevel level) {
  State().Configure(std::string(process), level);
}

bool LogEnabled(LogLevel level) {
  return State().logger->should_log(SpdLevel(level));
}

void WriteLog(LogLevel level, std::string_view message) {
  LogState& state = State();
  if (!state.json) {
    state.logger->log(SpdLevel(level), "{}", message);
    return;
  }
  nlohmann::json quoted = std::string(message);
  state.logger->log(SpdLevel(level), "{}",
                    quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace weft
