// Attention by cuDNN against a cuDNN of our own. Says nothing about the real one but that calls
// keep its rules; whether it takes our graphs, cudnn_plans_test checks where it is.

#include "tests/gpu/host/cudnn.h"

#include <cstdlib>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/testing/all_cases.h"
#include "kernels/testing/test_device.h"
#include "tests/gpu/host/device_memory.h"

namespace weft::kernels {
namespace {

using cuda::AttentionChoice;
using cuda::CudnnGraph;
using cuda::CudnnLibrary;
using ::testing::HasSubstr;

class HostCudnn : public OnCuda {};

TEST_F(HostCudnn, ComputesAttentionOfAllShapesThatItTakes) {
  Open(9, AttentionChoice::kCudnnOnly);
  const host_cuda::CudnnCalls before = host_cuda::CountCudnnCalls();
  std::string failures;
  std::set<std::string> missing;
  for (const testing::OpCase& op_case : testing::AttentionCases()) {
    if (op_case.use != testing::CaseUse::kTest || op_case.name.ends_with("/f32")) continue;
    failures += testing::CheckCaseOn(*state_, op_case, missing);
  }
  EXPECT_EQ(failures, "");
  const std::set<std::string> of_several_lengths = {"AttentionForward by cuDNN alone",
                                                    "AttentionBackward by cuDNN alone"};
  EXPECT_EQ(missing, of_several_lengths);
  const host_cuda::CudnnCalls after = host_cuda::CountCudnnCalls();
  // 17 shapes, forward and backward, in bf16 and f16; each runs twice, by one plan.
  EXPECT_EQ(after.plans - before.plans, 17 * 4);
  EXPECT_EQ(after.runs - before.runs, 2 * 17 * 4);
  state_.reset();
  EXPECT_EQ(host_cuda::CudnnDescriptorsAlive(), 0);
}

// Tensors of one head's attention over `tokens` tokens, two sequences.
struct Problem {
  static constexpr int64_t kDim = 16;

  Problem(DType dtype, int64_t tokens, int64_t padding = 0) {
    PhiloxStream rng({.seed = 4});
    const auto matrix = [&](bool input) {
      testing::TestTensor& tensor = tensors.emplace_back(dtype, Shape{tokens, kDim}, padding);
      if (input) tensor.Random(rng);
      tensor.Reset();
      return tensor.view();
    };
    args.q = matrix(true);
    args.k = matrix(true);
    args.v = matrix(true);
    args.out = matrix(false);
    testing::TestTensor& starts = tensors.emplace_back(DType::kI32, Shape{3});
    const auto half = static_cast<double>(tokens / 2);
    args.sequence_starts = starts.Assign({0, half, 2 * half}).view();
    starts.Reset();
    testing::TestTensor& sums = tensors.emplace_back(DType::kF32, Shape{1, tokens});
    sums.Reset();
    args.log_sum_exp = sums.view();
    args.length = tokens / 2;
  }
  std::vector<double> Out() {
    tensors[3].Fetch();
    return tensors[3].Values();
  }

  std::deque<testing::TestTensor> tensors;
  AttentionForwardArgs args;
};

TEST_F(HostCudnn, WhatItDoesNotTakeIsComputedByOurKernels) {
  const testing::ScopedTestDevice device(stream().device, true);
  struct Refused {
    std::string why;
    DType dtype = DType::kBF16;
    int64_t tokens = 20;
    int64_t padding = 0;
    bool knows_length = true;
    size_t version = 91900;
  };
  for (const Refused& r : {Refused{.why = "the lengths of the sequences", .knows_length = false},
                           Refused{.why = "no attention in f32", .dtype = DType::kF32},
                           Refused{.why = "not aligned to 16 bytes", .padding = 1},
                           Refused{.why = "single tokens", .tokens = 2},
                           Refused{.why = "9.10.1 has known errors", .version = 91001},
                           Refused{.why = "libcudnn.so.9: not here", .version = 0}}) {
    const size_t version = host_cuda::SetCudnnVersion(r.version);
    Problem problem(r.dtype, r.tokens, r.padding);
    if (!r.knows_length) problem.args.length = 0;
    Open(9);
    ASSERT_TRUE(AttentionForward(stream(), problem.args).ok());
    ASSERT_TRUE(state_->Synchronize().ok());
    const std::vector<double> want = problem.Out();
    for (testing::TestTensor& tensor : problem.tensors) tensor.Reset();
    Open(9, AttentionChoice::kCudnnOnly);
    const Status refused = AttentionForward(stream(), problem.args);
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), HasSubstr(r.why));
    Open(9, AttentionChoice::kCudnn);
    ASSERT_TRUE(AttentionForward(stream(), problem.args).ok());
    ASSERT_TRUE(state_->Synchronize().ok());
    EXPECT_EQ(problem.Out(), want) << r.why;
    host_cuda::SetCudnnVersion(version);
  }
}

// Its backward pass would not give the same bits each time.
TEST_F(HostCudnn, NothingOfItRunsUnlessItIsAskedFor) {
  auto state = cuda::StreamState::Create(0);
  ASSERT_TRUE(state.ok());
  const Stream own = (*state)->stream();
  const testing::ScopedTestDevice device(own.device, true);
  Problem problem(DType::kBF16, 40), gradients(DType::kBF16, 40);
  const host_cuda::CudnnCalls calls = host_cuda::CountCudnnCalls();
  ASSERT_TRUE(AttentionForward(own, problem.args).ok());
  ASSERT_TRUE(AttentionBackward(own, {.forward = problem.args,
                                      .dout = gradients.args.out,
                                      .dq = gradients.args.q,
                                      .dk = gradients.args.k,
                                      .dv = gradients.args.v})
                  .ok());
  EXPECT_EQ(host_cuda::CountCudnnCalls().plans, calls.plans);
  EXPECT_EQ(host_cuda::CountCudnnCalls().runs, calls.runs);
}

TEST_F(HostCudnn, AStepAllocatesNoDeviceMemoryAndAsksForNoPlan) {
  auto state = cuda::StreamState::Create(0, {.attention = AttentionChoice::kCudnnOnly});
  ASSERT_TRUE(state.ok());
  const testing::ScopedTestDevice device((*state)->stream().device, true);
  Problem problem(DType::kF16, 40);
  ASSERT_TRUE(AttentionForward((*state)->stream(), problem.args).ok());
  const int64_t allocations = host_cuda::DeviceAllocations();
  const host_cuda::CudnnCalls calls = host_cuda::CountCudnnCalls();
  ASSERT_TRUE(AttentionForward((*state)->stream(), problem.args).ok());
  EXPECT_EQ(host_cuda::DeviceAllocations(), allocations);
  EXPECT_EQ(host_cuda::CountCudnnCalls().plans, calls.plans);
  EXPECT_EQ(host_cuda::CountCudnnCalls().runs, calls.runs + 1);
}

TEST_F(HostCudnn, APlanIsNotMadeWhileAGraphIsRecorded) {
  Open(9, AttentionChoice::kCudnnOnly);
  const testing::ScopedTestDevice device(stream().device, true);
  Problem problem(DType::kF16, 48);
  ASSERT_TRUE(cuda::Graph::Begin(stream()).ok());
  EXPECT_THAT(AttentionForward(stream(), problem.args).message(), HasSubstr("cuDNN makes a plan"));
  EXPECT_FALSE(cuda::Graph::End(stream()).ok());
}

TEST_F(HostCudnn, TheEnvironmentChooses) {
  const auto choice_of = [](const char* text) {
    setenv("WEFT_ATTENTION", text, 1);
    auto state = cuda::StreamState::Create(0);
    unsetenv("WEFT_ATTENTION");
    return state;
  };
  EXPECT_EQ((*choice_of("own"))->attention(), AttentionChoice::kOwn);
  EXPECT_EQ((*choice_of("cudnn"))->attention(), AttentionChoice::kCudnn);
  EXPECT_EQ((*choice_of("cudnn-only"))->attention(), AttentionChoice::kCudnnOnly);
  EXPECT_EQ(choice_of("fast").status().ToString(),
            "INVALID: WEFT_ATTENTION is fast; hint: own, cudnn or cudnn-only");
  EXPECT_EQ((*cuda::StreamState::Create(0))->attention(), AttentionChoice::kOwn);
}

// What a graph that `describe` makes is refused for.
template <class Describe>
std::string Refusal(Describe&& describe) {
  const CudnnLibrary& library = **cuda::LoadCudnn();
  CudnnLibrary::Handle handle = nullptr;
  (void)library.create(&handle);
  CudnnGraph graph(library);
  describe(graph);
  const auto plan = graph.Compile(handle);
  (void)library.destroy(handle);
  return plan.ok() ? "nothing" : plan.status().message();
}

TEST_F(HostCudnn, RefusesGraphsThatMakeNoSense) {
  const CudnnGraph::Layout square = {{1, 2, 8, 8}, {128, 64, 8, 1}};
  const CudnnGraph::Layout narrow = {{1, 2, 8, 4}, {64, 32, 8, 1}};
  const CudnnGraph::Layout odd = {{1, 2, 8, 8}, {144, 72, 9, 1}};
  const auto half = CudnnLibrary::kHalf;
  EXPECT_EQ(Refusal([&](CudnnGraph& g) {
              g.Multiply(g.Bound(half, square), g.Bound(half, square), g.Bound(half, square));
            }),
            "nothing");
  EXPECT_THAT(Refusal([&](CudnnGraph& g) {
                g.Multiply(g.Bound(half, square), g.Bound(half, narrow), g.Bound(half, square));
              }),
              HasSubstr("the sizes of a product"));
  EXPECT_THAT(Refusal([&](CudnnGraph& g) { g.Bound(half, odd); }), HasSubstr("not aligned"));
  EXPECT_THAT(Refusal([&](CudnnGraph& g) {
                const auto between = g.Between(CudnnLibrary::kFloat, square);
                g.Pointwise(CudnnLibrary::kExp, between, g.Bound(half, square));
              }),
              HasSubstr("read before it is written"));
  EXPECT_THAT(Refusal([&](CudnnGraph& g) {
                const auto x = g.Bound(half, square), y = g.Bound(half, square);
                g.Pointwise(CudnnLibrary::kExp, x, y);
                g.Pointwise(CudnnLibrary::kLog, x, y);
              }),
              HasSubstr("written twice"));
  EXPECT_THAT(Refusal([&](CudnnGraph& g) {
                const auto x = g.Bound(half, square), y = g.Bound(half, square);
                g.Compare(CudnnLibrary::kGreater, x, x, y);
              }),
              HasSubstr("a truth value"));
  EXPECT_THAT(
      Refusal([&](CudnnGraph& g) { g.Reshape(g.Bound(half, square), g.Bound(half, narrow)); }),
      HasSubstr("other elements"));
}

}  // namespace
}  // namespace weft::kernels
