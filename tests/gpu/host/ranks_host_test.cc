// What ranks on devices do only where their NCCL can be broken, and in whole attempts.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/fake_nccl.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/file_store.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/run_attempt.h"

namespace weft::engine {
namespace {

constexpr int kRanks = 2;

// All tests of this program.
class Devices : public ::testing::Environment {
  void SetUp() override {
    host_cuda::SetDeviceCount(kRanks);
    host_cuda::DeferWork(true);
  }
  void TearDown() override { EXPECT_EQ(OpenFakeComms(), 0); }
};
const auto* const kDevices = ::testing::AddGlobalTestEnvironment(new Devices);

// After `steps` of them; `graph_steps` of these were graphs.
void LeaveAStep(int64_t steps, int64_t graph_steps) {
  RandomTokens data(50, 16);
  HashStore store;
  Plan plan = TinyPlan("fp32", 2);
  plan.mesh.data = kRanks;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const Device where{DeviceType::kCuda, rank};
      CollectiveOptions options;
      options.rank = rank;
      options.size = kRanks;
      options.device = where;
      auto group = ConnectCollective(options, store);
      ASSERT_TRUE(group.ok()) << group.status().message();
      DeviceRun run(TinyJob(4), plan, data, where, {.group = group->get()});
      for (int64_t step = 0; step < steps; ++step) run.Step();
      EXPECT_EQ(run.trainer->graph_steps(), graph_steps);
      if (rank == 1) {
        // Its first all-reduce never ends, and it is gone before long.
        BreakFakeRank(1, FakeFault::kHang);
        std::thread gone([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          (*group)->Abort();
        });
        EXPECT_FALSE(run.trainer->Step().ok());
        gone.join();
        return;
      }
      const auto lost = run.trainer->Step();
      EXPECT_EQ(lost.status().code(), StatusCode::kUnavailable);
      EXPECT_THAT(lost.status().message(), ::testing::HasSubstr(" is lost"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Long before the two minutes that an operation may take.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(RanksOnHostExecution, AStepThatARankLeavesEndsForAllOfThem) {
  LeaveAStep(1, 0);
}

// Its communicator is given up while graphs still have operations of it.
TEST(RanksOnHostExecution, AStepThatIsAGraphEndsForAllRanksWhenOneLeavesIt) {
  LeaveAStep(4, 2);
}

constexpr const char* kStoreVariable = "WEFT_TEST_RANK_STORE";

// Rank `rank` of two in processes of their own, whose NCCL never ends: what its step comes to.
Status StepWithAnotherProcess(int rank, const std::string& folder,
                              const std::function<void()>& before) {
  ExpectFakeRanksElsewhere(true);
  RandomTokens data(50, 16);
  FileStore store(Env::Posix(), folder);
  Plan plan = TinyPlan("fp32", 2);
  plan.mesh.data = kRanks;
  CollectiveOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.connect_timeout = std::chrono::seconds(60);
  options.device = {DeviceType::kCuda, rank};
  auto group = ConnectCollective(options, store);
  ExpectFakeRanksElsewhere(false);
  if (!group.ok()) return group.status();
  DeviceRun run(TinyJob(4), plan, data, options.device, {.group = group->get()});
  before();
  return run.trainer->Step().status();
}

// Rank 1, which is killed while it is in its first all-reduce.
void BeKilled(const std::string& folder) {
  std::thread killer;
  (void)StepWithAnotherProcess(1, folder, [&] {
    killer = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      (void)kill(getpid(), SIGKILL);
    });
  });
  if (killer.joinable()) killer.join();
}

TEST(RanksOnHostExecution, AProcessThatIsKilledIsNamedByTheOthers) {
  // This test in the process that it starts.
  if (const char* shared = std::getenv(kStoreVariable); shared != nullptr) return BeKilled(shared);
  std::string folder = ::testing::TempDir() + "weft_killed_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string variable = std::string(kStoreVariable) + "=" + folder;
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(variable.c_str()));
  environment.push_back(nullptr);
  const std::array<const char*, 3> arguments = {
      "rank", "--gtest_filter=*.AProcessThatIsKilledIsNamedByTheOthers", nullptr};
  pid_t peer = 0;
  ASSERT_EQ(posix_spawn(&peer, "/proc/self/exe", nullptr, nullptr,
                        const_cast<char* const*>(arguments.data()), environment.data()),
            0);
  std::chrono::steady_clock::time_point start;
  const Status lost =
      StepWithAnotherProcess(0, folder, [&] { start = std::chrono::steady_clock::now(); });
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_THAT(lost.message(), ::testing::HasSubstr("rank 1 is lost"));
  // Long before the two minutes that an operation may take.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  int status = 0;
  ASSERT_EQ(waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

}  // namespace
}  // namespace weft::engine

namespace weft::trainer {
namespace {

class Silent : public Reporter {
 public:
  void Report(const RankMessage&) override {}
  bool StopRequested() override { return false; }
};

class AttemptsOnHostExecution : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_ranks_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// Two ranks, or another number; `change` sees the spec of each before it starts. What they come
  /// to, by rank.
  std::vector<Status> Train(const std::string& run, int64_t steps,
                            const std::function<void(AttemptSpec&)>& change = {}, int count = 2) {
    ++epoch_;
    engine::HashStore store;
    std::vector<Status> ends(static_cast<size_t>(count));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < count; ++rank) {
      ranks.emplace_back([&, rank] {
        AttemptSpec spec;
        spec.job_id = run;
        spec.epoch = epoch_;
        spec.rank = rank;
        spec.world_size = count;
        spec.host = "127.0.0.1";
        spec.device_index = rank;
        spec.run_dir = root_ + "/" + run;
        spec.job = engine::TinyJob(count);
        spec.job.model.layers = 1;
        spec.job.data.train = {"made up"};
        spec.job.train.precision = "fp32";
        spec.job.train.steps = steps;
        spec.job.train.eval_every_steps = 0;
        spec.job.train.gradient_noise_scale = true;  // state that is not on the device
        spec.job.schedule.kind = "constant";
        spec.plan = engine::TinyPlan("fp32", 1);
        spec.plan.mesh.data = count;
        spec.plan.device = "cuda";
        if (change) change(spec);
        TrainingData data;
        data.train = std::make_unique<engine::CountingTokens>(7, 16);
        data.vocab_size = 50;
        data.fingerprint = "counting";
        Silent reporter;
        ends[static_cast<size_t>(rank)] =
            RunAttemptOn(Env::Posix(), spec, std::move(data), reporter, store).status();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return ends;
  }
  std::string FinalState(const std::string& run, int64_t steps,
                         const std::string& part = "00000-of-00001") {
    return *ReadFile(Env::Posix(), engine::CheckpointPath(root_ + "/" + run, steps) + "/state-" +
                                       part + ".safetensors");
  }

  std::string root_;
  int64_t epoch_ = 0;
};

TEST_F(AttemptsOnHostExecution, TwoRanksGoOnFromACheckpointAsIfTheyHadNeverStopped) {
  for (const Status& end : Train("whole", 4)) ASSERT_TRUE(end.ok()) << end.message();
  for (int64_t steps : {2, 4}) {
    for (const Status& end : Train("parts", steps)) ASSERT_TRUE(end.ok()) << end.message();
  }
  EXPECT_EQ(FinalState("parts", 4), FinalState("whole", 4));
}

TEST_F(AttemptsOnHostExecution, TwoStagesGoOnFromACheckpointAsIfTheyHadNeverStopped) {
  const auto staged = [](AttemptSpec& spec) {
    spec.job.model.layers = 2;
    spec.job.train.gradient_noise_scale = false;
    spec.plan.mesh.data = 1;
    spec.plan.mesh.pipeline = 2;
    spec.plan.stage_blocks = {1, 1};
    spec.plan.accumulation_steps = 2;
  };
  for (const Status& end : Train("whole", 4, staged)) ASSERT_TRUE(end.ok()) << end.message();
  for (int64_t steps : {2, 4}) {
    for (const Status& end : Train("parts", steps, staged)) ASSERT_TRUE(end.ok()) << end.message();
  }
  for (const char* part : {"00000-of-00002", "00001-of-00002"}) {
    EXPECT_EQ(FinalState("parts", 4, part), FinalState("whole", 4, part));
  }
}

TEST_F(AttemptsOnHostExecution, ARankWithItsStateOnTheHostGoesOnAsIfItHadNeverStopped) {
  const auto train = [&](const std::string& run, int64_t steps, bool offloads) {
    const auto change = [&](AttemptSpec& spec) {
      spec.job.train.gradient_noise_scale = false;
      if (!offloads) return;
      spec.plan.offload_optimizer = spec.plan.offload_parameters = "host";
      spec.plan.offload_activations = "host";
    };
    for (const Status& end : Train(run, steps, change, 1)) ASSERT_TRUE(end.ok()) << end.message();
  };
  train("whole", 4, true);
  train("parts", 2, true);
  train("parts", 4, true);
  EXPECT_EQ(FinalState("parts", 4), FinalState("whole", 4));
  // From the device to the host and back: as many bytes, of the same tensors.
  train("moved", 1, false);
  train("moved", 3, true);
  train("moved", 4, false);
  EXPECT_EQ(FinalState("moved", 4).size(), FinalState("whole", 4).size());
}

TEST_F(AttemptsOnHostExecution, RanksWithTheirStateOnTheirHostsGoOnAsIfTheyHadNeverStopped) {
  for (const int64_t zero_stage : {2, 3}) {
    SCOPED_TRACE(zero_stage);
    const std::string name = "stage" + std::to_string(zero_stage);
    const auto train = [&](const std::string& run, int64_t steps, bool offloads) {
      const auto change = [&](AttemptSpec& spec) {
        spec.job.train.gradient_noise_scale = false;
        spec.plan.zero_stage = zero_stage;
        if (!offloads) return;
        spec.plan.offload_optimizer = spec.plan.offload_activations = "host";
        if (zero_stage > 2) spec.plan.offload_parameters = "host";
      };
      for (const Status& end : Train(name + run, steps, change)) {
        ASSERT_TRUE(end.ok()) << end.message();
      }
    };
    train("whole", 4, true);
    train("parts", 2, true);
    train("parts", 4, true);
    // From the devices to the hosts and back: as many bytes, of the same tensors.
    train("moved", 1, false);
    train("moved", 3, true);
    train("moved", 4, false);
    for (const char* file : {"00000-of-00002", "00001-of-00002"}) {
      const std::string whole = FinalState(name + "whole", 4, file);
      EXPECT_EQ(FinalState(name + "parts", 4, file), whole) << file;
      EXPECT_EQ(FinalState(name + "moved", 4, file).size(), whole.size()) << file;
    }
  }
}

TEST_F(AttemptsOnHostExecution, RanksThatShareAGpuOrHaveNoneAreRefused) {
  for (const Status& end : Train("shared", 2, [](AttemptSpec& spec) { spec.device_index = 1; })) {
    EXPECT_EQ(end.code(), StatusCode::kInvalid);
    EXPECT_THAT(end.message(), ::testing::AllOf(::testing::HasSubstr("ranks 0 and 1 are both on"),
                                                ::testing::HasSubstr("hint:")));
  }
  const auto only_one = [](AttemptSpec& spec) {
    if (spec.rank == 0) spec.plan.device = "cpu";
  };
  for (const Status& end : Train("mixed", 2, only_one)) {
    EXPECT_EQ(end.code(), StatusCode::kInvalid);
    EXPECT_THAT(end.message(), ::testing::HasSubstr("rank 0 computes on CPU"));
  }
}

}  // namespace
}  // namespace weft::trainer
