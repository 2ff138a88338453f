#include "worker/daemon/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <cmath>
#include <future>
#include <thread>

#include "worker/daemon/process_scan.h"
#include "worker/daemon/testing/fake_coordinator.h"

namespace weft::daemon {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// An agent on a thread of its own, a coordinator made up, and ranks that do as the job's name
/// says (testing/fake_trainer.cc).
class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "agent";
    ASSERT_TRUE(Env::Posix().CreateDirs(dir_ + "/runs").ok());
    owner_ = "WEFT_RANK_OWNER=" + dir_;
    coordinator_.Start();
  }

  void TearDown() override {
    if (thread_.joinable()) {
      io_.stop();
      thread_.join();
    }
    coordinator_.Stop();
    EXPECT_TRUE(FindProcesses({owner_}).empty()) << "no rank outlives the agent";
    EXPECT_TRUE(Env::Posix().RemoveTree(dir_).ok());
  }

  void StartAgent(bool await_heartbeat = true) {
    thread_ = std::thread([this] {
      Agent::Settings settings;
      settings.coordinator = coordinator_.address();
      settings.incarnation = "i1";
      settings.profile.worker_id = "w1";
      settings.profile.cores = 2;
      settings.log_dir = dir_;
      for (int index : {0, 1}) {
        DeviceSpec device;
        device.index = index;
        settings.profile.devices.push_back(device);
      }
      settings.attempt = {std::string(WEFT_BINARY_DIR) + "/fake_trainer",
                          "127.0.0.1",
                          dir_ + "/cache",
                          dir_ + "/runs",
                          dir_,
                          {},
                          owner_,
                          {{0, "GPU-a"}, {1, "GPU-b"}},
                          {}};
      settings.attempt.data_roots = data_roots_;
      settings.unsent_path = dir_ + "/unsent.pb";
      Metrics metrics(Clock::System());
      Agent agent(io_, Clock::System(), settings, metrics, [this](const Status& status) {
        done_.set_value(status);
        io_.stop();
      });
      agent_ = &agent;
      boost::asio::signal_set children(io_, SIGCHLD);
      std::function<void()> wait = [&] {
        children.async_wait([&](const boost::system::error_code& error, int) {
          if (error) return;
          agent.ReapChildren();
          wait();
        });
      };
      wait();
      agent.Start();
      io_.run();
    });
    if (!await_heartbeat) return;
    ASSERT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.has_heartbeat(); }));
  }

  /// Rank r on GPU devices[r]; on CPUs without.
  void StartJob(const std::string& name, int64_t epoch = 1, int ranks = 2,
                const std::vector<int64_t>& devices = {}) {
    coordinator_.Send(StartMessage(name, epoch, ranks, devices));
  }

  /// The coordinator takes it over when the agent registers.
  void Adopt(const std::string& name) {
    v1::AttemptKey key;
    key.set_job_id(name);
    key.set_epoch(1);
    coordinator_.adopt = {key};
  }

  /// One rank of three, which joins.
  void SendJoin(const std::string& name, int rank) {
    v1::CoordinatorMessage message = StartMessage(name, 1, /*ranks=*/3);
    v1::StartAttempt& start = *message.mutable_start();
    start.set_membership(1);
    start.set_joins(true);
    start.clear_ranks();
    start.add_ranks(rank);
    coordinator_.Send(message);
  }

  v1::CoordinatorMessage StartMessage(const std::string& name, int64_t epoch, int ranks,
                                      const std::vector<int64_t>& devices = {}) {
    v1::CoordinatorMessage message;
    v1::StartAttempt& start = *message.mutable_start();
    start.set_job_id(name);
    start.set_epoch(epoch);
    start.mutable_spec()->set_name(name);
    start.mutable_spec()->mutable_data()->add_train(train_);
    start.mutable_plan()->mutable_mesh()->set_data(ranks);
    start.set_world_size(ranks);
    start.set_run_dir(run_dir_.empty() ? dir_ + "/runs/" + name : run_dir_);
    for (int rank = 0; rank < ranks; ++rank) {
      start.add_ranks(rank);
      start.mutable_plan()->add_rank_workers("w1");
    }
    Fill(*start.mutable_plan());
    if (!devices.empty()) start.mutable_plan()->set_device("cuda");
    for (int64_t device : devices) start.mutable_plan()->add_rank_devices(device);
    return message;
  }

  /// Scalars of a plan have no presence: unset ones would be zero, out of range.
  static void Fill(v1::Plan& plan) {
    v1::Mesh& mesh = *plan.mutable_mesh();
    mesh.set_tensor(1);
    mesh.set_pipeline(1);
    mesh.set_context(1);
    mesh.set_expert(1);
    plan.set_micro_batch(1);
    plan.set_accumulation_steps(1);
    plan.set_threads_per_rank(1);
    plan.set_bucket_bytes(1 << 20);
    plan.set_precision("fp32");
  }

  void StopJob(const std::string& name, bool graceful, int64_t epoch = 1) {
    v1::CoordinatorMessage message;
    message.mutable_stop()->set_job_id(name);
    message.mutable_stop()->set_epoch(epoch);
    message.mutable_stop()->set_graceful(graceful);
    coordinator_.Send(message);
  }

  bool WaitForNoRanks() {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!FindProcesses({owner_}).empty()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  std::string dir_, owner_;
  std::vector<std::string> data_roots_;
  std::string train_ = "text.txt";
  std::string run_dir_;  // of jobs; empty: as a coordinator names it
  FakeCoordinator coordinator_;
  boost::asio::io_context io_;
  std::thread thread_;
  Agent* agent_ = nullptr;
  std::promise<Status> done_;
};

TEST_F(AgentTest, EachRankSeesItsGpuAndABrokenOneEndsTheAttempt) {
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "3", 1), 0);  // of the worker itself
  StartAgent();
  StartJob("wait", 1, 2, {1, 0});
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(FindProcesses({owner_, "CUDA_VISIBLE_DEVICES=GPU-a"}).size(), 1u);
  EXPECT_EQ(FindProcesses({owner_, "CUDA_VISIBLE_DEVICES=GPU-b"}).size(), 1u);
  EXPECT_TRUE(FindProcesses({owner_, "CUDA_VISIBLE_DEVICES=3"}).empty());
  // A program's own error is reported in the log of its rank alone.
  boost::asio::post(io_, [this] { agent_->OnDevice({0, 31, "XID 31", false}); });
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    const auto& lines = m.logs().lines();
    return std::any_of(lines.begin(), lines.end(), [](const v1::LogLine& line) {
      return line.rank() == 1 && line.text() == "[weft-worker] GPU 0: XID 31";
    });
  }));
  boost::asio::post(io_, [this] { agent_->OnDevice({1, 79, "XID 79", true}); });
  auto report = coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reason(), v1::DEVICE_FAILED);
  EXPECT_THAT(report->message(), HasSubstr("GPU 1: XID 79"));
  auto heartbeat = coordinator_.WaitFor(
      [](const v1::WorkerMessage& m) { return m.heartbeat().broken_devices_size() > 0; });
  ASSERT_TRUE(heartbeat);
  EXPECT_EQ(heartbeat->heartbeat().broken_devices(0).index(), 1);
  EXPECT_EQ(heartbeat->heartbeat().broken_devices(0).why(), "XID 79");
  // A start that was under way meanwhile is refused, one on the other GPU is not.
  StartJob("wait", 2, 1, {1});
  report = coordinator_.WaitForReport("wait", 2, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reason(), v1::DEVICE_FAILED);
  StartJob("wait", 3, 1, {0});
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 3, v1::ATTEMPT_TRAINING));
  StartJob("wait", 4, 1, {9});
  report = coordinator_.WaitForReport("wait", 4, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->message(), HasSubstr("GPU 9, which this worker does not offer"));
}

TEST_F(AgentTest, AProfileIsTakenByRankZeroAndAlwaysAnswered) {
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  auto ask = [&](int64_t id, const std::string& job, int steps) {
    v1::CoordinatorMessage message;
    message.mutable_profile()->set_request_id(id);
    message.mutable_profile()->set_job_id(job);
    message.mutable_profile()->set_epoch(1);
    message.mutable_profile()->set_steps(steps);
    coordinator_.Send(message);
  };
  auto answer = [&](int64_t id) {
    auto message =
        coordinator_.WaitFor([&](const auto& m) { return m.profile().request_id() == id; });
    return message ? message->profile() : v1::ProfileReply();
  };
  ask(1, "wait", 7);
  EXPECT_EQ(answer(1).error(), "");
  EXPECT_THAT(answer(1).report_json(), HasSubstr("\"steps\":7"));
  ask(2, "another", 7);
  EXPECT_THAT(answer(2).error(), HasSubstr("no rank of this attempt"));
  ask(3, "wait", 60);
  ask(4, "wait", 7);
  EXPECT_THAT(answer(4).error(), HasSubstr("recorded already"));
  StopJob("wait", /*graceful=*/true);
  EXPECT_THAT(answer(3).error(), HasSubstr("ended before"));
}

TEST_F(AgentTest, RunsAJobAndTellsItsWholeStory) {
  StartAgent();
  StartJob("finish");
  auto report = coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_FINISHED);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->summary_json(), HasSubstr("\"steps\":3"));
  EXPECT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_STARTED));
  EXPECT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_TRAINING));
  EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) {
    return m.checkpoint().checkpoint().step() == 3 && m.checkpoint().checkpoint().verified();
  }));
  EXPECT_EQ(coordinator_.Lines("finish").size(), 4u);
  EXPECT_THAT(coordinator_.Lines("finish"), Contains("rank 1 of 2"));
  EXPECT_THAT(coordinator_.Lines("finish"), Contains("a warning"));
}

TEST_F(AgentTest, SendsTheWholeLogBeforeTheEnd) {
  StartAgent();
  StartJob("chatty", 1, 1);
  ASSERT_TRUE(coordinator_.WaitForReport("chatty", 1, v1::ATTEMPT_FINISHED));
  std::vector<std::string> lines = coordinator_.Lines("chatty");
  ASSERT_EQ(lines.size(), 20002u);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "line 20000"), 1);
}

TEST_F(AgentTest, NamesTheRankThatDiedAndLeavesNone) {
  StartAgent();
  StartJob("crash");
  auto report = coordinator_.WaitForReport("crash", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->rank(), 1);
  EXPECT_EQ(report->signal(), SIGSEGV);
  EXPECT_EQ(report->reason(), v1::RANK_DIED);
  EXPECT_TRUE(FindProcesses({owner_}).empty());
}

TEST_F(AgentTest, ReportsWhatRanksSayOfTheirFailure) {
  StartAgent();
  StartJob("invalid");
  auto report = coordinator_.WaitForReport("invalid", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reason(), v1::USER_ERROR);
  EXPECT_THAT(report->message(), HasSubstr("no such file"));
  StartJob("silent");
  report = coordinator_.WaitForReport("silent", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->exit_status(), 9);
}

TEST_F(AgentTest, TellsProgressTwiceASecondWhileRanksRunHoweverRareHeartbeatsAre) {
  coordinator_.lease_seconds = 120;
  coordinator_.heartbeat_seconds = 60;
  StartAgent(/*await_heartbeat=*/false);
  ASSERT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.has_register_(); }));
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(coordinator_.WaitFor(
      [](const auto& m) { return m.has_heartbeat() && m.heartbeat().sequence() >= 3; }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  ASSERT_TRUE(coordinator_.WaitFor([](const auto& m) {
    return m.heartbeat().running_size() == 1 && m.heartbeat().running(0).progress().step() > 0;
  }));
}

TEST_F(AgentTest, StopsRanksGracefullyOrAtOnce) {
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  StopJob("wait", /*graceful=*/true);
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_STOPPED));
  StartJob("stubborn");
  ASSERT_TRUE(coordinator_.WaitForReport("stubborn", 1, v1::ATTEMPT_TRAINING));
  StopJob("stubborn", /*graceful=*/true);
  StopJob("stubborn", /*graceful=*/false);
  EXPECT_TRUE(coordinator_.WaitForReport("stubborn", 1, v1::ATTEMPT_STOPPED));
  EXPECT_TRUE(FindProcesses({owner_}).empty());
}

TEST_F(AgentTest, DoesNothingTwiceAndNothingOld) {
  StartAgent();
  StopJob("late", false, 3);
  ASSERT_TRUE(coordinator_.WaitForReport("late", 3, v1::ATTEMPT_STOPPED)) << "nothing to stop";
  StartJob("late", 3);
  StartJob("late", 2);
  ASSERT_TRUE(coordinator_.WaitForReport("late", 2, v1::ATTEMPT_STOPPED));
  StartJob("wait", 1);
  StartJob("wait", 1);
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  EXPECT_EQ(FindProcesses({owner_}).size(), 2u);
  // A newer attempt puts an end to the older one.
  StartJob("wait", 2);
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_STOPPED));
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 2, v1::ATTEMPT_TRAINING));
  for (const v1::WorkerMessage& m : coordinator_.Messages()) {
    EXPECT_FALSE(m.attempt().job_id() == "late" && m.attempt().state() == v1::ATTEMPT_STARTED);
  }
}

TEST_F(AgentTest, RefusesJobsThatNameFilesOutsideTheDeclaredFolders) {
  data_roots_ = {dir_ + "/data"};
  StartAgent();
  StartJob("outside");  // reads text.txt, wherever that may be
  auto report = coordinator_.WaitForReport("outside", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->message(), HasSubstr("data.train 'text.txt' is not below a folder"));
  EXPECT_THAT(report->message(), HasSubstr("--data-root of this weft-worker"));
  EXPECT_EQ(report->reason(), v1::USER_ERROR) << "no retry helps";
}

TEST_F(AgentTest, ItsRanksReadBelowTheDeclaredFolders) {
  data_roots_ = {dir_ + "/data", dir_ + "/more"};
  train_ = dir_ + "/data/text.txt";
  StartAgent();
  StartJob("inside");
  ASSERT_TRUE(coordinator_.WaitForReport("inside", 1, v1::ATTEMPT_FINISHED));
  EXPECT_THAT(
      coordinator_.Lines("inside"),
      testing::IsSupersetOf({"reads below " + dir_ + "/data", "reads below " + dir_ + "/more"}));
}

TEST_F(AgentTest, RefusesIdsOfJobsThatArePaths) {
  StartAgent();
  run_dir_ = dir_ + "/runs/job";
  const std::string id = "../" + BaseName(dir_) + "-outside";
  StartJob(id);
  auto report = coordinator_.WaitForReport(id, 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->message(), HasSubstr("a-z, 0-9 and dashes"));
  EXPECT_EQ(report->reason(), v1::USER_ERROR) << "no retry helps";
  EXPECT_FALSE(Env::Posix().FileExists(dir_ + "-outside-1-0.json"));
}

TEST_F(AgentTest, RefusesARunFolderOutsideItsRoot) {
  run_dir_ = dir_ + "/runs/../../escape";
  StartAgent();
  StartJob("escape");
  auto report = coordinator_.WaitForReport("escape", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->message(), HasSubstr("--run-root"));
  EXPECT_EQ(report->reason(), v1::USER_ERROR) << "no retry helps";
}

TEST_F(AgentTest, TellsWhatItsRanksDoAndSinceWhenTheyAreSilent) {
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    if (m.heartbeat().running().empty()) return false;
    const v1::RunningAttempt& running = m.heartbeat().running(0);
    return running.activity() == "training" && running.silent_seconds() > 1.2 &&
           running.longest_step_seconds() == 0.001 &&
           running.rank_states().find("rank 0 sleeping") != std::string::npos;
  }));
}

TEST_F(AgentTest, TellsHowLongStepsKeepEachRankBusyAndWhatElseTookTime) {
  StartAgent();
  StartJob("paced");
  ASSERT_TRUE(coordinator_.WaitForReport("paced", 1, v1::ATTEMPT_TRAINING));
  // Steps of 4 s, less 2 or 0.5 s of waiting; in the second 0.25 s for a save, in the third 1 s of
  // validation.
  const auto after = [](double busy) { return busy - 0.1 * 0.9 * 0.25 - 0.1 * 1; };
  EXPECT_TRUE(coordinator_.WaitFor([&](const v1::WorkerMessage& m) {
    if (m.heartbeat().running().empty()) return false;
    const v1::RunningAttempt& running = m.heartbeat().running(0);
    return running.ranks_size() == 2 && running.rank_busy_seconds_size() == 2 &&
           std::abs(running.rank_busy_seconds(0) - after(2)) < 1e-9 &&
           std::abs(running.rank_busy_seconds(1) - after(3.5)) < 1e-9 &&
           running.checkpoint_seconds() == 0.25 && running.evaluation_seconds() == 1 &&
           running.data_wait_seconds() == 3 * 0.25;
  }));
  v1::CoordinatorMessage stop;
  stop.mutable_stop()->set_job_id("paced");
  stop.mutable_stop()->set_epoch(1);
  stop.mutable_stop()->set_graceful(true);
  coordinator_.Send(stop);
  ASSERT_TRUE(coordinator_.WaitForReport("paced", 1, v1::ATTEMPT_STOPPED));
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    return !m.heartbeat().running().empty() && m.heartbeat().running(0).activity() == "saving" &&
           m.heartbeat().running(0).saved_bytes() == 1000 + 2000;
  })) << "what both ranks save";
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    return !m.heartbeat().running().empty() &&
           m.heartbeat().running(0).checkpoint_seconds() >= 0.25 + 0.3;
  })) << "the save at the end, too";
}

TEST_F(AgentTest, AnswersWhenItsMachineIsToBeChecked) {
  StartAgent();
  v1::CoordinatorMessage message;
  message.mutable_check_health()->set_request_id(7);
  message.mutable_check_health()->set_limit_seconds(10);
  coordinator_.Send(message);
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    return m.has_health() && m.health().request_id() == 7 && m.health().error().empty() &&
           m.health().device() == -1;
  }));
}

TEST_F(AgentTest, CarriesTheRendezvousOfTheRanks) {
  StartAgent();
  StartJob("store");
  ASSERT_TRUE(coordinator_.WaitForReport("store", 1, v1::ATTEMPT_FINISHED));
  EXPECT_THAT(coordinator_.Lines("store"), Contains("got 2: value of rank0"));
  EXPECT_THAT(coordinator_.Lines("store"), Contains("got 2: value of rank1"));
}

TEST_F(AgentTest, SetsAgainWhatItsRanksSetForACoordinatorThatWasRestarted) {
  StartAgent();
  StartJob("meet");
  // Before that a rank may still wait for what the other one set.
  for (const char* line : {"got 2: value of rank0", "got 2: value of rank1"}) {
    ASSERT_TRUE(coordinator_.WaitFor([&](const v1::WorkerMessage& m) {
      return std::ranges::any_of(m.logs().lines(), [&](const auto& l) { return l.text() == line; });
    })) << line;
  }
  const auto set = [](int rank) {
    return [rank](const v1::WorkerMessage& m) {
      const std::string name = "rank" + std::to_string(rank);
      return m.store().job_id() == "meet" && m.store().epoch() == 1 &&
             m.store().set().key() == name && m.store().set().value() == "value of " + name;
    };
  };
  coordinator_.Stop();
  coordinator_.ForgetMessages();
  Adopt("meet");
  coordinator_.Start();
  for (int rank : {0, 1}) EXPECT_TRUE(coordinator_.WaitFor(set(rank))) << rank;
  for (const v1::WorkerMessage& message : coordinator_.Messages()) {
    EXPECT_FALSE(message.store().has_get()) << "the ranks have that answer";
  }
  // Nobody asks for what ranks of an ended attempt had set.
  coordinator_.Stop();
  coordinator_.adopt.clear();
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForReport("meet", 1, v1::ATTEMPT_STOPPED));
  coordinator_.Stop();
  coordinator_.ForgetMessages();
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.has_heartbeat(); }));
  for (const v1::WorkerMessage& message : coordinator_.Messages()) {
    EXPECT_FALSE(message.has_store());
  }
}

TEST_F(AgentTest, KillsItsRanksWhenTheLeaseRunsOut) {
  coordinator_.lease_seconds = 0.6;
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  auto before = std::chrono::steady_clock::now();
  coordinator_.Stop();
  EXPECT_TRUE(WaitForNoRanks());
  auto took = std::chrono::steady_clock::now() - before;
  EXPECT_LT(took, std::chrono::milliseconds(600)) << "before the coordinator would give it away";
  // It comes back and reports.
  coordinator_.ForgetMessages();
  coordinator_.Start();
  auto report = coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_FAILED);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->reason(), v1::WORKER_LOST);
}

TEST_F(AgentTest, GoesOnThroughARestartOfTheCoordinatorThatAdoptsIt) {
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  std::vector<pid_t> before = FindProcesses({owner_});
  coordinator_.Stop();
  coordinator_.ForgetMessages();
  Adopt("wait");
  coordinator_.Start();
  auto hello = coordinator_.WaitFor([](const auto& m) { return m.has_register_(); });
  ASSERT_TRUE(hello);
  ASSERT_EQ(hello->register_().running_size(), 1);
  EXPECT_EQ(hello->register_().running(0).progress().step(), 3);
  ASSERT_TRUE(
      coordinator_.WaitFor([](const auto& m) { return m.heartbeat().running_size() == 1; }));
  EXPECT_EQ(FindProcesses({owner_}), before);

  // One that does not know it any more has it stopped.
  coordinator_.Stop();
  coordinator_.adopt.clear();
  coordinator_.Start();
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_STOPPED));
}

TEST_F(AgentTest, SendsAgainWhatWasNotAcknowledged) {
  coordinator_.acknowledge_reports = false;
  coordinator_.acknowledge_logs = false;
  StartAgent();
  StartJob("finish");
  ASSERT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_FINISHED));
  coordinator_.Stop();
  coordinator_.ForgetMessages();
  coordinator_.acknowledge_reports = true;
  coordinator_.acknowledge_logs = true;
  coordinator_.Start();
  const auto hello = coordinator_.WaitFor([](const auto& m) { return m.has_register_(); });
  ASSERT_TRUE(hello);
  ASSERT_EQ(hello->register_().running_size(), 1) << "its progress goes before its end";
  EXPECT_EQ(hello->register_().running(0).ranks_size(), 0);
  EXPECT_EQ(hello->register_().running(0).progress().step(), 3);
  EXPECT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_STARTED));
  EXPECT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_FINISHED));
  EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.logs().first_sequence() == 1; }));
}

TEST_F(AgentTest, RanksThatComeAgainHaveALogOfTheirOwn) {
  coordinator_.acknowledge_logs = false;
  StartAgent();
  v1::CoordinatorMessage message = StartMessage("finish", 1, /*ranks=*/2);
  v1::StartAttempt& start = *message.mutable_start();
  start.set_membership(1);
  start.clear_ranks();
  start.add_ranks(0);
  coordinator_.Send(message);
  ASSERT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_FINISHED));
  coordinator_.ForgetMessages();
  start.set_joins(true);
  start.set_ranks(0, 1);
  coordinator_.Send(message);
  ASSERT_TRUE(coordinator_.WaitForReport("finish", 1, v1::ATTEMPT_FINISHED));
  const auto is_of = [](int32_t first_rank) {
    return [first_rank](const v1::WorkerMessage& m) {
      return m.has_logs() && m.logs().first_rank() == first_rank &&
             m.logs().first_sequence() == 1 && m.logs().lines(0).rank() == first_rank;
    };
  };
  EXPECT_TRUE(coordinator_.WaitFor(is_of(1)));
  const auto send_again = [this] {
    coordinator_.Stop();
    coordinator_.ForgetMessages();
    coordinator_.Start();
    return coordinator_.WaitFor([](const auto& m) { return m.has_register_(); }).has_value();
  };
  ASSERT_TRUE(send_again());
  EXPECT_TRUE(coordinator_.WaitFor(is_of(0))) << "those before are not lost";
  EXPECT_TRUE(coordinator_.WaitFor(is_of(1)));
  v1::CoordinatorMessage ack;
  ack.mutable_log_ack()->set_job_id("finish");
  ack.mutable_log_ack()->set_epoch(1);
  ack.mutable_log_ack()->set_sequence(1000);
  coordinator_.Send(ack);
  StopJob("other", false);  // what comes after the acknowledgement
  ASSERT_TRUE(coordinator_.WaitForReport("other", 1, v1::ATTEMPT_STOPPED));
  ASSERT_TRUE(send_again());
  EXPECT_TRUE(coordinator_.WaitFor(is_of(1))) << "nobody has those of the new rank";
  for (const v1::WorkerMessage& m : coordinator_.Messages()) EXPECT_FALSE(is_of(0)(m));
}

TEST_F(AgentTest, RanksThatComeAgainTakeThePlaceOfThoseThatAreThereStill) {
  StartAgent();
  SendJoin("wait", 1);
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  coordinator_.ForgetMessages();
  SendJoin("wait", 2);
  const auto trains = [](const v1::WorkerMessage& m) {
    return m.attempt().state() == v1::ATTEMPT_TRAINING && m.attempt().first_rank() == 2;
  };
  EXPECT_TRUE(coordinator_.WaitFor(trains));
  EXPECT_EQ(FindProcesses({owner_}).size(), 1u);
  // The order before comes late.
  SendJoin("wait", 1);
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    return m.heartbeat().running_size() == 1 && m.heartbeat().running(0).ranks_size() == 1 &&
           m.heartbeat().running(0).ranks(0) == 2;
  }));
  StopJob("wait", false);
  EXPECT_TRUE(coordinator_.WaitFor([](const v1::WorkerMessage& m) {
    return m.attempt().state() == v1::ATTEMPT_STOPPED && m.attempt().first_rank() == 2;
  }));
  EXPECT_TRUE(FindProcesses({owner_}).empty());
}

TEST_F(AgentTest, RanksThatWaitForOthersToEndDoNotStartAfterAStop) {
  StartAgent();
  SendJoin("wait", 1);
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  SendJoin("wait", 2);
  StopJob("wait", false);
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_STOPPED));
  StopJob("other", false);  // what comes after a start that was due
  ASSERT_TRUE(coordinator_.WaitForReport("other", 1, v1::ATTEMPT_STOPPED));
  EXPECT_TRUE(FindProcesses({owner_}).empty());
  for (const v1::WorkerMessage& m : coordinator_.Messages()) {
    EXPECT_NE(m.attempt().first_rank(), 2) << m.attempt().DebugString();
  }
}

TEST_F(AgentTest, AnAcknowledgementOfTheRanksBeforeIsNoneOfThoseThatFollowThem) {
  coordinator_.acknowledge_reports = false;
  StartAgent();
  SendJoin("wait", 1);
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  SendJoin("wait", 2);
  const auto trains = [](const v1::WorkerMessage& m) {
    return m.attempt().state() == v1::ATTEMPT_TRAINING && m.attempt().first_rank() == 2;
  };
  ASSERT_TRUE(coordinator_.WaitFor(trains));
  const auto acknowledge_and_dial_again = [this](int32_t first_rank) {
    v1::CoordinatorMessage answer;
    v1::AttemptAck& ack = *answer.mutable_attempt_ack();
    ack.set_job_id("wait");
    ack.set_epoch(1);
    ack.set_state(v1::ATTEMPT_TRAINING);
    ack.set_first_rank(first_rank);
    coordinator_.Send(answer);
    coordinator_.ForgetMessages();
    StopJob("other", false);  // what comes after the acknowledgement
    EXPECT_TRUE(coordinator_.WaitForReport("other", 1, v1::ATTEMPT_STOPPED));
    coordinator_.Stop();
    coordinator_.ForgetMessages();
    Adopt("wait");
    coordinator_.Start();
    EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.has_register_(); }));
  };
  acknowledge_and_dial_again(1);
  EXPECT_TRUE(coordinator_.WaitFor(trains)) << "nobody has that of the new rank";
  acknowledge_and_dial_again(2);
  EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.has_heartbeat(); }));
  for (const v1::WorkerMessage& m : coordinator_.Messages()) EXPECT_FALSE(trains(m));
}

TEST_F(AgentTest, DialsAgainWhenTheCoordinatorStaysSilent) {
  coordinator_.lease_seconds = 1;
  StartAgent();
  coordinator_.ForgetMessages();
  coordinator_.acknowledge_heartbeats = false;
  EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.has_register_(); }));
}

TEST_F(AgentTest, DialsAgainWithinALeaseWhenItsRegistrationIsNotAnswered) {
  coordinator_.lease_seconds = 1;
  StartAgent();
  coordinator_.answer_registrations = false;
  coordinator_.Stop();
  coordinator_.ForgetMessages();
  coordinator_.Start();
  const auto registers = [](const auto& m) { return m.has_register_(); };
  ASSERT_TRUE(coordinator_.WaitFor(registers));
  coordinator_.ForgetMessages();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(coordinator_.WaitFor(registers));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5))
      << "an answer that comes after a lease renews nothing";
}

TEST_F(AgentTest, DrainsAndLeaves) {
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  boost::asio::post(io_, [this] { agent_->Drain(std::chrono::seconds(10)); });
  EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) { return m.heartbeat().draining(); }));
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_STOPPED));
  EXPECT_TRUE(done_.get_future().get().ok());
}

TEST_F(AgentTest, TheNextOneTellsTheEndsOfADrainWithoutCoordinator) {
  StartAgent();
  StartJob("wait");
  ASSERT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_TRAINING));
  coordinator_.Stop();
  boost::asio::post(io_, [this] { agent_->Drain(std::chrono::seconds(10)); });
  EXPECT_TRUE(done_.get_future().get().ok());
  thread_.join();
  ASSERT_TRUE(Env::Posix().FileExists(dir_ + "/unsent.pb"));
  coordinator_.ForgetMessages();
  coordinator_.acknowledge_reports = false;
  coordinator_.Start();
  io_.restart();
  done_ = {};
  StartAgent();
  const auto hello = coordinator_.WaitFor([](const auto& m) { return m.has_register_(); });
  ASSERT_TRUE(hello);
  ASSERT_EQ(hello->register_().running_size(), 1) << "not missing, but ended";
  EXPECT_EQ(hello->register_().running(0).job_id(), "wait");
  EXPECT_EQ(hello->register_().running(0).ranks_size(), 0);
  EXPECT_TRUE(coordinator_.WaitForReport("wait", 1, v1::ATTEMPT_STOPPED));
  EXPECT_TRUE(
      coordinator_.WaitFor([](const auto& m) { return m.heartbeat().running_size() == 1; }));
  // The start is ordered again, as its end was not known.
  coordinator_.ForgetMessages();
  StartJob("wait");
  EXPECT_TRUE(coordinator_.WaitFor([](const auto& m) {
    return m.attempt().state() == v1::ATTEMPT_STOPPED &&
           m.attempt().message() == "epoch 1 came before this start";
  }));
  v1::CoordinatorMessage ack;
  ack.mutable_attempt_ack()->set_job_id("wait");
  ack.mutable_attempt_ack()->set_epoch(1);
  ack.mutable_attempt_ack()->set_state(v1::ATTEMPT_STOPPED);
  ack.mutable_attempt_ack()->set_first_rank(0);
  coordinator_.Send(ack);
  coordinator_.ForgetMessages();
  EXPECT_TRUE(coordinator_.WaitFor(
      [](const auto& m) { return m.has_heartbeat() && m.heartbeat().running_size() == 0; }));
  EXPECT_FALSE(Env::Posix().FileExists(dir_ + "/unsent.pb"));
}

TEST_F(AgentTest, KillsRanksThatDoNotStopInTimeWhenItDrains) {
  StartAgent();
  StartJob("stubborn");
  ASSERT_TRUE(coordinator_.WaitForReport("stubborn", 1, v1::ATTEMPT_TRAINING));
  boost::asio::post(io_, [this] { agent_->Drain(std::chrono::milliseconds(100)); });
  EXPECT_TRUE(done_.get_future().get().ok());
  EXPECT_TRUE(FindProcesses({owner_}).empty());
}

TEST_F(AgentTest, EndsWhenItIsRefused) {
  coordinator_.refuse = "version 9 is needed";
  StartAgent(/*await_heartbeat=*/false);
  Status status = done_.get_future().get();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_THAT(status.message(), HasSubstr("version 9 is needed"));
}

}  // namespace
}  // namespace weft::daemon
