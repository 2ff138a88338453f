// The step model against published measurements, and against what must hold of any such model.
#include "coordinator/planner/cluster/step_model.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"
#include "coordinator/planner/cluster/calibration.h"
#include "coordinator/planner/cluster/collectives.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

AcceleratorSpec Device(const std::string& name) {
  auto device = FindAccelerator(name);
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return *device;
}

SoftwareStack Stack(const std::string& name) {
  auto stack = FindStack(name);
  EXPECT_TRUE(stack.ok()) << stack.status().ToString();
  return *stack;
}

double Seconds(const AcceleratorSpec& device, const SoftwareStack& stack, const ClusterRun& run) {
  auto step = PredictStep(device, stack, run);
  EXPECT_TRUE(step.ok()) << step.status().ToString();
  return step.ok() ? step->Seconds() : NAN;
}

struct Published {
  const char* accelerator;
  const char* stack;
  ClusterRun run;
  double seconds;
};

// GPT of Narayanan et al. 2021 (arXiv 2104.04473), table 1: step times from its TFLOP/s.
ClusterRun Gpt(int64_t layers, int64_t width, int64_t heads, int64_t tensor, int64_t pipeline,
               int64_t data, int64_t stages, int64_t micro_batch, int64_t batch) {
  return {.model = {layers, width, heads, heads, 4 * width, false, 51200, 2048},
          .tensor = tensor,
          .data = data,
          .pipeline = pipeline,
          .stages_per_rank = stages,
          .micro_batch = micro_batch,
          .global_batch = batch,
          .recomputation = Recomputation::kBlock,
          .precision = "fp16"};
}

// The runs are those of NVIDIA's NeMo 24.07 performance pages.
ClusterRun Llama2(DecoderShape model, int64_t tensor, int64_t pipeline, int64_t data,
                  int64_t stages) {
  return {.model = model,
          .tensor = tensor,
          .data = data,
          .pipeline = pipeline,
          .stages_per_rank = stages,
          .micro_batch = 1,
          .global_batch = 128,
          .precision = "fp8"};
}

std::vector<Published> PublishedRuns() {
  const auto megatron = [](const ClusterRun& run, double seconds) {
    return Published{"A100-SXM-80GB", "megatron-2021", run, seconds};
  };
  const auto nemo = [](const ClusterRun& run, double seconds) {
    return Published{"H100-SXM", "megatron-2024", run, seconds};
  };
  return {
      megatron(Gpt(24, 2304, 24, 1, 1, 32, 1, 16, 512), 3.528),
      megatron(Gpt(30, 3072, 32, 2, 1, 32, 1, 16, 512), 3.697),
      megatron(Gpt(36, 4096, 32, 4, 1, 32, 1, 16, 512), 3.696),
      megatron(Gpt(40, 6144, 48, 8, 1, 32, 1, 8, 1024), 9.399),
      megatron(Gpt(48, 8192, 64, 8, 2, 32, 1, 4, 1536), 14.45),
      megatron(Gpt(80, 12288, 96, 8, 8, 24, 2, 2, 2304), 24.82),
      megatron(Gpt(96, 16384, 128, 8, 16, 15, 2, 1, 2160), 37.61),
      megatron(Gpt(105, 20480, 128, 8, 35, 9, 3, 1, 2520), 54.09),
      megatron(Gpt(128, 25600, 160, 8, 64, 6, 1, 1, 3072), 102.6),
      nemo(Llama2({40, 5120, 40, 40, 13824, true, 32000, 4096}, 1, 4, 4, 10), 3.76),
      nemo(Llama2({80, 8192, 64, 8, 28672, true, 32000, 4096}, 4, 4, 4, 20), 4.77),
  };
}

TEST(StepModel, ComesNearPublishedStepTimesWithoutCalibration) {
  double sum = 0, bias = 0;
  for (const Published& row : PublishedRuns()) {
    const double error =
        Seconds(Device(row.accelerator), Stack(row.stack), row.run) / row.seconds - 1;
    EXPECT_LT(std::abs(error), 0.25) << row.run.model.layers << " layers: " << error;
    sum += std::abs(error);
    bias += error;
  }
  const auto count = static_cast<double>(PublishedRuns().size());
  EXPECT_LT(sum / count, 0.10);
  EXPECT_LT(std::abs(bias / count), 0.05);
}

TEST(StepModel, NeverGetsSlowerOnBetterHardware) {
  const std::vector<std::function<void(AcceleratorSpec&)>> betterments = {
      [](AcceleratorSpec& d) { d.memory_bytes_per_second *= 1.1; },
      [](AcceleratorSpec& d) { d.link_bytes_per_second *= 1.1; },
      [](AcceleratorSpec& d) { d.network_bytes_per_second *= 1.1; },
      [](AcceleratorSpec& d) {
        for (ProductPeak& peak : d.products) peak.flops_per_second *= 1.1;
      }};
  for (const Published& row : PublishedRuns()) {
    const SoftwareStack stack = Stack(row.stack);
    const double before = Seconds(Device(row.accelerator), stack, row.run);
    for (const auto& improve : betterments) {
      AcceleratorSpec better = Device(row.accelerator);
      improve(better);
      const double after = Seconds(better, stack, row.run);
      EXPECT_LE(after, before * (1 + 1e-12));
      EXPECT_GT(after, before * 0.9);
    }
  }
}

TEST(StepModel, CountsWhatTheModelNeedsNotMore) {
  const AcceleratorSpec device = Device("H100-SXM");
  const SoftwareStack stack = Stack("megatron-2024");
  ClusterRun run = Llama2({32, 4096, 32, 32, 11008, true, 32000, 4096}, 1, 1, 8, 1);
  run.precision = "bf16";
  const auto ledger = [&](const ClusterRun& r) { return *PredictStep(device, stack, r); };
  const StepLedger many = ledger(run);
  EXPECT_GT(many.products, 0);
  EXPECT_EQ(many.tensor_communication, 0);
  EXPECT_EQ(many.pipeline_communication, 0);
  EXPECT_EQ(many.bubble, 0);
  EXPECT_EQ(many.recomputed, 0);

  // Grouped keys are fewer columns; a plain MLP is one matrix less.
  ClusterRun grouped = run;
  grouped.model.key_heads = 8;
  EXPECT_LT(ledger(grouped).products, many.products);
  ClusterRun plain = run;
  plain.model.gated = false;
  EXPECT_LT(ledger(plain).products, ledger(grouped).products);
  // Twice the batch is twice the work; recomputation is a forward pass.
  ClusterRun twice = run;
  twice.global_batch *= 2;
  EXPECT_NEAR(ledger(twice).products, 2 * many.products, 1e-9 * many.products);
  ClusterRun again = run;
  again.recomputation = Recomputation::kBlock;
  EXPECT_NEAR(ledger(again).recomputed / (many.products + many.attention + many.memory_bound),
              1.0 / 3, 0.05);
  // More stages a rank shrink the bubble as (p - 1) / (m v).
  ClusterRun piped = run;
  piped.pipeline = 4;
  piped.data = 2;
  ClusterRun interleaved = piped;
  interleaved.stages_per_rank = 4;
  EXPECT_NEAR(ledger(piped).bubble / ledger(interleaved).bubble, 4, 0.1);
  // What shards parameters sends half as much again as what reduces gradients, at least.
  ClusterRun sharded = run;
  sharded.zero_stage = 3;
  EXPECT_GT(ledger(sharded).data_communication, 0);
  EXPECT_LT(ledger(sharded).optimizer, many.optimizer);
}

TEST(StepModel, AddsGradientsOfEachMicroBatch) {
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  ClusterRun run = Gpt(24, 2304, 24, 1, 1, 32, 1, 16, 512);
  const auto memory_bound = [&](const char* stack, int64_t micro_batch) {
    ClusterRun changed = run;
    changed.micro_batch = micro_batch;
    return PredictStep(device, Stack(stack), changed)->memory_bound;
  };
  // The same tokens in twice the passes: what grows is the sum of gradients, two bytes of the
  // new one and twice four of the sum, for all passes but the first.
  const double bandwidth = device.memory_bytes_per_second * 0.75;
  const double parameters = 12.0 * 2304 * 2304;
  EXPECT_NEAR(memory_bound("megatron-2021", 8) - memory_bound("megatron-2021", 16),
              24 * (2 + 2 * 4) * parameters / bandwidth, 1e-9);
  EXPECT_NEAR(memory_bound("megatron-2024", 8) / memory_bound("megatron-2024", 16), 1, 1e-12);
}

TEST(StepModel, WaitsForTheStageThatTakesLongest) {
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  const SoftwareStack stack = Stack("megatron-deepspeed-2022");
  ClusterRun run = Gpt(72, 13824, 96, 4, 12, 8, 1, 2, 2048);
  run.model.vocabulary = 250880;
  const auto ledger = [&](int64_t layers, const SoftwareStack& program) {
    ClusterRun changed = run;
    changed.model.layers = layers;
    return *PredictStep(device, program, changed);
  };
  // With 78 blocks eleven stages have seven, and the last one with the classifier has one; with 84
  // all have seven.
  const StepLedger six = ledger(72, stack), uneven = ledger(78, stack), seven = ledger(84, stack);
  EXPECT_NEAR(uneven.attention / six.attention, 7.0 / 6, 1e-12);
  EXPECT_DOUBLE_EQ(uneven.attention, seven.attention);
  // Between the others both directions wait for one another, at the last stage none does.
  EXPECT_NEAR(uneven.pipeline_communication, 2 * seven.pipeline_communication, 1e-9);
  EXPECT_GT(seven.products, 1.05 * uneven.products);
  EXPECT_LT(uneven.bubble, seven.bubble);
  // 70 blocks and two tables in twelve stages: six blocks, or five and a table.
  SoftwareStack balanced = stack;
  balanced.tables_are_blocks = true;
  const StepLedger tables = ledger(70, balanced);
  EXPECT_LE(tables.attention, six.attention);
  EXPECT_LT(tables.Seconds(), six.Seconds() * 0.93);
  // As many stages as blocks and tables, but not more.
  ClusterRun each = run;
  each.model.layers = 70;
  each.stages_per_rank = 6;
  EXPECT_TRUE(PredictStep(device, balanced, each).ok());
  EXPECT_THAT(PredictStep(device, stack, each).status().message(), HasSubstr("72 pipeline stages"));
}

TEST(StepModel, EndsOfAPipelineAddUpTheTableThatTheyShare) {
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  SoftwareStack stack = Stack("megatron-2021");
  stack.latency_seconds = 2e-6;
  ClusterRun run = Gpt(48, 8192, 64, 4, 16, 1, 1, 2, 64);
  const auto reduction = [&](const ClusterRun& changed) {
    return PredictStep(device, stack, changed)->data_communication;
  };
  // Four bytes a gradient of a quarter of the table, each end by a card of its own.
  const double bytes = 4.0 * 51200 * 8192 / 4;
  EXPECT_NEAR(reduction(run), bytes / (25e9 * stack.network_share), 1e-4);
  ClusterRun untied = run;
  untied.model.untied_classifier = true;
  EXPECT_EQ(reduction(untied), 0);
  // Both ends on one machine.
  ClusterRun near = run;
  near.pipeline = 2;
  EXPECT_NEAR(reduction(near), bytes / (300e9 * stack.link_share), 1e-4);
}

TEST(StepModel, WaitsForEachKernelWhereTheProgramDoes) {
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  const SoftwareStack ahead = Stack("megatron-deepspeed-2022");
  const SoftwareStack waits = Stack("megatron-deepspeed-blocking-2022");
  ClusterRun run = Gpt(72, 14336, 64, 4, 12, 8, 1, 4, 2048);
  const StepLedger before = *PredictStep(device, ahead, run);
  const StepLedger after = *PredictStep(device, waits, run);
  EXPECT_EQ(before.host_wait, 0);
  EXPECT_DOUBLE_EQ(after.products, before.products);
  // With two collectives each 32 kernels forward, as many again, and 42 backward in half the time,
  // of 40 us each.
  EXPECT_NEAR(after.host_wait, 64 * 6 * (32 + 32 + 21) * 4e-5, 1e-9);
  // Smaller micro-batches have as many kernels each.
  run.micro_batch = 2;
  EXPECT_NEAR(PredictStep(device, waits, run)->host_wait, 2 * after.host_wait, 1e-9);
}

TEST(StepModel, MultipliesScoresOfUnevenHeadsWithoutTensorCores) {
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  const auto attention = [&](const char* stack, int64_t head_width) {
    ClusterRun run = Gpt(78, 13824, 128, 4, 6, 16, 1, 2, 2048);
    run.model.head_width = head_width;
    return PredictStep(device, Stack(stack), run)->attention;
  };
  // 104 columns are thirteen times 16 bytes, 108 are not; fused attention pads them.
  EXPECT_GT(attention("megatron-deepspeed-2022", 108),
            5 * attention("megatron-deepspeed-2022", 104));
  EXPECT_LT(attention("megatron-deepspeed-2022", 112),
            1.2 * attention("megatron-deepspeed-2022", 104));
  EXPECT_LT(attention("megatron-2024", 108), 1.1 * attention("megatron-2024", 104));
}

TEST(AllReduce, TakesTheTimeOfItsNarrowestLink) {
  AcceleratorSpec device = Device("A100-SXM-80GB");
  SoftwareStack stack = Stack("megatron-2021");
  stack.link_share = stack.network_share = 1;
  stack.latency_seconds = 2e-6;
  const double bytes = 1e9;
  EXPECT_EQ(AllReduceSeconds(device, stack, 1, 1, bytes), 0);
  EXPECT_NEAR(AllReduceSeconds(device, stack, 8, 1, bytes), 2 * 7.0 / 8 * bytes / 300e9 + 7 * 2e-6,
              1e-9);
  EXPECT_NEAR(AllReduceSeconds(device, stack, 2, 1, 1), 2e-6, 1e-9);
  // Trees have fewer steps than a ring of this many.
  EXPECT_NEAR(AllReduceSeconds(device, stack, 256, 32, 1), 4 * 8 * 2e-6, 1e-9);
  // One rank a machine: its own card alone.
  EXPECT_NEAR(AllReduceSeconds(device, stack, 4, 4, bytes), 2 * 3.0 / 4 * bytes / 25e9, 1e-4);
  // Eight a machine on two: eight rings, each by a card of its own.
  EXPECT_NEAR(AllReduceSeconds(device, stack, 16, 2, bytes), 2 * 15.0 / 16 * bytes / (25e9 * 8),
              1e-3);
  // With as many machines as it takes, the cards are never faster than the links inside.
  device.network_bytes_per_second = 100e9;
  EXPECT_NEAR(AllReduceSeconds(device, stack, 16, 2, bytes), 2 * 15.0 / 16 * bytes / 300e9, 1e-3);
}

TEST(StepModel, RefusesWhatCannotRun) {
  const AcceleratorSpec device = Device("V100-SXM2-32GB");
  const SoftwareStack stack = Stack("megatron-2021");
  const ClusterRun good = Gpt(24, 2304, 24, 1, 1, 32, 1, 16, 512);
  const auto refusal = [&](const std::function<void(ClusterRun&)>& change) {
    ClusterRun run = good;
    change(run);
    return PredictStep(device, stack, run).status().message();
  };
  EXPECT_EQ(refusal([](ClusterRun&) {}), "");
  EXPECT_THAT(refusal([](ClusterRun& r) { r.precision = "bf16"; }),
              HasSubstr("no products of bf16"));
  EXPECT_THAT(refusal([](ClusterRun& r) { r.global_batch = 500; }), HasSubstr("multiple"));
  EXPECT_THAT(refusal([](ClusterRun& r) { r.tensor = 0; }), HasSubstr("is 0"));
  EXPECT_THAT(refusal([](ClusterRun& r) { r.pipeline = 25; }), HasSubstr("25 pipeline stages"));
  EXPECT_THAT(FindAccelerator("H1000").status().message(), HasSubstr("H100-SXM"));
  EXPECT_THAT(FindStack("jax").status().message(), HasSubstr("megatron-2021"));
}

TEST(FitStack, FindsTheConstantsThatRunsWereMadeWith) {
  SoftwareStack truth = Stack("megatron-2021");
  truth.product_share = 0.8;
  truth.memory_share = 0.6;
  truth.link_share = 0.6;
  truth.network_share = 0.5;
  PhiloxStream noise({7, 0, 0});
  std::vector<MeasuredRun> runs;
  for (const Published& row : PublishedRuns()) {
    if (row.run.precision != "fp16") continue;
    const AcceleratorSpec device = Device(row.accelerator);
    const double jitter = 1 + 0.01 * (static_cast<double>(noise.Next() >> 8) / 8388608.0 - 1);
    runs.push_back({device, row.run, Seconds(device, truth, row.run) * jitter});
  }
  // One run was disturbed: it must not spoil the others.
  runs[3].seconds *= 2;
  const SoftwareStack start = Stack("megatron-2021");
  const SoftwareStack fitted = FitStack(start, runs);
  double before = 0, after = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i == 3) continue;
    const MeasuredRun& run = runs[i];
    before += std::abs(Seconds(run.device, start, run.run) / run.seconds - 1);
    after += std::abs(Seconds(run.device, fitted, run.run) / run.seconds - 1);
  }
  EXPECT_GT(before / 8, 0.10);
  EXPECT_LT(after / 8, 0.03);
  EXPECT_NEAR(fitted.product_share, truth.product_share, 0.08);
  EXPECT_EQ(fitted.gradient_bytes, start.gradient_bytes);

  const SoftwareStack untouched = FitStack(start, {});
  EXPECT_DOUBLE_EQ(untouched.product_share, start.product_share);
}

}  // namespace
}  // namespace weft::planner
