// Sparse products by cuSPARSE and cuSPARSELt against float64. Each is skipped where its library is
// not: on the host execution fakes of them (tests/gpu/host) are there.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cuda/cusparse_library.h"
#include "kernels/cuda/cusparselt_library.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/linear/linear_ref.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/testing/activation_pass.h"
#include "kernels/testing/compare.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using cuda::AttentionChoice;
using cuda::Sparse24Choice;
using testing::TestTensor;
using Values = std::vector<double>;

// Two of each four in rows and in columns.
Values TransposableMask(int64_t blocks) {
  constexpr uint16_t kPatterns[] = {0xA5A5, 0x5A5A, 0x33CC, 0x9696, 0xCC33};
  Values mask(static_cast<size_t>(blocks));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = kPatterns[i % 5];
  return mask;
}

// An eighth of all, without any in the first rows and columns.
Values UnstructuredMask(int64_t out, int64_t in) {
  PhiloxStream rng({.seed = 21});
  Values mask(static_cast<size_t>(out * in / 16));
  for (size_t i = 0; i < mask.size(); ++i) {
    const auto drawn = rng.Below(1 << 16) & rng.Below(1 << 16) & rng.Below(1 << 16);
    const bool first = i < static_cast<size_t>(in / 4) || i % static_cast<size_t>(in / 4) == 0;
    mask[i] = first ? 0 : static_cast<double>(drawn);
  }
  return mask;
}

Values Masked(Values weight, const Values& mask, int64_t in) {
  for (size_t i = 0; i < weight.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / in, column = static_cast<int64_t>(i) % in;
    const auto bits = static_cast<int>(mask[static_cast<size_t>(row / 4 * (in / 4) + column / 4)]);
    if ((bits >> (4 * (row % 4) + column % 4) & 1) == 0) weight[i] = 0;
  }
  return weight;
}

struct LayerShape {
  int64_t lines, in, out;
  int64_t padding = 0;  // Between lines.
};

// The tensors of a layer, on a device, and its weight, packed.
struct Layer {
  Layer(const Stream& stream, DType dtype, const LayerShape& shape, MaskKind kind,
        const Values& mask_values)
      : dims(shape),
        weight(DType::kF32, {shape.out, shape.in}),
        mask(DType::kU16, {shape.out / 4, shape.in / 4}),
        bias(DType::kF32, {shape.out}),
        x(dtype, {shape.lines, shape.in}, shape.padding),
        y(dtype, {shape.lines, shape.out}, shape.padding),
        dy(dtype, {shape.lines, shape.out}, shape.padding),
        dx(dtype, {shape.lines, shape.in}, shape.padding) {
    PhiloxStream rng({.seed = 22});
    for (TestTensor* tensor : {&weight, &bias, &x, &dy}) tensor->Random(rng);
    Values exact = weight.Values();  // Also in bf16.
    for (double& value : exact) value = std::round(value * 128) / 128;
    weight.Assign(exact);
    mask.Assign(mask_values);
    for (TestTensor* tensor : {&weight, &mask, &bias, &x, &y, &dy, &dx}) tensor->Reset();
    auto made = NewSparseWeight(stream.device, shape.out, shape.in, dtype, kind);
    EXPECT_EQ(made.status().ToString(), "OK");
    if (!made.ok()) return;
    sparse = *std::move(made);
    EXPECT_EQ(sparse->SetMask(stream, mask.view()).ToString(), "OK");
    EXPECT_EQ(sparse->Pack(stream, weight.view()).ToString(), "OK");
  }

  Status Forward(const Stream& stream) {
    return SparseForward(
        stream, {.x = x.view(), .weight = sparse.get(), .bias = bias.view(), .y = y.view()});
  }
  Status BackwardInput(const Stream& stream) {
    return SparseBackwardInput(stream, {.dy = dy.view(), .weight = sparse.get(), .dx = dx.view()});
  }

  // What is wrong with both products, once they were enqueued.
  std::string Problems(const Stream& stream, DType dtype) {
    if (const Status done = stream.cuda->Synchronize(); !done.ok()) return done.ToString();
    y.Fetch();
    dx.Fetch();
    const Values w = Masked(weight.Values(), mask.Values(), dims.in);
    // Operands, the bias and the result are rounded.
    const auto tolerance = [dtype](int64_t terms) {
      return testing::ToleranceFor(dtype, terms, /*roundings=*/3);
    };
    return testing::Mismatch(
               y.Values(),
               LinearForwardRef(x.Values(), w, bias.Values(), dims.lines, dims.in, dims.out),
               tolerance(dims.in)) +
           testing::Mismatch(
               dx.Values(),
               LinearBackwardInputRef(dy.Values(), w, {}, dims.lines, dims.in, dims.out),
               tolerance(dims.out)) +
           (y.GuardsIntact() && dx.GuardsIntact() ? "" : "written between lines");
  }

  LayerShape dims;
  TestTensor weight, mask, bias, x, y, dy, dx;
  std::unique_ptr<SparseWeight> sparse;
};

class SparseLibrariesOnCuda : public OnCuda {
 protected:
  void OpenForCusparseLt() { Open(1000, AttentionChoice::kOwn, Sparse24Choice::kCusparseLt); }

  // Activations after products of a library are passes of their own.
  void ExpectActivationsOfOwnPasses(MaskKind kind, const Values& mask) {
    const testing::ScopedTestDevice device(stream().device, false);
    const LayerShape shape = {.lines = 16, .in = 32, .out = 64};
    for (const ProductActivation activation :
         {ProductActivation::kTanhGelu, ProductActivation::kSwiGlu}) {
      Layer layer(stream(), DType::kBF16, shape, kind, mask);
      ASSERT_NE(layer.sparse, nullptr);
      const bool gated = IsGated(activation);
      const int64_t columns = gated ? 2 * shape.in : shape.in;
      TestTensor active(DType::kBF16, {shape.lines, gated ? shape.out / 2 : shape.out});
      TestTensor own(DType::kBF16, active.view().shape);
      TestTensor before(DType::kBF16, {shape.lines, columns});
      TestTensor dx(DType::kBF16, {shape.lines, columns}), plain(DType::kBF16, dx.view().shape);
      PhiloxStream rng({.seed = 23});
      before.Random(rng);
      for (TestTensor* tensor : {&active, &own, &before, &dx, &plain}) tensor->Reset();
      ASSERT_EQ(SparseForward(stream(), {.x = layer.x.view(),
                                         .weight = layer.sparse.get(),
                                         .bias = layer.bias.view(),
                                         .y = layer.y.view(),
                                         .active = active.view(),
                                         .activation = activation})
                    .ToString(),
                "OK");
      ASSERT_TRUE(testing::ActivationPass(stream(), activation, layer.y.view(), own.view()).ok());
      ASSERT_EQ(SparseBackwardInput(stream(), {.dy = layer.dy.view(),
                                               .weight = layer.sparse.get(),
                                               .dx = dx.view(),
                                               .before = before.view(),
                                               .activation = activation})
                    .ToString(),
                "OK");
      const TensorView product = gated ? GatedColumnsOf(plain.view()).gate : plain.view();
      ASSERT_TRUE(
          SparseBackwardInput(stream(),
                              {.dy = layer.dy.view(), .weight = layer.sparse.get(), .dx = product})
              .ok());
      ASSERT_TRUE(
          testing::ActivationBackwardPass(stream(), activation, plain.view(), before.view(), {})
              .ok());
      ASSERT_EQ(state_->Synchronize().ToString(), "OK");
      for (TestTensor* tensor : {&active, &own, &dx, &plain}) tensor->Fetch();
      EXPECT_EQ(active.bytes(), own.bytes());
      EXPECT_EQ(dx.bytes(), plain.bytes());
    }
  }
};

class CusparseOnCuda : public SparseLibrariesOnCuda {
 protected:
  void SetUp() override {
    SparseLibrariesOnCuda::SetUp();
    if (IsSkipped()) return;
    if (const auto library = cuda::LoadCusparse(); !library.ok()) {
      GTEST_SKIP() << library.status().ToString();
    }
  }
};

TEST_F(CusparseOnCuda, ProductsMatchTheReference) {
  const testing::ScopedTestDevice device(stream().device, false);
  for (const DType dtype : kFloatTypes) {
    for (const LayerShape& shape : {LayerShape{.lines = 37, .in = 60, .out = 44},
                                    LayerShape{.lines = 8, .in = 64, .out = 32, .padding = 8},
                                    LayerShape{.lines = 1, .in = 20, .out = 12, .padding = 3}}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(shape.lines));
      Layer layer(stream(), dtype, shape, MaskKind::kUnstructured,
                  UnstructuredMask(shape.out, shape.in));
      ASSERT_NE(layer.sparse, nullptr);
      ASSERT_EQ(layer.Forward(stream()).ToString(), "OK");
      ASSERT_EQ(layer.BackwardInput(stream()).ToString(), "OK");
      EXPECT_EQ(layer.Problems(stream(), dtype), "");
    }
  }
}

// Also to one that keeps nothing at all, and a weight in bf16.
TEST_F(CusparseOnCuda, ProductsFollowAMaskThatChanges) {
  const testing::ScopedTestDevice device(stream().device, false);
  const LayerShape shape = {.lines = 5, .in = 24, .out = 16};
  Layer layer(stream(), DType::kF32, shape, MaskKind::kUnstructured,
              UnstructuredMask(shape.out, shape.in));
  ASSERT_NE(layer.sparse, nullptr);
  TestTensor rounded(DType::kBF16, {shape.out, shape.in});
  rounded.Assign(layer.weight.Values()).Reset();
  for (const double bits : {0.0, 65535.0, 1.0}) {
    layer.mask.Assign(Values(static_cast<size_t>(shape.out * shape.in / 16), bits)).Reset();
    ASSERT_EQ(layer.sparse->SetMask(stream(), layer.mask.view()).ToString(), "OK");
    EXPECT_EQ(layer.Forward(stream()).code(), StatusCode::kInvalid) << "not packed";
    ASSERT_EQ(layer.sparse->Pack(stream(), rounded.view()).ToString(), "OK");
    ASSERT_EQ(layer.Forward(stream()).ToString(), "OK");
    ASSERT_EQ(layer.BackwardInput(stream()).ToString(), "OK");
    EXPECT_EQ(layer.Problems(stream(), DType::kF32), "") << bits;
  }
  EXPECT_GE(layer.sparse->Bytes(), 2 * shape.out * shape.in / 16 * 12);
}

TEST_F(CusparseOnCuda, ActivationsHaveTheBitsOfAPassOfTheirOwn) {
  ExpectActivationsOfOwnPasses(MaskKind::kUnstructured, UnstructuredMask(64, 32));
}

class CusparseLtOnCuda : public SparseLibrariesOnCuda {
 protected:
  void SetUp() override {
    SparseLibrariesOnCuda::SetUp();
    if (IsSkipped()) return;
    if (const auto library = cuda::LoadCusparseLt(); !library.ok()) {
      GTEST_SKIP() << library.status().ToString();
    }
    OpenForCusparseLt();
  }
};

// Lines as they lie, with a stride, fewer than the library takes, and not aligned.
TEST_F(CusparseLtOnCuda, ProductsMatchTheReference) {
  const testing::ScopedTestDevice device(stream().device, false);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const LayerShape& shape : {LayerShape{.lines = 32, .in = 64, .out = 48},
                                    LayerShape{.lines = 16, .in = 64, .out = 48, .padding = 8},
                                    LayerShape{.lines = 5, .in = 32, .out = 16},
                                    LayerShape{.lines = 16, .in = 32, .out = 32, .padding = 3}}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(shape.lines) + " " +
                   std::to_string(shape.padding));
      Layer layer(stream(), dtype, shape, MaskKind::kTwoOfFour,
                  TransposableMask(shape.out * shape.in / 16));
      ASSERT_NE(layer.sparse, nullptr);
      ASSERT_EQ(layer.Forward(stream()).ToString(), "OK");
      ASSERT_EQ(layer.BackwardInput(stream()).ToString(), "OK");
      EXPECT_EQ(layer.Problems(stream(), dtype), "");
    }
  }
}

TEST_F(CusparseLtOnCuda, ActivationsHaveTheBitsOfAPassOfTheirOwn) {
  ExpectActivationsOfOwnPasses(MaskKind::kTwoOfFour, TransposableMask(64 * 32 / 16));
}

}  // namespace
}  // namespace weft::kernels
