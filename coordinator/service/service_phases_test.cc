// Jobs with phases: each is planned and started as a job of its own, whatever dies in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ServicePhasesTest : public ServiceTest {
 protected:
  ServicePhasesTest() {
    planner_ = [this](const JobSpec& spec, const ClusterProfile& cluster, const std::stop_token&) {
      std::lock_guard lock(mutex_);
      planned_.push_back(spec);
      return OneRankEach(spec, cluster);
    };
  }

  /// Submits phases of 10, 20 and 5 steps; the second one has fewer layers.
  std::string SubmitPhases(int64_t ranks = 1) {
    JobSpec spec;
    spec.name = "job";
    spec.data.train = {"/data/a"};
    spec.schedule.warmup_steps = 0;
    spec.resources.ranks = ranks;
    spec.checkpoint.keep_last = 1;
    spec.phases.resize(3);
    for (PhaseSpec& phase : spec.phases) phase.steps = 10;
    spec.phases[1].steps = 20;
    spec.phases[1].layers = spec.model.layers / 2;
    spec.phases[1].growth.method = "coalesce";
    spec.phases[2].steps = 5;
    spec.phases[2].growth.method = "decoalesce";
    return Submit(spec);
  }
  std::string Submit(const JobSpec& spec) {
    std::promise<Result<SubmitResult>> promise;
    service_->Submit(spec, "request",
                     [&](Result<SubmitResult> r) { promise.set_value(std::move(r)); });
    const Result<SubmitResult> result = promise.get_future().get();
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->view.job.id : "";
  }
  void Report(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t epoch,
              PlacementEvent event, Reason reason = Reason::kNone) {
    service_->Report(link, id, {"", epoch, event, reason, "", "{}"});
  }
  /// Moves the clock until the worker receives that; whether it did.
  bool PassUntil(const std::shared_ptr<FakeLink>& link, const std::string& beginning) {
    for (int i = 0; i < 50; ++i) {
      Pass(1, {link});
      if (link->Saw(beginning, milliseconds(100))) return true;
    }
    return false;
  }
  /// The layers and steps of the jobs that were planned.
  std::vector<std::pair<int64_t, int64_t>> Planned() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<int64_t, int64_t>> planned;
    for (const JobSpec& spec : planned_) {
      EXPECT_THAT(spec.phases, IsEmpty());
      const std::pair one(spec.model.layers, spec.train.steps);
      if (planned.empty() || planned.back() != one) planned.push_back(one);
    }
    return planned;
  }

  std::mutex mutex_;
  std::vector<JobSpec> planned_;
};

TEST_F(ServicePhasesTest, EachPhaseIsPlannedAndStartedAsTheOneBeforeEnds) {
  auto a = Attach("a");
  const std::string id = SubmitPhases();
  ASSERT_TRUE(a->Saw("start " + id + " 1 to step 10"));
  EXPECT_EQ(service_->Get(id)->job.progress.steps_total, 35);
  Report(a, id, 1, PlacementEvent::kTraining);
  SaveAt(a, id, 1, 10);
  Report(a, id, 1, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 2 to step 30"));
  Report(a, id, 2, PlacementEvent::kTraining);
  EXPECT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  SaveAt(a, id, 2, 30);
  Report(a, id, 2, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 3 to step 35"));
  SaveAt(a, id, 3, 35);
  Report(a, id, 3, PlacementEvent::kFinished);
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  EXPECT_EQ(service_->Get(id)->attempts.size(), 3u);
  const int64_t layers = JobSpec().model.layers;
  EXPECT_THAT(Planned(),
              ElementsAre(std::pair(layers, 10), std::pair(layers / 2, 20), std::pair(layers, 5)));
}

TEST_F(ServicePhasesTest, APhaseIsPlannedWithoutPlacesThatItRefuses) {
  auto a = Attach("a");
  JobSpec spec;
  spec.name = "job";
  spec.data.train = {"/data/a"};
  spec.schedule.warmup_steps = 0;
  spec.resources.ranks = 1;
  spec.resources.offload_optimizer = "auto";
  spec.checkpoint.keep_last = 1;
  spec.phases.resize(2);
  spec.phases[0].steps = spec.phases[1].steps = 10;
  spec.phases[0].layers = spec.model.layers / 2;
  spec.phases[0].search = {.steps = 4, .layers = {1, 2, 3}, .image_sizes = {}};
  spec.phases[1].growth.method = "stack";
  const std::string id = Submit(spec);
  ASSERT_TRUE(a->Saw("start " + id + " 1 to step 10"));
  SaveAt(a, id, 1, 10);
  Report(a, id, 1, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 2 to step 20"));
  std::lock_guard lock(mutex_);
  EXPECT_EQ(planned_.front().model.layers, spec.model.layers / 2);
  for (const JobSpec& planned : planned_) {
    const bool searches = planned.model.layers != spec.model.layers;
    EXPECT_EQ(planned.resources.offload_optimizer, searches ? "none" : "auto");
  }
  EXPECT_EQ(planned_.back().model.layers, spec.model.layers);
}

TEST_F(ServicePhasesTest, APhaseIsNotCompleteBeforeItsLastStepIsReported) {
  auto a = Attach("a");
  const std::string id = SubmitPhases();
  ASSERT_TRUE(a->Saw("start " + id + " 1 to step 10"));
  SaveAt(a, id, 1, 10);
  Report(a, id, 1, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 2 to step 30"));
  SaveAt(a, id, 2, 29);
  Report(a, id, 2, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 3 to step 30"));
  EXPECT_THAT(service_->Get(id)->attempts[1].message,
              ::testing::HasSubstr("step 29 of 30 was the last one reported"));
}

TEST_F(ServicePhasesTest, APhaseThatFailsIsTriedAgainByItsPlan) {
  auto a = Attach("a");
  const std::string id = SubmitPhases();
  ASSERT_TRUE(a->Saw("start " + id + " 1 to step 10"));
  SaveAt(a, id, 1, 10);
  Report(a, id, 1, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 2 to step 30"));
  Report(a, id, 2, PlacementEvent::kFailed, Reason::kRankDied);
  ASSERT_TRUE(a->Saw("start " + id + " 3 to step 30"));
}

TEST_F(ServicePhasesTest, ACoordinatorThatWasKilledGoesOnInThePhase) {
  auto a = Attach("a");
  const std::string id = SubmitPhases();
  ASSERT_TRUE(a->Saw("start " + id + " 1 to step 10"));
  // No worker that could run the next phase is there when the first one ends.
  service_->Heartbeat(a, 1, {{id, 1, {}}}, true);
  SaveAt(a, id, 1, 10);
  Report(a, id, 1, PlacementEvent::kFinished);
  ASSERT_EQ(AwaitState(id, JobState::kQueued), JobState::kQueued);
  StartService();
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kQueued);
  EXPECT_EQ(service_->Get(id)->job.message, "phase 1 of 3 is complete");
  a = Attach("a");
  ASSERT_TRUE(PassUntil(a, "start " + id + " 2 to step 30"));
  StartService();
  a = Attach("a", 0, {{id, 2, {}}});
  SaveAt(a, id, 2, 30);
  Report(a, id, 2, PlacementEvent::kFinished);
  ASSERT_TRUE(PassUntil(a, "start " + id + " 3 to step 35"));
}

TEST_F(ServicePhasesTest, RunsTeachOfThePhaseThatTheyWereOf) {
  auto a = Attach("a");
  const std::string id = SubmitPhases();
  const std::vector<int64_t> ends = {10, 30, 35};
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    ASSERT_TRUE(a->Saw("start " + id + " " + std::to_string(epoch)));
    SaveAt(a, id, epoch, ends[static_cast<size_t>(epoch - 1)]);
    const std::string summary = "{\"epoch\": " + std::to_string(epoch) +
                                ", \"median_step_seconds\": 1, \"timed_steps\": 9}";
    service_->Report(a, id, {"", epoch, PlacementEvent::kFinished, Reason::kNone, "", summary});
  }
  ASSERT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  std::map<int64_t, int64_t> steps;
  const auto runs = store_->ListRuns(10);
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  for (const RunRecord& run : *runs) steps[run.epoch] = run.spec.train.steps;
  EXPECT_EQ(steps, (std::map<int64_t, int64_t>{{1, 10}, {2, 20}, {3, 5}}));
}

TEST_F(ServicePhasesTest, CheckpointsOfPhasesThatAreCompleteStay) {
  auto a = Attach("a");
  const std::string id = SubmitPhases();  // keeps one
  const auto save = [&](int64_t epoch, int64_t step) { SaveAt(a, id, epoch, step); };
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  save(1, 5);
  save(1, 10);
  Report(a, id, 1, PlacementEvent::kFinished);
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  save(2, 15);
  save(2, 20);
  Report(a, id, 2, PlacementEvent::kTraining);
  ASSERT_TRUE(a->Saw("ack " + id + " 2"));
  std::vector<int64_t> steps;
  const auto checkpoints = service_->Checkpoints(id);
  ASSERT_TRUE(checkpoints.ok()) << checkpoints.status().message();
  for (const CheckpointRecord& checkpoint : *checkpoints) {
    steps.push_back(checkpoint.step);
  }
  EXPECT_THAT(steps, ElementsAre(20, 10));
}

}  // namespace
}  // namespace weft::coordinator
