#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/records.h"

namespace weft::coordinator {

/// Two machines, the lesser name first.
using MachinePair = std::pair<std::string, std::string>;
MachinePair PairOf(const std::string& one, const std::string& other);

/// The network from one machine to another, as people see it.
struct LinkView {
  std::string machine;  ///< The other one.
  double bytes_per_second = 0;
  double latency_seconds = 0;
  double measured_at = 0;
  std::string error;  ///< Why it could not be measured; empty: it was.
};

/// What is known of the network between machines, and what to measure next. Nobody measures all
/// pairs: each machine is measured to some others. Not thread-safe.
class NetworkLinks {
 public:
  using Duration = std::chrono::nanoseconds;

  /// Each machine is measured to `links_per_machine` others. A failure counts for `patience`, the
  /// next one of the same two machines for twice as long, and so on up to a day.
  NetworkLinks(int64_t links_per_machine, Duration patience)
      : links_per_machine_(links_per_machine), patience_(patience) {}

  void Load(const std::vector<LinkRecord>& records);
  /// A worker of that machine has joined; its workers are reached at these hosts. The links that
  /// were measured elsewhere are void, as are failures: true when the former were there.
  bool Join(const std::string& machine, const std::set<std::string>& hosts);
  void Put(const LinkRecord& link);
  /// Returns how long the failure counts.
  Duration Fail(const MachinePair& pair, const std::string& why, Duration now);
  void Forget(const std::string& machine);
  /// Forgets failures that do not count any more, of machines that are not `there`.
  void ForgetFailures(const std::set<std::string>& there, Duration now);

  /// Pairs of machines to measure now, at most `most`: of those that are `idle`, no machine twice,
  /// and the least known first. After them pairs that were measured before `old_before`, in seconds
  /// since 1970, are measured again, the oldest first: until then their rates count.
  std::vector<MachinePair> Choose(const std::vector<std::string>& idle, Duration now, size_t most,
                                  double old_before = 0) const;

  /// Bytes per second from one of these machines to others: the median of all their links, the
  /// lower of two middle ones, in two digits, so that plans do not follow noise. nullopt: nothing
  /// was measured.
  std::optional<double> RateOf(const std::set<std::string>& machines) const;
  /// Seconds of a message from one of these machines to others, one way: likewise the median of all
  /// their links, the higher of two middle ones, in two digits. nullopt: nothing was measured.
  std::optional<double> LatencyOf(const std::set<std::string>& machines) const;
  /// Bytes per second of the slowest link between two of these machines; nullopt: none of them was
  /// measured.
  std::optional<double> SlowestBetween(const std::set<std::string>& machines) const;
  /// Seconds of a message over the link with the longest latency of those; nullopt: likewise.
  std::optional<double> LongestLatencyBetween(const std::set<std::string>& machines) const;
  std::vector<LinkView> Of(const std::string& machine) const;
  const std::map<MachinePair, LinkRecord>& links() const { return links_; }

 private:
  struct Failure {
    std::string why;
    Duration at{0};
    Duration pause{0};  ///< For which it counts.
  };
  /// Links that were measured from one of these machines, each once; `within`: to another of them.
  std::vector<const LinkRecord*> MeasuredFrom(const std::set<std::string>& machines,
                                              bool within) const;
  void AddPeers(const MachinePair& pair);
  /// Where nothing is known of them any more.
  void RemovePeers(const MachinePair& pair);
  bool FailedLately(const MachinePair& pair, Duration now) const;
  /// It was measured or has failed lately.
  bool IsKnown(const MachinePair& pair, Duration now) const;
  /// Links of the machine that are known so.
  int64_t Degree(const std::string& machine, Duration now) const;
  /// Pairs of these machines that were measured before `old_before`, the oldest first; without
  /// those that could not be measured lately.
  std::vector<MachinePair> OldPairs(const std::set<std::string>& machines, Duration now,
                                    double old_before) const;

  int64_t links_per_machine_;
  Duration patience_;
  std::map<MachinePair, LinkRecord> links_;
  std::map<MachinePair, Failure> failures_;
  std::map<std::string, std::vector<std::string>> peers_;  ///< By machine, those of both maps.
};

}  // namespace weft::coordinator
