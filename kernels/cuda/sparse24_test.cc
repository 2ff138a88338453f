// The kernels of 2:4 sparse training on a CUDA device against those of the CPU.

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/on_cuda_test.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;
using Values = std::vector<double>;

class Sparse24OnCuda : public OnCuda {
 protected:
  // Makes tensors by `make`, calls the operation `run` on them and fetches them: on the CPU, and on
  // the device. Both must have the same bits, padding included.
  void ExpectTheBitsOfTheCpu(
      const std::function<void(std::deque<TestTensor>&)>& make,
      const std::function<Status(const Stream&, std::deque<TestTensor>&)>& run) {
    std::deque<TestTensor> of[2];
    for (const bool on_cuda : {false, true}) {
      const Stream where = on_cuda ? stream() : Stream{};
      const testing::ScopedTestDevice device(where.device, false);
      std::deque<TestTensor>& tensors = of[on_cuda ? 1 : 0];
      make(tensors);
      for (TestTensor& tensor : tensors) tensor.Reset();
      ASSERT_EQ(run(where, tensors).ToString(), "OK");
      ASSERT_EQ(state_->Synchronize().ToString(), "OK");
      for (TestTensor& tensor : tensors) tensor.Fetch();
    }
    for (size_t i = 0; i < of[0].size(); ++i) {
      EXPECT_EQ(of[0][i].bytes(), of[1][i].bytes()) << "tensor " << i;
      EXPECT_TRUE(of[1][i].GuardsIntact()) << "tensor " << i;
    }
  }
};

// Equal magnitudes, so that sums tie, zeros, and what is no number, among normal numbers.
Values Weights(int64_t count, uint64_t seed) {
  PhiloxStream rng({.seed = seed});
  Values values(count);
  for (double& value : values) {
    const uint64_t kind = rng.Below(64);
    value = rng.Normal();
    if (kind < 20) value = static_cast<double>(rng.Below(5)) - 2;
    if (kind == 20) value = std::numeric_limits<double>::quiet_NaN();
    if (kind == 21) value = -std::numeric_limits<double>::infinity();
  }
  return values;
}

TEST_F(Sparse24OnCuda, MasksAndFlipsHaveTheBitsOfTheCpu) {
  for (const DType dtype : kMatrixTypes) {
    for (const int64_t columns : {4, 36, 172, 2068}) {
      for (const int64_t padding : {0, 3, 8}) {
        for (const bool transposable : {false, true}) {
          for (const bool with_flips : {false, true}) {
            SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(columns) + " " +
                         std::to_string(padding) + (transposable ? " transposable" : " rows"));
            ExpectTheBitsOfTheCpu(
                [&](std::deque<TestTensor>& tensors) {
                  constexpr int64_t kRows = 12;
                  tensors.emplace_back(dtype, Shape{kRows, columns}, padding)
                      .Assign(Weights(kRows * columns, 5));
                  PhiloxStream rng({.seed = 6});
                  tensors.emplace_back(DType::kU16, Shape{kRows / 4, columns / 4})
                      .RandomIntegers(rng, 0, 1 << 16);
                  tensors.emplace_back(DType::kI32, Shape{kRows / 4});
                },
                [&](const Stream& where, std::deque<TestTensor>& tensors) {
                  const TensorView flips = with_flips ? tensors[2].view() : TensorView();
                  return transposable ? TransposableMask(where, {.weight = tensors[0].view(),
                                                                 .mask = tensors[1].view(),
                                                                 .flips = flips})
                                      : RowMask(where, {.weight = tensors[0].view(),
                                                        .mask = tensors[1].view(),
                                                        .flips = flips});
                });
          }
        }
      }
    }
  }
}

TEST_F(Sparse24OnCuda, NoWeightsHaveNoMask) {
  uint16_t none = 0;
  const Device device = stream().device;
  EXPECT_EQ(TransposableMask(stream(), {.weight = {&none, DType::kBF16, {0, 8}, device},
                                        .mask = {&none, DType::kU16, {0, 2}, device}})
                .ToString(),
            "OK");
}

}  // namespace
}  // namespace weft::kernels
