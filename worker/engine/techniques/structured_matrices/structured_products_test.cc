// Products with structured matrices against those with the whole matrices that they stand for.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/singular_vectors.h"
#include "worker/engine/techniques/structured_matrices/monarch_values.h"
#include "worker/engine/techniques/structured_matrices/pixelfly_values.h"
#include "worker/engine/techniques/structured_matrices/structured_products.h"
#include "worker/engine/techniques/structured_matrices/whole_matrices_testing.h"

namespace weft::engine {
namespace {

constexpr MonarchSizes kSizes[] = {{2, 6, 6, 3}, {2, 4, 10, 2}, {3, 9, 3, 1}, {4, 16, 24, 4}};

std::vector<std::vector<float>> RandomFactors(const MonarchSizes& size, uint64_t seed) {
  return {Normal(static_cast<size_t>(size.Middle() * size.in), seed),
          Normal(static_cast<size_t>(size.blocks * size.out * size.blocks * size.rank), seed + 1)};
}

TEST(MonarchMatrix, IsTheProductOfBlockDiagonalMatricesWithAPermutationBetween) {
  for (const MonarchSizes& size : kSizes) {
    const auto factors = RandomFactors(size, 1);
    const WholeMonarch whole(size, AsDoubles(factors[0]), AsDoubles(factors[1]));
    EXPECT_LT(Difference(AsDoubles(MonarchMatrix(size, factors[0], factors[1])), whole.Weight()),
              1e-6);
  }
}

TEST(NearestMonarch, OfAMonarchMatrixMakesTheSameMatrix) {
  for (const MonarchSizes& size : kSizes) {
    const auto factors = RandomFactors(size, 3);
    const std::vector<float> weight = MonarchMatrix(size, factors[0], factors[1]);
    const auto nearest = NearestMonarch(size, weight);
    EXPECT_LT(Difference(AsDoubles(MonarchMatrix(size, nearest[0], nearest[1])), AsDoubles(weight)),
              1e-6);
  }
}

TEST(NearestMonarch, IsTheBestThereIs) {
  for (const MonarchSizes& size : kSizes) {
    const auto elements = static_cast<size_t>(size.blocks * size.out * size.blocks * size.in);
    const std::vector<float> weight = Normal(elements, 5);
    const auto nearest = NearestMonarch(size, weight);
    const auto distance = [&](const std::vector<std::vector<float>>& factors) {
      return Difference(AsDoubles(MonarchMatrix(size, factors[0], factors[1])), AsDoubles(weight));
    };
    const double best = distance(nearest);
    EXPECT_GT(best, 0.05) << "the weight is none itself";
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const auto direction = RandomFactors(size, 10 + seed);
      for (double step : {1e-3, 1e-2, 0.1, 1.0}) {
        auto moved = nearest;
        for (size_t f = 0; f < 2; ++f) {
          for (size_t i = 0; i < moved[f].size(); ++i) {
            moved[f][i] += static_cast<float>(step * direction[f][i]);
          }
        }
        EXPECT_GE(distance(moved), best);
      }
    }
    // The derivative is zero there: the rest is orthogonal to all small changes.
    Doubles rest = AsDoubles(MonarchMatrix(size, nearest[0], nearest[1]));
    for (size_t i = 0; i < rest.size(); ++i) rest[i] -= weight[i];
    const WholeMonarch whole(size, AsDoubles(nearest[0]), AsDoubles(nearest[1]));
    for (const Doubles& gradient : whole.Gradients(rest)) {
      for (const double g : gradient) EXPECT_NEAR(g, 0, 2e-5);
    }
  }
}

TEST(NearestOfRank, HasOrthogonalVectorsOfFallingLengths) {
  const int64_t rows = 9, columns = 6, rank = 6;
  const Doubles matrix = AsDoubles(Normal(rows * columns, 7));
  const SingularVectors vectors = NearestOfRank(matrix, rows, columns, rank);
  const Doubles made =
      Times(Transposed(vectors.left, rank, rows), vectors.right, rows, rank, columns);
  EXPECT_LT(Difference(made, matrix), 1e-12) << "at full rank it is the matrix";
  const auto dot = [](const double* a, const double* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  };
  double before = 1e30;
  for (int64_t i = 0; i < rank; ++i) {
    const double left = dot(&vectors.left[i * rows], &vectors.left[i * rows], rows);
    EXPECT_NEAR(left, dot(&vectors.right[i * columns], &vectors.right[i * columns], columns),
                1e-10);
    EXPECT_LE(left, before);
    before = left;
    for (int64_t j = 0; j < i; ++j) {
      EXPECT_NEAR(dot(&vectors.left[i * rows], &vectors.left[j * rows], rows), 0, 1e-10);
      EXPECT_NEAR(dot(&vectors.right[i * columns], &vectors.right[j * columns], columns), 0, 1e-10);
    }
  }
  const SingularVectors none = NearestOfRank(Doubles(12, 0.0), 3, 4, 2);
  EXPECT_EQ(none.left, Doubles(6, 0.0)) << "of zeros";
  EXPECT_EQ(none.right, Doubles(8, 0.0));
}

// The mask and the budget, by hand.
TEST(PixelflyOf, KeepsTheBlocksOfAFlatButterflyWithinTheBudget) {
  StructuredMatricesSpec spec = Spec("pixelfly");
  spec.low_rank_share = 0;
  const auto mask = [&](const std::vector<int64_t>& shape) {
    const PixelflySizes size = PixelflyOf(spec, shape);
    std::vector<std::string> rows(static_cast<size_t>(size.rows),
                                  std::string(static_cast<size_t>(size.columns), '.'));
    for (const PixelflySizes::Place& place : size.Places()) rows[place.row][place.column] = 'x';
    EXPECT_EQ(std::ssize(size.Places()), size.blocks);
    return rows;
  };
  using Rows = std::vector<std::string>;
  EXPECT_EQ(mask({64, 64}), (Rows{"xxx.", "xx.x", "x.xx", ".xxx"}));
  spec.density = 0.5;
  EXPECT_EQ(mask({64, 64}), (Rows{"xx..", "xx..", "..xx", "..xx"}));
  EXPECT_EQ(mask({64, 128}), (Rows{"xxxx....", "xxxx....", "....xxxx", "....xxxx"}));
  spec.density = 0.3;
  EXPECT_EQ(mask({64, 64}), (Rows{"x...", ".x..", "..x.", "...x"}));
  EXPECT_EQ(mask({96, 64}), (Rows{"x...", "x...", ".x..", "..x.", "..x.", "...x"}));
  spec.density = 0.2;
  EXPECT_EQ(PixelflyOf(spec, {64, 64}).stride, 0) << "less than the diagonal";

  // In blocks of 32, a quarter of the numbers: of the low rank's quarter of them room for 51 rows
  // of 5120, and for the blocks that of 7 in each row.
  spec = Spec("pixelfly");
  spec.block_size = 32;
  spec.density = spec.low_rank_share = 0.25;
  const PixelflySizes size = PixelflyOf(spec, {4096, 1024});
  EXPECT_EQ(size.rank, 32);
  EXPECT_EQ(size.stride, 32);
  EXPECT_EQ(size.blocks, 128 * 6);
  EXPECT_EQ(std::ssize(size.Places()), size.blocks);
}

TEST(NearPixelfly, LeavesNoErrorInTheBlocksAndTheSmallestOutside) {
  StructuredMatricesSpec spec = Spec("pixelfly");
  for (const double low_rank_share : {0.0, 0.5}) {
    spec.low_rank_share = low_rank_share;
    const PixelflySizes size = PixelflyOf(spec, {96, 64});
    EXPECT_EQ(size.rank, low_rank_share > 0 ? 16 : 0);
    const std::vector<float> weight = Normal(96 * 64, 9);
    const auto near = NearPixelfly(size, weight);
    const std::vector<float> made = PixelflyMatrix(size, near);
    std::vector<Doubles> tensors;
    for (const auto& tensor : near) tensors.push_back(AsDoubles(tensor));
    const WholePixelfly whole{size, tensors};
    EXPECT_LT(Difference(AsDoubles(made), whole.Weight()), 1e-6);
    std::vector<bool> inside(weight.size(), false);
    whole.ForEachInBlocks([&](int64_t, int64_t w) {
      inside[w] = true;
      EXPECT_NEAR(made[w], weight[w], 1e-5);
    });
    double left = 0, all = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      left += std::pow(made[i] - weight[i], 2);
      if (!inside[i]) all += std::pow(weight[i], 2);
    }
    if (low_rank_share > 0) {
      EXPECT_LT(left, 0.7 * all);
    } else {
      EXPECT_NEAR(left, all, 1e-3 * all);
    }
  }
}

/// A layer with two outputs; `structured` names those with structured matrices.
struct LayerRun {
  static constexpr int64_t kIn = 64, kRows[2] = {64, 96}, kCount = 5;
  Allocator allocator;
  Context context;
  ModelSpec model;
  ParameterSet parameters;
  StructuredProductsFactory factory;
  Linear linear;
  std::unique_ptr<ParameterGradients> gradients;

  LayerRun(const std::string& kind, std::vector<std::string> structured, DType compute,
           bool bias = true)
      : model(ModelOf(kind, std::move(structured))),
        factory(model),
        linear(&parameters, {{{"h.0.a", kRows[0]}, {"h.0.b", kRows[1]}}, kIn, bias},
               {compute, &factory}) {
    kernels::cpu::SetThreads(1);
    context.allocator = &allocator;
    for (int64_t i = 0; i < parameters.size(); ++i) parameters.SetStart(i, {.deviation = 0.3});
  }
  void Allocate() {
    ASSERT_TRUE(parameters.Allocate(context, true).ok());
    ASSERT_TRUE(parameters.Initialize(4).ok());
    ASSERT_TRUE(linear.Pack(context, Repack::kAll).ok());
    gradients = std::make_unique<ParameterGradients>(parameters.DifferentiatedGradients());
    gradients->StartStep();
  }
  static ModelSpec ModelOf(const std::string& kind, std::vector<std::string> structured) {
    ModelSpec spec;
    spec.structured_matrices = Spec(kind, std::move(structured));
    return spec;
  }
  Tensor Random(const Shape& shape, DType dtype, uint64_t seed) {
    auto tensor = Tensor::New(context, Component::kActivations, dtype, shape);
    const std::vector<float> values = Normal(static_cast<size_t>(shape.Elements()), seed);
    kernels::cpu::WithFloatType(dtype, [&]<class T>() {
      for (size_t i = 0; i < values.size(); ++i) tensor->As<T>()[i] = FromFloat<T>(values[i]);
    });
    return *tensor;
  }
};

class StructuredProductsTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, StructuredProductsTest, ::testing::Values("monarch", "pixelfly"));

TEST_P(StructuredProductsTest, HaveTheResultsAndGradientsOfTheWholeMatrix) {
  for (const std::vector<std::string>& structured :
       std::vector<std::vector<std::string>>{{"*"}, {"*.a.*"}, {"*.b.*"}}) {
    for (const bool bias : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(structured[0] + (bias ? " biased " : " ") + std::string(DTypeName(compute)));
        const double tolerance = compute == DType::kF32 ? 1e-6 : 2e-2;
        LayerRun run(GetParam(), structured, compute, bias);
        run.Allocate();
        const int64_t out = LayerRun::kRows[0] + LayerRun::kRows[1], in = LayerRun::kIn;
        const int64_t n = LayerRun::kCount;
        Doubles weight, biases;
        std::vector<int64_t> firsts;
        int64_t next = 0;
        for (int64_t i = 0; i < 2; ++i) {
          firsts.push_back(next);
          Doubles own;
          if (run.parameters[next].in_place_of.empty()) {
            own = AsDoubles(run.parameters.value(next++));
          } else {
            const WholeWeight tensors(run.model.structured_matrices, run.parameters, next);
            own = tensors.weight();
            next += tensors.count();
          }
          weight.insert(weight.end(), own.begin(), own.end());
        }
        for (int64_t i = 0; bias && i < 2; ++i) {
          for (double b : AsDoubles(run.parameters.value(next + i))) biases.push_back(b);
        }
        // Twice: the second pass adds.
        Doubles dweight(weight.size(), 0.0), dbias(static_cast<size_t>(out), 0.0);
        for (uint64_t pass = 0; pass < 2; ++pass) {
          run.gradients->StartPass({});
          Tape tape(run.gradients.get());
          const Value x = tape.NewValue(run.Random({n, in}, compute, 20 + pass), true);
          auto y = run.linear.Forward(run.context, tape, x);
          ASSERT_TRUE(y.ok()) << y.status().message();
          const Doubles x64 = AsDoubles(x.tensor.view());
          Doubles expected = Times(x64, Transposed(weight, out, in), n, in, out);
          for (size_t i = 0; bias && i < expected.size(); ++i) expected[i] += biases[i % out];
          EXPECT_LT(Difference(AsDoubles(y->tensor.view()), expected), tolerance);

          const Tensor dy = run.Random({n, out}, compute, 30 + pass);
          const Doubles dy64 = AsDoubles(dy.view());
          ASSERT_TRUE(tape.AddGradient(run.context, y->node, dy).ok());
          Tensor dx;
          const auto status = tape.RunBackward(run.context);
          ASSERT_TRUE(status.ok()) << status.message();
          dx = tape.TakeGradient(x.node);
          EXPECT_LT(Difference(AsDoubles(dx.view()), Times(dy64, weight, n, out, in)), tolerance);
          const Doubles added = Times(Transposed(dy64, n, out), x64, out, n, in);
          for (size_t i = 0; i < added.size(); ++i) dweight[i] += added[i];
          for (size_t i = 0; i < dy64.size(); ++i) dbias[i % out] += dy64[i];
          ASSERT_TRUE(run.gradients->FinishPass(run.context).ok());
        }
        for (int64_t i = 0, row = 0; i < 2; row += LayerRun::kRows[i++]) {
          const Doubles own(dweight.begin() + row * in,
                            dweight.begin() + (row + LayerRun::kRows[i]) * in);
          const int64_t first = firsts[static_cast<size_t>(i)];
          if (run.parameters[first].in_place_of.empty()) {
            EXPECT_LT(Difference(AsDoubles(run.parameters.gradient(first)), own), tolerance);
            continue;
          }
          const std::vector<Doubles> expected =
              WholeWeight(run.model.structured_matrices, run.parameters, first).gradients(own);
          for (int64_t f = 0; f < std::ssize(expected); ++f) {
            EXPECT_LT(Difference(AsDoubles(run.parameters.gradient(first + f)), expected[f]),
                      tolerance)
                << run.parameters[first + f].name;
          }
          if (!bias) continue;
          const Doubles rows(dbias.begin() + row, dbias.begin() + row + LayerRun::kRows[i]);
          EXPECT_LT(Difference(AsDoubles(run.parameters.gradient(next + i)), rows), tolerance);
        }
        EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
      }
    }
  }
}

TEST_P(StructuredProductsTest, DifferentiateWhatIsTrainedAlone) {
  for (const std::vector<std::string>& frozen :
       std::vector<std::vector<std::string>>{{"*.monarch_first", "*.pixelfly_in"},
                                             {"*.monarch_second", "*.pixelfly_out"},
                                             {"*.pixelfly_blocks", "*.b.weight"},
                                             {"*.weight*"},
                                             {"*.bias"},
                                             {"h.0.a.weight"}}) {
    SCOPED_TRACE(frozen[0]);
    std::vector<std::vector<float>> gradients[2];
    for (const bool freezes : {false, true}) {
      LayerRun run(GetParam(), {"*"}, DType::kF32);
      if (freezes) {
        for (const std::string& pattern : frozen) {
          const bool other = pattern.find('_') != std::string::npos &&
                             pattern.find(GetParam()) == std::string::npos;
          ASSERT_TRUE(other || run.parameters.Freeze({pattern}).ok()) << pattern;
        }
      }
      run.Allocate();
      run.gradients->StartPass({});
      Tape tape(run.gradients.get());
      auto y = run.linear.Forward(run.context, tape,
                                  {run.Random({5, LayerRun::kIn}, DType::kF32, 1), Value::kNoNode});
      ASSERT_TRUE(y.ok());
      ASSERT_TRUE(
          tape.AddGradient(run.context, y->node, run.Random({5, 160}, DType::kF32, 2)).ok());
      ASSERT_TRUE(tape.RunBackward(run.context).ok());
      for (int64_t i = 0; i < run.parameters.size(); ++i) {
        const TensorView gradient = run.parameters.gradient(i);
        EXPECT_EQ(!gradient, run.parameters[i].frozen) << run.parameters[i].name;
        gradients[freezes ? 1 : 0].push_back(gradient ? ValuesOf(gradient) : std::vector<float>());
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      if (gradients[1][i].empty()) continue;
      EXPECT_EQ(gradients[1][i], gradients[0][i]);
    }
  }
}

}  // namespace
}  // namespace weft::engine
