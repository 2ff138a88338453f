// Which calls of cuSPARSE and cuSPARSELt sparse products make, by libraries of our own. Says
// nothing about the real ones but that calls keep their rules.

#include "tests/gpu/host/cusparse.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/graph.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/sparse24/csr_weight.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using cuda::AttentionChoice;
using cuda::Sparse24Choice;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestTensor;
using Values = std::vector<double>;

class HostCusparse : public OnCuda {
 protected:
  void OpenForCusparseLt() { Open(9, AttentionChoice::kOwn, Sparse24Choice::kCusparseLt); }
};

// Ones everywhere: sums count what a mask keeps.
struct Layer {
  Layer(const Stream& stream, DType dtype, int64_t lines, int64_t in, int64_t out)
      : weight(DType::kF32, {out, in}),
        mask(DType::kU16, {out / 4, in / 4}),
        x(dtype, {lines, in}),
        y(dtype, {lines, out}),
        dx(dtype, {lines, in}) {
    for (TestTensor* tensor : {&weight, &x, &y}) {
      tensor->Assign(Values(static_cast<size_t>(tensor->view().shape.Elements()), 1)).Reset();
    }
    dx.Reset();
    auto made = NewSparseWeight(stream.device, out, in, dtype);
    EXPECT_EQ(made.status().ToString(), "OK");
    sparse = *std::move(made);
  }
  Status SetMask(const Stream& stream, uint16_t bits) {
    mask.Assign(Values(static_cast<size_t>(mask.view().shape.Elements()), bits)).Reset();
    return sparse->SetMask(stream, mask.view());
  }
  // All that a step asks of it.
  Status Step(const Stream& stream) {
    WEFT_RETURN_IF_ERROR(sparse->Pack(stream, weight.view()));
    WEFT_RETURN_IF_ERROR(
        SparseBackwardInput(stream, {.dy = y.view(), .weight = sparse.get(), .dx = dx.view()}));
    return SparseForward(stream, {.x = x.view(), .weight = sparse.get(), .y = y.view()});
  }

  TestTensor weight, mask, x, y, dx;
  std::unique_ptr<SparseWeight> sparse;
};

// Places of [8, 8] in rows, and of the transpose in its rows.
TEST(CsrPatterns, AreOfTheMaskAndItsTranspose) {
  // Row 0: columns 1 and 4; row 3: column 1; row 6: column 7.
  const std::vector<uint16_t> mask = {1 << 1 | 1 << 13, 1 << 0, 0, 1 << 11};
  const auto patterns = cuda::CsrPatterns::Of(mask, 8, 8);
  ASSERT_TRUE(patterns.ok());
  EXPECT_THAT(patterns->weight.row_offsets, ElementsAre(0, 2, 2, 2, 3, 3, 3, 4, 4));
  EXPECT_THAT(patterns->weight.columns, ElementsAre(1, 4, 1, 7));
  EXPECT_THAT(patterns->weight.places, ElementsAre(1u, 4u, 25u, 55u));
  EXPECT_THAT(patterns->transpose.row_offsets, ElementsAre(0, 0, 2, 2, 2, 3, 3, 3, 4));
  EXPECT_THAT(patterns->transpose.columns, ElementsAre(0, 3, 0, 6));
  EXPECT_THAT(patterns->transpose.places, ElementsAre(1u, 25u, 4u, 55u));
}

TEST_F(HostCusparse, AWeightIsCompressedOnceAPackAndAPlanMadeOnceAShape) {
  OpenForCusparseLt();
  const testing::ScopedTestDevice device(stream().device, false);
  const int64_t alive = host_cuda::CusparseObjectsAlive();
  const host_cuda::CusparseCalls before = host_cuda::CountCusparseCalls();
  {
    Layer layer(stream(), DType::kBF16, 32, 64, 48), other(stream(), DType::kBF16, 32, 64, 48);
    for (Layer* of : {&layer, &other}) {
      ASSERT_EQ(of->SetMask(stream(), 0xA5A5).ToString(), "OK");
      for (int step = 0; step < 2; ++step) ASSERT_EQ(of->Step(stream()).ToString(), "OK");
    }
    ASSERT_EQ(state_->Synchronize().ToString(), "OK");
    layer.y.Fetch();
    EXPECT_EQ(layer.y.Values()[0], 32) << "half of the weights";
  }
  const host_cuda::CusparseCalls after = host_cuda::CountCusparseCalls();
  EXPECT_EQ(after.plans - before.plans, 2) << "forward and backward, of all weights";
  EXPECT_EQ(after.compressed - before.compressed, 2 * 2 * 2);
  EXPECT_EQ(after.multiplied - before.multiplied, 2 * 2 * 2);
  state_.reset();
  EXPECT_EQ(host_cuda::CusparseObjectsAlive(), alive);
}

// cuSPARSELt takes neither these sizes, nor f32, nor a side that keeps more than two of four.
TEST_F(HostCusparse, WhatCusparseLtDoesNotTakeIsComputedByOurKernels) {
  OpenForCusparseLt();
  const testing::ScopedTestDevice device(stream().device, false);
  struct Case {
    DType dtype;
    int64_t in, out;
    uint16_t bits;
    int64_t products;
    double in_row;  // What the mask keeps of row 0.
  };
  for (const Case& c : {Case{DType::kBF16, 24, 16, 0xA5A5, 0, 12},
                        {DType::kF32, 32, 16, 0xA5A5, 0, 16},
                        {DType::kF16, 32, 16, 0x3333, 1, 16},
                        {DType::kF16, 32, 16, 0x00FF, 1, 32},
                        {DType::kF16, 32, 16, 0xFFFF, 0, 32}}) {
    SCOPED_TRACE(c.bits);
    const int64_t before = host_cuda::CountCusparseCalls().multiplied;
    Layer layer(stream(), c.dtype, 16, c.in, c.out);
    ASSERT_EQ(layer.SetMask(stream(), c.bits).ToString(), "OK");
    ASSERT_EQ(layer.Step(stream()).ToString(), "OK");
    ASSERT_EQ(state_->Synchronize().ToString(), "OK");
    layer.y.Fetch();
    EXPECT_EQ(layer.y.Values()[0], c.in_row);
    EXPECT_EQ(host_cuda::CountCusparseCalls().multiplied - before, c.products);
  }
}

// On a stream that keeps its scratch memory.
TEST_F(HostCusparse, ProductsOfKnownShapesAreRecordedInAGraph) {
  auto opened = cuda::StreamState::Create(0, {.sparse24 = Sparse24Choice::kCusparseLt});
  ASSERT_TRUE(opened.ok());
  state_ = *std::move(opened);
  const testing::ScopedTestDevice device(stream().device, false);
  Layer layer(stream(), DType::kBF16, 16, 32, 16);
  ASSERT_EQ(layer.SetMask(stream(), 0xA5A5).ToString(), "OK");
  ASSERT_EQ(layer.Step(stream()).ToString(), "OK");
  ASSERT_TRUE(cuda::Graph::Begin(stream()).ok());
  ASSERT_EQ(layer.Step(stream()).ToString(), "OK");
  const auto graph = cuda::Graph::End(stream());
  ASSERT_EQ(graph.status().ToString(), "OK");
  layer.weight.Assign(Values(32 * 16, 3)).Reset();
  ASSERT_EQ(graph->Launch(stream()).ToString(), "OK");
  ASSERT_EQ(state_->Synchronize().ToString(), "OK");
  layer.y.Fetch();
  EXPECT_EQ(layer.y.Values(), Values(16 * 16, 3 * 16));
}

TEST_F(HostCusparse, WithoutTheLibrariesAsksForThem) {
  OpenForCusparseLt();
  const testing::ScopedTestDevice device(stream().device, false);
  Layer layer(stream(), DType::kBF16, 16, 32, 16);
  ASSERT_EQ(layer.SetMask(stream(), 0xA5A5).ToString(), "OK");
  host_cuda::SetCusparsePresent(false);
  const Status packed = layer.sparse->Pack(stream(), layer.weight.view());
  const auto unstructured =
      NewSparseWeight(stream().device, 16, 32, DType::kF32, MaskKind::kUnstructured);
  host_cuda::SetCusparsePresent(true);
  EXPECT_EQ(packed.code(), StatusCode::kUnavailable);
  EXPECT_THAT(packed.message(),
              HasSubstr("SparseWeight by cuSPARSELt: loading libcusparseLt.so.0"));
  EXPECT_EQ(unstructured.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(unstructured.status().message(), HasSubstr("loading libcusparse.so.12"));
}

TEST_F(HostCusparse, TheEnvironmentChooses) {
  const auto choice_of = [](const char* text) {
    setenv("WEFT_SPARSE24", text, 1);
    auto state = cuda::StreamState::Create(0);
    unsetenv("WEFT_SPARSE24");
    return state;
  };
  EXPECT_EQ((*choice_of("own"))->sparse24(), Sparse24Choice::kOwn);
  EXPECT_EQ((*choice_of("cusparselt"))->sparse24(), Sparse24Choice::kCusparseLt);
  EXPECT_EQ(choice_of("fast").status().ToString(),
            "INVALID: WEFT_SPARSE24 is fast; hint: own or cusparselt");
  EXPECT_EQ((*cuda::StreamState::Create(0))->sparse24(), Sparse24Choice::kOwn);
}

}  // namespace
}  // namespace weft::kernels
