// Several adapters that one job trains, against a job for each.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/testing.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/techniques/peft/joint_adapters_cost.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

/// Random tokens of one adapter. Of each sequence another share of the positions has a target.
class PartlyPredicted : public BatchSource {
 public:
  PartlyPredicted(const ModelSpec& model, int64_t adapter)
      : tokens_(model.vocab_size, model.context, static_cast<uint64_t>(20 + adapter)),
        skipped_(adapter) {}

  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, tokens_.Get(step, first, count));
    for (int64_t row = 0; row < std::ssize(batch.targets); ++row) {
      const int64_t sequence = first + row / batch.length;
      if (row % batch.length >= skipped_ * (1 + (step + sequence) % 3)) continue;
      batch.targets[static_cast<size_t>(row)] = kernels::kIgnoreTarget;
      --batch.target_count;
    }
    return batch;
  }

 private:
  RandomTokens tokens_;
  int64_t skipped_;
};

std::unique_ptr<BatchSource> SourcesOf(const JobSpec& job) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  for (int64_t k = 0; k < std::ssize(job.model.peft.adapters); ++k) {
    sources.push_back(std::make_unique<PartlyPredicted>(job.model, k));
  }
  return std::make_unique<JointBatches>(std::move(sources), JointBatches::AtEnd::kNone);
}

std::vector<AdapterSpec> Adapters(const std::vector<std::string>& names) {
  std::vector<AdapterSpec> adapters(names.size());
  for (size_t k = 0; k < names.size(); ++k) adapters[k].name = names[k];
  return adapters;
}

constexpr int64_t kAdapters = 3;

/// Four sequences of each of three adapters.
JobSpec Job(const std::string& family = "gpt2") {
  JobSpec job = TinyJob(4 * kAdapters);
  job.resources.device = "cpu";
  job.data.train = {"text"};
  job.model.family = family;
  PeftSpec& peft = job.model.peft;
  peft.method = "lora";
  peft.rank = 4;
  peft.alpha = 8;
  peft.target_modules = {"all-linear"};
  peft.adapters = Adapters({"a", "bee", "c-3"});
  peft.adapters[0].learning_rate = 2e-2;
  peft.adapters[2].learning_rate = 5e-3;
  job.optimizer.learning_rate = 1e-2;
  job.optimizer.weight_decay = 0.1;
  // The step of a gradient that is only rounding would be as large as that of any other.
  job.optimizer.epsilon = 1e-3;
  job.schedule.kind = "cosine";
  job.train.steps = 20;
  job.train.eval_sequences = 4 * kAdapters;
  job.train.gradient_clip_norm = 0.2;
  return job;
}

double MetricOf(const std::map<std::string, double>& metrics, std::string_view metric,
                const std::string& adapter) {
  const auto found = metrics.find(std::string(metric) + "/" + adapter);
  EXPECT_NE(found, metrics.end()) << metric << " of " << adapter;
  return found == metrics.end() ? NAN : found->second;
}

/// Trains the job, and by itself each of those that it trains together: losses, norms and weights
/// are the same. Returns how many steps of adapters were clipped.
int64_t ExpectThoseOfJobsOfTheirOwn(const JobSpec& job, const std::string& precision,
                                    double tolerance) {
  int64_t clipped = 0;
  const auto source = SourcesOf(job);
  TinyTraining joint(job, TinyPlan(precision, 2 * kAdapters, 2), *source);
  std::vector<StepReport> reports;
  for (int64_t i = 0; i < job.train.steps; ++i) reports.push_back(joint.Step());
  const auto evaluation = joint.trainer->Evaluate();
  EXPECT_TRUE(evaluation.ok());
  const std::vector<JobSpec> jobs = JointJobs(job);
  EXPECT_EQ(std::ssize(jobs), kAdapters);
  for (int64_t k = 0; k < kAdapters; ++k) {
    const JobSpec& own = jobs[static_cast<size_t>(k)];
    SCOPED_TRACE(own.name);
    PartlyPredicted tokens(job.model, k);
    TinyTraining single(own, TinyPlan(precision, 2, 2), tokens);
    for (const StepReport& report : reports) {
      const StepReport truth = single.Step();
      const double loss = MetricOf(report.technique_metrics, kAdapterLossMetric, own.name);
      EXPECT_NEAR(loss, truth.loss, tolerance * truth.loss) << report.step;
      const double norm = MetricOf(report.technique_metrics, kAdapterGradientNormMetric, own.name);
      EXPECT_NEAR(norm, truth.gradient_norm, 100 * tolerance * truth.gradient_norm) << report.step;
      if (norm > job.train.gradient_clip_norm) ++clipped;
    }
    const auto own_evaluation = single.trainer->Evaluate();
    EXPECT_TRUE(own_evaluation.ok());
    EXPECT_NEAR(MetricOf(evaluation->technique_metrics, kAdapterValidationLossMetric, own.name),
                own_evaluation->loss, tolerance * own_evaluation->loss);
    const ParameterSet& all = joint.model->parameters();
    int64_t compared = 0;
    for (int64_t i = 0; i < all.size(); ++i) {
      if (all[i].adapter == AdapterSide::kNone || all[i].row_part != k) continue;
      const auto index = single.model->parameters().Find(OwnTensorName(all[i].name, own.name));
      EXPECT_TRUE(index.ok()) << all[i].name;
      if (!index.ok()) continue;
      ++compared;
      EXPECT_LT(
          Distance(ValuesOf(all.value(i)), ValuesOf(single.model->parameters().value(*index))),
          200 * tolerance)
          << all[i].name;
    }
    EXPECT_GT(compared, 0);
  }
  return clipped;
}

TEST(JointAdaptersTest, EachIsTrainedAsByAJobOfItsOwn) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    const JobSpec job = Job(family);
    const int64_t clipped = ExpectThoseOfJobsOfTheirOwn(job, "fp32", 1e-6);
    EXPECT_GT(clipped, 0);
    EXPECT_LT(clipped, kAdapters * job.train.steps) << "some steps are not clipped";
  }
}

TEST(JointAdaptersTest, AlsoOnAQuantizedNetwork) {
  JobSpec job = Job("llama");
  job.model.weight_quantization.type = "nf4";
  ExpectThoseOfJobsOfTheirOwn(job, "fp32", 1e-6);
}

TEST(JointAdaptersTest, AlsoInHalfPrecision) {
  for (const char* precision : {"bf16", "bf16_pure", "fp16"}) {
    SCOPED_TRACE(precision);
    JobSpec job = Job("llama");
    job.train.steps = 5;
    ExpectThoseOfJobsOfTheirOwn(job, precision, 5e-4);
  }
}

TEST(JointAdaptersTest, AlsoWithOtherOptimizersRatesAndStarts) {
  JobSpec job = Job();
  job.model.peft.loraplus_lr_ratio = 4;
  job.model.peft.use_rslora = true;
  job.model.peft.init = "gaussian";
  job.model.peft.rank_pattern = {{"c_attn", 2}};
  job.schedule.reference_batch = 8;
  job.schedule.batch_scaling = "sqrt";
  job.train.steps = 5;
  for (const char* name : {"sgd", "lamb", "muon"}) {
    SCOPED_TRACE(name);
    job.optimizer.name = name;
    ExpectThoseOfJobsOfTheirOwn(job, "fp32", 1e-6);
  }
}

/// Ranks follow `whole` with losses and norms of each adapter, too.
void ExpectEachFollows(const std::vector<MeshOutcome>& ranks, const MeshOutcome& whole) {
  ExpectFollows(ranks, whole, 2e-5, 1e-4);
  for (size_t step = 0; step < whole.reports.size(); ++step) {
    const auto& truth = whole.reports[step].technique_metrics;
    ASSERT_EQ(truth.size(), 2 * kAdapters);
    for (const MeshOutcome& rank : ranks) {
      const auto& metrics = rank.reports[step].technique_metrics;
      ASSERT_EQ(metrics.size(), truth.size());
      for (const auto& [name, value] : truth) {
        EXPECT_NEAR(metrics.at(name), value, 1e-4 * value) << name;
      }
    }
  }
  ASSERT_EQ(whole.evaluation_metrics.size(), kAdapters);
  for (const MeshOutcome& rank : ranks) {
    ASSERT_EQ(rank.evaluation_metrics.size(), kAdapters);
    for (const auto& [name, value] : whole.evaluation_metrics) {
      EXPECT_NEAR(rank.evaluation_metrics.at(name), value, 1e-4 * value) << name;
    }
  }
}

TEST(JointAdaptersTest, RanksFollowOne) {
  const std::vector<Parallelism> meshes = {
      {.data = 2},
      {.data = 2, .zero_stage = 1},
      {.data = 2, .zero_stage = 2},
      {.data = 4, .zero_stage = 1, .zero_shard_ranks = 2},
      {.tensor = 2},
      {.data = 2, .zero_stage = 1, .tensor = 2, .sequence_parallel = true},
      {.data = 2, .zero_stage = 3},
      {.block_memory_policy = std::vector<std::string>(4, "recompute")},
      {.pipeline = 2},
      {.pipeline = 2, .pipeline_schedule = "zero_bubble"},
      {.data = 2,
       .zero_stage = 1,
       .pipeline = 2,
       .pipeline_schedule = "interleaved",
       .pipeline_chunks = 2},
      {.tensor = 2, .sequence_parallel = true, .pipeline = 2, .pipeline_schedule = "gpipe"},
      {.context = 2},
      {.data = 2, .zero_stage = 1, .zero_shard_ranks = 2, .context = 2},
      {.zero_stage = 3, .context = 2},
      {.zero_stage = 1, .pipeline = 2, .context = 2},
  };
  for (const char* family : {"gpt2", "llama"}) {
    MeshCase c{Job(family), TinyPlan("fp32", kAdapters, 4)};
    c.job.train.steps = 3;
    c.job.train.log_every_steps = 2;
    c.job.train.gradient_clip_norm = 0.02;
    c.job.model.layers = 4;
    // Data-parallel ranks have two and three passes of an evaluation.
    c.job.train.eval_sequences = 5 * kAdapters;
    c.tokens = [job = c.job] { return SourcesOf(job); };
    c.plan.bucket_bytes = 4000;
    const MeshOutcome whole = TrainOnMesh(c).front();
    for (const Parallelism& mesh : meshes) {
      SCOPED_TRACE(std::string(family) + " " + mesh.Description());
      ExpectEachFollows(TrainOnMesh(c.On(mesh)), whole);
    }
  }
}

// They have the adapters alike, and shards of them.
TEST(JointAdaptersTest, ExpertParallelRanksFollowOne) {
  const std::vector<Parallelism> meshes = {
      {.expert = 2},
      {.zero_stage = 1, .expert = 2},
      {.data = 2, .zero_stage = 2, .zero_shard_ranks = 2, .expert = 2},
  };
  MeshCase c{Job("llama"), TinyPlan("fp32", kAdapters, 4)};
  c.job.train.steps = 4;
  c.job.train.gradient_clip_norm = 0.02;
  c.job.model.experts = 4;
  c.job.model.peft.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  // Ranks have two and three passes of an evaluation, and each takes part in those of the other.
  c.job.train.eval_sequences = 5 * kAdapters;
  c.tokens = [job = c.job] { return SourcesOf(job); };
  c.plan.bucket_bytes = 4000;
  const MeshOutcome whole = TrainOnMesh(c).front();
  for (const Parallelism& mesh : meshes) {
    SCOPED_TRACE(mesh.Description());
    ExpectEachFollows(TrainOnMesh(c.On(mesh)), whole);
  }
}

TEST(JointAdaptersTest, AResumedRunGoesOnBitForBit) {
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    SCOPED_TRACE(precision);
    JobSpec job = Job();
    job.model.peft.dropout = 0.1;
    const auto source = SourcesOf(job);
    Plan plan = TinyPlan(precision, kAdapters, 4);
    TinyTraining whole(job, plan, *source);
    for (int i = 0; i < 3; ++i) whole.Step();
    // Recomputation computes the same again.
    plan.block_memory_policy = {"recompute", "recompute"};
    TinyTraining resumed(job, plan, *source);
    ASSERT_TRUE(resumed.model->parameters().Initialize(99).ok());
    const std::vector<NamedTensor> from = whole.trainer->StateTensors();
    const std::vector<NamedTensor> to = resumed.trainer->StateTensors();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].name, to[i].name);
      std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
    }
    ASSERT_TRUE(resumed.trainer->Restored(whole.trainer->counters()).ok());
    for (int i = 0; i < 3; ++i) {
      const StepReport own = resumed.Step(), truth = whole.Step();
      ASSERT_EQ(own.loss, truth.loss);
      EXPECT_EQ(own.technique_metrics, truth.technique_metrics);
    }
    EXPECT_EQ(resumed.Parameters(), whole.Parameters());
  }
}

TEST(JointAdaptersTest, AStepWithoutTargetsOfAnAdapterTeachesItNothing) {
  JobSpec job = Job();
  job.optimizer.name = "sgd";
  job.optimizer.momentum = 0;
  job.optimizer.weight_decay = 0;
  std::vector<std::unique_ptr<BatchSource>> sources;
  for (int64_t k = 0; k < kAdapters; ++k) {
    // Each position of the second one is skipped.
    sources.push_back(std::make_unique<PartlyPredicted>(job.model, k == 1 ? 100 : k));
  }
  JointBatches tokens(std::move(sources), JointBatches::AtEnd::kNone);
  TinyTraining run(job, TinyPlan("fp32", 4 * kAdapters), tokens);
  const std::vector<std::vector<float>> before = ValuesOf(run.model->parameters());
  const StepReport report = run.Step();
  EXPECT_FALSE(report.skipped);
  EXPECT_FALSE(report.technique_metrics.contains("adapter_loss_nats/bee"));
  EXPECT_TRUE(report.technique_metrics.contains("adapter_loss_nats/c-3"));
  const ParameterSet& parameters = run.model->parameters();
  const std::vector<std::vector<float>> after = ValuesOf(parameters);
  for (int64_t i = 0; i < parameters.size(); ++i) {
    // A has no gradient yet, B being zero.
    const bool learns =
        parameters[i].adapter == AdapterSide::kOutput && parameters[i].row_part != 1;
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(after[at] != before[at], learns) << parameters[i].name;
  }
}

TEST(JointAdaptersTest, TheWorkIsThatOfOneAdapter) {
  for (const char* family : {"gpt2", "llama"}) {
    const JobSpec job = Job(family);
    const ModelShape joint(job.model), own(JointJobs(job).front().model);
    EXPECT_EQ(TrainingFlopsPerToken(joint, 16), TrainingFlopsPerToken(own, 16));
    EXPECT_EQ(joint.trained, kAdapters * own.trained);
  }
}

TEST(JointAdaptersTest, ParametersAreThoseThatAreCounted) {
  for (const char* family : {"gpt2", "llama"}) {
    const ModelSpec spec = Job(family).model;
    const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    const std::vector<ParameterInfo> counted = ParametersOf(spec);
    ASSERT_EQ(parameters.size(), std::ssize(counted));
    int64_t of_last = 0;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const ParameterInfo& info = counted[static_cast<size_t>(i)];
      EXPECT_EQ(parameters[i].name, info.name);
      EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameters[i]) == info) << info.name;
      if (info.name.ends_with(".lora_B.c-3.weight")) ++of_last;
    }
    EXPECT_EQ(of_last, family == std::string("gpt2") ? 8 : 14);
  }
}

TEST(JointAdaptersTest, NamesWhatDoesNotFit) {
  const auto refusal = [](void (*change)(JobSpec & job)) {
    return ErrorAfter([&](JobSpec& job) {
      job.train.global_batch = 12;
      job.model.peft.method = "lora";
      job.model.peft.adapters = Adapters({"a", "b", "c"});
      change(job);
    });
  };
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.adapters.resize(1); }),
              HasSubstr("has one adapter; hint: leave it out"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.adapters[1].name = "a"; }),
              HasSubstr("has the name 'a' twice"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.adapters[1].name = "B.2"; }),
              HasSubstr("has the name 'B.2'; hint: lower-case letters, digits and dashes"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.method = "loha"; }),
              HasSubstr("model.peft.adapters does not go with model.peft.method loha"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.use_dora = true; }),
              HasSubstr("model.peft.adapters does not go with model.peft.use_dora"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.init = "pissa"; }),
              HasSubstr("model.peft.adapters does not go with model.peft.init pissa"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.modules_to_save = {"ln_f"}; }),
              HasSubstr("the network that all adapters share stays as it is"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.model.peft.target_modules = {"wte", "c_fc"};
              }),
              HasSubstr("does not go with model.peft.target_modules with transformer.wte"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.global_batch = 16; }),
              HasSubstr("train.global_batch 16 has not as many sequences of each of 3 adapters "
                        "(model.peft.adapters); hint: 18"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.ranks = 3; }),
              HasSubstr("on each of 3 data-parallel ranks; hint: 18"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.resources.ranks = 12;
                job.resources.pipeline_parallel = job.resources.context_parallel = 2;
              }),
              HasSubstr("on each of 3 data-parallel ranks; hint: 18"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.resources.micro_batch = 2; }),
              HasSubstr("resources.micro_batch 2 has not as many sequences of each of 3 adapters"));
  EXPECT_THAT(refusal([](JobSpec& job) {
                job.optimizer.learning_rate = 0;
                job.model.peft.adapters[0].learning_rate = 1e-3;
              }),
              HasSubstr("optimizer.learning_rate is 0"));
}

}  // namespace
}  // namespace weft::engine
