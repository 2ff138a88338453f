// Running jobs get more ranks when workers come, and lose nothing by it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 45;
constexpr int64_t kSavedBy = 3;  // A GrowingJob has a checkpoint once this step is done.

/// A program for workers to start ranks with: their steps take long, so that a job is worth a
/// restart, unless the ranks were started after Hurry().
class SlowTrainer {
 public:
  SlowTrainer() {
    std::ofstream(path_) << "#!/bin/sh\n[ -e " << path_ << ".hurry ] || "
                         << "export WEFT_FAILPOINTS=trainer.before_step=sleep:1500\n"
                         << "exec " << WEFT_BINARY_DIR "/weft-trainer \"$@\"\n";
    EXPECT_EQ(chmod(path_.c_str(), 0755), 0);
  }
  ~SlowTrainer() {
    unlink(path_.c_str());
    unlink((path_ + ".hurry").c_str());
  }
  SlowTrainer(const SlowTrainer&) = delete;
  SlowTrainer& operator=(const SlowTrainer&) = delete;

  void Hurry() const { std::ofstream(path_ + ".hurry") << "\n"; }
  Environment environment() const { return {{"WEFT_WORKER_TRAINER", path_}}; }

 private:
  std::string path_ = ::testing::TempDir() + "slow_trainer";
};

/// A job that has something to go on from soon after its start.
v1::JobSpec GrowingJob(const Cluster& cluster, const std::string& name) {
  v1::JobSpec spec = cluster.OpenJob(name, kSteps);
  spec.mutable_checkpoint()->set_every_steps(2);
  return spec;
}

const Environment kScaleUpSoon{{"WEFT_COORDINATOR_SCALE_UP_AFTER_SECONDS", "1"}};

void AwaitAttempt(Cluster& cluster, const std::string& id, int attempt) {
  EXPECT_TRUE(Eventually([&] { return cluster.Get(id).attempts_size() >= attempt; }, seconds(60)))
      << "attempt " << attempt << cluster.LogTails();
}

/// Steps that ranks have done, those done again too.
double StepsDone(const Cluster& cluster, const std::string& id) {
  double sum = 0;
  for (int worker : {0, 1}) {
    sum += MetricValue(cluster.WorkerMetrics(worker), "weft_train_steps_total{run=\"" + id + "\"}")
               .value_or(0);
  }
  return sum;
}

/// The same sequences in the same steps, whoever computes them: as one rank alone does it.
void ExpectUndisturbedCurve(Cluster& cluster, const std::string& id, const v1::JobSpec& spec) {
  v1::JobSpec alone = spec;
  alone.set_name(spec.name() + "-alone");
  alone.mutable_resources()->set_ranks(1);
  const std::string reference = cluster.Submit(alone);
  cluster.Await(reference, v1::SUCCEEDED);
  const std::vector<double> losses = cluster.Losses(id), expected = cluster.Losses(reference);
  ASSERT_EQ(losses.size(), static_cast<size_t>(spec.train().steps()));
  ASSERT_EQ(expected.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-4) << "step " << i + 1;
  }
}

TEST(ScaleUp, AJobTakesAWorkerThatComes) {
  const SlowTrainer trainer;
  Cluster cluster({.coordinator = kScaleUpSoon, .ranks = trainer.environment()});
  cluster.worker(1).Signal(SIGTERM);
  ASSERT_TRUE(cluster.worker(1).WaitForEnd(seconds(20)));
  const v1::JobSpec spec = GrowingJob(cluster, "grows");
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, kSavedBy);
  trainer.Hurry();
  cluster.StartWorker(1);
  AwaitAttempt(cluster, id, 2);
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 2);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "REPLANNED");
  EXPECT_THAT(job.attempts(0).message(),
              AllOf(HasSubstr("2 to 4 ranks: "), HasSubstr(" times as fast by the plan")));
  EXPECT_EQ(job.attempts(1).plan().rank_workers_size(), 4);
  EXPECT_EQ(v1::Reason_Name(job.attempts(1).reason()), "COMPLETED");
  EXPECT_EQ(StepsDone(cluster, id), kSteps) << "none is done twice";
  EXPECT_EQ(MetricValue(cluster.CoordinatorMetrics(), "weft_coord_jobs_replanned_total"), 1);
  ExpectUndisturbedCurve(cluster, id, spec);
  cluster.ExpectSameDecisions({"starts", "resizes"});
}

TEST(ScaleUp, AJobThatShrankGrowsWhenItsWorkerIsBack) {
  const SlowTrainer trainer;
  Cluster cluster({.coordinator = kScaleUpSoon, .ranks = trainer.environment()});
  const v1::JobSpec spec = GrowingJob(cluster, "shrinks-and-grows");
  const std::string id = cluster.Submit(spec);
  cluster.AwaitStep(id, kSavedBy);
  cluster.worker(1).Kill();
  AwaitAttempt(cluster, id, 2);
  cluster.AwaitStep(id, 1);
  trainer.Hurry();
  cluster.StartWorker(1);
  AwaitAttempt(cluster, id, 3);
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
  ASSERT_EQ(job.attempts_size(), 3);
  EXPECT_EQ(v1::Reason_Name(job.attempts(0).reason()), "WORKER_LOST");
  EXPECT_EQ(v1::Reason_Name(job.attempts(1).reason()), "REPLANNED");
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 4);
  EXPECT_EQ(job.attempts(1).plan().rank_workers_size(), 2);
  EXPECT_EQ(job.attempts(2).plan().rank_workers_size(), 4);
  ExpectUndisturbedCurve(cluster, id, spec);
}

TEST(ScaleUp, ACoordinatorKilledInTheMidstLetsTheJobGoOnOnce) {
  // The first message to a worker is the start of the job, the second the stop for its growth.
  for (const char* point :
       {"coordinator.dispatch.before_send", "coordinator.dispatch.after_send"}) {
    SCOPED_TRACE(point);
    const SlowTrainer trainer;
    Environment dies = kScaleUpSoon;
    dies["WEFT_FAILPOINTS"] = std::string(point) + "=crash@2";
    Cluster cluster({.lease_seconds = 20, .coordinator = dies, .ranks = trainer.environment()});
    cluster.worker(1).Signal(SIGTERM);
    ASSERT_TRUE(cluster.worker(1).WaitForEnd(seconds(20)));
    const v1::JobSpec spec = GrowingJob(cluster, "grows-once");
    const std::string id = cluster.Submit(spec);
    cluster.AwaitStep(id, kSavedBy);
    trainer.Hurry();
    cluster.StartWorker(1);
    ASSERT_TRUE(cluster.coordinator().WaitForEnd(seconds(60))) << "did not crash";
    cluster.StartCoordinator(kScaleUpSoon);
    const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(120));
    // Where one worker is back before the other, the job goes on there, and grows again.
    ASSERT_GE(job.attempts_size(), 2);
    ASSERT_LE(job.attempts_size(), 3);
    for (int i = 0; i + 1 < job.attempts_size(); ++i) {
      EXPECT_EQ(v1::Reason_Name(job.attempts(i).reason()), "REPLANNED");
      EXPECT_GE(job.attempts(i + 1).plan().rank_workers_size(), 2) << "either plan";
    }
    EXPECT_EQ(StepsDone(cluster, id), kSteps) << "none is done twice";
    EXPECT_EQ(cluster.Losses(id).size(), static_cast<size_t>(kSteps));
  }
}

}  // namespace
}  // namespace weft::testing
