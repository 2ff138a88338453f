// Jobs that are displaced, paused, moved off a worker, chained, grouped and limited in time, with
// real processes. tests/chaos/moves_test.cc kills the coordinator in the middle of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "common/clock.h"
#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

const Environment kSlowSteps = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:10"}};

/// One worker with a core: room for one job at a time.
Cluster::Options OneCore() {
  return {.workers = 1, .cores = 1, .lease_seconds = 10, .ranks = kSlowSteps};
}

class Scheduling : public ::testing::Test {
 protected:
  explicit Scheduling(const Cluster::Options& options = OneCore()) : cluster_(options) {}

  v1::JobSpec Job(const std::string& name, int64_t steps, int64_t priority = 0) {
    v1::JobSpec spec = cluster_.TinyJob(name, steps, 1);
    spec.mutable_checkpoint()->set_every_steps(1000);  // only what stops saves
    spec.mutable_scheduling()->set_priority(priority);
    return spec;
  }
  template <class Request, class Response>
  Response Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
    Response response;
    const grpc::Status status = (cluster_.api().*method)(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::Job Pause(const std::string& id) {
    v1::PauseJobRequest request;
    request.set_id(id);
    return Call(&v1::Coordinator::Stub::PauseJob, request);
  }
  v1::Job Resume(const std::string& id) {
    v1::ResumeJobRequest request;
    request.set_id(id);
    return Call(&v1::Coordinator::Stub::ResumeJob, request);
  }
  v1::Worker Set(const std::string& worker, v1::WorkerScheduling scheduling) {
    v1::SetWorkerSchedulingRequest request;
    request.set_worker_id(worker);
    request.set_scheduling(scheduling);
    request.set_why("test");
    return Call(&v1::Coordinator::Stub::SetWorkerScheduling, request);
  }
  std::string WorkerOf(const std::string& id) {
    const v1::Job job = cluster_.Get(id);
    return job.attempts(job.attempts_size() - 1).plan().rank_workers(0);
  }
  /// Losses of the job when nobody disturbs it.
  std::vector<double> Undisturbed(const v1::JobSpec& spec) {
    const std::string id = cluster_.Submit(spec);
    EXPECT_EQ(cluster_.Await(id, v1::SUCCEEDED).attempts_size(), 1);
    return cluster_.Losses(id);
  }

  Cluster cluster_;
};

TEST_F(Scheduling, AJobOfHigherPriorityDisplacesAnotherThatEndsWithTheSameLosses) {
  const v1::JobSpec spec = Job("low", 60);
  const std::vector<double> expected = Undisturbed(spec);
  const std::string low = cluster_.Submit(spec);
  cluster_.AwaitStep(low, 20);
  const std::string high = cluster_.Submit(Job("high", 10, 5));
  cluster_.Await(high, v1::SUCCEEDED);
  const v1::Job job = cluster_.Await(low, v1::SUCCEEDED);
  ASSERT_EQ(job.attempts_size(), 2) << cluster_.LogTails();
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "PREEMPTED");
  EXPECT_THAT(job.attempts(0).message(), HasSubstr(high));
  EXPECT_GE(job.attempts(1).started_at(), cluster_.Get(high).ended_at());
  EXPECT_EQ(cluster_.Losses(low), expected) << "bit for bit, and no step twice";
  EXPECT_EQ(MetricSum(cluster_.CoordinatorMetrics(), "weft_coord_preemptions_total"), 1);
  cluster_.ExpectSameDecisions({"starts", "preemptions"});
}

TEST_F(Scheduling, APausedJobFreesItsWorkerAndEndsWithTheSameLosses) {
  const v1::JobSpec spec = Job("paused", 60);
  const std::vector<double> expected = Undisturbed(spec);
  const std::string id = cluster_.Submit(spec);
  cluster_.AwaitStep(id, 20);
  EXPECT_EQ(Pause(id).state(), v1::PAUSING);
  cluster_.Await(id, v1::PAUSED);
  EXPECT_TRUE(cluster_.RankPids(id).empty());
  const v1::Job paused = cluster_.Get(id);
  EXPECT_EQ(v1::Reason_Name(paused.reason()), "PAUSED_BY_USER");
  const auto checkpoints = cluster_.Checkpoints(id);
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints[0].step(), paused.attempts(0).last_step());
  cluster_.Await(cluster_.Submit(Job("other", 5)), v1::SUCCEEDED);
  EXPECT_EQ(cluster_.Get(id).state(), v1::PAUSED);
  Resume(id);
  EXPECT_EQ(cluster_.Await(id, v1::SUCCEEDED).attempts_size(), 2);
  EXPECT_EQ(cluster_.Losses(id), expected);
}

TEST_F(Scheduling, AJobWhoseTimeIsOverSavesAndFails) {
  v1::JobSpec spec = Job("limited", 100000);
  spec.mutable_scheduling()->set_time_limit_seconds(10);
  const std::string id = cluster_.Submit(spec);
  const v1::Job job = cluster_.Await(id, v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.reason()), "TIME_LIMIT") << job.message();
  ASSERT_EQ(job.attempts_size(), 1);
  const auto checkpoints = cluster_.Checkpoints(id);
  ASSERT_FALSE(checkpoints.empty()) << cluster_.LogTails();
  EXPECT_EQ(checkpoints[0].step(), job.attempts(0).last_step());
}

TEST_F(Scheduling, JobsThatComeAfterOthersWaitForThemAndFailWithThem) {
  const std::string first = cluster_.Submit(Job("first", 10));
  v1::JobSpec spec = Job("second", 5);
  spec.mutable_scheduling()->add_after(first);
  const std::string second = cluster_.Submit(spec);
  const v1::Job done = cluster_.Await(second, v1::SUCCEEDED);
  EXPECT_GE(done.started_at(), cluster_.Get(first).ended_at());

  v1::JobSpec broken = Job("broken", 5);
  broken.mutable_optimizer()->set_learning_rate(100);
  broken.mutable_schedule()->set_kind("constant");
  broken.mutable_schedule()->set_warmup_steps(0);
  broken.mutable_train()->set_gradient_clip_norm(0);
  broken.mutable_train()->set_steps(200);
  const std::string failing = cluster_.Submit(broken);
  spec.mutable_scheduling()->set_after(0, failing);
  const std::string never = cluster_.Submit(spec);
  cluster_.Await(failing, v1::FAILED);
  const v1::Job job = cluster_.Await(never, v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.reason()), "JOB_BEFORE_FAILED");
  EXPECT_EQ(job.attempts_size(), 0);
}

class TwoWorkers : public Scheduling {
 protected:
  TwoWorkers()
      : Scheduling({.workers = 2,
                    .cores = 1,
                    .lease_seconds = 10,
                    .coordinator = {{"WEFT_COORDINATOR_QUEUES",
                                     WEFT_SOURCE_DIR "/docs/examples/queues/lab.yaml"}},
                    .ranks = kSlowSteps}) {}
};

TEST_F(TwoWorkers, ADrainedOneGivesItsJobToTheOtherAndACordonedOneKeepsIt) {
  const v1::JobSpec spec = Job("moved", 160);
  const std::string id = cluster_.Submit(spec);
  cluster_.AwaitStep(id, 20);
  const std::string first = WorkerOf(id);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Set(first, v1::DRAINING).scheduling(), v1::DRAINING);
  const auto trains_again = [&] {
    const v1::Job job = cluster_.Get(id);
    return job.attempt_count() == 2 && job.state() == v1::RUNNING;
  };
  ASSERT_TRUE(Eventually(trains_again, seconds(30)));
  RecordProperty("seconds_to_move", std::to_string(SecondsSince(begin)));
  const std::string second = WorkerOf(id);
  EXPECT_NE(second, first);
  EXPECT_EQ(v1::Reason_Name(cluster_.Get(id).attempts(0).reason()), "DRAINED");
  // What was said outlives the coordinator.
  cluster_.coordinator().Kill();
  cluster_.StartCoordinator();
  cluster_.AwaitWorkers(2);
  Set(second, v1::CORDONED);
  const std::string waiting = cluster_.Submit(Job("waiting", 5));
  ASSERT_TRUE(Eventually(
      [&] { return v1::Reason_Name(cluster_.Get(waiting).reason()) == "WAITING_FOR_WORKERS"; },
      seconds(20)));
  EXPECT_EQ(cluster_.Await(id, v1::SUCCEEDED).attempts_size(), 2) << "a cordon stops nothing";
  EXPECT_EQ(cluster_.Get(waiting).state(), v1::QUEUED);
  Set(first, v1::SCHEDULABLE);
  cluster_.Await(waiting, v1::SUCCEEDED);
  EXPECT_EQ(WorkerOf(waiting), first);
}

TEST_F(TwoWorkers, OfAGroupWithALimitOneJobRunsAtATime) {
  v1::JobSpec spec = Job("sweep", 20);
  spec.mutable_scheduling()->set_queue("nightly");
  spec.mutable_scheduling()->set_group("sweep");
  spec.mutable_scheduling()->set_group_limit(1);
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(cluster_.Submit(spec));
  std::vector<std::pair<double, double>> times;
  for (const std::string& id : ids) {
    const v1::Job job = cluster_.Await(id, v1::SUCCEEDED);
    times.emplace_back(job.attempts(0).started_at(), job.ended_at());
  }
  std::sort(times.begin(), times.end());
  for (size_t i = 1; i < times.size(); ++i) EXPECT_GE(times[i].first, times[i - 1].second);
  v1::ListQueuesResponse queues = Call(&v1::Coordinator::Stub::ListQueues, v1::ListQueuesRequest());
  EXPECT_EQ(queues.queues_size(), 5) << "those of the file and the default one";
  v1::SubmitJobResponse refused;
  spec.mutable_scheduling()->set_queue("nightli");
  const grpc::Status status = cluster_.TrySubmit(spec, "unknown queue", &refused);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("did you mean 'nightly'?"));
}

TEST_F(Scheduling, AFileOfQueuesIsReadAgainOnAHangup) {
  const std::string path = cluster_.dir() + "/queues.yaml";
  std::ofstream(path) << "queues: [{name: first}]\n";
  cluster_.coordinator().Kill();
  cluster_.StartCoordinator({{"WEFT_COORDINATOR_QUEUES", path}});
  cluster_.AwaitWorkers(1);
  const auto has = [&](const std::string& name) {
    v1::ListQueuesResponse queues =
        Call(&v1::Coordinator::Stub::ListQueues, v1::ListQueuesRequest());
    for (const v1::Queue& queue : queues.queues()) {
      if (queue.name() == name) return true;
    }
    return false;
  };
  EXPECT_TRUE(has("first"));
  std::ofstream(path) << "queues: [{name: second, wieght: 2}]\n";
  cluster_.coordinator().Signal(SIGHUP);
  ASSERT_TRUE(Eventually(
      [&] { return cluster_.LogTails().find("did you mean 'weight'?") != std::string::npos; },
      seconds(10)));
  EXPECT_TRUE(has("first")) << "a mistake changes nothing";
  std::ofstream(path) << "queues: [{name: second, weight: 2}]\n";
  cluster_.coordinator().Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return has("second"); }, seconds(10)));
  EXPECT_FALSE(has("first"));
}

}  // namespace
}  // namespace weft::testing
