#include "coordinator/planner/worker_groups.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

/// Changes the field of that number, in the order of their declarations.
class ChangeField {
 public:
  explicit ChangeField(int number) : left_(number) {}

  template <class T>
  void operator()(const Field& field, T& member) {
    if (left_-- != 0) return;
    name = field.name;
    if constexpr (std::is_same_v<T, std::string>) {
      member += "x";
    } else if constexpr (std::is_same_v<T, bool>) {
      member = !member;
    } else if constexpr (kIsVector<T>) {
      member.emplace_back();
    } else if constexpr (std::is_same_v<T, TimeCalibration>) {
      member.link_share /= 2;
    } else {
      member += 1;
    }
  }

  std::string name;  ///< Of the field; empty where there are not as many.

 private:
  int left_;
};

WorkerProfile Worker() {
  WorkerProfile worker;
  worker.cores = 8;
  DeviceSpec device;
  device.memory_limit_bytes = 1 << 30;
  worker.devices = {device};
  return worker;
}

bool OneKind(const WorkerProfile& a, const WorkerProfile& b) {
  const WorkerGroups groups({{a, b}}, PrecisionOf("bf16"), false);
  return groups.kinds().at(0) == groups.kinds().at(1);
}

TEST(WorkerGroups, TellApartWhatDiffersInAnythingButNames) {
  std::set<std::string> names;
  for (int number = 0;; ++number) {
    WorkerProfile changed = Worker();
    ChangeField change(number);
    WorkerProfile::Fields(changed, change);
    if (change.name.empty()) break;
    if (OneKind(Worker(), changed)) names.insert(change.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"host", "rack", "worker_id"}));
  names.clear();
  for (int number = 0;; ++number) {
    WorkerProfile changed = Worker();
    ChangeField change(number);
    DeviceSpec::Fields(changed.devices.front(), change);
    if (change.name.empty()) break;
    if (OneKind(Worker(), changed)) names.insert(change.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"uuid"}));
}

TEST(WorkerGroups, ThoseOfTheLargestRackComeFirst) {
  ClusterProfile cluster;
  for (const auto& [id, rack] : std::vector<std::pair<std::string, std::string>>{
           {"a", "near"}, {"b", "far"}, {"c", "near"}, {"d", "far"}, {"e", "far"}}) {
    cluster.workers.push_back(Worker());
    cluster.workers.back().worker_id = id;
    cluster.workers.back().rack = rack;
  }
  cluster.workers[0].cores = 9;  // larger than the others, so it is before them
  const WorkerGroups groups(cluster, PrecisionOf("fp32"), false);
  std::string order;
  for (const WorkerProfile* worker : groups.workers()) {
    order += worker->worker_id;
  }
  EXPECT_EQ(order, "abdec");
}

TEST(WorkerGroups, SayWhetherAPlanSpansRacks) {
  ClusterProfile cluster;
  for (const char* id : {"a", "b", "c", "d"}) {
    cluster.workers.push_back(Worker());
    cluster.workers.back().worker_id = id;
    cluster.workers.back().rack = *id < 'c' ? "one" : "two";
  }
  const auto spans = [&](int64_t ranks) {
    const WorkerGroups groups(cluster, PrecisionOf("fp32"), false);
    CostedPlan costed;
    costed.ranks = ranks;
    costed.threads = 8;
    return groups.SpansRacks(costed);
  };
  EXPECT_FALSE(spans(3)) << "nothing is said of what lies between them";
  for (WorkerProfile& worker : cluster.workers) worker.between_racks_latency_seconds = 1e-5;
  EXPECT_FALSE(spans(2));
  EXPECT_TRUE(spans(3));
}

TEST(WorkerGroups, SpreadRanksOverAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 7, 40}) {
    ClusterProfile cluster;
    for (int w = 0; w < workers; ++w) {
      cluster.workers.push_back(Worker());
      cluster.workers.back().worker_id = std::to_string(w);
      cluster.workers.back().cores = 12;
    }
    const WorkerGroups groups(cluster, PrecisionOf("fp32"), false);
    for (const int64_t threads : {1, 5, 12, 13}) {
      const int64_t most = std::max<int64_t>(12 / threads, 1);
      for (int64_t ranks = 1; ranks < 100; ++ranks) {
        std::set<int64_t> wanted;
        for (int64_t used = 1; used <= workers; ++used) {
          wanted.insert(std::min((ranks + used - 1) / used, most));
        }
        const std::vector<int64_t> found = groups.SpreadChoices(ranks, threads);
        EXPECT_EQ(found, std::vector<int64_t>(wanted.begin(), wanted.end()))
            << workers << " workers, " << ranks << " ranks of " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace weft::planner
