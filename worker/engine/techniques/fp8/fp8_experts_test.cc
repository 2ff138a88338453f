// Products of experts in FP8, forward and backward, against the same in float64 with operands that
// are quantised alike.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/float8.h"
#include "common/rng.h"
#include "kernels/quantize_fp8/quantize_fp8_ref.h"
#include "worker/engine/nn/mixture_of_experts.h"
#include "worker/engine/techniques/fp8/fp8_products.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

constexpr int64_t kTokens = 21, kWidth = 32, kInner = 48, kExperts = 3;

/// Row-major.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values = std::vector<double>(static_cast<size_t>(rows * columns));

  double& operator()(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  double operator()(int64_t r, int64_t c) const {
    return values[static_cast<size_t>(r * columns + c)];
  }
};

Matrix Transposed(const Matrix& m) {
  Matrix t{m.columns, m.rows};
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.columns; ++c) t(c, r) = m(r, c);
  }
  return t;
}

/// a bᵀ
Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix sums{a.rows, b.rows};
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < b.rows; ++c) {
      for (int64_t k = 0; k < a.columns; ++k) sums(r, c) += a(r, k) * b(c, k);
    }
  }
  return sums;
}

Matrix InBf16(Matrix m) {
  for (double& value : m.values) value = ToFloat(ToBFloat16(static_cast<float>(value)));
  return m;
}

/// A weight that is no FP8 operand, as products in bf16 read it: without AVX-512 it is widened, and
/// nothing is rounded.
Matrix AsProductsRead(const Matrix& weight) {
  return WidensOperands(ProductsOf(DType::kBF16)) ? weight : InBf16(weight);
}

/// What codes of `m` stand for that are scaled by its largest magnitude.
Matrix InFp8(Matrix m, DType type) {
  double largest = 0;
  for (const double value : m.values) largest = std::max(largest, std::abs(value));
  const float scale = LargestFloat8(type) / static_cast<float>(largest);
  m.values = kernels::ref::QuantizeFp8(m.values, scale, type);
  for (double& value : m.values) value /= static_cast<double>(scale);
  return m;
}

/// The distance over all numbers together, in units of `truth`.
double Distance(const Matrix& measured, const Matrix& truth) {
  EXPECT_EQ(measured.values.size(), truth.values.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < truth.values.size(); ++i) {
    difference += std::pow(measured.values[i] - truth.values[i], 2);
    norm += std::pow(truth.values[i], 2);
  }
  return std::sqrt(difference / norm);
}

/// A mixture whose tokens go to all experts, with what enters it and the gradient of what
/// it makes.
struct Mixture {
  Allocator allocator{0};
  Context context;
  ParameterSet parameters;
  Fp8ProductsFactory fp8;
  MixtureOfExperts experts;
  Tensor x, dy, y, dx;

  static Fp8Spec Current() {
    Fp8Spec spec;
    spec.scaling = "current";
    return spec;
  }

  Mixture()
      : fp8(Current(), true),
        experts(&parameters,
                {.name = "m",
                 .width = kWidth,
                 .inner = kInner,
                 .experts = kExperts,
                 .per_token = kExperts},
                {DType::kBF16, &fp8}) {
    context.allocator = &allocator;
    Expect(parameters.Allocate(context, true));
    Expect(fp8.Allocate(context));
    Expect(parameters.Initialize(3));
    // So that experts and tokens differ in weight.
    PhiloxStream random(PhiloxKey{5, 0, 0});
    for (int64_t p = 0; p < parameters.size(); ++p) {
      const TensorView value = parameters.value(p);
      for (int64_t i = 0; i < value.shape.Elements(); ++i) {
        value.As<float>()[i] = 0.2F * static_cast<float>(random.Normal());
      }
    }
    Expect(experts.Pack(context, Repack::kAll));
    x = Random(random, 1);
    dy = Random(random, 1e-4);
  }

  Tensor Random(PhiloxStream& random, double deviation) {
    auto tensor = Tensor::New(context, Component::kActivations, DType::kBF16, {kTokens, kWidth});
    Expect(tensor.status());
    for (int64_t i = 0; i < kTokens * kWidth; ++i) {
      tensor->view().As<BFloat16>()[i] =
          ToBFloat16(static_cast<float>(deviation * random.Normal()));
    }
    return *tensor;
  }

  void Run() {
    ParameterGradients gradients(parameters.DifferentiatedGradients());
    gradients.StartStep();
    gradients.StartPass({});
    Tape tape(&gradients);
    const Value in = tape.NewValue(x, true);
    auto out = experts.Forward(context, tape, in, TokenBatch());
    Expect(out.status());
    y = out->tensor;
    Expect(tape.AddGradient(context, out->node, dy));
    Expect(tape.RunBackward(context));
    dx = tape.TakeGradient(in.node);
    Expect(gradients.FinishPass(context));
  }

  Matrix Values(const TensorView& view) const {
    const std::vector<float> values = ValuesOf(view);
    return {view.shape[0], view.shape[1], {values.begin(), values.end()}};
  }
  TensorView Parameter(int64_t expert, const char* name, bool gradient) const {
    const std::string of = expert < 0 ? "m.gate" : "m.experts." + std::to_string(expert) + name;
    const auto index = parameters.Find(of + ".weight");
    Expect(index.status());
    return gradient ? parameters.gradient(*index) : parameters.value(*index);
  }
  Matrix Stacked(int64_t expert, bool gradient) const {
    Matrix gate = Values(Parameter(expert, ".w1", gradient));
    const Matrix up = Values(Parameter(expert, ".w3", gradient));
    gate.rows += up.rows;
    gate.values.insert(gate.values.end(), up.values.begin(), up.values.end());
    return gate;
  }

  static void Expect(const Status& status) { WEFT_CHECK(status.ok(), status.message()); }
};

Matrix Softmax(Matrix logits) {
  for (int64_t r = 0; r < logits.rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < logits.columns; ++c) sum += std::exp(logits(r, c));
    for (int64_t c = 0; c < logits.columns; ++c) logits(r, c) = std::exp(logits(r, c)) / sum;
  }
  return logits;
}

/// What that makes; `quantises`: its operands.
struct Reference {
  Matrix y{kTokens, kWidth}, dx{kTokens, kWidth};
  std::vector<Matrix> dup, ddown;  ///< By expert.

  Reference(const Mixture& mixture, bool quantises) {
    const auto code = [&](const Matrix& m, DType type = DType::kF8E4M3) {
      return quantises ? InFp8(InBf16(m), type) : InBf16(m);
    };
    const auto code_weight = [&](const Matrix& m) {
      return quantises ? InFp8(m, DType::kF8E4M3) : AsProductsRead(m);
    };
    const Matrix x = mixture.Values(mixture.x), dy = mixture.Values(mixture.dy), x8 = code(x);
    const Matrix router = AsProductsRead(mixture.Values(mixture.Parameter(-1, "", false)));
    const Matrix weights = Softmax(InBf16(Product(x, router)));
    Matrix dweights{kTokens, kExperts};
    for (int64_t e = 0; e < kExperts; ++e) {
      const Matrix up = code_weight(mixture.Stacked(e, false));
      const Matrix down = code_weight(mixture.Values(mixture.Parameter(e, ".w2", false)));
      const Matrix before = InBf16(Product(x8, up));
      Matrix active{kTokens, kInner}, dresults{kTokens, kWidth};
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t c = 0; c < kWidth; ++c) dresults(t, c) = weights(t, e) * dy(t, c);
        for (int64_t c = 0; c < kInner; ++c) {
          const double gate = before(t, c);
          active(t, c) = gate / (1 + std::exp(-gate)) * before(t, kInner + c);
        }
      }
      const Matrix active8 = code(active), dresults8 = code(dresults, DType::kF8E5M2);
      const Matrix results = InBf16(Product(active8, down));
      ddown.push_back(Product(Transposed(dresults8), Transposed(active8)));
      const Matrix dactive = InBf16(Product(dresults8, Transposed(down)));
      Matrix dbefore{kTokens, 2 * kInner};
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t c = 0; c < kInner; ++c) {
          const double gate = before(t, c), s = 1 / (1 + std::exp(-gate));
          dbefore(t, c) = dactive(t, c) * before(t, kInner + c) * s * (1 + gate * (1 - s));
          dbefore(t, kInner + c) = dactive(t, c) * gate * s;
        }
        for (int64_t c = 0; c < kWidth; ++c) {
          y(t, c) += weights(t, e) * results(t, c);
          dweights(t, e) += dy(t, c) * results(t, c);
        }
      }
      const Matrix dbefore8 = code(dbefore, DType::kF8E5M2);
      dup.push_back(Product(Transposed(dbefore8), Transposed(x8)));
      Add(InBf16(Product(dbefore8, Transposed(up))));
    }
    Matrix dlogits{kTokens, kExperts};
    for (int64_t t = 0; t < kTokens; ++t) {
      double mean = 0;
      for (int64_t e = 0; e < kExperts; ++e) mean += weights(t, e) * dweights(t, e);
      for (int64_t e = 0; e < kExperts; ++e) {
        dlogits(t, e) = weights(t, e) * (dweights(t, e) - mean);
      }
    }
    Add(Product(InBf16(dlogits), Transposed(router)));
  }

  void Add(const Matrix& of_dx) {
    for (size_t i = 0; i < dx.values.size(); ++i) dx.values[i] += of_dx.values[i];
  }
};

TEST(Fp8Experts, ProductsAreThoseOfQuantisedOperands) {
  Mixture mixture;
  const Reference quantised(mixture, true), plain(mixture, false);
  mixture.Run();
  const auto expect = [](const char* what, const Matrix& measured, const Matrix& truth,
                         const Matrix& other) {
    SCOPED_TRACE(what);
    const double distance = Distance(measured, truth);
    EXPECT_LT(distance, 5e-3);
    EXPECT_GT(Distance(measured, other), 5 * distance) << "it is not bf16";
  };
  expect("y", mixture.Values(mixture.y), quantised.y, plain.y);
  expect("dx", mixture.Values(mixture.dx), quantised.dx, plain.dx);
  for (int64_t e = 0; e < kExperts; ++e) {
    SCOPED_TRACE(e);
    const auto expert = static_cast<size_t>(e);
    expect("up", mixture.Stacked(e, true), quantised.dup[expert], plain.dup[expert]);
    expect("down", mixture.Values(mixture.Parameter(e, ".w2", true)), quantised.ddown[expert],
           plain.ddown[expert]);
  }
}

}  // namespace
}  // namespace weft::engine
