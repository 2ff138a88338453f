// The case lists of all operations on a CUDA device.

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "kernels/attention_part/attention_part_problem.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/norm_part/norm_part_problem.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels {
namespace {

class KernelsOnCuda : public OnCuda {
 protected:
  // Runs the kTest cases; returns the failures, and expects that just these operations are missing.
  std::string Failures(const std::vector<testing::OpCase>& cases,
                       const std::set<std::string>& without = {}) {
    std::string failures;
    std::set<std::string> missing;
    for (const testing::OpCase& op_case : cases) {
      if (op_case.use != testing::CaseUse::kTest) continue;
      failures += testing::CheckCaseOn(*state_, op_case, missing);
    }
    EXPECT_EQ(missing, without);
    return failures;
  }
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

#ifdef WEFT_HOST_EXECUTION
constexpr bool kHostExecution = true;
#else
constexpr bool kHostExecution = false;
#endif

// Kernels for f16 are those for bf16 except conversions: accesses and barriers, which are all that
// a sanitizer tells more of, are the same. So is what the conversions do not touch, and where the
// host executes all threads f16 has a case for each width of heads alone, with and without dropout.
std::vector<testing::OpCase> AttentionCases() {
  std::vector<testing::OpCase> cases = testing::AttentionCases();
  std::erase_if(cases, [](const testing::OpCase& op_case) {
    const std::string& name = op_case.name;
    const bool each_width =
        name.find("/t65/") != std::string::npos || name.find("_drop25/") != std::string::npos;
    return name.ends_with("/f16") && (kSanitized || (kHostExecution && !each_width));
  });
  return cases;
}

// The same of products: where the host executes all threads, those of f16 have the small sizes
// alone.
std::vector<testing::OpCase> LinearCases() {
  std::vector<testing::OpCase> cases = testing::LinearCases();
  std::erase_if(cases, [](const testing::OpCase& op_case) {
    const std::string& name = op_case.name;
    const bool large = name.find("/1030x") != std::string::npos ||
                       name.find("/4103x") != std::string::npos ||
                       name.find("x1120/") != std::string::npos;
    return kHostExecution && large && name.find("/f16") != std::string::npos;
  });
  return cases;
}

TEST_F(KernelsOnCuda, Activation) {
  EXPECT_EQ(Failures(testing::ActivationCases()), "");
}
TEST_F(KernelsOnCuda, Adafactor) {
  EXPECT_EQ(Failures(testing::AdafactorCases()), "");
}
TEST_F(KernelsOnCuda, Affine) {
  EXPECT_EQ(Failures(testing::AffineCases()), "");
}
TEST_F(KernelsOnCuda, Attention) {
  EXPECT_EQ(Failures(AttentionCases()), "");
}
// On the plain kernels and on the tensor cores, of this device and of Hopper.
TEST_F(KernelsOnCuda, AttentionPart) {
  for (const int newest : {8, 9}) {
    Open(newest);
    const testing::ScopedTestDevice device(stream().device, true);
    for (const DType dtype : kFloatTypes) {
      if (newest > 8 && dtype == DType::kF32) continue;
      SCOPED_TRACE(DTypeName(dtype));
      testing::attention_part::ExpectTheWhole({.dtype = dtype, .owners = 3}, stream());
      testing::attention_part::ExpectTheWhole(
          {.dtype = dtype, .chunk = 37, .sequences = 1, .kv_heads = 4, .head_dim = 64}, stream());
    }
  }
}
TEST_F(KernelsOnCuda, AttentionOnHopper) {
  Open(9);
  if (state_->limits().major != 9) GTEST_SKIP() << "no Hopper";
  std::vector<testing::OpCase> cases = AttentionCases();
  std::erase_if(cases,
                [](const testing::OpCase& op_case) { return op_case.name.ends_with("/f32"); });
  EXPECT_EQ(Failures(cases), "");
}
// A few: the library compiles kernels for each.
TEST_F(KernelsOnCuda, AttentionByCudnnAlone) {
  const auto library = cuda::LoadCudnn();
  if (!library.ok()) GTEST_SKIP() << library.status().ToString();
  if ((*library)->get_version() < 91600) GTEST_SKIP() << "cuDNN before 9.16";
  Open(9, cuda::AttentionChoice::kCudnnOnly);
  std::vector<testing::OpCase> cases = testing::AttentionCases();
  std::erase_if(cases, [](const testing::OpCase& op_case) {
    const std::string& name = op_case.name;
    const bool chosen = name.find("/t65/h1k1d64/") != std::string::npos ||
                        name.find("/t50+50+50/") != std::string::npos;
    return !chosen || !name.ends_with("/bf16");
  });
  EXPECT_EQ(cases.size(), 4);
  EXPECT_EQ(Failures(cases), "");
}
// Its plans are made before: the library may do what cannot be recorded.
TEST_F(KernelsOnCuda, AttentionByCudnnIsRecordedInGraphs) {
  const auto library = cuda::LoadCudnn();
  if (!library.ok()) GTEST_SKIP() << library.status().ToString();
  if ((*library)->get_version() < 91600) GTEST_SKIP() << "cuDNN before 9.16";
  // Scratch memory of streams for tests is never where it was.
  auto state =
      cuda::StreamState::Create(0, {.newest = 9, .attention = cuda::AttentionChoice::kCudnnOnly});
  ASSERT_TRUE(state.ok());
  state_ = *std::move(state);
  constexpr int64_t kLength = 64, kTokens = 2 * kLength, kWidth = 2 * 64;
  const testing::ScopedTestDevice device(stream().device, true);
  PhiloxStream rng({.seed = 12});
  std::deque<testing::TestTensor> tensors;
  const auto add = [&](DType dtype, Shape shape, bool input) {
    testing::TestTensor& tensor = tensors.emplace_back(dtype, shape, 0);
    if (input) tensor.Random(rng);
    tensor.Reset();
    return tensor.view();
  };
  AttentionBackwardArgs args;
  AttentionForwardArgs& forward = args.forward;
  for (TensorView* input : {&forward.q, &forward.k, &forward.v, &args.dout}) {
    *input = add(DType::kBF16, {kTokens, kWidth}, true);
  }
  for (TensorView* output : {&forward.out, &args.dq, &args.dk, &args.dv}) {
    *output = add(DType::kBF16, {kTokens, kWidth}, false);
  }
  forward.log_sum_exp = add(DType::kF32, {2, kTokens}, false);
  testing::TestTensor& starts = tensors.emplace_back(DType::kI32, Shape{3}, 0);
  starts.Assign({0, kLength, kTokens}).Reset();
  forward.sequence_starts = starts.view();
  forward.heads = forward.kv_heads = 2;
  forward.scale = 0.125f;
  forward.length = kLength;
  const auto enqueue = [&] {
    const Status status = AttentionForward(stream(), forward);
    return status.ok() ? AttentionBackward(stream(), args) : status;
  };
  const auto results = [&] {
    std::vector<std::vector<double>> values;
    EXPECT_EQ(state_->Synchronize().ToString(), "OK");
    for (size_t i = 4; i < 9; ++i) {
      tensors[i].Fetch();
      values.push_back(tensors[i].Values());
      tensors[i].Reset();
    }
    return values;
  };
  ASSERT_EQ(enqueue().ToString(), "OK");
  const auto first = results();
  ASSERT_TRUE(cuda::Graph::Begin(stream()).ok());
  ASSERT_EQ(enqueue().ToString(), "OK");
  const auto graph = cuda::Graph::End(stream());
  ASSERT_EQ(graph.status().ToString(), "OK");
  // cuDNN adds to dQ in no fixed order.
  const auto expect_near = [](const std::vector<std::vector<double>>& got,
                              const std::vector<std::vector<double>>& want) {
    for (size_t i = 0; i < got.size(); ++i) {
      for (size_t k = 0; k < got[i].size(); ++k) {
        ASSERT_NEAR(got[i][k], want[i][k], 0x1p-6) << i << " " << k;
      }
    }
  };
  ASSERT_TRUE(graph->Launch(stream()).ok());
  expect_near(results(), first);
  // What a graph reads is what is there when it is launched.
  tensors[0].Random(rng).Reset();
  ASSERT_TRUE(graph->Launch(stream()).ok());
  const auto launched = results();
  ASSERT_EQ(enqueue().ToString(), "OK");
  expect_near(launched, results());
  EXPECT_NE(launched, first);
}
TEST_F(KernelsOnCuda, BlockSparse) {
  EXPECT_EQ(Failures(testing::BlockSparseCases()), "");
}
TEST_F(KernelsOnCuda, Cayley) {
  EXPECT_EQ(Failures(testing::CayleyCases()), "");
}
TEST_F(KernelsOnCuda, CrossEntropy) {
  EXPECT_EQ(Failures(testing::CrossEntropyCases()), "");
}
TEST_F(KernelsOnCuda, Dropout) {
  EXPECT_EQ(Failures(testing::DropoutCases()), "");
}
TEST_F(KernelsOnCuda, Elementwise) {
  EXPECT_EQ(Failures(testing::ElementwiseCases()), "");
}
TEST_F(KernelsOnCuda, Embedding) {
  EXPECT_EQ(Failures(testing::EmbeddingCases()), "");
}
TEST_F(KernelsOnCuda, GatherRows) {
  EXPECT_EQ(Failures(testing::GatherRowsCases()), "");
}
TEST_F(KernelsOnCuda, GroupQuantize) {
  EXPECT_EQ(Failures(testing::GroupQuantizeCases()), "");
}
TEST_F(KernelsOnCuda, Hadamard) {
  EXPECT_EQ(Failures(testing::HadamardCases()), "");
}
TEST_F(KernelsOnCuda, LayerNorm) {
  EXPECT_EQ(Failures(testing::LayerNormCases()), "");
}
TEST_F(KernelsOnCuda, Linear) {
  EXPECT_EQ(Failures(LinearCases()), "");
}
TEST_F(KernelsOnCuda, LinearFp8) {
  const cuda::DeviceLimits& limits = state_->limits();
  const bool has_fp8 = limits.major * 10 + limits.minor >= 89;
  const std::set<std::string> without = {"MatmulFp8"};
  EXPECT_EQ(Failures(testing::LinearFp8Cases(), has_fp8 ? std::set<std::string>() : without), "");
}
TEST_F(KernelsOnCuda, LogitPenalty) {
  EXPECT_EQ(Failures(testing::LogitPenaltyCases()), "");
}
TEST_F(KernelsOnCuda, MaskedNorm) {
  EXPECT_EQ(Failures(testing::MaskedNormCases()), "");
}
TEST_F(KernelsOnCuda, MoeCombine) {
  EXPECT_EQ(Failures(testing::MoeCombineCases()), "");
}
TEST_F(KernelsOnCuda, MoeRoute) {
  EXPECT_EQ(Failures(testing::MoeRouteCases()), "");
}
TEST_F(KernelsOnCuda, NormPart) {
  const testing::ScopedTestDevice device(stream().device, true);
  testing::norm_part::CheckManyParts(stream());
}
TEST_F(KernelsOnCuda, NormStat) {
  EXPECT_EQ(Failures(testing::NormStatCases()), "");
}
TEST_F(KernelsOnCuda, Optimizer) {
  EXPECT_EQ(Failures(testing::OptimizerCases()), "");
}
TEST_F(KernelsOnCuda, Orthogonalize) {
  EXPECT_EQ(Failures(testing::OrthogonalizeCases()), "");
}
TEST_F(KernelsOnCuda, Patches) {
  EXPECT_EQ(Failures(testing::PatchesCases()), "");
}
TEST_F(KernelsOnCuda, Quantize4Bit) {
  EXPECT_EQ(Failures(testing::Quantize4BitCases()), "");
}
TEST_F(KernelsOnCuda, QuantizeFp8) {
  EXPECT_EQ(Failures(testing::QuantizeFp8Cases()), "");
}
TEST_F(KernelsOnCuda, QuantizeInt8) {
  EXPECT_EQ(Failures(testing::QuantizeInt8Cases()), "");
}
TEST_F(KernelsOnCuda, RmsNorm) {
  EXPECT_EQ(Failures(testing::RmsNormCases()), "");
}
TEST_F(KernelsOnCuda, Rope) {
  EXPECT_EQ(Failures(testing::RopeCases()), "");
}
TEST_F(KernelsOnCuda, Sparse24) {
  EXPECT_EQ(Failures(testing::Sparse24Cases(), {"SampledBackwardWeight"}), "");
}
TEST_F(KernelsOnCuda, Sparse24OnHopper) {
  Open(9);
  if (state_->limits().major != 9) GTEST_SKIP() << "no Hopper";
  std::vector<testing::OpCase> cases = testing::Sparse24Cases();
  std::erase_if(cases, [](const testing::OpCase& op_case) {
    return op_case.name.find("/f32") != std::string::npos;
  });
  EXPECT_EQ(Failures(cases, {"SampledBackwardWeight"}), "");
}
TEST_F(KernelsOnCuda, StepTotals) {
  EXPECT_EQ(Failures(testing::StepTotalsCases()), "");
}
TEST_F(KernelsOnCuda, StochasticRound) {
  EXPECT_EQ(Failures(testing::StochasticRoundCases()), "");
}
TEST_F(KernelsOnCuda, SwapBlocks) {
  EXPECT_EQ(Failures(testing::SwapBlocksCases()), "");
}

TEST_F(KernelsOnCuda, SwiGlu) {
  EXPECT_EQ(Failures(testing::SwiGluCases()), "");
}

// out, log_sum_exp, dq, dk and dv of tokens [begin, end) of a fixed problem of 300 tokens, 2 heads
// and a key head, with these sequence_starts.
std::vector<std::vector<double>> AttentionResults(cuda::StreamState& state, DType dtype,
                                                  int64_t begin, int64_t end,
                                                  const std::vector<double>& starts) {
  constexpr int64_t kTokens = 300, kHeads = 2, kHeadDim = 40, kWidth = kHeads * kHeadDim;
  const testing::ScopedTestDevice device(state.stream().device, true);
  PhiloxStream rng({.seed = 9});
  std::deque<testing::TestTensor> tensors;
  const auto add = [&](DType type, Shape shape) -> testing::TestTensor& {
    return tensors.emplace_back(type, shape, 0);
  };
  const auto input = [&](int64_t width) {
    testing::TestTensor& tensor = add(dtype, {kTokens, width}).Random(rng);
    TensorView view = tensor.view();
    view.data = static_cast<char*>(view.data) + begin * width * DTypeSize(dtype);
    view.shape = {end - begin, width};
    return view;
  };
  AttentionBackwardArgs args;
  AttentionForwardArgs& forward = args.forward;
  forward.q = input(kWidth);
  forward.k = input(kHeadDim);
  forward.v = input(kHeadDim);
  args.dout = input(kWidth);
  forward.heads = kHeads;
  forward.scale = 0.2f;
  forward.sequence_starts =
      add(DType::kI32, {static_cast<int64_t>(starts.size())}).Assign(starts).view();
  const size_t results = tensors.size();
  forward.out = add(dtype, {end - begin, kWidth}).view();
  forward.log_sum_exp = add(DType::kF32, {kHeads, end - begin}).view();
  args.dq = add(dtype, {end - begin, kWidth}).view();
  args.dk = add(dtype, {end - begin, kHeadDim}).view();
  args.dv = add(dtype, {end - begin, kHeadDim}).view();
  for (testing::TestTensor& tensor : tensors) tensor.Reset();
  EXPECT_EQ(AttentionForward(state.stream(), forward).ToString(), "OK");
  EXPECT_EQ(AttentionBackward(state.stream(), args).ToString(), "OK");
  EXPECT_EQ(state.Synchronize().ToString(), "OK");
  std::vector<std::vector<double>> values;
  for (testing::TestTensor& tensor : tensors) {
    tensor.Fetch();
    values.push_back(tensor.Values());
  }
  values.erase(values.begin(), values.begin() + static_cast<int64_t>(results));
  return values;
}

// f32 has one kernel for all devices.
constexpr std::pair<int, DType> kGenerations[] = {
    {8, DType::kF32}, {8, DType::kBF16}, {8, DType::kF16}, {9, DType::kBF16}, {9, DType::kF16}};

TEST_F(KernelsOnCuda, ADocumentAttendsWithTheSameBitsPackedWithOthersAndAlone) {
  for (const auto& [newest, dtype] : kGenerations) {
    if (kSanitized && dtype == DType::kF16) continue;
    Open(newest);
    const auto packed = AttentionResults(*state_, dtype, 0, 300, {0, 37, 236, 236, 300});
    const auto alone = AttentionResults(*state_, dtype, 37, 236, {0, 199});
    for (size_t i : {0, 2, 3, 4}) {
      const auto width = static_cast<int64_t>(packed[i].size()) / 300;
      EXPECT_TRUE(std::equal(alone[i].begin(), alone[i].end(), packed[i].begin() + 37 * width))
          << i;
    }
  }
}

// They are on the device, where only the kernel sees them.
TEST_F(KernelsOnCuda, SequencesOutsideTheTokensMakeAttentionTouchNothingElse) {
  for (const auto& [newest, dtype] : kGenerations) {
    if (kSanitized && dtype == DType::kF16) continue;
    Open(newest);
    const auto want = AttentionResults(*state_, dtype, 0, 300, {0, 40, 300});
    EXPECT_EQ(AttentionResults(*state_, dtype, 0, 300, {-5, 40, 9000}), want);
    const auto rest = AttentionResults(*state_, dtype, 0, 300, {3, 300})[0];
    const auto fallen = AttentionResults(*state_, dtype, 0, 300, {7, 3, 9000, -2})[0];
    EXPECT_TRUE(std::equal(rest.begin() + 3 * 80, rest.end(), fallen.begin() + 3 * 80));
  }
}

// The host keeps only the repeated part of a tensor that is made to be timed.
TEST_F(KernelsOnCuda, ALargeTestTensorRepeatsToItsEndOnTheDevice) {
  constexpr int64_t kTail = 1000, kKept = testing::TestTensor::kMostKept;
  const testing::ScopedTestDevice device(stream().device, false);
  PhiloxStream rng({.seed = 5});
  testing::TestTensor large(DType::kF32, {kKept + kTail}), tail(DType::kF32, {kTail});
  large.Random(rng).Reset();
  tail.Reset();
  const TensorView end(large.view().As<float>() + kKept, DType::kF32, {kTail}, stream().device);
  ASSERT_TRUE(Cast(stream(), {.x = end, .y = tail.view()}).ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  tail.Fetch();
  const std::vector<double> values = large.Values();
  const std::vector<double> got = tail.Values();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], values[(kKept + i) % testing::TestTensor::kMostDrawn]) << i;
  }
}

TEST_F(KernelsOnCuda, ATargetOutsideTheVocabularyMakesItsLossNan) {
  const testing::ScopedTestDevice device(stream().device, true);
  testing::TestTensor logits(DType::kF32, {3, 4}), targets(DType::kI32, {3});
  testing::TestTensor losses(DType::kF32, {3}), predictions(DType::kI32, {3});
  logits.Assign({1, 5, 5, 9, 3, 3, 3, 3, 0, 1, 2, 9}).Reset();
  targets.Assign({3, kIgnoreTarget, 2}).Reset();
  losses.Reset();
  predictions.Reset();
  ASSERT_TRUE(CrossEntropy(stream(), {.logits = logits.view(),
                                      .targets = targets.view(),
                                      .vocabulary = 3,
                                      .losses = losses.view(),
                                      .predictions = predictions.view()})
                  .ok());
  ASSERT_TRUE(state_->Synchronize().ok());
  for (testing::TestTensor* tensor : {&logits, &losses, &predictions}) tensor->Fetch();
  EXPECT_TRUE(std::isnan(losses.Values()[0]));
  EXPECT_EQ(losses.Values()[1], 0);
  EXPECT_GT(losses.Values()[2], 0);
  EXPECT_EQ(predictions.Values(), (std::vector<double>{1, 0, 2}));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(logits.Values()[i], 0) << i;
  EXPECT_LT(logits.Values()[10], 0);
}

}  // namespace
}  // namespace weft::kernels
