#include "coordinator/service/network_links.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::coordinator {
namespace {

constexpr std::chrono::hours kLongestPause(24);

double InTwoDigits(double value) {
  if (!(value > 0)) return 0;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::round(value / unit) * unit;
}

}  // namespace

MachinePair PairOf(const std::string& one, const std::string& other) {
  return one < other ? MachinePair(one, other) : MachinePair(other, one);
}

void NetworkLinks::Load(const std::vector<LinkRecord>& records) {
  for (const LinkRecord& record : records) Put(record);
}

bool NetworkLinks::Join(const std::string& machine, const std::set<std::string>& hosts) {
  bool moved = false;
  const auto known = peers_.find(machine);
  if (known == peers_.end()) return false;
  const std::vector<std::string> peers = known->second;
  for (const std::string& peer : peers) {
    const MachinePair pair = PairOf(machine, peer);
    failures_.erase(pair);
    if (const auto link = links_.find(pair); link != links_.end()) {
      const LinkRecord& record = link->second;
      moved |= !hosts.contains(record.machine_a == machine ? record.host_a : record.host_b);
    }
    RemovePeers(pair);
  }
  if (moved) Forget(machine);
  return moved;
}

void NetworkLinks::Put(const LinkRecord& link) {
  const MachinePair pair(link.machine_a, link.machine_b);
  AddPeers(pair);
  failures_.erase(pair);
  links_[pair] = link;
}

NetworkLinks::Duration NetworkLinks::Fail(const MachinePair& pair, const std::string& why,
                                          Duration now) {
  AddPeers(pair);
  Failure& failure = failures_[pair];
  const Duration longest = std::max<Duration>(patience_, kLongestPause);
  failure = {why, now, failure.why.empty() ? patience_ : std::min(2 * failure.pause, longest)};
  return failure.pause;
}

void NetworkLinks::AddPeers(const MachinePair& pair) {
  const auto add = [&](const std::string& machine, const std::string& peer) {
    std::vector<std::string>& peers = peers_[machine];
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  };
  add(pair.first, pair.second);
  add(pair.second, pair.first);
}

void NetworkLinks::RemovePeers(const MachinePair& pair) {
  if (links_.contains(pair) || failures_.contains(pair)) return;
  const auto remove = [&](const std::string& machine, const std::string& peer) {
    const auto peers = peers_.find(machine);
    if (peers == peers_.end()) return;
    std::erase(peers->second, peer);
    if (peers->second.empty()) peers_.erase(peers);
  };
  remove(pair.first, pair.second);
  remove(pair.second, pair.first);
}

void NetworkLinks::Forget(const std::string& machine) {
  const auto known = peers_.find(machine);
  if (known == peers_.end()) return;
  const std::vector<std::string> peers = known->second;
  for (const std::string& peer : peers) {
    const MachinePair pair = PairOf(machine, peer);
    links_.erase(pair);
    failures_.erase(pair);
    RemovePeers(pair);
  }
}

void NetworkLinks::ForgetFailures(const std::set<std::string>& there, Duration now) {
  std::vector<MachinePair> old;
  for (const auto& [pair, failure] : failures_) {
    const bool both = there.contains(pair.first) && there.contains(pair.second);
    if (!both && now - failure.at >= failure.pause) old.push_back(pair);
  }
  for (const MachinePair& pair : old) {
    failures_.erase(pair);
    RemovePeers(pair);
  }
}

bool NetworkLinks::FailedLately(const MachinePair& pair, Duration now) const {
  const auto failure = failures_.find(pair);
  return failure != failures_.end() && now - failure->second.at < failure->second.pause;
}

bool NetworkLinks::IsKnown(const MachinePair& pair, Duration now) const {
  return links_.contains(pair) || FailedLately(pair, now);
}

int64_t NetworkLinks::Degree(const std::string& machine, Duration now) const {
  const auto peers = peers_.find(machine);
  if (peers == peers_.end()) return 0;
  return std::count_if(peers->second.begin(), peers->second.end(), [&](const std::string& peer) {
    return IsKnown(PairOf(machine, peer), now);
  });
}

std::vector<MachinePair> NetworkLinks::OldPairs(const std::set<std::string>& machines, Duration now,
                                                double old_before) const {
  std::vector<std::pair<double, MachinePair>> by_age;
  for (const auto& [pair, link] : links_) {
    if (link.measured_at >= old_before || FailedLately(pair, now)) continue;
    if (!machines.contains(pair.first) || !machines.contains(pair.second)) continue;
    by_age.emplace_back(link.measured_at, pair);
  }
  std::sort(by_age.begin(), by_age.end());
  std::vector<MachinePair> pairs;
  pairs.reserve(by_age.size());
  for (auto& [measured_at, pair] : by_age) pairs.push_back(std::move(pair));
  return pairs;
}

std::vector<MachinePair> NetworkLinks::Choose(const std::vector<std::string>& idle, Duration now,
                                              size_t most, double old_before) const {
  std::vector<std::pair<int64_t, std::string>> by_degree;
  for (const std::string& machine : idle) {
    by_degree.emplace_back(Degree(machine, now), machine);
  }
  std::sort(by_degree.begin(), by_degree.end());
  std::vector<MachinePair> chosen;
  std::set<std::string> left(idle.begin(), idle.end());
  const auto choose = [&](const MachinePair& pair) {
    left.erase(pair.first);
    left.erase(pair.second);
    chosen.push_back(pair);
  };
  for (size_t i = 0; i < by_degree.size() && chosen.size() < most; ++i) {
    const std::string& machine = by_degree[i].second;
    if (by_degree[i].first >= links_per_machine_) break;
    for (size_t j = i + 1; j < by_degree.size() && left.contains(machine); ++j) {
      const std::string& other = by_degree[j].second;
      const MachinePair pair = PairOf(machine, other);
      if (left.contains(other) && !IsKnown(pair, now)) choose(pair);
    }
  }
  for (const MachinePair& pair : OldPairs(left, now, old_before)) {
    if (chosen.size() >= most) break;
    if (left.contains(pair.first) && left.contains(pair.second)) choose(pair);
  }
  return chosen;
}

std::vector<const LinkRecord*> NetworkLinks::MeasuredFrom(const std::set<std::string>& machines,
                                                          bool within) const {
  std::vector<const LinkRecord*> measured;
  for (const std::string& machine : machines) {
    const auto peers = peers_.find(machine);
    if (peers == peers_.end()) continue;
    for (const std::string& peer : peers->second) {
      const bool both = machines.contains(peer);
      // One between two of them counts once.
      if (both ? peer < machine : within) continue;
      const auto link = links_.find(PairOf(machine, peer));
      if (link != links_.end()) measured.push_back(&link->second);
    }
  }
  return measured;
}

std::optional<double> NetworkLinks::RateOf(const std::set<std::string>& machines) const {
  std::vector<double> rates;
  for (const LinkRecord* link : MeasuredFrom(machines, false)) {
    rates.push_back(link->bytes_per_second);
  }
  if (rates.empty()) return std::nullopt;
  std::sort(rates.begin(), rates.end());
  return InTwoDigits(rates[(rates.size() - 1) / 2]);
}

std::optional<double> NetworkLinks::LatencyOf(const std::set<std::string>& machines) const {
  std::vector<double> latencies;
  for (const LinkRecord* link : MeasuredFrom(machines, false)) {
    latencies.push_back(link->latency_seconds);
  }
  if (latencies.empty()) return std::nullopt;
  std::sort(latencies.begin(), latencies.end());
  return InTwoDigits(latencies[latencies.size() / 2]);
}

std::optional<double> NetworkLinks::SlowestBetween(const std::set<std::string>& machines) const {
  std::optional<double> slowest;
  for (const LinkRecord* link : MeasuredFrom(machines, true)) {
    slowest = std::min(slowest.value_or(link->bytes_per_second), link->bytes_per_second);
  }
  return slowest;
}

std::optional<double> NetworkLinks::LongestLatencyBetween(
    const std::set<std::string>& machines) const {
  std::optional<double> longest;
  for (const LinkRecord* link : MeasuredFrom(machines, true)) {
    longest = std::max(longest.value_or(link->latency_seconds), link->latency_seconds);
  }
  return longest;
}

std::vector<LinkView> NetworkLinks::Of(const std::string& machine) const {
  std::vector<LinkView> views;
  const auto peers = peers_.find(machine);
  if (peers == peers_.end()) return views;
  for (const std::string& peer : peers->second) {
    const MachinePair pair = PairOf(machine, peer);
    if (const auto link = links_.find(pair); link != links_.end()) {
      const LinkRecord& record = link->second;
      views.push_back(
          {peer, record.bytes_per_second, record.latency_seconds, record.measured_at, ""});
    } else if (const auto failure = failures_.find(pair); failure != failures_.end()) {
      views.push_back({peer, 0, 0, 0, failure->second.why});
    }
  }
  std::sort(views.begin(), views.end(),
            [](const LinkView& a, const LinkView& b) { return a.machine < b.machine; });
  return views;
}

}  // namespace weft::coordinator
