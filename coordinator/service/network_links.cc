#include "coordinator/service/network_links.h"

#include <algorithm>
#include <cmath>

namespace weft::coordinator {
namespace {

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

bool NetworkLinks::Join(const std::string& machine, const std::string& host) {
  bool moved = false;
  const std::vector<std::string> peers = peers_[machine];
  for (const std::string& peer : peers) {
    const MachinePair pair = PairOf(machine, peer);
    failures_.erase(pair);
    const auto link = links_.find(pair);
    if (link == links_.end()) continue;
    const LinkRecord& record = link->second;
    moved |= host != (record.machine_a == machine ? record.host_a : record.host_b);
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

void NetworkLinks::Fail(const MachinePair& pair, const std::string& why, Duration now) {
  AddPeers(pair);
  failures_[pair] = {why, now};
}

void NetworkLinks::AddPeers(const MachinePair& pair) {
  const auto add = [&](const std::string& machine, const std::string& peer) {
    std::vector<std::string>& peers = peers_[machine];
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  };
  add(pair.first, pair.second);
  add(pair.second, pair.first);
}

void NetworkLinks::Forget(const std::string& machine) {
  for (const std::string& peer : peers_[machine]) {
    links_.erase(PairOf(machine, peer));
    failures_.erase(PairOf(machine, peer));
    std::erase(peers_[peer], machine);
  }
  peers_.erase(machine);
}

bool NetworkLinks::IsKnown(const MachinePair& pair, Duration now) const {
  const auto failure = failures_.find(pair);
  return links_.contains(pair) ||
         (failure != failures_.end() && now - failure->second.at < patience_);
}

int64_t NetworkLinks::Degree(const std::string& machine, Duration now) const {
  const auto peers = peers_.find(machine);
  if (peers == peers_.end()) return 0;
  return std::count_if(peers->second.begin(), peers->second.end(), [&](const std::string& peer) {
    return IsKnown(PairOf(machine, peer), now);
  });
}

std::vector<MachinePair> NetworkLinks::Choose(std::vector<std::string> idle, Duration now,
                                              size_t most) const {
  std::vector<std::pair<int64_t, std::string>> by_degree;
  for (std::string& machine : idle) {
    by_degree.emplace_back(Degree(machine, now), std::move(machine));
  }
  std::sort(by_degree.begin(), by_degree.end());
  std::vector<MachinePair> chosen;
  std::vector<bool> taken(by_degree.size(), false);
  for (size_t i = 0; i < by_degree.size() && chosen.size() < most; ++i) {
    if (by_degree[i].first >= links_per_machine_) break;
    for (size_t j = i + 1; j < by_degree.size() && !taken[i]; ++j) {
      const MachinePair pair = PairOf(by_degree[i].second, by_degree[j].second);
      if (taken[j] || IsKnown(pair, now)) continue;
      taken[i] = taken[j] = true;
      chosen.push_back(pair);
    }
  }
  return chosen;
}

std::optional<double> NetworkLinks::RateOf(const std::string& machine) const {
  std::vector<double> rates;
  for (const LinkView& link : Of(machine)) {
    if (link.error.empty()) rates.push_back(link.bytes_per_second);
  }
  if (rates.empty()) return std::nullopt;
  std::sort(rates.begin(), rates.end());
  return InTwoDigits(rates[(rates.size() - 1) / 2]);
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
