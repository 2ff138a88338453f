// Pauses, preemptions, time limits, dependencies, groups and queues, by a clock that tests move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Link = std::shared_ptr<FakeLink>;

/// Workers of one core, jobs of one rank.
class ServiceQueuesTest : public ServiceTest {
 protected:
  Result<SubmitResult> TrySubmit(const std::function<void(SchedulingSpec&)>& change,
                                 int64_t ranks = 1) {
    JobSpec spec;
    spec.name = "job";
    spec.data.train = {"/data/a"};
    spec.resources.ranks = ranks;
    spec.train.global_batch = 12;
    change(spec.scheduling);
    std::promise<Result<SubmitResult>> promise;
    service_->Submit(spec, "q-" + std::to_string(++requests_),
                     [&](Result<SubmitResult> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  std::string SubmitAs(const std::function<void(SchedulingSpec&)>& change, int64_t ranks = 1) {
    Result<SubmitResult> result = TrySubmit(change, ranks);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? result->view.job.id : "";
  }
  std::string SubmitPlain() {
    return SubmitAs([](SchedulingSpec&) {});
  }
  void Say(const Link& link, const std::string& id, int64_t epoch, PlacementEvent event) {
    service_->Report(link, id, {"", epoch, event, Reason::kNone, "", ""});
    ASSERT_TRUE(link->Saw("ack " + id + " " + std::to_string(epoch)));
  }
  /// The job has been started there, and trains.
  void Train(const Link& link, const std::string& id, int64_t epoch = 1) {
    ASSERT_TRUE(link->Saw("start " + id + " " + std::to_string(epoch)));
    Say(link, id, epoch, PlacementEvent::kTraining);
    ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  }
  void Stopped(const Link& link, const std::string& id, int64_t epoch = 1) {
    ASSERT_TRUE(link->Saw("stop " + id + " " + std::to_string(epoch) + " gracefully"));
    Say(link, id, epoch, PlacementEvent::kStopped);
  }
  void Finish(const Link& link, const std::string& id, int64_t epoch = 1) {
    FinishAttempt(link, id, epoch);
    ASSERT_TRUE(link->Saw("ack " + id + " " + std::to_string(epoch)));
    ASSERT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  }
  bool Started(const Link& link, const std::string& id, int64_t epoch = 1) {
    return link->Saw("start " + id + " " + std::to_string(epoch), milliseconds(30));
  }
  template <class Call>
  Result<JobView> Ask(Call call) {
    std::promise<Result<JobView>> promise;
    call([&](Result<JobView> view) { promise.set_value(std::move(view)); });
    return promise.get_future().get();
  }
  Result<JobView> Pause(const std::string& id) {
    return Ask([&](auto done) { service_->Pause(id, done); });
  }
  Result<JobView> Resume(const std::string& id) {
    return Ask([&](auto done) { service_->Resume(id, done); });
  }
  Result<JobView> Update(const std::string& id, std::optional<std::string> queue,
                         std::optional<int64_t> priority) {
    return Ask([&](auto done) { service_->Update(id, queue, priority, done); });
  }
  Result<WorkerView> Set(const std::string& worker, WorkerScheduling scheduling,
                         const std::string& why = "") {
    std::promise<Result<WorkerView>> promise;
    service_->SetWorkerScheduling(worker, scheduling, why, [&](Result<WorkerView> view) {
      promise.set_value(std::move(view));
    });
    return promise.get_future().get();
  }
  /// Waits until the job waits for that reason; what it says.
  std::string AwaitReason(const std::string& id, Reason reason) {
    for (int i = 0; i < 2000; ++i) {
      const JobRecord job = service_->Get(id)->job;
      if (job.reason == reason) return job.message;
      std::this_thread::sleep_for(milliseconds(1));
    }
    const JobRecord job = service_->Get(id)->job;
    ADD_FAILURE() << "it is " << Name(job.state) << ", " << Name(job.reason) << ": " << job.message;
    return "";
  }
};

TEST_F(ServiceQueuesTest, APausedJobSavesAndWaitsUntilItIsResumed) {
  Link a = Attach("a");
  const std::string id = SubmitPlain();
  Train(a, id);
  EXPECT_EQ(Pause(id)->job.state, JobState::kPausing);
  Stopped(a, id);
  EXPECT_EQ(AwaitState(id, JobState::kPaused), JobState::kPaused);
  EXPECT_FALSE(Started(a, id, 2));
  // Others use the worker meanwhile.
  const std::string other = SubmitPlain();
  Train(a, other);
  EXPECT_EQ(Resume(id)->job.state, JobState::kQueued);
  AwaitReason(id, Reason::kWaitingForCapacity);
  Finish(a, other);
  Train(a, id, 2);
  EXPECT_EQ(service_->Get(id)->attempts[0].reason, Reason::kPausedByUser);
  EXPECT_EQ(service_->Get(id)->job.budget_from, 1);
}

TEST_F(ServiceQueuesTest, ACoordinatorThatRestartsFinishesThePauseAndKeepsIt) {
  Link a = Attach("a");
  const std::string id = SubmitPlain();
  Train(a, id);
  ASSERT_TRUE(Pause(id).ok());
  ASSERT_TRUE(a->Saw("stop " + id + " 1 gracefully"));
  StartService();
  a = Attach("a", 0, {{id, 1, {}}});
  EXPECT_TRUE(a->Saw("registered 1")) << "adopted, so that it may save";
  Stopped(a, id);
  EXPECT_EQ(AwaitState(id, JobState::kPaused), JobState::kPaused);
  StartService();
  a = Attach("a");
  EXPECT_FALSE(Started(a, id, 2));
  Pass(3, {a});  // it waits for the workers to come back
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kPaused);
  ASSERT_TRUE(Resume(id).ok());
  EXPECT_TRUE(a->Saw("start " + id + " 2"));
}

TEST_F(ServiceQueuesTest, AJobOfHigherPriorityDisplacesOneThatGoesOnLater) {
  Link a = Attach("a");
  const std::string low = SubmitPlain();
  ASSERT_TRUE(a->Saw("start " + low + " 1"));
  clock_.Advance(seconds(3));
  Train(a, low);
  const std::string high = SubmitAs([](SchedulingSpec& s) { s.priority = 10; });
  Stopped(a, low);
  Train(a, high);
  EXPECT_EQ(service_->Get(low)->attempts[0].reason, Reason::kPreempted);
  EXPECT_THAT(service_->Get(low)->attempts[0].message,
              AllOf(HasSubstr(high), HasSubstr("priority 10")));
  EXPECT_EQ(service_->Get(low)->job.state, JobState::kQueued);
  EXPECT_THAT(metrics_.Text(), HasSubstr("weft_coord_preempted_work_device_seconds_total{kind="
                                         "\"core\",queue=\"default\"} 6\n"))
      << "its one core starts again, and saves in about that time";
  Finish(a, high);
  Train(a, low, 2);
  EXPECT_EQ(service_->Get(low)->job.budget_from, 1) << "it does not count against its attempts";
}

TEST_F(ServiceQueuesTest, AJobThatMayNotBeDisplacedIsNot) {
  Link a = Attach("a");
  const std::string low = SubmitAs([](SchedulingSpec& s) { s.preemptible = false; });
  Train(a, low);
  const std::string high = SubmitAs([](SchedulingSpec& s) { s.priority = 10; });
  AwaitReason(high, Reason::kWaitingForCapacity);
  EXPECT_FALSE(a->Saw("stop", milliseconds(30)));
  const JobExplanation why = Explain(high);
  EXPECT_EQ(why.position, 1);
  EXPECT_EQ(why.waiting, 1);
  EXPECT_THAT(why.would_start_now, IsEmpty()) << "nothing would";
}

TEST_F(ServiceQueuesTest, AnUpdateOfThePriorityChangesWhoGoesFirst) {
  Link a = Attach("a");
  const std::string running = SubmitPlain();
  Train(a, running);
  const std::string first = SubmitPlain();
  const std::string second = SubmitPlain();
  AwaitReason(second, Reason::kWaitingForCapacity);
  EXPECT_EQ(Explain(second).position, 2);
  for (int i = 0; i < 2000 && Explain(second).would_start_now.empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(Explain(second).would_start_now,
              ElementsAre("a priority of 1, which displaces " + running));
  ASSERT_TRUE(Update(running, std::nullopt, 5).ok()) << "so that nobody displaces it";
  EXPECT_EQ(Update(second, std::nullopt, 5)->job.priority, 5);
  for (int i = 0; i < 2000 && Explain(second).position != 1; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(Explain(second).position, 1);
  Finish(a, running);
  Train(a, second);
  EXPECT_FALSE(Started(a, first));
  EXPECT_EQ(Update(second, std::nullopt, 1001).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(Update(second, "research", std::nullopt).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(Update(running, std::nullopt, 1).status().code(), StatusCode::kConflict) << "ended";
}

TEST_F(ServiceQueuesTest, ATimeLimitCountsAllAttemptsAndLetsTheJobSave) {
  Link a = Attach("a");
  const std::string id = SubmitAs([](SchedulingSpec& s) { s.time_limit_seconds = 60; });
  Train(a, id);
  Pass(40, {a}, {{id, 1, {}}});
  ASSERT_TRUE(Pause(id).ok());
  Stopped(a, id);
  ASSERT_EQ(AwaitState(id, JobState::kPaused), JobState::kPaused);
  Pass(100, {a});  // which do not count
  // A coordinator that restarts knows how long it ran.
  StartService();
  a = Attach("a");
  Pass(3, {a});
  ASSERT_TRUE(Resume(id).ok());
  Train(a, id, 2);
  Pass(18, {a}, {{id, 2, {}}});
  EXPECT_FALSE(a->Saw("stop", milliseconds(30)));
  Pass(3, {a}, {{id, 2, {}}});
  Stopped(a, id, 2);
  EXPECT_EQ(AwaitState(id, JobState::kFailed), JobState::kFailed);
  EXPECT_EQ(service_->Get(id)->job.reason, Reason::kTimeLimit);
  EXPECT_THAT(service_->Get(id)->job.message, HasSubstr("it ran for 60 s"));
  // A user's retry gives it that time again.
  ASSERT_TRUE(Ask([&](auto done) { service_->Retry(id, done); }).ok());
  Train(a, id, 3);
}

TEST_F(ServiceQueuesTest, ATimeLimitThatPassesWhileTheCoordinatorIsAwayIsHeld) {
  Link a = Attach("a");
  const std::string id = SubmitAs([](SchedulingSpec& s) { s.time_limit_seconds = 60; });
  Train(a, id);
  service_.reset();
  clock_.Advance(seconds(61));
  StartService();
  a = Attach("a", 0, {{id, 1, {}}});
  Stopped(a, id);
  EXPECT_EQ(AwaitState(id, JobState::kFailed), JobState::kFailed);
  EXPECT_EQ(service_->Get(id)->job.reason, Reason::kTimeLimit);
}

TEST_F(ServiceQueuesTest, AJobStartsWhenThoseBeforeItHaveSucceeded) {
  Link a = Attach("a");
  Link b = Attach("b");
  const std::string first = SubmitPlain();
  const std::string second = SubmitPlain();
  const std::string last = SubmitAs([&](SchedulingSpec& s) { s.after = {first, second}; });
  EXPECT_THAT(AwaitReason(last, Reason::kWaitingForJobs), HasSubstr("comes after job " + first));
  EXPECT_EQ(Explain(last).blocked_by.size(), 2u);
  EXPECT_GT(Explain(last).position, 0);
  EXPECT_THAT(Explain(last).would_start_now, IsEmpty());
  Train(a, first);
  Train(b, second);
  Finish(a, first);
  EXPECT_FALSE(Started(a, last)) << "the other one still runs";
  StartService();
  a = Attach("a");
  b = Attach("b", 0, {{second, 1, {}}});
  Pass(3, {a, b}, {});
  EXPECT_FALSE(Started(a, last));
  Finish(b, second);
  Train(a, last);
}

TEST_F(ServiceQueuesTest, AJobFailsWhenOneBeforeItDoes) {
  Link a = Attach("a");
  const std::string first = SubmitPlain();
  const std::string middle = SubmitAs([&](SchedulingSpec& s) { s.after = {first}; });
  const std::string last = SubmitAs([&](SchedulingSpec& s) { s.after = {middle}; });
  Train(a, first);
  service_->Report(a, first, {"", 1, PlacementEvent::kFailed, Reason::kUserError, "no data", ""});
  EXPECT_EQ(AwaitState(last, JobState::kFailed), JobState::kFailed) << "all that follow";
  EXPECT_EQ(service_->Get(last)->job.reason, Reason::kJobBeforeFailed);
  EXPECT_THAT(service_->Get(middle)->job.message, HasSubstr(first + ", which it comes after"));
  // One that was paused meanwhile fails when it is resumed.
  const std::string second = SubmitPlain();
  const std::string paused = SubmitAs([&](SchedulingSpec& s) { s.after = {second}; });
  ASSERT_TRUE(Pause(paused).ok());
  Train(a, second);
  service_->Report(a, second, {"", 1, PlacementEvent::kFailed, Reason::kUserError, "no data", ""});
  ASSERT_EQ(AwaitState(second, JobState::kFailed), JobState::kFailed);
  EXPECT_EQ(service_->Get(paused)->job.state, JobState::kPaused);
  ASSERT_TRUE(Resume(paused).ok());
  EXPECT_EQ(AwaitState(paused, JobState::kFailed), JobState::kFailed);
  // Once the first one is tried again the others can be, too, and wait for it.
  EXPECT_EQ(Ask([&](auto done) { service_->Retry(middle, done); })->job.state, JobState::kQueued);
  EXPECT_EQ(AwaitState(middle, JobState::kFailed), JobState::kFailed);
  ASSERT_TRUE(Ask([&](auto done) { service_->Retry(first, done); }).ok());
  ASSERT_TRUE(Ask([&](auto done) { service_->Retry(middle, done); }).ok());
  AwaitReason(middle, Reason::kWaitingForJobs);
}

TEST_F(ServiceQueuesTest, JobsThatAreNamedBeforeOneMustBeThere) {
  const Status unknown = TrySubmit([](SchedulingSpec& s) { s.after = {"nobody-12345"}; }).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalid);
  EXPECT_THAT(unknown.message(), HasSubstr("there is no job 'nobody-12345'"));
  Link a = Attach("a");
  const std::string first = SubmitPlain();
  const Status part =
      TrySubmit([&](SchedulingSpec& s) { s.after = {first.substr(0, 5)}; }).status();
  EXPECT_THAT(part.message(), HasSubstr("did you mean '" + first + "'?"));
  const std::string second = SubmitAs([&](SchedulingSpec& s) { s.after = {first}; });
  Train(a, first);
  Finish(a, first);
  std::promise<Status> deleted;
  service_->Delete(first, false,
                   [&](const Result<DeletedJob>& d) { deleted.set_value(d.status()); });
  EXPECT_EQ(deleted.get_future().get().code(), StatusCode::kConflict) << second;
}

/// Goes on by 15 ms whenever it is asked.
class HastyClock : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override { return milliseconds(15 * ++asked_); }
  double UnixSeconds() const override { return 1.7e9; }

 private:
  mutable std::atomic<int64_t> asked_ = 0;
};

TEST_F(ServiceQueuesTest, AJobIsNotForgottenBeforeThoseAfterItThatAreNotLoadedYet) {
  Link a = Attach("a");
  const std::string first = SubmitPlain();
  Train(a, first);
  Finish(a, first);
  service_->Detach(a);
  for (int i = 0; i < 5; ++i) SubmitPlain();
  const std::string second = SubmitAs([&](SchedulingSpec& s) { s.after = {first}; });
  service_.reset();
  const HastyClock clock;  // by which there is time to load one job before the call
  Service restarted(*store_, clock, planner_, metrics_, options_);
  std::promise<Status> deleted;
  restarted.Delete(first, false,
                   [&](const Result<DeletedJob>& d) { deleted.set_value(d.status()); });
  ASSERT_TRUE(restarted.Start().ok());
  const Status status = deleted.get_future().get();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_THAT(status.message(), HasSubstr("while job " + second + ", which comes after it"));
  EXPECT_TRUE(restarted.Get(first).ok());
}

TEST_F(ServiceQueuesTest, AJobThatIsDeletedDuringASubmissionIsNotThereForIt) {
  Link a = Attach("a");
  const std::string first = SubmitPlain();
  Train(a, first);
  Finish(a, first);
  // The submission has seen the first job, and stores its own a second later.
  ASSERT_TRUE(SetFailpoints("coordinator.submit.before_commit=sleep:1000@1").ok());
  std::future<Status> submitted = std::async(std::launch::async, [&] {
    return TrySubmit([&](SchedulingSpec& s) { s.after = {first}; }).status();
  });
  std::this_thread::sleep_for(milliseconds(200));
  std::promise<Status> deleted;
  service_->Delete(first, false,
                   [&](const Result<DeletedJob>& d) { deleted.set_value(d.status()); });
  EXPECT_TRUE(deleted.get_future().get().ok());
  const Status status = submitted.get();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("there is no job '" + first + "'"));
}

TEST_F(ServiceQueuesTest, WhoAsksAgainHasTheJobWhateverHasChangedSince) {
  const std::string first = SubmitPlain();
  const auto follow = [&](SchedulingSpec& s) { s.after = {first}; };
  const std::string second = SubmitAs(follow);
  service_->Cancel(first, [](const Result<JobView>&) {});
  ASSERT_EQ(AwaitState(first, JobState::kCancelled), JobState::kCancelled);
  --requests_;
  const Result<SubmitResult> again = TrySubmit(follow);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again->already_submitted);
  EXPECT_EQ(again->view.job.id, second);
  EXPECT_EQ(TrySubmit(follow).status().code(), StatusCode::kInvalid) << "of another request";
}

TEST_F(ServiceQueuesTest, AGroupRunsOnlyItsNumberOfJobsAtOnce) {
  std::vector<Link> links;
  for (const char* name : {"a", "b", "c"}) links.push_back(Attach(name));
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(SubmitAs([](SchedulingSpec& s) {
      s.group = "sweep";
      s.group_limit = 2;
    }));
  }
  for (const std::string& id : {ids[0], ids[1]}) {
    ASSERT_EQ(AwaitState(id, JobState::kStarting), JobState::kStarting);
  }
  EXPECT_THAT(AwaitReason(ids[2], Reason::kWaitingForJobs), HasSubstr("2 jobs of its group sweep"));
  const std::string other = SubmitPlain();  // which is of no group
  ASSERT_EQ(AwaitState(other, JobState::kStarting), JobState::kStarting);
  const std::string worker = service_->Get(ids[0])->attempts[0].placements[0].worker_id;
  const Link& link = links[static_cast<size_t>(worker[0] - 'a')];
  Finish(link, ids[0]);
  EXPECT_TRUE(link->Saw("start " + ids[2] + " 1"));
}

TEST_F(ServiceQueuesTest, AJobThatNoWorkerCouldRunCountsInItsGroupOnceSomeCan) {
  std::vector<Link> links = {Attach("a")};
  std::vector<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    ids.push_back(SubmitAs(
        [](SchedulingSpec& s) {
          s.group = "sweep";
          s.group_limit = 1;
        },
        3));
    AwaitReason(ids.back(), Reason::kWaitingForWorkers);
  }
  for (const char* name : {"b", "c", "d", "e", "f"}) links.push_back(Attach(name));
  ASSERT_EQ(AwaitState(ids[0], JobState::kStarting), JobState::kStarting);
  EXPECT_THAT(AwaitReason(ids[1], Reason::kWaitingForJobs), HasSubstr("1 jobs of its group sweep"));
}

TEST_F(ServiceQueuesTest, ACordonedWorkerKeepsItsRanksAndGetsNoOthers) {
  Link a = Attach("a");
  const std::string running = SubmitPlain();
  Train(a, running);
  EXPECT_EQ(Set("a", WorkerScheduling::kCordoned, "new disk")->scheduling_why, "new disk");
  EXPECT_FALSE(a->Saw("stop", milliseconds(30)));
  Finish(a, running);
  ASSERT_EQ(AwaitState(running, JobState::kSucceeded), JobState::kSucceeded);
  const std::string next = SubmitPlain();
  EXPECT_THAT(AwaitReason(next, Reason::kWaitingForWorkers),
              HasSubstr("no attached worker takes jobs"));
  // Neither side forgets it.
  StartService();
  a = Attach("a", 0, {}, "another start");
  Pass(3, {a});
  EXPECT_FALSE(Started(a, next));
  ASSERT_EQ(service_->Workers().size(), 1u);
  EXPECT_EQ(service_->Workers()[0].scheduling, WorkerScheduling::kCordoned);
  EXPECT_EQ(Set("a", WorkerScheduling::kSchedulable)->scheduling, WorkerScheduling::kSchedulable);
  Pass(2, {a});  // the clock may have moved during a pass, which then rests
  EXPECT_TRUE(a->Saw("start " + next));
  EXPECT_EQ(Set("x", WorkerScheduling::kCordoned).status().code(), StatusCode::kNotFound);
}

TEST_F(ServiceQueuesTest, AWorkerThatIsForgottenMayHaveJobsAgain) {
  Link a = Attach("a");
  ASSERT_TRUE(Set("a", WorkerScheduling::kQuarantined, "wrong products").ok());
  service_->Detach(a);
  const auto forget = [&] {
    std::promise<Status> promise;
    service_->ForgetWorker("a", [&](const Status& status) { promise.set_value(status); });
    return promise.get_future().get();
  };
  EXPECT_EQ(forget().code(), StatusCode::kConflict) << "it may come back";
  EXPECT_EQ(service_->Workers()[0].scheduling, WorkerScheduling::kQuarantined);
  Pass(20, {});
  EXPECT_TRUE(forget().ok());
  EXPECT_TRUE(store_->ListWorkerScheduling()->empty());
  a = Attach("a");
  const std::string id = SubmitPlain();
  EXPECT_TRUE(a->Saw("start " + id));
}

TEST_F(ServiceQueuesTest, AWorkerDoesNotComeBackWhileItIsBeingForgotten) {
  Link a = Attach("a");
  ASSERT_TRUE(Set("a", WorkerScheduling::kQuarantined, "wrong products").ok());
  service_->Detach(a);
  Pass(20, {});
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=sleep:500@1").ok());
  const auto call = std::make_shared<CallRecord>();
  call->record.method = "ForgetWorker";
  std::promise<Status> forgotten;
  service_->ForgetWorker(
      "a", [&](const Status& status) { forgotten.set_value(status); }, call);
  a = std::make_shared<FakeLink>();
  WorkerHello hello;
  hello.worker_id = "a";
  hello.incarnation = "i";
  hello.version = kVersion;
  hello.api_level = kApiLevel;
  hello.profile.cores = 1;
  hello.profile.memory_limit_bytes = 1 << 30;
  service_->Attach(a, hello);
  EXPECT_TRUE(a->Saw("closed")) << "it may dial again";
  EXPECT_TRUE(forgotten.get_future().get().ok());
  EXPECT_TRUE(call->stored) << "with the change";
  EXPECT_TRUE(service_->Workers().empty());
  EXPECT_TRUE(store_->ListWorkerScheduling()->empty());
  a = Attach("a");
  EXPECT_EQ(service_->Workers()[0].scheduling, WorkerScheduling::kSchedulable);
}

TEST_F(ServiceQueuesTest, AWorkerThatCannotBeForgottenKeepsWhatWasSaidOfIt) {
  Link a = Attach("a");
  ASSERT_TRUE(Set("a", WorkerScheduling::kQuarantined, "wrong products").ok());
  service_->Detach(a);
  Pass(20, {});
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  const auto call = std::make_shared<CallRecord>();
  std::promise<Status> forgotten;
  service_->ForgetWorker(
      "a", [&](const Status& status) { forgotten.set_value(status); }, call);
  EXPECT_EQ(forgotten.get_future().get().code(), StatusCode::kExhausted);
  EXPECT_FALSE(call->stored);
  ASSERT_TRUE(SetFailpoints("").ok());
  a = Attach("a");
  EXPECT_EQ(service_->Workers()[0].scheduling, WorkerScheduling::kQuarantined);
}

TEST_F(ServiceQueuesTest, TheJobsOfADrainedWorkerSaveAndGoOnElsewhere) {
  for (WorkerScheduling scheduling :
       {WorkerScheduling::kDraining, WorkerScheduling::kQuarantined}) {
    Link a = Attach("a");
    const std::string id = SubmitPlain();
    Train(a, id);
    Link b = Attach("b");
    ASSERT_TRUE(Set("a", scheduling).ok());
    Stopped(a, id);
    Train(b, id, 2);
    EXPECT_EQ(service_->Get(id)->attempts[0].reason, Reason::kDrained);
    EXPECT_FALSE(Started(a, id, 2));
    Finish(b, id, 2);
    ASSERT_TRUE(Set("a", WorkerScheduling::kSchedulable).ok());
    StartService();
  }
}

TEST_F(ServiceQueuesTest, QueuesAreThoseOfTheFileAndJobsMoveBetweenThem) {
  QueueSpec research;
  research.name = "research";
  ASSERT_TRUE(service_->SetQueues({{research}}).ok());
  const Status unknown = TrySubmit([](SchedulingSpec& s) { s.queue = "reserch"; }).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalid);
  EXPECT_THAT(unknown.message(), HasSubstr("did you mean 'research'?"));
  Link a = Attach("a");
  Link b = Attach("b");
  const auto in_research = [](SchedulingSpec& s) { s.queue = "research"; };
  const std::string first = SubmitAs(in_research);
  Train(a, first);
  const std::string second = SubmitAs(in_research);
  Train(b, second);
  // A limit holds from then on, and stops nobody.
  ASSERT_TRUE(Pause(second).ok());
  Stopped(b, second);
  research.limit_cores = 1;
  ASSERT_TRUE(service_->SetQueues({{research}}).ok());
  ASSERT_TRUE(Resume(second).ok());
  EXPECT_THAT(AwaitReason(second, Reason::kWaitingForQuota), HasSubstr("limit of queue research"));
  std::promise<std::vector<QueueUse>> promise;
  service_->Queues([&](std::vector<QueueUse> uses) { promise.set_value(std::move(uses)); });
  const std::vector<QueueUse> uses = promise.get_future().get();
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].spec.name, "research");
  EXPECT_EQ(uses[0].used.cores, 1);
  EXPECT_EQ(uses[0].running_jobs, 1);
  EXPECT_EQ(uses[0].waiting_jobs, 1);
  EXPECT_EQ(uses[0].fair_share_ratio, 1) << "one of two cores, of two queues";
  JobQuery query;
  query.queue = "research";
  EXPECT_EQ(service_->List(query)->jobs.size(), 2u);
  // In the other queue there is room for it.
  EXPECT_EQ(Update(second, "default", std::nullopt)->job.queue, "default");
  EXPECT_TRUE(b->Saw("start " + second + " 2"));
  QueueSpec circle;
  circle.name = circle.parent = "a";
  EXPECT_EQ(service_->SetQueues({{circle}}).code(), StatusCode::kInvalid);
  EXPECT_TRUE(TrySubmit(in_research).ok()) << "the queues stay as they were";
}

}  // namespace
}  // namespace weft::coordinator
