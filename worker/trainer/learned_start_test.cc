// A growth that is learned, on one rank and on several.
#include "worker/trainer/learned_start.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/parameter_list.h"
#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

/// Steps of the rate below move no weight by more.
constexpr double kMoved = 1e-11;

class LearnedStartTest : public PhasesTest {
 protected:
  /// Learns to grow from half the width and one block. Then a step leaves the weights as they are.
  JobSpec Growing(const std::string& family) const {
    JobSpec job = VCycleOf(family);
    job.phases = {Phase(4), Phase(1, "ligo")};
    job.phases[0].layers = 1;
    job.phases[0].width = 16;
    job.phases[1].learning_rate = 1e-12;
    job.phases[1].growth.fit_steps = 5;
    job.phases[1].growth.fit_learning_rate = 3e-3;
    return job;
  }

  /// All weights that a run has ended with, one behind the other.
  std::vector<float> Weights(const std::string& run) const {
    const engine::CheckpointManifest manifest = Manifest(run);
    const auto tensors = TrainedTensors::Open(
        Env::Posix(), engine::CheckpointPath(Folder(run), manifest.step), manifest);
    EXPECT_TRUE(tensors.ok()) << tensors.status().message();
    std::vector<float> all;
    for (const ParameterInfo& parameter : ParametersOf(manifest.job.model)) {
      Shape shape;
      for (const int64_t size : parameter.shape) shape.dims[shape.rank++] = size;
      std::vector<float> values(static_cast<size_t>(shape.Elements()));
      const Status loaded = tensors->Load({{parameter.name, {values.data(), DType::kF32, shape}}});
      EXPECT_TRUE(loaded.ok()) << loaded.message();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  /// The largest difference of a weight.
  double Distance(const std::string& a, const std::string& b) const {
    const std::vector<float> of_a = Weights(a), of_b = Weights(b);
    EXPECT_EQ(of_a.size(), of_b.size());
    double distance = 0;
    for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
      distance = std::max(distance, std::abs(static_cast<double>(of_a[i]) - of_b[i]));
    }
    return distance;
  }

  void RunLastBy(const std::string& from, const JobSpec& job, const std::string& to,
                 const PlanChange& change) const {
    Plan plan = engine::TinyPlan("fp32");
    change(plan);
    RunLast(from, job, to, plan);
  }

  /// Has two ranks learn what run `from` has, as run `to`.
  void Learn(const std::string& from, const JobSpec& job, const std::string& to,
             const PlanChange& change) {
    SCOPED_TRACE(to);
    RunLastBy(from, job, to, change);
    EXPECT_EQ(Manifest(to).data_offset, Manifest(from).data_offset);
    EXPECT_DOUBLE_EQ(Summary(to).training_flops, Summary(from).training_flops);
  }
};

/// Two data-parallel ranks with these changes.
PlanChange OnTwo(const PlanChange& change) {
  return [change](Plan& plan) {
    plan.micro_batch = 2;
    plan.mesh.data = 2;
    change(plan);
  };
}

PlanChange OnZero(int64_t stage) {
  return OnTwo([stage](Plan& plan) { plan.zero_stage = stage; });
}

const PlanChange kTensor = [](Plan& plan) { plan.mesh.tensor = 2; };
const PlanChange kContext = [](Plan& plan) { plan.mesh.context = 2; };

/// In two micro-batches.
PlanChange InTwo(const PlanChange& change) {
  return [change](Plan& plan) {
    plan.micro_batch = plan.accumulation_steps = 2;
    change(plan);
  };
}
const PlanChange kPipeline = InTwo([](Plan& plan) {
  plan.mesh.pipeline = 2;
  plan.stage_blocks = {1, 1};
});

PlanChange Recomputed(int64_t zero_stage) {
  return OnTwo([zero_stage](Plan& plan) {
    plan.zero_stage = zero_stage;
    plan.block_memory_policy = {"recompute", "attention"};
  });
}

PlanChange Offloaded(int64_t zero_stage) {
  return OnTwo([zero_stage](Plan& plan) {
    plan.zero_stage = zero_stage;
    plan.offload_optimizer = plan.offload_parameters = plan.offload_activations = "host";
  });
}

TEST_F(LearnedStartTest, TheLossOfTheFitFallsInEachFamily) {
  for (const std::string family : {"gpt2", "llama", "bert", "vit"}) {
    SCOPED_TRACE(family);
    JobSpec job = Growing(family);
    job.train.global_batch = 16;
    job.phases[1].growth.fit_steps = 40;
    ASSERT_TRUE(Run(family, job).ok());
    std::smatch losses;
    const std::regex pattern("learned in 40 steps from loss ([0-9.e+-]+) to ([0-9.e+-]+)");
    ASSERT_TRUE(std::regex_search(events_, losses, pattern)) << events_;
    EXPECT_LT(std::stod(losses[2]), std::stod(losses[1]));
  }
}

// Of a model that they share each has the whole meanwhile, and all the data of their replica.
TEST_F(LearnedStartTest, RanksOfOneReplicaLearnWhatOneRankDoes) {
  const JobSpec job = Growing("gpt2");
  ASSERT_TRUE(Run("one", job).ok());
  Learn("one", job, "tensor", kTensor);
  Learn("one", job, "context", kContext);
  EXPECT_LE(Distance("tensor", "one"), kMoved);
  EXPECT_LE(Distance("context", "one"), kMoved);
  Learn("one", job, "tensor-in-two", InTwo(kTensor));
  Learn("one", job, "pipeline", kPipeline);
  EXPECT_LE(Distance("pipeline", "tensor-in-two"), kMoved);
}

TEST_F(LearnedStartTest, RanksThatShareOrOffloadStateLearnWhatOthersDo) {
  const JobSpec job = Growing("gpt2");
  ASSERT_TRUE(Run("one", job).ok());
  Learn("one", job, "data", OnZero(0));
  // Gradients of two ranks are rounded otherwise than those of one.
  EXPECT_NEAR(*Summary("data").start_validation_loss_nats,
              *Summary("one").start_validation_loss_nats, 1e-4);
  Learn("one", job, "zero-1", OnZero(1));
  Learn("one", job, "zero-2", OnZero(2));
  Learn("one", job, "zero-3", OnZero(3));
  Learn("one", job, "recomputed", Recomputed(0));
  Learn("one", job, "offloaded", Offloaded(2));
  Learn("one", job, "offloaded-3", Offloaded(3));
  for (const char* spread :
       {"zero-1", "zero-2", "zero-3", "recomputed", "offloaded", "offloaded-3"}) {
    EXPECT_LE(Distance(spread, "data"), kMoved) << spread;
  }
}

TEST_F(LearnedStartTest, RanksOfOtherFamiliesLearnTogether) {
  const JobSpec llama = Growing("llama"), bert = Growing("bert"), vit = Growing("vit");
  ASSERT_TRUE(Run("llama", llama).ok());
  Learn("llama", llama, "llama-tensor", kTensor);
  EXPECT_LE(Distance("llama-tensor", "llama"), kMoved);
  ASSERT_TRUE(Run("bert", bert).ok());
  Learn("bert", bert, "bert-data", OnZero(0));
  Learn("bert", bert, "bert-zero-3", OnZero(3));
  EXPECT_LE(Distance("bert-zero-3", "bert-data"), kMoved);
  ASSERT_TRUE(Run("vit", vit).ok());
  Learn("vit", vit, "vit-data", OnZero(0));
  Learn("vit", vit, "vit-recomputed", Recomputed(2));
  EXPECT_LE(Distance("vit-recomputed", "vit-data"), kMoved);
}

TEST_F(LearnedStartTest, ExpertParallelRanksLearnWithAllExperts) {
  JobSpec job = Growing("llama");
  job.model.experts = 2;
  ASSERT_TRUE(Run("experts", job).ok());
  Learn("experts", job, "experts-data", OnZero(0));
  Learn("experts", job, "experts-shared", [](Plan& plan) {
    plan.micro_batch = 2;
    plan.mesh.expert = 2;
  });
  EXPECT_LE(Distance("experts-shared", "experts-data"), kMoved);
}

// Ranks of a worker that makes local steps sum their gradients while they learn.
TEST_F(LearnedStartTest, WorkersThatMakeLocalStepsLearnTogether) {
  JobSpec job = Growing("gpt2");
  ASSERT_TRUE(Run("one", job).ok());
  Learn("one", job, "data", OnZero(0));
  job.train.local_steps = 2;
  job.phases[1].steps = 2;
  RunLastBy("one", job, "local", OnZero(0));
  EXPECT_NEAR(*Summary("local").start_validation_loss_nats,
              *Summary("data").start_validation_loss_nats, 1e-6);
}

}  // namespace
}  // namespace weft::trainer
