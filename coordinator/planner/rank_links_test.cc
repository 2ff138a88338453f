#include "coordinator/planner/rank_links.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

/// `machines` machines; each two have a link with a rate of its own.
ClusterProfile AllLinked(int64_t machines) {
  ClusterProfile cluster;
  for (int64_t i = 0; i < machines; ++i) {
    cluster.workers.emplace_back().worker_id = "w" + std::to_string(i);
    for (int64_t j = 0; j < i; ++j) {
      cluster.links.push_back({.workers = {"w" + std::to_string(j), "w" + std::to_string(i)},
                               .bytes_per_second = static_cast<double>(500 - 10 * i + j),
                               .latency_seconds = static_cast<double>(7 * i + j)});
    }
  }
  return cluster;
}

/// Ranks on machines, in order.
struct Placed {
  explicit Placed(const std::vector<int64_t>& ranks_on)
      : cluster(AllLinked(std::ssize(ranks_on))),
        links(std::make_shared<const MachineLinks>(cluster)),
        ranks(links, MachinesOf(ranks_on)) {
    for (size_t machine = 0; machine < ranks_on.size(); ++machine) {
      of_rank.insert(of_rank.end(), static_cast<size_t>(ranks_on[machine]), machine);
    }
  }
  std::vector<RankLinks::Machine> MachinesOf(const std::vector<int64_t>& ranks_on) const {
    std::vector<RankLinks::Machine> machines;
    for (size_t i = 0; i < ranks_on.size(); ++i) {
      machines.push_back({links->ZoneOf(cluster.workers[i]), ranks_on[i]});
    }
    return machines;
  }
  /// What is stated between two ranks.
  void Add(size_t one, size_t other, MachineLink& worst) const {
    if (of_rank[one] == of_rank[other]) return;
    worst.WorsenTo(links->Between(links->ZoneOf(cluster.workers[of_rank[one]]),
                                  links->ZoneOf(cluster.workers[of_rank[other]])));
  }

  ClusterProfile cluster;
  std::shared_ptr<const MachineLinks> links;
  RankLinks ranks;
  std::vector<size_t> of_rank;
};

TEST(RankLinks, TheWorstOfAGroupIsThatOfTwoRanksWithEqualOtherCoordinates) {
  for (const auto& ranks_on : std::vector<std::vector<int64_t>>{
           {24}, {8, 8, 8}, {5, 7, 12}, {1, 2, 3, 4, 5, 9}, {4, 4, 4, 4, 4, 4}}) {
    const Placed placed(ranks_on);
    // Coordinates of a rank from the fastest axis to the slowest.
    const int64_t tensor = 2, context = 3, data = 2;
    const auto coordinates = [&](int64_t rank) {
      return std::vector<int64_t>{rank % tensor, rank / tensor % context,
                                  rank / (tensor * context) % data,
                                  rank / (tensor * context * data)};
    };
    const auto worst = [&](size_t axis) {
      MachineLink found;
      for (int64_t one = 0; one < 24; ++one) {
        for (int64_t other = 0; other < one; ++other) {
          std::vector<int64_t> a = coordinates(one), b = coordinates(other);
          a[axis] = b[axis] = 0;
          if (a == b) placed.Add(static_cast<size_t>(one), static_cast<size_t>(other), found);
        }
      }
      return found;
    };
    EXPECT_EQ(placed.ranks.OfGroups(tensor, tensor), worst(0));
    EXPECT_EQ(placed.ranks.OfGroups(context, context * tensor), worst(1));
    EXPECT_EQ(placed.ranks.OfGroups(data, data * context * tensor), worst(2));
    EXPECT_EQ(placed.ranks.OfGroups(2, 24), worst(3)) << "stages of a pipeline";
    EXPECT_EQ(placed.ranks.OfGroups(tensor, tensor), worst(0)) << "remembered";
  }
}

TEST(RankLinks, HopsOfAPipelineAreBetweenNeighbours) {
  const Placed placed({3, 3, 3, 3});
  const auto worst = [&](bool closes) {
    MachineLink found;
    for (size_t rank = 0; rank + 3 < 12; ++rank) placed.Add(rank, rank + 3, found);
    for (size_t rank = 0; closes && rank < 3; ++rank) placed.Add(rank, rank + 9, found);
    return found;
  };
  EXPECT_EQ(placed.ranks.OfHops(3, false), worst(false));
  EXPECT_EQ(placed.ranks.OfHops(3, true), worst(true));
  EXPECT_FALSE(worst(true) == worst(false));
}

TEST(RankLinks, NothingIsStatedWithinAMachine) {
  const Placed placed({8});
  EXPECT_EQ(placed.ranks.OfGroups(8, 8), MachineLink{});
  EXPECT_EQ(placed.ranks.OfHops(2, true), MachineLink{});
}

}  // namespace
}  // namespace weft::planner
