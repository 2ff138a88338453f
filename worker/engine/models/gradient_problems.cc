#include "worker/engine/models/gradient_problems.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/autograd/add.h"
#include "worker/engine/autograd/scale.h"
#include "worker/engine/models/attention_problem.h"
#include "worker/engine/models/row_problems.h"
#include "worker/engine/nn/activation.h"
#include "worker/engine/nn/affine.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/dropout.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/mixture_of_experts.h"
#include "worker/engine/nn/mlp.h"
#include "worker/engine/nn/norm.h"

namespace weft::engine {

Tensor NewTensor(Context& context, const Matrix& matrix) {
  auto tensor =
      Tensor::New(context, Component::kActivations, DType::kF32, {matrix.rows, matrix.columns});
  WEFT_CHECK(tensor.ok(), tensor.status().message());
  std::copy(matrix.values.begin(), matrix.values.end(), tensor->As<float>());
  return *tensor;
}

Matrix Product(const Matrix& x, const Matrix& w, const Matrix* b) {
  Matrix y(x.rows, w.rows);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t o = 0; o < w.rows; ++o) {
      double sum = b == nullptr ? 0 : b->values[o];
      for (int64_t i = 0; i < x.columns; ++i) sum += x.at(r, i) * w.at(o, i);
      y.at(r, o) = sum;
    }
  }
  return y;
}

Matrix Map(Matrix x, const std::function<double(double)>& f) {
  for (double& value : x.values) value = f(value);
  return x;
}

Tensor Indices(Context& context, const std::vector<int32_t>& values) {
  auto tensor = Tensor::New(context, Component::kWorkspace, DType::kI32,
                            {static_cast<int64_t>(values.size())});
  WEFT_CHECK(tensor.ok(), tensor.status().message());
  std::copy(values.begin(), values.end(), tensor->As<int32_t>());
  return *tensor;
}

Result<std::vector<Value>> One(Result<Value> value) {
  WEFT_RETURN_IF_ERROR(value.status());
  return std::vector<Value>{*std::move(value)};
}

namespace {

double GeluOf(double x, kernels::GeluForm form) {
  if (form == kernels::GeluForm::kErf) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

Problem AddProblem(Sides& sides) {
  Problem p;
  const int64_t rows = sides.Draw(), columns = sides.Draw();
  p.inputs = {sides.Normal(rows, columns), sides.Normal(rows, columns)};
  p.run = [](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(Add(c, t, in[0], in[1]));
  };
  p.reference = [](const std::vector<Matrix>& in) {
    Matrix y = in[0];
    for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += in[1].values[i];
    return std::vector<Matrix>{y};
  };
  return p;
}

/// A problem whose function takes each element by itself.
Problem ElementProblem(Sides& sides,
                       std::function<Result<Value>(Context&, Tape&, const Value&)> run,
                       const std::function<double(double)>& f) {
  Problem p;
  p.inputs = {sides.Normal(sides.Draw(), sides.Draw())};
  p.run = [run = std::move(run)](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(run(c, t, in[0]));
  };
  p.reference = [f](const std::vector<Matrix>& in) { return std::vector<Matrix>{Map(in[0], f)}; };
  return p;
}

Problem LinearProblem(Sides& sides) {
  Problem p;
  const int64_t in_features = sides.Draw();
  LinearOptions options{{}, in_features, sides.Coin()};
  const int64_t outputs = 1 + sides.Below(3);
  for (int64_t i = 0; i < outputs; ++i) {
    options.outputs.push_back({"part" + std::to_string(i), sides.Draw()});
  }
  auto linear = std::make_shared<Linear>(p.parameters.get(), options, DType::kF32);
  p.inputs = {sides.Normal(sides.Draw(), in_features)};
  p.prepare = [linear](Context& c) { return linear->Pack(c, Repack::kAll); };
  p.run = [linear](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(linear->Forward(c, t, in[0]));
  };
  p.reference = [outputs, bias = options.bias](const std::vector<Matrix>& in) {
    std::vector<Matrix> parts;
    Matrix y(in[0].rows, 0);
    for (int64_t i = 0; i < outputs; ++i) {
      parts.push_back(Product(in[0], in[1 + i], bias ? &in[1 + outputs + i] : nullptr));
      y.columns += parts.back().columns;
    }
    for (int64_t r = 0; r < y.rows; ++r) {
      for (const Matrix& part : parts) {
        for (int64_t c = 0; c < part.columns; ++c) y.values.push_back(part.at(r, c));
      }
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

// `layers`: gate, up and down.
Matrix GatedMlp(const Matrix& x, const Matrix* layers) {
  Matrix inner =
      Map(Product(x, layers[0], nullptr), [](double v) { return v / (1 + std::exp(-v)); });
  const Matrix up = Product(x, layers[1], nullptr);
  for (size_t i = 0; i < up.values.size(); ++i) inner.values[i] *= up.values[i];
  return Product(inner, layers[2], nullptr);
}

Problem MlpProblem(Sides& sides, MlpActivation activation) {
  Problem p;
  const bool gated = activation == MlpActivation::kSwiGlu;
  MlpOptions options{.activation = activation,
                     .up = {"up"},
                     .down = "down",
                     .width = sides.Draw(),
                     .inner = sides.Draw(),
                     .bias = !gated};
  if (gated) options.up = {"gate", "up"};
  auto mlp = std::make_shared<Mlp>(p.parameters.get(), options, DType::kF32);
  p.inputs = {sides.Normal(sides.Draw(), options.width)};
  p.prepare = [mlp](Context& c) { return mlp->Pack(c, Repack::kAll); };
  p.run = [mlp](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(mlp->Forward(c, t, in[0]));
  };
  p.reference = [gated, activation](const std::vector<Matrix>& in) {
    if (gated) return std::vector<Matrix>{GatedMlp(in[0], &in[1])};
    const auto form =
        activation == MlpActivation::kErfGelu ? kernels::GeluForm::kErf : kernels::GeluForm::kTanh;
    const Matrix inner = Map(Product(in[0], in[1], &in[2]), [=](double x) {
      switch (activation) {
        case MlpActivation::kSquaredRelu:
          return std::pow(std::max(x, 0.0), 2);
        case MlpActivation::kRelu:
          return std::max(x, 0.0);
        case MlpActivation::kSilu:
          return x / (1 + std::exp(-x));
        default:
          return GeluOf(x, form);
      }
    });
    return std::vector<Matrix>{Product(inner, in[3], &in[4])};
  };
  return p;
}

/// `padded`: the last half of each row is padding.
Problem MixtureProblem(Sides& sides, MixtureOfExpertsOptions options, bool padded = false) {
  Problem p;
  options.width = sides.Draw();
  options.inner = sides.Draw();
  options.experts = 1 + sides.Below(5);
  options.per_token = 1 + sides.Below(options.experts);
  constexpr int64_t kSequences = 2;
  const int64_t row = padded ? 2 * sides.Draw() : sides.Draw(), real = padded ? row / 2 : row;
  auto moe = std::make_shared<MixtureOfExperts>(p.parameters.get(), options, DType::kF32);
  p.inputs = {sides.Normal(kSequences * row, options.width)};
  p.prepare = [moe](Context& c) { return moe->Pack(c, Repack::kAll); };
  p.run = [=](Context& c, Tape& t, const std::vector<Value>& in) {
    TokenBatch batch;
    batch.sequences = kSequences;
    batch.length = row;
    batch.count = kSequences * row;
    batch.real_tokens = kSequences * real;
    if (padded) batch.lengths = Indices(c, std::vector(kSequences, static_cast<int32_t>(real)));
    return One(moe->Forward(c, t, in[0], batch));
  };
  p.reference = [=](const std::vector<Matrix>& in) {
    const Matrix &x = in[0], logits = Product(x, in[1], nullptr);
    Matrix y(x.rows, x.columns);
    const double mean = static_cast<double>(kSequences * real * options.per_token) /
                        static_cast<double>(options.experts);
    std::vector<double> left(static_cast<size_t>(options.experts),
                             options.capacity == 0 ? 1e9 : std::ceil(options.capacity * mean));
    for (int64_t r = 0; r < x.rows; ++r) {
      if (r % row >= real) continue;
      std::vector<int64_t> order(static_cast<size_t>(options.experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return logits.at(r, a) > logits.at(r, b); });
      order.resize(static_cast<size_t>(options.per_token));
      double sum = 0;
      for (int64_t e = 0; e < options.experts; ++e) {
        const bool chosen = std::find(order.begin(), order.end(), e) != order.end();
        if (chosen || !options.normalize) sum += std::exp(logits.at(r, e));
      }
      Matrix token(1, x.columns);
      std::copy_n(x.values.begin() + r * x.columns, x.columns, token.values.begin());
      for (const int64_t e : order) {
        if (left[e]-- <= 0) continue;
        const Matrix result = GatedMlp(token, &in[2 + 3 * e]);
        for (int64_t c = 0; c < x.columns; ++c) {
          y.at(r, c) += std::exp(logits.at(r, e)) / sum * result.values[c];
        }
      }
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

/// What the columns from `kept` on are multiplied by in problems with a mask.
constexpr float kMaskedShare = 0.25f;

Problem MaskProblem(Sides& sides) {
  Problem p;
  const int64_t rows = sides.Draw(), kept = sides.Draw(), width = kept + sides.Draw();
  auto mask = std::make_shared<ColumnMask>(kept, width);
  p.inputs = {sides.Normal(rows, width)};
  p.run = [mask](Context& c, Tape& t, const std::vector<Value>& in) -> Result<std::vector<Value>> {
    WEFT_RETURN_IF_ERROR(mask->SetShare(c, kMaskedShare));
    return One(MaskColumns(mask.get()).Forward(c, t, in[0], {}));
  };
  p.reference = [kept](const std::vector<Matrix>& in) {
    Matrix y = in[0];
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t c = kept; c < y.columns; ++c) y.at(r, c) *= kMaskedShare;
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

/// Norm with a mask: Yao et al. 2024, arXiv 2305.02869.
Problem MaskedNormProblem(Sides& sides, NormKind kind) {
  Problem p;
  constexpr double kEpsilon = 0.1;
  const int64_t rows = sides.Draw(), kept = sides.Draw(), width = kept + sides.Draw();
  auto mask = std::make_shared<ColumnMask>(kept, width);
  auto norm = std::make_shared<Norm>(
      p.parameters.get(),
      NormOptions{
          .name = "norm", .width = width, .epsilon = kEpsilon, .kind = kind, .mask = mask.get()});
  p.inputs = {sides.Normal(rows, width)};
  p.run = [mask, norm](Context& c, Tape& t,
                       const std::vector<Value>& in) -> Result<std::vector<Value>> {
    WEFT_RETURN_IF_ERROR(mask->SetShare(c, kMaskedShare));
    WEFT_ASSIGN_OR_RETURN(Norm::Output out, norm->Forward(c, t, {in[0], Value()}));
    return std::vector<Value>{out.normalized};
  };
  p.reference = [kept, kind](const std::vector<Matrix>& in) {
    Matrix y = in[0];
    const auto share = [kept](int64_t c) { return c < kept ? 1.0 : double{kMaskedShare}; };
    double whole = 0;
    for (int64_t c = 0; c < y.columns; ++c) whole += share(c);
    for (int64_t r = 0; r < y.rows; ++r) {
      double mean = 0, square = 0;
      for (int64_t c = 0; c < y.columns; ++c) mean += share(c) * in[0].at(r, c) / whole;
      if (kind == NormKind::kRms) mean = 0;
      for (int64_t c = 0; c < y.columns; ++c) {
        square += share(c) * std::pow(in[0].at(r, c) - mean, 2) / whole;
      }
      for (int64_t c = 0; c < y.columns; ++c) {
        y.at(r, c) = (in[0].at(r, c) - mean) / std::sqrt(square + kEpsilon) * in[1].values[c];
        if (kind == NormKind::kLayer) y.at(r, c) += in[2].values[c];
        y.at(r, c) *= share(c);
      }
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem NormProblem(Sides& sides, NormKind kind) {
  Problem p;
  constexpr double kEpsilon = 0.1;
  const int64_t rows = sides.Draw(), width = sides.Draw();
  const bool delta = sides.Coin();
  auto norm =
      std::make_shared<Norm>(p.parameters.get(), NormOptions{"norm", width, kEpsilon, kind});
  p.inputs = {sides.Normal(rows, width)};
  if (delta) p.inputs.push_back(sides.Normal(rows, width));
  p.run = [norm, delta](Context& c, Tape& t,
                        const std::vector<Value>& in) -> Result<std::vector<Value>> {
    WEFT_ASSIGN_OR_RETURN(Norm::Output out, norm->Forward(c, t, {in[0], delta ? in[1] : Value()}));
    return std::vector<Value>{out.stream, out.normalized};
  };
  p.reference = [delta, kind](const std::vector<Matrix>& in) {
    Matrix sum = in[0];
    for (size_t i = 0; delta && i < sum.values.size(); ++i) sum.values[i] += in[1].values[i];
    const Matrix& weight = in[delta ? 2 : 1];
    Matrix y = sum;
    const auto width_of = static_cast<double>(y.columns);
    for (int64_t r = 0; r < y.rows; ++r) {
      double mean = 0, square = 0;
      for (int64_t c = 0; c < y.columns; ++c) mean += sum.at(r, c) / width_of;
      if (kind == NormKind::kRms) mean = 0;
      for (int64_t c = 0; c < y.columns; ++c) {
        square += std::pow(sum.at(r, c) - mean, 2) / width_of;
      }
      for (int64_t c = 0; c < y.columns; ++c) {
        y.at(r, c) = (sum.at(r, c) - mean) / std::sqrt(square + kEpsilon) * weight.values[c];
        if (kind == NormKind::kLayer) y.at(r, c) += in[delta ? 3 : 2].values[c];
      }
    }
    return std::vector<Matrix>{sum, y};
  };
  return p;
}

Problem EmbeddingProblem(Sides& sides) {
  Problem p;
  const int64_t vocabulary = sides.Draw(), context = sides.Draw(), width = sides.Draw();
  const int64_t count = sides.Draw();
  const bool positioned = sides.Coin();
  const int64_t tokens =
      p.parameters->Register("tokens", {vocabulary, width}, ParameterRole::kTokenEmbedding);
  const int64_t positions = positioned ? p.parameters->Register("positions", {context, width},
                                                                ParameterRole::kPositionEmbedding)
                                       : -1;
  auto embedding = std::make_shared<Embedding>(p.parameters.get(), tokens, positions, DType::kF32);
  std::vector<int32_t> token_ids, position_ids;
  for (int64_t i = 0; i < count; ++i) {
    token_ids.push_back(static_cast<int32_t>(sides.Below(vocabulary)));
    position_ids.push_back(static_cast<int32_t>(sides.Below(context)));
  }
  p.run = [=](Context& c, Tape& t, const std::vector<Value>&) {
    return One(embedding->Forward(c, t, Indices(c, token_ids), Indices(c, position_ids)));
  };
  p.reference = [=](const std::vector<Matrix>& in) {
    Matrix y(count, width);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        y.at(r, c) = in[0].at(token_ids[r], c);
        if (positioned) y.at(r, c) += in[1].at(position_ids[r], c);
      }
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem DropoutProblem(Sides& sides) {
  Problem p;
  p.inputs = {sides.Normal(sides.Draw(), sides.Draw())};
  const Dropout dropout("site", 0.4);
  // Which elements it keeps does not depend on them.
  auto mask = std::make_shared<Matrix>(Map(p.inputs[0], [](double) { return 1; }));
  p.prepare = [=](Context& c) -> Status {
    ParameterGradients none({});
    Tape tape(&none);
    WEFT_ASSIGN_OR_RETURN(
        Value kept,
        dropout.Forward(c, tape, tape.NewValue(NewTensor(c, *mask), true), {.first_row = 4}));
    int64_t dropped = 0;
    for (size_t i = 0; i < mask->values.size(); ++i) {
      mask->values[i] = kept.tensor.As<float>()[i];
      dropped += mask->values[i] == 0 ? 1 : 0;
      EXPECT_TRUE(mask->values[i] == 0 || std::abs(mask->values[i] - 1 / 0.6) < 1e-6);
    }
    if (mask->values.size() > 30) {
      EXPECT_GT(dropped, 0);
    }
    return OkStatus();
  };
  p.run = [dropout](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(dropout.Forward(c, t, in[0], {.first_row = 4}));
  };
  p.reference = [mask](const std::vector<Matrix>& in) {
    Matrix y = in[0];
    for (size_t i = 0; i < y.values.size(); ++i) y.values[i] *= mask->values[i];
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem AffineProblem(Sides& sides) {
  Problem p;
  const int64_t rows = sides.Draw(), width = sides.Draw();
  const bool scales = sides.Coin(), shifts = !scales || sides.Coin();
  const auto add = [&](const char* name) {
    return p.parameters->Register(name, {sides.Coin() ? width : 1}, ParameterRole::kMlpScale);
  };
  const int64_t scale = scales ? add("scale") : -1;
  const int64_t shift = shifts ? add("shift") : -1;
  auto affine = std::make_shared<Affine>(p.parameters.get(), scale, shift);
  p.inputs = {sides.Normal(rows, width)};
  p.run = [affine](Context& c, Tape& t, const std::vector<Value>& in) {
    return One(affine->Forward(c, t, in[0], {}));
  };
  p.reference = [scales, shifts](const std::vector<Matrix>& in) {
    Matrix y = in[0];
    const auto number = [](const Matrix& vector, int64_t column) {
      return vector.values[vector.values.size() == 1 ? 0 : column];
    };
    for (int64_t r = 0; r < y.rows; ++r) {
      for (int64_t c = 0; c < y.columns; ++c) {
        if (scales) y.at(r, c) *= number(in[1], c);
        if (shifts) y.at(r, c) += number(in[scales ? 2 : 1], c);
      }
    }
    return std::vector<Matrix>{y};
  };
  return p;
}

Problem HeadProblem(Sides& sides) {
  Problem p;
  const int64_t vocabulary = 1 + sides.Draw(), width = sides.Draw(), rows = sides.Draw();
  const bool biased = sides.Coin();
  constexpr int64_t kPadded = 64;
  const int64_t weight = p.parameters->Register(
      "weight", {vocabulary, width}, ParameterRole::kClassifier, {.padded_rows = kPadded});
  const int64_t bias =
      biased ? p.parameters->Register("bias", {vocabulary}, ParameterRole::kClassifier,
                                      {.bias = true, .padded_rows = kPadded})
             : -1;
  auto packed = std::make_shared<PackedParameter>(p.parameters.get(), weight, DType::kF32);
  auto head = std::make_shared<ClassifierHead>(p.parameters.get(), packed.get(), vocabulary, bias);
  std::vector<int32_t> targets;
  for (int64_t r = 0; r < rows; ++r) {
    targets.push_back(r % 4 == 3 ? kernels::kIgnoreTarget
                                 : static_cast<int32_t>(sides.Below(vocabulary)));
  }
  p.inputs = {sides.Normal(rows, width)};
  p.loss_scale = 0.37;
  p.prepare = [packed](Context& c) { return packed->Pack(c, Repack::kAll); };
  p.run = [=, scale = static_cast<float>(p.loss_scale)](
              Context& c, Tape& t, const std::vector<Value>& in) -> Result<std::vector<Value>> {
    BatchLoss loss;
    WEFT_RETURN_IF_ERROR(head->Loss(c, t, in[0], {Indices(c, targets), {}, {}}, scale, &loss));
    Matrix sum(1, 1);
    sum.values[0] = loss.sum;
    return std::vector<Value>{{NewTensor(c, sum), Value::kNoNode}};
  };
  p.reference = [=](const std::vector<Matrix>& in) {
    const Matrix logits = Product(in[0], in[1], biased ? &in[2] : nullptr);
    Matrix loss(1, 1);
    for (int64_t r = 0; r < rows; ++r) {
      if (targets[r] == kernels::kIgnoreTarget) continue;
      double sum = 0;
      for (int64_t c = 0; c < vocabulary; ++c) sum += std::exp(logits.at(r, c));
      loss.values[0] += std::log(sum) - logits.at(r, targets[r]);
    }
    return std::vector<Matrix>{loss};
  };
  return p;
}

/// A linear layer with tanh, run again in the backward pass.
Problem RecomputeProblem(Sides& sides) {
  Problem p = LinearProblem(sides);
  p.run = [linear = p.run](Context& c, Tape& t, const std::vector<Value>& in) {
    return Recompute(
        c, t,
        [linear](Context& ctx, Tape& tape,
                 const std::vector<Value>& x) -> Result<std::vector<Value>> {
          WEFT_ASSIGN_OR_RETURN(std::vector<Value> y, linear(ctx, tape, x));
          return One(Tanh(ctx, tape, y[0]));
        },
        in);
  };
  p.reference = [linear = p.reference](const std::vector<Matrix>& in) {
    return std::vector<Matrix>{Map(linear(in)[0], [](double x) { return std::tanh(x); })};
  };
  return p;
}

}  // namespace

std::vector<Operation> Operations() {
  const auto gelu = [](kernels::GeluForm form) {
    return [form](Sides& sides) {
      return ElementProblem(
          sides, [form](Context& c, Tape& t, const Value& x) { return Gelu(c, t, x, form); },
          [form](double x) { return GeluOf(x, form); });
    };
  };
  const auto attention = [](const AttentionKind& kind) {
    return [kind](Sides& sides) { return AttentionProblem(sides, kind); };
  };
  const auto mlp = [](MlpActivation activation) {
    return [activation](Sides& sides) { return MlpProblem(sides, activation); };
  };
  return {
      {"add backward", "add", AddProblem},
      {"scale backward", "scale",
       [](Sides& sides) {
         return ElementProblem(
             sides, [](Context& c, Tape& t, const Value& x) { return Scale(c, t, x, -0.75f); },
             [](double x) { return -0.75 * x; });
       }},
      {"tanh backward", "tanh",
       [](Sides& sides) {
         return ElementProblem(
             sides, [](Context& c, Tape& t, const Value& x) { return Tanh(c, t, x); },
             [](double x) { return std::tanh(x); });
       }},
      {"relu backward", "relu",
       [](Sides& sides) {
         return ElementProblem(
             sides, [](Context& c, Tape& t, const Value& x) { return Relu(c, t, x); },
             [](double x) { return std::max(x, 0.0); });
       }},
      {"gelu backward", "gelu", gelu(kernels::GeluForm::kTanh)},
      {"gelu backward", "gelu by erf", gelu(kernels::GeluForm::kErf)},
      {"linear backward", "linear", LinearProblem},
      {"mlp backward", "mlp", mlp(MlpActivation::kGelu)},
      {"mlp backward", "mlp by erf", mlp(MlpActivation::kErfGelu)},
      {"mlp backward", "mlp by squared relu", mlp(MlpActivation::kSquaredRelu)},
      {"mlp backward", "mlp by relu", mlp(MlpActivation::kRelu)},
      {"mlp backward", "mlp by silu", mlp(MlpActivation::kSilu)},
      {"mlp backward", "gated mlp", mlp(MlpActivation::kSwiGlu)},
      {"experts backward", "experts",
       [](Sides& sides) { return MixtureProblem(sides, {.name = "moe"}); }},
      {"experts backward", "experts that are full",
       [](Sides& sides) { return MixtureProblem(sides, {.name = "moe", .capacity = 1}); }},
      {"experts backward", "experts weighed by their probabilities",
       [](Sides& sides) { return MixtureProblem(sides, {.name = "moe", .normalize = false}); }},
      {"experts backward", "full experts of padded rows",
       [](Sides& sides) { return MixtureProblem(sides, {.name = "moe", .capacity = 1}, true); }},
      {"norm backward", "layer norm",
       [](Sides& sides) { return NormProblem(sides, NormKind::kLayer); }},
      {"norm backward", "rms norm",
       [](Sides& sides) { return NormProblem(sides, NormKind::kRms); }},
      {"norm backward", "layer norm with a mask",
       [](Sides& sides) { return MaskedNormProblem(sides, NormKind::kLayer); }},
      {"norm backward", "rms norm with a mask",
       [](Sides& sides) { return MaskedNormProblem(sides, NormKind::kRms); }},
      {"mask columns backward", "mask columns", MaskProblem},
      {"embedding backward", "embedding", EmbeddingProblem},
      {"attention backward", "causal attention", attention({})},
      {"attention backward", "attention to all", attention({.causal = false})},
      {"attention backward", "attention within a window, by turned positions",
       attention({.rotary = true, .window = 3})},
      {"attention backward", "attention with dropout", attention({.dropout = 0.3})},
      {"dropout backward", "dropout", DropoutProblem},
      {"affine backward", "affine", AffineProblem},
      {"gather rows backward", "gather rows", GatherProblem},
      {"scatter rows backward", "scatter rows", ScatterProblem},
      {"merge rows backward", "merge rows", MergeProblem},
      {"repeat rows backward", "repeat rows", RepeatProblem},
      {"head backward", "head", HeadProblem},
      {"recompute", "recompute", RecomputeProblem},
  };
}

}  // namespace weft::engine
