// The kernels of 2:4 sparse training on a CUDA device against those of the CPU.

#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/on_cuda_test.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;
using Values = std::vector<double>;

class Sparse24OnCuda : public OnCuda {
 protected:
  // Makes tensors by `make`, calls the operation `run` on them and fetches them: on the CPU, and on
  // the device. Both must have the same bits, except those of a NaN.
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
      const Values want = of[0][i].Values(), got = of[1][i].Values();
      for (size_t k = 0; k < want.size(); ++k) {
        const bool same = std::bit_cast<uint64_t>(got[k]) == std::bit_cast<uint64_t>(want[k]);
        ASSERT_TRUE(same || (std::isnan(want[k]) && std::isnan(got[k])))
            << "tensor " << i << ", element " << k << ": " << got[k] << " for " << want[k];
      }
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

// Groups of all sizes: of zeros, of one number, of numbers that are equal, very large and small.
Values Gradients(int64_t count, uint64_t seed) {
  PhiloxStream rng({.seed = seed});
  Values values(count);
  for (double& value : values) {
    const uint64_t kind = rng.Below(16);
    value = rng.Normal();
    if (kind < 3) value = 0;
    if (kind == 3) value = -1;
    if (kind == 4) value *= 1e4;
    if (kind == 5) value *= 1e-5;
    if (kind == 6) value *= 1e-36;
    if (rng.Below(512) == 0) value = std::numeric_limits<double>::infinity();
  }
  return values;
}

TEST_F(Sparse24OnCuda, EstimatesHaveTheBitsOfTheCpu) {
  constexpr int64_t kRows = 27;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [columns, padding] :
         {std::pair<int64_t, int64_t>{72, 0}, {72, 8}, {77, 0}, {1, 0}, {1033, 2}}) {
      for (const MvueDraw draw : {MvueDraw::kSequential, MvueDraw::kMinimumVariance}) {
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(columns));
          ExpectTheBitsOfTheCpu(
              [&](std::deque<TestTensor>& tensors) {
                tensors.emplace_back(dtype, Shape{kRows, columns}, padding)
                    .Assign(Gradients(kRows * columns, 9));
                tensors.emplace_back(dtype, Shape{kRows, columns}, padding);
                tensors.emplace_back(DType::kI32, Shape{1}).Assign({7});
              },
              [&](const Stream& where, std::deque<TestTensor>& tensors) {
                return Mvue(where, {.x = tensors[0].view(),
                                    .y = tensors[in_place ? 0 : 1].view(),
                                    .draw = draw,
                                    // Of another step, were it not read where it lies.
                                    .key = {.seed = 3, .step = 1, .site = 2},
                                    .step = static_cast<const uint32_t*>(tensors[2].view().data),
                                    .first_row = 40});
              });
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::kernels
