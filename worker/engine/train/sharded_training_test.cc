// Ranks that shard updates against ranks that all make the whole update: the same bits.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/rank_traffic.h"
#include "common/spec/shard_ranks.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/parallel/sharded_data_parallel.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/saved_state.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kBucketBytes = 16384;  // several buckets, also of the tiny models

/// What training leaves and reports.
struct Outcome {
  SavedState state;
  std::vector<std::vector<float>> parameters;  ///< By rank; not of stage 3, where no rank has all.
  std::vector<StepReport> reports;             ///< Of rank 0.
  double evaluation = 0;
  CollectiveTotals reduced, scattered, gathered;  ///< Of rank 0, all within its group.
  CollectiveTotals across;                        ///< All-reduces between groups.
  int64_t gradients = 0;                          ///< Numbers in their buffer.
  int64_t optimizer_bytes = 0;                    ///< Of the rank with most.
};

using Start = std::function<void(Trainer&, Collective&)>;

/// How to train.
struct RunConfig {
  int ranks = 1;
  int64_t stage = 0;
  std::string precision = "fp32";
  int64_t accumulation = 1;
  bool recompute = false;  ///< Of three blocks two.
  bool evaluates = true;
  int64_t shard_ranks = 0;  ///< Of a group; 0: all.
  bool in_bf16 = false;     ///< Gradients are sent so.
};

Plan PlanOf(const JobSpec& job, const RunConfig& way) {
  Plan plan = TinyPlan(way.precision, job.train.global_batch / way.ranks / way.accumulation,
                       way.accumulation);
  plan.mesh.data = way.ranks;
  plan.zero_stage = way.stage;
  plan.zero_shard_ranks = way.shard_ranks;
  plan.bucket_bytes = kBucketBytes;
  plan.gradient_reduction = way.in_bf16 ? "bf16" : "fp32";
  if (way.recompute) plan.block_memory_policy = {"recompute", "recompute"};
  return plan;
}

/// `steps` steps, and an evaluation if there are any, after `start` on every rank.
Outcome Train(const JobSpec& job, const RunConfig& way, int steps, const Start& start = {}) {
  const int ranks = way.ranks;
  Outcome outcome;
  outcome.parameters.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  RunRanks(ranks, std::chrono::milliseconds(20000), [&](Collective& group) {
    // With few tokens, there is a gradient besides the noise.
    RandomTokens tokens(job.train.gradient_noise_scale ? 8 : job.model.vocab_size,
                        job.model.context);
    const Plan plan = PlanOf(job, way);
    ModelOptions options = ModelOptionsOf(plan, job.train);
    options.update_rank = group.rank() % ShardRanks(plan);
    TinyRun run(job.model, options);
    ParameterSet& parameters = run.model->parameters();
    std::unique_ptr<BucketReducer> reducer;
    Collective *shards = &group, *replicas = nullptr;
    if (way.stage == 0) {
      reducer = std::make_unique<DataParallel>(&group, &parameters, kBucketBytes);
    } else {
      auto made = ShardedDataParallel::New(run.context, &group, ShardRanks(plan), &parameters,
                                           kBucketBytes, options.precision->products);
      ASSERT_TRUE(made.ok()) << made.status().message();
      shards = &(*made)->shards();
      replicas = (*made)->replicas();
      reducer = *std::move(made);
    }
    if (way.in_bf16) reducer->ReduceInBFloat16(run.context);
    auto made = Trainer::New(job, plan,
                             {.context = &run.context,
                              .model = run.model.get(),
                              .train = &tokens,
                              .validation = &tokens,
                              .reducer = reducer.get(),
                              .rank = group.rank()});
    ASSERT_TRUE(made.ok()) << made.status().message();
    Trainer& trainer = **made;
    if (start) start(trainer, group);
    std::vector<StepReport> reports;
    for (int step = 0; step < steps; ++step) {
      auto report = trainer.Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      reports.push_back(*report);
    }
    Result<EvaluationReport> evaluation = EvaluationReport();
    if (steps > 0 && way.evaluates) evaluation = trainer.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
    std::lock_guard lock(mutex);
    outcome.state.Add(trainer.StateTensors());
    if (steps > 0) {
      outcome.optimizer_bytes =
          std::max(outcome.optimizer_bytes, reports.back().peak_memory.optimizer_bytes);
    }
    if (way.stage < 3) outcome.parameters[static_cast<size_t>(group.rank())] = run.Parameters();
    if (group.rank() > 0) return;
    outcome.reports = reports;
    outcome.evaluation = evaluation->loss;
    outcome.reduced = group.account().totals(CollectiveKind::kAllReduce);
    outcome.scattered = shards->account().totals(CollectiveKind::kReduceScatter);
    outcome.gathered = shards->account().totals(CollectiveKind::kAllGather);
    outcome.gathered += shards->account().totals(CollectiveKind::kExchange);
    if (replicas != nullptr) {
      outcome.across = replicas->account().totals(CollectiveKind::kAllReduce);
    }
    outcome.gradients = parameters.GradientCount();
  });
  return outcome;
}

void ExpectSame(const Outcome& shared, const Outcome& plain) {
  EXPECT_EQ(shared.state.tensors, plain.state.tensors);
  for (const std::vector<float>& values : shared.parameters) {
    if (values.empty()) continue;
    EXPECT_EQ(values, plain.parameters[0]);
  }
  // Sums of squares over shards are added in another order, in f64.
  const auto expect_near = [](double got, double expected) {
    EXPECT_NEAR(got, expected, 1e-12 * std::abs(expected));
  };
  EXPECT_EQ(shared.evaluation, plain.evaluation);
  ASSERT_EQ(shared.reports.size(), plain.reports.size());
  for (size_t i = 0; i < plain.reports.size(); ++i) {
    const StepReport &a = shared.reports[i], &b = plain.reports[i];
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.skipped, b.skipped);
    EXPECT_EQ(a.loss_scale, b.loss_scale);
    if (a.skipped) continue;
    expect_near(a.gradient_norm, b.gradient_norm);
    ASSERT_EQ(a.technique_metrics.size(), b.technique_metrics.size());
    for (const auto& [name, value] : b.technique_metrics) {
      EXPECT_NEAR(a.technique_metrics.at(name), value, 1e-6 * value) << name;
    }
    ASSERT_EQ(a.norms.size(), b.norms.size());
    for (size_t g = 0; g < a.norms.size(); ++g) {
      expect_near(a.norms[g].gradient, b.norms[g].gradient);
      expect_near(a.norms[g].parameter, b.norms[g].parameter);
    }
  }
}

/// Stage 3 rounds the f32 weights it gathers to bf16. A processor without products of bf16
/// multiplies those of a rank that has them all as they are.
bool RoundsWhatPlainRanksDoNot(int64_t stage, const std::string& precision) {
  const PrecisionRecipe& recipe = PrecisionOf(precision);
  return stage > 2 && recipe.products == DType::kBF16 && recipe.matrices == DType::kF32 &&
         WidensOperands(ProductsOf(recipe.products));
}

void ExpectLossesNear(const Outcome& shared, const Outcome& plain) {
  constexpr double kBf16 = 1.0 / 256;
  EXPECT_NEAR(shared.evaluation, plain.evaluation, kBf16 * plain.evaluation);
  ASSERT_EQ(shared.reports.size(), plain.reports.size());
  for (size_t i = 0; i < plain.reports.size(); ++i) {
    const double loss = plain.reports[i].loss;
    EXPECT_NEAR(shared.reports[i].loss, loss, kBf16 * loss);
  }
}

JobSpec LlamaJob() {
  JobSpec job = TinyJob(12);
  job.model.family = "llama";
  job.model.width = 24;  // parts are cut at odd places
  job.model.heads = 3;
  job.model.kv_heads = 1;
  job.model.vocab_size = 37;
  return job;
}

JobSpec SearchJob() {
  JobSpec job = LlamaJob();
  job.model.kv_heads = 3;
  job.model.structured_pruning.method = "early_bird";
  job.model.structured_pruning.head_density = 0.5;
  job.model.structured_pruning.interval = 2;
  return job;
}

struct Case {
  const char* name;
  JobSpec job;
  std::string precision;
  std::vector<int> ranks;
  std::vector<int64_t> stages;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({"gpt2, AdamW, clipped, averaged", TinyJob(12), "fp32", {2, 4}, {1, 2, 3}});
  cases.back().job.train.gradient_clip_norm = 0.5;
  cases.back().job.train.averaging.kind = "ema";
  cases.back().job.train.log_every_steps = 2;
  cases.push_back({"llama, Lion, partly frozen", LlamaJob(), "bf16", {3}, {2, 3}});
  cases.back().job.optimizer.name = "lion";
  cases.back().job.model.freeze = {"*.layers.0.self_attn.k_proj.*", "*norm*"};
  cases.push_back(
      {"llama, its own average, without masters", LlamaJob(), "bf16_pure", {4}, {1, 3}});
  cases.back().job.optimizer.name = "schedule_free_adamw";
  cases.back().job.schedule.kind = "constant";
  cases.push_back(
      {"llama, cut within fours, without masters", LlamaJob(), "bf16_pure", {4}, {1, 3}});
  cases.back().job.model.width = 18;
  cases.back().job.model.head_width = 8;
  cases.back().job.model.mlp_width = 21;  // the second of two stacked matrices begins at 21 x 18
  cases.push_back({"mixtral", LlamaJob(), "fp32", {2}, {1, 2, 3}});
  cases.back().job.model.experts = 4;
  cases.back().job.model.expert_capacity = 1;
  cases.push_back({"gpt2, SGD, loss scale, noise scale", TinyJob(12), "fp16", {2}, {2, 3}});
  cases.back().job.optimizer.name = "sgd";
  cases.back().job.train.averaging.kind = "lawa";
  cases.back().job.train.averaging.window = 3;
  cases.back().job.train.gradient_noise_scale = true;
  cases.back().job.train.loss_scaling.initial = 0x1p24;  // overflows at first
  cases.push_back({"gpt2, low-rank cores", TinyJob(12), "fp32", {2}, {1, 2}});
  cases.back().job.model.low_rank_core.rank = 4;
  cases.back().job.train.gradient_clip_norm = 0.5;
  cases.back().job.train.log_every_steps = 2;
  // One of the matrices that lie under each other is derived.
  cases.push_back({"llama, some weights of branches", LlamaJob(), "bf16_pure", {3}, {1, 2}});
  cases.back().job.model.over_parameterization = {
      "branches", {"*.q_proj.*", "*.up_proj.*"}, 1.0, 2};
  cases.push_back({"llama, some low-rank cores", LlamaJob(), "fp32", {3}, {1, 2}});
  cases.back().job.model.low_rank_core.rank = 4;
  cases.back().job.model.low_rank_core.layers = {"*.q_proj.*", "*.gate_proj.*"};
  cases.push_back({"gpt2, copies", TinyJob(12), "fp32", {3}, {1, 2}});
  cases.back().job.model.over_parameterization = {"majority_kernels", {}, 1.0, 2};
  cases.push_back({"llama, a search for heads and neurons", SearchJob(), "bf16", {2}, {1, 2}});
  return cases;
}

/// Past the overflows of a scale that is too large at first, or some masks of a search.
int StepsOf(const Case& c) {
  const bool searches = c.job.model.structured_pruning.method != "none";
  return c.precision == "fp16" || searches ? 10 : 5;
}

TEST(ShardedTraining, LeavesTheSameBitsAsWithoutSharing) {
  for (const Case& c : Cases()) {
    const int steps = StepsOf(c);
    for (const int ranks : c.ranks) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::to_string(ranks) + " ranks");
      const Outcome plain = Train(c.job, {ranks, 0, c.precision}, steps);
      for (const int64_t stage : c.stages) {
        SCOPED_TRACE("stage " + std::to_string(stage));
        const Outcome shared = Train(c.job, {ranks, stage, c.precision}, steps);
        if (RoundsWhatPlainRanksDoNot(stage, c.precision)) {
          ExpectLossesNear(shared, plain);
        } else {
          ExpectSame(shared, plain);
        }
        int64_t cut = 0;
        for (const auto& [name, parts] : shared.state.parts) cut += parts > 1;
        EXPECT_GT(cut, 0) << "no tensor was cut";
      }
    }
  }
}

// Blocks that several layers use, that are run twice, or that nothing differentiates; a projected
// embedding; ranks that evaluate unlike numbers of sequences.
TEST(ShardedTraining, BringsParametersToAllPartsOfANetwork) {
  JobSpec recomputed = TinyJob(8);
  recomputed.model.layers = 3;
  recomputed.train.eval_sequences = 5;
  JobSpec shared = LlamaJob();
  shared.model.width = 32;
  shared.model.heads = 4;
  shared.model.layers = 4;
  shared.model.distinct_blocks = 2;
  shared.model.embedding_width = 16;
  JobSpec frozen = recomputed;
  frozen.model.freeze = {"transformer.w*", "*.h.0.*", "*.h.1.attn.*"};
  struct {
    const JobSpec& job;
    const char* precision;
    bool recompute;
  } const cases[] = {{recomputed, "bf16", true},
                     {recomputed, "fp32", false},
                     {shared, "bf16_pure", false},
                     {shared, "fp32", true},
                     {frozen, "bf16", false}};
  for (const auto& [job, precision, recompute] : cases) {
    SCOPED_TRACE(job.model.family + " " + precision);
    const RunConfig plain = {2, 0, precision, 1, recompute};
    const RunConfig sharded = {2, 3, precision, 1, recompute};
    const Outcome got = Train(job, sharded, 2), expected = Train(job, plain, 2);
    if (RoundsWhatPlainRanksDoNot(sharded.stage, precision)) {
      ExpectLossesNear(got, expected);
    } else {
      ExpectSame(got, expected);
    }
  }
}

TEST(ShardedTraining, AccumulatesOverMicroBatches) {
  constexpr int kSteps = 5;
  JobSpec job = TinyJob(12);
  job.optimizer.name = "sgd";
  job.optimizer.learning_rate = 0.1;
  job.train.gradient_noise_scale = true;
  const Outcome plain = Train(job, {2, 0, "fp32", 3}, kSteps);
  ExpectSame(Train(job, {2, 1, "fp32", 3}, kSteps), plain);
  // Sums of ranks are added up here, there sums of micro-batches.
  const Outcome shared = Train(job, {2, 2, "fp32", 3}, kSteps);
  int estimates = 0;
  for (size_t i = 0; i < plain.parameters[0].size(); ++i) {
    ASSERT_NEAR(shared.parameters[1][i], plain.parameters[0][i], 1e-6) << i;
  }
  EXPECT_EQ(shared.parameters[0], shared.parameters[1]);
  // There is no estimate while noise hides the gradient.
  for (int step = 0; step < kSteps; ++step) {
    const auto &got = shared.reports[step].technique_metrics,
               &expected = plain.reports[step].technique_metrics;
    ASSERT_EQ(got.size(), expected.size()) << step;
    for (const auto& [name, value] : expected)
      EXPECT_NEAR(got.at(name), value, 1e-3 * value) << name;
    if (!expected.empty()) ++estimates;
  }
  EXPECT_GT(estimates, 0);
  ExpectSame(Train(job, {2, 3, "fp32", 3}, kSteps), shared);
  EXPECT_EQ(shared.scattered.bytes, 3 * kSteps * 4.0 * static_cast<double>(shared.gradients));
}

// Each rank's gradients are rounded, and their sums once more, in whatever parts they are sent.
TEST(ShardedTraining, GradientsAreSentInBFloat16) {
  constexpr int kSteps = 5;
  for (const int64_t experts : {0, 4}) {
    JobSpec job = LlamaJob();
    job.model.experts = experts;
    SCOPED_TRACE(experts);
    RunConfig way = {3, 0};
    const Outcome whole = Train(job, way, kSteps);
    way.in_bf16 = true;
    const Outcome plain = Train(job, way, kSteps);
    EXPECT_EQ(whole.reduced.bytes - plain.reduced.bytes,
              kSteps * 2.0 * static_cast<double>(whole.gradients));
    EXPECT_NE(plain.parameters, whole.parameters);
    for (int step = 0; step < kSteps; ++step) {
      const double loss = whole.reports[static_cast<size_t>(step)].loss;
      EXPECT_NEAR(plain.reports[static_cast<size_t>(step)].loss, loss, 1e-3 * loss);
    }
    for (const std::vector<float>& values : plain.parameters) {
      EXPECT_EQ(values, plain.parameters[0]) << "the same bits on all ranks";
    }
    for (const int64_t stage : {1, 2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      way.stage = stage;
      ExpectSame(Train(job, way, kSteps), plain);
    }
  }
}

// Sums of groups are added up there, here those of ranks, which shows in the last bits; everything
// else is as with one group.
TEST(ShardedTraining, GroupsThatShareAmongThemselvesFollowPlainRanks) {
  for (const Case& c : Cases()) {
    if (c.precision == "bf16_pure") continue;  // rounds what differs in the last bits
    SCOPED_TRACE(c.name);
    JobSpec job = c.job;
    const int steps = StepsOf(c);
    const bool overflows = c.precision == "fp16";
    const Outcome plain = Train(job, {4, 0, c.precision, 3}, steps);
    Outcome first;
    for (const int64_t stage : {1, 2, 3}) {
      if (stage > c.stages.back()) continue;
      SCOPED_TRACE("stage " + std::to_string(stage));
      RunConfig way{4, stage, c.precision, 3};
      way.shard_ranks = 2;
      const Outcome shared = Train(job, way, steps);
      if (RoundsWhatPlainRanksDoNot(stage, c.precision)) {
        ExpectLossesNear(shared, plain);
        continue;
      }
      for (size_t i = 0; i < plain.reports.size(); ++i) {
        const double loss = plain.reports[i].loss;
        EXPECT_NEAR(shared.reports[i].loss, loss, (c.precision == "fp32" ? 1e-6 : 1e-4) * loss);
        EXPECT_EQ(shared.reports[i].skipped, plain.reports[i].skipped);
        if (shared.reports[i].skipped) continue;
        EXPECT_NEAR(shared.reports[i].gradient_norm, plain.reports[i].gradient_norm,
                    1e-3 * plain.reports[i].gradient_norm);
        ASSERT_EQ(shared.reports[i].norms.size(), plain.reports[i].norms.size());
        for (size_t g = 0; g < plain.reports[i].norms.size(); ++g) {
          EXPECT_NEAR(shared.reports[i].norms[g].parameter, plain.reports[i].norms[g].parameter,
                      1e-5 * plain.reports[i].norms[g].parameter);
        }
      }
      EXPECT_EQ(overflows, plain.reports[0].skipped);
      for (const std::vector<float>& values : shared.parameters) {
        EXPECT_EQ(values, shared.parameters[0]) << "the same bits on all ranks";
      }
      for (const auto& [name, parts] : shared.state.parts) EXPECT_LE(parts, 2) << name;
      // Stage 3 differs from stage 2 in where values are, not in how sums are made.
      if (stage == 2) first = shared;
      if (stage == 3) ExpectSame(shared, first);
    }
  }
}

TEST(ShardedTraining, SendsAndHoldsWhatTheModelOfRanksSays) {
  constexpr int kSteps = 2;
  JobSpec job = TinyJob(8);
  job.model.layers = 3;
  job.model.width = 128;
  job.model.vocab_size = 2500;
  job.train.eval_sequences = 0;
  const auto expect_near = [](const char* what, double measured, int64_t expected) {
    if (expected == 0) {
      EXPECT_EQ(measured, 0) << what;
    } else {
      EXPECT_NEAR(measured / static_cast<double>(expected), 1.0, 0.01) << what;
    }
  };
  struct {
    const char* family;
    int ranks;
    const char* precision;
    int shard_ranks;
    int64_t experts;
    bool in_bf16;
    int64_t core_rank;
    std::vector<std::string> cores = {};
  } const cases[] = {
      {"gpt2", 2, "bf16", 0, 0, false, 0},  {"llama", 4, "fp32", 0, 0, false, 0},
      {"gpt2", 4, "fp32", 2, 0, false, 0},  {"llama", 2, "fp32", 0, 4, false, 0},
      {"gpt2", 2, "bf16", 0, 0, true, 0},   {"llama", 2, "fp32", 0, 0, true, 0},
      {"gpt2", 2, "fp32", 0, 0, false, 32}, {"llama", 4, "fp32", 2, 0, false, 32},
      {"gpt2", 2, "fp32", 0, 0, true, 32},  {"llama", 2, "fp32", 0, 0, false, 32, {"*.up_proj.*"}}};
  for (const auto& [family, ranks, precision, shard_ranks, experts, in_bf16, core_rank, cores] :
       cases) {
    job.model.family = family;
    job.model.untied_classifier = job.model.family == "llama";
    job.model.experts = experts;
    job.model.low_rank_core.rank = core_rank;
    job.model.low_rank_core.layers = cores;
    for (const int64_t stage : {0, 1, 2, 3}) {
      if (core_rank > 0 && stage > 2) continue;
      SCOPED_TRACE(job.model.family + ", " + std::to_string(experts) + " experts, stage " +
                   std::to_string(stage) + (in_bf16 ? ", reduced in bf16" : ""));
      constexpr int64_t kMicroBatches = 2;
      RunConfig way = {ranks, stage, precision, kMicroBatches};
      way.evaluates = false;
      way.shard_ranks = shard_ranks;
      way.in_bf16 = in_bf16;
      const Outcome shared = Train(job, way, kSteps);
      const MemoryInputs inputs =
          MemoryInputsOf(job, PlanOf(job, way), {ProductsOf(PrecisionOf(precision).products)});
      const RankTraffic traffic = TrafficOfStep(inputs);
      const auto sent = [&](const CollectiveTotals& totals, int64_t of) {
        const double part = static_cast<double>(of - 1) / static_cast<double>(of);
        return of > 1 ? totals.sent_bytes / kSteps / part : 0;
      };
      const int64_t group = inputs.ShardGroupSize();
      expect_near("all-reduce", sent(shared.reduced, ranks) / 2, traffic.all_reduced);
      expect_near("reduce-scatter", sent(shared.scattered, group), traffic.reduce_scattered);
      expect_near("all-gather", sent(shared.gathered, group), traffic.gathered);
      expect_near("all-reduce between groups", sent(shared.across, ranks / group) / 2,
                  traffic.between_groups);

      const MemoryBreakdown predicted = PredictMemory(inputs);
      const MemoryBreakdown measured = shared.reports.back().peak_memory;
      const auto held = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
        expect_near(what, static_cast<double>(measured.*bytes), predicted.*bytes);
      };
      held("parameters", &MemoryBreakdown::parameters_bytes);
      held("gradients", &MemoryBreakdown::gradients_bytes);
      expect_near("optimizer", static_cast<double>(shared.optimizer_bytes),
                  predicted.optimizer_bytes);
      held("activations", &MemoryBreakdown::activations_bytes);
      // Operands that are widened for a product are outside the allocator, which counts none.
      if (!WidensOperands(inputs.products)) {
        held("workspace", &MemoryBreakdown::workspace_bytes);
      }
      held("communication", &MemoryBreakdown::communication_bytes);
    }
  }
}

TEST(ShardedTraining, RanksGatherAllNumbersOfAParameter) {
  const JobSpec job = TinyJob();
  for (const int64_t stage : {1, 3}) {
    SCOPED_TRACE(stage);
    const RunConfig way = {.ranks = 4, .stage = stage, .shard_ranks = 2};
    RunRanks(way.ranks, std::chrono::milliseconds(20000), [&](Collective& group) {
      const Plan plan = PlanOf(job, way);
      ModelOptions options = ModelOptionsOf(plan, job.train);
      options.update_rank = group.rank() % ShardRanks(plan);
      TinyRun run(job.model, options);
      ParameterSet& parameters = run.model->parameters();
      auto made = ShardedDataParallel::New(run.context, &group, ShardRanks(plan), &parameters,
                                           kBucketBytes, DType::kF32);
      ASSERT_TRUE(made.ok()) << made.status().message();
      ShardedDataParallel& reducer = **made;
      for (const ParameterPart& part : reducer.parts()) {
        std::vector<float> own(static_cast<size_t>(part.count()));
        std::vector<float> all(static_cast<size_t>(parameters[part.index].shape.Elements()));
        std::iota(own.begin(), own.end(), static_cast<float>(part.first));
        std::iota(all.begin(), all.end(), 0.0f);
        const auto gathered = reducer.GatherParts(part.index, own);
        ASSERT_TRUE(gathered.ok()) << gathered.status().message();
        EXPECT_EQ(*gathered, all) << parameters[part.index].name;
      }
      const auto missing = reducer.GatherParts(reducer.parts().front().index, {});
      EXPECT_EQ(missing.status().code(), StatusCode::kInternal);
    });
  }
}

TEST(ShardedTraining, AnyNumberOfRanksReadsACheckpoint) {
  std::string folder = testing::TempDir() + "weft_sharded_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Env& env = Env::Posix();
  JobSpec cores = TinyJob(12);
  cores.model.low_rank_core.rank = 4;
  const JobSpec search = SearchJob();
  for (const auto& [job, precision, most] :
       {std::tuple(TinyJob(12), "fp32", 3), std::tuple(LlamaJob(), "bf16_pure", 3),
        std::tuple(cores, "fp32", 2), std::tuple(search, "bf16", 2)}) {
    SCOPED_TRACE(most);
    const int64_t two = std::min(2, most), three = most;
    const Outcome saved = Train(job, {4, two, precision}, 3);
    // The tensors of the ranks, cut as they have them.
    CheckpointManifest manifest;
    std::mutex mutex;
    const auto save = [&](Trainer& trainer, Collective& group) {
      std::vector<NamedTensor> tensors;
      for (NamedTensor& tensor : trainer.StateTensors()) {
        const std::vector<float>& values = saved.state.tensors.at(tensor.name);
        const int64_t first = tensor.part ? tensor.part->first : 0;
        SetValues(tensor.view, values.data() + first);
        if (tensor.saved) tensors.push_back(std::move(tensor));
      }
      if (tensors.empty()) return;  // of a group that has what the first one saves
      auto file = WriteTensorFile(env, folder, group.rank(), group.size(), tensors);
      ASSERT_TRUE(file.ok()) << file.status().message();
      std::lock_guard lock(mutex);
      manifest.files.push_back(*file);
    };
    EXPECT_EQ(Train(job, {4, three, precision}, 0, save).state.tensors, saved.state.tensors);
    ASSERT_EQ(manifest.files.size(), 4u);

    const auto load = [&](Trainer& trainer, Collective&) {
      const Status loaded = LoadTensors(env, folder, manifest, trainer.StateTensors());
      ASSERT_TRUE(loaded.ok()) << loaded.message();
    };
    EXPECT_EQ(Train(job, {1, 0, precision}, 0, load).state.tensors, saved.state.tensors);
    EXPECT_EQ(Train(job, {2, 0, precision}, 0, load).state.tensors, saved.state.tensors);
    EXPECT_EQ(Train(job, {3, two, precision}, 0, load).state.tensors, saved.state.tensors);
    EXPECT_EQ(Train(job, {3, three, precision}, 0, load).state.tensors, saved.state.tensors);

    // The other way round: cut as parts of updates, read as parts of values.
    manifest.files.clear();
    EXPECT_EQ(Train(job, {4, 1, precision}, 0, save).state.tensors, saved.state.tensors);
    EXPECT_EQ(Train(job, {2, three, precision}, 0, load).state.tensors, saved.state.tensors);

    // Without one of the files something is missing.
    manifest.files.pop_back();
    const auto fail = [&](Trainer& trainer, Collective&) {
      const Status loaded = LoadTensors(env, folder, manifest, trainer.StateTensors());
      EXPECT_NE(loaded.message().find("has no tensor"), std::string::npos) << loaded.message();
    };
    (void)Train(job, {1, 0, precision}, 0, fail);
  }
  EXPECT_TRUE(env.RemoveTree(folder).ok());
}

}  // namespace
}  // namespace weft::engine
