// Trainings with 2:4 sparse MLPs from the first step to the last.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "worker/engine/techniques/sparse24/decay_search.h"
#include "worker/engine/techniques/sparse24/sparse24_testing.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using testing::HasSubstr;

// One step of plain gradient descent tells the two decays apart from everything else.
TEST(Sparse24, DecayReachesWhatTheMaskLeavesOut) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  for (const char* method : {"masked_decay", "sr_ste"}) {
    SCOPED_TRACE(method);
    const auto train = [&](double decay) {
      SparsitySpec spec = Exact(method);
      spec.decay = decay;
      spec.dense_share = 0;
      JobSpec job = JobOf(spec);
      job.optimizer.name = "sgd";
      job.optimizer.momentum = 0;
      job.optimizer.weight_decay = 0;
      job.train.gradient_clip_norm = 0.01;  // The decay is not clipped.
      job.schedule.kind = "constant";
      auto run = std::make_unique<TinyTraining>(job, TinyPlan("fp32"), tokens);
      run->Step();
      return run;
    };
    const auto plain = train(0), decayed = train(0.5);
    TinyRun start(TinyModel(), OptionsOf({}));
    const ParameterSet& before = start.model->parameters();
    for (int64_t i = 0; i < before.size(); ++i) {
      const auto values = [i](const TinyRun& run) {
        return ValuesOf(run.model->parameters().value(i));
      };
      const std::vector<float> own = values(*decayed), other = values(*plain);
      if (!CanBeSparse24(before[i])) {
        EXPECT_EQ(own, other) << before[i].name;
        continue;
      }
      const std::vector<float> mask = Mask(before.value(i), std::string(method) == "sr_ste");
      const std::vector<float> first = values(start);
      for (size_t e = 0; e < own.size(); ++e) {
        ASSERT_NEAR(own[e], other[e] - 0.05 * 0.5 * (1 - mask[e]) * first[e], 1e-6);
      }
    }
  }
}

// Weights that the masks of slope leave out get no update, and the norm of the gradients has no
// part of theirs.
TEST(Sparse24, SlopeTrainsWhatItsMasksKeep) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  JobSpec job = JobOf(Exact("slope"));
  job.optimizer.weight_decay = 0;
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  TinyRun start(TinyModel(), OptionsOf({}));
  const ParameterSet &before = start.model->parameters(), &after = run.model->parameters();
  const StepReport first = run.Step();
  double squares = 0;
  for (const float gradient : run.Gradients()) squares += double{gradient} * gradient;
  EXPECT_NEAR(first.gradient_norm, std::sqrt(squares), 1e-4 * first.gradient_norm);
  run.Step();
  for (const int64_t i : SparseWeights(after)) {
    const std::vector<float> mask = Mask(before.value(i), true);
    const std::vector<float> old = ValuesOf(before.value(i)), now = ValuesOf(after.value(i));
    for (size_t e = 0; e < mask.size(); ++e) {
      ASSERT_EQ(now[e] == old[e], mask[e] == 0) << after[i].name << " " << e;
    }
  }
}

SparsitySpec Searched(std::string method, int64_t steps) {
  SparsitySpec spec = Exact(std::move(method));
  spec.mask_interval = 2;
  spec.dense_share = 0.25;
  spec.decay_search_steps = steps;
  return spec;
}

JobSpec WithoutDropout(const SparsitySpec& spec, int64_t steps) {
  JobSpec job = JobOf(spec, steps);
  job.model.dropout = job.model.attention_dropout = 0;  // It is drawn by step.
  job.schedule.warmup_steps = 4;
  return job;
}

// Every run begins as a training of its own would, and the last one is the whole of it.
TEST(Sparse24, ASearchForTheDecayGoesBackToTheFirstStep) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  constexpr int64_t kRun = 4, kSteps = 24;
  const SparsitySpec searched = Searched("masked_decay", kRun);
  TinyTraining run(WithoutDropout(searched, kSteps + 4 * kRun), TinyPlan("fp32"), tokens);
  SparsitySpec measured = searched;
  measured.method = "measure";
  measured.decay_search_steps = 0;
  TinyTraining dense(WithoutDropout(measured, kSteps), TinyPlan("fp32"), tokens);
  std::vector<StepReport> reports;
  for (int64_t step = 0; step < 4 * kRun; ++step) reports.push_back(run.Step());
  for (int64_t step = 0; step < kRun; ++step) {
    EXPECT_EQ(reports[step].loss, dense.Step().loss);
    for (int64_t trial = 1; trial < 4; ++trial) {
      EXPECT_EQ(reports[trial * kRun + step].learning_rate, reports[step].learning_rate);
    }
  }
  const std::string name(kDecayMetric);
  EXPECT_EQ(reports[0].technique_metrics.at(name), 0);
  EXPECT_EQ(reports[kRun].technique_metrics.at(name), 1e-4);
  EXPECT_EQ(reports[2 * kRun].loss, reports[kRun].loss);

  const StepReport first = run.Step();
  SparsitySpec found = searched;
  found.decay = first.technique_metrics.at(name);
  found.decay_search_steps = 0;
  EXPECT_GE(found.decay, 1e-6);
  EXPECT_LE(found.decay, 1e-2);
  TinyTraining alone(WithoutDropout(found, kSteps), TinyPlan("fp32"), tokens);
  EXPECT_EQ(first.loss, alone.Step().loss);
  for (int64_t step = 1; step < kSteps; ++step) {
    const StepReport own = run.Step(), other = alone.Step();
    EXPECT_EQ(own.loss, other.loss) << step;
    EXPECT_EQ(own.learning_rate, other.learning_rate);
  }
  EXPECT_EQ(run.Parameters(), alone.Parameters());
}

/// Flip rates of the runs of a search, of a training in which the rate falls with the decay: at
/// `half` it is half of the dense one.
std::array<float, kDecaySearchRuns> RatesOfSearch(double half) {
  std::array<float, kDecaySearchRuns> rates = {0.08f};
  for (int64_t run = 1; run < kDecaySearchRuns; ++run) {
    rates[run] = static_cast<float>(0.08 / (1 + SearchedDecay(rates, run) / half));
  }
  return rates;
}

TEST(Sparse24, TheDecayIsSearchedForByHalves) {
  const auto found = [](double half) {
    return SearchedDecay(RatesOfSearch(half), kDecaySearchRuns);
  };
  for (const double half : {5e-6, 1e-5, 6e-5, 1e-4, 7e-4, 2e-3, 1e-2}) {
    const double ratio = 1 / (1 + found(half) / half);
    EXPECT_GT(ratio, 0.7) << half;
    EXPECT_LT(ratio, 0.8) << half;
    EXPECT_EQ(DoubtsOfSearch(RatesOfSearch(half)), "");
  }
  EXPECT_EQ(found(1e-8), 1e-6);
  EXPECT_EQ(found(1.0), 1e-2);
}

TEST(Sparse24, ASearchThatEndsAtAnEndOfTheGridSaysSo) {
  EXPECT_THAT(DoubtsOfSearch(RatesOfSearch(1.0)),
              HasSubstr("ended at its largest decay, 0.01, with which masks flip 0.99 times"));
  EXPECT_THAT(DoubtsOfSearch(RatesOfSearch(1e-8)),
              HasSubstr("ended at its smallest decay, 1e-06, with which masks flip 0.0099 times"));
  EXPECT_THAT(DoubtsOfSearch(std::array<float, kDecaySearchRuns>{}),
              HasSubstr("no mask changed in the dense run"));
  // Masks of 1e-4 flip as often as those of dense training, and masks of 5e-4 hardly at all.
  EXPECT_THAT(DoubtsOfSearch(std::array<float, kDecaySearchRuns>{0.08f, 0.08f, 0.001f, 0.001f}),
              HasSubstr("no run flipped masks 0.6 to 0.95 times"));
}

std::vector<float> SecondMoments(TinyTraining& run) {
  std::vector<float> all;
  for (const NamedTensor& tensor : run.trainer->StateTensors()) {
    if (!tensor.name.ends_with("/second_moment")) continue;
    for (const float value : ValuesOf(tensor.view)) all.push_back(value);
  }
  return all;
}

TEST(Sparse24, StepTrainsDenseAndThenKeepsSecondMoments) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  SparsitySpec spec = Exact("step");
  spec.switch_share = 0.5;
  spec.dense_share = 0;
  TinyTraining run(JobOf(spec), TinyPlan("fp32"), tokens);
  TinyTraining dense(JobOf({}), TinyPlan("fp32"), tokens);
  for (int step = 0; step < 6; ++step) EXPECT_EQ(run.Step().loss, dense.Step().loss);
  EXPECT_EQ(run.Parameters(), dense.Parameters());
  const std::vector<float> moments = SecondMoments(run);
  EXPECT_FALSE(moments.empty());
  EXPECT_NE(run.Step().loss, dense.Step().loss);
  for (int step = 7; step < 12; ++step) run.Step();
  EXPECT_EQ(SecondMoments(run), moments);
}

TEST(Sparse24, StepSwitchesOnceSecondMomentsHaveSettled) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  // The step in which masks are searched for the first time.
  const auto switched = [&](double epsilon) {
    SparsitySpec spec = Exact("step");
    spec.dense_share = 0;
    JobSpec job = JobOf(spec, 40);
    job.optimizer.beta2 = 0.75;  // Windows of four steps.
    job.optimizer.epsilon = epsilon;
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    std::vector<float> moments;
    for (int64_t step = 0; step < 40; ++step) {
      run.Step();
      std::vector<float> now = SecondMoments(run);
      if (now == moments) return step;
      moments = std::move(now);
    }
    return int64_t{40};
  };
  EXPECT_EQ(switched(1), 5) << "at the end of the first window that is late enough";
  EXPECT_EQ(switched(1e-12), 20) << "after half of the steps";
}

// What is evaluated after the last step is the network that was trained: as if more steps came.
TEST(Sparse24, WithoutDenseStepsTheLastEvaluationIsASparseOne) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  for (const char* method : {"masked_decay", "sr_ste", "s_ste", "static", "slope", "activations"}) {
    SCOPED_TRACE(method);
    SparsitySpec spec = Exact(method);
    spec.dense_share = 0;
    const auto loss = [&](int64_t steps) {
      JobSpec job = JobOf(spec, steps);
      job.schedule.kind = "constant";
      job.train.eval_sequences = 4;
      if (PrunesActivations(spec)) job.model.activation = "squared_relu";
      TinyTraining run(job, TinyPlan("fp32"), tokens);
      for (int step = 0; step < 4; ++step) run.Step();
      return run.trainer->Evaluate()->loss;
    };
    EXPECT_EQ(loss(4), loss(40));
  }
}

TEST(Sparse24, MasksAreSearchedAtTheirInterval) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  SparsitySpec spec = Exact();
  spec.dense_share = 0;
  TinyTraining run(JobOf(spec), TinyPlan("fp32"), tokens);
  std::vector<int64_t> reported;
  const int64_t index = SparseWeights(run.model->parameters()).front();
  std::vector<float> mask = Mask(run.model->parameters().value(index));
  for (int64_t step = 0; step < 9; ++step) {
    const StepReport report = run.Step();
    const auto flips = report.technique_metrics.find(std::string(kFlipRateMetric));
    if (flips == report.technique_metrics.end()) continue;
    // For the step that comes next.
    reported.push_back(step + 1);
    EXPECT_GT(flips->second, 0);
    EXPECT_LT(flips->second, 0.5);
  }
  EXPECT_EQ(reported, (std::vector<int64_t>{3, 6, 9}));
}

TEST(Sparse24, MeasuringChangesNothing) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  TinyTraining plain(JobOf({}), TinyPlan("bf16"), tokens);
  TinyTraining measured(JobOf(Exact("measure")), TinyPlan("bf16"), tokens);
  int64_t reports = 0;
  for (int step = 0; step < 9; ++step) {
    const StepReport report = measured.Step();
    EXPECT_EQ(report.loss, plain.Step().loss);
    reports += std::ssize(report.technique_metrics);
  }
  EXPECT_EQ(reports, 3);
  EXPECT_EQ(measured.Parameters(), plain.Parameters());
}

// From the same state on, the steps at the end are those of a dense training.
TEST(Sparse24, EndsDense) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  SparsitySpec spec = Exact();
  spec.dense_share = 0.5;
  TinyTraining sparse(JobOf(spec), TinyPlan("fp32"), tokens);
  TinyTraining dense(JobOf({}), TinyPlan("fp32"), tokens);
  for (int step = 0; step < 6; ++step) sparse.Step();
  std::vector<NamedTensor> to = dense.trainer->StateTensors();
  for (const NamedTensor& from : sparse.trainer->StateTensors()) {
    for (NamedTensor& tensor : to) {
      if (tensor.name != from.name) continue;
      std::memcpy(tensor.view.data, from.view.data, from.view.Bytes());
    }
  }
  ASSERT_TRUE(dense.trainer->Restored(sparse.trainer->counters()).ok());
  for (int step = 6; step < 12; ++step) EXPECT_EQ(sparse.Step().loss, dense.Step().loss);
  EXPECT_EQ(sparse.Parameters(), dense.Parameters());
}

TEST(Sparse24, ARestoredStateGoesOnBitForBit) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  std::vector<SparsitySpec> specs;
  for (const char* method : {"masked_decay", "sr_ste", "s_ste", "static", "slope", "step"}) {
    specs.push_back({.method = method, .mask_interval = 3});
  }
  specs.push_back({.method = "activations", .switch_share = 0.5});
  specs.push_back(
      {.method = "masked_decay", .mask_interval = 1, .dense_share = 0, .decay_search_steps = 2});
  for (const SparsitySpec& spec : specs) {
    // The switch of step is after 6 steps, runs of the search end after 2, 4, 6 and 8.
    for (const int steps : {0, 3, 4, 6, 7}) {
      SCOPED_TRACE(spec.method + " " + std::to_string(steps));
      JobSpec job = JobOf(spec);
      if (PrunesActivations(spec)) job.model = WithSquaredRelu();
      TinyTraining original(job, TinyPlan("bf16", 2, 2), tokens);
      for (int i = 0; i < steps; ++i) original.Step();
      TinyTraining copy(job, TinyPlan("bf16", 2, 2), tokens);
      const auto from = original.trainer->StateTensors();
      const auto to = copy.trainer->StateTensors();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
      }
      ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
      for (int i = steps; i < 12; ++i) EXPECT_EQ(copy.Step().loss, original.Step().loss);
      EXPECT_EQ(copy.Parameters(), original.Parameters());
    }
  }
}

TEST(Sparse24, MemoryIsWhatIsPredicted) {
  std::vector<SparsitySpec> specs;
  for (const char* method :
       {"masked_decay", "sr_ste", "s_ste", "measure", "slope", "step", "activations"}) {
    specs.push_back({.method = method, .mask_interval = 2, .dense_share = 0.25});
  }
  specs.push_back(specs.front());
  specs.back().decay_search_steps = 4;
  specs.push_back(specs.back());
  specs.back().dense_share = 0;
  for (const SparsitySpec& spec : specs) {
    for (const char* family : {"gpt2", "llama"}) {
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(spec.method + " " + family + " " + precision);
        const int64_t steps = spec.decay_search_steps > 0 ? 28 : 8;
        JobSpec job = JobOf(spec, steps);
        job.model.family = family;
        if (PrunesActivations(spec)) {
          if (job.model.family == "llama") continue;
          job.model.activation = "squared_relu";
        }
        job.model.width = 128;
        job.model.heads = 4;
        job.model.context = 64;
        job.model.dropout = 0;
        const Plan plan = TinyPlan(precision, 2, 2);
        RandomTokens tokens(job.model.vocab_size, job.model.context);
        TinyTraining run(job, plan, tokens);
        MemoryBreakdown measured;
        for (int64_t step = 0; step < steps; ++step) measured = run.Step().peak_memory;
        const MemoryMachine machine{ProductsOf(run.model->precision().products)};
        const MemoryBreakdown predicted = PredictMemory(MemoryInputsOf(job, plan, machine));
        // No allocator sees the operands that kernels widen.
        const MemoryBreakdown unwidened =
            PredictMemory(MemoryInputsOf(job, plan, {ProductKind::kNative}));
        const auto near = [](int64_t own, int64_t truth, double share) {
          EXPECT_NEAR(static_cast<double>(own), static_cast<double>(truth),
                      share * static_cast<double>(truth));
        };
        near(predicted.parameters_bytes, measured.parameters_bytes, 0.02);
        near(predicted.activations_bytes, measured.activations_bytes, 0.01);
        near(unwidened.workspace_bytes, measured.workspace_bytes, 0.02);
        near(predicted.optimizer_bytes, measured.optimizer_bytes, 0.01);
      }
    }
  }
}

TEST(Sparse24, MeshesTrainAsOneRankDoes) {
  struct RunConfig {
    std::string name;
    void (*change)(MeshCase& c);
  };
  const std::vector<RunConfig> ways = {
      {"data 2, one sequence a micro-batch",
       [](MeshCase& c) {
         c.plan.mesh.data = 2;
         c.plan.micro_batch = 1;
         c.plan.bucket_bytes = 2048;
       }},
      {"tensor 2", [](MeshCase& c) { c.plan.mesh.tensor = 2; }},
      {"tensor 2 with sequence",
       [](MeshCase& c) {
         c.plan.mesh.tensor = 2;
         c.plan.sequence_parallel = true;
       }},
      {"pipeline 2, zero bubble",
       [](MeshCase& c) {
         c.plan.mesh.pipeline = 2;
         c.plan.pipeline_schedule = "zero_bubble";
         c.plan.stage_blocks = {1, 1};
         c.plan.micro_batch = 1;
       }},
      {"zero 1", [](MeshCase& c) { c.plan.mesh.data = 2, c.plan.zero_stage = 1; }},
      {"zero 2", [](MeshCase& c) { c.plan.mesh.data = 2, c.plan.zero_stage = 2; }},
      {"zero 3",
       [](MeshCase& c) {
         c.plan.mesh.data = 2;
         c.plan.zero_stage = 3;
         c.plan.micro_batch = 1;
       }},
  };
  for (const ModelSpec& model : {TinyModel(), Llama()}) {
    for (const char* method :
         {"masked_decay", "sr_ste", "s_ste", "slope", "step", "search", "activations"}) {
      std::map<int64_t, MeshOutcome> wholes;  // by the sequences of a micro-batch
      for (const RunConfig& way : ways) {
        if (std::string(method) == "activations" && model.family == "llama") continue;
        SCOPED_TRACE(model.family + ", " + method + ", " + way.name);
        MeshCase c{JobOf({.method = method, .decay = 0.01, .mask_interval = 2}, 6),
                   TinyPlan("fp32", 2)};
        if (std::string(method) == "search") {
          c.job.train.steps = 12;
          c.job.train.sparsity = {.method = "masked_decay",
                                  .mask_interval = 1,
                                  .dense_share = 0,
                                  .decay_search_steps = 2};
        }
        c.job.model = std::string(method) == "activations" ? WithSquaredRelu(model) : model;
        c.job.optimizer.learning_rate = 1e-3;
        way.change(c);
        c.plan.accumulation_steps = kSequences / (c.plan.micro_batch * c.plan.mesh.data);
        const auto [whole, fresh] = wholes.try_emplace(c.plan.micro_batch);
        if (fresh) {
          MeshCase one = c.Whole();
          one.plan.zero_stage = 0;
          whole->second = TrainOnMesh(one).front();
        }
        ExpectFollows(TrainOnMesh(c), whole->second, 2e-5, 1e-4);
      }
    }
  }
}

TEST(Sparse24, HasNoMoreDenseStepsThanSteps) {
  const auto dense = [](double dense_share, double switch_share) {
    TrainSpec train;
    train.sparsity = {.method = "step", .dense_share = dense_share, .switch_share = switch_share};
    return TechniqueProductsOf(train, ComputeUnits::kCpuVector).dense_share;
  };
  EXPECT_DOUBLE_EQ(dense(0.25, 0.5), 0.75);
  EXPECT_DOUBLE_EQ(dense(0.25, 0), 0.75) << "the last step in which it may switch";
  EXPECT_EQ(dense(0.9, 0), 1);
}

TEST(Sparse24, RefusesWhatDoesNotFit) {
  const auto error = [](const SparsitySpec& spec, int64_t mlp_width = 0) {
    JobSpec job = TinyJob();
    job.data.train = {"a.txt"};
    job.train.sparsity = spec;
    job.model.mlp_width = mlp_width;
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.method = "masked_decay"}), "");
  EXPECT_THAT(error({.decay = 0.1}), HasSubstr("and none is; hint: train.sparsity.method"));
  EXPECT_THAT(error({.method = "masked_decay", .decay_search_steps = 50}),
              HasSubstr("must be a multiple of train.sparsity.mask_interval 40, and at least twice "
                        "as many; hint: 80"));
  EXPECT_THAT(error({.method = "masked_decay", .decay_search_steps = 80}),
              HasSubstr("train.steps 100 leaves the training fewer sparse steps"));
  EXPECT_THAT(error({.method = "step", .decay_search_steps = 80}), HasSubstr("not of step"));
  EXPECT_THAT(error({.method = "sr_ste", .switch_share = 0.2}), HasSubstr("not of sr_ste"));
  EXPECT_THAT(error({.method = "activations"}), HasSubstr("hint: model.activation squared_relu"));
  EXPECT_THAT(error({.method = "masked_decay"}, 50),
              HasSubstr("train.sparsity needs a width of the MLP that is a multiple of 4, not 50"));
}

TEST(Sparse24, RefusesContextParallelRanksThatCutGroupsOfTokens) {
  JobSpec job = TinyJob();
  job.data.train = {"a.txt"};
  job.model.dropout = job.model.attention_dropout = 0;
  job.train.sparsity.method = "masked_decay";
  const auto error = [&](int64_t ranks) {
    job.resources.context_parallel = ranks;
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error(2), "");
  EXPECT_THAT(error(4), HasSubstr("sequences have 16 tokens, not a multiple of 32; hint: "
                                  "train.sequence_length 32, or gradient_estimate exact"));
  job.train.sparsity.gradient_estimate = "exact";
  EXPECT_EQ(error(4), "");
}

}  // namespace
}  // namespace weft::engine
