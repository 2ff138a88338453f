// Products on a CUDA device: what the case list does not reach.

#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/linear/linear.h"
#include "kernels/orthogonalize/orthogonalize.h"
#include "kernels/orthogonalize/orthogonalize_ref.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;
using Values = std::vector<double>;

class ProductsOnCuda : public OnCuda {
 protected:
  TestTensor& Make(DType dtype, const Shape& shape, const Values& values) {
    const testing::ScopedTestDevice device(stream().device, true);
    TestTensor& tensor = tensors_.emplace_back(dtype, shape);
    tensor.Assign(values).Reset();
    return tensor;
  }

  std::unique_ptr<PackedWeight> Weight(int64_t out, int64_t in, DType compute) {
    auto weight = NewPackedWeight(stream().device, out, in, compute);
    EXPECT_TRUE(weight.ok()) << weight.status().ToString();
    return *std::move(weight);
  }

  Values Result(const Status& status, TestTensor& tensor) {
    EXPECT_EQ(status.ToString(), "OK");
    EXPECT_EQ(state_->Synchronize().ToString(), "OK");
    tensor.Fetch();
    return tensor.Values();
  }

  std::deque<TestTensor> tensors_;
};

TEST_F(ProductsOnCuda, AWeightOfTheComputeTypeIsReadInPlaceAndOthersAreCopied) {
  TestTensor& x = Make(DType::kBF16, {1, 2}, {1, 1});
  TestTensor& y = Make(DType::kBF16, {1, 2}, {0, 0});
  for (DType stored : {DType::kF32, DType::kBF16}) {
    const auto weight = Weight(2, 2, DType::kBF16);
    for (double factor : {1.0, 8.0}) {
      TestTensor& master = Make(stored, {2, 2}, {factor, 2 * factor, 3 * factor, 4 * factor});
      ASSERT_TRUE(weight->Pack(stream(), master.view()).ok());
      EXPECT_EQ(weight->Bytes(), stored == DType::kBF16 ? 0 : 8);
      EXPECT_EQ(
          Result(LinearForward(stream(), {.x = x.view(), .weight = weight.get(), .y = y.view()}),
                 y),
          (Values{3 * factor, 7 * factor}));
    }
  }
}

TEST_F(ProductsOnCuda, NanAndInfinityPassThrough) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  TestTensor& master = Make(DType::kF32, {2, 2}, {1, 0, 0, 1});
  TestTensor& x = Make(DType::kF32, {2, 2}, {infinity, 1, nan, 1});
  TestTensor& y = Make(DType::kF32, {2, 2}, {0, 0, 0, 0});
  const auto weight = Weight(2, 2, DType::kF32);
  ASSERT_TRUE(weight->Pack(stream(), master.view()).ok());
  const Values values =
      Result(LinearForward(stream(), {.x = x.view(), .weight = weight.get(), .y = y.view()}), y);
  EXPECT_TRUE(std::isinf(values[0]));
  EXPECT_TRUE(std::isnan(values[2]));
}

TEST_F(ProductsOnCuda, NoRowsIsNoWorkAndNoGradient) {
  TestTensor& dweight = Make(DType::kF32, {2, 3}, Values(6, 7));
  TestTensor& dbias = Make(DType::kF32, {2}, {7, 7});
  const TensorView none(dweight.view().data, DType::kF32, {0, 3}, stream().device);
  const TensorView none_out(dweight.view().data, DType::kF32, {0, 2}, stream().device);
  const auto weight = Weight(2, 3, DType::kF32);
  ASSERT_TRUE(weight->Pack(stream(), dweight.view()).ok());
  EXPECT_TRUE(LinearForward(stream(), {.x = none, .weight = weight.get(), .y = none_out}).ok());
  EXPECT_TRUE(
      LinearBackwardInput(stream(), {.dy = none_out, .weight = weight.get(), .dx = none}).ok());
  LinearBackwardWeightArgs args = {
      .x = none, .dy = none_out, .dweight = dweight.view(), .dbias = dbias.view()};
  EXPECT_EQ(Result(LinearBackwardWeight(stream(), args), dweight), Values(6, 7));
  args.accumulate = false;
  EXPECT_EQ(Result(LinearBackwardWeight(stream(), args), dweight), Values(6, 0));
  EXPECT_EQ(Result(OkStatus(), dbias), Values(2, 0));
}

// A bias may be trained while its weight is not; with many rows the sums are made in parts.
TEST_F(ProductsOnCuda, TheBiasGradientAloneIsTheColumnSums) {
  constexpr int64_t kRows = 1000, kOut = 24;
  Values values(kRows * kOut), sums(kOut, 0.0);
  for (int64_t i = 0; i < kRows * kOut; ++i) {
    values[i] = static_cast<double>((i * 7 + i / kOut) % 5 - 2);
    sums[i % kOut] += values[i];
  }
  for (DType dtype : kFloatTypes) {
    TestTensor& dy = Make(dtype, {kRows, kOut}, values);
    TestTensor& dbias = Make(DType::kF32, {kOut}, Values(kOut, 3));
    LinearBackwardWeightArgs args = {.x = dy.view(), .dy = dy.view(), .dbias = dbias.view()};
    args.accumulate = false;
    EXPECT_EQ(Result(LinearBackwardWeight(stream(), args), dbias), sums);
    args.accumulate = true;
    Values twice = sums;
    for (double& sum : twice) sum *= 2;
    EXPECT_EQ(Result(LinearBackwardWeight(stream(), args), dbias), twice);
  }
}

TEST_F(ProductsOnCuda, OrthogonalizingInBf16ComesWithinAFewPercent) {
  PhiloxStream rng({.seed = 4});
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{33, 7}, {16, 40}, {1, 1}}) {
    Values values(rows * columns);
    for (double& value : values) value = static_cast<float>(rng.Normal());
    TestTensor& matrix = Make(DType::kF32, {rows, columns}, values);
    const int64_t bytes = OrthogonalizeWorkspace(rows, columns, DType::kBF16);
    TestTensor& workspace = Make(DType::kU8, {bytes}, Values(bytes, 255));
    const OrthogonalizeArgs args = {
        .matrix = matrix.view(), .workspace = workspace.view(), .compute = DType::kBF16};
    const Values got = Result(Orthogonalize(stream(), args), matrix);
    const Values want = OrthogonalizeRef(values, rows, columns, args.iterations);
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - want[i], 2);
      norm += std::pow(want[i], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 0.05) << rows << "x" << columns;
  }
}

TEST_F(ProductsOnCuda, NothingOrthogonalizedStaysNothing) {
  TestTensor& matrix = Make(DType::kF32, {3, 5}, Values(15, 0));
  const int64_t bytes = OrthogonalizeWorkspace(3, 5, DType::kF32);
  TestTensor& workspace = Make(DType::kU8, {bytes}, Values(bytes, 255));
  const OrthogonalizeArgs args = {.matrix = matrix.view(), .workspace = workspace.view()};
  EXPECT_EQ(Result(Orthogonalize(stream(), args), matrix), Values(15, 0));
}

TEST_F(ProductsOnCuda, RefusesArgumentsThatDoNotFit) {
  TestTensor& square = Make(DType::kF32, {2, 2}, Values(4, 0));
  TestTensor& wide = Make(DType::kF32, {2, 3}, Values(6, 0));
  const auto weight = Weight(2, 2, DType::kF32);
  const auto forward = [&](const PackedWeight* with, TestTensor& x) {
    return LinearForward(stream(), {.x = x.view(), .weight = with, .y = square.view()}).ToString();
  };
  EXPECT_EQ(forward(weight.get(), square), "INVALID: LinearForward: weight was never packed");
  ASSERT_TRUE(weight->Pack(stream(), square.view()).ok());
  EXPECT_EQ(forward(weight.get(), wide),
            "INVALID: LinearForward: x has shape [2, 3] instead of [2, 2]");
  const auto on_cpu = NewPackedWeight({}, 2, 2, DType::kF32);
  ASSERT_TRUE(on_cpu.ok());
  for (const PackedWeight* wrong : {static_cast<const PackedWeight*>(nullptr),
                                    static_cast<const PackedWeight*>(on_cpu->get())}) {
    EXPECT_EQ(forward(wrong, square),
              "INVALID: LinearForward: weight is missing or not on a CUDA device");
  }
  EXPECT_EQ(weight->Pack(stream(), wide.view()).code(), StatusCode::kInvalid);
  EXPECT_EQ(NewPackedWeight(stream().device, 2, 0, DType::kF32).status().code(),
            StatusCode::kInvalid);
  EXPECT_EQ(NewPackedWeight({DeviceType::kCuda, 1000}, 2, 2, DType::kF32).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::kernels
