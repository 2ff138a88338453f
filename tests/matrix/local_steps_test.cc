// Whole attempts of ranks that make local steps, as the planner plans them: what they exchange, and
// together with offloaded state.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/memory_inputs.h"
#include "common/model/rank_traffic.h"
#include "coordinator/planner/planner.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"

namespace weft::testing {
namespace {

class LocalStepsAttempt : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_local_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  static JobSpec LocalJob(int64_t ranks) {
    JobSpec job = JobOf(Combination(Axes().size(), 0));
    job.resources.ranks = ranks;
    job.train.local_steps = 3;
    return job;
  }
  Training Run(const JobSpec& job, const std::string& name, int64_t last_step = 10) {
    const auto training = Train(job, root_ + "/" + name, last_step);
    EXPECT_TRUE(training.ok()) << name << ": " << training.status().message();
    return training.ok() ? *training : Training();
  }

  std::string root_;
};

TEST_F(LocalStepsAttempt, ThoseThatStreamTheirParametersHaveTheSameBits) {
  JobSpec job = LocalJob(2);
  const std::vector<double> plain = Run(job, "plain").losses;
  ASSERT_EQ(plain.size(), 10u);
  EXPECT_LT(plain.back(), plain.front() + 0.5);
  job.resources.offload_optimizer = "host";
  EXPECT_EQ(Run(job, "optimizer").losses, plain);
  job.resources.offload_parameters = "host";
  job.resources.offload_activations = "host";
  const Training streamed = Run(job, "streamed");
  EXPECT_EQ(streamed.losses, plain);
  for (const trainer::ProgressMessage& rank : streamed.ranks) {
    EXPECT_GT(rank.tiers.host_bytes, rank.tiers.device_bytes) << "state is on the host";
  }
  job.resources.offload_optimizer = "nvme";
  job.resources.offload_directory = root_;
  EXPECT_EQ(Run(job, "nvme").losses, plain);
}

TEST_F(LocalStepsAttempt, WorkersWhoseDeviceCannotHoldTheModelTrainAllOfIt) {
  // Each has the whole model, whose blocks pass through a device that is smaller than the
  // parameters alone (ATOM, Wu et al. 2024, arXiv 2403.10504); a step needs no other worker.
  JobSpec job = LocalJob(2);
  job.model.layers = 16;
  job.model.width = 128;
  const std::vector<double> plain = Run(job, "plain").losses;
  const int64_t parameters = 4 * ShapeOf(job).stored;
  job.resources.recompute = "block";
  job.resources.offload_optimizer = job.resources.offload_parameters = "host";
  job.resources.offload_activations = "host";
  job.resources.device_memory_bytes = parameters;
  const Training streamed = Run(job, "streamed");
  EXPECT_EQ(streamed.losses, plain);
  for (const trainer::ProgressMessage& rank : streamed.ranks) {
    EXPECT_LT(rank.tiers.device_bytes, parameters);
  }
}

TEST_F(LocalStepsAttempt, AStopWaitsForTheOuterStepAndTheNextAttemptHasTheSameBits) {
  const JobSpec job = LocalJob(2);
  const std::vector<double> undisturbed = Run(job, "undisturbed").losses;
  std::vector<double> losses = Run(job, "stopped", 5).losses;
  EXPECT_EQ(losses.size(), 6u);
  for (const double loss : Run(job, "stopped").losses) losses.push_back(loss);
  EXPECT_EQ(losses, undisturbed);
}

TEST_F(LocalStepsAttempt, WorkersOfSeveralRanksFollowThoseOfOneAndGoOnWithTheSameBits) {
  const std::vector<double> plain = Run(LocalJob(2), "plain").losses;
  for (const std::string within : {"tensor", "pipeline", "tensor that offloads", "context",
                                   "context that offloads", "context and pipeline"}) {
    SCOPED_TRACE(within);
    const bool of_four = within.find(" and ") != std::string::npos;
    JobSpec job = LocalJob(of_four ? 8 : 4);
    const auto share = [&](const char* what, int64_t& ranks) {
      if (within.find(what) != std::string::npos) ranks = 2;
    };
    share("tensor", job.resources.tensor_parallel);
    share("pipeline", job.resources.pipeline_parallel);
    share("context", job.resources.context_parallel);
    if (within.ends_with("offloads")) job.resources.offload_optimizer = "host";
    const std::vector<double> undisturbed = Run(job, within).losses;
    ASSERT_EQ(undisturbed.size(), plain.size());
    for (size_t step = 0; step < plain.size(); ++step) {
      EXPECT_NEAR(undisturbed[step], plain[step], 1e-5) << step;
    }
    std::vector<double> losses = Run(job, within + " stopped", 5).losses;
    for (const double loss : Run(job, within + " stopped").losses) losses.push_back(loss);
    EXPECT_EQ(losses, undisturbed);
  }
}

TEST_F(LocalStepsAttempt, WorkersInFp8GoOnWithTheSameBits) {
  for (const int64_t stages : {1, 2}) {
    SCOPED_TRACE(stages);
    JobSpec job = LocalJob(2 * stages);
    job.train.precision = "fp8";
    job.train.fp8.history = 2;
    job.resources.pipeline_parallel = stages;
    const std::string name = std::to_string(stages) + " stages";
    const std::vector<double> undisturbed = Run(job, name).losses;
    EXPECT_EQ(undisturbed.size(), 10u);
    std::vector<double> losses = Run(job, name + " stopped", 5).losses;
    for (const double loss : Run(job, name + " stopped").losses) losses.push_back(loss);
    EXPECT_EQ(losses, undisturbed);
  }
}

TEST_F(LocalStepsAttempt, OneOuterStepMovesWhatTheFormulasSayAndLocalOnesNothing) {
  for (const auto& [ranks, context] : {std::pair<int64_t, int64_t>{2, 1}, {4, 1}, {4, 2}}) {
    JobSpec job = LocalJob(ranks);
    job.resources.context_parallel = context;
    const auto plan = PlanOf(job);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const MemoryInputs inputs = MemoryInputsOf(job, *plan, {});
    const auto traffic = static_cast<double>(TrafficOfStep(inputs).all_reduced);
    // The tenth step is a round of its own; the eighth has no outer step.
    const Training training =
        Run(job, "ranks" + std::to_string(ranks) + "by" + std::to_string(context));
    for (const trainer::ProgressMessage& rank : training.ranks) {
      double between = 0, within = 0;
      for (const CollectiveUse& use : rank.collectives) {
        if (use.collective != "all-reduce") continue;
        (use.axis == "context" ? within : between) += use.bytes;
      }
      const double part = traffic / static_cast<double>(context);
      EXPECT_NEAR(between, part, 0.01 * part);
      EXPECT_NEAR(within, context > 1 ? traffic : 0, 0.01 * traffic) << "of the step";
    }
  }
}

TEST_F(LocalStepsAttempt, RoundsByTimeGoWithTechniquesThatFollowTheStep) {
  const auto timed = [] {
    JobSpec job = LocalJob(2);
    job.train.local_steps = 1;
    job.train.local_round_seconds = 0.01;
    job.train.steps = 60;
    return job;
  };
  const auto check = [&](const std::string& name, const JobSpec& job) {
    SCOPED_TRACE(name);
    std::vector<double> losses = Run(job, name, 15).losses;
    EXPECT_FALSE(losses.empty());
    const Training resumed = Run(job, name, job.train.steps);
    losses.insert(losses.end(), resumed.losses.begin(), resumed.losses.end());
    EXPECT_LT(losses.back(), losses.front() + 0.1);
    for (const trainer::ProgressMessage& rank : resumed.ranks) {
      EXPECT_EQ(rank.step, job.train.steps);
      const int64_t step = job.train.global_batch * SequenceLength(job);
      EXPECT_GE(rank.tokens, job.train.steps * step);
      EXPECT_LT(rank.tokens, (job.train.steps + 1) * step);
    }
  };
  check("plain", timed());
  for (const char* precision : {"bf16", "fp16", "fp8"}) {
    JobSpec job = timed();
    job.train.precision = precision;
    check(precision, job);
  }
  JobSpec job = timed();
  job.resources.offload_optimizer = "host";
  job.resources.offload_parameters = "host";
  check("offload", job);
  job = timed();
  job.train.sampled_layers = 3 * job.model.layers;
  check("layer sampling", job);
  job = timed();
  job.model.peft.method = "lora";
  check("lora", job);
}

/// Machines of this many cores each.
ClusterProfile Machines(int64_t count, int64_t cores) {
  WorkerProfile worker;
  worker.isa = "avx2";
  worker.cores = cores;
  worker.memory_bytes = worker.memory_limit_bytes = int64_t{8} << 30;
  worker.copy_bytes_per_second = 1e10;
  worker.gemm = {{"fp32", 64, 64, 64, 1, 1e10}};
  ClusterProfile cluster;
  for (int64_t i = 0; i < count; ++i) {
    worker.worker_id = std::string("machine ") + static_cast<char>('a' + i);
    cluster.workers.push_back(worker);
  }
  return cluster;
}

TEST_F(LocalStepsAttempt, ThePlannerExpectsOfWorkersThatShareSequencesWhatOneAloneTakes) {
  const auto waits = [](const JobSpec& job, int64_t machines) {
    const auto report = planner::PlanJob(job, Machines(machines, 2));
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report->candidates.front().plan.prediction.time.exposed_communication_seconds;
  };
  JobSpec job = LocalJob(4);
  job.resources.context_parallel = 2;
  JobSpec alone = job;
  alone.resources.ranks = 2;
  alone.train.local_steps = 1;
  alone.train.global_batch /= 2;
  const double within = waits(alone, 1);
  EXPECT_GT(within, 0);
  const auto between = [&](int64_t local_steps) {
    job.train.local_steps = local_steps;
    return waits(job, 2) - within;
  };
  const double two = between(2);
  EXPECT_GT(two, 0);
  EXPECT_NEAR(between(20), two / 10, 1e-6 * two);
}

TEST_F(LocalStepsAttempt, ThePlannerExpectsLessCommunicationTheLongerTheRounds) {
  const ClusterProfile cluster = Machines(2, 1);
  const auto predicted = [&](int64_t local_steps) {
    JobSpec job = LocalJob(2);
    job.train.local_steps = local_steps;
    const auto report = planner::PlanJob(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report->candidates.front().plan.prediction;
  };
  const Prediction sum = predicted(1), two = predicted(2), twenty = predicted(20);
  EXPECT_NEAR(two.time.exposed_communication_seconds,
              10 * twenty.time.exposed_communication_seconds,
              1e-6 * two.time.exposed_communication_seconds);
  EXPECT_LT(twenty.time.exposed_communication_seconds, sum.time.exposed_communication_seconds);
  EXPECT_GT(two.time.optimizer_seconds, twenty.time.optimizer_seconds);
  EXPECT_EQ(two.memory_per_rank.optimizer_bytes, 2 * sum.memory_per_rank.optimizer_bytes);
}

TEST_F(LocalStepsAttempt, ThePlannerDividesTheOuterStepByTheTimeOfARound) {
  const auto waits = [](JobSpec job, double seconds, const ClusterProfile& cluster) {
    job.train.local_steps = 1;
    job.train.local_round_seconds = seconds;
    const auto report = planner::PlanJob(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report->candidates.front().plan.prediction;
  };
  const ClusterProfile alike = Machines(2, 1);
  const JobSpec job = LocalJob(2);
  const Prediction ten = waits(job, 10, alike), hundred = waits(job, 100, alike);
  EXPECT_GT(ten.time.exposed_communication_seconds, 0);
  EXPECT_NEAR(ten.time.exposed_communication_seconds,
              10 * hundred.time.exposed_communication_seconds,
              1e-3 * ten.time.exposed_communication_seconds);
  EXPECT_EQ(ten.memory_per_rank.optimizer_bytes, hundred.memory_per_rank.optimizer_bytes);

  // With one slow machine the rates add up.
  ClusterProfile slow = Machines(2, 1), unequal = alike;
  for (WorkerProfile& worker : slow.workers) {
    worker.copy_bytes_per_second /= 4;
    worker.gemm.front().flops_per_second /= 4;
  }
  unequal.workers.back() = slow.workers.back();
  const auto rate = [&](const ClusterProfile& cluster) {
    return waits(job, 1000, cluster).tokens_per_second;
  };
  EXPECT_LT(rate(slow), 0.5 * rate(alike));
  EXPECT_NEAR(rate(unequal), (rate(slow) + rate(alike)) / 2, 1e-3 * rate(alike));
}

}  // namespace
}  // namespace weft::testing
