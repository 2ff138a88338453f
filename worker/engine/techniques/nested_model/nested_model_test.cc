// A network within the network, against plain networks of its size.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "common/model/tensor_traffic.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/nested_model/nested_model_cost.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;
using Doubles = std::vector<double>;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

JobSpec Job(const std::string& family = "gpt2") {
  JobSpec job = TinyJob(4);
  job.model.family = family;
  job.model.layers = 3;
  job.model.mlp_width = 48;
  job.train.nested_model = {.layers = 2, .mlp_width = 20, .weight = 0.5, .joint_share = 0.05};
  job.train.eval_sequences = 8;
  return job;
}

JobSpec Plain(JobSpec job) {
  job.train.nested_model = {};
  return job;
}

JobSpec Small(JobSpec job) {
  job.model = NestedModelOf(job.model, job.train.nested_model);
  return Plain(job);
}

/// Calls `visit` with the index of each number of parameter `i` of a smaller network in its own
/// tensor and in the larger network's of that name.
template <class Visit>
void ForEachShared(const Parameter& small, const Parameter& large, Visit&& visit) {
  const int64_t columns = small.shape.Elements() / small.shape[0];
  const int64_t all_columns = large.shape.Elements() / large.shape[0];
  for (int64_t row = 0; row < small.shape[0]; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      visit(row * columns + column, row * all_columns + column);
    }
  }
}

/// Gives `small` the first rows and columns of `large`.
void TakeFirst(const ParameterSet& large, TinyRun& small) {
  ParameterSet& own = small.model->parameters();
  for (int64_t i = 0; i < own.size(); ++i) {
    const int64_t from = large.Find(own[i].name).value();
    ForEachShared(own[i], large[from], [&](int64_t to, int64_t of) {
      own.value(i).As<float>()[to] = large.value(from).As<float>()[of];
    });
  }
  WEFT_CHECK(small.model->Pack(small.context).ok(), "pack");
}

void Select(TinyRun& run, bool selected) {
  for (const auto& technique : run.model->techniques()) technique->SelectSubNetwork(selected);
}

TEST(NestedModelTest, TheSelectedNetworkComputesWhatOneOfItsSizeDoes) {
  auto batch = TinyTokens().Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* activation : {"", "squared_relu"}) {
      if (family == std::string("llama") && *activation != '\0') continue;
      for (const char* policy : {"keep", "recompute"}) {
        SCOPED_TRACE(std::string(family) + " " + activation + " " + policy);
        JobSpec job = Job(family);
        if (*activation != '\0') job.model.activation = activation;
        Plan plan = TinyPlan("fp32");
        plan.block_memory_policy = {policy, policy, policy};
        TinyRun run(job.model, ModelOptionsOf(plan, job.train));
        TinyRun plain(job.model, ModelOptionsOf(plan));
        TinyRun small(Small(job).model, ModelOptionsOf(TinyPlan("fp32")));
        TakeFirst(run.model->parameters(), small);
        EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch)) << "not selected";
        EXPECT_EQ(run.Differentiate(*batch), plain.Differentiate(*batch));
        EXPECT_EQ(run.Gradients(), plain.Gradients());

        Select(run, true);
        const std::vector<float> logits = run.Logits(*batch), expected = small.Logits(*batch);
        for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-5);
        EXPECT_NEAR(run.Differentiate(*batch), small.Differentiate(*batch), 1e-4);
        const ParameterSet &all = run.model->parameters(), &own = small.model->parameters();
        for (int64_t i = 0; i < all.size(); ++i) {
          std::vector<float> rest = ValuesOf(all.gradient(i));
          const auto index = own.Find(all[i].name);
          if (index.ok()) {
            const std::vector<float> gradient = ValuesOf(own.gradient(*index));
            ForEachShared(own[*index], all[i], [&](int64_t of_own, int64_t of_all) {
              ASSERT_NEAR(rest[of_all], gradient[of_own], 1e-4) << all[i].name;
              rest[of_all] = 0;
            });
          }
          for (float value : rest) ASSERT_EQ(value, 0) << all[i].name;
        }
      }
    }
  }
}

TEST(NestedModelTest, AStepFollowsTheGradientsOfBothNetworks) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    RandomTokens tokens = TinyTokens();
    JobSpec job = Job(family);
    job.optimizer.name = "sgd";
    job.optimizer.learning_rate = 0.25;
    job.optimizer.momentum = 0;
    job.optimizer.weight_decay = 0;
    job.train.gradient_clip_norm = 0;
    job.schedule.kind = "constant";
    TinyTraining run(job, TinyPlan("fp32", 2, 2), tokens);
    const ParameterSet& parameters = run.model->parameters();
    TinyRun large(job.model, ModelOptionsOf(TinyPlan("fp32")));
    TinyRun small(Small(job).model, ModelOptionsOf(TinyPlan("fp32")));
    TakeFirst(parameters, small);
    auto batch = tokens.Get(0, 0, 4);
    ASSERT_TRUE(batch.ok());
    const double loss = large.Differentiate(*batch) / static_cast<double>(batch->target_count);
    small.Differentiate(*batch);
    EXPECT_NEAR(run.Step().loss, loss, 1e-5) << "that of the whole network";

    const ParameterSet &all = large.model->parameters(), &own = small.model->parameters();
    for (int64_t i = 0; i < all.size(); ++i) {
      const std::vector<float> whole = ValuesOf(all.gradient(i));
      Doubles gradient(whole.begin(), whole.end());
      if (const auto index = own.Find(all[i].name); index.ok()) {
        const std::vector<float> nested = ValuesOf(own.gradient(*index));
        ForEachShared(own[*index], all[i], [&](int64_t of_own, int64_t of_all) {
          gradient[of_all] += 0.5 * nested[of_own];
        });
      }
      const std::vector<float> before = ValuesOf(all.value(i)),
                               after = ValuesOf(parameters.value(i));
      for (size_t e = 0; e < after.size(); ++e) {
        ASSERT_NEAR(after[e],
                    before[e] - 0.25 * gradient[e] / static_cast<double>(batch->target_count), 1e-5)
            << all[i].name;
      }
    }
  }
}

/// The state of `from` in `to`, which goes on from there.
void Continue(TinyTraining& from, TinyTraining& to) {
  const std::vector<NamedTensor> state = from.trainer->StateTensors();
  const std::vector<NamedTensor> own = to.trainer->StateTensors();
  ASSERT_EQ(state.size(), own.size());
  for (size_t i = 0; i < state.size(); ++i) {
    ASSERT_EQ(state[i].name, own[i].name);
    std::memcpy(own[i].view.data, state[i].view.data, state[i].view.Bytes());
  }
  ASSERT_TRUE(to.trainer->Restored(from.trainer->counters()).ok());
}

// 5 of 100 steps train both.
TEST(NestedModelTest, StepsAfterTheJointOnesAreThoseOfThePlainNetwork) {
  RandomTokens tokens = TinyTokens();
  const JobSpec job = Job();
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  TinyTraining plain(Plain(job), TinyPlan("fp32"), tokens);
  for (int i = 0; i < 4; ++i) run.Step();
  Continue(run, plain);
  EXPECT_EQ(run.Step().loss, plain.Step().loss) << "before the update";
  EXPECT_NE(run.Parameters(), plain.Parameters());
  Continue(run, plain);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.Step().loss, plain.Step().loss);
  EXPECT_EQ(run.Parameters(), plain.Parameters());
}

TEST(NestedModelTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens = TinyTokens();
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    if (precision->block_products != nullptr) continue;  // It is refused.
    SCOPED_TRACE(precision->name);
    const JobSpec job = Job();
    Plan plan = TinyPlan(std::string(precision->name), 2, 2);
    TinyTraining whole(job, plan, tokens);
    for (int i = 0; i < 3; ++i) whole.Step();
    plan.block_memory_policy = {"recompute", "recompute", "recompute"};
    TinyTraining resumed(job, plan, tokens);
    ASSERT_TRUE(resumed.model->parameters().Initialize(99).ok());
    Continue(whole, resumed);
    for (int i = 0; i < 4; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
    EXPECT_EQ(resumed.Parameters(), whole.Parameters());
  }
}

TEST(NestedModelTest, EvaluationMeasuresBothNetworksAndChangesNothing) {
  RandomTokens tokens = TinyTokens();
  const JobSpec job = Job();
  TinyTraining run(job, TinyPlan("fp32"), tokens), other(job, TinyPlan("fp32"), tokens);
  for (int i = 0; i < 3; ++i) {
    run.Step();
    other.Step();
  }
  const EvaluationReport report = *run.trainer->Evaluate();
  TinyTraining small(Small(job), TinyPlan("fp32"), tokens);
  TakeFirst(run.model->parameters(), small);
  ASSERT_TRUE(small.trainer->Restored({}).ok());
  EXPECT_NEAR(report.technique_metrics.at("nested_eval_loss_nats"), small.trainer->Evaluate()->loss,
              1e-5);
  EXPECT_NE(report.technique_metrics.at("nested_eval_loss_nats"), report.loss);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.Step().loss, other.Step().loss);
  EXPECT_EQ(run.Parameters(), other.Parameters());
}

TEST(NestedModelTest, RanksAgreeWithOneRank) {
  constexpr int kRanks = 2;
  const JobSpec job = Job();
  RandomTokens alone = TinyTokens();
  TinyTraining one(job, TinyPlan("fp32", 2, 2), alone);
  for (int i = 0; i < 4; ++i) one.Step();
  std::vector<float> parameters[kRanks];
  RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
    RandomTokens tokens = TinyTokens();
    Plan plan = TinyPlan("fp32", 1, 2);
    plan.mesh.data = kRanks;
    TinyRun run(job.model, ModelOptionsOf(plan, job.train));
    DataParallel reducer(&group, &run.model->parameters(), 4096);
    auto trainer = Trainer::New(job, plan,
                                {.context = &run.context,
                                 .model = run.model.get(),
                                 .train = &tokens,
                                 .reducer = &reducer,
                                 .rank = group.rank()});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE((*trainer)->Step().ok());
    parameters[group.rank()] = run.Parameters();
  });
  EXPECT_EQ(parameters[1], parameters[0]);
  const std::vector<float> expected = one.Parameters();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(parameters[0][i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-3);
}

// Each of two ranks has 24 of 48 neurons: the first one has all 20 of the nested network. With 36
// neurons the first one has 18 of these, and the second one the other two.
TEST(NestedModelTest, TensorParallelRanksFollowOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const int64_t neurons : {48, 36}) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(std::string(family) + ", " + std::to_string(neurons) + " neurons" +
                     (sequence ? ", sequence-parallel" : ""));
        MeshCase c{Job(family), TinyPlan("fp32", 2, 2)};
        c.job.model.mlp_width = neurons;
        c.job.train.steps = 6;
        c.job.train.nested_model.joint_share = 0.5;
        c.plan.mesh.tensor = 2;
        c.plan.sequence_parallel = sequence;
        ExpectFollows(TrainOnMesh(c), TrainOnMesh(c.Whole())[0], 1e-5, 1e-4);
      }
    }
  }
}

TEST(NestedModelTest, TensorParallelRanksSendOfTheSecondPassWhatTheTrafficModelSays) {
  for (const char* policy : {"keep", "recompute"}) {
    SCOPED_TRACE(policy);
    std::map<bool, double> sent;  // In a joint step, and without the nested network.
    MeshCase c{Job(), TinyPlan("fp32", 4)};
    c.plan.mesh.tensor = 2;
    c.plan.block_memory_policy = {policy, policy, policy};
    for (const bool nested : {true, false}) {
      MeshCase own = c;
      if (!nested) own.job = Plain(own.job);
      RunRanks(2, std::chrono::seconds(20), [&](Collective& world) {
        MeshRank rank(own, world);
        const auto bytes = [&] {
          return rank.ranks.tensor->group().account().totals(CollectiveKind::kAllReduce).bytes;
        };
        const double before = bytes();
        ASSERT_TRUE(rank.trainer->Step().ok());
        if (world.rank() == 0) sent[nested] = bytes() - before;
      });
    }
    ModelShape shape(c.job.model, 2);
    shape.spec.layers = c.job.train.nested_model.layers;
    const int64_t recomputed = policy == std::string("keep") ? 0 : shape.spec.layers;
    const TensorTraffic second = TrafficOfRow({.shape = shape,
                                               .tokens = 4 * c.length(),
                                               .element_bytes = sizeof(float),
                                               .recomputed_blocks = recomputed});
    EXPECT_EQ(sent[true] - sent[false], static_cast<double>(second.summed));
  }
}

TEST(NestedModelTest, BothNetworksLearn) {
  CountingTokens tokens(7, 16);
  JobSpec job = Job();
  job.train.nested_model.joint_share = 0.6;
  job.optimizer.learning_rate = 3e-3;
  job.schedule.kind = "constant";
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  TinyTraining plain(Plain(job), TinyPlan("fp32"), tokens);
  const EvaluationReport before = *run.trainer->Evaluate();
  for (int i = 0; i < 60; ++i) {
    run.Step();
    plain.Step();
  }
  const EvaluationReport after = *run.trainer->Evaluate();
  EXPECT_LT(after.loss, before.loss - 0.5);
  const double nested = after.technique_metrics.at("nested_eval_loss_nats");
  EXPECT_LT(nested, before.technique_metrics.at("nested_eval_loss_nats") - 0.5);
  // What the first blocks of a network that was trained by itself come to.
  TinyTraining cut(Small(job), TinyPlan("fp32"), tokens);
  TakeFirst(plain.model->parameters(), cut);
  ASSERT_TRUE(cut.trainer->Restored({}).ok());
  EXPECT_LT(nested, cut.trainer->Evaluate()->loss);
}

// The passes follow each other: only the masks of neurons are there besides.
TEST(NestedModelTest, MemoryIsWhatIsPredicted) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    JobSpec job = Job(family);
    job.model.width = 128;
    job.model.heads = 4;
    job.model.mlp_width = 512;
    job.model.context = 64;
    job.train.nested_model = {.layers = 2, .mlp_width = 256, .joint_share = 1};
    const Plan plan = TinyPlan("fp32", 2, 2);
    RandomTokens tokens(job.model.vocab_size, job.model.context);
    TinyTraining run(job, plan, tokens);
    run.Step();
    const MemoryBreakdown measured = run.Step().peak_memory;
    const MemoryBreakdown predicted =
        PredictMemory(MemoryInputsOf(job, plan, {ProductKind::kNative}));
    const auto near = [](int64_t own, int64_t truth) {
      EXPECT_NEAR(static_cast<double>(own), static_cast<double>(truth),
                  0.02 * static_cast<double>(truth));
    };
    near(predicted.parameters_bytes, measured.parameters_bytes);
    near(predicted.gradients_bytes, measured.gradients_bytes);
    near(predicted.activations_bytes, measured.activations_bytes);
    near(predicted.optimizer_bytes, measured.optimizer_bytes);
  }
}

TEST(NestedModelTest, RefusesWhatIsNoNetworkWithin) {
  JobSpec job = Job();
  job.data.train = {"text.txt"};
  const auto refusal = [&](const NestedModelSpec& spec) {
    job.train.nested_model = spec;
    return ValidateJob(job).message();
  };
  EXPECT_EQ(refusal({.layers = 1}), "");
  EXPECT_THAT(refusal({.layers = 4}), HasSubstr("layers 4 is more than model.layers 3"));
  EXPECT_THAT(refusal({.layers = 1, .mlp_width = 49}), HasSubstr("more than the 48 neurons"));
  EXPECT_THAT(refusal({.layers = 3}), HasSubstr("is the whole network"));
  EXPECT_THAT(refusal({.layers = 3, .mlp_width = 48}), HasSubstr("is the whole network"));
  EXPECT_THAT(refusal({.layers = 1, .joint_share = 0}), HasSubstr("is in no step's loss"));
  EXPECT_THAT(refusal({.layers = 1, .weight = 0}), HasSubstr("is in no step's loss"));
  EXPECT_THAT(refusal({.layers = 0, .mlp_width = 8}), HasSubstr("and there is none"));
}

}  // namespace
}  // namespace weft::engine
