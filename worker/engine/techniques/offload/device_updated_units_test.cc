// Training with the state of some units in the host memory pool, of the others on the device,
// against plain training and against all in the host memory pool: the same bits, with what the
// planner predicts on either side and over the link.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/techniques/offload/mesh_testing.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using Units = std::vector<int64_t>;

Plan Keeping(const Units& units, Plan plan) {
  plan.offload_optimizer = "host";
  plan.device_updated_units = units;
  return plan;
}

// There are four units: the embeddings, whose table classifies, two blocks, and the head.
TEST(DeviceUpdatedUnits, HaveTheBitsOfPlainTrainingWhicheverTheyAre) {
  for (const Units& units : std::vector<Units>{{0}, {0, 1}, {0, 1, 2}, {1}, {2}, {3}, {1, 2, 3}}) {
    SCOPED_TRACE(::testing::PrintToString(units));
    for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
      SCOPED_TRACE(precision);
      const int64_t accumulation = units.size() == 2 ? 2 : 1;
      ExpectSame(TinyJob(4), Keeping(units, TinyPlan(precision, 4 / accumulation, accumulation)));
    }
    ExpectSame(LlamaJob(), Keeping(units, TinyPlan("bf16", 2, 2)));
  }
}

TEST(DeviceUpdatedUnits, HaveThemWithFrozenAndSharedParametersAveragesRecomputationAndClipping) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  job.model.distinct_blocks = 2;
  job.model.freeze = {"*.h.0.attn.*", "*ln_f*"};
  job.model.dropout = 0.1;
  job.model.attention_dropout = 0.1;
  job.train.averaging.every_steps = 1;
  job.train.gradient_clip_norm = 0.01;
  job.train.gradient_noise_scale = true;
  job.train.log_every_steps = 2;
  Plan plan = TinyPlan("bf16", 2, 2);
  plan.block_memory_policy = {"recompute", "keep", "recompute", "keep"};
  for (const char* kind : {"ema", "lawa"}) {
    job.train.averaging.kind = kind;
    ExpectSame(job, Keeping({0, 1}, plan));
    ExpectSame(job, Keeping({2}, plan));
  }
  // What is kept may be frozen altogether.
  job.model.freeze.emplace_back("transformer.w*");
  ExpectSame(job, Keeping({0}, plan));
}

TEST(DeviceUpdatedUnits, HaveThemWithActivationsThatWaitOnTheHost) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  Plan plan = Keeping({0, 1, 2}, TinyPlan("bf16", 2, 2));
  plan.offload_activations = "host";
  ExpectSame(job, plan);
}

TEST(DeviceUpdatedUnits, OfRanksHaveTheBitsOfTheSameRanksWithoutOffload) {
  for (const char* mesh : {"data", "tensor", "context", "expert"}) {
    SCOPED_TRACE(mesh);
    for (const char* precision : {"fp32", "bf16"}) {
      MeshCase c = CaseOf(TinyModel(), "ring", 1, 1, "keep", precision);
      c.job.train.steps = 3;
      c.plan = Keeping({0, 1}, c.plan);
      c.plan.micro_batch = 1;
      c.plan.accumulation_steps = 2;
      c.plan.bucket_bytes = kBucketBytes;
      const std::string which = mesh;
      if (which == "data") c.plan.mesh.data = 2;
      if (which == "tensor") c.plan.mesh.tensor = 2;
      if (which == "context") c.plan.mesh.context = 2;
      if (which == "expert") {
        c.plan.mesh.expert = 2;
        c.job.model.family = "llama";
        c.job.model.experts = 4;
        c.job.model.router_aux_loss = 0;
      }
      c.job.train.global_batch = 2 * c.plan.mesh.data * c.plan.mesh.expert;
      MeshCase resident = c;
      resident.plan.offload_optimizer = "none";
      resident.plan.device_updated_units.clear();
      const std::vector<Offloaded> ranks = TrainOffloaded(c);
      const std::vector<MeshOutcome> plain = TrainOnMesh(resident);
      ASSERT_EQ(ranks.size(), plain.size());
      SavedState own, other;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        own.Add(ranks[rank].state);
        other.Add(plain[rank].state);
        EXPECT_EQ(ranks[rank].evaluation, plain[rank].evaluation);
        for (size_t step = 0; step < ranks[rank].reports.size(); ++step) {
          EXPECT_EQ(ranks[rank].reports[step].loss, plain[rank].reports[step].loss);
          EXPECT_EQ(ranks[rank].reports[step].gradient_norm,
                    plain[rank].reports[step].gradient_norm);
        }
      }
      EXPECT_EQ(Differing(own.tensors, other.tensors), "");
    }
  }
}

TEST(DeviceUpdatedUnits, SendNothingOverTheLink) {
  for (const int64_t accumulation : {1, 3}) {
    Training training(TinyJob(6), Keeping({0, 2}, TinyPlan("fp32", 6 / accumulation, accumulation)),
                      true);
    ASSERT_TRUE(training.trainer->Step().ok());  // packs twice
    HostMemoryPool& host = *training.context.host;
    ASSERT_TRUE(host.up().WaitForAll().ok());
    const LinkTotals down = host.down().totals(), up = host.up().totals();
    ASSERT_TRUE(training.trainer->Step().ok());
    ASSERT_TRUE(host.up().WaitForAll().ok());
    const ParameterSet& parameters = training.model->parameters();
    int64_t numbers = 0;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].unit % 2 == 1) numbers += parameters[i].shape.Elements();
    }
    EXPECT_EQ(host.down().totals().bytes - down.bytes, 4 * accumulation * numbers);
    EXPECT_EQ(host.up().totals().bytes - up.bytes, 4 * accumulation * numbers)
        << "sums of earlier micro-batches, and weights";
  }
}

TEST(DeviceUpdatedUnits, TakeOfEachTierWhatThePlannerPredicts) {
  JobSpec job = TinyJob(2);
  job.model.layers = 6;
  job.model.width = 128;
  job.model.vocab_size = 3000;
  job.model.context = 64;
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    for (const Units& units : std::vector<Units>{{0}, {0, 1, 2}, {1, 2, 3, 4, 5, 6}, {0, 3, 7}}) {
      SCOPED_TRACE(precision + ::testing::PrintToString(units));
      const Plan plan = Keeping(units, TinyPlan(precision, 2));
      Training training(job, plan, true);
      ASSERT_TRUE(training.trainer->Step().ok() && training.trainer->Step().ok());
      const MemoryInputs inputs =
          MemoryInputsOf(job, training.plan, {ProductsOf(PrecisionOf(precision).products)});
      const MemoryBreakdown all = PredictMemory(inputs), device = PredictDeviceTier(inputs);
      const MemoryBreakdown on_device = training.context.allocator->Peaks();
      const MemoryBreakdown on_host = training.context.host->allocator().Peaks();
      const auto near = [&](const char* what, int64_t MemoryBreakdown::*part) {
        EXPECT_NEAR(static_cast<double>(device.*part) / static_cast<double>(on_device.*part), 1,
                    0.01)
            << what << " on the device";
        EXPECT_NEAR(
            static_cast<double>(all.*part - device.*part) / static_cast<double>(on_host.*part), 1,
            0.01)
            << what << " on the host";
      };
      near("parameters", &MemoryBreakdown::parameters_bytes);
      near("gradients", &MemoryBreakdown::gradients_bytes);
      near("optimizer", &MemoryBreakdown::optimizer_bytes);
    }
  }
}

TEST(DeviceUpdatedUnits, GoOnFromTheStateOfAnyOtherPlacement) {
  const JobSpec job = TinyJob(4);
  const Plan plan = TinyPlan("bf16");
  Training undisturbed(job, plan, false);
  const std::vector<std::pair<std::string, Units>> placements = {
      {"host", {0, 1}}, {"host", {}}, {"host", {2, 3}}, {"nvme", {}}, {"host", {0}}, {"none", {}}};
  const auto make = [&](const std::pair<std::string, Units>& placement) {
    Plan own = plan;
    own.offload_optimizer = placement.first;
    own.device_updated_units = placement.second;
    return std::make_unique<Training>(job, own, placement.first != "none");
  };
  std::unique_ptr<Training> from = make(placements.back());
  for (const auto& placement : placements) {
    SCOPED_TRACE(placement.first + ::testing::PrintToString(placement.second));
    ASSERT_TRUE(undisturbed.trainer->Step().ok() && from->trainer->Step().ok());
    ASSERT_TRUE(from->trainer->FinishUpdates().ok());
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/c").ok());
    auto file = WriteTensorFile(env, "/c", 0, 1, from->trainer->StateTensors());
    ASSERT_TRUE(file.ok()) << file.status().message();
    CheckpointManifest manifest;
    manifest.files = {*file};
    std::unique_ptr<Training> to = make(placement);
    const Status loaded = LoadTensors(env, "/c", manifest, to->trainer->StateTensors());
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    ASSERT_TRUE(to->trainer->Restored(from->trainer->counters()).ok());
    from = std::move(to);
  }
  EXPECT_EQ(Differing(from->State(), undisturbed.State()), "");
}

}  // namespace
}  // namespace weft::engine
