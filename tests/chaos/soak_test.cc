// One long job while ranks and workers are killed again and again:
//   WEFT_SOAK_SECONDS=3600 WEFT_SOAK_KILL_SECONDS=60 chaos_test --gtest_filter='Soak.*'
#include <dirent.h>

#include <fstream>

#include "common/clock.h"
#include "common/rng.h"
#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

double Setting(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atof(text);
}

int64_t ResidentKilobytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

int OpenFiles(pid_t pid) {
  DIR* folder = opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
  if (folder == nullptr) return -1;
  int files = 0;
  while (readdir(folder) != nullptr) ++files;
  closedir(folder);
  return files;
}

/// Steps a second over `time`.
double Rate(Cluster& cluster, const std::string& id, double time) {
  const auto begin = steady_clock::now();
  const int64_t before = cluster.Get(id).progress().step();
  std::this_thread::sleep_for(std::chrono::duration<double>(time));
  const int64_t after = cluster.Get(id).progress().step();
  const std::chrono::duration<double> took = steady_clock::now() - begin;
  return static_cast<double>(after - before) / took.count();
}

TEST(Soak, AJobGoesOnWhileRanksAndWorkersAreKilled) {
  const double time = Setting("WEFT_SOAK_SECONDS", 0);
  if (time == 0) GTEST_SKIP() << "WEFT_SOAK_SECONDS says how long";
  const double between = Setting("WEFT_SOAK_KILL_SECONDS", 60);
  Cluster cluster({.ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:20"}}});
  v1::JobSpec spec = cluster.TinyJob("soak", 1'000'000);
  spec.mutable_retry()->set_max_attempts(1000);
  spec.mutable_checkpoint()->set_every_steps(20);
  spec.mutable_train()->set_eval_every_steps(0);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 50);
  const double undisturbed = Rate(cluster, id, std::min(30.0, time / 4));

  const pid_t coordinator = cluster.coordinator().pid();
  int64_t memory = 0;  // when a quarter of the time is over: caches of the database fill before
  const int files = OpenFiles(coordinator);
  PhiloxStream random({5, 0, 0});
  const int64_t first = cluster.Get(id).progress().step();
  const auto begin = steady_clock::now();
  int kills = 0;
  while (SecondsSince(begin) < time) {
    std::this_thread::sleep_for(std::chrono::duration<double>(between));
    const std::vector<pid_t> ranks = cluster.RankPids(id);
    if (random.Below(3) == 0) {
      cluster.worker(0).Kill();
      cluster.StartWorker(0);
    } else if (!ranks.empty()) {
      kill(ranks[random.Below(ranks.size())], SIGKILL);
    }
    ++kills;
    if (memory == 0 && SecondsSince(begin) >= time / 4) memory = ResidentKilobytes(coordinator);
  }
  // Before the job is asked for again and again, which takes some memory once.
  const int64_t memory_at_end = ResidentKilobytes(coordinator);
  EXPECT_TRUE(Eventually([&] { return cluster.Get(id).state() == v1::RUNNING; }, seconds(30)));
  const std::chrono::duration<double> took = steady_clock::now() - begin;
  const double net = static_cast<double>(cluster.Get(id).progress().step() - first) / took.count();
  const double growth = static_cast<double>(memory_at_end - memory) / static_cast<double>(memory);
  std::printf(
      "%d kills in %.0f s: %.3f of the undisturbed rate, memory of the coordinator %+.2f %%, "
      "%+d files\n",
      kills, took.count(), net / undisturbed, 100 * growth, OpenFiles(coordinator) - files);
  RecordProperty("kills", kills);
  RecordProperty("goodput_ratio", std::to_string(net / undisturbed));
  RecordProperty("memory_growth_ratio", std::to_string(growth));
  RecordProperty("more_files", OpenFiles(coordinator) - files);
  EXPECT_GT(net / undisturbed, 0.5) << "it goes on";
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
  v1::CancelJobRequest request;
  request.set_id(id);
  v1::Job job;
  EXPECT_TRUE(cluster.api().CancelJob(&context, request, &job).ok());
  EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id).empty(); }, seconds(20)));
}

}  // namespace
}  // namespace weft::testing
