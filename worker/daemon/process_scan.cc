#include "worker/daemon/process_scan.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <thread>

namespace weft::daemon {
namespace {

/// Empty for a zombie, which has given its memory back.
std::string ReadEnvironment(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool HoldsAll(const std::string& block, const std::vector<std::string>& wanted) {
  std::set<std::string_view> entries;
  for (size_t at = 0; at < block.size();) {
    size_t end = std::min(block.find('\0', at), block.size());
    entries.insert(std::string_view(block).substr(at, end - at));
    at = end + 1;
  }
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](const std::string& entry) { return entries.contains(entry); });
}

}  // namespace

std::vector<pid_t> FindProcesses(const std::vector<std::string>& environment) {
  std::vector<pid_t> found;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = readdir(proc)) {
    std::string name = entry->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    auto pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    if (pid != getpid() && HoldsAll(ReadEnvironment(name), environment)) found.push_back(pid);
  }
  closedir(proc);
  return found;
}

Status KillProcesses(const std::vector<std::string>& environment,
                     std::chrono::milliseconds timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    std::vector<pid_t> left = FindProcesses(environment);
    if (left.empty()) return OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      std::string pids;
      for (pid_t pid : left) pids += " " + std::to_string(pid);
      return InternalError("processes do not end although killed:" + pids +
                           "; hint: they may hang in the kernel (state D), see /proc/PID/stack");
    }
    for (pid_t pid : left) kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace weft::daemon
