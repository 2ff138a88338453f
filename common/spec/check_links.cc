#include "common/spec/check_links.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/spec/spec_json.h"

namespace weft {
namespace {

/// Characters of a name that a text repeats.
constexpr size_t kMostShown = 64;

std::string Shown(const std::string& name) {
  return "'" + (name.size() > kMostShown ? name.substr(0, kMostShown) + "..." : name) + "'";
}

std::string Rate(double bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", bytes_per_second);
  return text;
}

/// Machines that a name stands for: how many, and the one with the least network.
struct Named {
  int64_t machines = 0;
  const WorkerProfile* slowest = nullptr;

  void Add(const WorkerProfile& worker) {
    ++machines;
    if (slowest == nullptr || worker.network_bytes_per_second < slowest->network_bytes_per_second) {
      slowest = &worker;
    }
  }
};
using ByName = std::map<std::string_view, Named>;

Status UnknownName(const std::string& where, const std::string& what, const std::string& name,
                   const ByName& known) {
  std::vector<std::string> names;
  for (const auto& [each, machines] : known) names.emplace_back(each);
  const std::string nearest = NearestName(name, names);
  return InvalidError(where + ": no machine has the " + what + " " + Shown(name) +
                      (nearest.empty() ? "" : "; did you mean " + Shown(nearest) + "?"));
}

class LinkChecker {
 public:
  explicit LinkChecker(const ClusterProfile& cluster) {
    for (const WorkerProfile& worker : cluster.workers) {
      workers_[worker.worker_id].Add(worker);
      if (!worker.rack.empty()) racks_[worker.rack].Add(worker);
    }
  }

  Status Check(const LinkSpec& link, const std::string& where) {
    if ((link.workers.size() == 2) == (link.racks.size() == 2) ||
        link.workers.size() + link.racks.size() != 2) {
      return InvalidError(where +
                          " must name two machines or two racks; hint: workers: [a, b], or "
                          "racks: [r1, r2]");
    }
    const auto sound = [](double value) { return std::isfinite(value) && value >= 0; };
    if (!sound(link.bytes_per_second) || !sound(link.latency_seconds)) {
      return InvalidError(where + ": bytes_per_second and latency_seconds must be 0 or more");
    }
    if (link.bytes_per_second == 0 && link.latency_seconds == 0) {
      return InvalidError(where + " says neither bytes_per_second nor latency_seconds");
    }
    return link.workers.empty() ? CheckRacks(link, where) : CheckWorkers(link, where);
  }

 private:
  Status CheckWorkers(const LinkSpec& link, const std::string& where) {
    if (link.workers[0] == link.workers[1]) {
      return InvalidError(where + " names the machine " + Shown(link.workers[0]) + " twice");
    }
    for (const std::string& name : link.workers) {
      const auto named = workers_.find(name);
      if (named == workers_.end()) return UnknownName(where, "worker_id", name, workers_);
      if (named->second.machines > 1) {
        return InvalidError(where + ": several machines have the worker_id " + Shown(name));
      }
      WEFT_RETURN_IF_ERROR(CheckRate(link, where, *named->second.slowest));
    }
    return CheckFirst(where, "workers", link.workers);
  }

  Status CheckRacks(const LinkSpec& link, const std::string& where) {
    for (const std::string& name : link.racks) {
      const auto named = racks_.find(name);
      if (named == racks_.end()) return UnknownName(where, "rack", name, racks_);
      WEFT_RETURN_IF_ERROR(CheckRate(link, where, *named->second.slowest));
    }
    if (link.racks[0] == link.racks[1] && racks_.at(link.racks[0]).machines == 1) {
      return InvalidError(where + ": the rack " + Shown(link.racks[0]) + " has one machine alone");
    }
    return CheckFirst(where, "racks", link.racks);
  }

  /// What a machine does not send at all goes over none of its links, and what is not known of it
  /// would be taken for less.
  static Status CheckRate(const LinkSpec& link, const std::string& where,
                          const WorkerProfile& worker) {
    if (link.bytes_per_second <= worker.network_bytes_per_second || link.bytes_per_second == 0) {
      return OkStatus();
    }
    const std::string network = worker.network_bytes_per_second > 0
                                    ? "sends " + Rate(worker.network_bytes_per_second) + " in all"
                                    : "does not say its network_bytes_per_second";
    return InvalidError(where + ": bytes_per_second is " + Rate(link.bytes_per_second) + ", but " +
                        Shown(worker.worker_id) + " " + network +
                        "; hint: network_bytes_per_second of a machine is the most over any of its "
                        "links");
  }

  Status CheckFirst(const std::string& where, const char* what,
                    const std::vector<std::string>& names) {
    const auto& [one, other] = std::minmax(names[0], names[1]);
    if (seen_.emplace(what, one, other).second) return OkStatus();
    return InvalidError(where + ": an earlier link is between the same " + what + ", " +
                        Shown(one) + " and " + Shown(other));
  }

  ByName workers_;
  ByName racks_;
  std::set<std::tuple<std::string, std::string, std::string>> seen_;
};

}  // namespace

Status CheckLinks(const ClusterProfile& cluster) {
  if (cluster.links.empty()) return OkStatus();
  LinkChecker checker(cluster);
  for (size_t index = 0; index < cluster.links.size(); ++index) {
    WEFT_RETURN_IF_ERROR(
        checker.Check(cluster.links[index], "links[" + std::to_string(index) + "]"));
  }
  return OkStatus();
}

}  // namespace weft
