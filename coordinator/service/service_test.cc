#include "coordinator/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/failpoint.h"
#include "common/formats/huggingface.h"
#include "coordinator/service/imported_sizes.h"
#include "coordinator/service/testing.h"
#include "coordinator/store/forwarding_store.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

TEST_F(ServiceTest, AProfileGoesToTheWorkerOfRankZeroOfARunningJob) {
  auto a = Attach("a");
  auto b = Attach("b");
  auto profile = [&](const std::string& id, int64_t steps) {
    auto promise = std::make_shared<std::promise<Result<JobProfile>>>();
    service_->Profile(id, steps, [promise](Result<JobProfile> p) { promise->set_value(p); });
    return promise->get_future();
  };
  const std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  ASSERT_TRUE(b->Saw("start " + id + " 1"));
  Result<JobProfile> early = profile(id, 3).get();
  EXPECT_EQ(early.status().code(), StatusCode::kConflict);
  EXPECT_THAT(early.status().message(), HasSubstr("only a RUNNING one"));
  for (const auto& link : {a, b}) {
    service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
    ASSERT_TRUE(link->Saw("ack " + id));
  }
  EXPECT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
  EXPECT_EQ(profile("nothing", 3).get().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(profile(id, 101).get().status().code(), StatusCode::kInvalid);

  auto done = profile(id, 3);
  ASSERT_TRUE(a->Saw("profile 1 " + id + " 1 3"));
  service_->ReportProfile(b, 1, std::string("forged"));
  service_->ReportProfile(a, 1, std::string("{}"));
  Result<JobProfile> result = done.get();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->job_id, id);
  EXPECT_EQ(result->report_json, "{}");

  auto refused = profile(id, 4);
  ASSERT_TRUE(a->Saw("profile 2 " + id + " 1 4"));
  service_->ReportProfile(a, 2, ConflictError("it is being recorded already"));
  EXPECT_EQ(refused.get().status().code(), StatusCode::kConflict);

  auto lost = profile(id, 5);
  ASSERT_TRUE(a->Saw("profile 3 " + id + " 1 5"));
  service_->Detach(a);
  EXPECT_EQ(lost.get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(profile(id, 6).get().status().code(), StatusCode::kUnavailable);
}

TEST_F(ServiceTest, ALostWorkersJobWaitsForLeaseAndMarginAndForTheOtherRanks) {
  auto a = Attach("a");
  auto b = Attach("b");
  std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  ASSERT_TRUE(b->Saw("start " + id + " 1"));
  for (const auto& link : {a, b}) {
    service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
    ASSERT_TRUE(link->Saw("ack " + id));
  }
  auto c = Attach("c");
  std::vector<RunningAttempt> runs = {{id, 1, {}}};
  // b falls silent; a and c go on (c runs nothing).
  auto pass = [&](int duration) {
    for (int i = 0; i < duration; ++i) {
      clock_.Advance(seconds(1));
      int64_t first = ++heartbeats_;
      service_->Heartbeat(
          a, first,
          service_->Get(id)->job.state == JobState::kQueued ? std::vector<RunningAttempt>{} : runs,
          false);
      ASSERT_TRUE(a->Saw("heartbeat " + std::to_string(first)));
      int64_t second = ++heartbeats_;
      service_->Heartbeat(c, second, {}, false);
      ASSERT_TRUE(c->Saw("heartbeat " + std::to_string(second)));
      service_->Wake();
    }
  };
  pass(9);
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning);
  pass(1);
  EXPECT_EQ(AwaitState(id, JobState::kRecovering), JobState::kRecovering);
  ASSERT_TRUE(a->Saw("stop " + id + " 1"));
  pass(2);  // the margin has passed, but a has not confirmed its stop
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRecovering);
  service_->Report(a, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  ASSERT_TRUE(c->Saw("start " + id + " 2"));
  EXPECT_FALSE(b->Saw("start " + id + " 2", milliseconds(1)));
}

TEST_F(ServiceTest, AJobWhoseGpuBreaksGoesOnOnAnother) {
  auto a = Attach("a", 2);
  std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  EXPECT_EQ(service_->Get(id)->attempts[0].plan.rank_devices, std::vector<int64_t>{0});
  // As the worker reports it: first what broke, then how the attempt ended.
  service_->BreakDevices(a, {{0, "XID 79"}});
  service_->Report(a, id,
                   {"", 1, PlacementEvent::kFailed, Reason::kDeviceFailed, "GPU 0: XID 79", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  auto view = service_->Get(id);
  EXPECT_EQ(view->attempts[0].reason, Reason::kDeviceFailed);
  EXPECT_EQ(view->attempts[1].plan.rank_devices, std::vector<int64_t>{1});
  EXPECT_EQ(service_->Workers()[0].profile.devices[0].unusable, "XID 79");
  // The last one breaks: the job waits, and does not go to the processor.
  service_->BreakDevices(a, {{0, "XID 79"}, {1, "lost"}});
  service_->Report(a, id,
                   {"", 2, PlacementEvent::kFailed, Reason::kDeviceFailed, "GPU 1: lost", ""});
  EXPECT_EQ(AwaitState(id, JobState::kQueued), JobState::kQueued);
  EXPECT_FALSE(a->Saw("start " + id + " 3", milliseconds(50)));
}

TEST_F(ServiceTest, AJobThatRanOutOfMemoryLearnsWhatWouldFitAndGetsIt) {
  auto a = Attach("a");
  std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id,
                   {"", 1, PlacementEvent::kFailed, Reason::kOutOfMemory, "rank 0: no memory", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  auto view = service_->Get(id);
  EXPECT_THAT(view->attempts[0].message,
              AllOf(HasSubstr("rank 0: no memory; the plan expected 2.0 KiB (activations "
                              "2.0 KiB) per rank, worker a offers 1.0 GiB; "),
                    HasSubstr("within 1.7 KiB this would fit: 1 ranks")));
  EXPECT_EQ(TotalBytes(view->attempts[1].plan.prediction.memory_per_rank), 1700);
}

TEST_F(ServiceTest, RanksThatAWorkerDoesNotListAnyMoreAreRecovered) {
  auto a = Attach("a");
  std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("ack " + id));
  Pass(5, {a}, {{id, 1, {}}});
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning);
  Pass(5, {a});
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kRunning) << "within the grace";
  Pass(3, {a});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
}

TEST_F(ServiceTest, AFullDiskRefusesSubmissionsAndDelaysReportsWithoutLosingThem) {
  auto a = Attach("a");
  std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  auto refused = Submit(1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kExhausted);
  FinishAttempt(a, id);
  EXPECT_FALSE(a->Saw("ack " + id, milliseconds(50)));
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kStarting);
  ASSERT_TRUE(SetFailpoints("").ok());
  for (int i = 0; i < 100 && !a->Saw("ack " + id, milliseconds(20)); ++i) {
    clock_.Advance(milliseconds(500));
    service_->Wake();
  }
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kSucceeded);
}

/// Fails the next changes with lines of a log, and stores those after them.
class FlakyStore : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void Commit(Transaction change, std::function<void(Result<CommitResult>)> done) override {
    if (change.logs && failures > 0) {
      --failures;
      return done(ExhaustedError("the disk is full"));
    }
    ForwardingStore::Commit(std::move(change), std::move(done));
  }
  std::atomic<int> failures = 0;
};

TEST_F(ServiceTest, LinesDoNotPassThoseThatCouldNotBeStored) {
  FlakyStore flaky(*store_);
  service_.reset();
  service_ = std::make_unique<Service>(flaky, clock_, planner_, metrics_, options_);
  ASSERT_TRUE(service_->Start().ok());
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  LogAppend logs;
  logs.job_id = id;
  logs.epoch = 1;
  logs.lines.resize(1);
  flaky.failures = 1;
  // All are on their way to the store before it is known that the first one is not stored.
  for (logs.first_position = 1; logs.first_position <= 3; ++logs.first_position) {
    logs.lines[0].text = std::to_string(logs.first_position);
    service_->AppendLogs(a, logs);
  }
  service_->Heartbeat(a, 1000, {}, false);
  ASSERT_TRUE(a->Saw("heartbeat 1000"));
  EXPECT_FALSE(a->Saw("logs", milliseconds(50)));
  EXPECT_TRUE(store_->ReadLogs({.job_id = id, .rank = {}, .epoch = {}})->empty());
  service_.reset();
}

TEST_F(ServiceTest, AFullDiskDelaysLogsAndCheckpointsWithoutLosingThem) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  const auto say = [&](const std::shared_ptr<FakeLink>& link, int64_t position) {
    LogAppend logs;
    logs.job_id = id;
    logs.epoch = 1;
    logs.first_position = position;
    logs.lines.emplace_back().text = "line " + std::to_string(position);
    service_->AppendLogs(link, logs);
  };
  say(a, 1);
  ASSERT_TRUE(a->Saw("logs 1"));
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  say(a, 2);
  SaveAt(a, id, 1, 4);
  EXPECT_FALSE(a->Saw("logs 2", milliseconds(50)));
  ASSERT_TRUE(SetFailpoints("").ok());
  say(a, 3);
  EXPECT_FALSE(a->Saw("logs 3", milliseconds(50))) << "before the line that is missing";
  for (int i = 0; i < 100 && !a->Saw("closed", milliseconds(20)); ++i) {
    clock_.Advance(milliseconds(500));
    service_->Wake();
  }
  ASSERT_TRUE(a->Saw("closed", milliseconds(0)));
  auto again = Attach("a", 0, {{id, 1, {}}});
  for (int64_t position : {2, 3}) say(again, position);
  ASSERT_TRUE(again->Saw("logs 3"));
  LogQuery query;
  query.job_id = id;
  std::vector<std::string> texts;
  const Result<std::vector<LogRecord>> lines = store_->ReadLogs(query);
  for (const LogRecord& line : *lines) texts.push_back(line.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"line 1", "line 2", "line 3"}));
  for (int i = 0; i < 1000 && service_->Checkpoints(id)->empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_EQ(service_->Checkpoints(id)->size(), 1u);
  EXPECT_EQ(service_->Checkpoints(id)->front().step, 4);
}

/// A millisecond passes with every look at it, so that whatever takes turns does.
class HastyClock : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override {
    return Clock::System().Monotonic() + milliseconds(++looks_);
  }
  double UnixSeconds() const override { return Clock::System().UnixSeconds(); }

 private:
  mutable std::atomic<int64_t> looks_ = 0;
};

TEST_F(ServiceTest, ALongQueueIsLoadedAfterTheStartAndKeepsItsOrder) {
  std::vector<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(Submit(1)->view.job.id);
  service_.reset();
  HastyClock clock;
  options_.heartbeat = milliseconds(50);
  service_ = std::make_unique<Service>(*store_, clock, planner_, metrics_, options_);
  ASSERT_TRUE(service_->Start().ok());
  std::promise<JobState> cancelled;
  service_->Cancel(ids.back(), [&](const Result<JobView>& view) {
    cancelled.set_value(view.ok() ? view->job.state : JobState::kFailed);
  });
  EXPECT_EQ(cancelled.get_future().get(), JobState::kCancelled) << "one that is not loaded yet";
  const auto link = Attach("a");
  EXPECT_TRUE(link->Saw("start"));
  EXPECT_TRUE(link->Saw("start " + ids[0] + " 1")) << "the oldest";
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_FALSE(link->Saw("start " + ids[i], milliseconds(0))) << i;
  }
  service_.reset();
}

/// Keeps changes back until they are let through.
class HeldStore : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void Commit(Transaction change, std::function<void(Result<CommitResult>)> done) override {
    const std::lock_guard lock(mutex_);
    held_.emplace_back(std::move(change), std::move(done));
    if (!hold_) Forward();
  }
  void Hold() {
    const std::lock_guard lock(mutex_);
    hold_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    hold_ = false;
    Forward();
  }

 private:
  void Forward() {
    for (auto& [change, done] : held_) ForwardingStore::Commit(std::move(change), std::move(done));
    held_.clear();
  }
  std::mutex mutex_;
  std::vector<std::pair<Transaction, std::function<void(Result<CommitResult>)>>> held_;
  bool hold_ = false;
};

TEST_F(ServiceTest, AnyNumberOfChangesOfAJobMayWaitForTheStore) {
  constexpr int kReports = 20000;
  HeldStore held(*store_);
  service_.reset();
  service_ = std::make_unique<Service>(held, clock_, planner_, metrics_, options_);
  ASSERT_TRUE(service_->Start().ok());
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  held.Hold();
  for (int i = 0; i < kReports; ++i) {
    service_->Report(a, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
  }
  std::promise<JobState> canceled;
  service_->Cancel(id, [&](const Result<JobView>& view) {
    canceled.set_value(view.ok() ? view->job.state : JobState::kFailed);
  });
  service_->Heartbeat(a, 1000, {}, false);
  ASSERT_TRUE(a->Saw("heartbeat 1000", seconds(60)));
  EXPECT_FALSE(a->Saw("ack", milliseconds(1)));
  held.Release();
  EXPECT_EQ(canceled.get_future().get(), JobState::kCancelling) << "after all reports";
  EXPECT_TRUE(a->Saw("stop " + id + " 1"));
  EXPECT_EQ(a->Count("ack " + id), kReports);
  service_.reset();
}

TEST_F(ServiceTest, AJobIsKnownByItsFullIdAlone) {
  const std::string id = Submit(1)->view.job.id;
  const std::string beginning = id.substr(0, id.size() - 1);
  ASSERT_EQ(service_->ResolveId(beginning).value(), id);
  const auto end = [&](auto&& call) {
    std::promise<StatusCode> promise;
    call([&](const auto& result) { promise.set_value(result.status().code()); });
    return promise.get_future().get();
  };
  EXPECT_EQ(end([&](auto done) { service_->Cancel(beginning, done); }), StatusCode::kNotFound);
  EXPECT_EQ(end([&](auto done) { service_->Pause(beginning, done); }), StatusCode::kNotFound);
  EXPECT_EQ(end([&](auto done) { service_->Retry(beginning, done); }), StatusCode::kNotFound);
  EXPECT_EQ(end([&](auto done) { service_->Update(beginning, std::nullopt, 3, done); }),
            StatusCode::kNotFound);
  EXPECT_EQ(end([&](auto done) { service_->Profile(beginning, 1, done); }), StatusCode::kNotFound);
  EXPECT_EQ(end([&](auto done) { service_->Delete(beginning, true, done); }),
            StatusCode::kNotFound);
  EXPECT_EQ(end([&](auto done) { service_->Explain(beginning, done); }), StatusCode::kNotFound);
  EXPECT_EQ(service_->Events(beginning).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(service_->Checkpoints(beginning).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(service_->Get(id)->job.state, JobState::kQueued);
}

TEST_F(ServiceTest, HeartbeatsNeverTouchTheDisk) {
  auto a = Attach("a");
  std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("ack " + id));
  int64_t version = store_->GetJob(id)->version;
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  RunningAttempt running{id, 1, {}};
  running.progress.step = 41;
  Pass(20, {a}, {running});
  EXPECT_EQ(store_->GetJob(id)->version, version);
  EXPECT_EQ(service_->Get(id)->job.progress.step, 41);
}

TEST_F(ServiceTest, TheSizesOfAnImportedModelComeFromItsFolder) {
  Env& env = Env::Posix();
  std::string folder = testing::TempDir() + "imported_model";
  ASSERT_TRUE(env.CreateDirs(folder).ok());
  ModelSpec model;
  model.layers = 3;
  model.width = 48;
  model.heads = 4;
  model.vocab_size = 500;
  model.context = 64;
  Json config = *ModelToConfig(model);
  ASSERT_TRUE(WriteFileAtomic(env, folder + "/config.json", config.dump()).ok());
  Result<SubmitResult> good = Submit(1, folder);
  ASSERT_TRUE(good.ok()) << good.status().message();
  const ModelSpec stored = service_->Get(good->view.job.id)->job.spec.model;
  EXPECT_EQ(stored.layers, 3);
  EXPECT_EQ(stored.width, 48);
  EXPECT_EQ(stored.vocab_size, 500);
  EXPECT_EQ(stored.import_path, folder);

  config["activation_function"] = "relu";
  ASSERT_TRUE(WriteFileAtomic(env, folder + "/config.json", config.dump()).ok());
  for (const std::string& bad : {folder, folder + "/nowhere", std::string("relative")}) {
    Status status = Submit(1, bad).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << bad;
    EXPECT_THAT(status.message(), HasSubstr("model.import_path"));
  }
  EXPECT_EQ(service_->List({})->jobs.size(), 1u);
  ASSERT_TRUE(env.RemoveTree(folder).ok());
}

TEST_F(ServiceTest, LinksOutOfTheDeclaredFoldersAreReadForNoJob) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "linked_service";
  fs::remove_all(dir);
  fs::create_directories(dir / "data/texts");
  fs::create_directories(dir / "secret");
  fs::copy(WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start", dir / "data/model");
  std::ofstream(dir / "secret/s.txt") << "secret";
  std::ofstream(dir / "data/texts/a.txt") << "text";
  options_.data_roots = {dir / "data"};
  StartService();
  JobSpec spec;
  spec.name = "job";
  spec.model.import_path = spec.data.tokenizer.path = dir / "data/model";
  spec.data.train = {dir / "data/texts"};
  const auto submit = [&](const std::string& request) {
    std::promise<Status> promise;
    service_->Submit(spec, request,
                     [&](const Result<SubmitResult>& r) { promise.set_value(r.status()); });
    return promise.get_future().get();
  };
  const Status sound = submit("1");
  ASSERT_TRUE(sound.ok()) << sound.message();

  fs::create_symlink(dir / "secret/s.txt", dir / "data/texts/b.txt");
  const Status text = submit("2");
  EXPECT_EQ(text.code(), StatusCode::kInvalid);
  EXPECT_THAT(text.message(), HasSubstr("texts/b.txt leads out of the folders"));
  EXPECT_THAT(text.message(), HasSubstr("--data-root of weft-coordinator"));
  fs::remove(dir / "data/texts/b.txt");

  fs::rename(dir / "data/model/config.json", dir / "secret/config.json");
  fs::create_symlink(dir / "secret/config.json", dir / "data/model/config.json");
  for (const Status& status : {submit("3"), PlanFor(spec, ClusterProfile()).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("config.json leads out of the folders"));
  }
  EXPECT_EQ(service_->List({})->jobs.size(), 1u);
  fs::remove_all(dir);
}

TEST(ResolveImport, TakesTheSizesOfTheNetworkWhoseLogitsAreAddedFromItsFolder) {
  JobSpec job;
  job.model.context = 16;
  ModelSpec& base = job.train.value_learning.base;
  base.import_path = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start";
  ASSERT_TRUE(ResolveImport(Env::Posix(), job).ok());
  EXPECT_EQ(base.width, 32);
  EXPECT_EQ(job.model.vocab_size, base.vocab_size);
  for (const char* bad : {"/nowhere", "relative"}) {
    base = ModelSpec();
    base.import_path = bad;
    const Status status = ResolveImport(Env::Posix(), job);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("train.value_learning.base.import_path"));
  }
}

TEST_F(ServiceTest, SuccessBeforeTheLastStepIsReportedIsAFailedAttempt) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  const int64_t last = service_->Get(id)->job.spec.train.steps;
  service_->Report(a, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
  RunningAttempt running{id, 1, {}};
  running.progress.step = last - 1;
  Pass(1, {a}, {running});
  service_->Report(a, id, {"", 1, PlacementEvent::kFinished, Reason::kNone, "", "{}"});
  ASSERT_TRUE(a->Saw("start " + id + " 2"));
  ASSERT_TRUE(a->Saw("ack " + id + " 1"));
  const JobView view = *service_->Get(id);
  ASSERT_EQ(view.attempts.size(), 2u);
  EXPECT_EQ(view.attempts[0].reason, Reason::kRankDied);
  EXPECT_THAT(view.attempts[0].message,
              HasSubstr("step " + std::to_string(last - 1) + " of " + std::to_string(last) +
                        " was the last one reported"));
  EXPECT_EQ(view.job.summary_json, "");
  // What a worker reports before the end is enough.
  running.epoch = 2;
  running.progress.step = last;
  Pass(1, {a}, {running});
  service_->Report(a, id, {"", 2, PlacementEvent::kFinished, Reason::kNone, "", "{}"});
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  EXPECT_EQ(service_->Get(id)->job.summary_json, "{}");
}

TEST_F(ServiceTest, OfTwoWorkersTheOneOfRankZeroKnowsWhetherAllIsDone) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Submit(2)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  ASSERT_TRUE(b->Saw("start " + id + " 1"));
  service_->Report(b, id, {"", 1, PlacementEvent::kFinished, Reason::kNone, "", ""});
  ASSERT_TRUE(b->Saw("ack " + id + " 1"));
  FinishAttempt(a, id);
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  EXPECT_EQ(service_->Get(id)->attempts.size(), 1u);
}

TEST_F(ServiceTest, ASearchForASmallerNetworkMayEndBeforeItsLastStep) {
  auto a = Attach("a");
  JobSpec spec;
  spec.name = "search";
  spec.data.train = {"/data/a"};
  spec.resources.ranks = 1;
  spec.model.structured_pruning.method = "early_bird";
  std::promise<Result<SubmitResult>> submitted;
  service_->Submit(spec, "search",
                   [&](Result<SubmitResult> result) { submitted.set_value(std::move(result)); });
  const Result<SubmitResult> result = submitted.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status().message();
  const std::string id = result->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  service_->Report(a, id, {"", 1, PlacementEvent::kFinished, Reason::kNone, "", ""});
  ASSERT_TRUE(a->Saw("start " + id + " 2")) << "not without a step";
  SaveAt(a, id, 2, 3);
  service_->Report(a, id, {"", 2, PlacementEvent::kFinished, Reason::kNone, "", ""});
  EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
}

TEST_F(ServiceTest, CheckpointsOutsideTheRunFolderOrOfOtherWorkersDoNotCount) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  auto b = Attach("b");
  const std::string run_dir = service_->Get(id)->job.run_dir;
  const std::string path = JoinPath(run_dir, "checkpoints/step-9");
  for (const std::string& outside :
       {std::string("/etc/passwd"), run_dir, path + "/../../../another/checkpoints/step-9"}) {
    service_->ReportCheckpoint(a, {id, 9, 1, outside, 1, true, 0}, std::nullopt);
  }
  service_->ReportCheckpoint(b, {id, 9, 1, path, 1, true, 0}, std::nullopt);
  SaveAt(a, id, 1, 4);
  std::vector<CheckpointRecord> listed;
  for (int i = 0; i < 1000 && listed.empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
    listed = *service_->Checkpoints(id);
  }
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].step, 4);
  EXPECT_EQ(service_->Get(id)->job.progress.checkpoint_step, 4);
}

TEST_F(ServiceTest, LogLinesOfWorkersWithoutRanksOfTheAttemptAreDropped) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  auto b = Attach("b");
  const auto append = [&](const std::shared_ptr<FakeLink>& link, int64_t position,
                          const std::string& text) {
    LogAppend logs;
    logs.job_id = id;
    logs.epoch = 1;
    logs.first_position = position;
    logs.lines.emplace_back().text = text;
    service_->AppendLogs(link, logs);
    ASSERT_TRUE(link->Saw("logs " + std::to_string(position)));
  };
  const auto stored = [&] {
    std::vector<std::string> texts;
    LogQuery query;
    query.job_id = id;
    const auto lines = *store_->ReadLogs(query);
    for (const LogRecord& line : lines) texts.push_back(line.text);
    return texts;
  };
  append(b, 1, "forged while it runs");
  append(a, 1, "its own");
  EXPECT_THAT(stored(), ::testing::ElementsAre("its own"));
  FinishAttempt(a, id);
  ASSERT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
  append(b, 2, "forged after its end");
  append(a, 2, "its last");
  EXPECT_THAT(stored(), ::testing::ElementsAre("its own", "its last"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("weft_coord_fenced_requests_total{method=\"logs\"} 2"));
}

TEST_F(ServiceTest, CheckpointsThatTheJobDoesNotKeepAreNotListedAnyMore) {
  auto a = Attach("a");
  std::string id = Submit(1)->view.job.id;  // keeps three
  ASSERT_TRUE(a->Saw("start " + id + " 1"));
  const std::string path = JoinPath(service_->Get(id)->job.run_dir, "checkpoints/c");
  for (int64_t step = 1; step <= 6; ++step) {
    for (bool verified : {false, true}) {
      service_->ReportCheckpoint(a, {id, step, 1, path, 1, verified, 1}, 2);
    }
  }
  int64_t keep = service_->Get(id)->job.spec.checkpoint.keep_last;
  std::vector<int64_t> expected;
  for (int64_t step = 6; step > 6 - keep; --step) expected.push_back(step);
  expected.push_back(2);  // where the attempt started from
  auto listed = [&] {
    std::vector<int64_t> steps;
    const auto list = *service_->Checkpoints(id);
    for (const auto& checkpoint : list) steps.push_back(checkpoint.step);
    return steps;
  };
  for (int i = 0; i < 1000 && listed() != expected; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(listed(), expected);
}

}  // namespace
}  // namespace weft::coordinator
