// The disk of the coordinator fails: it says so, answers what it can read, forgets nothing that it
// acknowledged, and goes on by itself when the disk is well again.
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/chaos/chaos.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

/// What the disk of the coordinator's database does.
class SickDisk {
 public:
  SickDisk() { Heal(); }
  /// For the coordinator.
  Environment environment() const {
    return {{"LD_PRELOAD", WEFT_IO_FAULTS},
            {"WEFT_IO_FAULT_PATH", "/coordinator/weft.db"},
            {"WEFT_IO_FAULT_CONTROL", control_}};
  }
  void Fail(const char* how) const { std::ofstream(control_) << how; }
  void Heal() const { std::filesystem::remove(control_); }

 private:
  const std::string control_ = ::testing::TempDir() + "weft_io_fault";
};

class ChaosOfTheDisk : public ::testing::TestWithParam<const char*> {};

TEST_P(ChaosOfTheDisk, AcknowledgesNothingThatItCannotKeep) {
  const SickDisk disk;
  Cluster cluster({.workers = 0, .coordinator = disk.environment()});
  const v1::JobSpec spec = cluster.TinyJob("disk", kSteps);
  std::set<std::string> acknowledged;
  int requests = 0;
  const auto submit = [&] {
    v1::SubmitJobResponse response;
    const grpc::Status status =
        cluster.TrySubmit(spec, "request-" + std::to_string(++requests), &response);
    if (status.ok()) acknowledged.insert(response.job().id());
    return status;
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(submit().ok());

  disk.Fail(GetParam());
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(submit().ok()) << "nothing can be kept";
  EXPECT_EQ(cluster.Get(*acknowledged.begin()).state(), v1::QUEUED) << "reading goes on";
  EXPECT_TRUE(cluster.coordinator().Alive());

  disk.Heal();
  const auto begin = steady_clock::now();
  EXPECT_TRUE(Eventually([&] { return submit().ok(); }, seconds(10))) << cluster.LogTails();
  const std::chrono::duration<double> took = steady_clock::now() - begin;
  RecordProperty("recovery_seconds", std::to_string(took.count()));

  // What it said survives its death, which the failed writes must not have spoilt.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(submit().ok());
  cluster.coordinator().Kill();
  cluster.StartCoordinator();
  grpc::ClientContext context;
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  v1::ListJobsResponse response;
  ASSERT_TRUE(cluster.api().ListJobs(&context, request, &response).ok());
  std::set<std::string> stored;
  for (const v1::Job& job : response.jobs()) stored.insert(job.id());
  int lost = 0;
  for (const std::string& id : acknowledged) lost += stored.contains(id) ? 0 : 1;
  EXPECT_EQ(lost, 0);
  RecordProperty("lost", lost);
}

class ChaosOfTheDiskUnderAJob : public Chaos, public ::testing::WithParamInterface<const char*> {};

TEST_P(ChaosOfTheDiskUnderAJob, DelaysWhatIsSaidOfItWithoutLosingAny) {
  const SickDisk disk;
  // Slow enough to be still at it when the disk is well again.
  Cluster cluster({.coordinator = disk.environment(),
                   .ranks = {{"WEFT_FAILPOINTS", "trainer.before_step=sleep:200"}}});
  v1::JobSpec spec = cluster.TinyJob("sick-disk", kSteps);
  spec.mutable_checkpoint()->set_keep_last(100);
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, 6);
  const std::vector<pid_t> ranks = cluster.RankPids(id);

  // More than a lease, and two checkpoints and more.
  disk.Fail(GetParam());
  const auto sick = steady_clock::now();
  const v1::Job during = cluster.AwaitStep(id, 21);
  EXPECT_EQ(during.state(), v1::RUNNING) << "its progress can be read";
  EXPECT_TRUE(Eventually([&] { return SecondsSince(sick) > 3; }, seconds(3)));
  for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(id)) {
    EXPECT_LT(checkpoint.step(), 15) << "nothing is listed that is not kept";
  }
  v1::PauseJobRequest pause;
  pause.set_id(id);
  grpc::ClientContext context;
  v1::Job job;
  EXPECT_FALSE(cluster.api().PauseJob(&context, pause, &job).ok()) << "it cannot be kept";
  EXPECT_TRUE(cluster.coordinator().Alive());

  disk.Heal();
  const auto healed = steady_clock::now();
  EXPECT_TRUE(Eventually(
      [&] {
        const auto listed = cluster.Checkpoints(id);
        return !listed.empty() && listed.front().step() >= 20;
      },
      seconds(10)))
      << cluster.LogTails();
  RecordProperty("recovery_seconds", std::to_string(SecondsSince(healed)));
  EXPECT_EQ(cluster.RankPids(id), ranks) << "nobody lost a lease";
  job = ExpectUnharmed(cluster, id);
  EXPECT_EQ(job.attempts_size(), 1);
  std::set<int64_t> saved;
  for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(id)) {
    EXPECT_TRUE(checkpoint.verified()) << checkpoint.step();
    saved.insert(checkpoint.step());
  }
  EXPECT_EQ(saved, (std::set<int64_t>{5, 10, 15, 20, 25, 30, 35, 40}));
  const std::vector<v1::LogLine> lines = cluster.Logs(id);
  std::set<int64_t> sequences;
  std::string text;
  for (const v1::LogLine& line : lines) {
    sequences.insert(line.sequence());
    if (line.rank() == 0) text += line.text() + "\n";
  }
  EXPECT_EQ(sequences.size(), lines.size()) << "no line twice";
  EXPECT_EQ(*sequences.rbegin(), static_cast<int64_t>(lines.size())) << "no gap";
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::string said =
        "step " + std::to_string(step) + "/" + std::to_string(kSteps) + " loss";
    EXPECT_NE(text.find(said), std::string::npos) << said << " is missing in the log";
  }
  // What it said survives its death.
  cluster.coordinator().Kill();
  cluster.StartCoordinator();
  EXPECT_EQ(cluster.Get(id).state(), v1::SUCCEEDED);
  EXPECT_EQ(cluster.Logs(id).size(), lines.size());
}

constexpr const char* kFaults[] = {"write ENOSPC", "write EIO", "sync EIO"};

std::string NameOfFault(const ::testing::TestParamInfo<const char*>& fault) {
  std::string name = fault.param;
  name[name.find(' ')] = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Faults, ChaosOfTheDisk, ::testing::ValuesIn(kFaults), NameOfFault);
INSTANTIATE_TEST_SUITE_P(Faults, ChaosOfTheDiskUnderAJob, ::testing::ValuesIn(kFaults),
                         NameOfFault);

}  // namespace
}  // namespace weft::testing
