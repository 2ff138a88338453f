#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/layer_norm/layer_norm_ref.h"
#include "kernels/norm_part/norm_part.h"
#include "kernels/rms_norm/rms_norm_ref.h"
#include "kernels/testing/compare.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels::testing::norm_part {

using Values = std::vector<double>;

constexpr float kEpsilon = 1e-5f;

struct Problem {
  DType dtype = DType::kF32;
  bool layer = true;
  int64_t rows = 3;
  int64_t columns = 5;  ///< Of a part.
  int64_t parts = 2;
  bool with_delta = true;

  int64_t width() const { return parts * columns; }
  int64_t numbers() const { return NormPartNumbers(layer); }
};

/// What the owner of a part has and computes.
struct Owner {
  TestTensor stream, delta, sum, weight, bias, y, mean, scale, dy, dresidual, dweight, dbias, found;

  Owner(const Problem& p, PhiloxStream& rng)
      : stream(p.dtype, {p.rows, p.columns}),
        delta(p.dtype, {p.rows, p.columns}),
        sum(p.dtype, {p.rows, p.columns}),
        weight(DType::kF32, {p.columns}),
        bias(DType::kF32, {p.columns}),
        y(p.dtype, {p.rows, p.columns}),
        mean(DType::kF32, {p.rows}),
        scale(DType::kF32, {p.rows}),
        dy(p.dtype, {p.rows, p.columns}),
        dresidual(p.dtype, {p.rows, p.columns}),
        dweight(DType::kF32, {p.columns}),
        dbias(DType::kF32, {p.columns}),
        found(DType::kF32, {p.numbers(), p.rows}) {
    for (TestTensor* drawn : {&weight, &bias, &delta, &dy, &dresidual, &dweight, &dbias}) {
      drawn->Random(rng);
    }
    stream.Random(rng, 3.0);
    for (TestTensor* tensor : All()) tensor->Reset();
  }
  std::vector<TestTensor*> All() {
    return {&stream, &delta, &sum,       &weight,  &bias,  &y,    &mean,
            &scale,  &dy,    &dresidual, &dweight, &dbias, &found};
  }
  /// After an operation.
  void Fetch() {
    for (TestTensor* tensor : All()) tensor->Fetch();
  }
};

/// The parts of rows side by side; of vectors one behind the other.
inline Values Whole(const Problem& p, const std::vector<std::unique_ptr<Owner>>& owners,
                    TestTensor Owner::*tensor, bool initial = false) {
  const auto& first = (*owners[0]).*tensor;
  const int64_t rows = first.view().shape.rank == 2 ? p.rows : 1;
  Values whole;
  for (int64_t r = 0; r < rows; ++r) {
    for (const auto& owner : owners) {
      const TestTensor& part = (*owner).*tensor;
      const Values values = initial ? part.InitialValues() : part.Values();
      whole.insert(whole.end(), values.begin() + r * p.columns,
                   values.begin() + (r + 1) * p.columns);
    }
  }
  return whole;
}

/// Runs it on `stream`, where tensors are made too, against the norm of whole rows.
inline void CheckParts(const Problem& p, const Stream& stream = {}) {
  PhiloxStream rng(PhiloxKey{3, 0, 0});
  std::vector<std::unique_ptr<Owner>> owners;
  for (int64_t i = 0; i < p.parts; ++i) owners.push_back(std::make_unique<Owner>(p, rng));
  TestTensor all(DType::kF32, {p.parts * p.numbers(), p.rows});
  Values found;
  for (auto& owner : owners) {
    MeasureNormPartArgs args{
        .residual = owner->stream.view(), .layer = p.layer, .found = owner->found.view()};
    if (p.with_delta) {
      args.delta = owner->delta.view();
      args.sum = owner->sum.view();
    } else {
      owner->sum.Assign(owner->stream.InitialValues()).Reset();
    }
    const Status status = MeasureNormPart(stream, args);
    ASSERT_TRUE(status.ok()) << status.ToString();
    owner->Fetch();
    const Values own = owner->found.Values();
    found.insert(found.end(), own.begin(), own.end());
  }
  all.Assign(found).Reset();
  for (auto& owner : owners) {
    const Status status = NormOfParts(stream, {.x = owner->sum.view(),
                                               .weight = owner->weight.view(),
                                               .bias = p.layer ? owner->bias.view() : TensorView(),
                                               .epsilon = kEpsilon,
                                               .found = all.view(),
                                               .y = owner->y.view(),
                                               .mean = p.layer ? owner->mean.view() : TensorView(),
                                               .scale = owner->scale.view()});
    ASSERT_TRUE(status.ok()) << status.ToString();
    owner->Fetch();
  }
  const Values x = Whole(p, owners, &Owner::sum), weight = Whole(p, owners, &Owner::weight);
  const auto expect = [&](const char* what, const Values& got, const Values& want, DType dtype,
                          int64_t terms) {
    EXPECT_EQ(testing::Mismatch(got, want, testing::ToleranceFor(dtype, terms)), "") << what;
  };
  const ref::LayerNormOutput layer =
      ref::LayerNorm(x, {}, weight, Whole(p, owners, &Owner::bias), kEpsilon);
  const ref::RmsNormOutput rms = ref::RmsNorm(x, weight, kEpsilon);
  expect("y", Whole(p, owners, &Owner::y), p.layer ? layer.y : rms.y, p.dtype, p.width());
  for (auto& owner : owners) {
    expect("scale", owner->scale.Values(), p.layer ? layer.rstd : rms.rrms, DType::kF32, p.width());
    if (p.layer) expect("mean", owner->mean.Values(), layer.mean, DType::kF32, p.width());
  }

  // The same backward.
  Values sums(static_cast<size_t>(p.numbers() * p.rows));
  for (auto& owner : owners) {
    const Status status =
        MeasureNormGradientPart(stream, {.dy = owner->dy.view(),
                                         .x = owner->sum.view(),
                                         .weight = owner->weight.view(),
                                         .mean = p.layer ? owner->mean.view() : TensorView(),
                                         .scale = owner->scale.view(),
                                         .dweight = owner->dweight.view(),
                                         .dbias = p.layer ? owner->dbias.view() : TensorView(),
                                         .found = owner->found.view()});
    ASSERT_TRUE(status.ok()) << status.ToString();
    owner->Fetch();
    const Values own = owner->found.Values();
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
  }
  TestTensor summed(DType::kF32, {p.numbers(), p.rows});
  summed.Assign(sums).Reset();
  const Values dy = Whole(p, owners, &Owner::dy), beside = Whole(p, owners, &Owner::dresidual);
  const ref::LayerNormGradient through = ref::LayerNormBackward(dy, x, weight, kEpsilon);
  const ref::RmsNormGradient rms_through = ref::RmsNormBackward(dy, x, weight, kEpsilon);
  const auto plus = [](Values a, const Values& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  };
  for (auto& owner : owners) {
    // In place on the gradient of the residual.
    const Status status =
        NormGradientOfParts(stream, {.dy = owner->dy.view(),
                                     .x = owner->sum.view(),
                                     .weight = owner->weight.view(),
                                     .mean = p.layer ? owner->mean.view() : TensorView(),
                                     .scale = owner->scale.view(),
                                     .width = p.width(),
                                     .sums = summed.view(),
                                     .dresidual = owner->dresidual.view(),
                                     .dx = owner->dresidual.view()});
    ASSERT_TRUE(status.ok()) << status.ToString();
    owner->Fetch();
  }
  expect("dx", Whole(p, owners, &Owner::dresidual),
         plus(p.layer ? through.dx : rms_through.dx, beside), p.dtype, p.width());
  expect("dweight", Whole(p, owners, &Owner::dweight),
         plus(p.layer ? through.dweight : rms_through.dweight,
              Whole(p, owners, &Owner::dweight, true)),
         DType::kF32, p.rows);
  if (!p.layer) return;
  expect("dbias", Whole(p, owners, &Owner::dbias),
         plus(through.dbias, Whole(p, owners, &Owner::dbias, true)), DType::kF32, p.rows);
}

/// Checks all types, one part and several, few columns and many.
inline void CheckManyParts(const Stream& stream = {}) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool layer : {true, false}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + (layer ? " layer" : " rms"));
      CheckParts({.dtype = dtype, .layer = layer}, stream);
      CheckParts({.dtype = dtype, .layer = layer, .rows = 130, .columns = 64, .parts = 4}, stream);
      CheckParts({.dtype = dtype, .layer = layer, .rows = 700, .columns = 24, .parts = 1}, stream);
      CheckParts({.dtype = dtype, .layer = layer, .rows = 40, .columns = 16, .with_delta = false},
                 stream);
    }
  }
}

}  // namespace weft::kernels::testing::norm_part
