#include "coordinator/planner/pass_cost.h"

#include <gtest/gtest.h>

#include <string>

#include "coordinator/planner/step_time_testing.h"

namespace weft::planner {
namespace {

TEST(CostOfPass, SequenceParallelRanksHaveTheirTokensOfTheResidualStreamAlone) {
  const WorkerProfile worker = GpuMachine(4);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  const auto bytes = [&](bool sequence) {
    StepInputs inputs;
    inputs.shape = Shape(4, sequence);
    inputs.tokens = 256;
    return PassOf(inputs, *rates).memory_bytes;
  };
  // Norms move 8 elements of the stream forward and 8 backward in each of 12 blocks, the last norm
  // and the loss 8, and the embedding 2; of a token's 768 elements of two bytes three of four go.
  EXPECT_NEAR(bytes(false) - bytes(true), 256 * (12 * 16 + 8 + 2) * (768 * 2) * 3 / 4, 1);
}

/// Products in fp32 that are four times as fast as dense ones.
WorkerProfile WorkerWithSparseProducts() {
  WorkerProfile worker = Worker("w", 2, kGiB);
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
    worker.gemm.push_back({"sparse24_" + std::string(pass) + "_fp32", 1024, 768, 768, 1, 1e12});
  }
  return worker;
}

PassCost SparsePass(const WorkerProfile& worker, const SparsitySpec& spec, bool on_cuda = false) {
  const auto rates = MakeStepRates(worker, DType::kF32, false);
  TrainSpec train;
  train.precision = "fp32";
  train.sparsity = spec;
  return CostOfPass(
      Shape(), 1, 256, kFp32Precision, 0, 0, *rates, 1, 1,
      TechniqueProductsOf(train, on_cuda ? ComputeUnits::kCuda : ComputeUnits::kCpuVector), train);
}

TEST(CostOfPass, HasWhatMasksAddByTheirInterval) {
  const auto cost = [worker = WorkerWithSparseProducts()](const char* method, int64_t interval) {
    return SparsePass(worker, {.method = method, .mask_interval = interval});
  };
  const PassCost dense = cost("none", 1), often = cost("masked_decay", 1);
  const PassCost seldom = cost("masked_decay", 10), measured = cost("measure", 10);
  const PassCost once = cost("static", 10);
  EXPECT_EQ(dense.step_product_seconds, 0);
  EXPECT_EQ(dense.packing_seconds, 0);
  EXPECT_NEAR(often.step_product_seconds, 10 * seldom.step_product_seconds, 1e-12);
  EXPECT_GT(often.packing_seconds, seldom.packing_seconds);  // lists are made of new masks
  EXPECT_GT(seldom.packing_seconds, once.packing_seconds);
  EXPECT_GT(once.packing_seconds, 0);
  EXPECT_EQ(once.step_product_seconds, 0);
  EXPECT_EQ(measured.step_product_seconds, seldom.step_product_seconds);
  EXPECT_EQ(measured.packing_seconds, 0);
  // Nothing is known of products that nobody has measured.
  const PassCost unknown = SparsePass(Worker("w", 2, kGiB), {.method = "masked_decay"});
  EXPECT_EQ(unknown.packing_seconds + unknown.step_product_seconds, 0);
  EXPECT_EQ(unknown.gemm_seconds, dense.gemm_seconds);
}

TEST(CostOfPass, GradientsOfWeightsMayStayDense) {
  const auto cost = [worker = WorkerWithSparseProducts()](const char* method,
                                                          const char* estimate) {
    return SparsePass(worker, {.method = method, .gradient_estimate = estimate});
  };
  const PassCost dense = cost("none", "exact"), sparse = cost("masked_decay", "sequential");
  const PassCost exact = cost("masked_decay", "exact");
  const auto forward = [](const PassCost& pass) {
    return pass.gemm_seconds - pass.backward_gemm_seconds;
  };
  EXPECT_LT(forward(sparse), forward(dense));
  EXPECT_NEAR(forward(exact), forward(sparse), 1e-12);
  EXPECT_LT(sparse.backward_gemm_seconds, exact.backward_gemm_seconds);
  EXPECT_LT(exact.backward_gemm_seconds, dense.backward_gemm_seconds);
}

// Sparse tensor cores multiply by the transpose of a weight only where its columns are 2:4, too.
TEST(CostOfPass, GradientsOfInputsStayDenseOnCudaUnderMasksOfRowsAlone) {
  const WorkerProfile worker = WorkerWithSparseProducts();
  const auto backward = [&](const char* method, bool on_cuda) {
    const SparsitySpec spec = {
        .method = method, .dense_share = 0, .gradient_estimate = "exact", .switch_share = 0.25};
    return SparsePass(worker, spec, on_cuda).backward_gemm_seconds;
  };
  const double dense = backward("none", true);
  for (const char* method : {"sr_ste", "s_ste", "step"}) {
    EXPECT_NEAR(backward(method, true), dense, 1e-12) << method;
    EXPECT_LT(backward(method, false), dense) << method;
  }
  for (const char* method : {"masked_decay", "static", "slope"}) {
    EXPECT_LT(backward(method, true), dense) << method;
    EXPECT_EQ(backward(method, true), backward(method, false)) << method;
  }
}

// The measured products are those of matrices that keep a quarter.
TEST(CostOfPass, ProductsOfPrunedWeightsFollowTheirDensity) {
  WorkerProfile worker = Worker("w", 2, kGiB);
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
    worker.gemm.push_back({"csr_" + std::string(pass) + "_fp32", 1024, 768, 768, 1, 1e12});
  }
  const auto rates = MakeStepRates(worker, DType::kF32, false);
  const auto seconds = [&](double density, const char* products, ComputeUnits units) {
    TrainSpec train;
    train.steps = 1'000'000;  // the step that chooses weights hardly counts
    train.precision = "fp32";
    train.pruning.method = "magnitude";
    train.pruning.density = density;
    train.pruning.products = products;
    return CostOfPass(Shape(), 1, 256, kFp32Precision, 0, 0, *rates, 1, 1,
                      TechniqueProductsOf(train, units), train)
        .block_forward_gemm_seconds;
  };
  constexpr ComputeUnits kVector = ComputeUnits::kCpuVector;
  const double dense = seconds(0.25, "dense", kVector);
  const double quarter = seconds(0.25, "auto", kVector), eighth = seconds(0.125, "auto", kVector);
  EXPECT_LT(quarter, dense);
  EXPECT_LT(eighth, quarter);
  EXPECT_GT(eighth, quarter / 2) << "what takes as long at any density";
  EXPECT_GT(seconds(0.5, "sparse", kVector), quarter);
  EXPECT_EQ(seconds(0.25, "auto", ComputeUnits::kCpuMatrix), dense);
  EXPECT_LT(seconds(0.25, "sparse", ComputeUnits::kCpuMatrix), dense);
}

TEST(CostOfPass, HasTheForwardPassesThatScoreAnswers) {
  const WorkerProfile worker = GpuMachine(1);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  const ModelShape shape = Shape();
  const auto cost = [&](const char* method) {
    TrainSpec train;
    train.preference.method = method;
    return CostOfPass(shape, 1, 256, kBf16Precision, 0, 0, *rates, 1, 1, {}, train);
  };
  const PassCost plain = cost("none"), scored = cost("dpo");
  EXPECT_NEAR(scored.gemm_seconds, 2 * plain.gemm_seconds - plain.backward_gemm_seconds, 1e-12);
  EXPECT_EQ(scored.backward_gemm_seconds, plain.backward_gemm_seconds);
  // Each of 12 blocks passes over 8 elements of the stream and 5 of the MLP's width, the last norm
  // and the loss over 4 of the stream, the embedding over one and 3 in f32, the classifier once
  // over the logits.
  const double forward = 256 * (12 * (8 * 768 + 2 * 3072) * 2 + 5 * 768 * 2 + 3 * 4 * 768) +
                         256 * static_cast<double>(shape.PaddedClasses()) * 2;
  EXPECT_NEAR(scored.memory_bytes - plain.memory_bytes, forward, 1);
}

TEST(CostOfPass, HasTheSecondPassOfTheStepsThatTrainANestedNetwork) {
  const WorkerProfile worker = GpuMachine(1);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  const auto cost = [&](int64_t layers, const NestedModelSpec& nested) {
    ModelShape shape = Shape();
    shape.spec.layers = layers;
    TrainSpec train;
    train.steps = 100;
    train.nested_model = nested;
    return CostOfPass(shape, 1, 256, kBf16Precision, 0, 0, *rates, 1, 1, {}, train);
  };
  const PassCost whole = cost(12, {}), small = cost(4, {});
  const PassCost both = cost(12, {.layers = 4, .joint_share = 0.25});
  EXPECT_NEAR(both.gemm_seconds, whole.gemm_seconds + 0.25 * small.gemm_seconds, 1e-12);
  EXPECT_NEAR(both.backward_gemm_seconds,
              whole.backward_gemm_seconds + 0.25 * small.backward_gemm_seconds, 1e-12);
  EXPECT_NEAR(both.memory_bytes, whole.memory_bytes + 0.25 * small.memory_bytes, 1);
}

// The smaller network may have fewer layers than the whole one has blocks of its own.
TEST(CostOfPass, HasTheSecondPassOfNetworksWhoseLayersShareBlocks) {
  const WorkerProfile worker = GpuMachine(1);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  const auto cost = [&](int64_t layers) {
    JobSpec job = Gpt2Job();
    job.model.distinct_blocks = 6;
    job.model.peft.method = "lora";
    job.model.peft.rank = 8;
    job.model.peft.target_modules = {"all-linear"};
    job.train.nested_model = {.layers = layers, .joint_share = 0.5};
    return CostOfPass(ShapeOf(job), 1, 256, kBf16Precision, 0, 0, *rates, 1, 1, {}, job.train)
        .gemm_seconds;
  };
  EXPECT_GT(cost(6), cost(2));
  EXPECT_GT(cost(2), cost(0));
}

TEST(CostOfPass, OfSubNetworksIsThatOfTheRankWithMostUnits) {
  const WorkerProfile worker = GpuMachine(1);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  JobSpec job = Gpt2Job();
  job.train.local_steps = 8;
  job.resources.ranks = 5;  // which divides neither 12 heads nor 3072 neurons
  const ModelShape whole = ShapeOf(job);
  job.train.local_sub_networks = true;
  const ModelShape narrow = ShapeOf(job);
  const auto cost = [&](const ModelShape& shape) {
    return CostOfPass(shape, 1, 256, kBf16Precision, 0, 0, *rates, 1, 1);
  };
  const PassCost all = cost(whole), most = cost(narrow);
  const double heads = 3.0 / 12, neurons = 615.0 / 3072;
  EXPECT_NEAR(most.attention_forward_gemm_seconds, heads * all.attention_forward_gemm_seconds,
              1e-12 * all.attention_forward_gemm_seconds);
  // The other products of a block: with the weight behind the heads, and those of the MLP.
  const auto seconds_of_mlp = [&](const PassCost& pass, double share_of_heads) {
    double output = 0;
    for (const Gemm& gemm : WeightGemms(whole, 256, 256, 2)) {
      if (gemm.role != ParameterRole::kAttentionOutput || gemm.pass != GemmPass::kForward) continue;
      output = gemm.Flops() / 12 / rates->GemmFlopsPerSecond(gemm.m, gemm.n, gemm.k, 1);
    }
    return pass.block_forward_gemm_seconds - pass.attention_forward_gemm_seconds -
           share_of_heads * output;
  };
  EXPECT_NEAR(seconds_of_mlp(most, heads), neurons * seconds_of_mlp(all, 1),
              1e-9 * all.block_forward_gemm_seconds);
  // All operations run, and norms on the whole stream: activations and the gradient of their bias
  // alone move less, 2 and 5 times the width of the MLP.
  EXPECT_EQ(most.computed_share, 1);
  EXPECT_NEAR(all.memory_bytes - most.memory_bytes, 256.0 * 12 * 7 * 2 * (3072 - 615), 1);
  // What all ranks together compute is each unit once.
  EXPECT_DOUBLE_EQ(narrow.computed.attention, 1.0 / 5);
}

TEST(CostOfPass, HasRowsAndKeysOfVirtualTokens) {
  const WorkerProfile worker = GpuMachine(1);
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  const auto cost = [&](const char* method, int64_t length) {
    JobSpec job = Gpt2Job();
    job.model.peft.method = method;
    job.model.peft.num_virtual_tokens = 64;
    const ModelShape shape(ShapeOf(job).spec);
    return CostOfPass(shape, 1, length, kBf16Precision, 0, 0, *rates, 1, 1);
  };
  const PassCost prompt = cost("prompt", 192), whole = cost("prompt", 256);
  const PassCost prefix = cost("prefix", 192), longer = cost("prefix", 256);
  EXPECT_GT(prompt.block_forward_gemm_seconds, prefix.block_forward_gemm_seconds);
  // Both queries and keys are 256 there: those of the tokens alone are 192.
  EXPECT_DOUBLE_EQ(prompt.attention_product_seconds * (192 + 2 * 64) * 192,
                   prefix.attention_product_seconds * 256 * 256);
  EXPECT_GT(whole.gemm_seconds, prompt.gemm_seconds);
  EXPECT_GT(longer.gemm_seconds, prefix.gemm_seconds);
}

}  // namespace
}  // namespace weft::planner
