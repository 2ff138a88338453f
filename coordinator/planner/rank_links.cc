#include "coordinator/planner/rank_links.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft::planner {

RankLinks::RankLinks(std::shared_ptr<const MachineLinks> links,
                     const std::vector<Machine>& machines)
    : links_(std::move(links)) {
  for (size_t machine = 0; machine < machines.size(); ++machine) {
    of_rank_.insert(of_rank_.end(), static_cast<size_t>(machines[machine].ranks),
                    {machine, machines[machine].zone});
  }
}

MachineLink RankLinks::OfGroups(int64_t ranks, int64_t span) const {
  const auto [known, added] = known_.try_emplace({ranks, span});
  if (!added) return known->second;
  const int64_t all = std::ssize(of_rank_);
  const int64_t stride = std::max<int64_t>(span / ranks, 1);
  for (int64_t block = 0; block < all; block += span) {
    for (int64_t first = block; first < std::min(block + stride, all); ++first) {
      known->second.WorsenTo(OfGroup(first, std::min(block + span, all), stride));
    }
  }
  return known->second;
}

MachineLink RankLinks::OfGroup(int64_t first, int64_t end, int64_t stride) const {
  // Machines of each zone: more than two of one zone are linked as two are.
  std::map<size_t, int64_t> zones;
  size_t machine = of_rank_.size();
  for (int64_t rank = first; rank < end; rank += stride) {
    const Place& place = of_rank_[static_cast<size_t>(rank)];
    if (place.machine == machine) continue;
    machine = place.machine;
    ++zones[place.zone];
  }
  MachineLink worst;
  for (auto zone = zones.begin(); zone != zones.end(); ++zone) {
    if (zone->second > 1) worst.WorsenTo(links_->Between(zone->first, zone->first));
    for (auto other = std::next(zone); other != zones.end(); ++other) {
      worst.WorsenTo(links_->Between(zone->first, other->first));
    }
  }
  return worst;
}

MachineLink RankLinks::OfHops(int64_t stride, bool closes) const {
  const int64_t all = std::ssize(of_rank_);
  MachineLink worst;
  for (int64_t rank = 0; rank + stride < all; ++rank) AddHop(rank, rank + stride, worst);
  for (int64_t rank = 0; closes && rank < std::min(stride, all); ++rank) {
    AddHop(all - std::min(stride, all) + rank, rank, worst);
  }
  return worst;
}

void RankLinks::AddHop(int64_t from, int64_t to, MachineLink& worst) const {
  const Place &one = of_rank_[static_cast<size_t>(from)],
              &other = of_rank_[static_cast<size_t>(to)];
  if (one.machine != other.machine) worst.WorsenTo(links_->Between(one.zone, other.zone));
}

}  // namespace weft::planner
