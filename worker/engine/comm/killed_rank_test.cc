// Ranks in processes of their own; one is killed while all are in an operation.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/file_store.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kVictim = 2;
constexpr int64_t kCount = 1 << 20;  // numbers of a tensor: many messages
constexpr int kInFlight = 8;         // operations that nobody has waited for
constexpr const char* kRankVariable = "WEFT_TEST_KILLED_RANK";
constexpr const char* kFolderVariable = "WEFT_TEST_KILLED_RANK_STORE";

/// The tensors of a rank.
struct Tensors {
  std::vector<float> whole = std::vector<float>(kCount, 1), other = whole;
  TensorView all() { return {whole.data(), DType::kF32, {kCount}}; }
  TensorView others() { return {other.data(), DType::kF32, {kCount}}; }
  TensorView part() { return {other.data(), DType::kF32, {kCount / kRanks}}; }
};

Work Begin(const std::string& operation, Collective& group, Tensors& tensors) {
  const Stream stream;
  const int next = (group.rank() + 1) % kRanks, previous = (group.rank() + kRanks - 1) % kRanks;
  if (operation == "AllReduce") return group.AllReduce(stream, tensors.all());
  if (operation == "ReduceScatter") {
    return group.ReduceScatter(stream, tensors.all(), tensors.part());
  }
  if (operation == "AllGather") return group.AllGather(stream, tensors.part(), tensors.all());
  if (operation == "Broadcast") return group.Broadcast(stream, tensors.all(), 0);
  if (operation == "BroadcastOfTheVictim") return group.Broadcast(stream, tensors.all(), kVictim);
  if (operation == "AllToAll") return group.AllToAll(stream, tensors.all(), tensors.others());
  if (operation == "Exchange") {
    return group.Exchange(stream, {{tensors.all(), next}}, {{tensors.others(), previous}});
  }
  if (operation == "SendAndReceive") {
    // The even ones send first, or nobody would receive.
    if (group.rank() % 2 == 0) {
      (void)group.Send(stream, tensors.all(), next);
      return group.Receive(stream, tensors.others(), previous);
    }
    (void)group.Receive(stream, tensors.others(), previous);
    return group.Send(stream, tensors.all(), next);
  }
  if (operation == "Barrier") return Work(group.Barrier());
  return Work(group.AllGather("bytes of the host").status());
}

enum class Moment {
  kAwaited,  ///< The others wait in the operation for the victim, which does not call it.
  kWorking,  ///< All call it over and over.
  kQueued,   ///< All have several of them under way.
};

struct Case {
  std::string operation;
  Moment moment;
};

std::string NameOf(const Case& test) {
  constexpr std::array<const char*, 3> kMoments = {"Awaited", "Working", "Queued"};
  return test.operation + kMoments[static_cast<size_t>(test.moment)];
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* operation : {"AllReduce", "ReduceScatter", "AllGather", "Broadcast",
                                "BroadcastOfTheVictim", "AllToAll", "Exchange", "SendAndReceive"}) {
    for (Moment moment : {Moment::kAwaited, Moment::kWorking, Moment::kQueued}) {
      cases.push_back({operation, moment});
    }
  }
  for (const char* operation : {"Barrier", "AllGatherOfBytes"}) {  // which return when done
    for (Moment moment : {Moment::kAwaited, Moment::kWorking}) cases.push_back({operation, moment});
  }
  return cases;
}

class KilledRank : public testing::TestWithParam<Case> {};

/// One rank: works until an operation fails, and reports the error.
void BeRank(int rank, const std::string& folder, const Case& test) {
  FileStore store(Env::Posix(), folder);
  CollectiveOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.connect_timeout = seconds(60);
  options.timeout = seconds(300);  // so that it is never this that helps
  auto group = ConnectCollective(options, store);
  ASSERT_TRUE(group.ok()) << group.status().message();
  Tensors tensors;
  const auto once = [&] { return Begin(test.operation, **group, tensors).Wait(Stream{}); };
  ASSERT_TRUE(once().ok());
  ASSERT_TRUE(store.Set("ready " + std::to_string(rank), "").ok());
  if (test.moment == Moment::kAwaited && rank == kVictim) {
    while (true) pause();
  }
  Status lost;
  std::deque<Work> in_flight;
  while (lost.ok()) {
    if (test.moment != Moment::kQueued) {
      lost = once();
      continue;
    }
    in_flight.push_back(Begin(test.operation, **group, tensors));
    if (in_flight.size() < kInFlight) continue;
    lost = in_flight.front().Wait(Stream{});
    in_flight.pop_front();
  }
  for (const Work& work : in_flight) {
    EXPECT_EQ(work.Wait(Stream{}).code(), StatusCode::kUnavailable);
  }
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_FALSE((*group)->Health().ok());
  ASSERT_TRUE(store.Set("lost " + std::to_string(rank), lost.message()).ok());
}

/// This program again, as rank `rank` of the test that runs.
pid_t StartRank(int rank, const std::string& folder) {
  const std::vector<std::string> own = {std::string(kRankVariable) + "=" + std::to_string(rank),
                                        std::string(kFolderVariable) + "=" + folder};
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  for (const std::string& entry : own) environment.push_back(const_cast<char*>(entry.c_str()));
  environment.push_back(nullptr);
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  const std::array<const char*, 4> arguments = {"rank", filter.c_str(), "--gtest_brief=1", nullptr};
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr,
                                 const_cast<char* const*>(arguments.data()), environment.data());
  return failed == 0 ? pid : -1;
}

TEST_P(KilledRank, IsNamedByAllOthersWhichStopSoon) {
  if (const char* rank = std::getenv(kRankVariable); rank != nullptr) {
    return BeRank(std::atoi(rank), std::getenv(kFolderVariable), GetParam());
  }
  std::string folder = testing::TempDir() + "weft_killed_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  FileStore store(Env::Posix(), folder);
  std::map<pid_t, int> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = StartRank(rank, folder);
    ASSERT_GT(pid, 0);
    ranks[pid] = rank;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(store.Get("ready " + std::to_string(rank), seconds(60)).ok());
  }
  std::this_thread::sleep_for(milliseconds(30));  // into some operation
  for (const auto& [pid, rank] : ranks) {
    if (rank == kVictim) {
      ASSERT_EQ(kill(pid, SIGKILL), 0);
    }
  }
  const auto killed = steady_clock::now();
  while (!ranks.empty() && steady_clock::now() - killed < seconds(5)) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    ASSERT_GE(ended, 0);
    if (ended == 0) {
      std::this_thread::sleep_for(milliseconds(2));
      continue;
    }
    const int rank = ranks.at(ended);
    ranks.erase(ended);
    if (rank == kVictim) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      continue;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
    auto told = store.Get("lost " + std::to_string(rank), milliseconds(1));
    ASSERT_TRUE(told.ok()) << "rank " << rank;
    EXPECT_THAT(*told, testing::HasSubstr("rank " + std::to_string(rank) + " (world)"));
    EXPECT_THAT(*told, testing::HasSubstr("rank " + std::to_string(kVictim) + " is lost"));
  }
  for (const auto& [pid, rank] : ranks) {
    ADD_FAILURE() << "rank " << rank << " still runs";
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  EXPECT_TRUE(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD) << "a process is left";
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

INSTANTIATE_TEST_SUITE_P(Gloo, KilledRank, testing::ValuesIn(Cases()),
                         [](const auto& test) { return NameOf(test.param); });

}  // namespace
}  // namespace weft::engine
