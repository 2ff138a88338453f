#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace weft::testing {

/// A child process whose output goes to a file. It is killed with its owner, and when the test
/// dies.
class Process {
 public:
  /// `environment` is added to this process's own. Fails the test when it cannot be started.
  static Process Start(const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment,
                       const std::string& log_path);

  Process() = default;
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  pid_t pid() const { return pid_; }
  void Signal(int signal_number) const;

  /// It has not ended yet (and is reaped when it has).
  bool Alive();

  /// The status as of waitpid(2), or nothing when it still runs after `timeout`, see Eventually.
  std::optional<int> WaitForEnd(std::chrono::milliseconds timeout);

  /// SIGKILL, and waits for the end.
  void Kill();

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// A machine that does much else at the same time, or a sanitizer, takes this many times longer.
inline constexpr int kPatience = 4;

/// Looks every few milliseconds until `condition` holds; false after kPatience times `timeout`,
/// which is what a quiet machine is sure to keep. What takes long is looked at less often: most
/// looks are calls that a coordinator answers, next to other tests.
template <class Condition>
bool Eventually(Condition condition, std::chrono::milliseconds timeout) {
  auto deadline = std::chrono::steady_clock::now() + kPatience * timeout;
  for (std::chrono::microseconds pause{3000}; !condition();
       pause = std::min(pause + pause / 8, std::chrono::microseconds(12000))) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace weft::testing
