// Ranks that train together on a device each, over NCCL, as threads of one process: against the
// same ranks on CPUs over Gloo, and against one rank that trains on the whole batch.

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

// The host execution is slow under a sanitizer, which learns little from more steps.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kManySteps = 2;
#else
constexpr int64_t kManySteps = 10;
#endif

class RanksOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::cuda::DeviceCount() < 2) GTEST_SKIP() << "ranks need a CUDA device each";
  }
};

using State = std::vector<std::vector<float>>;

struct Outcome {
  std::vector<StepReport> reports;
  State state;
  EvaluationReport evaluation;
  CollectiveTotals collectives;
  int64_t graph_steps = 0;
};

constexpr int kAllRanks = 1 << 20;

// What rank 0 comes to; all ranks must come to the same, bit for bit. Where they share the updates,
// the state is that of all of them. The first `with_graphs` ranks may launch steps as graphs.
// `last_makes`: the model of the last rank, where it has one of its own.
Outcome Train(const JobSpec& job, Plan plan, BatchSource& data, DeviceType type, int ranks,
              int64_t steps, int with_graphs = kAllRanks,
              const decltype(DeviceRunOptions::make)& last_makes = {}) {
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
      DeviceRunOptions made = {.group = group.get(), .graphs = rank < with_graphs};
      if (rank + 1 == ranks) made.make = last_makes;
      DeviceRun run(job, plan, data, where, made);
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      for (int64_t step = 0; step < steps; ++step) outcome.reports.push_back(run.Step());
      auto evaluation = run.trainer->Evaluate();
      WEFT_CHECK(evaluation.ok(), evaluation.status().message());
      outcome.evaluation = *evaluation;
      outcome.state = run.State();
      if (group != nullptr) {
        WEFT_CHECK(group->Barrier().ok(), "barrier");
        for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                CollectiveKind::kAllGather}) {
          outcome.collectives += group->account().totals(kind);
        }
      }
      outcome.graph_steps = run.trainer->graph_steps();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& each : outcomes) {
    if (plan.zero_stage == 0) {
      EXPECT_EQ(each.state, outcomes[0].state);
    }
    EXPECT_EQ(each.evaluation.loss, outcomes[0].evaluation.loss);
    EXPECT_EQ(each.graph_steps, outcomes[0].graph_steps);
    for (size_t step = 0; step < each.reports.size(); ++step) {
      EXPECT_EQ(each.reports[step].loss, outcomes[0].reports[step].loss) << step;
      if (each.reports[step].overflow) continue;  // Then the norm is no number.
      EXPECT_EQ(each.reports[step].gradient_norm, outcomes[0].reports[step].gradient_norm) << step;
    }
  }
  for (int rank = 1; rank < ranks && plan.zero_stage > 0; ++rank) {
    for (auto& tensor : outcomes[static_cast<size_t>(rank)].state) {
      outcomes[0].state.push_back(std::move(tensor));
    }
  }
  return std::move(outcomes[0]);
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
  const int count = kernels::cuda::DeviceCount();
  const Outcome ranks = Train(job, plan, data, DeviceType::kCuda, count, steps);
  {
    SCOPED_TRACE("against ranks on CPUs");
    ExpectClose(ranks, Train(job, plan, data, DeviceType::kCpu, count, steps), tolerance);
  }
  {
    SCOPED_TRACE("against one rank");
    ExpectClose(ranks, Train(job, plan, data, DeviceType::kCuda, 1, steps), tolerance);
  }
  return ranks;
}

JobSpec Job(int64_t sequences_per_rank = 2) {
  JobSpec job = TinyJob(sequences_per_rank * kernels::cuda::DeviceCount());
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
  EXPECT_GT(fp32.collectives.calls, 2 * kManySteps) << "more than one bucket a step";
  EXPECT_GT(fp32.reports[0].gradient_norm, job.train.gradient_clip_norm);
  Compare(job, SmallBuckets("bf16"), data, kManySteps, 1e-2);
}

// As graphs, operation by operation, and where one rank has no graphs: the same bits and accounts.
TEST_F(RanksOnCuda, StepsAsGraphsComeToTheSameBits) {
  RandomTokens data(50, 16);
  JobSpec job = Job();
  job.model.dropout = 0.1;
  job.train.gradient_clip_norm = 0.5;
  job.train.gradient_noise_scale = true;
  const int count = kernels::cuda::DeviceCount();
  constexpr int64_t kSteps = 6;
  for (const int64_t zero_stage : {0, 1}) {
    SCOPED_TRACE(zero_stage);
    Plan plan = SmallBuckets("bf16");
    plan.zero_stage = zero_stage;
    job.train.gradient_noise_scale = zero_stage == 0;
    const auto train = [&](int with_graphs) {
      return Train(job, plan, data, DeviceType::kCuda, count, kSteps, with_graphs);
    };
    const Outcome graphs = train(kAllRanks), eager = train(0), mixed = train(1);
    // Batches lie in one of two places, and every second step measures norms by group.
    EXPECT_EQ(graphs.graph_steps, kSteps - 2);
    EXPECT_EQ(eager.graph_steps + mixed.graph_steps, 0);
    for (const Outcome* other : {&graphs, &mixed}) {
      for (size_t step = 0; step < kSteps; ++step) {
        const StepReport &got = other->reports[step], &want = eager.reports[step];
        EXPECT_EQ(got.loss, want.loss) << step;
        EXPECT_EQ(got.gradient_norm, want.gradient_norm) << step;
        EXPECT_EQ(got.technique_metrics, want.technique_metrics) << step;
      }
      EXPECT_EQ(other->state, eager.state);
      EXPECT_EQ(other->evaluation.loss, eager.evaluation.loss);
      EXPECT_EQ(other->collectives.calls, eager.collectives.calls);
      EXPECT_EQ(other->collectives.bytes, eager.collectives.bytes);
    }
    EXPECT_GT(graphs.collectives.seconds, 0);
  }
}

// Ranks gather the blocks, and all of them have the masks.
TEST_F(RanksOnCuda, GatheredSparseWeightsTrainAsOnCpus) {
  RandomTokens data(50, 16);
  JobSpec job = Job(1);
  job.train.sparsity = {.method = "masked_decay", .decay = 1e-2, .mask_interval = 2};
  const auto compare = [&](const std::string& precision, int64_t steps, double tolerance) {
    SCOPED_TRACE(precision);
    Plan plan = SmallBuckets(precision);
    plan.zero_stage = 3;
    ExpectClose(Train(job, plan, data, DeviceType::kCuda, 2, steps),
                Train(job, plan, data, DeviceType::kCpu, 2, steps), tolerance);
  };
  compare("fp32", 3, 1e-4);
  // Roundings that differ would choose other masks, and draw other rows.
  job.train.sparsity.mask_interval = 100;
  job.train.sparsity.gradient_estimate = "exact";
  compare("bf16", 2, 1e-2);
}

/// The sequences from `first` on are two documents each in two of every four steps.
class UnevenDocuments : public BatchSource {
 public:
  explicit UnevenDocuments(int64_t first) : first_(first) {}
  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, tokens_.Get(step, first, count));
    if (first < first_ || step % 4 < 2) return batch;
    const int64_t half = batch.length / 2;
    batch.sequence_starts.clear();
    for (int64_t document = 0; document <= 2 * batch.sequences; ++document) {
      batch.sequence_starts.push_back(static_cast<int32_t>(document * half));
    }
    for (int32_t& position : batch.positions) position %= static_cast<int32_t>(half);
    return batch;
  }

 private:
  int64_t first_;
  RandomTokens tokens_{50, 16};
};

// What a rank has recorded is not launched with what another has recorded in another step.
TEST_F(RanksOnCuda, RanksWhoseStepsDifferLaunchWhatTheyRecordedTogether) {
  const JobSpec job = Job();
  const int count = kernels::cuda::DeviceCount();
  UnevenDocuments data(job.train.global_batch - 2);
  constexpr int64_t kSteps = 10;
  const auto train = [&](int with_graphs) {
    return Train(job, SmallBuckets("fp32"), data, DeviceType::kCuda, count, kSteps, with_graphs);
  };
  const Outcome graphs = train(kAllRanks), eager = train(0);
  // Four steps are recorded: batches have two places, each with documents of two kinds.
  EXPECT_EQ(graphs.graph_steps, kSteps - 4);
  EXPECT_EQ(graphs.state, eager.state);
}

// A model that waits for the device.
class Waits : public Model {
 public:
  Waits(std::unique_ptr<Model> model, const ModelOptions& options)
      : Model(ModelSpec(), options), model_(std::move(model)) {}

  const ModelSpec& spec() const override { return model_->spec(); }
  const PrecisionRecipe& precision() const override { return model_->precision(); }
  ParameterSet& parameters() override { return model_->parameters(); }
  Status Pack(Context& context, Repack what) override { return model_->Pack(context, what); }
  Status Loss(Context& context, Tape& tape, const TokenBatch& batch,
              kernels::StepValue<float> gradient_scale, BatchLoss* total) const override {
    WEFT_RETURN_IF_ERROR(model_->Loss(context, tape, batch, gradient_scale, total));
    return context.stream.cuda->Synchronize();
  }
  Result<Tensor> Logits(Context& context, const TokenBatch& batch) const override {
    return model_->Logits(context, batch);
  }

 private:
  std::unique_ptr<Model> model_;
};

TEST_F(RanksOnCuda, ARankThatCannotRecordItsStepsEndsTheGraphsOfAll) {
  RandomTokens data(50, 16);
  const JobSpec job = Job();
  const Plan plan = SmallBuckets("fp32");
  const int count = kernels::cuda::DeviceCount();
  const auto waits = [&](Context& context) -> Result<std::unique_ptr<Model>> {
    const ModelOptions options = ModelOptionsOf(plan, job.train);
    WEFT_ASSIGN_OR_RETURN(auto model, NewModel(context, job.model, options));
    return std::unique_ptr<Model>(std::make_unique<Waits>(std::move(model), options));
  };
  constexpr int64_t kSteps = 5;
  const Outcome got = Train(job, plan, data, DeviceType::kCuda, count, kSteps, kAllRanks, waits);
  EXPECT_EQ(got.graph_steps, 0);
  EXPECT_EQ(got.state, Train(job, plan, data, DeviceType::kCuda, count, kSteps, 0).state);
}

/// In the first steps only the sequences from `first` on have targets.
class LateTargets : public BatchSource {
 public:
  explicit LateTargets(int64_t first) : first_(first) {}
  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, tokens_.Get(step, first, count));
    constexpr int64_t kLate = 3;
    if (step < kLate && first < first_) {
      for (int32_t& target : batch.targets) target = kernels::kIgnoreTarget;
      batch.target_count = 0;
    }
    return batch;
  }

 private:
  int64_t first_;
  RandomTokens tokens_{50, 16};
};

TEST_F(RanksOnCuda, AnOverflowOnOneRankLowersTheLossScaleOfAll) {
  JobSpec job = Job();
  LateTargets data(job.train.global_batch - 2);
  job.train.loss_scaling.initial = 0x1p24;
  const Outcome fp16 = Compare(job, SmallBuckets("fp16"), data, 6, 3e-3);
  EXPECT_TRUE(fp16.reports[0].overflow) << "of the last rank alone: the others have no gradients";
  EXPECT_FALSE(fp16.reports.back().overflow);
}

TEST_F(RanksOnCuda, TheScalesOfFp8AreThoseOfTheLargestMagnitudesOfAllRanks) {
  RandomTokens data(50, 16);
  const JobSpec job = Job(1);
  Compare(job, SmallBuckets("fp8"), data, 3, 1e-2);
}

}  // namespace
}  // namespace weft::engine
