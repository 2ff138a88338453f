// A job tries plans in training, goes on by the fastest, and loses nothing by it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 800;

/// A program for workers to start ranks with: steps of the first one started take 0.2 s longer, of
/// the second 0.4 s, of others nothing.
class UnevenTrainer {
 public:
  UnevenTrainer() {
    std::ofstream(path_) << "#!/bin/sh\necho >> " << path_ << ".starts\n"
                         << "case $(wc -l < " << path_ << ".starts) in\n"
                         << "1) export WEFT_FAILPOINTS=trainer.before_step=sleep:200 ;;\n"
                         << "2) export WEFT_FAILPOINTS=trainer.before_step=sleep:400 ;;\n"
                         << "esac\nexec " << WEFT_BINARY_DIR "/weft-trainer \"$@\"\n";
    EXPECT_EQ(chmod(path_.c_str(), 0755), 0);
  }
  ~UnevenTrainer() {
    unlink(path_.c_str());
    unlink((path_ + ".starts").c_str());
  }
  UnevenTrainer(const UnevenTrainer&) = delete;
  UnevenTrainer& operator=(const UnevenTrainer&) = delete;

  Environment environment() const { return {{"WEFT_WORKER_TRAINER", path_}}; }

 private:
  std::string path_ = ::testing::TempDir() + "uneven_trainer";
};

TEST(Trials, TheFasterOfTwoPlansGoesOnAndNoStepIsDoneTwice) {
  const UnevenTrainer trainer;
  Cluster cluster({.ranks = trainer.environment()});
  v1::JobSpec spec = cluster.OpenJob("tries", kSteps);
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_width(32);
  spec.mutable_train()->set_global_batch(8);
  spec.mutable_checkpoint()->set_every_steps(100);
  spec.mutable_resources()->set_ranks(1);
  spec.mutable_resources()->set_micro_batch(0);
  spec.mutable_resources()->set_try_plans(2);
  const std::string id = cluster.Submit(spec);
  const v1::Job job = cluster.Await(id, v1::SUCCEEDED, seconds(240));
  ASSERT_EQ(job.attempts_size(), 3);
  for (int i : {0, 1}) EXPECT_EQ(v1::Reason_Name(job.attempts(i).reason()), "REPLANNED");
  EXPECT_THAT(job.attempts(0).message(), HasSubstr("plan 2 of 2 to try: 1 rank x "));
  EXPECT_THAT(job.attempts(1).message(),
              AllOf(HasSubstr("1 rank x "), HasSubstr(" times as fast by what was measured")));
  const v1::Plan &first = job.attempts(0).plan(), &tried = job.attempts(1).plan();
  EXPECT_TRUE(tried.threads_per_rank() != first.threads_per_rank() ||
              tried.micro_batch() != first.micro_batch());
  EXPECT_EQ(job.attempts(2).plan().threads_per_rank(), first.threads_per_rank());
  EXPECT_EQ(job.attempts(2).plan().micro_batch(), first.micro_batch());
  double steps = 0;
  for (int worker : {0, 1}) {
    steps +=
        MetricValue(cluster.WorkerMetrics(worker), "weft_train_steps_total{run=\"" + id + "\"}")
            .value_or(0);
  }
  EXPECT_EQ(steps, kSteps);
  const std::vector<double> losses = cluster.Losses(id);
  spec.set_name("untried");
  spec.mutable_resources()->set_try_plans(1);
  const std::string reference = cluster.Submit(spec);
  cluster.Await(reference, v1::SUCCEEDED);
  const std::vector<double> expected = cluster.Losses(reference);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-3) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace weft::testing
