#include "worker/daemon/rank_pulse.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/clock.h"
#include "common/wait_name.h"

namespace weft::daemon {
namespace {

constexpr std::chrono::seconds kSampleEvery{1};

/// A process that only waits uses less than this: of one processor, and bytes from one sample to
/// the next.
constexpr double kBusyShare = 0.05;
constexpr int64_t kBusyBytes = 64 << 10;

std::string ReadProcFile(pid_t pid, const char* name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::optional<ProcessUse> ReadProcessUse(pid_t pid) {
  const std::string stat = ReadProcFile(pid, "stat");
  const size_t begin = stat.find('('), name_end = stat.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  ProcessUse use;
  use.waits_in = WaitOf(std::string_view(stat).substr(begin + 1, name_end - begin - 1));
  std::string skipped;
  fields >> use.state;
  for (int field = 4; field <= 11; ++field) fields >> skipped;
  fields >> use.page_faults >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  use.cpu_ticks = user + system;
  std::istringstream io(ReadProcFile(pid, "io"));
  int64_t bytes = 0;
  for (std::string name; io >> name >> bytes;) {
    if (name == "rchar:" || name == "wchar:") use.io_bytes += bytes;
  }
  return use;
}

void RankPulse::Sample(pid_t pid, Duration now) {
  if (now - sampled_at_ < kSampleEvery) return;
  if (const std::optional<ProcessUse> use = ReadProcessUse(pid)) Take(*use, now);
}

void RankPulse::Take(const ProcessUse& use, Duration now) {
  if (const Duration unseen = now - sampled_at_ - kLongestGap; unseen > Duration::zero()) {
    // A message may have come since it was looked at again.
    life_at_ = std::min(now, life_at_ + unseen);
    other_life_at_ = std::min(now, other_life_at_ + unseen);
  }
  const double seconds = ToSeconds(now - sampled_at_);
  const double cpu_seconds = static_cast<double>(use.cpu_ticks - use_.cpu_ticks) /
                             static_cast<double>(sysconf(_SC_CLK_TCK));
  const bool reads_pages = use.page_faults > use_.page_faults;
  const bool moves_data = reads_pages || use.io_bytes - use_.io_bytes >= kBusyBytes;
  if (moves_data) other_life_at_ = now;
  const bool spins = activity_ == "starting" && now - other_life_at_ > longest_spin_;
  const bool computes = cpu_seconds >= kBusyShare * seconds && !spins;
  const bool alive = activity_ == "training"     ? reads_pages
                     : activity_ == "exchanging" ? moves_data
                                                 : moves_data || computes;
  if (alive) life_at_ = now;
  use_ = use;
  sampled_at_ = now;
}

std::string RankPulse::StateText() const {
  const std::string in = use_.waits_in.empty() ? "" : " in " + use_.waits_in;
  switch (use_.state) {
    case 'R':
      return "running" + in;
    case 'S':
      return "sleeping" + in;
    case 'D':
      return "waiting for a disk";
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
      return "dead";
    default:
      return "unknown";
  }
}

}  // namespace weft::daemon
