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

/// 16 experts, the best one of a token, with data parallelism alone.
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
  // 4096 rows for each expert are whole tiles, and long compared with the start of one, so that
  // what differs is the router.
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
  // A token sends 4 rows of two bytes a number, to 7 of 64 ranks inside of the machine and to 56
  // outside.
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
  // Passes are long enough to hide what may hide.
  ClusterRun run = Mixture();
  run.model.experts = 64;
  run.model.sequence_length = 65536;
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

TEST(Experts, HideTheirGradientsBehindOnePassOnly) {
  ClusterRun run = Mixture();
  run.model.experts = 64;
  const SoftwareStack stack = Stack();
  const double shown = Ledger(run).data_communication;
  const double all = shown / (1 - stack.overlap);
  run.model.sequence_length = 65536;
  const double least = Ledger(run).data_communication;
  EXPECT_GT(shown, 1.2 * least);
  EXPECT_LT(least, 0.6 * all);
  // More micro-batches do not help: only the last one's gradients are final.
  run = Mixture();
  run.model.experts = 64;
  run.global_batch *= 8;
  EXPECT_NEAR(Ledger(run).data_communication, shown, 1e-9);
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
  // With two ranks of half of attention each, 32 of 64 may be expert-parallel with whole experts,
  // if expert_tensor says so.
  const auto folded = [](int64_t expert, int64_t tensor, int64_t expert_tensor) {
    return [=](ClusterRun& r) {
      r.model.experts = 64;
      r.data = 16;
      r.expert = expert;
      r.tensor = tensor;
      r.expert_tensor = expert_tensor;
    };
  };
  EXPECT_EQ(refusal(folded(32, 2, 1)), "");
  EXPECT_THAT(refusal(folded(32, 2, 0)), HasSubstr("32 of 16 data-parallel"));
  EXPECT_THAT(refusal(folded(64, 2, 1)), HasSubstr("64 of 32 ranks"));
  EXPECT_THAT(refusal(folded(8, 4, 3)), HasSubstr("3 of 4 tensor-parallel"));
  EXPECT_THAT(refusal(folded(8, 4, -1)), HasSubstr("-1 of 4 tensor-parallel"));
}

/// Qwen3 235B as it is trained on 256 H100: attention on two tensor-parallel ranks, experts on all
/// ranks of a stage.
ClusterRun Folded() {
  return {.model = {.layers = 94,
                    .width = 4096,
                    .heads = 64,
                    .key_heads = 4,
                    .mlp_width = 1536,
                    .gated = true,
                    .vocabulary = 151936,
                    .sequence_length = 4096,
                    .head_width = 128,
                    .experts = 128,
                    .experts_per_token = 8,
                    .untied_classifier = true},
          .tensor = 2,
          .data = 16,
          .expert = 32,
          .expert_tensor = 1,
          .pipeline = 8,
          .micro_batch = 1,
          .global_batch = 2048,
          .precision = "bf16"};
}

StepLedger LedgerOf(const ProgramExperts& program, const ClusterRun& run) {
  SoftwareStack stack = *FindStack("megatron-moe-2025");
  stack.experts = program;
  const Result<StepLedger> step = PredictStep(H100(), stack, run);
  EXPECT_TRUE(step.ok()) << step.status().ToString();
  return step.ok() ? *step : StepLedger();
}

TEST(Experts, MayBeDividedOtherwiseThanAttention) {
  // Every rank has four experts whole, and its half of the rows of two: what it sends and
  // multiplies is that of a rank with a sequence of its own.
  ClusterRun run = Folded();
  run.micro_batch = 2;
  ClusterRun alone = run;
  alone.tensor = 1;
  alone.data = 32;
  alone.micro_batch = 1;
  const StepLedger folded = Ledger(run), single = Ledger(alone);
  EXPECT_NEAR(folded.expert_communication, single.expert_communication,
              1e-9 * single.expert_communication);
  // No rank shares its experts with another, so that only gradients of attention are summed.
  ClusterRun twice = run;
  twice.expert = 16;
  EXPECT_EQ(run.ExpertReplicas(), 1);
  EXPECT_EQ(twice.ExpertReplicas(), 2);
  EXPECT_GT(Ledger(twice).data_communication, Ledger(run).data_communication);
  EXPECT_GT(Ledger(twice).optimizer, 1.5 * Ledger(run).optimizer);
  // One replica of attention, but two of the experts.
  ClusterRun replicas = run;
  replicas.data = 1;
  replicas.expert = 1;
  EXPECT_GT(Ledger(replicas).data_communication, 0);
  // Said outright, the usual way is what it was.
  ClusterRun usual = run;
  usual.expert = 16;
  usual.expert_tensor = 0;
  ClusterRun said = usual;
  said.expert_tensor = 2;
  EXPECT_DOUBLE_EQ(Ledger(usual).Seconds(), Ledger(said).Seconds());
}

TEST(Experts, SendATokenOnceToEachRankAndMachine) {
  ClusterRun run = Folded();
  run.pipeline = 1;
  run.tensor = 1;
  run.data = 32;
  ProgramExperts once;
  once.sends_once = true;
  const auto sent = [&](const ProgramExperts& program, int64_t expert) {
    run.expert = expert;
    return LedgerOf(program, run).expert_communication;
  };
  // The chance that none of 8 of 128 experts is among 64 of a machine, or 8 of a rank, from
  // binomial coefficients.
  const auto meets = [](double here) {
    const auto choose = [](double n) { return std::lgamma(n + 1) - std::lgamma(n - 8 + 1); };
    return 1 - std::exp(choose(128 - here) - choose(128));
  };
  const SoftwareStack stack = *FindStack("megatron-moe-2025");
  const CollectiveLinks links = LinksOf(H100(), stack);
  const double bytes = 4096.0 * 4096 * 2, passes = 4 * 94 * 2048 / 32;
  const double between = links.latency_seconds + bytes * meets(64) / links.between;
  EXPECT_NEAR(sent(once, 16), passes * between, 1e-6 * passes * between);
  const double inside = links.latency_seconds + bytes * 7 * meets(16) / links.inside;
  EXPECT_NEAR(sent(once, 8), passes * inside, 1e-6 * passes * inside);
  // Never more than once for each expert: to two machines nearly four times less, within one less
  // than by half.
  for (const int64_t expert : {2, 8, 16, 32}) EXPECT_LE(sent(once, expert), sent({}, expert));
  EXPECT_NEAR(sent({}, 16) / sent(once, 16), 4, 0.2);
  EXPECT_LT(sent({}, 8) / sent(once, 8), 2);
  // A token of one expert goes once anyway.
  run.model.experts_per_token = 1;
  EXPECT_NEAR(sent(once, 8), sent({}, 8), 1e-9);
  EXPECT_NEAR(sent(once, 32), sent({}, 32), 0.02 * sent({}, 32));
}

TEST(Experts, OfRanksFarApartCostMore) {
  for (const bool once : {false, true}) {
    ProgramExperts program;
    program.sends_once = once;
    ClusterRun run = Mixture();
    run.model.experts = 64;
    run.model.experts_per_token = 4;
    double before = 0;
    for (const int64_t expert : {1, 2, 4, 8, 16, 32, 64}) {
      run.expert = expert;
      const double sent = LedgerOf(program, run).expert_communication;
      EXPECT_GT(sent, expert == 1 ? -1 : before) << expert;
      // Leaving the machine costs more than any number of ranks inside of it.
      if (expert == 16) {
        EXPECT_GT(sent, 1.5 * before);
      }
      before = sent;
    }
  }
}

TEST(Experts, ThatRowsAreUnevenlySpreadOverNeverGetFaster) {
  ClusterRun run = Folded();
  double before = Ledger(run).Seconds();
  for (const double imbalance : {1.01, 1.2, 1.5, 2.0, 8.0}) {
    run.model.expert_imbalance = imbalance;
    const double seconds = Ledger(run).Seconds();
    EXPECT_GE(seconds, before * (1 - 1e-12)) << imbalance;
    before = seconds;
  }
  // Their capacity bounds what it costs.
  run.model.expert_capacity = 1.2;
  const double bounded = Ledger(run).Seconds();
  run.model.expert_capacity = 0;
  run.model.expert_imbalance = 1.2;
  EXPECT_DOUBLE_EQ(bounded, Ledger(run).Seconds());
  run.model.expert_imbalance = 0.5;
  EXPECT_THAT(PredictStep(H100(), Stack(), run).status().message(), HasSubstr("imbalance"));
}

TEST(Experts, WithKernelsOfTheirOwnWaitForTheProcessor) {
  ClusterRun run = Folded();
  run.model.width = 2048;
  run.model.mlp_width = 768;
  run.precision = "fp8";
  const ProgramExperts plain = FindStack("megatron-moe-2025")->experts;
  ASSERT_FALSE(plain.grouped);
  ASSERT_TRUE(plain.waits_for_counts);
  const auto wait = [&](const ProgramExperts& program, int64_t expert = 32) {
    run.expert = expert;
    return LedgerOf(program, run).host_wait;
  };
  // The more experts a rank has, the more kernels; bigger micro-batches hide them.
  EXPECT_GT(wait(plain, 8), 1.5 * wait(plain, 16));
  EXPECT_GT(wait(plain, 16), wait(plain, 32));
  const double one = wait(plain, 8);
  run.micro_batch = 8;
  EXPECT_LT(wait(plain, 8), one / 8);
  run.micro_batch = 1;
  // What a graph starts is not waited for, nor what one kernel does for all experts.
  ProgramExperts routing = plain, step = plain, grouped = plain, ahead = plain;
  routing.captured = "routing";
  step.captured = "step";
  grouped.grouped = true;
  ahead.waits_for_counts = false;
  EXPECT_LT(wait(routing, 8), one);
  EXPECT_LT(wait(grouped, 8), one);
  EXPECT_LT(wait(ahead, 8), one);
  step.waits_for_counts = false;
  EXPECT_EQ(wait(step, 8), 0);
}

TEST(Experts, WithBiasesTakePassesUnlessTheyAreFused) {
  ClusterRun run = Folded();
  ProgramExperts plain, fused;
  fused.fused_mlp = true;
  const double both = LedgerOf(plain, run).memory_bound - LedgerOf(fused, run).memory_bound;
  EXPECT_GT(both, 0);
  ClusterRun biased = run;
  biased.model.biased_experts = true;
  EXPECT_GT(LedgerOf(plain, biased).memory_bound, 2 * LedgerOf(plain, run).memory_bound);
  EXPECT_EQ(LedgerOf(fused, biased).memory_bound, LedgerOf(fused, run).memory_bound);
  // Norms and activations made again cost one more pass over them, and no product.
  ClusterRun again = biased;
  again.recomputation = Recomputation::kElementwise;
  const StepLedger once = LedgerOf(plain, biased), more = LedgerOf(plain, again);
  EXPECT_GT(more.recomputed, 0.2 * once.memory_bound);
  EXPECT_LT(more.recomputed, once.memory_bound / 3);
  EXPECT_EQ(more.products, once.products);
}

}  // namespace
}  // namespace weft::planner
