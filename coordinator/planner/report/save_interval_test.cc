#include "coordinator/planner/report/save_interval.h"

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

ClusterProfile TwoMachines() {
  ClusterProfile cluster;
  for (const char* id : {"a", "b"}) {
    WorkerProfile& worker = cluster.workers.emplace_back();
    worker.worker_id = id;
    worker.copy_bytes_per_second = 8e9;
    worker.disk_write_bytes_per_second = 1e9;
  }
  cluster.workers[1].disk_write_bytes_per_second = 5e8;
  return cluster;
}

Plan ThreeRanks() {
  Plan plan;
  plan.rank_workers = {"a", "a", "b"};
  plan.mesh.data = 3;
  plan.zero_stage = 1;
  plan.prediction.memory_per_rank.parameters_bytes = 1'000'000'000;
  plan.prediction.memory_per_rank.optimizer_bytes = 2'000'000'000;
  plan.prediction.memory_per_rank.activations_bytes = 7'000'000'000;  // is not saved
  plan.prediction.step_seconds = 0.5;
  return plan;
}

TEST(ExpectedSaveCosts, AreThoseOfTheBusiestMachine) {
  const SaveCosts costs = ExpectedSaveCosts({}, TwoMachines(), ThreeRanks(), 2);
  EXPECT_DOUBLE_EQ(costs.stall_seconds, 2 * 2 * 3.0 / 8) << "two ranks of a, read and written";
  EXPECT_DOUBLE_EQ(costs.background_seconds, 6) << "either machine";
  EXPECT_DOUBLE_EQ(costs.between_failures_seconds, 50700 * 3600.0 / 2);
  EXPECT_DOUBLE_EQ(costs.step_seconds, 0.5);
  EXPECT_GT(StepsBetweenSaves(costs), 0);
}

TEST(ExpectedSaveCosts, AreThoseOfRanksThatSave) {
  Plan plan = ThreeRanks();
  plan.zero_stage = 0;  // all ranks have the same state, and the first one saves it
  const SaveCosts costs = ExpectedSaveCosts({}, TwoMachines(), plan, 2);
  EXPECT_DOUBLE_EQ(costs.stall_seconds, 2 * 3.0 / 8);
  EXPECT_DOUBLE_EQ(costs.background_seconds, 6) << "of b, if that is where it is";
  TrainSpec local;
  local.local_steps = 4;
  EXPECT_DOUBLE_EQ(ExpectedSaveCosts(local, TwoMachines(), plan, 2).stall_seconds, 2 * 2 * 3.0 / 8)
      << "each rank has a state of its own";
}

TEST(ExpectedSaveCosts, OfGpusAreTheirWayToTheHost) {
  ClusterProfile cluster = TwoMachines();
  for (WorkerProfile& worker : cluster.workers) {
    for (double rate : {24e9, 12e9}) {
      worker.devices.emplace_back().download_bytes_per_second = rate;
    }
  }
  Plan plan = ThreeRanks();
  plan.device = "cuda";
  EXPECT_DOUBLE_EQ(ExpectedSaveCosts({}, cluster, plan, 3).stall_seconds, 3.0 / 12);
}

TEST(ExpectedSaveCosts, AreNotKnownOfMachinesThatTellNothing) {
  ClusterProfile cluster = TwoMachines();
  for (WorkerProfile& worker : cluster.workers) worker.copy_bytes_per_second = 0;
  EXPECT_EQ(StepsBetweenSaves(ExpectedSaveCosts({}, cluster, ThreeRanks(), 2)), 0);
}

}  // namespace
}  // namespace weft::planner
