// AdaLoRA: how many ranks count, which ones, and that a resumed training goes on with them. That
// all is as peft computes it is in tests/parity.
#include "worker/engine/techniques/peft/adalora.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/job_spec.h"
#include "worker/engine/testing/float64_matrices.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

JobSpec RankJob(const std::string& family, int64_t delta_t = 1) {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model.family = family;
  job.model.peft.method = "adalora";
  job.model.peft.target_modules = {"all-linear"};
  job.model.peft.adalora.init_r = 4;
  job.model.peft.adalora.target_r = 2;
  job.model.peft.adalora.tinit = 2;
  job.model.peft.adalora.tfinal = 3;
  job.model.peft.adalora.delta_t = delta_t;
  job.optimizer.learning_rate = 1e-2;
  job.schedule.kind = "constant";
  job.train.steps = 12;
  return job;
}

/// Which numbers on the diagonals are not zero, adapter by adapter.
std::vector<bool> Counting(const ParameterSet& parameters) {
  std::vector<bool> counting;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].name.ends_with(".lora_E")) continue;
    for (const double each : AsDoubles(parameters.value(i))) counting.push_back(each != 0);
  }
  return counting;
}

TEST(AdaLoraTest, TheBudgetFallsAsACubeBetweenTheFirstAndTheLastSteps) {
  AdaLoraSpec spec;
  spec.tinit = 10;
  spec.tfinal = 20;
  const auto budget = [&](int64_t step) { return RankBudget(spec, step, 100, 96, 64); };
  EXPECT_EQ(budget(0), 96);
  EXPECT_EQ(budget(10), 96);
  EXPECT_EQ(budget(11), 94);  // 64 + 32 (69 / 70)³
  EXPECT_EQ(budget(45), 68);  // 64 + 32 / 8
  EXPECT_EQ(budget(80), 64);
  EXPECT_EQ(budget(99), 64);
}

TEST(AdaLoraTest, RanksAreTakenAwayInTimeAndThenStayAsTheyAre) {
  CountingTokens tokens(7, 16);
  for (const char* family : {"gpt2", "llama"}) {
    for (const int64_t delta_t : {1, 3}) {
      SCOPED_TRACE(std::string(family) + " " + std::to_string(delta_t));
      const JobSpec job = RankJob(family, delta_t);
      const AdaLoraSpec& spec = job.model.peft.adalora;
      TinyTraining run(job, TinyPlan("fp32"), tokens);
      const ParameterSet& parameters = run.model->parameters();
      const auto all = static_cast<int64_t>(Counting(parameters).size());
      const int64_t kept = all / 2;
      std::vector<bool> last;
      for (int64_t step = 0; step < job.train.steps; ++step) {
        run.Step();
        const std::vector<bool> counting = Counting(parameters);
        const int64_t count = std::count(counting.begin(), counting.end(), true);
        const bool chooses = step > spec.tinit && step < 9 && step % delta_t == 0;
        if (step >= 9) {
          EXPECT_EQ(count, kept) << step;
          if (step > 9) {
            EXPECT_EQ(counting, last) << step;
          }
          last = counting;
        } else if (chooses) {
          EXPECT_EQ(count, RankBudget(spec, step, job.train.steps, all, kept)) << step;
        } else {
          EXPECT_EQ(count, all) << step;
        }
      }
      // Not as many in each layer.
      std::vector<int64_t> of_layers;
      for (int64_t first = 0; first < all; first += spec.init_r) {
        of_layers.push_back(
            std::count(last.begin() + first, last.begin() + first + spec.init_r, true));
      }
      EXPECT_NE(*std::min_element(of_layers.begin(), of_layers.end()),
                *std::max_element(of_layers.begin(), of_layers.end()));
    }
  }
}

TEST(AdaLoraTest, FactorsBecomeOrthogonal) {
  CountingTokens tokens(7, 16);
  const auto distance = [&](double weight) {
    JobSpec job = RankJob("llama");
    job.model.peft.adalora.orth_reg_weight = weight;
    job.optimizer.weight_decay = 0;
    job.train.steps = 80;
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    for (int i = 0; i < 60; ++i) run.Step();
    const ParameterSet& parameters = run.model->parameters();
    double sum = 0;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].name.ends_with(".lora_A")) continue;
      const Doubles a = AsDoubles(parameters.value(i));
      const int64_t rank = parameters[i].shape[0], in = parameters[i].shape[1];
      Doubles product = Times(a, Transposed(a, rank, in), rank, in, rank);
      for (int64_t k = 0; k < rank; ++k) product[k * rank + k] -= 1;
      for (const double each : product) sum += each * each;
    }
    return sum;
  };
  EXPECT_LT(distance(100), 0.2 * distance(0));
}

TEST(AdaLoraTest, AResumedTrainingGoesOnBitForBit) {
  CountingTokens tokens(7, 16);
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    for (const int64_t stop : {1, 5, 9, 10}) {
      SCOPED_TRACE(std::string(precision) + " " + std::to_string(stop));
      const JobSpec job = RankJob("gpt2", 2);
      TinyTraining original(job, TinyPlan(precision, 2, 2), tokens);
      for (int64_t i = 0; i < stop; ++i) original.Step();
      TinyTraining copy(job, TinyPlan(precision, 2, 2), tokens);
      for (int64_t i = 0; i < 11; ++i) copy.Step();  // forgotten
      const auto from = original.trainer->StateTensors();
      const auto to = copy.trainer->StateTensors();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        ASSERT_EQ(from[i].name, to[i].name);
        std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
      }
      ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
      for (int64_t i = stop; i < job.train.steps; ++i) {
        EXPECT_EQ(original.Step().loss, copy.Step().loss);
      }
      EXPECT_EQ(original.Parameters(), copy.Parameters());
    }
  }
}

TEST(AdaLoraTest, MeshesChooseAsOneRankDoes) {
  const std::vector<Parallelism> meshes = {
      {.data = 2},
      {.data = 2, .zero_stage = 1},
      {.data = 2, .zero_stage = 2},
      {.data = 2, .zero_stage = 3},
      {.data = 2, .zero_stage = 3, .tensor = 2},
      {.context = 2},
      {.data = 2, .zero_stage = 1, .pipeline = 2},
  };
  MeshCase c{RankJob("llama"), TinyPlan("fp32", 2, 2)};
  c.plan.bucket_bytes = 4000;
  const MeshOutcome whole = TrainOnMesh(c).front();
  for (const Parallelism& mesh : meshes) {
    SCOPED_TRACE(mesh.Description());
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c.On(mesh));
    SavedState state;
    for (const MeshOutcome& rank : ranks) state.Add(rank.state);
    int64_t left_out = 0;
    for (const auto& [name, values] : state.tensors) {
      if (!name.ends_with(".lora_E")) continue;
      const std::vector<float>& expected = whole.values.at(name);
      for (size_t k = 0; k < values.size(); ++k) {
        EXPECT_EQ(values[k] == 0, expected[k] == 0) << name << " " << k;
        left_out += values[k] == 0 ? 1 : 0;
      }
    }
    EXPECT_GT(left_out, 0);
    ExpectFollows(ranks, whole, 2e-5, 1e-3);
  }
}

TEST(AdaLoraTest, WhatCannotBeIsRefused) {
  const auto refusal = [](const std::function<void(JobSpec&)>& change) {
    JobSpec job = RankJob("gpt2");
    change(job);
    return std::string(ValidateJob(job).message());
  };
  EXPECT_EQ(refusal([](JobSpec&) {}), "");
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.adalora.target_r = 4; }),
              HasSubstr("target_r 4 takes no ranks away from init_r 4; hint: a smaller target_r"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.adalora.tfinal = 10; }),
              HasSubstr("tinit 2 and tfinal 10 leave none of the 12 steps to choose ranks in"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.precision = "fp16"; }),
              HasSubstr("it adds to gradients; hint: train.precision bf16"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.rank = 4; }),
              HasSubstr("whose ranks change; hint: model.peft.adalora.init_r"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.model.peft.method = "lora"; }),
              HasSubstr("model.peft.adalora with method lora; hint: model.peft.method adalora"));
  EXPECT_THAT(refusal([](JobSpec& job) { job.train.gradient_clip_value = 1; }),
              HasSubstr("train.gradient_clip_norm"));
}

}  // namespace
}  // namespace weft::engine
