#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <string_view>

namespace weft {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Sets up this process's log on stderr. `process` names it in every line ("coordinator",
/// "worker", "trainer-3"). The level comes from WEFT_LOG (debug|info|warning|error), else it is
/// `level`; the form comes from WEFT_LOG_FORMAT (text|json, default text). Call once, early in
/// main.
void InitLog(std::string_view process, LogLevel level = LogLevel::kInfo);

/// Writes one line; thread-safe. Prefer the WEFT_LOG_* macros.
void WriteLog(LogLevel level, std::string_view message);

bool LogEnabled(LogLevel level);

/// Collects one line with operator<< and writes it when it goes out of scope.
class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  ~LogLine() { WriteLog(level_, out_.str()); }
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return out_; }

 private:
  LogLevel level_;
  std::ostringstream out_;
};

}  // namespace weft

#define WEFT_LOG_AT(level)          \
  if (!::weft::LogEnabled(level)) { \
  } else                            \
    ::weft::LogLine(level).stream()
/// WEFT_LOG_INFO << "lease of worker " << id << " expired";
#define WEFT_LOG_DEBUG WEFT_LOG_AT(::weft::LogLevel::kDebug)
#define WEFT_LOG_INFO WEFT_LOG_AT(::weft::LogLevel::kInfo)
#define WEFT_LOG_WARNING WEFT_LOG_AT(::weft::LogLevel::kWarning)
#define WEFT_LOG_ERROR WEFT_LOG_AT(::weft::LogLevel::kError)
