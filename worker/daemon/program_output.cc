#include "worker/daemon/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "common/text.h"
#include "worker/daemon/devices.h"

extern char** environ;

namespace weft::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How soon a stop is noticed.
constexpr milliseconds kLook{50};
constexpr size_t kMostWords = 300;

/// Closes it at the end.
struct Descriptor {
  int fd = -1;
  ~Descriptor() { Close(); }
  void Close() {
    if (fd >= 0) close(fd);
    fd = -1;
  }
};

}  // namespace

std::vector<std::string> EnvironmentWith(const std::vector<DeviceSpec>& devices) {
  std::string visible = "CUDA_VISIBLE_DEVICES=";
  for (const DeviceSpec& device : devices) {
    visible += (visible.back() == '=' ? "" : ",") + CudaName(device);
  }
  std::vector<std::string> environment{visible, "CUDA_DEVICE_ORDER=PCI_BUS_ID"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view inherited = *entry;
    if (inherited.starts_with("CUDA_VISIBLE_DEVICES=")) continue;
    if (inherited.starts_with("CUDA_DEVICE_ORDER=")) continue;
    environment.emplace_back(inherited);
  }
  return environment;
}

Result<std::string> OutputOf(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment, milliseconds patience,
                             const std::atomic<bool>* stop) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError("open a pipe", errno);
  Descriptor reader{ends[0]}, writer{ends[1]};
  std::vector<char*> argv, envp;
  for (const std::string& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
  for (const std::string& text : environment) envp.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, writer.fd, STDOUT_FILENO);
  pid_t child = -1;
  int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoError("start " + arguments[0], error);
  writer.Close();
  const auto deadline = Clock::now() + patience;
  std::string output;
  bool late = false, stopped = false;
  for (std::array<char, 4096> block; !late && !stopped;) {
    pollfd wait{reader.fd, POLLIN, 0};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const int ready =
        poll(&wait, 1, static_cast<int>(std::clamp(left, milliseconds(0), kLook).count()));
    stopped = stop != nullptr && *stop;
    late = ready <= 0 && left.count() <= 0;
    if (ready <= 0) continue;
    ssize_t n = read(reader.fd, block.data(), block.size());
    if (n <= 0) break;
    output.append(block.data(), static_cast<size_t>(n));
  }
  if (late || stopped) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (stopped) return AbortedError("it was stopped");
  if (late) {
    return AbortedError("it took longer than " + std::to_string(patience.count() / 1000) + " s");
  }
  if (WIFSIGNALED(status)) {
    return UnavailableError("it ended with signal " + std::to_string(WTERMSIG(status)));
  }
  while (!output.empty() && output.back() == '\n') output.pop_back();
  if (WEXITSTATUS(status) != 0) return UnavailableError(ClipText(output, kMostWords));
  return output;
}

}  // namespace weft::daemon
