#include "worker/daemon/machine.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "common/env.h"

namespace weft::daemon {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The first number in a file; nullopt for "max", no file or no number.
std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t value = 0;
  std::istringstream text(ReadText(path));
  if (text >> value) return value;
  return std::nullopt;
}

/// The value of a line "key value" or "key: value"; empty when there is none.
std::string ReadKey(const std::string& path, const std::string& key) {
  std::istringstream text(ReadText(path));
  for (std::string line; std::getline(text, line);) {
    if (line.rfind(key, 0) != 0) continue;
    size_t begin = line.find_first_not_of(": \t", key.size());
    bool whole_key =
        line.size() > key.size() && std::string(": \t").find(line[key.size()]) != std::string::npos;
    if (whole_key && begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

/// Folders of this process's cgroup and of those around it, innermost first. `controller` is a
/// version 1 hierarchy, or "" for the unified one.
std::vector<std::string> CgroupDirs(const std::string& root, const std::string& controller) {
  std::string mount = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
  std::istringstream lines(ReadText(root + "/proc/self/cgroup"));
  std::vector<std::string> dirs;
  for (std::string line; std::getline(lines, line);) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? names != ",,"
                           : names.find("," + controller + ",") == std::string::npos)
      continue;
    std::string path = line.substr(second + 1);
    while (!path.empty() && path != "/") {
      dirs.push_back(mount + path);
      path.resize(path.rfind('/'));
    }
  }
  dirs.push_back(mount);
  return dirs;
}

double CoreQuota(const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& dir : CgroupDirs(root, "")) {
    double quota = 0, period = 0;
    std::istringstream text(ReadText(dir + "/cpu.max"));
    if (text >> quota >> period && period > 0) least = std::min(least, quota / period);
  }
  for (const std::string& dir : CgroupDirs(root, "cpu")) {
    auto quota = ReadNumber(dir + "/cpu.cfs_quota_us");
    auto period = ReadNumber(dir + "/cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0) {
      least = std::min(least, static_cast<double>(*quota) / static_cast<double>(*period));
    }
  }
  return least;
}

int64_t MemoryQuota(const std::string& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::string& dir : CgroupDirs(root, "")) {
    least = std::min(least, ReadNumber(dir + "/memory.max").value_or(least));
  }
  for (const std::string& dir : CgroupDirs(root, "memory")) {
    least = std::min(least, ReadNumber(dir + "/memory.limit_in_bytes").value_or(least));
  }
  return least;
}

}  // namespace

Machine ReadMachine(const std::string& root) {
  Machine machine;
  machine.cpu_model = ReadKey(root + "/proc/cpuinfo", "model name");
  cpu_set_t mask;
  int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cores = CPU_COUNT(&mask);
  double quota = CoreQuota(root);
  if (std::ceil(quota) < static_cast<double>(cores)) cores = std::lround(std::ceil(quota));
  machine.cores = std::max<int64_t>(1, cores);
  machine.memory_bytes =
      1024 * std::strtoll(ReadKey(root + "/proc/meminfo", "MemTotal").c_str(), nullptr, 10);
  machine.memory_limit_bytes = std::min(machine.memory_bytes, MemoryQuota(root));
  return machine;
}

std::string MachineName(const std::string& root) {
  constexpr size_t kBootIdBegin = 8;
  std::string host, boot;
  std::istringstream(ReadText(root + "/proc/sys/kernel/hostname")) >> host;
  std::istringstream(ReadText(root + "/proc/sys/kernel/random/boot_id")) >> boot;
  return (host.empty() ? "unnamed" : host) + "-" + boot.substr(0, kBootIdBegin);
}

int64_t OomKills(const std::string& root) {
  auto read = [](const std::string& path) {
    return std::strtoll(ReadKey(path, "oom_kill").c_str(), nullptr, 10);
  };
  return read(CgroupDirs(root, "").front() + "/memory.events") +
         read(CgroupDirs(root, "memory").front() + "/memory.oom_control");
}

Result<std::string> AddressTowards(const std::string& peer) {
  size_t colon = peer.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return InvalidError("address '" + peer + "' is not HOST:PORT");
  }
  std::string host = peer.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), peer.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return NotFoundError("cannot resolve '" + peer + "': " + gai_strerror(error));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  const addrinfo* choice = list.get();
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    if (a->ai_family == AF_INET) {
      choice = a;
      break;
    }
  }
  int fd = socket(choice->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError("open a socket towards " + peer, errno);
  // A connected datagram socket has chosen its local address; nothing is sent.
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  bool ok = connect(fd, choice->ai_addr, choice->ai_addrlen) == 0 &&
            getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0;
  int socket_error = errno;
  close(fd);
  if (!ok) return ErrnoError("find a route to " + peer, socket_error);
  std::array<char, NI_MAXHOST> text{};
  error = getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text.data(), text.size(), nullptr,
                      0, NI_NUMERICHOST);
  if (error != 0)
    return InternalError("local address towards " + peer + ": " + gai_strerror(error));
  return std::string(text.data());
}

}  // namespace weft::daemon
