#include "coordinator/planner/machine_links.h"

#include <algorithm>
#include <deque>
#include <tuple>

#include "common/number.h"

namespace weft::planner {
namespace {

/// A bucket of gradients: most messages between machines are one.
constexpr double kMessageBytes = 16 << 20;

/// Machines of one class that are not filled yet.
class Remaining {
 public:
  Remaining(const std::vector<size_t>& zones, size_t zone_count, size_t first, size_t last)
      : machines_(zone_count), left_(last - first) {
    for (size_t machine = first; machine < last; ++machine) {
      if (machines_[zones[machine]].empty()) present_.push_back(zones[machine]);
      machines_[zones[machine]].push_back(machine);
    }
  }

  bool empty() const { return left_ == 0; }
  /// Zones with machines left.
  const std::vector<size_t>& zones() const { return present_; }
  size_t FirstOf(size_t zone) const { return machines_[zone].front(); }
  double CountOf(size_t zone) const { return D(std::ssize(machines_[zone])); }
  size_t Take(size_t zone) {
    const size_t machine = FirstOf(zone);
    machines_[zone].pop_front();
    if (machines_[zone].empty()) std::erase(present_, zone);
    --left_;
    return machine;
  }

 private:
  std::vector<std::deque<size_t>> machines_;
  std::vector<size_t> present_;
  size_t left_;
};

/// The zone to begin with: one that has another machine near. Of these an end of the slowest link,
/// whose other end then comes last; then the one that is nearest to all.
size_t FirstZone(const MachineLinks& links, const Remaining& left) {
  using Key = std::tuple<double, double, double, size_t>;
  const auto key = [&](size_t zone) -> Key {
    double nearest = 0, farthest = 0, sum = 0;
    bool any = false;
    for (const size_t other : left.zones()) {
      const double machines = left.CountOf(other) - (other == zone ? 1 : 0);
      if (machines == 0) continue;
      const double seconds = links.Seconds(zone, other);
      nearest = any ? std::min(nearest, seconds) : seconds;
      farthest = std::max(farthest, seconds);
      sum += machines * seconds;
      any = true;
    }
    return {nearest, -farthest, sum, left.FirstOf(zone)};
  };
  size_t first = left.zones().front();
  Key least = key(first);
  for (const size_t zone : left.zones()) {
    if (const Key own = key(zone); own < least) {
      least = own;
      first = zone;
    }
  }
  return first;
}

}  // namespace

void MachineLink::WorsenTo(const MachineLink& other) {
  if (other.bytes_per_second > 0) {
    bytes_per_second = bytes_per_second > 0 ? std::min(bytes_per_second, other.bytes_per_second)
                                            : other.bytes_per_second;
  }
  latency_seconds = std::max(latency_seconds, other.latency_seconds);
}

MachineLinks::MachineLinks(const ClusterProfile& cluster) {
  for (const LinkSpec& link : cluster.links) {
    for (const std::string& name : link.workers) zones_ += of_worker_.emplace(name, zones_).second;
    for (const std::string& name : link.racks) zones_ += of_rack_.emplace(name, zones_).second;
  }
  // A machine with a link of its own has what its rack has, too.
  std::map<std::string, std::vector<size_t>> zones_of_rack;
  for (const auto& [rack, zone] : of_rack_) zones_of_rack[rack] = {zone};
  for (const WorkerProfile& worker : cluster.workers) {
    network_bytes_per_second_ =
        std::max(network_bytes_per_second_, worker.network_bytes_per_second);
    const auto own = of_worker_.find(worker.worker_id);
    const auto rack = zones_of_rack.find(worker.rack);
    if (own != of_worker_.end() && rack != zones_of_rack.end()) rack->second.push_back(own->second);
  }
  links_.resize(zones_ * zones_);
  for (const LinkSpec& link : cluster.links) {
    if (link.racks.size() != 2) continue;
    for (const size_t zone : zones_of_rack.at(link.racks[0])) {
      for (const size_t other : zones_of_rack.at(link.racks[1])) State(link, zone, other);
    }
  }
  for (const LinkSpec& link : cluster.links) {
    if (link.workers.size() != 2) continue;
    State(link, of_worker_.at(link.workers[0]), of_worker_.at(link.workers[1]));
  }
}

void MachineLinks::State(const LinkSpec& link, size_t zone, size_t other) {
  links_[zone * zones_ + other] =
      links_[other * zones_ + zone] = {link.bytes_per_second, link.latency_seconds};
}

size_t MachineLinks::ZoneOf(const WorkerProfile& worker) const {
  if (const auto own = of_worker_.find(worker.worker_id); own != of_worker_.end()) {
    return own->second;
  }
  const auto rack = of_rack_.find(worker.rack);
  return rack != of_rack_.end() ? rack->second : 0;
}

double MachineLinks::Seconds(size_t zone, size_t other) const {
  const MachineLink& link = Between(zone, other);
  const double rate = link.bytes_per_second > 0 ? link.bytes_per_second : network_bytes_per_second_;
  return link.latency_seconds + (rate > 0 ? kMessageBytes / rate : 0);
}

std::vector<size_t> FillOrder(const MachineLinks& links, const std::vector<size_t>& zones,
                              const std::vector<size_t>& classes) {
  const size_t count = links.zone_count();
  std::vector<size_t> order;
  std::vector<double> slowest(count, 0);  // by zone, to any machine before,
  std::vector<double> last(count, 0);     // and to the one before
  for (size_t first = 0; first < zones.size();) {
    size_t end = first;
    while (end < zones.size() && classes[end] == classes[first]) ++end;
    Remaining left(zones, count, first, end);
    while (!left.empty()) {
      const auto key = [&](size_t zone) {
        return std::tuple(slowest[zone], last[zone], left.FirstOf(zone));
      };
      const size_t zone =
          order.empty()
              ? FirstZone(links, left)
              : *std::min_element(left.zones().begin(), left.zones().end(),
                                  [&](size_t one, size_t other) { return key(one) < key(other); });
      order.push_back(left.Take(zone));
      for (size_t other = 0; other < count; ++other) {
        last[other] = links.Seconds(zone, other);
        slowest[other] = std::max(slowest[other], last[other]);
      }
    }
    first = end;
  }
  return order;
}

}  // namespace weft::planner
