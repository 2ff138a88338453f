#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"

namespace weft::planner {

/// What is stated of the network between two machines, or the worst of several such statements.
struct MachineLink {
  double bytes_per_second = 0;  ///< One direction, all ranks of a machine together; 0: not stated.
  double latency_seconds = 0;   ///< Of a message, beyond one within a machine; 0: not stated.

  bool operator==(const MachineLink&) const = default;

  /// Takes the lower rate of those that are stated and the longer latency.
  void WorsenTo(const MachineLink& other);
};

/// The `links` of a cluster. Machines with equal links share a zone, so that thousands of them in a
/// few racks cost no more than the racks. Does not change once it is made.
class MachineLinks {
 public:
  /// Ignores what is stated of machines that are not there, as in a part of a cluster.
  explicit MachineLinks(const ClusterProfile& cluster);

  /// Below zone_count(); 0 where nothing is stated of the machine.
  size_t ZoneOf(const WorkerProfile& worker) const;
  size_t zone_count() const { return zones_; }
  /// Between a machine of one zone and another machine of the other, or of the same one.
  const MachineLink& Between(size_t zone, size_t other) const {
    return links_[zone * zones_ + other];
  }
  /// Seconds of a message of the size of a bucket of gradients over that link, to compare links by.
  double Seconds(size_t zone, size_t other) const;

 private:
  void State(const LinkSpec& link, size_t zone, size_t other);

  size_t zones_ = 1;
  std::map<std::string, size_t> of_worker_;
  std::map<std::string, size_t> of_rack_;
  std::vector<MachineLink> links_;       ///< By both zones.
  double network_bytes_per_second_ = 0;  ///< The fastest of a machine: of links without a rate.
};

/// The order in which a search fills machines that are in these zones. Each is followed by the one
/// whose slowest link to all before it is the fastest, so that slow links come late and between
/// ranks that are far apart. Machines stay among those of their class: equal numbers of `classes`
/// are next to each other there. Where links do not differ the order stays as it is.
std::vector<size_t> FillOrder(const MachineLinks& links, const std::vector<size_t>& zones,
                              const std::vector<size_t>& classes);

}  // namespace weft::planner
