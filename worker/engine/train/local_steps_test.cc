// Local steps of several ranks over Gloo against DiLoCo in float64, whose gradients alone are the
// engine's.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/rank_traffic.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using Doubles = std::vector<double>;
using Values = std::vector<float>;

constexpr int64_t kBatch = 12;
constexpr double kOuterRate = 0.6, kOuterMomentum = 0.8;

MeshCase LocalCase(int64_t ranks, int64_t local_steps, int64_t steps,
                   const std::string& precision = "fp32") {
  MeshCase c{TinyJob(kBatch), TinyPlan(precision, 1, kBatch / ranks)};
  c.plan.mesh.data = ranks;
  c.job.train.steps = steps;
  c.job.train.local_steps = local_steps;
  c.job.train.outer_learning_rate = kOuterRate;
  c.job.train.outer_momentum = kOuterMomentum;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.schedule.kind = "constant";
  c.job.optimizer.learning_rate = 0.01;
  return c;
}

StepReport StepOf(Trainer& trainer) {
  auto report = trainer.Step();
  WEFT_CHECK(report.ok(), report.status().message());
  return *report;
}

/// Algorithm 1 of Douillard et al. 2023, one rank after the other, in float64.
class Reference {
 public:
  explicit Reference(const MeshCase& c)
      : job_(c.job),
        ranks_(c.plan.mesh.data),
        run_(c.job.model, ModelOptionsOf(TinyPlan("fp32"))),
        tokens_(c.job.model.vocab_size, c.length()),
        global_(Read()),
        momentum_(global_.size()),
        inner_(static_cast<size_t>(ranks_),
               Inner{Doubles(global_.size()), Doubles(global_.size())}) {}

  /// Steps [from, to) of each rank, and the outer step after them.
  void Round(int64_t from, int64_t to) {
    Doubles sum(global_.size());
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      Doubles local = global_;
      for (int64_t step = from; step < to; ++step) {
        Update(step, rank, inner_[static_cast<size_t>(rank)], local);
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += global_[i] - local[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      const double delta = sum[i] / static_cast<double>(ranks_);
      momentum_[i] = kOuterMomentum * momentum_[i] + delta;
      global_[i] -= kOuterRate * (delta + kOuterMomentum * momentum_[i]);
    }
  }

  const Doubles& global() const { return global_; }

 private:
  struct Inner {
    Doubles first, second;
  };

  Doubles Read() const {
    const Values values = run_.Parameters();
    return {values.begin(), values.end()};
  }

  void Update(int64_t step, int64_t rank, Inner& inner, Doubles& local) {
    const ParameterSet& parameters = run_.model->parameters();
    size_t at = 0;
    for (int64_t p = 0; p < parameters.size(); ++p) {
      float* to = parameters.value(p).As<float>();
      for (int64_t i = 0; i < parameters[p].shape.Elements(); ++i) {
        to[i] = static_cast<float>(local[at++]);
      }
    }
    WEFT_CHECK(run_.model->Pack(run_.context).ok(), "pack");
    const int64_t own = kBatch / ranks_;
    auto batch = tokens_.Get(step, rank * own, own);
    WEFT_CHECK(batch.ok(), "batch");
    run_.Differentiate(*batch, 1.0f / static_cast<float>(batch->target_count), rank * own);
    Doubles gradient;
    Doubles decay;
    double squares = 0;
    for (int64_t p = 0; p < parameters.size(); ++p) {
      for (const float g : ValuesOf(parameters.gradient(p))) {
        gradient.push_back(g);
        decay.push_back(parameters[p].decay() ? job_.optimizer.weight_decay : 0);
        squares += static_cast<double>(g) * g;
      }
    }
    const double clip = std::min(1.0, job_.train.gradient_clip_norm / std::sqrt(squares));
    const OptimizerSpec& optimizer = job_.optimizer;
    const double rate = optimizer.learning_rate;
    const auto update = static_cast<double>(step + 1);
    for (size_t i = 0; i < local.size(); ++i) {
      double g = clip * gradient[i];
      double& m = inner.first[i];
      double& v = inner.second[i];
      if (optimizer.name == "sgd") {
        g += decay[i] * local[i];
        m = optimizer.momentum * m + g;
        local[i] -= rate * m;
        continue;
      }
      local[i] -= rate * decay[i] * local[i];
      m = optimizer.beta1 * m + (1 - optimizer.beta1) * g;
      v = optimizer.beta2 * v + (1 - optimizer.beta2) * g * g;
      local[i] -= rate * (m / (1 - std::pow(optimizer.beta1, update))) /
                  (std::sqrt(v / (1 - std::pow(optimizer.beta2, update))) + optimizer.epsilon);
    }
  }

  const JobSpec job_;
  const int64_t ranks_;
  TinyRun run_;
  RandomTokens tokens_;
  Doubles global_, momentum_;
  std::vector<Inner> inner_;
};

TEST(LocalStepsTest, RanksFollowTheAlgorithmAndAgreeOnEveryBit) {
  constexpr int64_t kSteps = 8;  // rounds of 3, 3 and 2
  for (const char* optimizer : {"sgd", "adamw"}) {
    for (const int64_t ranks : {1, 2, 3}) {
      SCOPED_TRACE(std::string(optimizer) + ", ranks " + std::to_string(ranks));
      MeshCase c = LocalCase(ranks, 3, kSteps);
      c.job.optimizer.name = optimizer;
      c.job.optimizer.momentum = 0.9;
      // Where gradients are tiny, Adam's direction is otherwise that of rounding.
      c.job.optimizer.epsilon = 1e-3;
      std::vector<std::vector<Values>> values(static_cast<size_t>(ranks));  // by rank and step
      std::vector<std::vector<double>> losses(static_cast<size_t>(ranks));
      RunRanks(static_cast<int>(ranks), std::chrono::seconds(60), [&](Collective& world) {
        MeshRank rank(c, world);
        const auto number = static_cast<size_t>(world.rank());
        for (int64_t step = 1; step <= kSteps; ++step) {
          losses[number].push_back(StepOf(*rank.trainer).loss);
          EXPECT_EQ(rank.trainer->AtOuterStep(), step == 3 || step == 6 || step == 8) << step;
          values[number].push_back(rank.run.Parameters());
        }
      });
      Reference reference(c);
      const Doubles start = reference.global();
      for (const auto& [from, to] : {std::pair{0, 3}, std::pair{3, 6}, std::pair{6, 8}}) {
        reference.Round(from, to);
        const auto step = static_cast<size_t>(to - 1);
        double moved = 0, off = 0;
        for (size_t i = 0; i < start.size(); ++i) {
          const double truth = reference.global()[i];
          moved += std::pow(truth - start[i], 2);
          off += std::pow(truth - static_cast<double>(values[0][step][i]), 2);
        }
        EXPECT_LT(std::sqrt(off), 1e-4 * std::sqrt(moved)) << "after step " << to;
        for (size_t rank = 1; rank < values.size(); ++rank) {
          EXPECT_EQ(std::memcmp(values[rank][step].data(), values[0][step].data(),
                                start.size() * sizeof(float)),
                    0)
              << "rank " << rank << " after step " << to;
          EXPECT_NE(values[rank][step - 1], values[0][step - 1]) << "each learns by itself";
          EXPECT_EQ(losses[rank][step], losses[0][step]) << "that of the global batch";
          EXPECT_NE(losses[rank][step - 1], losses[0][step - 1]);
        }
      }
    }
  }
}

TEST(LocalStepsTest, OneOuterStepOfRateOneIsTheMeanOfTheRanks) {
  for (const char* precision : {"fp32", "bf16_pure"}) {
    SCOPED_TRACE(precision);
    MeshCase c = LocalCase(2, 2, 4, precision);
    c.job.train.outer_learning_rate = 1;
    c.job.train.outer_momentum = 0;
    std::vector<Values> before(2), after(2);
    RunRanks(2, std::chrono::seconds(60), [&](Collective& world) {
      // The same rank, whose first round is one step longer: what it has before outer steps.
      MeshCase longer = c;
      longer.job.train.local_steps = 3;
      MeshRank alone(longer, world);
      StepOf(*alone.trainer);
      StepOf(*alone.trainer);
      before[static_cast<size_t>(world.rank())] = alone.run.Parameters();
      MeshRank rank(c, world);
      StepOf(*rank.trainer);
      StepOf(*rank.trainer);
      after[static_cast<size_t>(world.rank())] = rank.run.Parameters();
    });
    EXPECT_EQ(after[0], after[1]);
    for (size_t i = 0; i < after[0].size(); ++i) {
      const double mean = (static_cast<double>(before[0][i]) + before[1][i]) / 2;
      const double rounding = precision == std::string("fp32") ? 1e-6 : 0x1p-8;
      ASSERT_NEAR(after[0][i], mean, rounding * std::abs(mean) + 1e-7) << i;
    }
  }
}

TEST(LocalStepsTest, BytesAndMemoryAreThoseOfTheFormulas) {
  constexpr int64_t kLocal = 4;
  for (const int64_t ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    MeshCase c = LocalCase(ranks, kLocal, 2 * kLocal);
    c.job.model.width = 64;
    const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)});
    const MemoryBreakdown predicted = PredictMemory(inputs);
    const RankTraffic traffic = TrafficOfStep(inputs);
    const auto near = [](const char* what, double measured, int64_t counted) {
      EXPECT_NEAR(measured, static_cast<double>(counted), 0.01 * static_cast<double>(counted))
          << what;
    };
    RunRanks(static_cast<int>(ranks), std::chrono::seconds(60), [&](Collective& world) {
      MeshRank rank(c, world);
      const auto calls = [&] {
        int64_t sum = 0;
        for (int kind = 0; kind < kCollectiveKinds; ++kind) {
          sum += world.account().totals(static_cast<CollectiveKind>(kind)).calls;
        }
        return sum;
      };
      for (int round = 0; round < 2; ++round) {
        const int64_t before = calls();
        const double bytes = world.account().totals(CollectiveKind::kAllReduce).bytes;
        for (int step = 1; step < kLocal; ++step) StepOf(*rank.trainer);
        EXPECT_EQ(calls(), before) << "local steps ask nobody";
        const MemoryBreakdown peak = StepOf(*rank.trainer).peak_memory;
        near("all-reduce", world.account().totals(CollectiveKind::kAllReduce).bytes - bytes,
             traffic.all_reduced);
        near("parameters", static_cast<double>(peak.parameters_bytes), predicted.parameters_bytes);
        near("gradients", static_cast<double>(peak.gradients_bytes), predicted.gradients_bytes);
        near("optimizer", static_cast<double>(peak.optimizer_bytes), predicted.optimizer_bytes);
        near("activations", static_cast<double>(peak.activations_bytes),
             predicted.activations_bytes);
        near("communication", static_cast<double>(peak.communication_bytes),
             predicted.communication_bytes);
      }
    });
    // AdamW's two moments, and as much again.
    JobSpec plain = c.job;
    plain.train.local_steps = 1;
    EXPECT_EQ(inputs.optimizer.state, 2 * OptimizerBytesOf(plain.model, plain, DType::kF32).state);
  }
}

/// Two workers of the same model, of one rank each unless more is said.
MeshCase TwoWorkers() {
  MeshCase c = LocalCase(2, 3, 8);
  c.job.model = Gpt2Model();
  c.job.train.sequence_length = c.job.model.context;
  c.plan.bucket_bytes = 4000;
  c.plan.block_memory_policy.assign(static_cast<size_t>(c.job.model.layers), "keep");
  return c;
}

TEST(LocalStepsTest, WorkersOfSeveralRanksFollowThoseOfOne) {
  const std::vector<MeshOutcome> truth = TrainOnMesh(TwoWorkers());
  SavedState saved;
  for (const MeshOutcome& worker : truth) saved.Add(worker.state);
  for (const MeshCase& c :
       {WithTensor(TwoWorkers(), 2), WithTensor(TwoWorkers(), 2, true),
        WithGrid(TwoWorkers(), 2, 1), WithStages(TwoWorkers(), {1, 1}, "1f1b"),
        WithStages(TwoWorkers(), {1, 1}, "zero_bubble"),
        WithTensor(WithStages(TwoWorkers(), {1, 1}, "gpipe"), 2), WithContext(TwoWorkers(), 3),
        WithContext(TwoWorkers(), 2, "ulysses"), WithTensor(WithContext(TwoWorkers(), 2), 2, true),
        WithContext(WithStages(TwoWorkers(), {1, 1}, "zero_bubble"), 2)}) {
    SCOPED_TRACE(NameOf(c));
    const MeshLayout layout(c.plan.mesh);
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
    SavedState state;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const MeshOutcome& own = ranks[rank];
      const auto worker = static_cast<size_t>(layout.ReplicaOf(static_cast<int64_t>(rank)));
      for (size_t step = 0; step < own.reports.size(); ++step) {
        const StepReport &report = own.reports[step], &one = truth[worker].reports[step];
        EXPECT_NEAR(report.loss, one.loss, 1e-5) << step;
        EXPECT_NEAR(report.gradient_norm, one.gradient_norm, 5e-4 * one.gradient_norm) << step;
        EXPECT_EQ(report.targets, one.targets) << step;
      }
      EXPECT_NEAR(own.evaluation, truth[worker].evaluation, 1e-5);
      state.Add(own.state);
      const auto first =
          static_cast<size_t>(layout.Group(static_cast<int64_t>(rank), kGradientAxes).front());
      EXPECT_EQ(own.values, ranks[first].values) << "the same bits of the same part";
    }
    EXPECT_EQ(state.tensors.size(), saved.tensors.size());
    for (const auto& [name, values] : state.tensors) {
      ASSERT_TRUE(saved.tensors.contains(name)) << name;
      EXPECT_EQ(state.saved.at(name), std::ssize(values)) << name << ": each number is saved once";
      EXPECT_LT(Distance(values, saved.tensors.at(name)), 1e-2) << name;
    }
  }
}

TEST(LocalStepsTest, BytesAndMemoryOfWorkersOfSeveralRanksAreThoseOfTheFormulas) {
  for (MeshCase c : {WithTensor(TwoWorkers(), 2), WithContext(TwoWorkers(), 2)}) {
    SCOPED_TRACE(NameOf(c));
    c.job.model.width = 128;
    c.job.model.vocab_size = 768;
    c.job.model.context = 64;
    c.plan.bucket_bytes = 4 << 20;
    MemoryInputs inputs = InputsOf(c);
    inputs.optimizer = OptimizerBytesOf(c.job.model, c.job, DType::kF32, c.plan.mesh.tensor);
    const MemoryBreakdown predicted = CountedMemory(inputs);
    const auto summed = static_cast<double>(TrafficOfStep(inputs).all_reduced);
    const auto near = [](const char* what, double measured, double counted) {
      EXPECT_NEAR(measured / counted, 1, 0.01) << what;
    };
    RunRanks(4, std::chrono::seconds(60), [&](Collective& world) {
      MeshRank rank(c, world);
      const auto all_reduced = [&](AxisSet axes) {
        return rank.ranks.groups.Along(axes)->account().totals(CollectiveKind::kAllReduce).bytes;
      };
      for (int step = 1; step <= 2; ++step) {
        StepOf(*rank.trainer);
        EXPECT_EQ(all_reduced(c.reduction_axes().outer), 0) << "workers tell each other nothing";
        if (rank.reducer == nullptr) continue;
        near("all-reduce within a worker", all_reduced(c.reduction_axes().gradients),
             step * summed);
      }
      const MemoryBreakdown peak = StepOf(*rank.trainer).peak_memory;
      near("all-reduce", all_reduced(c.reduction_axes().outer),
           summed / static_cast<double>(c.plan.mesh.context));
      const auto bytes = [](int64_t count) { return static_cast<double>(count); };
      if (rank.reducer != nullptr) {
        const auto gathered = rank.ranks.groups.Along(c.reduction_axes().gradients)
                                  ->account()
                                  .totals(CollectiveKind::kAllGather);
        near("all-gather", gathered.bytes, summed);
        near("communication", bytes(peak.communication_bytes),
             bytes(predicted.communication_bytes));
      }
      near("parameters", bytes(peak.parameters_bytes), bytes(predicted.parameters_bytes));
      near("gradients", bytes(peak.gradients_bytes), bytes(predicted.gradients_bytes));
      near("optimizer", bytes(peak.optimizer_bytes), bytes(predicted.optimizer_bytes));
      near("activations", bytes(peak.activations_bytes), bytes(predicted.activations_bytes));
    });
  }
}

TEST(LocalStepsTest, AStepThatOneRankSkipsCountsForAllAtTheOuterStep) {
  const MeshCase c = LocalCase(2, 3, 6);
  RunRanks(2, std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    ParameterSet& parameters = rank.run.model->parameters();
    float* bias = parameters.value(parameters.size() - 1).As<float>();
    const float before = *bias;
    if (world.rank() == 1) *bias = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(StepOf(*rank.trainer).skipped, world.rank() == 1);
    EXPECT_EQ(rank.trainer->counters().skipped_steps, world.rank());
    if (world.rank() == 1) *bias = before;
    EXPECT_FALSE(StepOf(*rank.trainer).skipped);
    const StepReport outer = StepOf(*rank.trainer);
    EXPECT_FALSE(outer.skipped) << "the rank has learned something since the last outer step";
    EXPECT_EQ(rank.trainer->counters().skipped_steps, 1);
    EXPECT_EQ(rank.trainer->counters().updates, 3);
    EXPECT_EQ(rank.trainer->counters().tokens, 3 * kBatch * 16);
  });
}

/// Keeps at which step an exchange began or ended.
class Exchanges : public ProgressObserver {
 public:
  void OnProgress() override {}
  void OnExchange(bool begins) override { seen.emplace_back(step, begins); }
  int64_t step = 0;
  std::vector<std::pair<int64_t, bool>> seen;
};

TEST(LocalStepsTest, AnObserverHearsOfExchangesAtOuterSteps) {
  const MeshCase c = LocalCase(2, 3, 8);
  RunRanks(2, std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    Exchanges exchanges;
    rank.run.context.observer = &exchanges;
    for (exchanges.step = 1; exchanges.step <= 8; ++exchanges.step) StepOf(*rank.trainer);
    EXPECT_THAT(exchanges.seen,
                testing::ElementsAre(testing::Pair(3, true), testing::Pair(3, false),
                                     testing::Pair(6, true), testing::Pair(6, false),
                                     testing::Pair(8, true), testing::Pair(8, false)));
  });
}

TEST(LocalStepsTest, EachRankSavesItsOptimizerAndGoesOnWithThatOfSomeRank) {
  const MeshCase c = LocalCase(3, 2, 4, "bf16_pure");
  std::vector<std::vector<NamedTensor>> own(3), of_two(3);
  RunRanks(3, std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    const auto number = static_cast<size_t>(world.rank());
    own[number] = rank.trainer->StateTensors();
    of_two[number] = rank.trainer->StateTensors(2);
  });
  const auto names = [](const std::vector<NamedTensor>& tensors, bool of_all) {
    std::vector<std::string> found;
    for (const NamedTensor& tensor : tensors) {
      if (tensor.everywhere == of_all) found.push_back(tensor.name);
    }
    return found;
  };
  EXPECT_EQ(names(own[0], true), names(own[2], true)) << "what outer steps make is of all";
  EXPECT_THAT(names(own[1], true), testing::Contains("outer/transformer.wte.weight/momentum"));
  EXPECT_THAT(names(own[1], true), testing::Contains("outer/transformer.wte.weight/value"))
      << "of weights in bf16";
  EXPECT_THAT(names(own[0], false), testing::Contains("adamw/transformer.wte.weight/first_moment"));
  EXPECT_THAT(names(own[2], false),
              testing::Contains("rank/2/adamw/transformer.wte.weight/first_moment"));
  EXPECT_EQ(names(of_two[0], false), names(own[0], false));
  EXPECT_EQ(names(of_two[1], false), names(own[1], false));
  EXPECT_EQ(names(of_two[2], false), names(own[0], false)) << "a third rank goes on as the first";
  for (const NamedTensor& tensor : own[2]) EXPECT_EQ(tensor.saved, !tensor.everywhere);
}

}  // namespace
}  // namespace weft::engine
