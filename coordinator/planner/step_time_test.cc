#include "coordinator/planner/step_time.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/planner/cluster/software_stack.h"
#include "coordinator/planner/gradient_exchange.h"
#include "coordinator/planner/model_parallel_time.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/rank_groups.h"
#include "coordinator/planner/step_time_testing.h"

namespace weft::planner {
namespace {

TEST(GroupOf, HasTheFewestRanksThatAnyGroupHasOnAWorker) {
  StepInputs inputs;
  const auto fewest = [&](int64_t on_worker, int64_t ranks, int64_t span) {
    inputs.ranks_on_worker = on_worker;
    return GroupOf(inputs, ranks, span).on_worker;
  };
  inputs.ranks = 24;
  EXPECT_EQ(fewest(8, 4, 4), 4);
  EXPECT_EQ(fewest(8, 16, 16), 8);
  EXPECT_EQ(fewest(6, 4, 4), 2) << "ranks 4 to 7 are on two machines of six";
  EXPECT_EQ(fewest(4, 3, 3), 1) << "ranks 3 to 5 are one and two";
  EXPECT_EQ(fewest(8, 3, 3), 1) << "ranks 6 to 8 are two and one";
  EXPECT_EQ(fewest(8, 12, 12), 4) << "ranks 0 to 11 are eight and four";
  // The group has every second rank among eight.
  EXPECT_EQ(fewest(8, 4, 8), 4);
  EXPECT_EQ(fewest(4, 4, 8), 2);
  EXPECT_EQ(fewest(1, 4, 8), 1);
  EXPECT_TRUE(GroupOf(inputs, 1, 1).within_worker());
  // The one group there is begins with a worker; that of a second stage does not.
  inputs.ranks = 3;
  EXPECT_EQ(fewest(4, 3, 3), 3);
  inputs.pipeline = 2;
  EXPECT_EQ(fewest(4, 3, 3), 1);
  // A lower bound has it as near as it can be.
  inputs.most_on_worker = 6;
  EXPECT_EQ(fewest(1, 4, 4), 4);
  EXPECT_EQ(fewest(1, 8, 8), 4) << "two machines";
}

TEST(GradientExchangeSeconds, OfShardGroupsThatStraddleMachinesIsThatOfTheSlowestLink) {
  const WorkerProfile worker = GpuMachine(6);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.zero_stage = 1;
  inputs.ranks = 12;
  inputs.shard_ranks = 4;
  inputs.bucket_bytes = int64_t{1} << 40;  // nothing overlaps
  const auto seconds = [&](int64_t on_worker) {
    inputs.ranks_on_worker = on_worker;
    return GradientExchangeSeconds(inputs, PassOf(inputs, *rates), *rates);
  };
  const double bytes = 4 * static_cast<double>(inputs.shape.trained);
  const double latency = FindStack("weft")->latency_seconds;
  // Reduce-scatter and all-gather in a group of four, then the all-reduce of a quarter over the
  // three ranks with the same shard: a machine of four has one of them, one of six has one or two.
  const double between = 2 * 2.0 / 3 * bytes / 4 / 25e9 + 2 * latency;
  const double within = 2 * 3.0 / 4 * bytes / 300e9 + 3 * latency;
  EXPECT_NEAR(seconds(4) / (within + between), 1, 1e-6);
  // Ranks 4 to 7 are two on each of two machines, so two network links carry the group.
  const double straddling = 2 * 3.0 / 4 * bytes / (2 * 25e9) + 3 * latency;
  EXPECT_NEAR(seconds(6) / (straddling + between), 1, 1e-6);
}

// RigL ranks gradients and values of 12 blocks with 12 width^2 weights in matrices 75 times in 100
// steps. Hosts gather them.
TEST(GradientExchangeSeconds, HasWhatRanksGatherToRankIt) {
  WorkerProfile worker = GpuMachine(8);
  worker.loopback_bytes_per_second = 2e9;
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  TrainSpec train;
  train.steps = 100;
  train.pruning.method = "rigl";
  train.pruning.interval = 1;
  train.pruning.stop_ratio = 0.75;
  StepInputs inputs;
  inputs.tokens = 256;
  inputs.ranks_on_worker = 8;
  inputs.bucket_bytes = int64_t{1} << 40;
  const auto more = [&](auto&& seconds) {
    const auto of = [&](const TrainSpec& trained) {
      return seconds(CostOfPass(inputs.shape, 1, inputs.tokens, *inputs.precision, 0, 0, *rates, 1,
                                1, {}, trained));
    };
    return of(train) - of({});
  };
  const auto sharded = [&](const PassCost& pass) {
    return GradientExchangeSeconds(inputs, pass, *rates);
  };
  const double bytes = 0.75 * 4 * 12 * 12 * 768 * 768;
  const double down = bytes / 4 / rates->HostLinkBytesPerSecond({}, 0);
  // A message of each of the three others.
  const double messages = 0.75 * 12 * 4 * 3 * worker.calibration.message_seconds;
  inputs.shape = Shape();
  inputs.ranks = inputs.shard_ranks = 4;
  inputs.zero_stage = 1;
  const double once = down + 3.0 / 4 * bytes / 2e9 + messages;
  EXPECT_NEAR(more(sharded) / once, 1, 1e-6) << "gradients";
  worker.network_bytes_per_second = 8 * 1e9;
  const auto apart = MakeStepRates(worker, DType::kBF16, true);
  const double between = apart->HostGatherSeconds({}, {.ranks = 4, .on_worker = 1}, bytes, 0);
  EXPECT_NEAR(between / (down + 3.0 / 4 * bytes / 1e9), 1, 1e-6) << "a GPU's share of the network";
  inputs.ranks = inputs.shard_ranks = 1;
  inputs.zero_stage = 0;
  EXPECT_EQ(more(sharded), 0);
  inputs.shape = Shape(4);
  const auto tensor = [&](const PassCost& pass) {
    return ModelParallelSeconds(inputs, pass, *rates);
  };
  EXPECT_NEAR(more(tensor) / (2 * once), 1, 1e-6) << "gradients and values";
  train.pruning.method = "set";
  EXPECT_NEAR(more(tensor) / once, 1, 1e-6) << "values";
  train.pruning.method = "random";
  EXPECT_EQ(more(tensor), 0);
  // A choice before the first step: one ranking in 100 steps.
  for (const char* method : {"magnitude", "snip", "grasp", "synflow"}) {
    train.pruning.method = method;
    EXPECT_NEAR(more(tensor) / (once / 75), 1, 1e-6) << method;
  }
}

// All ranks sum whole gradients of weights that are made of others, and gather what these are made
// of.
TEST(GradientExchangeSeconds, OfDerivedWeightsIsAnAllReduceAndAGatherOfTheirSources) {
  const auto rates = MakeStepRates(GpuMachine(4), DType::kBF16, true);
  JobSpec job = Gpt2Job();
  job.model.low_rank_core.rank = 64;
  StepInputs inputs;
  inputs.shape = ModelShape(ShapeOf(job).spec);
  inputs.tokens = 256;
  inputs.zero_stage = 1;
  inputs.ranks = inputs.shard_ranks = inputs.ranks_on_worker = 4;
  inputs.bucket_bytes = int64_t{1} << 40;  // nothing overlaps
  const ModelShape& shape = inputs.shape;
  ASSERT_GT(shape.derived, shape.trained / 2);
  const int64_t numbers = (shape.trained - shape.derived) + 2 * shape.derived + shape.Updated();
  // An all-reduce, a reduce-scatter and an all-gather.
  const double expected = 3.0 / 4 * 4 * static_cast<double>(numbers) / 300e9 +
                          (3 + 1.5 + 1.5) * FindStack("weft")->latency_seconds;
  const double seconds = GradientExchangeSeconds(inputs, PassOf(inputs, *rates), *rates);
  EXPECT_NEAR(seconds / expected, 1, 1e-6);
}

// Ranks with parts of gradients reduce those of derived weights as others, and gather them.
TEST(GradientExchangeSeconds, OfDerivedWeightsWithShardedGradientsIsOneMoreGather) {
  const auto rates = MakeStepRates(GpuMachine(4), DType::kBF16, true);
  JobSpec job = Gpt2Job();
  job.model.low_rank_core.rank = 64;
  StepInputs inputs;
  inputs.shape = ModelShape(ShapeOf(job).spec);
  inputs.tokens = 256;
  inputs.zero_stage = 2;
  inputs.accumulation_steps = 3;
  inputs.ranks = inputs.shard_ranks = inputs.ranks_on_worker = 4;
  inputs.bucket_bytes = int64_t{1} << 40;  // nothing overlaps
  const ModelShape& shape = inputs.shape;
  ASSERT_GT(shape.derived, shape.trained / 2);
  const int64_t numbers = 3 * shape.trained + shape.derived + shape.Updated();
  const double expected = 3.0 / 4 * 4 * static_cast<double>(numbers) / 300e9 +
                          5 * 1.5 * FindStack("weft")->latency_seconds;
  const double seconds = GradientExchangeSeconds(inputs, PassOf(inputs, *rates), *rates);
  EXPECT_NEAR(seconds / expected, 1, 1e-6);
}

// Shard groups share the plain gradients and the values; all ranks sum those of derived weights,
// and of what is stacked with these.
TEST(GradientExchangeSeconds, OfDerivedWeightsInShardGroupsIsAnAllReduceOfAllRanks) {
  const auto rates = MakeStepRates(GpuMachine(8), DType::kBF16, true);
  JobSpec job = Gpt2Job();
  job.model.family = "llama";
  job.model.low_rank_core.rank = 64;
  job.model.low_rank_core.layers = {"*.up_proj.*"};
  StepInputs inputs;
  inputs.shape = ModelShape(ShapeOf(job).spec);
  inputs.tokens = 256;
  inputs.zero_stage = 1;
  inputs.ranks = inputs.ranks_on_worker = 8;
  inputs.shard_ranks = 4;
  inputs.bucket_bytes = int64_t{1} << 40;  // nothing overlaps
  const ModelShape& shape = inputs.shape;
  ASSERT_GT(shape.derived, 0);
  EXPECT_EQ(shape.stacked_with_derived, shape.derived) << "the gate is as large";
  const auto summed = static_cast<double>(2 * shape.derived);
  const double plain = static_cast<double>(shape.trained) - summed;
  // A reduce-scatter and an all-gather of four ranks, an all-reduce of eight, and one of a quarter
  // between two groups.
  const double sent = 3.0 / 4 * (plain + static_cast<double>(shape.Updated())) +
                      2 * 7.0 / 8 * summed + 2 * 1.0 / 2 * plain / 4;
  const double expected =
      4 * sent / 300e9 + (1.5 + 1.5 + 7 + 1) * FindStack("weft")->latency_seconds;
  const double seconds = GradientExchangeSeconds(inputs, PassOf(inputs, *rates), *rates);
  EXPECT_NEAR(seconds / expected, 1, 1e-6);
}

TEST(TensorSeconds, OfGroupsThatStraddleMachinesAreThoseOfTheSlowestLink) {
  const WorkerProfile worker = GpuMachine(6);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  StepInputs inputs;
  inputs.shape = Shape(4);
  inputs.tokens = 1 << 24;  // latency is nearly nothing
  inputs.ranks = 3;
  const auto seconds = [&](int64_t on_worker) {
    inputs.ranks_on_worker = on_worker;
    return TensorSeconds(inputs, *rates);
  };
  EXPECT_NEAR(seconds(6) / seconds(4) / (300e9 / (2 * 25e9)), 1, 0.02);
  // The first three of four ranks are on one machine of three, the last on the next.
  EXPECT_NEAR(seconds(3) / seconds(4) / (300e9 / 25e9), 1, 0.02);
}

TEST(ExpertSeconds, OfFrozenBlocksAreThoseOfTheForwardPass) {
  const WorkerProfile worker = GpuMachine(4);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  JobSpec job = Gpt2Job();
  job.model.family = "llama";
  job.model.experts = 4;
  job.model.experts_per_token = 1;
  StepInputs inputs;
  inputs.shape = ModelShape::OfExpertRank(ShapeOf(job).spec, 4);
  inputs.tokens = 1 << 20;
  inputs.ranks = inputs.ranks_on_worker = 4;
  const double all = ExpertSeconds(inputs, *rates);
  // Each of 12 blocks has two exchanges forward and two backward; 12 of all are left out.
  inputs.shape.first_trained_layer = 6;
  EXPECT_NEAR(ExpertSeconds(inputs, *rates) / all, 36.0 / 48, 1e-2);
}

TEST(TensorSeconds, HaveTheSecondPassOfTheStepsThatTrainANestedNetwork) {
  const WorkerProfile worker = GpuMachine(4);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  StepInputs inputs;
  inputs.shape = Shape(4);
  inputs.tokens = 256;
  inputs.ranks_on_worker = 4;
  inputs.recomputed_blocks = 6;
  inputs.recomputed_attentions = 3;
  StepInputs small = inputs;
  small.shape.spec.layers = small.recomputed_blocks = 4;
  small.recomputed_attentions = 0;
  const double whole = TensorSeconds(inputs, *rates), nested = TensorSeconds(small, *rates);
  EXPECT_GT(nested, whole / 4);
  inputs.second_pass = SecondPass{.layers = 4, .share = 0.25};
  EXPECT_DOUBLE_EQ(TensorSeconds(inputs, *rates), whole + 0.25 * nested);
}

TEST(PredictStep, DequantizesWeightsInBothPassesAndPacksNoFrozenMatrixAnew) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.accumulation_steps = 3;
  const PassCost pass = PassOf(inputs, *rates);
  const TimeBreakdown plain = PredictStep(inputs, pass, *rates);
  const double bandwidth = rates->MemoryBytesPerSecond(inputs.place());
  inputs.shape.quantized = 1000;
  // Half a byte is read and two are written, which are read and written as a packed copy.
  EXPECT_NEAR(PredictStep(inputs, pass, *rates).memory_bound_seconds - plain.memory_bound_seconds,
              2 * 3 * 1000 * 6.5 / bandwidth, 1e-12);
  inputs.shape.only_multiplied = 1000;
  // f32 is read and bf16 written.
  EXPECT_NEAR(plain.optimizer_seconds - PredictStep(inputs, pass, *rates).optimizer_seconds,
              1000 * 6 / rates->UpdateBytesPerSecond(inputs.place(), false), 1e-12);
}

TEST(PredictStep, MergesWeightsOnceAnUpdateOrWheneverTheyHaveBeenGathered) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  JobSpec job = Gpt2Job();
  job.model.peft.method = "loha";
  StepInputs inputs;
  inputs.shape = ModelShape(ShapeOf(job).spec);
  inputs.tokens = 256;
  inputs.accumulation_steps = 3;
  inputs.ranks = inputs.shard_ranks = 4;
  const PassCost merging = PassOf(inputs, *rates);
  PassCost plain = merging;
  plain.merge_product_seconds = plain.merge_f32_numbers = plain.merge_parameter_numbers = 0;
  const double products = merging.merge_product_seconds;
  // Parameters are f32, too.
  const double bytes = 4 * (merging.merge_f32_numbers + merging.merge_parameter_numbers);
  EXPECT_GT(products, 0);
  EXPECT_GT(bytes, 0);
  const auto difference = [&](int64_t zero_stage, double TimeBreakdown::*part) {
    inputs.zero_stage = zero_stage;
    return PredictStep(inputs, merging, *rates).*part - PredictStep(inputs, plain, *rates).*part;
  };
  const double once = products + bytes / rates->UpdateBytesPerSecond(inputs.place(), false);
  EXPECT_NEAR(difference(2, &TimeBreakdown::optimizer_seconds), once, 1e-9);
  EXPECT_NEAR(difference(2, &TimeBreakdown::gemm_seconds), 0, 1e-9);
  EXPECT_NEAR(difference(2, &TimeBreakdown::memory_bound_seconds), 0, 1e-9);
  // In two passes of each of three micro-batches.
  EXPECT_NEAR(difference(3, &TimeBreakdown::optimizer_seconds), 0, 1e-9);
  EXPECT_NEAR(difference(3, &TimeBreakdown::gemm_seconds), 2 * 3 * products, 1e-9);
  EXPECT_NEAR(difference(3, &TimeBreakdown::memory_bound_seconds),
              2 * 3 * bytes / rates->MemoryBytesPerSecond(inputs.place()), 1e-9);
}

TEST(PredictStep, ListsWhatCountsOfWeightsWheneverTheyHaveBeenGathered) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.accumulation_steps = 3;
  inputs.ranks = inputs.shard_ranks = 4;
  const auto pass = [&](double flops, double dense_share) {
    TechniqueProducts products;
    products.dense_share = dense_share;
    products.gathered_flops = flops;
    return CostOfPass(inputs.shape, 1, inputs.tokens, *inputs.precision, 0, 0, *rates, 1, 1,
                      products);
  };
  const auto seconds = [&](int64_t zero_stage, double flops, double dense_share) {
    inputs.zero_stage = zero_stage;
    return PredictStep(inputs, pass(flops, dense_share), *rates).gemm_seconds;
  };
  const ModelSpec& model = inputs.shape.spec;
  const double weights = 2.0 * static_cast<double>(model.layers * model.width * MlpWidth(model));
  const double once = weights * 100 / rates->GemmFlopsPerSecond(DType::kF32, 1024, 1024, 1024, 1);
  EXPECT_EQ(seconds(2, 100, 0), seconds(2, 0, 0));
  // In two passes of each of three micro-batches.
  EXPECT_NEAR(seconds(3, 100, 0) - seconds(3, 0, 0), 2 * 3 * once, 1e-9);
  EXPECT_NEAR(seconds(3, 100, 0.25) - seconds(3, 0, 0.25), 0.75 * 2 * 3 * once, 1e-9);
}

TEST(PredictStep, PacksWeightsOnADeviceWheneverTheyHaveBeenGathered) {
  const WorkerProfile worker = GpuMachine(4);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.accumulation_steps = 3;
  inputs.ranks = inputs.shard_ranks = inputs.ranks_on_worker = 4;
  const auto seconds = [&](int64_t zero_stage, double bytes) {
    TechniqueProducts products;
    products.dense_share = 0.25;
    products.gathered_bytes = bytes;
    inputs.zero_stage = zero_stage;
    const PassCost pass =
        CostOfPass(inputs.shape, 1, inputs.tokens, *inputs.precision, 0, 0, *rates, 1, 1, products);
    return PredictStep(inputs, pass, *rates).gemm_seconds;
  };
  const ModelSpec& model = inputs.shape.spec;
  const double weights = 2.0 * static_cast<double>(model.layers * model.width * MlpWidth(model));
  const double once = weights * 5 / rates->MemoryBytesPerSecond(inputs.place());
  EXPECT_EQ(seconds(2, 5), seconds(2, 0));
  // In two passes of each of three micro-batches.
  EXPECT_NEAR(seconds(3, 5) - seconds(3, 0), 0.75 * 2 * 3 * once, 1e-9);
}

TEST(PredictStep, SearchesMasksAndPacksUnderThemOnceAStep) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.accumulation_steps = 3;
  inputs.ranks = inputs.shard_ranks = 4;
  const auto seconds = [&](int64_t zero_stage, double searched, double packed) {
    TechniqueProducts products;
    products.dense_share = 0.25;
    products.searched_flops = searched;
    products.packed_flops = packed;
    inputs.zero_stage = zero_stage;
    const PassCost pass =
        CostOfPass(inputs.shape, 1, inputs.tokens, *inputs.precision, 0, 0, *rates, 1, 1, products);
    return PredictStep(inputs, pass, *rates).optimizer_seconds;
  };
  const ModelSpec& model = inputs.shape.spec;
  const double weights = 2.0 * static_cast<double>(model.layers * model.width * MlpWidth(model));
  const double once = weights * 100 / rates->GemmFlopsPerSecond(DType::kF32, 1024, 1024, 1024, 1);
  // Masks are searched in dense steps, too. Ranks that gather weights pack them in passes.
  EXPECT_NEAR(seconds(2, 100, 0) - seconds(2, 0, 0), once, 1e-9);
  EXPECT_NEAR(seconds(2, 0, 100) - seconds(2, 0, 0), 0.75 * once, 1e-9);
  EXPECT_NEAR(seconds(3, 100, 0) - seconds(3, 0, 0), once, 1e-9);
  EXPECT_EQ(seconds(3, 0, 100), seconds(3, 0, 0));
}

TEST(PredictStep, WaitsForWeightsThatComeUpAllAtOnce) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.offloads_optimizer = true;
  inputs.host_link_bytes_per_second = 1'000'000'000;
  const auto exposed = [&](int64_t bytes, bool at_once) {
    inputs.uploaded_weight_bytes = bytes;
    inputs.uploads_at_once = at_once;
    return PredictStep(inputs, PassOf(inputs, *rates), *rates).exposed_communication_seconds;
  };
  EXPECT_NEAR(exposed(1'000'000, true) - exposed(0, true), 1e-3, 1e-9);
  EXPECT_EQ(exposed(1'000'000, false), exposed(0, false)) << "the next forward pass takes longer";
}

TEST(PredictStep, OverlapsNoPassWithAnUpdateFromAFileWhoseWeightsComeUpAllAtOnce) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.offloads_optimizer = true;
  const auto seconds = [&](bool at_once) {
    inputs.uploads_at_once = at_once;
    return PredictStep(inputs, PassOf(inputs, *rates), *rates).optimizer_seconds;
  };
  EXPECT_EQ(seconds(true), seconds(false)) << "nothing is in a file";
  inputs.file_bytes = 10'000'000'000;
  const double read = 1e10 / rates->FileBytesPerSecond(inputs.place());
  EXPECT_DOUBLE_EQ(seconds(true), read);
  EXPECT_LT(seconds(false), read) << "the next forward pass runs meanwhile";
}

TEST(PredictStep, AddsGradientsOfMicroBatchesInATreeWhereTheyAreKept) {
  const WorkerProfile worker = Worker("w", 2, kGiB);
  const auto rates = MakeStepRates(worker, DType::kBF16, false);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.accumulation_steps = 8;
  inputs.ranks = inputs.shard_ranks = 4;
  const PassCost pass = PassOf(inputs, *rates);
  const double seconds = pass.weight_gradient_bytes / rates->MemoryBytesPerSecond(inputs.place());
  const auto memory_bound = [&](int64_t zero_stage, bool tree) {
    inputs.zero_stage = zero_stage;
    inputs.micro_batch_tree = tree;
    return PredictStep(inputs, pass, *rates).memory_bound_seconds;
  };
  // Seven sums of three numbers each, instead of seven reads.
  EXPECT_NEAR(memory_bound(1, true) - memory_bound(1, false), (21 - 7) * seconds, 1e-9);
  // With sharded gradients sums are of the shard.
  EXPECT_NEAR(memory_bound(2, true) - memory_bound(2, false), (21.0 / 4 - 7) * seconds, 1e-9);
}

TEST(PredictStep, CountsTheCastOfUploadedWeightsToAFormat) {
  const WorkerProfile worker = GpuMachine(1);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  StepInputs inputs;
  inputs.shape = Shape();
  inputs.tokens = 256;
  inputs.accumulation_steps = 3;
  inputs.precision = FindPrecision("fp8");
  ASSERT_NE(inputs.precision, nullptr);
  inputs.offloads_optimizer = true;
  const auto step = [&](double format_share) {
    const PassCost pass =
        CostOfPass(inputs.shape, 1, 256, *inputs.precision, format_share, 0, *rates, 1, 1);
    return PredictStep(inputs, pass, *rates);
  };
  // Half of the matrices: bf16 read for the scale and for the cast, one byte by rows and columns.
  const double cast =
      0.5 * static_cast<double>(inputs.shape.packed) * (2 * 2 + 2 * 1) / (0.9 * 3e12);
  EXPECT_NEAR(step(0.5).optimizer_seconds - step(0).optimizer_seconds, cast, 1e-9);
  // Weights that are streamed come up in two passes of each of three micro-batches, and those of a
  // quarter of the bytes that stay, once.
  const double in_passes = step(0.5).memory_bound_seconds;
  inputs.streamed = {.first = 0, .forward = 3, .backward = 3};
  inputs.resident_weight_bytes = 1;
  EXPECT_NEAR(step(0.5).memory_bound_seconds - in_passes, 2 * 3 * 0.75 * cast, 1e-9);
  EXPECT_NEAR(step(0.5).optimizer_seconds - step(0).optimizer_seconds, 0.25 * cast, 1e-9);
}

/// A pipeline of two ranks on two machines, a rank on each, or both ranks' replicas on each.
class TwoStages : public testing::Test {
 protected:
  TwoStages() {
    inputs_.shape = Shape();
    inputs_.tokens = 256;
    inputs_.accumulation_steps = 4;
    inputs_.ranks = 2;
    inputs_.pipeline = 2;
    inputs_.bucket_bytes = int64_t{1} << 40;
  }
  StagePasses PassesOn(const StepRates& rates) const {
    return {shapes_, 1, 256, kBf16Precision, {}, 0, rates, 1, 1, {}, train_};
  }
  PipelineForecast Predict(const std::vector<std::vector<PipelinePlace>>& places) const {
    return PredictPipeline(inputs_, {.cut = cut_, .places = places, .within_worker = false});
  }

  const StageShapes shapes_{Shape()};
  const TrainSpec train_;
  const std::vector<int64_t> cut_ = {6, 6};
  StepInputs inputs_;
};

TEST_F(TwoStages, TakeWhatTheSlowestPlaceOfEachTakesInWhateverOrder) {
  WorkerProfile fast = GpuMachine(2), slow_memory = GpuMachine(2), slow_network = GpuMachine(2);
  slow_memory.devices[0].copy_bytes_per_second /= 4;
  slow_network.network_bytes_per_second /= 100;
  std::vector<std::unique_ptr<const StepRates>> rates;
  std::vector<StagePasses> passes;
  for (const WorkerProfile* worker : {&fast, &slow_memory, &slow_network}) {
    rates.push_back(MakeStepRates(*worker, DType::kBF16, true));
    passes.push_back(PassesOn(*rates.back()));
  }
  const PipelinePlace a{&passes[0], 1}, memory{&passes[1], 1}, network{&passes[2], 1};
  const double end = 1;
  // A machine that computes as fast as another and has a slower network adds what its exchange
  // takes longer, on whichever rank it is and in whichever order it comes.
  const TimeBreakdown alone = Predict({{network}, {network}}).StepUntil(end);
  for (const auto& places : std::vector<std::vector<std::vector<PipelinePlace>>>{
           {{a, network}, {a}}, {{network, a}, {a}}, {{a}, {a, network}}, {{a}, {network, a}}}) {
    const TimeBreakdown step = Predict(places).StepUntil(end);
    EXPECT_NEAR(step.exposed_communication_seconds / alone.exposed_communication_seconds, 1, 0.4);
    EXPECT_GT(StepSeconds(step), StepSeconds(Predict({{a}, {a}}).StepUntil(end)) + 0.05);
  }
  const TimeBreakdown one = Predict({{a, network}, {a}}).StepUntil(end);
  const TimeBreakdown other = Predict({{network, a}, {a}}).StepUntil(end);
  EXPECT_EQ(StepSeconds(one), StepSeconds(other));
  // The slower memory decides on passes, and the slower network on what follows them.
  const TimeBreakdown both = Predict({{memory, network}, {a}}).StepUntil(end);
  const PipelineForecast of_memory = Predict({{memory}, {a}});
  EXPECT_DOUBLE_EQ(both.memory_bound_seconds, of_memory.StepUntil(end).memory_bound_seconds);
  EXPECT_DOUBLE_EQ(Predict({{memory, network}, {a}}).costs.stages[0].forward,
                   of_memory.costs.stages[0].forward);
  EXPECT_GT(StepSeconds(both), StepSeconds(of_memory.StepUntil(end)) + 0.05);
}

TEST_F(TwoStages, ReadTheGradientsToWhichEachLaterMicroBatchAdds) {
  const WorkerProfile worker = GpuMachine(2);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  const StagePasses passes = PassesOn(*rates);
  inputs_.ranks_on_worker = 1;
  const auto seconds = [&](int64_t micro_batches) {
    inputs_.accumulation_steps = micro_batches;
    return static_cast<double>(micro_batches) *
           PredictStages(inputs_, cut_, passes).front().time.memory_bound_seconds;
  };
  const ModelShape stage = shapes_.Of({6, true, false});
  // Four times all else, and gradients are written four times and read three times.
  const double gradients = WeightGradientBytes(stage) / (0.9 * 3e12);
  EXPECT_NEAR(seconds(4) - 4 * seconds(1), 3 * gradients, 1e-12);
  // In a tree each of three sums reads two and writes one.
  inputs_.micro_batch_tree = true;
  EXPECT_NEAR(seconds(4) - 4 * seconds(1), 3 * 3 * gradients, 1e-12);
}

}  // namespace
}  // namespace weft::planner
