// The kernels of 2:4 sparse training on a CUDA device against those of the CPU.

#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/activation/activation.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_decay/sparse24_decay.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "kernels/testing/activation_pass.h"
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

TEST_F(Sparse24OnCuda, SoftThresholdsHaveTheBitsOfTheCpu) {
  for (const DType dtype : kMatrixTypes) {
    for (const int64_t padding : {0, 3}) {
      ExpectTheBitsOfTheCpu(
          [&](std::deque<TestTensor>& tensors) {
            tensors.emplace_back(dtype, Shape{12, 172}, padding).Assign(Weights(12 * 172, 5));
            tensors.emplace_back(DType::kF32, Shape{12, 172}, padding);
          },
          [&](const Stream& where, std::deque<TestTensor>& tensors) {
            return SoftThreshold(
                where, {.weight = tensors[0].view(), .y = tensors[1].view(), .scale = 1.25f});
          });
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

TEST_F(Sparse24OnCuda, DecaysHaveTheBitsOfTheCpu) {
  for (const DType dtype : kMatrixTypes) {
    for (const int64_t first : {0, 5, 32}) {
      for (const bool of_weights : {false, true}) {
        if (of_weights && dtype != DType::kF32) continue;
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " from " + std::to_string(first));
        ExpectTheBitsOfTheCpu(
            [&](std::deque<TestTensor>& tensors) {
              constexpr int64_t kRows = 8, kColumns = 36;
              const int64_t count = kRows * kColumns - 40;
              PhiloxStream rng({.seed = 7});
              tensors.emplace_back(dtype, Shape{count}).Random(rng);
              tensors.emplace_back(DType::kF32, Shape{count}).Random(rng);
              tensors.emplace_back(DType::kU16, Shape{kRows / 4, kColumns / 4})
                  .RandomIntegers(rng, 0, 1 << 16);
              tensors.emplace_back(DType::kF32, Shape{1}).Assign({0.3});
              tensors.emplace_back(DType::kI32, Shape{1}).Assign({1});
            },
            [&](const Stream& where, std::deque<TestTensor>& tensors) {
              const UpdateGate gate{tensors[3].view().As<float>(), tensors[4].view().As<int32_t>()};
              return of_weights ? MaskedWeightDecay(where, {.weight = tensors[0].view(),
                                                            .mask = tensors[2].view(),
                                                            .first = first,
                                                            .decay = 0.7f,
                                                            .learning_rate = 0.3f,
                                                            .gate = gate})
                                : MaskedDecay(where, {.weight = tensors[0].view(),
                                                      .gradient = tensors[1].view(),
                                                      .mask = tensors[2].view(),
                                                      .first = first,
                                                      .decay = 0.7f,
                                                      .gate = gate});
            });
      }
    }
  }
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
                                    // The step would differ if it were not read in place.
                                    .key = {.seed = 3, .step = 1, .site = 2},
                                    .step = static_cast<const uint32_t*>(tensors[2].view().data),
                                    .first_row = 40});
              });
        }
      }
    }
  }
}

// By the kernels of this device and of Hopper.
TEST_F(Sparse24OnCuda, AGradientOfAnEstimateIsThatOfTheStoredEstimate) {
  struct Problem {
    int64_t rows, in, out;
  };
  for (const int newest : {8, 9}) {
    Open(newest);
    const testing::ScopedTestDevice device(stream().device, false);
    for (const Problem& p : {Problem{136, 64, 136}, {39, 20, 12}, {2, 8, 4}}) {
      for (const MvueDraw draw : {MvueDraw::kSequential, MvueDraw::kMinimumVariance}) {
        const DType dtype = draw == MvueDraw::kSequential ? DType::kBF16 : DType::kF16;
        SCOPED_TRACE(std::to_string(newest) + " " + std::to_string(p.rows));
        PhiloxStream rng({.seed = 8});
        TestTensor x(dtype, {p.rows, p.in}), dy(dtype, {p.rows, p.out}), s(dtype, {p.rows, p.out});
        TestTensor one(DType::kF32, {p.out, p.in}), two(DType::kF32, {p.out, p.in});
        Values gradients(p.rows * p.out);
        for (double& value : gradients) value = rng.Below(5) == 0 ? 0 : rng.Normal();
        x.Random(rng).Reset();
        dy.Assign(gradients).Reset();
        for (TestTensor* tensor : {&s, &one, &two}) tensor->Reset();
        const MvueArgs stored = {.x = dy.view(),
                                 .y = s.view(),
                                 .draw = draw,
                                 .key = {.seed = 3, .step = 4, .site = 5},
                                 .first_row = 8};
        MvueArgs numbers = stored;
        numbers.x = numbers.y = {};
        ASSERT_EQ(Mvue(stream(), stored).ToString(), "OK");
        ASSERT_EQ(SparseBackwardWeight(
                      stream(),
                      {.x = x.view(), .dy = s.view(), .dweight = one.view(), .accumulate = false})
                      .ToString(),
                  "OK");
        ASSERT_EQ(SparseBackwardWeight(stream(), {.x = x.view(),
                                                  .dy = dy.view(),
                                                  .dweight = two.view(),
                                                  .accumulate = false,
                                                  .estimate = &numbers})
                      .ToString(),
                  "OK");
        ASSERT_EQ(state_->Synchronize().ToString(), "OK");
        one.Fetch();
        two.Fetch();
        EXPECT_EQ(one.bytes(), two.bytes());
      }
    }
  }
}

// W, mask, x, y, dy and dx of one layer in bf16.
struct Layer {
  static constexpr int64_t kRows = 5, kIn = 24, kOut = 16;

  Layer(const Stream& stream, DType dtype = DType::kBF16)
      : x(dtype, {kRows, kIn}), y(dtype, {kRows, kOut}), dx(dtype, {kRows, kIn}) {
    weight.Assign(Values(kOut * kIn, 1)).Reset();
    x.Assign(Values(kRows * kIn, 1)).Reset();
    y.Assign(Values(kRows * kOut, 1)).Reset();
    dx.Reset();
    Result<std::unique_ptr<SparseWeight>> made = NewSparseWeight(stream.device, kOut, kIn, dtype);
    EXPECT_EQ(made.status().ToString(), "OK");
    sparse = *std::move(made);
  }
  Status SetMask(const Stream& stream, uint16_t bits) {
    mask.Assign(Values(kOut * kIn / 16, bits)).Reset();
    return sparse->SetMask(stream, mask.view());
  }
  Status Forward(const Stream& stream) {
    return SparseForward(stream, {.x = x.view(), .weight = sparse.get(), .y = y.view()});
  }
  Status BackwardInput(const Stream& stream) {
    return SparseBackwardInput(stream, {.dy = y.view(), .weight = sparse.get(), .dx = dx.view()});
  }

  TestTensor weight{DType::kF32, {kOut, kIn}}, mask{DType::kU16, {kOut / 4, kIn / 4}};
  TestTensor x, y, dx;
  std::unique_ptr<SparseWeight> sparse;
};

// Sparse both ways, one way and not at all: sums of ones count what the mask keeps.
TEST_F(Sparse24OnCuda, ProductsFollowAMaskThatChanges) {
  const testing::ScopedTestDevice device(stream().device, false);
  for (const auto& [newest, dtype] : {std::pair<int, DType>{8, DType::kF32},
                                      {8, DType::kBF16},
                                      {9, DType::kBF16},
                                      {9, DType::kF16}}) {
    Open(newest);
    Layer layer(stream(), dtype);
    EXPECT_EQ(layer.sparse->Pack(stream(), layer.weight.view()).code(), StatusCode::kInvalid);
    struct Mask {
      uint16_t bits;
      double in_row, in_column;  // That it keeps of four, of row 0 and of column 0.
    };
    for (const Mask& mask : {Mask{0xA5A5, 2, 2},
                             {0x3333, 2, 4},
                             {0x00FF, 4, 2},
                             {0xFFFF, 4, 4},
                             {0x0001, 1, 1},
                             {0x5A5A, 2, 2}}) {
      ASSERT_EQ(layer.SetMask(stream(), mask.bits).ToString(), "OK");
      EXPECT_EQ(layer.Forward(stream()).code(), StatusCode::kInvalid);
      ASSERT_EQ(layer.sparse->Pack(stream(), layer.weight.view()).ToString(), "OK");
      layer.y.Reset();
      ASSERT_EQ(layer.BackwardInput(stream()).ToString(), "OK");
      ASSERT_EQ(layer.Forward(stream()).ToString(), "OK");
      ASSERT_EQ(state_->Synchronize().ToString(), "OK");
      layer.y.Fetch();
      layer.dx.Fetch();
      EXPECT_EQ(layer.y.Values()[0], mask.in_row * Layer::kIn / 4) << mask.bits;
      EXPECT_EQ(layer.dx.Values()[0], mask.in_column * Layer::kOut / 4) << mask.bits;
    }
    EXPECT_GT(layer.sparse->Bytes(), 0);
  }
}

struct ActivatedLayer {
  DType dtype;
  int64_t rows, in, out;
};

// Rows that are written 16 bytes at a time are activated on the way out; gated ones only where
// blocks have whole parts of the gates.
void ExpectTheBitsOfOwnPasses(const Stream& stream, ProductActivation activation,
                              const ActivatedLayer& layer) {
  const testing::ScopedTestDevice device(stream.device, false);
  const auto [dtype, rows, in, out] = layer;
  const bool gated = IsGated(activation);
  const int64_t inner = gated ? out / 2 : out, columns = gated ? 2 * in : in;
  TestTensor weight(DType::kF32, {out, in}), mask(DType::kU16, {out / 4, in / 4});
  TestTensor bias(DType::kF32, {out}), x(dtype, {rows, in}), before(dtype, {rows, columns});
  PhiloxStream rng({.seed = 11});
  for (TestTensor* tensor : {&weight, &bias, &x, &before}) tensor->Random(rng).Reset();
  mask.Assign(Values(static_cast<size_t>(out * in / 16), 0xA5A5)).Reset();
  TestTensor y(dtype, {rows, out}), plain_y(dtype, {rows, out});
  TestTensor active(dtype, {rows, inner}), own(dtype, {rows, inner});
  TestTensor dx(dtype, {rows, columns}), plain(dtype, {rows, columns});
  TestTensor again(dtype, {rows, in}), own_again(dtype, {rows, in});
  for (TestTensor* tensor : {&y, &plain_y, &active, &own, &dx, &plain, &again, &own_again}) {
    tensor->Reset();
  }
  Result<std::unique_ptr<SparseWeight>> sparse = NewSparseWeight(stream.device, out, in, dtype);
  ASSERT_EQ(sparse.status().ToString(), "OK");
  ASSERT_EQ((*sparse)->SetMask(stream, mask.view()).ToString(), "OK");
  ASSERT_EQ((*sparse)->Pack(stream, weight.view()).ToString(), "OK");
  ASSERT_EQ(SparseForward(stream, {.x = x.view(),
                                   .weight = sparse->get(),
                                   .bias = bias.view(),
                                   .y = y.view(),
                                   .active = active.view(),
                                   .activation = activation})
                .ToString(),
            "OK");
  ASSERT_EQ(SparseForward(
                stream,
                {.x = x.view(), .weight = sparse->get(), .bias = bias.view(), .y = plain_y.view()})
                .ToString(),
            "OK");
  ASSERT_EQ(testing::ActivationPass(stream, activation, y.view(), own.view()).ToString(), "OK");
  ASSERT_EQ(SparseBackwardInput(stream, {.dy = y.view(),
                                         .weight = sparse->get(),
                                         .dx = dx.view(),
                                         .before = before.view(),
                                         .active = again.view(),
                                         .activation = activation})
                .ToString(),
            "OK");
  const TensorView product = gated ? GatedColumnsOf(plain.view()).gate : plain.view();
  ASSERT_EQ(SparseBackwardInput(stream, {.dy = y.view(), .weight = sparse->get(), .dx = product})
                .ToString(),
            "OK");
  ASSERT_EQ(testing::ActivationBackwardPass(stream, activation, plain.view(), before.view(),
                                            own_again.view())
                .ToString(),
            "OK");
  ASSERT_EQ(stream.cuda->Synchronize().ToString(), "OK");
  for (TestTensor* tensor : {&y, &plain_y, &active, &own, &again, &own_again, &dx, &plain}) {
    tensor->Fetch();
  }
  EXPECT_EQ(y.bytes(), plain_y.bytes());
  EXPECT_EQ(active.bytes(), own.bytes());
  EXPECT_EQ(dx.bytes(), plain.bytes());
  EXPECT_EQ(again.bytes(), own_again.bytes());
}

TEST_F(Sparse24OnCuda, ActivationsHaveTheBitsOfAPassOfTheirOwn) {
  for (const int newest : {8, 9}) {
    Open(newest);
    for (const ProductActivation activation :
         {ProductActivation::kTanhGelu, ProductActivation::kErfGelu,
          ProductActivation::kSquaredRelu, ProductActivation::kSwiGlu, ProductActivation::kGeglu,
          ProductActivation::kErfGeglu}) {
      SCOPED_TRACE(std::to_string(newest) + " " + std::to_string(static_cast<int>(activation)));
      const DType dtype = newest == 8 ? DType::kBF16 : DType::kF16;
      ExpectTheBitsOfOwnPasses(stream(), activation, {dtype, 5, 24, 16});
      if (!IsGated(activation)) continue;
      ExpectTheBitsOfOwnPasses(stream(), activation, {DType::kBF16, 9, 72, 256});
    }
  }
}

TEST_F(Sparse24OnCuda, AStepIsRecordedInAGraph) {
  const testing::ScopedTestDevice device(stream().device, false);
  Layer layer(stream());
  ASSERT_EQ(layer.SetMask(stream(), 0xA5A5).ToString(), "OK");
  const auto step = [&] {
    Status status = layer.sparse->Pack(stream(), layer.weight.view());
    return status.ok() ? layer.Forward(stream()) : status;
  };
  ASSERT_EQ(step().ToString(), "OK");
  ASSERT_TRUE(cuda::Graph::Begin(stream()).ok());
  ASSERT_EQ(step().ToString(), "OK");
  const auto graph = cuda::Graph::End(stream());
  ASSERT_EQ(graph.status().ToString(), "OK");
  layer.weight.Assign(Values(Layer::kOut * Layer::kIn, 3)).Reset();
  ASSERT_EQ(graph->Launch(stream()).ToString(), "OK");
  ASSERT_EQ(state_->Synchronize().ToString(), "OK");
  layer.y.Fetch();
  EXPECT_EQ(layer.y.Values(), Values(Layer::kRows * Layer::kOut, 3 * 2 * Layer::kIn / 4));
}

// Nothing else of it waits, so a graph has it. A weight that receives the sides does not look.
TEST_F(Sparse24OnCuda, AMaskWhoseSidesAreKnownIsSetInAGraph) {
  const testing::ScopedTestDevice device(stream().device, false);
  Layer first(stream()), layer(stream());
  ASSERT_EQ(first.SetMask(stream(), 0x3333).ToString(), "OK");
  const MaskSides sides = first.sparse->mask_sides();
  EXPECT_TRUE(sides.rows);
  EXPECT_FALSE(sides.columns);
  const auto step = [&](MaskSides known) {
    Status status = layer.sparse->SetMask(stream(), first.mask.view(), known);
    if (status.ok()) status = layer.sparse->Pack(stream(), layer.weight.view());
    return status.ok() ? layer.Forward(stream()) : status;
  };
  ASSERT_EQ(step(sides).ToString(), "OK");
  ASSERT_TRUE(cuda::Graph::Begin(stream()).ok());
  ASSERT_EQ(step(sides).ToString(), "OK");
  const auto graph = cuda::Graph::End(stream());
  ASSERT_EQ(graph.status().ToString(), "OK");
  layer.weight.Assign(Values(Layer::kOut * Layer::kIn, 3)).Reset();
  ASSERT_EQ(graph->Launch(stream()).ToString(), "OK");
  ASSERT_EQ(state_->Synchronize().ToString(), "OK");
  layer.y.Fetch();
  const Values sums(Layer::kRows * Layer::kOut, 3 * 2 * Layer::kIn / 4);
  EXPECT_EQ(layer.y.Values(), sums);
  // Dense ones come to the same.
  ASSERT_EQ(step({}).ToString(), "OK");
  EXPECT_FALSE(layer.sparse->mask_sides().rows);
  ASSERT_EQ(state_->Synchronize().ToString(), "OK");
  layer.y.Fetch();
  EXPECT_EQ(layer.y.Values(), sums);
}

TEST_F(Sparse24OnCuda, MoreThanTwoOfFourMakeTheirRowOfAGradientNan) {
  Open(9);
  const testing::ScopedTestDevice device(stream().device, false);
  TestTensor x(DType::kBF16, {8, 8}), dy(DType::kBF16, {8, 8}), dweight(DType::kF32, {8, 8});
  Values gradients(8 * 8);
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 8; ++column) {
      gradients[row * 8 + column] = row % 4 < (column == 3 ? 3 : 2) ? 1 : 0;
    }
  }
  x.Assign(Values(8 * 8, 1)).Reset();
  dy.Assign(gradients).Reset();
  dweight.Reset();
  ASSERT_EQ(SparseBackwardWeight(
                stream(),
                {.x = x.view(), .dy = dy.view(), .dweight = dweight.view(), .accumulate = false})
                .ToString(),
            "OK");
  ASSERT_EQ(state_->Synchronize().ToString(), "OK");
  dweight.Fetch();
  const Values got = dweight.Values();
  for (int i = 0; i < 64; ++i) {
    if (i / 8 == 3) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      EXPECT_EQ(got[i], 4) << i;
    }
  }
}

TEST_F(Sparse24OnCuda, GradientsOfNoRowsAreZeros) {
  const testing::ScopedTestDevice device(stream().device, false);
  for (const DType dtype : kFloatTypes) {
    TestTensor memory(dtype, {8}), dweight(DType::kF32, {4, 8}, 3);
    dweight.Assign(Values(4 * 8, 5)).Reset();
    SparseBackwardWeightArgs args = {
        .x = {memory.view().data, dtype, {0, 8}, stream().device},
        .dy = {memory.view().data, dtype, {0, 4}, stream().device},
        .dweight = dweight.view(),
    };
    for (const double want : {5.0, 0.0}) {
      args.accumulate = want != 0;
      ASSERT_EQ(SparseBackwardWeight(stream(), args).ToString(), "OK");
      ASSERT_EQ(state_->Synchronize().ToString(), "OK");
      dweight.Fetch();
      EXPECT_EQ(dweight.Values(), Values(4 * 8, want));
      EXPECT_TRUE(dweight.GuardsIntact());
    }
  }
}

TEST_F(Sparse24OnCuda, RefusesWhatDoesNotFit) {
  const testing::ScopedTestDevice device(stream().device, false);
  TestTensor x(DType::kF32, {4, 8}), dweight(DType::kF32, {8, 8});
  MvueArgs numbers = {};
  SparseBackwardWeightArgs args = {
      .x = x.view(), .dy = x.view(), .dweight = dweight.view(), .estimate = &numbers};
  EXPECT_EQ(SparseBackwardWeight(stream(), args).ToString(),
            "UNAVAILABLE: SparseBackwardWeight: estimates no gradient of f32 on a CUDA device; "
            "hint: Mvue() before it, or bf16");
  numbers.first_row = 2;
  EXPECT_EQ(SparseBackwardWeight(stream(), args).ToString(),
            "INVALID: SparseBackwardWeight: first_row of the estimate is not a multiple of 4");
  // One of the CPU.
  Layer layer(stream());
  Result<std::unique_ptr<SparseWeight>> other =
      NewSparseWeight({}, Layer::kOut, Layer::kIn, DType::kBF16);
  ASSERT_TRUE(other.ok());
  layer.sparse = *std::move(other);
  EXPECT_EQ(layer.Forward(stream()).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
