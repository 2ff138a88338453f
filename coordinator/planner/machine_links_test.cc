#include "coordinator/planner/machine_links.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/planner/worker_order.h"

namespace weft::planner {
namespace {

/// Machines by their names, each in the rack that the first character names.
ClusterProfile Machines(const std::vector<std::string>& names) {
  ClusterProfile cluster;
  for (const std::string& name : names) {
    WorkerProfile& worker = cluster.workers.emplace_back();
    worker.worker_id = name;
    worker.rack = name.substr(0, 1);
    worker.network_bytes_per_second = 1e9;
  }
  return cluster;
}

void State(ClusterProfile& cluster, std::vector<std::string> workers, double rate) {
  cluster.links.push_back({.workers = std::move(workers), .bytes_per_second = rate});
}

void StateRacks(ClusterProfile& cluster, std::vector<std::string> racks, double rate) {
  cluster.links.push_back({.racks = std::move(racks), .bytes_per_second = rate});
}

double RateOf(const ClusterProfile& cluster, size_t one, size_t other) {
  const MachineLinks links(cluster);
  const size_t from = links.ZoneOf(cluster.workers[one]), to = links.ZoneOf(cluster.workers[other]);
  EXPECT_EQ(links.Between(from, to), links.Between(to, from));
  return links.Between(from, to).bytes_per_second;
}

std::vector<std::string> OrderOf(const ClusterProfile& cluster) {
  const MachineLinks links(cluster);
  std::vector<std::string> names;
  for (const WorkerProfile* worker : WorkerOrder(cluster, false, &links)) {
    names.push_back(worker->worker_id);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(MachineLink, TheWorstOfTwoHasTheLowerRateThatIsStatedAndTheLongerLatency) {
  MachineLink link;
  link.WorsenTo({0, 2e-5});
  EXPECT_EQ(link, (MachineLink{0, 2e-5}));
  link.WorsenTo({1e9, 1e-5});
  EXPECT_EQ(link, (MachineLink{1e9, 2e-5}));
  link.WorsenTo({1e8, 0});
  EXPECT_EQ(link, (MachineLink{1e8, 2e-5}));
  link.WorsenTo({1e9, 3e-5});
  EXPECT_EQ(link, (MachineLink{1e8, 3e-5}));
}

TEST(MachineLinks, OfTwoMachinesGoBeforeThoseOfTheirRacks) {
  ClusterProfile cluster = Machines({"a0", "a1", "b0", "b1", "c0"});
  State(cluster, {"b0", "a0"}, 5e8);
  StateRacks(cluster, {"a", "b"}, 1e8);
  StateRacks(cluster, {"b", "b"}, 2e8);
  State(cluster, {"gone", "a1"}, 1e6);
  EXPECT_EQ(RateOf(cluster, 0, 2), 5e8);
  EXPECT_EQ(RateOf(cluster, 0, 3), 1e8) << "one of the two has a link of its own";
  EXPECT_EQ(RateOf(cluster, 1, 2), 1e8);
  EXPECT_EQ(RateOf(cluster, 2, 3), 2e8) << "within a rack";
  EXPECT_EQ(RateOf(cluster, 0, 1), 0);
  EXPECT_EQ(RateOf(cluster, 0, 4), 0);
}

TEST(MachineLinks, MachinesOfARackAreOneZone) {
  ClusterProfile cluster = Machines({});
  for (int i = 0; i < 5000; ++i) {
    WorkerProfile& worker = cluster.workers.emplace_back();
    worker.worker_id = std::to_string(i);
    worker.rack = i % 2 == 0 ? "even" : "odd";
  }
  StateRacks(cluster, {"even", "odd"}, 1e8);
  const MachineLinks links(cluster);
  EXPECT_EQ(links.zone_count(), 3u) << "with that of other machines";
  EXPECT_EQ(links.ZoneOf(cluster.workers[0]), links.ZoneOf(cluster.workers[4998]));
  EXPECT_EQ(OrderOf(cluster).size(), 5000u);
}

TEST(FillOrder, StaysWhereLinksDoNotDiffer) {
  ClusterProfile cluster = Machines({"a0", "a1", "a2"});
  EXPECT_EQ(OrderOf(cluster), (Names{"a0", "a1", "a2"}));
  StateRacks(cluster, {"a", "a"}, 1e8);
  EXPECT_EQ(OrderOf(cluster), (Names{"a0", "a1", "a2"}));
}

TEST(FillOrder, BothEndsOfASlowLinkAreFarApart) {
  ClusterProfile cluster = Machines({"a0", "a1", "a2", "a3"});
  State(cluster, {"a0", "a1"}, 1e6);
  EXPECT_EQ(OrderOf(cluster), (Names{"a0", "a2", "a3", "a1"}));
  // A latency is as good a reason.
  cluster.links.front() = {.workers = {"a0", "a1"}, .latency_seconds = 0.1};
  EXPECT_EQ(OrderOf(cluster), (Names{"a0", "a2", "a3", "a1"}));
}

TEST(FillOrder, AMachineThatIsFarFromAllComesLast) {
  ClusterProfile cluster = Machines({"a0", "a1", "a2", "a3"});
  for (const char* other : {"a1", "a2", "a3"}) State(cluster, {"a0", other}, 1e6);
  EXPECT_EQ(OrderOf(cluster), (Names{"a1", "a2", "a3", "a0"}));
}

TEST(FillOrder, MachinesWithFastLinksAreNextToEachOther) {
  ClusterProfile cluster = Machines({"a0", "b0", "a1", "b1", "c0", "c1", "c2"});
  for (WorkerProfile& worker : cluster.workers) worker.rack.clear();  // links alone say it
  for (const WorkerProfile& one : cluster.workers) {
    for (const WorkerProfile& other : cluster.workers) {
      if (one.worker_id[0] < other.worker_id[0]) {
        State(cluster, {one.worker_id, other.worker_id}, 1e7);
      }
    }
  }
  EXPECT_EQ(OrderOf(cluster), (Names{"c0", "c1", "c2", "a0", "a1", "b0", "b1"}))
      << "the largest group first";
}

TEST(FillOrder, LargerMachinesComeFirstWhateverTheirLinks) {
  ClusterProfile cluster = Machines({"a0", "a1", "a2", "a3"});
  cluster.workers[0].cores = cluster.workers[1].cores = 8;
  State(cluster, {"a0", "a1"}, 1e6);
  State(cluster, {"a1", "a2"}, 1e7);
  EXPECT_EQ(OrderOf(cluster), (Names{"a0", "a1", "a3", "a2"}));
}

}  // namespace
}  // namespace weft::planner
