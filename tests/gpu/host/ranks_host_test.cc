// Ranks that train together on a device each, over an NCCL of threads: against the same ranks on
// CPUs over Gloo, and against one rank that trains on the whole batch.

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/fake_nccl.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/run_attempt.h"

namespace weft::engine {
namespace {

constexpr int kRanks = 2;

// The host execution is slow under a sanitizer, which learns little from more steps.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kManySteps = 2;
#else
constexpr int64_t kManySteps = 10;
#endif

class RanksOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    host_cuda::SetDeviceCount(kRanks);
    host_cuda::DeferWork(true);
  }
};

using State = std::vector<std::vector<float>>;

struct Outcome {
  std::vector<StepReport> reports;
  State state;
  EvaluationReport evaluation;
  CollectiveTotals reductions;
};

// What rank 0 comes to; all ranks must come to the same, bit for bit.
Outcome Train(const JobSpec& job, Plan plan, BatchSource& data, DeviceType type, int ranks,
              int64_t steps) {
  plan.mesh.data = ranks;
  plan.micro_batch = 1;
  plan.accumulation_steps = job.train.global_batch / ranks;
  HashStore store;
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Device where{type, type == DeviceType::kCuda ? rank : 0};
      CollectiveOptions options;
      options.rank = rank;
      options.size = ranks;
      options.device = where;
      std::unique_ptr<Collective> group;
      if (ranks > 1) {
        auto connected = ConnectCollective(options, store);
        WEFT_CHECK(connected.ok(), connected.status().message());
        group = *std::move(connected);
      }
      DeviceRun run(job, plan, data, where, group.get());
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      for (int64_t step = 0; step < steps; ++step) outcome.reports.push_back(run.Step());
      auto evaluation = run.trainer->Evaluate();
      WEFT_CHECK(evaluation.ok(), evaluation.status().message());
      outcome.evaluation = *evaluation;
      outcome.state = run.State();
      if (group != nullptr) {
        WEFT_CHECK(group->Barrier().ok(), "barrier");
        outcome.reductions = group->account().totals(CollectiveKind::kAllReduce);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.state, outcomes[0].state);
    EXPECT_EQ(each.evaluation.loss, outcomes[0].evaluation.loss);
    for (size_t step = 0; step < each.reports.size(); ++step) {
      EXPECT_EQ(each.reports[step].loss, outcomes[0].reports[step].loss) << step;
      if (each.reports[step].overflow) continue;  // Then the norm is no number.
      EXPECT_EQ(each.reports[step].gradient_norm, outcomes[0].reports[step].gradient_norm) << step;
    }
  }
  return std::move(outcomes[0]);
}

// |a - b| / |b| over all tensors of a state.
double Distance(const State& a, const State& b) {
  double difference = 0, norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].size(); ++k) {
      difference += std::pow(double{a[i][k]} - b[i][k], 2);
      norm += std::pow(double{b[i][k]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

void ExpectClose(const Outcome& got, const Outcome& want, double tolerance) {
  ASSERT_EQ(got.reports.size(), want.reports.size());
  for (size_t step = 0; step < want.reports.size(); ++step) {
    const StepReport &a = got.reports[step], &b = want.reports[step];
    ASSERT_NEAR(a.loss / b.loss, 1, tolerance) << step;
    ASSERT_EQ(a.targets, b.targets);
    ASSERT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.skipped, b.skipped) << step;
    ASSERT_EQ(a.overflow, b.overflow) << step;
    ASSERT_EQ(a.loss_scale, b.loss_scale) << step;
    if (!b.skipped) {
      ASSERT_NEAR(a.gradient_norm / b.gradient_norm, 1, 10 * tolerance) << step;
    }
  }
  EXPECT_LT(Distance(got.state, want.state), 30 * tolerance);
  EXPECT_NEAR(got.evaluation.loss / want.evaluation.loss, 1, tolerance);
  EXPECT_EQ(got.evaluation.targets, want.evaluation.targets);
}

// Ranks on devices, ranks on CPUs, one rank on a device.
Outcome Compare(const JobSpec& job, const Plan& plan, BatchSource& data, int64_t steps,
                double tolerance) {
  const Outcome ranks = Train(job, plan, data, DeviceType::kCuda, kRanks, steps);
  EXPECT_EQ(OpenFakeComms(), 0);
  {
    SCOPED_TRACE("against ranks on CPUs");
    ExpectClose(ranks, Train(job, plan, data, DeviceType::kCpu, kRanks, steps), tolerance);
  }
  {
    SCOPED_TRACE("against one rank");
    ExpectClose(ranks, Train(job, plan, data, DeviceType::kCuda, 1, steps), tolerance);
  }
  return ranks;
}

JobSpec Job() {
  JobSpec job = TinyJob(4);
  job.model.layers = 1;
  job.train.eval_sequences = 3;
  job.train.log_every_steps = 2;
  return job;
}

Plan SmallBuckets(const std::string& precision) {
  Plan plan = TinyPlan(precision);
  plan.bucket_bytes = 16 << 10;
  return plan;
}

TEST_F(RanksOnCuda, TrainAsRanksOnCpusAndAsOneRank) {
  RandomTokens data(50, 16);
  JobSpec job = Job();
  job.model.dropout = 0.1;
  job.train.gradient_clip_norm = 0.5;
  const Outcome fp32 = Compare(job, SmallBuckets("fp32"), data, kManySteps, 1e-4);
  EXPECT_GT(fp32.reductions.calls, 2 * kManySteps) << "more than one bucket a step";
  EXPECT_GT(fp32.reports[0].gradient_norm, job.train.gradient_clip_norm);
  Compare(job, SmallBuckets("bf16"), data, kManySteps, 1e-2);
}

/// In the first steps only the second half of the batch, that of rank 1, has targets.
class LateTargets : public BatchSource {
 public:
  static constexpr int64_t kLate = 3;
  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, tokens_.Get(step, first, count));
    if (step < kLate && first < 2) {
      for (int32_t& target : batch.targets) target = kernels::kIgnoreTarget;
      batch.target_count = 0;
    }
    return batch;
  }

 private:
  RandomTokens tokens_{50, 16};
};

TEST_F(RanksOnCuda, AnOverflowOnOneRankLowersTheLossScaleOfAll) {
  LateTargets data;
  JobSpec job = Job();
  job.train.loss_scaling.initial = 0x1p24;
  const Outcome fp16 = Compare(job, SmallBuckets("fp16"), data, 6, 3e-3);
  EXPECT_TRUE(fp16.reports[0].overflow) << "of rank 1 alone: the gradients of rank 0 are 0";
  EXPECT_FALSE(fp16.reports.back().overflow);
}

TEST_F(RanksOnCuda, TheScalesOfFp8AreThoseOfTheLargestMagnitudesOfAllRanks) {
  RandomTokens data(50, 16);
  JobSpec job = Job();
  job.train.global_batch = 2;
  Compare(job, SmallBuckets("fp8"), data, 3, 1e-2);
}

TEST_F(RanksOnCuda, AStepThatARankLeavesEndsForAllOfThem) {
  RandomTokens data(50, 16);
  HashStore store;
  Plan plan = SmallBuckets("fp32");
  plan.mesh.data = kRanks;
  plan.micro_batch = 2;
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
      DeviceRun run(Job(), plan, data, where, group->get());
      run.Step();
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
      EXPECT_EQ(lost.status().code(), StatusCode::kUnavailable) << lost.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
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

class AttemptsOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    host_cuda::SetDeviceCount(2);
    host_cuda::DeferWork(true);
    std::string pattern = ::testing::TempDir() + "weft_ranks_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// Two ranks; `change` sees the spec of each before it starts. What they come to, by rank.
  std::vector<Status> Train(const std::string& run, int64_t steps,
                            const std::function<void(AttemptSpec&)>& change = {}) {
    ++epoch_;
    engine::HashStore store;
    std::vector<Status> ends(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        AttemptSpec spec;
        spec.job_id = run;
        spec.epoch = epoch_;
        spec.rank = rank;
        spec.world_size = 2;
        spec.host = "127.0.0.1";
        spec.device_index = rank;
        spec.run_dir = root_ + "/" + run;
        spec.job = engine::TinyJob(2);
        spec.job.model.layers = 1;
        spec.job.data.train = {"made up"};
        spec.job.train.precision = "fp32";
        spec.job.train.steps = steps;
        spec.job.train.eval_every_steps = 0;
        spec.job.train.gradient_noise_scale = true;  // state that is not on the device
        spec.job.schedule.kind = "constant";
        spec.plan = engine::TinyPlan("fp32", 1);
        spec.plan.mesh.data = 2;
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
  std::string FinalState(const std::string& run, int64_t steps) {
    return *ReadFile(Env::Posix(), engine::CheckpointPath(root_ + "/" + run, steps) +
                                       "/state-00000-of-00001.safetensors");
  }

  std::string root_;
  int64_t epoch_ = 0;
};

TEST_F(AttemptsOnCuda, TwoRanksGoOnFromACheckpointAsIfTheyHadNeverStopped) {
  for (const Status& end : Train("whole", 4)) ASSERT_TRUE(end.ok()) << end.message();
  for (int64_t steps : {2, 4}) {
    for (const Status& end : Train("parts", steps)) ASSERT_TRUE(end.ok()) << end.message();
  }
  EXPECT_EQ(FinalState("parts", 4), FinalState("whole", 4));
}

TEST_F(AttemptsOnCuda, RanksThatShareAGpuOrHaveNoneAreRefused) {
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
