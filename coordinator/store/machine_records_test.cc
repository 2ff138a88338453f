// Runs, machines and what is known of them, as every Store must keep them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"
#include "coordinator/store/store_contract.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A job with one attempt that has ended, and what came out of it.
Transaction EndedRun(const std::string& id, double ended_at) {
  Transaction t = Put(NewJob(id));
  t.attempt = AttemptRecord{};
  t.attempt->job_id = id;
  t.attempt->epoch = 1;
  t.attempt->plan.micro_batch = 4;
  t.attempt->plan.prediction.step_seconds = 0.5;
  t.run.emplace();
  t.run->job_id = id;
  t.run->epoch = 1;
  t.run->ended_at = ended_at;
  t.run->machines.emplace_back().worker_id = "w";
  t.run->machines.front().gemm.push_back({"bf16", 1, 2, 3, 4, 5e9});
  t.run->step_seconds = 0.625;
  t.run->timed_steps = 40;
  t.run->memory_bytes = 1 << 20;
  return t;
}

TEST_P(StoreContract, RunsComeBackNewestFirstWithWhatWasPlanned) {
  MustCommit(EndedRun("older", 10));
  MustCommit(EndedRun("newer", 20));
  auto runs = store_->ListRuns(10);
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  ASSERT_EQ(runs->size(), 2U);
  const RunRecord& newer = runs->front();
  EXPECT_EQ(newer.job_id, "newer");
  EXPECT_EQ(newer.ended_at, 20);
  EXPECT_EQ(newer.step_seconds, 0.625);
  EXPECT_EQ(newer.timed_steps, 40);
  EXPECT_EQ(newer.memory_bytes, 1 << 20);
  EXPECT_EQ(newer.plan.prediction.step_seconds, 0.5);
  EXPECT_EQ(newer.plan.micro_batch, 4);
  EXPECT_EQ(newer.spec.data.train, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(newer.machines, EndedRun("", 0).run->machines);
  EXPECT_EQ(store_->ListRuns(1)->size(), 1U);
  Transaction again;
  again.run = newer;
  again.run->step_seconds = 0.75;
  MustCommit(again);
  EXPECT_EQ(store_->ListRuns(10)->size(), 2U);
  EXPECT_EQ(store_->ListRuns(10)->front().step_seconds, 0.75);
}

TEST_P(StoreContract, LinksReplaceThoseOfTheSameMachinesAndAreForgotten) {
  EXPECT_THAT(*store_->ListLinks(), IsEmpty());
  const auto put = [&](const LinkRecord& link) {
    Transaction change;
    change.link = link;
    MustCommit(change);
  };
  const LinkRecord newer{"a", "b", "10.0.0.1", "10.0.0.2", 2e9, 4e-5, 200};
  const LinkRecord other{"b", "c", "10.0.0.2", "10.0.0.3", 1e8, 3e-4, 300};
  put({"a", "b", "10.0.0.1", "10.0.0.9", 1e9, 5e-5, 100});
  put(newer);
  put(other);
  EXPECT_THAT(*store_->ListLinks(), ElementsAre(newer, other));
  Transaction forget;
  forget.forget_links_of = {"c", "unknown"};
  MustCommit(forget);
  EXPECT_THAT(*store_->ListLinks(), ElementsAre(newer));
}

TEST_P(StoreContract, SuspicionsReplaceThoseOfTheSameWorkerAndGoWhenThereIsNone) {
  EXPECT_THAT(*store_->ListSuspicions(), IsEmpty());
  const auto put = [&](const SuspicionRecord& record) {
    Transaction change;
    change.suspicion = record;
    MustCommit(change);
  };
  put({"b", 1, 100});
  put({"a", 0.5, 200});
  put({"b", 2.5, 300});
  EXPECT_THAT(*store_->ListSuspicions(),
              ElementsAre(SuspicionRecord{"a", 0.5, 200}, SuspicionRecord{"b", 2.5, 300}));
  put({"b", 0, 400});
  EXPECT_THAT(*store_->ListSuspicions(), ElementsAre(SuspicionRecord{"a", 0.5, 200}));
}

TEST_P(StoreContract, ReliabilityAddsUp) {
  EXPECT_EQ(*store_->GetReliability(), ReliabilityRecord{});
  Transaction change;
  change.reliability = {3600, 1};
  MustCommit(change);
  change.reliability = {100, 0};
  MustCommit(change);
  if (GetParam().name == "SqliteFile") {
    store_.reset();
    store_ = GetParam().open(dir_);
  }
  EXPECT_EQ(*store_->GetReliability(), (ReliabilityRecord{3700, 1}));
}

TEST_P(StoreContract, CalibrationsReplaceEachOtherAsAWhole) {
  EXPECT_THAT(*store_->ListCalibrations(), IsEmpty());
  Transaction two;
  two.calibrations = {{"b", {}}, {"a", {}}};
  two.calibrations->front().calibration.runs = 7;
  two.calibrations->front().calibration.link_share = 0.25;
  MustCommit(two);
  if (GetParam().name == "SqliteFile") {
    store_.reset();
    store_ = GetParam().open(dir_);
  }
  auto stored = store_->ListCalibrations();
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  ASSERT_EQ(stored->size(), 2U);
  EXPECT_EQ(stored->back().machine, "b");
  EXPECT_EQ(stored->back().calibration, two.calibrations->front().calibration);
  Transaction none;
  none.calibrations.emplace();
  MustCommit(none);
  EXPECT_THAT(*store_->ListCalibrations(), IsEmpty());
}

}  // namespace
}  // namespace weft::coordinator
