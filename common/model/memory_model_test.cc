#include "common/model/memory_model.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "common/model/gradient_bytes.h"
#include "common/model/memory_inputs.h"
#include "common/model/operand_memory.h"

namespace weft {
namespace {

ModelSpec Gpt2Model() {
  ModelSpec model;
  model.layers = 12;
  model.width = 768;
  model.heads = 12;
  model.vocab_size = 50257;
  model.context = 1024;
  return model;
}

// Inputs of GPT-2 that recomputes its first `recomputed` blocks.
MemoryInputs Gpt2Inputs(int64_t recomputed = 0) {
  JobSpec job;
  job.model = Gpt2Model();
  job.train.sequence_length = 256;
  Plan plan;
  plan.micro_batch = 4;
  plan.block_memory_policy = BlockPolicies(job.model.layers, recomputed);
  return MemoryInputsOf(job, plan, {});
}

TEST(BlockSavedBytes, IsTwelveWidthsAndSomeStatistics) {
  const ModelShape shape = Gpt2Inputs().shape;
  // Twelve bf16 tensors of the width (four of them the MLP's), four f32 of norms, one per head.
  EXPECT_EQ(BlockSavedBytes(shape, 1024, 2), 1024 * (12 * 768 * 2 + (4 + 12) * 4));
  EXPECT_EQ(BlockSavedBytes(shape, 1024, 4), 1024 * (12 * 768 * 4 + (4 + 12) * 4));
  EXPECT_EQ(BlockSavedTensors(shape)[0].tensor, SavedTensor::kResidual1);
}

TEST(PredictMemory, CountsStateOfMixedPrecisionAdam) {
  MemoryBreakdown memory = PredictMemory(Gpt2Inputs());
  const int64_t stored = 124'475'904;  // with 47 padded rows
  const int64_t packed = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50304 * 768;
  EXPECT_EQ(memory.gradients_bytes, 4 * stored);
  EXPECT_EQ(memory.optimizer_bytes, 8 * 124'439'808);
  EXPECT_EQ(memory.parameters_bytes, 4 * stored + 2 * packed);
  EXPECT_EQ(memory.communication_bytes, 0);

  MemoryInputs inputs = Gpt2Inputs();
  inputs.precision = &kFp32Precision;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored + 4 * packed);
  inputs.products = ProductKind::kSplit;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored);
  inputs.products = ProductKind::kUnpacked;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored);
  inputs.precision = &kBf16Precision;
  inputs.products = ProductKind::kWidened;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored + 4 * packed);
  inputs.products = ProductKind::kWidenedUnpacked;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored);

  // Without masters: two bytes for each number but those of biases and norms.
  inputs = Gpt2Inputs();
  inputs.precision = &kBf16PurePrecision;
  const int64_t vectors = 12 * (3 * 768 + 768 + 3072 + 768 + 4 * 768) + 2 * 768;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes,
            2 * (stored - vectors) + 4 * vectors + 2 * packed);
  inputs.products = ProductKind::kWidenedUnpacked;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 2 * (stored - vectors) + 4 * vectors);
  EXPECT_EQ(PredictMemory(inputs).gradients_bytes, 4 * stored);
  inputs.precision = &kFp16Precision;
  inputs.products = ProductKind::kWidened;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored + 4 * packed);
  EXPECT_EQ(PredictMemory(inputs).activations_bytes, PredictMemory(Gpt2Inputs()).activations_bytes);

  // FP8 values of the blocks' weights by rows and by columns; four layers a block with two tensors
  // each.
  inputs = Gpt2Inputs();
  inputs.precision = &PrecisionOf("fp8");
  TrainSpec train;
  train.fp8.history = 100;
  train.fp8.bf16_last_blocks = 2;
  inputs.format_blocks = FormatBlocksOf(*inputs.precision, train);
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes,
            4 * stored + 2 * packed + 10 * 4 * 2 * (100 + 8) * 4);

  inputs = Gpt2Inputs();
  inputs.ranks = 2;
  inputs.bucket_bytes = 1000;
  EXPECT_EQ(PredictMemory(inputs).communication_bytes, 4 << 20) << "two pieces of one peer";
  inputs.products = ProductKind::kStored;
  EXPECT_EQ(PredictMemory(inputs).communication_bytes, 2000);
}

TEST(PredictMemory, OnCudaCopiesOnlyWhatIsStoredInAnotherType) {
  const int64_t stored = 124'475'904;
  const int64_t packed = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50304 * 768;
  const int64_t vectors = 12 * (3 * 768 + 768 + 3072 + 768 + 4 * 768) + 2 * 768;
  MemoryInputs inputs = Gpt2Inputs();
  inputs.products = ProductKind::kStored;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored + 2 * packed);
  inputs.precision = &kFp32Precision;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 4 * stored);
  inputs.precision = &kBf16PurePrecision;
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, 2 * (stored - vectors) + 4 * vectors);
  // What the library recommends for its products, on Hopper and before it.
  const int64_t without = PredictMemory(inputs).workspace_bytes - 2 * 4 * 1024 * 12;
  inputs.product_workspace_bytes = ProductWorkspaceBytes("9.0");
  EXPECT_EQ(PredictMemory(inputs).workspace_bytes, without + (int64_t{32} << 20));
  EXPECT_EQ(ProductWorkspaceBytes("8.0"), int64_t{4} << 20);
}

TEST(PredictMemory, RanksThatShareHoldTheirPart) {
  MemoryInputs inputs = Gpt2Inputs();
  inputs.ranks = 4;
  const MemoryBreakdown whole = PredictMemory(inputs);
  inputs.zero_stage = 1;
  // With the padding of the vocabulary, which the other ranks have less of.
  EXPECT_NEAR(static_cast<double>(PredictMemory(inputs).optimizer_bytes), 8.0 * 124'475'904 / 4, 8);
  EXPECT_EQ(PredictMemory(inputs).gradients_bytes, whole.gradients_bytes);

  // Buckets of 25 MiB are those of a block, from its second matrix on; the last one, which is open
  // throughout, has the tables and a norm.
  const int64_t block = 12 * 768 * 768 + 13 * 768;
  const int64_t tables = 50304 * 768 + 1024 * 768 + 2 * 768;
  inputs.zero_stage = 2;
  inputs.open_gradients = OpenGradientBytes(Gpt2Model(), int64_t{25} << 20);
  EXPECT_EQ(inputs.open_gradients.bytes, 4 * (tables + 2 * block));
  EXPECT_EQ(PredictMemory(inputs).gradients_bytes,
            whole.gradients_bytes / 4 + inputs.open_gradients.bytes);
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes, whole.parameters_bytes);
  // Parameters: parts, and at most the head's table together with the last block.
  inputs.zero_stage = 3;
  inputs.sharded = ShardParameters(Gpt2Model(), kBf16Precision, DType::kBF16, 4);
  const int64_t matrices = 12 * 768 * 768, vectors = 13 * 768, norm = 2 * 768;
  EXPECT_EQ(inputs.sharded.held, 4 * (tables + 12 * block) / 4);
  EXPECT_EQ(inputs.sharded.gathered,
            std::max(2 * 50304 * 768 + 4 * norm + 2 * matrices + 4 * vectors,
                     4 * (tables - norm) + 2 * matrices + 4 * vectors));
  EXPECT_EQ(inputs.sharded.forward_payload,
            4 * (tables - norm) + 2 * 50304 * 768 + 4 * norm + 12 * (2 * matrices + 4 * vectors));
  EXPECT_EQ(inputs.sharded.backward_payload, 11 * (2 * matrices + 4 * vectors));
  EXPECT_EQ(inputs.sharded.reduced_payload, 4 * (tables + 12 * block));
  EXPECT_EQ(inputs.sharded.packed, matrices + 50304 * 768);
  EXPECT_EQ(PredictMemory(inputs).parameters_bytes,
            inputs.sharded.held + inputs.sharded.gathered + 2 * inputs.sharded.packed);
  EXPECT_EQ(PredictMemory(inputs).gradients_bytes,
            whole.gradients_bytes / 4 + 4 * (50304 * 768 + 2 * block));

  inputs.zero_stage = 2;
  inputs.ranks = 1;
  EXPECT_EQ(PredictMemory(inputs).gradients_bytes, whole.gradients_bytes);

  ModelSpec frozen = Gpt2Model();
  frozen.freeze = {"transformer.w*", "transformer.h.11.*", "transformer.ln_f.*"};
  EXPECT_EQ(OpenGradientBytes(frozen, int64_t{1} << 40).bytes, 4 * 11 * block);
}

TEST(PredictMemory, ActivationsFollowTheBlocks) {
  const MemoryInputs inputs = Gpt2Inputs();
  const int64_t tokens = 1024, row = tokens * 768 * 2;
  const int64_t block = BlockSavedBytes(inputs.shape, tokens, 2);
  // All kept: every block, then the last norm's input and output and the MLP's result.
  EXPECT_EQ(PredictMemory(inputs).activations_bytes, 12 * block + 3 * row + 8 * tokens);
  // All recomputed: every input, and one whole block while it is replayed.
  EXPECT_EQ(PredictMemory(Gpt2Inputs(12)).activations_bytes, 11 * row + block + 2 * row);
}

TEST(PredictMemory, EachRecomputedBlockSavesMemoryAndLinearlyMoreTokensNeedMore) {
  MemoryInputs inputs = Gpt2Inputs();
  int64_t previous = PredictMemory(inputs).activations_bytes;
  for (int64_t k = 1; k <= 11; ++k) {
    const int64_t bytes = PredictMemory(Gpt2Inputs(k)).activations_bytes;
    EXPECT_LT(bytes, previous) << k;
    previous = bytes;
  }
  const int64_t once = PredictMemory(inputs).activations_bytes;
  inputs.micro_batch *= 2;
  EXPECT_EQ(PredictMemory(inputs).activations_bytes, 2 * once);
}

TEST(OptimizerBytes, FollowTheRuleAndTheAverages) {
  const int64_t n = 124'439'808;
  const auto bytes = [&](const char* name, const char* averaging = "none") {
    JobSpec job;
    job.optimizer.name = name;
    job.train.averaging.kind = averaging;
    job.train.averaging.window = 5;
    return OptimizerBytesOf(Gpt2Model(), job, DType::kF32).state;
  };
  EXPECT_EQ(bytes("adamw"), 8 * n);
  EXPECT_EQ(bytes("lamb"), 8 * n);
  EXPECT_EQ(bytes("sgd"), 4 * n);
  EXPECT_EQ(bytes("lion"), 4 * n);
  EXPECT_EQ(bytes("schedule_free_adamw"), 12 * n);
  EXPECT_EQ(bytes("muon"), 8 * n - 4 * 12 * (4 * 768 * 768 + 2 * 768 * 3072));
  EXPECT_LT(bytes("adafactor"), n / 50);
  EXPECT_EQ(bytes("adamw", "ema"), 12 * n);
  EXPECT_EQ(bytes("adamw", "lawa"), 28 * n);
}

TEST(OptimizerBytes, FrozenParametersHaveNoState) {
  JobSpec job;
  ModelSpec model = Gpt2Model();
  const int64_t all = OptimizerBytesOf(model, job, DType::kF32).state;
  model.freeze = {"*.wte.weight"};
  EXPECT_EQ(all - OptimizerBytesOf(model, job, DType::kF32).state, 8 * 50257 * 768);
}

TEST(BlockPolicies, RecomputesTheFirstBlocks) {
  EXPECT_EQ(BlockPolicies(3, 1), (std::vector<std::string>{"recompute", "keep", "keep"}));
  EXPECT_EQ(BlockPolicies(2, 0), (std::vector<std::string>{"keep", "keep"}));
  EXPECT_EQ(BlockPolicies(2, 2), (std::vector<std::string>{"recompute", "recompute"}));
}

// Each unit is one of those that are kept, or sends what it sends where none is: of all there is
// nothing left, on no processor.
TEST(DeviceUpdatedUnits, AddUpToAllOnTheDevice) {
  std::vector<ModelSpec> models = {Gpt2Model(), Gpt2Model(), Gpt2Model()};
  models[1].untied_classifier = true;
  models[2].family = "bert";
  models[2].token_types = 2;
  for (const ModelSpec& model : models) {
    for (const ProductKind products :
         {ProductKind::kUnpacked, ProductKind::kSplit, ProductKind::kTiles, ProductKind::kNative}) {
      for (const char* precision : {"bf16", "bf16_pure"}) {
        SCOPED_TRACE(model.family + " " + precision + std::to_string(static_cast<int>(products)));
        JobSpec job;
        job.model = model;
        Plan plan;
        plan.precision = precision;
        MemoryInputs inputs = MemoryInputsOf(job, plan, {products});
        const MemoryBreakdown plain = PredictMemory(inputs);
        inputs.offload_optimizer = true;
        const int64_t uploaded = UploadedWeightBytes(inputs);
        const MemoryBreakdown none = PredictDeviceTier(inputs);
        const std::vector<StreamedUnit> units = StreamedUnits(model);
        std::vector<int64_t> all;
        int64_t spared = 0, state = 0;
        for (int64_t unit = 0; unit < std::ssize(units); ++unit) {
          all.push_back(unit);
          inputs.kept = SumOfUnits(units, {unit});
          spared += uploaded - UploadedWeightBytes(inputs);
          state += PredictDeviceTier(inputs).optimizer_bytes;
        }
        EXPECT_EQ(spared, uploaded);
        EXPECT_NEAR(static_cast<double>(state), static_cast<double>(plain.optimizer_bytes), 100);
        EXPECT_EQ(none.optimizer_bytes, 0);
        inputs.kept = SumOfUnits(units, all);
        EXPECT_EQ(UploadedWeightBytes(inputs), 0);
        const MemoryBreakdown device = PredictDeviceTier(inputs);
        EXPECT_EQ(device.parameters_bytes, plain.parameters_bytes);
        EXPECT_EQ(device.gradients_bytes, plain.gradients_bytes);
        EXPECT_EQ(device.optimizer_bytes, plain.optimizer_bytes);
        EXPECT_EQ(TotalBytes(PredictMemory(inputs)), TotalBytes(plain)) << "nothing on the host";
      }
    }
  }
}

constexpr int64_t kMlpsOfGpt2 = 12 * 2 * 768 * 3072;

/// GPT-2 with sparse MLPs in all steps, and a search for masks in every fourth one, if `method` has
/// intervals.
MemoryInputs SparseInputs(const std::string& method, const std::string& precision,
                          const MemoryMachine& machine, int64_t ranks = 1) {
  JobSpec job;
  job.model = Gpt2Model();
  job.train.sparsity.method = method;
  if (method != "none") {
    job.train.sparsity.mask_interval = 4;
    job.train.sparsity.dense_share = 0;
  }
  Plan plan;
  plan.precision = precision;
  plan.mesh.data = ranks;
  plan.zero_stage = ranks > 1 ? 3 : 0;
  return MemoryInputsOf(job, plan, machine);
}

TEST(UploadedWeightBytes, HaveWhatSearchesForMasksAndSparseProductsBring) {
  const auto brought = [](const std::string& method, const std::string& precision,
                          const MemoryMachine& machine) {
    MemoryInputs sparse = SparseInputs(method, precision, machine);
    MemoryInputs dense = SparseInputs("none", precision, machine);
    sparse.offload_optimizer = dense.offload_optimizer = true;
    return UploadedWeightBytes(sparse) - UploadedWeightBytes(dense);
  };
  const MemoryMachine device = CudaMachine("9.0");
  // f32 weights, once in four steps.
  EXPECT_EQ(brought("masked_decay", "fp32", device), kMlpsOfGpt2);
  EXPECT_EQ(brought("masked_decay", "bf16", device), kMlpsOfGpt2);
  EXPECT_EQ(brought("measure", "bf16", device), kMlpsOfGpt2);
  EXPECT_EQ(brought("static", "bf16", device), 0) << "once";
  // In every step, and thresholds are of f32 weights.
  EXPECT_EQ(brought("s_ste", "bf16", device), (4 + 2) * kMlpsOfGpt2);
  EXPECT_EQ(brought("masked_decay", "fp16", device), (1 + 2) * kMlpsOfGpt2) << "packed from f32";
  EXPECT_EQ(brought("masked_decay", "bf16", {ProductKind::kNative}), kMlpsOfGpt2);
  EXPECT_EQ(brought("masked_decay", "bf16", {ProductKind::kTiles}), (1 + 2) * kMlpsOfGpt2)
      << "tiles are bf16";
}

TEST(UploadedWeightBytes, HaveNothingOfUnitsThatAreKept) {
  MemoryInputs inputs = SparseInputs("s_ste", "bf16", {ProductKind::kNative});
  inputs.offload_optimizer = true;
  const int64_t all = UploadedWeightBytes(inputs);
  inputs.kept = SumOfUnits(StreamedUnits(inputs.shape.spec), {1});
  const int64_t block = 12 * 768 * 768 + 13 * 768;
  EXPECT_EQ(all - UploadedWeightBytes(inputs), 4 * block + 4 * kMlpsOfGpt2 / 12);
}

// Compressed both ways: half of the values in bf16, where they are, and a bit of the mask.
TEST(BytesOutsideArena, HaveTheSparseWeightsOfOneGatheredBlock) {
  const MemoryMachine device = CudaMachine("9.0");
  const int64_t sparse = BytesOutsideArena(SparseInputs("masked_decay", "bf16", device, 2));
  const int64_t dense = BytesOutsideArena(SparseInputs("none", "bf16", device, 2));
  const int64_t of_block = kMlpsOfGpt2 / 12;
  EXPECT_GE(sparse - dense, (2 * 8 + 2 + 1) * of_block / 8);
  EXPECT_LE(sparse - dense, 6 * of_block);
}

// In fp32 the device has no copies of dense weights.
TEST(BytesOutsideArena, HaveListsOfPrunedWeights) {
  const auto inputs = [](const std::string& products) {
    JobSpec job;
    job.model = Gpt2Model();
    job.train.pruning.method = "random";
    job.train.pruning.density = 0.2;
    job.train.pruning.products = products;
    Plan plan;
    plan.precision = "fp32";
    return MemoryInputsOf(job, plan, CudaMachine("9.0"));
  };
  const MemoryInputs sparse = inputs("sparse");
  const int64_t lists = TechniqueOperandBytes(sparse);
  EXPECT_GT(lists, 0);
  EXPECT_EQ(BytesOutsideArena(sparse) - BytesOutsideArena(inputs("dense")), lists);
}

TEST(ShardParameters, GatherWhatIsSearchedForMasksOnceInNSteps) {
  const auto traffic = [](const std::string& method, int64_t interval) {
    TrainSpec train;
    train.sparsity.method = method;
    train.sparsity.mask_interval = interval;
    return ShardParameters(Gpt2Model(), kBf16Precision, DType::kBF16, 4, 1, 1, 1, train);
  };
  const ShardedParameters each = traffic("masked_decay", 1), fourth = traffic("masked_decay", 4);
  // All that is trained, as it is held: f32, as gradients are.
  EXPECT_EQ(each.after_payload, each.reduced_payload);
  EXPECT_EQ(each.after_gathers, each.reductions);
  EXPECT_EQ(4 * fourth.after_payload, each.after_payload);
  EXPECT_EQ(fourth.after_gathers, (each.after_gathers + 3) / 4);
  EXPECT_EQ(traffic("static", 4).after_payload, 0) << "before the first pass";
}

// Of a network of 12 blocks, whose MLPs have 8 width^2 weights each.
TEST(ShardParameters, GatherWeightsWithSoftThresholdsAsTheyAreHeld) {
  const auto traffic = [](const std::string& method) {
    TrainSpec train;
    train.sparsity.method = method;
    train.sparsity.mask_interval = 1;
    return ShardParameters(Gpt2Model(), kBf16Precision, DType::kBF16, 4, 1, 1, 1, train);
  };
  const ShardedParameters soft = traffic("s_ste"), rounded = traffic("sr_ste");
  const int64_t of_block = 8 * Gpt2Model().width * Gpt2Model().width;
  EXPECT_EQ(soft.forward_payload - rounded.forward_payload, 12 * 2 * of_block);
  EXPECT_EQ(soft.backward_payload - rounded.backward_payload, 11 * 2 * of_block);
  EXPECT_EQ(soft.after_payload, rounded.after_payload);
  EXPECT_EQ(soft.forward_gathers, rounded.forward_gathers) << "together with vectors";
  EXPECT_EQ(soft.held, rounded.held);
}

}  // namespace
}  // namespace weft
