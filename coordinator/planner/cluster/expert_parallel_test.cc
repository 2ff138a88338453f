// Mixtures of experts in the step model: where they are nothing but the dense model, what is sent,
// and what their gradients are spared.
#include <cmath>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "coordinator/planner/cluster/collectives.h"
#include "coordinator/planner/cluster/product_rates.h"
#include "coordinator/planner/cluster/step_model.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

AcceleratorSpec H100() {
  return *FindAccelerator("H100-SXM");
}

SoftwareStack Stack() {
  return *FindStack("megatron-2024");
}

/// 16 experts, the best one of a token, without parallelism but for the data.
ClusterRun Mixture() {
  return {.model = {.layers = 8,
                    .width = 4096,
                    .heads = 32,
                    .key_heads = 8,
                    .mlp_width = 8192,
                    .gated = true,
                    .vocabulary = 32000,
                    .sequence_length = 4096,
                    .experts = 16,
                    .experts_per_token = 1},
          .data = 64,
          .micro_batch = 1,
          .global_batch = 256,
          .precision = "bf16"};
}

StepLedger Ledger(const ClusterRun& run, const AcceleratorSpec& device = H100()) {
  const Result<StepLedger> step = PredictStep(device, Stack(), run);
  EXPECT_TRUE(step.ok()) << step.status().ToString();
  return step.ok() ? *step : StepLedger();
}

ClusterRun Dense(ClusterRun run) {
  run.model.experts = run.model.experts_per_token = run.expert = 1;
  return run;
}

TEST(Experts, OneForEachTokenComputesAsMuchAsTheDenseModel) {
  ClusterRun run = Mixture();
  run.model.sequence_length = 65536;
  const StepLedger mixture = Ledger(run), dense = Ledger(Dense(run));
  // 4096 rows for each expert are whole tiles, and long beside the start of one, so that what
  // differs is the router.
  const auto product = [&](double m, double n, double k) {
    return ProductSeconds(H100(), Stack(), "bf16", m, n, k);
  };
  const double router =
      product(65536, 16, 4096) + product(65536, 4096, 16) + product(4096, 16, 65536);
  const double blocks = 8 * 256 / 64;
  EXPECT_NEAR(mixture.products - dense.products, blocks * router, 0.02 * dense.products);
  EXPECT_EQ(mixture.attention, dense.attention);
  EXPECT_EQ(mixture.expert_communication, 0);
  EXPECT_GT(mixture.memory_bound, dense.memory_bound);
  EXPECT_GT(mixture.optimizer, 5 * dense.optimizer);
}

TEST(Experts, TwiceAsManyForATokenTakeTwiceTheirTime) {
  ClusterRun run = Mixture();
  run.expert = 16;
  const StepLedger one = Ledger(run);
  run.model.experts_per_token = 2;
  const StepLedger two = Ledger(run);
  const StepLedger dense = Ledger(Dense(Mixture()));
  EXPECT_GT(two.products, one.products + 0.4 * dense.products);
  EXPECT_NEAR(two.expert_communication / one.expert_communication, 2, 0.05);
  EXPECT_EQ(two.optimizer, one.optimizer);
  // What is over an expert's capacity is neither sent nor computed.
  run.model.expert_capacity = 0.5;
  EXPECT_NEAR(Ledger(run).expert_communication, one.expert_communication,
              1e-9 * one.expert_communication);
}

TEST(Experts, SendWhatTheFormulaSays) {
  ClusterRun run = Mixture();
  run.model.experts = 64;
  run.model.experts_per_token = 4;
  run.expert = 64;
  const AcceleratorSpec device = H100();
  SoftwareStack stack = Stack();
  stack.link_share = stack.network_share = 1;
  // Of 4 rows a token of two bytes each, to 7 ranks of 64 inside of the machine and to 56 outside.
  const double bytes = 4096.0 * 4 * 4096 * 2;
  const AllToAllBytes sent = AllToAllTraffic(64, 8, bytes);
  EXPECT_DOUBLE_EQ(sent.inside, bytes * 7 / 64);
  EXPECT_DOUBLE_EQ(sent.between, bytes * 56 / 64);
  const double each = stack.latency_seconds + sent.between / device.network_bytes_per_second;
  EXPECT_GT(sent.between / device.network_bytes_per_second,
            sent.inside / device.link_bytes_per_second);
  // There and back, forward and backward, in each of 8 layers and 4 passes.
  EXPECT_NEAR(PredictStep(device, stack, run)->expert_communication, 4 * 8 * 4 * each, 1e-9 * each);
  // Two more where blocks are recomputed, which counts there.
  run.recomputation = Recomputation::kBlock;
  const StepLedger again = *PredictStep(device, stack, run);
  EXPECT_GT(again.recomputed, 2 * 8 * 4 * each);
  run.recomputation = Recomputation::kNone;
  // Within a machine no card is used.
  run.expert = 8;
  const double inside = stack.latency_seconds + bytes * 7 / 8 / device.link_bytes_per_second;
  EXPECT_NEAR(PredictStep(device, stack, run)->expert_communication, 4 * 8 * 4 * inside,
              1e-9 * inside);
  // With two ranks for each matrix, each sends half, to twice as many machines.
  run.tensor = 2;
  run.data = 32;
  const AllToAllBytes half = AllToAllTraffic(8, 4, bytes / 2);
  EXPECT_DOUBLE_EQ(half.between, bytes / 2 * 4 / 8);
  EXPECT_NEAR(PredictStep(device, stack, run)->expert_communication,
              4 * 8 * 8 * (stack.latency_seconds + half.between / device.network_bytes_per_second),
              1e-9);
}

TEST(Experts, ReduceTheirGradientsAmongThoseThatHaveThem) {
  ClusterRun run = Mixture();
  run.model.experts = 64;
  const SoftwareStack stack = Stack();
  const BlockParameters block = ParametersOfBlock(run.model);
  const double dense = 8 * block.dense + 32000.0 * 4096, experts = 8 * block.experts;
  const auto reduced = [&](int64_t ranks, int64_t nodes, double parameters) {
    return (1 - stack.overlap) *
           AllReduceSeconds(H100(), stack, ranks, nodes, stack.gradient_bytes * parameters);
  };
  EXPECT_NEAR(Ledger(run).data_communication, reduced(64, 8, dense) + reduced(64, 8, experts),
              1e-9);
  run.expert = 16;
  EXPECT_NEAR(Ledger(run).data_communication, reduced(64, 8, dense) + reduced(4, 4, experts / 16),
              1e-9);
  run.expert = 64;
  EXPECT_NEAR(Ledger(run).data_communication, reduced(64, 8, dense), 1e-9);
}

TEST(Experts, NeverGetSlowerByBandwidthNorByFewerMachines) {
  for (const int64_t expert : {1, 2, 8, 16}) {
    ClusterRun run = Mixture();
    run.expert = expert;
    const double before = Ledger(run).Seconds();
    for (double AcceleratorSpec::*rate :
         {&AcceleratorSpec::link_bytes_per_second, &AcceleratorSpec::network_bytes_per_second,
          &AcceleratorSpec::memory_bytes_per_second}) {
      AcceleratorSpec better = H100();
      better.*rate *= 1.2;
      EXPECT_LE(Ledger(run, better).Seconds(), before * (1 + 1e-12)) << expert;
    }
    AcceleratorSpec larger = H100();
    larger.per_node *= 2;
    EXPECT_LE(Ledger(run, larger).Seconds(), before * (1 + 1e-12)) << expert;
  }
}

TEST(Experts, AreCountedAsTheModelIs) {
  ModelSpec model;
  model.family = "llama";
  model.layers = 8;
  model.width = 4096;
  model.heads = 32;
  model.kv_heads = 8;
  model.mlp_width = 8192;
  model.vocab_size = 32000;
  model.experts = 16;
  model.experts_per_token = 2;
  DecoderShape decoder = Mixture().model;
  decoder.experts_per_token = 2;
  const ParameterCounts all = ModelShape(model).counts;
  const BlockParameters block = ParametersOfBlock(decoder);
  EXPECT_EQ(8 * (block.dense + block.experts), static_cast<double>(all.attention + all.mlp));
  // A rank of four has a quarter of the experts.
  const ParameterCounts quarter = ModelShape::OfExpertRank(model, 4).counts;
  EXPECT_EQ(8 * (block.dense + block.experts / 4),
            static_cast<double>(quarter.attention + quarter.mlp));
}

TEST(Experts, AreRefusedWhereRanksDoNotShareThemEvenly) {
  const auto refusal = [](const std::function<void(ClusterRun&)>& change) {
    ClusterRun run = Mixture();
    change(run);
    return PredictStep(H100(), Stack(), run).status().message();
  };
  EXPECT_EQ(refusal([](ClusterRun&) {}), "");
  EXPECT_THAT(refusal([](ClusterRun& r) { r.expert = 3; }), HasSubstr("16 experts"));
  EXPECT_THAT(refusal([](ClusterRun& r) { r.expert = 32; }), HasSubstr("32 of 64 data-parallel"));
  EXPECT_THAT(refusal([](ClusterRun& r) { r.model.experts_per_token = 17; }),
              HasSubstr("17 of them"));
  EXPECT_THAT(refusal([](ClusterRun& r) { r.model.experts = 0; }), HasSubstr("is 0"));
}

}  // namespace
}  // namespace weft::planner
