#include "worker/engine/techniques/pruning/pruned_products.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "kernels/cpu/isa.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/pruning/pruning_cost.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

JobSpec JobOf(const std::string& method, const std::string& products, double density = 0.2) {
  JobSpec job = TinyJob(4);
  job.model.width = 64;
  job.train.steps = 12;
  PruningSpec& spec = job.train.pruning;
  spec.method = method;
  spec.density = density;
  spec.interval = 3;
  spec.rounds = method == "lottery_ticket" ? 1 : 5;
  spec.products = products;
  return job;
}

TEST(PrunedProducts, AreOfTheKeptWeightsWhereTheseAreFew) {
  PruningSpec spec;
  // On a CPU without and with AMX, and on a GPU.
  for (const auto& [products, compute, density, on_cpu, on_cuda] :
       std::vector<std::tuple<std::string, DType, double, bool, bool>>{
           {"auto", DType::kF32, 0.05, true, false},
           {"auto", DType::kF32, 0.3, true, false},
           {"auto", DType::kF32, 0.5, false, false},
           {"auto", DType::kBF16, 0.05, false, false},
           {"sparse", DType::kBF16, 0.9, true, true},
           {"sparse", DType::kF32, 1, false, false},
           {"dense", DType::kF32, 0.05, false, false}}) {
    spec.products = products;
    const auto sparse = [&](ComputeUnits units) {
      return UsesSparseProducts(spec, compute, density, units);
    };
    EXPECT_EQ(sparse(ComputeUnits::kCpuVector), on_cpu) << products << " " << density;
    EXPECT_EQ(sparse(ComputeUnits::kCpuMatrix), on_cuda) << products << " " << density;
    EXPECT_EQ(sparse(ComputeUnits::kCuda), on_cuda) << products << " " << density;
  }
}

// Losses, gradients and what is exchanged, through steps that choose, exchange and begin anew.
TEST(PrunedProducts, TrainAsDenseOnesDo) {
  for (const char* method : {"random", "snip", "set", "rigl", "lottery_ticket"}) {
    for (const char* family : {"gpt2", "llama", "bert"}) {
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(method) + " " + family + " " + precision);
        std::vector<StepReport> reports[2];
        for (const bool sparse : {false, true}) {
          JobSpec job = JobOf(method, sparse ? "sparse" : "dense");
          job.model.family = family;
          RandomTokens tokens(job.model.vocab_size, job.model.context);
          TinyTraining run(job, TinyPlan(precision, 2, 2), tokens);
          while (!run.trainer->finished()) reports[sparse].push_back(run.Step());
        }
        // Sums in another order; in bf16 a rounding of each product besides.
        const double near = precision == std::string("fp32") ? 2e-5 : 2e-2;
        for (size_t step = 0; step < reports[0].size(); ++step) {
          SCOPED_TRACE(step);
          const StepReport &dense = reports[0][step], &sparse = reports[1][step];
          EXPECT_NEAR(sparse.loss, dense.loss, near * dense.loss);
          EXPECT_NEAR(sparse.gradient_norm, dense.gradient_norm, 5 * near * dense.gradient_norm);
        }
      }
    }
  }
}

// One of two tensor-parallel ranks has most of the kept weights. Both have the products that the
// density of the whole matrix asks for.
TEST(PrunedProducts, OfTensorParallelRanksFollowTheDensityOfTheWholeMatrix) {
  constexpr int64_t kRows = 16, kColumns = 64;
  /// Bytes of what a rank with a mask that keeps the first `kept` weights multiplies with.
  const auto packed = [](Collective& world, const std::string& products, int64_t kept) {
    Allocator allocator;
    Context context;
    context.allocator = &allocator;
    ParameterSet parameters;
    const Linear owner(&parameters, {{{"a", kRows}}, kColumns}, DType::kF32);
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    std::vector<uint8_t> mask(kRows * kColumns, 0);
    std::fill_n(mask.begin(), kept, uint8_t{1});
    PruningSpec spec;
    spec.products = products;
    PrunedMode mode;
    mode.masks[owner.weight_index()] = {mask.data(), DType::kU8, {kRows, kColumns}};
    mode.tensor_ranks = &world;
    mode.chosen = true;
    mode.version = 1;
    const LinearLayer layer{
        .parameters = &parameters, .weight = owner.weight_index(), .in_features = kColumns};
    PrunedProducts pruned(layer, spec, &mode);
    const int64_t before = allocator.live_bytes(Component::kParameters);
    const Status status = pruned.Pack(context, Repack::kAll);
    WEFT_CHECK(status.ok(), status.message());
    return allocator.live_bytes(Component::kParameters) - before;
  };
  RunRanks(2, std::chrono::seconds(60), [&](Collective& world) {
    const bool first = world.rank() == 0;
    const int64_t most = first ? 512 : 20, more = first ? 700 : 20;
    // Dense products in f32 run on AMX where there is AMX.
    const bool amx = kernels::cpu::ActiveIsa() >= kernels::cpu::Isa::kAmx;
    EXPECT_EQ(packed(world, "auto", most), packed(world, amx ? "dense" : "sparse", most))
        << "0.26 of all";
    EXPECT_EQ(packed(world, "auto", more), packed(world, "dense", more)) << "0.35 of all";
    EXPECT_NE(packed(world, "sparse", more), packed(world, "dense", more));
  });
}

TEST(PrunedProducts, AreInThePredictedMemoryAndTime) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const double density : {0.05, 0.25}) {
      SCOPED_TRACE(std::string(family) + " " + std::to_string(density));
      JobSpec job = JobOf("magnitude", "auto", density);
      job.model.family = family;
      job.model.width = 256;
      job.train.precision = "fp32";
      const Plan plan = TinyPlan("fp32", 2, 2);
      RandomTokens tokens(job.model.vocab_size, job.model.context);
      TinyTraining run(job, plan, tokens);
      MemoryBreakdown measured;
      for (int64_t step = 0; step < 4; ++step) measured = run.Step().peak_memory;
      const MemoryMachine machine{ProductsOf(run.model->precision().products)};
      const MemoryBreakdown predicted = PredictMemory(MemoryInputsOf(job, plan, machine));
      const auto truth = static_cast<double>(measured.parameters_bytes);
      EXPECT_NEAR(static_cast<double>(predicted.parameters_bytes), truth, 0.02 * truth);
      EXPECT_LT(TechniqueProductsOf(job.train, ComputeUnits::kCpuVector).seconds_share, 0.65);
      EXPECT_EQ(TechniqueProductsOf(job.train, ComputeUnits::kCuda).dense_share, 1)
          << "on GPUs they are dense";
    }
  }
}

// Estimates: the planner expects cuSPARSE to pay at the lowest densities alone, in bf16 at lower
// ones, and says how much longer a step takes where it does not.
TEST(PrunedProducts, OfGpusAreExpectedToPayWhereFewWeightsAreKept) {
  JobSpec job = JobOf("magnitude", "sparse");
  const auto seconds = [&](const std::string& precision, double density) {
    job.train.precision = precision;
    job.train.pruning.density = density;
    return TechniqueProductsOf(job.train, ComputeUnits::kCuda).seconds_share;
  };
  EXPECT_LT(seconds("fp32", 0.01), 0.7);
  EXPECT_GT(seconds("fp32", 0.01), 1.0 / 3) << "gradients of weights are dense";
  EXPECT_NEAR(seconds("fp32", 0.02), 1, 1e-12);
  EXPECT_GT(seconds("fp32", 0.2), 3);
  EXPECT_LT(seconds("bf16", 0.001), 0.7);
  EXPECT_GT(seconds("bf16", 0.01), 1);
  // Twice a value, a column and a place.
  job.train.precision = "fp32";
  job.train.pruning.density = 0.01;
  EXPECT_NEAR(TechniqueProductsOf(job.train, ComputeUnits::kCuda).operand_bytes, 2 * 0.01 * 12,
              1e-12);
}

}  // namespace
}  // namespace weft::engine
