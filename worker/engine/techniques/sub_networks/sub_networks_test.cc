// Sub-networks of several ranks over Gloo against the algorithm in float64, whose gradients alone
// are the engine's: those of a whole network in which the units of other ranks are zero.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "worker/engine/techniques/sub_networks/testing.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/encoder_batches.h"

namespace weft::engine {
namespace {

using Doubles = std::vector<double>;
using Values = std::vector<float>;

constexpr int64_t kBatch = 12;
constexpr double kOuterRate = 0.6, kOuterMomentum = 0.8;

MeshCase SubNetworks(const ModelSpec& model, int64_t ranks, int64_t local_steps, int64_t steps,
                     const std::string& precision = "fp32") {
  MeshCase c{TinyJob(kBatch), TinyPlan(precision, 1, kBatch / ranks)};
  c.job.model = model;
  c.plan.mesh.data = ranks;
  c.job.resources.ranks = ranks;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), "keep");
  c.job.train.steps = steps;
  c.job.train.local_steps = local_steps;
  c.job.train.local_sub_networks = true;
  c.job.train.outer_learning_rate = kOuterRate;
  c.job.train.outer_momentum = kOuterMomentum;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.schedule.kind = "constant";
  c.job.optimizer.learning_rate = 0.01;
  c.job.optimizer.weight_decay = 0.5;
  return c;
}

StepReport StepOf(Trainer& trainer) {
  auto report = trainer.Step();
  WEFT_CHECK(report.ok(), report.status().message());
  return *report;
}

void OnRanks(int64_t ranks, const std::function<void(Collective&)>& run) {
  RunRanks(static_cast<int>(ranks), std::chrono::seconds(60), run);
}

/// Grouped queries, of four groups.
ModelSpec GroupedModel() {
  ModelSpec model = LlamaModel();
  model.kv_heads = 4;
  return model;
}

ModelSpec BertModel() {
  ModelSpec model = Gpt2Model();
  model.family = "bert";
  model.head = "masked_lm";
  return model;
}

ModelSpec VitModel() {
  ModelSpec model = Gpt2Model();
  model.family = "vit";
  model.vocab_size = 0;
  model.context = 1;
  model.classes = 5;
  model.image_size = 8;
  model.patch_size = 4;
  return model;
}

std::unique_ptr<BatchSource> TokensOf(const MeshCase& c) {
  const ModelSpec& model = c.job.model;
  if (model.family == "vit") return std::make_unique<NoiseImages>(model);
  if (model.family == "bert") {
    return std::make_unique<RandomMasked>(model.vocab_size, c.length(), 0.25);
  }
  return std::make_unique<RandomTokens>(model.vocab_size, c.length());
}

TEST(SubNetworksTest, GradientsAreThoseOfANetworkWithoutTheUnitsOfOthers) {
  ModelSpec shared = Gpt2Model();
  shared.distinct_blocks = 1;
  // Queries and values alone: each has a gradient of some rows of one product.
  ModelSpec frozen = GroupedModel();
  frozen.freeze = {"*.k_proj.weight"};
  for (const ModelSpec& model :
       {Gpt2Model(), shared, GroupedModel(), frozen, BertModel(), VitModel()}) {
    for (const auto& [ranks, policy] : {std::pair{2, "keep"}, {3, "recompute"}, {4, "attention"}}) {
      MeshCase c = SubNetworks(model, ranks, 4, 8);
      c.plan.micro_batch = kBatch / ranks;
      c.plan.accumulation_steps = 1;
      c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), policy);
      c.tokens = [&] { return TokensOf(c); };
      SCOPED_TRACE(model.family + (model.freeze.empty() ? "" : " with frozen keys") + " on " +
                   std::to_string(ranks) + ", " + policy);
      OnRanks(ranks, [&](Collective& world) {
        MeshRank rank(c, world);
        MaskedTwin twin(model);
        const std::vector<NumberOwner> owners = OwnersIn(c.job, twin.parameters(), 0, ranks);
        const int64_t own = kBatch / ranks, first = world.rank() * own;
        const Batch batch = *TokensOf(c)->Get(0, first, own);
        const Doubles truth = twin.Gradient(twin.Start(), owners, world.rank(), batch, first);
        const auto report = rank.trainer->Differentiate();
        ASSERT_TRUE(report.ok()) << report.status().message();
        EXPECT_NEAR(report->loss, twin.loss(), 1e-5);
        const ParameterSet& parameters = rank.run.model->parameters();
        size_t at = 0;
        int64_t others = 0;
        for (int64_t p = 0; p < parameters.size(); ++p) {
          if (!parameters[p].trainable()) {
            at += static_cast<size_t>(parameters[p].shape.Elements());
            continue;
          }
          double largest = 0, off = 0;
          for (const float g : ValuesOf(parameters.gradient(p))) {
            largest = std::max(largest, std::abs(truth[at]));
            off = std::max(off, std::abs(truth[at] - double{g}));
            const int64_t owner = owners[at++].rank;
            if (owner == NumberOwner::kAll || owner == world.rank()) continue;
            ++others;
            EXPECT_EQ(g, 0) << parameters[p].name;
          }
          EXPECT_LE(off, 2e-4 * largest + 1e-7) << parameters[p].name;
        }
        EXPECT_GT(others, 0);
      });
    }
  }
}

/// The algorithm, one rank after the other, in float64.
class Reference {
 public:
  explicit Reference(const MeshCase& c)
      : job_(c.job),
        ranks_(c.plan.mesh.data),
        twin_(c.job.model),
        tokens_(TokensOf(c)),
        global_(twin_.Start()),
        momentum_(global_.size()),
        inner_(static_cast<size_t>(ranks_),
               Inner{Doubles(global_.size()), Doubles(global_.size())}) {}

  /// Steps [from, to) of each rank, and the outer step after them.
  void Round(int64_t round, int64_t from, int64_t to) {
    const std::vector<NumberOwner> owners = OwnersIn(job_, twin_.parameters(), round, ranks_);
    Doubles learned(global_.size());
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      Inner& inner = inner_[static_cast<size_t>(rank)];
      for (size_t i = 0; i < owners.size(); ++i) {
        if (owners[i].rank != NumberOwner::kAll) inner.first[i] = inner.second[i] = 0;
      }
      Doubles local = global_;
      for (int64_t step = from; step < to; ++step) Update(step, from, rank, owners, inner, local);
      for (size_t i = 0; i < learned.size(); ++i) {
        if (owners[i].rank == NumberOwner::kAll) {
          learned[i] += (global_[i] - local[i]) / static_cast<double>(ranks_);
        } else if (owners[i].rank == rank) {
          learned[i] = global_[i] - local[i];
        }
      }
    }
    for (size_t i = 0; i < learned.size(); ++i) {
      momentum_[i] = kOuterMomentum * momentum_[i] + learned[i];
      global_[i] -= kOuterRate * (learned[i] + kOuterMomentum * momentum_[i]);
    }
  }

  const Doubles& global() const { return global_; }

 private:
  struct Inner {
    Doubles first, second;
  };

  void Update(int64_t step, int64_t round_start, int64_t rank,
              const std::vector<NumberOwner>& owners, Inner& inner, Doubles& local) {
    const int64_t own = kBatch / ranks_;
    const Batch batch = *tokens_->Get(step, rank * own, own);
    const Doubles gradient = twin_.Gradient(local, owners, rank, batch, rank * own);
    Doubles decay;
    double squares = 0;
    const ParameterSet& parameters = twin_.parameters();
    for (int64_t p = 0; p < parameters.size(); ++p) {
      decay.resize(decay.size() + static_cast<size_t>(parameters[p].shape.Elements()),
                   parameters[p].decay() ? job_.optimizer.weight_decay : 0);
    }
    for (const double g : gradient) squares += g * g;
    const double clip = std::min(1.0, job_.train.gradient_clip_norm / std::sqrt(squares));
    const OptimizerSpec& optimizer = job_.optimizer;
    const double rate = optimizer.learning_rate;
    for (size_t i = 0; i < local.size(); ++i) {
      const bool shared = owners[i].rank == NumberOwner::kAll;
      if (!shared && owners[i].rank != rank) continue;
      const auto update = static_cast<double>(shared ? step + 1 : step + 1 - round_start);
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
  MaskedTwin twin_;
  std::unique_ptr<BatchSource> tokens_;
  Doubles global_, momentum_;
  std::vector<Inner> inner_;
};

TEST(SubNetworksTest, RanksFollowTheAlgorithmAndAgreeOnEveryBit) {
  constexpr int64_t kSteps = 8;  // rounds of 3, 3 and 2
  for (const auto& [model, optimizer, ranks] : {std::tuple{Gpt2Model(), "sgd", 2},
                                                {Gpt2Model(), "adamw", 3},
                                                {GroupedModel(), "adamw", 2},
                                                {BertModel(), "adamw", 2},
                                                {VitModel(), "adamw", 3}}) {
    SCOPED_TRACE(model.family + ", " + optimizer + ", ranks " + std::to_string(ranks));
    MeshCase c = SubNetworks(model, ranks, 3, kSteps);
    c.tokens = [&] { return TokensOf(c); };
    c.job.optimizer.name = optimizer;
    c.job.optimizer.momentum = 0.9;
    // Where gradients are tiny, Adam's direction is otherwise that of rounding.
    c.job.optimizer.epsilon = 1e-3;
    std::vector<std::vector<Values>> values(static_cast<size_t>(ranks));  // by rank and step
    OnRanks(ranks, [&](Collective& world) {
      MeshRank rank(c, world);
      for (int64_t step = 0; step < kSteps; ++step) {
        StepOf(*rank.trainer);
        values[static_cast<size_t>(world.rank())].push_back(rank.run.Parameters());
      }
    });
    Reference reference(c);
    const Doubles start = reference.global();
    int64_t round = 0;
    for (const auto& [from, to] : {std::pair{0, 3}, std::pair{3, 6}, std::pair{6, 8}}) {
      reference.Round(round++, from, to);
      const auto step = static_cast<size_t>(to - 1);
      double moved = 0, off = 0;
      for (size_t i = 0; i < start.size(); ++i) {
        const double truth = reference.global()[i];
        moved += std::pow(truth - start[i], 2);
        off += std::pow(truth - double{values[0][step][i]}, 2);
      }
      EXPECT_LT(std::sqrt(off), 1e-4 * std::sqrt(moved)) << "after step " << to;
      for (size_t rank = 1; rank < values.size(); ++rank) {
        EXPECT_EQ(std::memcmp(values[rank][step].data(), values[0][step].data(),
                              start.size() * sizeof(float)),
                  0)
            << "rank " << rank << " after step " << to;
      }
    }
  }
}

TEST(SubNetworksTest, LocalStepsLeaveTheUnitsOfOthersAsTheyWere) {
  constexpr int64_t kSteps = 6;
  int64_t ranks = 2;  // and three in turn: every precision and every optimizer has both
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    ranks = 5 - ranks;
    for (const char* optimizer : {"sgd", "adam", "adamw", "lion"}) {
      ranks = 5 - ranks;
      MeshCase c = SubNetworks(Gpt2Model(), ranks, 3, kSteps, precision);
      c.job.optimizer.name = optimizer;
      c.job.optimizer.momentum = 0.9;
      SCOPED_TRACE(std::string(precision) + ", " + optimizer + ", " + std::to_string(ranks));
      std::vector<Values> last(static_cast<size_t>(ranks));
      OnRanks(ranks, [&](Collective& world) {
        MeshRank rank(c, world);
        Values before = rank.run.Parameters();
        for (int64_t step = 0; step < kSteps; ++step) {
          StepOf(*rank.trainer);
          const Values after = rank.run.Parameters();
          const std::vector<NumberOwner> owners =
              OwnersIn(c.job, rank.run.model->parameters(), step / 3, ranks);
          int64_t own = 0, moved = 0;
          for (size_t i = 0; i < after.size(); ++i) {
            if (owners[i].rank == world.rank()) {
              ++own;
              moved += after[i] != before[i] ? 1 : 0;
            } else if (owners[i].rank != NumberOwner::kAll && !rank.trainer->AtOuterStep()) {
              ASSERT_EQ(after[i], before[i]) << i << " in step " << step;
            }
          }
          EXPECT_GT(moved, own / 2) << "it learns";
          if (rank.trainer->AtOuterStep()) before = after;
        }
        last[static_cast<size_t>(world.rank())] = before;
      });
      for (const Values& values : last) EXPECT_EQ(values, last[0]);
    }
  }
}

TEST(SubNetworksTest, OneRankMakesTheSameBitsAsWithout) {
  for (const char* precision : {"fp32", "bf16_pure"}) {
    MeshCase c = SubNetworks(Gpt2Model(), 1, 3, 7, precision);
    const MeshOutcome own = TrainOnMesh(c)[0];
    c.job.train.local_sub_networks = false;
    const MeshOutcome plain = TrainOnMesh(c)[0];
    EXPECT_EQ(own.values, plain.values);
    EXPECT_EQ(own.state.tensors, plain.state.tensors);
    EXPECT_EQ(own.evaluation, plain.evaluation);
  }
}

TEST(SubNetworksTest, EvaluationsAreOfTheWholeNetwork) {
  const MeshCase c = SubNetworks(Gpt2Model(), 2, 2, 6);
  MeshCase plain = c;
  plain.job.train.local_sub_networks = false;
  OnRanks(2, [&](Collective& world) {
    MeshRank rank(c, world), whole(plain, world);
    for (int step = 0; step < 4; ++step) StepOf(*rank.trainer);
    ASSERT_TRUE(rank.trainer->AtOuterStep());
    ParameterSet& to = whole.run.model->parameters();
    const ParameterSet& from = rank.run.model->parameters();
    for (int64_t p = 0; p < to.size(); ++p) {
      std::memcpy(to.value(p).data, from.value(p).data, from.value(p).Bytes());
    }
    EXPECT_TRUE(whole.trainer->Restored(whole.trainer->counters()).ok());
    const auto evaluation = rank.trainer->Evaluate(), truth = whole.trainer->Evaluate();
    ASSERT_TRUE(evaluation.ok() && truth.ok());
    EXPECT_EQ(evaluation->loss, truth->loss);
    // The next step is one of a sub-network again.
    const double loss = StepOf(*rank.trainer).loss;
    EXPECT_NE(loss, StepOf(*whole.trainer).loss);
  });
}

TEST(SubNetworksTest, BytesAndMemoryAreThoseOfTheFormulas) {
  constexpr int64_t kLocal = 3;
  MeshCase c = SubNetworks(Gpt2Model(), 2, kLocal, 2 * kLocal);
  c.job.model.width = 128;
  const MemoryBreakdown predicted =
      CountedMemory(MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)}));
  std::map<bool, double> exchanged;
  for (const bool own : {true, false}) {
    c.job.train.local_sub_networks = own;
    OnRanks(2, [&](Collective& world) {
      MeshRank rank(c, world);
      MemoryBreakdown peak;
      for (int step = 0; step < 2 * kLocal; ++step) peak = StepOf(*rank.trainer).peak_memory;
      if (world.rank() != 0) return;
      exchanged[own] = world.account().totals(CollectiveKind::kAllReduce).bytes;
      if (!own) return;
      const auto near = [](const char* what, int64_t measured, int64_t counted) {
        EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(counted),
                    0.01 * static_cast<double>(counted))
            << what;
      };
      near("parameters", peak.parameters_bytes, predicted.parameters_bytes);
      near("gradients", peak.gradients_bytes, predicted.gradients_bytes);
      // Some processors read one of the two copies of own units alone.
      EXPECT_LE(peak.optimizer_bytes, predicted.optimizer_bytes * 101 / 100);
      EXPECT_GE(peak.optimizer_bytes, predicted.optimizer_bytes * 4 / 5);
      near("activations", peak.activations_bytes, predicted.activations_bytes);
      near("workspace", peak.workspace_bytes, predicted.workspace_bytes);
    });
  }
  EXPECT_EQ(exchanged[true], exchanged[false]);
}

TEST(SubNetworksTest, MemoryHasRoomForEvaluationsOfTheWholeNetwork) {
  constexpr int64_t kRanks = 4;
  MeshCase c = SubNetworks(Gpt2Model(), kRanks, 2, 2);
  // The steps of a rank have a quarter of its neurons, and recompute them.
  c.job.model.mlp_width = 16 * c.job.model.width;
  c.job.train.eval_sequences = kBatch;
  c.plan.micro_batch = kBatch / kRanks;
  c.plan.accumulation_steps = 1;
  c.plan.block_memory_policy.assign(static_cast<size_t>(c.job.model.layers), "recompute");
  const MemoryBreakdown predicted =
      CountedMemory(MemoryInputsOf(c.job, c.plan, {ProductsOf(DType::kF32)}));
  OnRanks(kRanks, [&](Collective& world) {
    MeshRank rank(c, world);
    for (int step = 0; step < 2; ++step) StepOf(*rank.trainer);
    const MemoryBreakdown steps = rank.run.allocator.Peaks();
    rank.run.allocator.ResetPeaks();
    ASSERT_TRUE(rank.trainer->Evaluate().ok());
    const MemoryBreakdown evaluation = rank.run.allocator.Peaks();
    const auto of_passes = [](const MemoryBreakdown& memory) {
      return static_cast<double>(memory.workspace_bytes + memory.activations_bytes);
    };
    EXPECT_GT(of_passes(evaluation), 1.1 * of_passes(steps)) << "the larger one";
    EXPECT_LE(of_passes(evaluation), 1.01 * of_passes(predicted));
    // Queries, keys and values are counted besides the MLP: 3 rows of 40.
    EXPECT_GE(of_passes(evaluation), 0.8 * of_passes(predicted));
  });
}

// Ranks compute no units of others in blocks; embeddings, norms and the classifier are whole.
TEST(SubNetworksTest, PassesComputeTheOwnUnitsAlone) {
  for (const ModelSpec& model : {Gpt2Model(), GroupedModel(), BertModel(), VitModel()}) {
    SCOPED_TRACE(model.family);
    MeshCase c = SubNetworks(model, 2, 3, 3);
    c.tokens = [&] { return TokensOf(c); };
    MeshCase whole = c;
    whole.job.train.local_sub_networks = false;
    std::map<std::string, double> flops[2];
    OnRanks(2, [&](Collective& world) {
      for (const bool own : {true, false}) {
        MeshRank rank(own ? c : whole, world);
        Profiler profiler;
        rank.run.context.profiler = &profiler;
        StepOf(*rank.trainer);
        rank.run.context.profiler = nullptr;
        if (world.rank() != 0) continue;
        for (const auto& [name, entry] : profiler.entries()) {
          flops[own ? 0 : 1][std::string(name)] += entry.flops;
        }
      }
    });
    // All heads and neurons are halved.
    for (const char* name : {"attention forward", "attention backward"}) {
      EXPECT_GT(flops[1][name], 0) << name;
      EXPECT_NEAR(flops[0][name] / flops[1][name], 0.5, 1e-9) << name;
    }
    double own = 0, all = 0;
    for (const auto& [name, count] : flops[0]) own += count;
    for (const auto& [name, count] : flops[1]) all += count;
    c.job.resources.ranks = whole.job.resources.ranks = 2;
    const double counted = TrainingFlopsPerToken(ShapeOf(c.job), c.length()) /
                           TrainingFlopsPerToken(ShapeOf(whole.job), c.length());
    EXPECT_LT(counted, 0.8);
    EXPECT_NEAR(own / all, counted, 0.05);
  }
}

TEST(SubNetworksTest, APlanForMoreRanksThanUnitsIsRefused) {
  const MeshCase c = SubNetworks(Gpt2Model(), 2, 2, 4);
  TinyRun run(c.job.model, ModelOptionsOf(c.plan, c.job.train));
  const auto start = [&](int64_t ranks) {
    TrainingParts parts;
    parts.job = &c.job;
    parts.context = &run.context;
    parts.parameters = &run.model->parameters();
    parts.data_ranks = ranks;
    Status status;
    for (const auto& technique : run.model->techniques()) status = technique->OnTraining(parts);
    return status;
  };
  EXPECT_TRUE(start(4).ok());
  EXPECT_THAT(start(5).message(),
              testing::AllOf(testing::HasSubstr("4 heads of keys and values"),
                             testing::HasSubstr("hint: resources.ranks 4 or fewer")));
}

}  // namespace
}  // namespace weft::engine
