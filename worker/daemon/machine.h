#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace weft::daemon {

/// What the operating system says of this machine and of the limits on this process.
struct Machine {
  std::string cpu_model;
  int64_t cores = 1;         ///< That this process may use: affinity and cgroup quota, rounded up.
  int64_t memory_bytes = 0;  ///< Physical.
  int64_t memory_limit_bytes = 0;  ///< Least of physical memory and the cgroup's limits.
};

/// Reads it; `root` is "" but in tests, where it holds a made-up /proc and /sys.
Machine ReadMachine(const std::string& root = "");

/// A name that this machine keeps until it is started anew, and that no other machine has: its host
/// name and the beginning of the kernel's boot id.
std::string MachineName(const std::string& root = "");

/// Processes that the out-of-memory killer has taken from this process's cgroup so far; 0 when
/// unknown.
int64_t OomKills(const std::string& root = "");

/// The local address from which packets to `peer` ("host:port") leave; 127.0.0.1 for a local peer.
Result<std::string> AddressTowards(const std::string& peer);

}  // namespace weft::daemon
