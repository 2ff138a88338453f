// Whole attempts with train.deterministic mesh, as the planner plans them: one training that goes
// on from mesh to mesh, and what the planner makes of it.
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"

namespace weft::testing {
namespace {

/// A mesh that a part of the training runs on.
using Mesh = std::function<void(ResourceSpec&)>;

Mesh Ranks(int64_t ranks, int64_t zero_stage = 0, int64_t pipeline = 1) {
  return [=](ResourceSpec& resources) {
    resources.ranks = ranks;
    resources.zero_stage = zero_stage;
    resources.pipeline_parallel = pipeline;
  };
}

class DeterministicMeshAttempt : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_mesh_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  static JobSpec Job(const std::string& family) {
    JobSpec job = JobOf(Combination(Axes().size(), 0));
    job.model.family = family;
    job.model.untied_classifier = true;
    job.train.deterministic = "mesh";
    job.resources.micro_batch = 0;
    return job;
  }

  /// Losses of the training on these meshes one after the other, two steps on each, and the rest on
  /// the last one.
  std::vector<double> Losses(JobSpec job, const std::vector<Mesh>& meshes) {
    const std::string folder = root_ + "/" + std::to_string(++folders_);
    std::vector<double> losses;
    for (size_t i = 0; i < meshes.size(); ++i) {
      meshes[i](job.resources);
      const bool last = i + 1 == meshes.size();
      const auto training =
          Train(job, folder, last ? job.train.steps : 2 * static_cast<int64_t>(i + 1));
      EXPECT_TRUE(training.ok()) << training.status().message();
      if (!training.ok()) return {};
      losses.insert(losses.end(), training->losses.begin(), training->losses.end());
    }
    return losses;
  }

  std::string root_;
  int folders_ = 0;
};

TEST_F(DeterministicMeshAttempt, ATrainingGoesOnOnOtherMeshesBitForBit) {
  for (const std::string family : {"gpt2", "llama"}) {
    const JobSpec job = Job(family);
    const std::vector<double> undisturbed = Losses(job, {Ranks(1)});
    ASSERT_EQ(std::ssize(undisturbed), job.train.steps);
    EXPECT_EQ(Losses(job, {Ranks(2), Ranks(4), Ranks(8, 1), Ranks(1)}), undisturbed) << family;
    EXPECT_EQ(Losses(job, {Ranks(2, 3), Ranks(4, 2), Ranks(2, 0, 2), Ranks(4, 1, 2)}), undisturbed)
        << family;
  }
}

TEST_F(DeterministicMeshAttempt, ThePlannerTakesTheLogicalMicroBatch) {
  JobSpec job = Job("gpt2");
  job.train.logical_micro_batch = 2;
  job.resources.ranks = 2;
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->micro_batch, 2);
  EXPECT_EQ(plan->accumulation_steps, 2);
  // With an open number of ranks the planner finds those that share the tree.
  job.resources.ranks = 0;
  job.train.global_batch = 24;
  job.train.logical_micro_batch = 3;
  const auto found = PlanOf(job);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->micro_batch, 3);
  EXPECT_EQ(8 % found->mesh.data, 0);
}

}  // namespace
}  // namespace weft::testing
