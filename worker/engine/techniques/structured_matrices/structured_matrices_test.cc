// Structured matrices against the whole matrices that they stand for.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/singular_vectors.h"
#include "worker/engine/techniques/structured_matrices/monarch_values.h"
#include "worker/engine/techniques/structured_matrices/pixelfly_values.h"
#include "worker/engine/techniques/structured_matrices/structured_products.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

using Doubles = std::vector<double>;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

/// `kind` for the matrices of the MLPs, or for all.
JobSpec Job(const std::string& kind, bool attention = false) {
  JobSpec job = TinyJob(4);
  job.model.structured_matrices.kind = kind;
  if (kind == "pixelfly") {
    job.model.width = 64;
    job.model.structured_matrices.block_size = 16;
    job.model.structured_matrices.density = 1;
    job.model.structured_matrices.low_rank_share = 0.5;
  }
  if (attention) job.model.structured_matrices.layers = {"*"};
  job.train.eval_sequences = 8;
  return job;
}

ModelSpec Plain(ModelSpec model) {
  model.structured_matrices = {};
  return model;
}

template <class T>
Doubles AsDoubles(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

Doubles AsDoubles(const TensorView& view) {
  return AsDoubles(ValuesOf(view));
}

double Distance(const Doubles& a, const Doubles& b) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

std::vector<float> Normal(size_t count, uint64_t seed, double deviation = 1) {
  PhiloxStream random(PhiloxKey{seed, 0, 0});
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(deviation * random.Normal());
  return values;
}

/// c [m, n] = a [m, k] b [k, n].
Doubles Times(const Doubles& a, const Doubles& b, int64_t m, int64_t k, int64_t n) {
  Doubles c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t l = 0; l < n; ++l) c[i * n + l] += a[i * k + j] * b[j * n + l];
    }
  }
  return c;
}

Doubles Transposed(const Doubles& a, int64_t rows, int64_t columns) {
  Doubles b(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) b[j * rows + i] = a[i * columns + j];
  }
  return b;
}

/// A block-diagonal matrix as a whole one, of blocks [rows, columns] one under the other.
Doubles WholeOf(const Doubles& blocks, int64_t count, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(blocks.size()) / columns / count;
  Doubles whole(static_cast<size_t>(count * rows * count * columns), 0.0);
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        whole[(b * rows + i) * count * columns + b * columns + j] =
            blocks[(b * rows + i) * columns + j];
      }
    }
  }
  return whole;
}

/// The gradient of such blocks from that of the whole matrix.
Doubles BlocksOf(const Doubles& whole, int64_t count, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(whole.size()) / (count * count * columns);
  Doubles blocks;
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        blocks.push_back(whole[(b * rows + i) * count * columns + b * columns + j]);
      }
    }
  }
  return blocks;
}

/// W = second P first with whole matrices in float64, as the definition says it.
struct WholeMonarch {
  MonarchSizes size;
  Doubles first;        ///< [Middle(), in]
  Doubles permutation;  ///< [Middle(), Middle()]
  Doubles second;       ///< [out, Middle()]

  WholeMonarch(const MonarchSizes& sizes, const Doubles& first_blocks, const Doubles& second_blocks)
      : size(sizes),
        first(WholeOf(first_blocks, size.blocks, size.in)),
        permutation(static_cast<size_t>(size.Middle() * size.Middle()), 0.0),
        second(WholeOf(second_blocks, size.blocks, size.blocks * size.rank)) {
    for (int64_t k = 0; k < size.blocks; ++k) {
      for (int64_t l = 0; l < size.blocks; ++l) {
        for (int64_t q = 0; q < size.rank; ++q) {
          const int64_t from = (k * size.blocks + l) * size.rank + q;
          const int64_t to = (l * size.blocks + k) * size.rank + q;
          permutation[to * size.Middle() + from] = 1;
        }
      }
    }
  }

  int64_t in() const { return size.blocks * size.in; }
  int64_t out() const { return size.blocks * size.out; }
  Doubles Permuted() const { return Times(permutation, first, size.Middle(), size.Middle(), in()); }
  Doubles Weight() const { return Times(second, Permuted(), out(), size.Middle(), in()); }
  /// The gradients of the blocks from that of W.
  std::vector<Doubles> Gradients(const Doubles& dw) const {
    const int64_t m = size.Middle();
    const Doubles dpermuted = Times(Transposed(second, out(), m), dw, m, out(), in());
    const Doubles dfirst = Times(Transposed(permutation, m, m), dpermuted, m, m, in());
    const Doubles dsecond = Times(dw, Transposed(Permuted(), m, in()), out(), in(), m);
    return {BlocksOf(dfirst, size.blocks, size.in),
            BlocksOf(dsecond, size.blocks, size.blocks * size.rank)};
  }
};

/// W = B + U V likewise.
struct WholePixelfly {
  PixelflySizes size;
  std::vector<Doubles> tensors;  ///< Blocks, V, U.

  int64_t in() const { return size.columns * size.size; }
  int64_t out() const { return size.rows * size.size; }
  /// Calls fn(element of the blocks, element of W).
  template <class Fn>
  void ForEachInBlocks(Fn&& fn) const {
    const int64_t area = size.size * size.size;
    const std::vector<PixelflySizes::Place> places = size.Places();
    for (int64_t i = 0; i < std::ssize(places) * area; ++i) {
      const PixelflySizes::Place& place = places[i / area];
      const int64_t row = place.row * size.size + i % area / size.size;
      fn(i, row * in() + place.column * size.size + i % size.size);
    }
  }
  Doubles Weight() const {
    Doubles weight(static_cast<size_t>(out() * in()), 0.0);
    if (size.rank > 0) weight = Times(tensors[2], tensors[1], out(), size.rank, in());
    ForEachInBlocks([&](int64_t i, int64_t w) { weight[w] += tensors[0][i]; });
    return weight;
  }
  std::vector<Doubles> Gradients(const Doubles& dw) const {
    std::vector<Doubles> gradients = {Doubles(tensors[0].size())};
    ForEachInBlocks([&](int64_t i, int64_t w) { gradients[0][i] = dw[w]; });
    if (size.rank == 0) return gradients;
    gradients.push_back(
        Times(Transposed(tensors[2], out(), size.rank), dw, size.rank, out(), in()));
    gradients.push_back(Times(dw, Transposed(tensors[1], size.rank, in()), out(), in(), size.rank));
    return gradients;
  }
};

/// The tensors of a weight [out, in], from parameter `first` on, as a whole matrix.
struct WholeWeight {
  std::vector<Doubles> tensors;
  std::function<Doubles()> weight;
  std::function<std::vector<Doubles>(const Doubles&)> gradients;

  WholeWeight(const StructuredMatricesSpec& spec, const ParameterSet& parameters, int64_t first) {
    for (int64_t i = first;
         i < parameters.size() && parameters[i].in_place_of == parameters[first].in_place_of; ++i) {
      tensors.push_back(AsDoubles(parameters.value(i)));
    }
    const Shape& shape = parameters[first].weight_shape;
    if (spec.kind == "pixelfly") {
      const WholePixelfly whole{PixelflyOf(spec, {shape[0], shape[1]}), tensors};
      weight = [whole] { return whole.Weight(); };
      gradients = [whole](const Doubles& dw) { return whole.Gradients(dw); };
    } else {
      const WholeMonarch whole(MonarchOf(spec, {shape[0], shape[1]}), tensors[0], tensors[1]);
      weight = [whole] { return whole.Weight(); };
      gradients = [whole](const Doubles& dw) { return whole.Gradients(dw); };
    }
  }
  int64_t count() const { return std::ssize(tensors); }
};

constexpr MonarchSizes kSizes[] = {{2, 6, 6, 3}, {2, 4, 10, 2}, {3, 9, 3, 1}, {4, 16, 24, 4}};

std::vector<std::vector<float>> RandomFactors(const MonarchSizes& size, uint64_t seed) {
  return {Normal(static_cast<size_t>(size.Middle() * size.in), seed),
          Normal(static_cast<size_t>(size.blocks * size.out * size.blocks * size.rank), seed + 1)};
}

TEST(MonarchMatrix, IsTheProductOfBlockDiagonalMatricesWithAPermutationBetween) {
  for (const MonarchSizes& size : kSizes) {
    const auto factors = RandomFactors(size, 1);
    const WholeMonarch whole(size, AsDoubles(factors[0]), AsDoubles(factors[1]));
    EXPECT_LT(Distance(AsDoubles(MonarchMatrix(size, factors[0], factors[1])), whole.Weight()),
              1e-6);
  }
}

TEST(NearestMonarch, OfAMonarchMatrixMakesTheSameMatrix) {
  for (const MonarchSizes& size : kSizes) {
    const auto factors = RandomFactors(size, 3);
    const std::vector<float> weight = MonarchMatrix(size, factors[0], factors[1]);
    const auto nearest = NearestMonarch(size, weight);
    EXPECT_LT(Distance(AsDoubles(MonarchMatrix(size, nearest[0], nearest[1])), AsDoubles(weight)),
              1e-6);
  }
}

TEST(NearestMonarch, IsTheBestThereIs) {
  for (const MonarchSizes& size : kSizes) {
    const auto elements = static_cast<size_t>(size.blocks * size.out * size.blocks * size.in);
    const std::vector<float> weight = Normal(elements, 5);
    const auto nearest = NearestMonarch(size, weight);
    const auto distance = [&](const std::vector<std::vector<float>>& factors) {
      return Distance(AsDoubles(MonarchMatrix(size, factors[0], factors[1])), AsDoubles(weight));
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
  EXPECT_LT(Distance(made, matrix), 1e-12) << "at full rank it is the matrix";
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

StructuredMatricesSpec Spec(const std::string& kind, std::vector<std::string> layers = {}) {
  StructuredMatricesSpec spec;
  spec.kind = kind;
  spec.layers = std::move(layers);
  if (kind == "pixelfly") {
    spec.block_size = 16;
    spec.density = 1;
    spec.low_rank_share = 0.5;
  }
  return spec;
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
    EXPECT_LT(Distance(AsDoubles(made), whole.Weight()), 1e-6);
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
          EXPECT_LT(Distance(AsDoubles(y->tensor.view()), expected), tolerance);

          const Tensor dy = run.Random({n, out}, compute, 30 + pass);
          const Doubles dy64 = AsDoubles(dy.view());
          ASSERT_TRUE(tape.AddGradient(run.context, y->node, dy).ok());
          Tensor dx;
          const auto status = tape.RunBackward(run.context);
          ASSERT_TRUE(status.ok()) << status.message();
          dx = tape.TakeGradient(x.node);
          EXPECT_LT(Distance(AsDoubles(dx.view()), Times(dy64, weight, n, out, in)), tolerance);
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
            EXPECT_LT(Distance(AsDoubles(run.parameters.gradient(first)), own), tolerance);
            continue;
          }
          const std::vector<Doubles> expected =
              WholeWeight(run.model.structured_matrices, run.parameters, first).gradients(own);
          for (int64_t f = 0; f < std::ssize(expected); ++f) {
            EXPECT_LT(Distance(AsDoubles(run.parameters.gradient(first + f)), expected[f]),
                      tolerance)
                << run.parameters[first + f].name;
          }
          if (!bias) continue;
          const Doubles rows(dbias.begin() + row, dbias.begin() + row + LayerRun::kRows[i]);
          EXPECT_LT(Distance(AsDoubles(run.parameters.gradient(next + i)), rows), tolerance);
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

/// Moves all parameters away from their start.
void Perturb(TinyRun& run) {
  ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const TensorView view = parameters.value(i);
    const std::vector<float> change =
        Normal(static_cast<size_t>(view.shape.Elements()), 50 + static_cast<uint64_t>(i), 0.05);
    for (size_t k = 0; k < change.size(); ++k) view.As<float>()[k] += change[k];
  }
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

std::string Folder(const std::string& name) {
  return ::testing::TempDir() + name + "_" + std::to_string(getpid());
}

class StructuredMatricesKindsTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, StructuredMatricesKindsTest,
                         ::testing::Values("monarch", "pixelfly"));

TEST_P(StructuredMatricesKindsTest, TheNetworkIsThatOfTheExportedMatrices) {
  auto batch = TinyTokens().Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  const std::string folder = Folder("structured");
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool attention : {false, true}) {
      SCOPED_TRACE(std::string(family) + (attention ? " with attention" : ""));
      JobSpec job = Job(GetParam(), attention);
      job.model.family = family;
      TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
      Perturb(run);
      ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *run.model, {}).ok());
      TinyRun plain(Plain(job.model), ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *plain.model).ok());
      ASSERT_TRUE(plain.model->Pack(plain.context).ok());
      EXPECT_LT(Distance(AsDoubles(run.Logits(*batch)), AsDoubles(plain.Logits(*batch))), 1e-5);
      EXPECT_NEAR(run.Differentiate(*batch), plain.Differentiate(*batch), 1e-3);
      const ParameterSet& structured = run.model->parameters();
      const ParameterSet& whole = plain.model->parameters();
      int64_t weights = 0;
      for (int64_t i = 0; i < structured.size(); ++i) {
        const Parameter& parameter = structured[i];
        if (parameter.in_place_of.empty()) {
          EXPECT_LT(Distance(AsDoubles(structured.gradient(i)),
                             AsDoubles(whole.gradient(*whole.Find(parameter.name)))),
                    1e-4)
              << parameter.name;
          continue;
        }
        const int64_t weight = *whole.Find(parameter.in_place_of);
        const WholeWeight tensors(job.model.structured_matrices, structured, i);
        const auto expected = tensors.gradients(AsDoubles(whole.gradient(weight)));
        for (int64_t f = 0; f < tensors.count(); ++f) {
          EXPECT_LT(Distance(AsDoubles(structured.gradient(i + f)), expected[f]), 1e-4)
              << structured[i + f].name;
        }
        ++weights;
        i += tensors.count() - 1;
      }
      const int64_t matrices = family == std::string("llama") ? 7 : 4;
      EXPECT_EQ(weights, 2 * (attention ? matrices : matrices == 7 ? 3 : 2));

      // And such a folder can be gone on from with the same structure.
      TinyRun again(job.model, ModelOptionsOf(TinyPlan("fp32")));
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *again.model).ok());
      ASSERT_TRUE(again.model->Pack(again.context).ok());
      // The matrices are found again exactly for monarch alone.
      const bool same = job.model.structured_matrices.kind == "monarch";
      EXPECT_LT(Distance(AsDoubles(again.Logits(*batch)), AsDoubles(run.Logits(*batch))),
                same ? 1e-5 : 1.0);
    }
  }
}

TEST_P(StructuredMatricesKindsTest, ParametersAreThoseThatAreCounted) {
  // By family, one of several matrices that are one product.
  for (const auto& [family, part] : std::map<std::string, std::string>{
           {"gpt2", "*c_attn*"}, {"llama", "*up_proj*"}, {"bert", "*key*"}, {"vit", "*key*"}}) {
    for (const std::vector<std::string>& layers :
         std::vector<std::vector<std::string>>{{}, {"*"}, {"*.1.*"}, {part}}) {
      SCOPED_TRACE(family + (layers.empty() ? "" : " " + layers[0]));
      ModelSpec spec = Job(GetParam()).model;
      spec.family = family;
      spec.structured_matrices.layers = layers;
      spec.freeze = {"*.0.*"};
      if (family == "vit") {
        spec.image_size = 12;
        spec.patch_size = 3;
        spec.image_channels = 1;
        spec.classes = 10;
        spec.vocab_size = 0;
      }
      const std::vector<ParameterInfo> counted = ParametersOf(spec);
      const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
      const ParameterSet& parameters = run.model->parameters();
      ASSERT_EQ(parameters.size(), std::ssize(counted));
      EXPECT_EQ(parameters.ElementCount(), ModelShape(spec).counts.Total());
      for (const ParameterInfo& info : counted) {
        auto index = parameters.Find(info.name);
        ASSERT_TRUE(index.ok()) << info.name;
        const Parameter& parameter = parameters[*index];
        EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
        EXPECT_EQ(parameter.in_place_of, info.in_place_of);
        EXPECT_EQ(parameter.unit, info.unit);
        EXPECT_EQ(std::vector<int64_t>(parameter.shape.dims.begin(),
                                       parameter.shape.dims.begin() + parameter.shape.rank),
                  info.shape);
      }
    }
  }
}

TEST_P(StructuredMatricesKindsTest, WeightsStartWithTheDeviationOfTheNetworksInitialization) {
  for (const char* method : {"gpt2", "xavier_uniform", "truncated_normal", "t_fixup"}) {
    ModelSpec spec = Job(GetParam(), true).model;
    spec.width = 64;
    spec.initialization.method = method;
    const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
    const TinyRun plain(Plain(spec), ModelOptionsOf(TinyPlan("fp32")));
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].in_place_of.empty()) continue;
      const int64_t weight = *plain.model->parameters().Find(parameters[i].in_place_of);
      const TensorView whole = plain.model->parameters().value(weight);
      const auto square = [](const Doubles& values) {
        double sum = 0;
        for (double v : values) sum += v * v;
        return std::sqrt(sum / static_cast<double>(values.size()));
      };
      const WholeWeight tensors(spec.structured_matrices, parameters, i);
      EXPECT_NEAR(square(tensors.weight()) / square(AsDoubles(whole)), 1, 0.1)
          << method << " " << parameters[i].in_place_of;
      i += tensors.count() - 1;
    }
  }
}

TEST_P(StructuredMatricesKindsTest, AResumedRunGoesOnBitForBitInEveryPrecision) {
  RandomTokens tokens = TinyTokens();
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    if (precision->block_products != nullptr) continue;
    SCOPED_TRACE(precision->name);
    const JobSpec job = Job(GetParam(), true);
    Plan plan = TinyPlan(std::string(precision->name), 2, 2);
    TinyTraining whole(job, plan, tokens);
    for (int i = 0; i < 3; ++i) whole.Step();
    // Recomputation computes the same again.
    plan.block_memory_policy = {"recompute", "recompute"};
    TinyTraining resumed(job, plan, tokens);
    ASSERT_TRUE(resumed.model->parameters().Initialize(99).ok());
    const std::vector<NamedTensor> from = whole.trainer->StateTensors();
    const std::vector<NamedTensor> to = resumed.trainer->StateTensors();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].name, to[i].name);
      std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
    }
    resumed.trainer->Restored(whole.trainer->counters());
    for (int i = 0; i < 3; ++i) ASSERT_EQ(resumed.Step().loss, whole.Step().loss);
    EXPECT_EQ(resumed.Parameters(), whole.Parameters());
  }
}

TEST_P(StructuredMatricesKindsTest, RanksAgreeWithOneRank) {
  constexpr int kRanks = 2;
  const JobSpec job = Job(GetParam());
  RandomTokens alone = TinyTokens();
  TinyTraining one(job, TinyPlan("fp32", 2, 2), alone);
  StepReport single;
  for (int i = 0; i < 4; ++i) single = one.Step();
  std::vector<float> parameters[kRanks];
  StepReport reports[kRanks];
  RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
    RandomTokens tokens = TinyTokens();
    Plan plan = TinyPlan("fp32", 2, 1);
    plan.mesh.data = kRanks;
    TinyRun run(job.model, ModelOptionsOf(plan));
    DataParallel reducer(&group, &run.model->parameters(), 4096);
    auto trainer = Trainer::New(job, plan,
                                {.context = &run.context,
                                 .model = run.model.get(),
                                 .train = &tokens,
                                 .reducer = &reducer,
                                 .rank = group.rank()});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    for (int i = 0; i < 4; ++i) {
      auto report = (*trainer)->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      reports[group.rank()] = *report;
    }
    parameters[group.rank()] = run.Parameters();
  });
  EXPECT_EQ(parameters[1], parameters[0]);
  EXPECT_NEAR(reports[0].loss, single.loss, 1e-5);
  EXPECT_NEAR(reports[0].gradient_norm, single.gradient_norm, 1e-4 * single.gradient_norm);
  EXPECT_LT(Distance(AsDoubles(parameters[0]), AsDoubles(one.Parameters())), 1e-3);
}

TEST_P(StructuredMatricesKindsTest, LearnsWithEveryOptimizer) {
  CountingTokens tokens(7, 16);
  for (const auto& [name, rate] : std::map<std::string, double>{{"sgd", 0.1},
                                                                {"lars", 0.3},
                                                                {"adamw", 3e-3},
                                                                {"lamb", 1e-2},
                                                                {"lion", 1e-3},
                                                                {"adafactor", 3e-2},
                                                                {"muon", 3e-3}}) {
    SCOPED_TRACE(name);
    JobSpec job = Job(GetParam());
    job.optimizer.name = name;
    job.optimizer.learning_rate = rate;
    job.optimizer.weight_decay = 0;
    job.optimizer.groups = {
        {.parameters = {"*.0.mlp.c_fc.weight"}, .learning_rate_scale = 0, .weight_decay = {}}};
    job.schedule.kind = "constant";
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    const ParameterSet& parameters = run.model->parameters();
    int64_t held = 0;
    while (parameters[held].in_place_of != "transformer.h.0.mlp.c_fc.weight") ++held;
    const Doubles before = AsDoubles(parameters.value(held));
    const double first = run.Step().loss;
    for (int i = 0; i < 25; ++i) run.Step();
    EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.05);
    EXPECT_EQ(AsDoubles(parameters.value(held)), before)
        << "the name of the weight stands for its factors";
  }
}

TEST(StructuredMatricesTest, CountsFewerMultiplyAddsAsTheEngineDoes) {
  RandomTokens tokens = TinyTokens();
  for (const bool attention : {false, true}) {
    const JobSpec job = Job("monarch", attention);
    const ModelShape shape = ShapeOf(job), plain(Plain(job.model));
    EXPECT_LT(TrainingFlopsPerToken(shape, 16), TrainingFlopsPerToken(plain, 16));
    double flops = 0;
    for (const Gemm& gemm : WeightGemms(shape, 64, 16, 4)) {
      if (gemm.name == "mlp up" || gemm.name == "mlp down") flops += gemm.Flops();
    }
    // By hand, of width 32 and 4 blocks: up has 4 times [8, 8] and [32, 8], down [8, 32] and
    // [8, 8]. What the first factor makes is computed once more for the gradient of the second.
    const double up = 4 * (8 * 8 + 32 * 8), down = 4 * (8 * 32 + 8 * 8);
    const double again = 4 * 8 * 8 + 4 * 8 * 32;
    EXPECT_EQ(flops, 2 * 64 * 2 * (3 * (up + down) + again));
  }
}

TEST(StructuredMatricesTest, NamesWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return std::string(NewModel(context, model, {}).status().message());
  };
  ModelSpec model = Job("monarch").model;
  model.structured_matrices.layers = {"transformer.h.1.mlp.c_fc.wieght"};
  EXPECT_THAT(refusal(model), HasSubstr("did you mean 'transformer.h.1.mlp.c_fc.weight'?"));
  model.structured_matrices.layers = {};
  model.structured_matrices.blocks = 8;
  EXPECT_THAT(refusal(model), HasSubstr("blocks 8 does not fit transformer.h.0.mlp.c_fc.weight "
                                        "[128, 32]: its square must divide the smaller side"));
  model.structured_matrices = Spec("pixelfly");
  model.structured_matrices.density = 0.4;
  EXPECT_THAT(refusal(model), HasSubstr("has no room for the diagonal blocks")) << "2 x 8 blocks";
  model.structured_matrices.block_size = 24;
  EXPECT_THAT(refusal(model), HasSubstr("block_size 24 does not fit"));
  model.structured_matrices = {};
  model.structured_matrices.density = 0.5;
  EXPECT_THAT(refusal(model), HasSubstr("has settings and no kind"));
}

}  // namespace
}  // namespace weft::engine
