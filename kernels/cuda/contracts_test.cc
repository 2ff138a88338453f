// What the case lists do not reach: the CPU's bits, indices out of range, which nobody can name on
// a CUDA device, and parameters in bf16.

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/adafactor/adafactor.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/on_cuda_test.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gather_rows/gather_rows.h"
#include "kernels/group_quantize/group_quantize.h"
#include "kernels/moe_combine/moe_combine.h"
#include "kernels/moe_route/moe_route.h"
#include "kernels/norm_stat/norm_stat.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/quantize_fp8/quantize_fp8.h"
#include "kernels/rope/rope.h"
#include "kernels/stochastic_round/stochastic_round.h"
#include "kernels/stochastic_round/stochastic_round_ref.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;
using Values = std::vector<double>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class ContractsOnCuda : public OnCuda {
 protected:
  // Tensors on the device, until the test ends.
  TestTensor& Make(DType dtype, const Shape& shape) {
    const testing::ScopedTestDevice device(stream().device, true);
    TestTensor& tensor = tensors_.emplace_back(dtype, shape);
    tensor.Reset();
    return tensor;
  }
  TestTensor& Make(DType dtype, const Shape& shape, const Values& values) {
    TestTensor& tensor = Make(dtype, shape);
    tensor.Assign(values).Reset();
    return tensor;
  }

  // Waits for the device and fetches all tensors.
  void Finish(const Status& status) {
    ASSERT_TRUE(status.ok()) << status.ToString();
    const Status ran = state_->Synchronize();
    ASSERT_TRUE(ran.ok()) << ran.ToString();
    for (TestTensor& tensor : tensors_) tensor.Fetch();
  }

  std::deque<TestTensor> tensors_;
};

void ExpectValues(const TestTensor& tensor, const Values& want) {
  const Values got = tensor.Values();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << i << " is " << got[i];
    } else {
      EXPECT_EQ(got[i], want[i]) << i;
    }
  }
}

TEST_F(ContractsOnCuda, IndicesOutOfRangeMakeRowsOfAnEmbeddingNanAndTheirGradientsGoNowhere) {
  TestTensor& tokens = Make(DType::kI32, {4}, {1, 3, -1, 0});
  TestTensor& positions = Make(DType::kI32, {4}, {0, 0, 0, 2});
  TestTensor& table = Make(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  TestTensor& position_table = Make(DType::kF32, {2, 2}, {10, 20, 30, 40});
  TestTensor& out = Make(DType::kF32, {4, 2});
  Finish(EmbeddingForward(stream(), {.tokens = tokens.view(),
                                     .positions = positions.view(),
                                     .token_table = table.view(),
                                     .position_table = position_table.view(),
                                     .out = out.view()}));
  ExpectValues(out, {13, 24, kNan, kNan, kNan, kNan, kNan, kNan});
  TestTensor& dout = Make(DType::kF32, {4, 2}, {1, 2, 100, 100, 100, 100, 3, 4});
  Finish(EmbeddingBackward(stream(), {.tokens = tokens.view(),
                                      .positions = {},
                                      .dout = dout.view(),
                                      .dtoken_table = table.view(),
                                      .dposition_table = {}}));
  ExpectValues(table, {4, 6, 4, 6, 5, 6});
}

// Sums that have one order, and random numbers, leave nothing to tolerance.
TEST_F(ContractsOnCuda, EmbeddingGradientsAndDropoutHaveTheBitsOfTheCpu) {
  // More tokens than are sorted at a time, and runs of equal ones of many lengths.
  constexpr int64_t kCount = 9000, kRows = 300;
  PhiloxStream rng({.seed = 12});
  Values tokens(kCount);
  for (double& token : tokens) token = std::floor(kRows * std::pow(rng.Uniform(), 3));
  for (DType dtype : kFloatTypes) {
    for (int64_t width : {5, 8}) {
      Values dout(kCount * width), dtable(kRows * width);
      for (Values* values : {&dout, &dtable}) {
        for (double& value : *values) value = rng.Normal();
      }
      std::vector<Values> results;
      for (bool on_cuda : {false, true}) {
        const Stream where = on_cuda ? stream() : Stream{};
        const testing::ScopedTestDevice device(where.device, true);
        TestTensor indices(DType::kI32, {kCount}), d(dtype, {kCount, width});
        TestTensor table(DType::kF32, {kRows, width});
        indices.Assign(tokens).Reset();
        d.Assign(dout).Reset();
        table.Assign(dtable).Reset();
        Finish(EmbeddingBackward(where, {.tokens = indices.view(),
                                         .positions = {},
                                         .dout = d.view(),
                                         .dtoken_table = table.view(),
                                         .dposition_table = {}}));
        Finish(Dropout(where, {.x = d.view(),
                               .y = d.view(),
                               .probability = 0.3f,
                               .key = {.seed = 3, .step = 4, .site = 5},
                               .first_element = 4}));
        table.Fetch();
        d.Fetch();
        results.push_back(table.Values());
        results.push_back(d.Values());
      }
      EXPECT_EQ(results[0], results[2]) << DTypeName(dtype) << ", " << width;
      EXPECT_EQ(results[1], results[3]) << DTypeName(dtype) << ", " << width;
    }
  }
}

TEST_F(ContractsOnCuda, IndicesOutOfRangeGatherNanAndScatterNothing) {
  for (DType dtype : kFloatTypes) {
    for (int64_t width : {1, 8}) {
      const auto rows_of = [width](std::initializer_list<double> numbers) {
        Values values;
        for (double number : numbers)
          values.insert(values.end(), static_cast<size_t>(width), number);
        return values;
      };
      TestTensor& rows = Make(DType::kI32, {3}, {2, 3, -1});
      TestTensor& all = Make(dtype, {3, width}, rows_of({1, 2, 3}));
      TestTensor& picked = Make(dtype, {3, width});
      Finish(GatherRows(stream(), {all.view(), rows.view(), picked.view()}));
      ExpectValues(picked, rows_of({3, kNan, kNan}));
      TestTensor& more = Make(dtype, {3, width}, rows_of({7, 8, 9}));
      Finish(ScatterRows(stream(), {more.view(), rows.view(), all.view()}));
      ExpectValues(all, rows_of({1, 2, 7}));
    }
  }
}

TEST_F(ContractsOnCuda, PlacesOfExpertsOutOfRangeMakeNanAndTouchNothing) {
  for (const int64_t width : {4, 5}) {
    const auto rows_of = [&](std::initializer_list<double> values) {
      Values rows;
      for (double value : values) rows.insert(rows.end(), static_cast<size_t>(width), value);
      return rows;
    };
    TestTensor& places = Make(DType::kI32, {3, 2}, {1, -1, 0, 2, -2, -1});
    TestTensor& weights = Make(DType::kF32, {3, 2}, {0.5, 9, 1, 1, 1, 1});
    TestTensor& x = Make(DType::kF32, {2, width}, rows_of({3, 4}));
    TestTensor& y = Make(DType::kF32, {3, width});
    Finish(MoeCombine(stream(), {x.view(), places.view(), weights.view(), y.view()}));
    ExpectValues(y, rows_of({2, kNan, kNan}));
    TestTensor& dy = Make(DType::kF32, {3, width}, rows_of({2, 1, 1}));
    TestTensor& dweights = Make(DType::kF32, {3, 2});
    // In place.
    Finish(MoeCombineBackward(
        stream(), {dy.view(), x.view(), places.view(), weights.view(), x.view(), dweights.view()}));
    ExpectValues(x, rows_of({1, 1}));
    const auto w = static_cast<double>(width);
    ExpectValues(dweights, {8 * w, 0, 3 * w, kNan, kNan, 0});
  }
}

TEST_F(ContractsOnCuda, AChoiceOfNoExpertHasNoPlace) {
  TestTensor& chosen = Make(DType::kI32, {2, 2}, {3, 1, -1, 0});
  TestTensor& rows = Make(DType::kI32, {4});
  TestTensor& places = Make(DType::kI32, {2, 2});
  TestTensor& wanted = Make(DType::kI32, {3});
  TestTensor& taken = Make(DType::kI32, {3});
  Finish(MoeDispatch(stream(), {.chosen = chosen.view(),
                                .rows = rows.view(),
                                .places = places.view(),
                                .wanted_count = wanted.view(),
                                .taken_count = taken.view()}));
  ExpectValues(rows, {1, 0, -1, -1});
  ExpectValues(places, {-1, 1, -1, 0});
  ExpectValues(wanted, {1, 1, 0});
  ExpectValues(taken, {1, 1, 0});
}

TEST_F(ContractsOnCuda, ARouterTakesTheFirstOfEqualExpertsSurvivesNanAndHasAMostOfExperts) {
  TestTensor& logits = Make(DType::kF32, {3, 4}, {1, 1, 1, 1, kNan, kNan, kNan, kNan, 0, 2, 2, 1});
  TestTensor& probabilities = Make(DType::kF32, {3, 4});
  TestTensor& chosen = Make(DType::kI32, {3, 2});
  TestTensor& weights = Make(DType::kF32, {3, 2});
  Finish(MoeRoute(stream(), {logits.view(), probabilities.view(), chosen.view(), weights.view()}));
  ExpectValues(chosen, {0, 1, 0, 1, 1, 2});
  ExpectValues(weights, {0.5, 0.5, kNan, kNan, 0.5, 0.5});
  TestTensor& many = Make(DType::kF32, {1, 2049});
  TestTensor& one = Make(DType::kI32, {1, 1});
  TestTensor& weight = Make(DType::kF32, {1, 1});
  EXPECT_EQ(MoeRoute(stream(), {many.view(), many.view(), one.view(), weight.view()}).ToString(),
            "INVALID: MoeRoute: 2049 experts are more than the 2048 that a CUDA device routes to");
}

TEST_F(ContractsOnCuda, APositionOutOfRangeMakesItsTokenNan) {
  TestTensor& x = Make(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  TestTensor& positions = Make(DType::kI32, {3}, {1, 2, -1});
  TestTensor& cosines = Make(DType::kF32, {2, 1}, {0, 0});
  TestTensor& sines = Make(DType::kF32, {2, 1}, {0, 1});
  Finish(Rope(stream(), {x.view(), positions.view(), cosines.view(), sines.view()}));
  ExpectValues(x, {-2, 1, kNan, kNan, kNan, kNan});
}

TEST_F(ContractsOnCuda, SwiGluOfExtremeInputsGivesItsLimits) {
  TestTensor& gate = Make(DType::kF32, {1, 6}, {-1e20f, 1e20f, kInfinity, 0, -100, kNan});
  TestTensor& up = Make(DType::kF32, {1, 6}, Values(6, 3));
  TestTensor& dy = Make(DType::kF32, {1, 6}, Values(6, 2));
  TestTensor& y = Make(DType::kF32, {1, 6});
  // Both gradients in place.
  Finish(SwiGluBackward(stream(), {.dy = dy.view(),
                                   .gate = gate.view(),
                                   .up = up.view(),
                                   .dgate = gate.view(),
                                   .dup = up.view(),
                                   .y = y.view()}));
  const auto near = [](const TestTensor& tensor, const Values& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double got = tensor.Values()[i];
      if (std::isfinite(want[i])) {
        EXPECT_NEAR(got, want[i], 1e-6 * std::abs(want[i]) + 1e-30);
      } else {
        EXPECT_EQ(std::isnan(got), std::isnan(want[i]));
        EXPECT_TRUE(std::isnan(got) || got == want[i]);
      }
    }
  };
  near(y, {0, 3e20, kInfinity, 0, 0, kNan});
  near(up, {0, 2e20, kInfinity, 0, 0, kNan});
  near(gate, {0, 6, 6, 3, 0, kNan});
}

TEST_F(ContractsOnCuda, DroppedElementsAreZeroWhateverTheyWere) {
  TestTensor& x = Make(DType::kF32, {256}, Values(256, kInfinity));
  Finish(Dropout(stream(), {.x = x.view(), .y = x.view(), .probability = 0.5f, .key = {}}));
  int zeros = 0;
  for (double value : x.Values()) {
    EXPECT_TRUE(value == 0 || value == kInfinity);
    zeros += value == 0 ? 1 : 0;
  }
  EXPECT_GT(zeros, 80);
}

TEST_F(ContractsOnCuda, RoundingKeepsInfinityAndNanAndStaysFinite) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  TestTensor& x = Make(DType::kF32, {5}, {kInfinity, kNan, kLargest, -kLargest, -0.0});
  TestTensor& y = Make(DType::kBF16, {5});
  Finish(StochasticRound(stream(), {.x = x.view(), .y = y.view(), .key = {.seed = 1}}));
  ExpectValues(y, {kInfinity, kNan, 0x1.fep127, -0x1.fep127, 0});
  EXPECT_TRUE(std::signbit(y.Values()[4]));
}

TEST_F(ContractsOnCuda, NormStatCountsNanAndInfinityAndSquaresBeyondF32) {
  for (DType dtype : kMatrixTypes) {
    Values values(70001, 1.0);
    values[0] = kInfinity;
    values[7] = kNan;
    values[70000] = -kInfinity;
    for (bool bad : {true, false}) {
      TestTensor& x = Make(dtype, {70001}, bad ? values : Values(70001, 0x1p100));
      // An f64 and an i64.
      TestTensor& results = Make(DType::kI32, {4});
      auto* sum = static_cast<double*>(results.view().data);
      NormTensor tensor = {.data = nullptr, .count = 70001};
      if (dtype == DType::kBF16) {
        tensor.bf16_data = x.view().As<BFloat16>();
      } else {
        tensor.data = x.view().As<float>();
      }
      Finish(NormStat(stream(), {.tensors = {&tensor, 1},
                                 .sum_of_squares = sum,
                                 .non_finite = reinterpret_cast<int64_t*>(sum + 1)}));
      double squares;
      int64_t non_finite;
      std::memcpy(&squares, results.bytes().data(), sizeof squares);
      std::memcpy(&non_finite, results.bytes().data() + sizeof squares, sizeof non_finite);
      EXPECT_EQ(non_finite, bad ? 3 : 0);
      if (bad) {
        EXPECT_FALSE(std::isfinite(squares));
      } else {
        EXPECT_EQ(squares, 70001 * 0x1p200);
      }
    }
  }
}

// More tensors than fit in the parameters of a launch, each shorter than what a thread treats.
TEST_F(ContractsOnCuda, ManyTensorsAreTreatedAsOnTheCpu) {
  constexpr int64_t kTensors = 70, kSize = 5, kDistance = 8;
  PhiloxStream rng({.seed = 12});
  Values parameters(kTensors * kDistance), gradients(parameters.size());
  for (Values* values : {&parameters, &gradients}) {
    for (double& value : *values) value = rng.Normal();
  }
  struct Results {
    Values parameters, adafactor_parameters, statistics;
  };
  std::vector<Results> results;
  for (bool on_cuda : {false, true}) {
    const Stream where = on_cuda ? stream() : Stream{};
    const testing::ScopedTestDevice device(where.device, true);
    const Shape shape = {kTensors * kDistance};
    TestTensor p(DType::kF32, shape), q(DType::kF32, shape), g(DType::kF32, shape);
    TestTensor m(DType::kF32, shape), v(DType::kF32, shape), c(DType::kF32, shape);
    TestTensor statistics(DType::kI32, {4});
    for (TestTensor* tensor : {&p, &q}) tensor->Assign(parameters).Reset();
    for (TestTensor* tensor : {&m, &v, &c}) tensor->Assign(Values(parameters.size())).Reset();
    g.Assign(gradients).Reset();
    statistics.Reset();
    std::vector<NormTensor> norms;
    std::vector<UpdateTensor> updates;
    std::vector<AdafactorTensor> adafactors;
    for (int64_t i = 0; i < kTensors; ++i) {
      const auto at = [i](const TestTensor& tensor) {
        return tensor.view().As<float>() + i * kDistance;
      };
      norms.push_back({at(g), kSize});
      updates.push_back({.parameter = at(p),
                         .gradient = at(g),
                         .state = {at(m), at(v)},
                         .count = kSize,
                         .weight_decay = 0.1f});
      adafactors.push_back(
          {.parameter = at(q), .gradient = at(g), .column_moment = at(c), .columns = kSize});
    }
    auto* sum = static_cast<double*>(statistics.view().data);
    Finish(NormStat(where, {.tensors = norms,
                            .sum_of_squares = sum,
                            .non_finite = reinterpret_cast<int64_t*>(sum + 1)}));
    // What lies behind the end of a tensor must not count: 0 / 0 here.
    Finish(Lamb(where, {.update = {.tensors = updates, .learning_rate = 0.1f}, .epsilon = 0}));
    Finish(Adafactor(where, {.tensors = adafactors, .learning_rate = 0.1f}));
    for (TestTensor* tensor : {&p, &q, &statistics}) tensor->Fetch();
    double squares;
    std::memcpy(&squares, statistics.bytes().data(), sizeof squares);
    results.push_back({p.Values(), q.Values(), {squares}});
  }
  const auto near = [](const Values& got, const Values& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-5 * (std::abs(want[i]) + 1)) << i;
    }
  };
  EXPECT_NE(results[0].parameters, parameters);
  near(results[1].parameters, results[0].parameters);
  near(results[1].adafactor_parameters, results[0].adafactor_parameters);
  near(results[1].statistics, results[0].statistics);
}

// Parameters in bf16 are those of an update in f32, rounded stochastically by (seed, step, site,
// index), with state as in f32.
TEST_F(ContractsOnCuda, Bf16ParametersAreF32UpdatesRoundedStochastically) {
  constexpr int64_t kCount = 20001;
  using Rule = std::function<Status(const UpdateInputs&)>;
  const Rule rules[] = {
      [&](const UpdateInputs& update) {
        return Sgd(stream(), {update, 0.9f, false});
      },
      [&](const UpdateInputs& update) {
        return Lars(stream(), {update, 0.9f, 0.5f, 1e-3f});
      },
      [&](const UpdateInputs& update) { return Adam(stream(), {.update = update}); },
      [&](const UpdateInputs& update) { return Lamb(stream(), {.update = update}); },
      [&](const UpdateInputs& update) { return Lion(stream(), {.update = update}); }};
  PhiloxStream rng({.seed = 12});
  TestTensor& start = Make(DType::kBF16, {kCount});
  start.Random(rng).Reset();
  TestTensor& gradient = Make(DType::kF32, {kCount});
  gradient.Random(rng).Reset();
  const PhiloxKey key = {.seed = 77, .step = 5, .site = 9};
  for (const Rule& rule : rules) {
    const int64_t first = &rule == &rules[0] ? 0 : 7;  // of a whole tensor, or of a part
    std::vector<Values> states;
    Values wide;
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      TestTensor& p = Make(dtype, {kCount}, start.Values());
      UpdateTensor tensor = {.gradient = gradient.view().As<float>(),
                             .count = kCount,
                             .weight_decay = 0.1f,
                             .rounding_site = key.site,
                             .first_element = first};
      if (dtype == DType::kBF16) {
        tensor.bf16_parameter = p.view().As<BFloat16>();
      } else {
        tensor.parameter = p.view().As<float>();
      }
      TestTensor* state[3];
      for (int k = 0; k < 3; ++k) {
        state[k] = &Make(DType::kF32, {kCount}, Values(kCount, 0.0));
        tensor.state[k] = state[k]->view().As<float>();
      }
      Finish(rule(
          {.tensors = {&tensor, 1}, .learning_rate = 0.01f, .seed = key.seed, .step = key.step}));
      for (int k = 0; k < 3; ++k) {
        if (dtype == DType::kF32) {
          states.push_back(state[k]->Values());
        } else {
          EXPECT_EQ(state[k]->Values(), states[static_cast<size_t>(k)]);
        }
      }
      if (dtype == DType::kF32) {
        wide = p.Values();
        EXPECT_NE(wide, start.Values());
      } else {
        EXPECT_EQ(p.Values(), ref::StochasticRound(wide, key, static_cast<uint64_t>(first)));
      }
    }
  }
}

TEST_F(ContractsOnCuda, Bf16ParametersOfAdafactorAreRoundedRowByRow) {
  // Columns that are no multiple of four, and rows of several tiles.
  constexpr int64_t kRows = 300, kColumns = 131, kRowWords = 132;
  PhiloxStream rng({.seed = 12});
  TestTensor& start = Make(DType::kBF16, {kRows * kColumns});
  start.Random(rng).Reset();
  TestTensor& gradient = Make(DType::kF32, {kRows * kColumns});
  gradient.Random(rng).Reset();
  const PhiloxKey key = {.seed = 77, .step = 5, .site = 9};
  Values wide;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    TestTensor& p = Make(dtype, {kRows * kColumns}, start.Values());
    TestTensor& rows = Make(DType::kF32, {kRows}, Values(kRows, 0.0));
    TestTensor& columns = Make(DType::kF32, {kColumns}, Values(kColumns, 0.0));
    AdafactorTensor tensor = {.gradient = gradient.view().As<float>(),
                              .row_moment = rows.view().As<float>(),
                              .column_moment = columns.view().As<float>(),
                              .rows = kRows,
                              .columns = kColumns,
                              .weight_decay = 0.1f,
                              .rounding_site = key.site};
    if (dtype == DType::kBF16) {
      tensor.bf16_parameter = p.view().As<BFloat16>();
    } else {
      tensor.parameter = p.view().As<float>();
    }
    Finish(Adafactor(stream(), {.tensors = {&tensor, 1},
                                .learning_rate = 0.01f,
                                .seed = key.seed,
                                .rounding_step = key.step}));
    if (dtype == DType::kF32) {
      wide = p.Values();
      EXPECT_NE(wide, start.Values());
      continue;
    }
    const Values got = p.Values();
    for (int64_t row = 0; row < kRows; ++row) {
      const auto in_row = [row](const Values& all) {
        return Values(all.begin() + row * kColumns, all.begin() + (row + 1) * kColumns);
      };
      ASSERT_EQ(in_row(got),
                ref::StochasticRound(in_row(wide), key, static_cast<uint64_t>(row * kRowWords)))
          << row;
    }
  }
}

TEST_F(ContractsOnCuda, QuantizationHasTheCodesOfTheCpu) {
  Values values = {0,    -0.0,       1e-40, 0x1.0p-10, 0x1.8p-9, 448,       464,
                   -465, 0x1.0p-17,  57344, 61440,     1e30,     kInfinity, -kInfinity,
                   kNan, 3.14159274, 17,    -19,       21,       -23};
  values.resize(3 * 32, 0.3);
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const auto run = [&](const Stream& to, TestTensor& x, TestTensor& scale, TestTensor& q,
                         TestTensor& transposed, TestTensor& amax) {
      return QuantizeFp8(to, {.x = x.view(),
                              .scale = scale.view(),
                              .q = q.view(),
                              .transposed = transposed.view(),
                              .amax = amax.view()});
    };
    TestTensor x(DType::kF32, {3, 32}), scale(DType::kF32, {1}), q(type, {3, 32});
    TestTensor transposed(type, {32, 16}), amax(DType::kF32, {1});
    x.Assign(values);
    scale.Assign({1});
    amax.Assign({0});
    ASSERT_TRUE(run({}, x, scale, q, transposed, amax).ok());
    TestTensor& device_q = Make(type, {3, 32});
    TestTensor& device_transposed = Make(type, {32, 16});
    TestTensor& device_amax = Make(DType::kF32, {1}, {0});
    Finish(run(stream(), Make(DType::kF32, {3, 32}, values), Make(DType::kF32, {1}, {1}), device_q,
               device_transposed, device_amax));
    EXPECT_EQ(device_q.bytes(), q.bytes());
    EXPECT_EQ(device_transposed.bytes(), transposed.bytes());
    EXPECT_EQ(device_amax.bytes(), amax.bytes());
  }
}

// Numbers of several groups, in which there are zeros of both signs, one value alone, spreads that
// leave f32, and what is not finite.
Values ExtremeGroups(int64_t count) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  PhiloxStream rng({.seed = 12});
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = rng.Normal();
  for (size_t i = 0; i < 128; ++i) {
    values[i] = i % 3 == 1 ? -0.0 : 0.0;
    values[128 + i] = -1.75;
    values[2 * 128 + i] = i % 2 == 0 ? kLargest : -kLargest;
    values[3 * 128 + i] = 1e-38 * static_cast<double>(i);
    values[4 * 128 + i] = 1e-45 * static_cast<double>(i % 3);
  }
  values[5 * 128 + 7] = kNan;
  values[6 * 128 + 127] = kInfinity;
  values[7 * 128] = -kInfinity;
  return values;
}

TEST_F(ContractsOnCuda, GroupsHaveTheCodesOfTheCpu) {
  constexpr int64_t kCount = 9 * 128 + 77, kGroups = 10;
  const Values values = ExtremeGroups(kCount);
  const PhiloxKey key = {.seed = 3, .step = 4, .site = 5};
  TestTensor& step = Make(DType::kI32, {1}, {static_cast<double>(key.step)});
  for (DType dtype : kFloatTypes) {
    for (int64_t bits : {8, 4, 2}) {
      // In memory that is aligned, and in memory that is not.
      for (int64_t shift : {0, 3}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(bits) + " " +
                     std::to_string(shift));
        const int64_t bytes = kGroups * 16 * bits;
        const auto run = [&](const Stream& to, TestTensor& x, TestTensor& codes, TestTensor& scales,
                             TestTensor& y, const uint32_t* at) {
          const TensorView shifted(codes.view().As<uint8_t>() + shift, DType::kU8,
                                   {kGroups, 16 * bits}, to.device);
          GroupQuantizeArgs args = {.x = x.view(),
                                    .codes = shifted,
                                    .scales = scales.view(),
                                    .bits = bits,
                                    .key = key,
                                    .step = at,
                                    .first_element = 1000};
          // The step would differ if it were not read in place.
          if (at != nullptr) args.key.step = 9;
          const Status status = GroupQuantize(to, args);
          return status.ok() ? GroupDequantize(to, {shifted, scales.view(), bits, y.view()})
                             : status;
        };
        TestTensor x(dtype, {kCount}), codes(DType::kU8, {bytes + shift});
        TestTensor scales(DType::kF32, {kGroups, 2}), y(dtype, {kCount});
        x.Assign(values).Reset();
        for (TestTensor* tensor : {&codes, &scales, &y}) tensor->Reset();
        ASSERT_EQ(run({}, x, codes, scales, y, nullptr).ToString(), "OK");
        TestTensor& device_codes = Make(DType::kU8, {bytes + shift});
        TestTensor& device_scales = Make(DType::kF32, {kGroups, 2});
        TestTensor& device_y = Make(dtype, {kCount});
        Finish(run(stream(), Make(dtype, {kCount}, values), device_codes, device_scales, device_y,
                   static_cast<const uint32_t*>(step.view().data)));
        EXPECT_EQ(device_codes.bytes(), codes.bytes());
        EXPECT_EQ(device_scales.bytes(), scales.bytes());
        // Without fused multiply-adds a CPU rounds twice.
        if (cpu::ProcessIsa() != cpu::Isa::kBaseline) ExpectValues(device_y, y.Values());
      }
    }
  }
}

}  // namespace
}  // namespace weft::kernels
