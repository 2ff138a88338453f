#include "worker/engine/techniques/peft/scaled_products.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// A vector as a matrix of one row.
TensorView AsRow(TensorView vector) {
  const int64_t count = vector.shape.Elements();
  vector.shape = {1, count};
  vector.row_stride = count;
  return vector;
}

/// Adds a gradient, or begins with it.
Status AddOrSet(Context& context, const TensorView& gradient, const TensorView& to,
                bool accumulate) {
  return kernels::AddScaled(context.stream,
                            {.x = gradient, .y = to, .keep = accumulate ? 1.0f : 0.0f});
}

/// What comes up of an offloaded value.
Result<Tensor> BroughtUp(Context& context, const TensorView& value) {
  WEFT_ASSIGN_OR_RETURN(Tensor copy,
                        Tensor::New(context, Component::kWorkspace, value.dtype, value.shape));
  TransferQueue& up = context.host->up();
  WEFT_RETURN_IF_ERROR(up.Follow(context.stream));
  up.Copy(copy.view(), value);
  WEFT_RETURN_IF_ERROR(up.Precede(context.stream));
  return copy;
}

Result<Tensor> NewZeros(Context& context, int64_t count) {
  WEFT_ASSIGN_OR_RETURN(Tensor zeros,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {count}));
  WEFT_RETURN_IF_ERROR(Clear(context.stream, zeros.view()));
  return zeros;
}

}  // namespace

/// Measures the rows of W + scale B A, once after each update, where W is in memory.
class ScaledResults::RowLengths : public DerivedCopies {
 public:
  RowLengths(const ScaledResults* products, Collective* share_inputs)
      : products_(products), share_inputs_(share_inputs) {}

  /// [out] f32, of the rows of outputs with an adapter.
  const Tensor& inverse() const { return inverse_; }

  /// The rows have changed: measures them now or, where values are brought, once they have come.
  Status Renew(Context& context) {
    measured_ = false;
    WEFT_RETURN_IF_ERROR(BringFactors(context));
    const ParameterSet& parameters = *products_->parameters_;
    const bool brought = parameters.values_sharded() ||
                         parameters[products_->outputs_.front().weight].quantized_words > 0;
    if (!brought) return Make(context);
    ParameterPrefetcher* const prefetcher = parameters.prefetcher();
    return prefetcher != nullptr ? prefetcher->Forget() : OkStatus();
  }

  bool trained() const override { return true; }
  Status Reserve(Context& context) override {
    if (inverse_) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(
        inverse_, Tensor::New(context, Component::kParameters, DType::kF32, {products_->out_}));
    return OkStatus();
  }
  Status Make(Context& context) override {
    WEFT_RETURN_IF_ERROR(Reserve(context));
    if (measured_) return OkStatus();
    for (const Output& output : products_->outputs_) {
      if (output.vector >= 0) WEFT_RETURN_IF_ERROR(Measure(context, output));
    }
    measured_ = true;
    factors_.clear();
    return OkStatus();
  }
  bool read_values() const override { return false; }
  // They are small, and stay.
  void Drop() override {}

 private:
  /// Those of an offloaded optimizer come when they have changed: where rows are measured later, a
  /// late update may change them again.
  Status BringFactors(Context& context);
  /// A or B.
  TensorView FactorOf(int64_t index) const {
    const auto brought = factors_.find(index);
    return brought != factors_.end() ? brought->second.view()
                                     : products_->parameters_->padded_value(index);
  }
  Status Measure(Context& context, const Output& output) const;
  /// Makes them those of whole rows, whose other columns other ranks have.
  Status AddColumnsOfOthers(Context& context, const TensorView& inverse) const;

  const ScaledResults* products_;
  Collective* share_inputs_;
  Tensor inverse_;
  std::map<int64_t, Tensor> factors_;  ///< See BringFactors, until they are measured; by index.
  bool measured_ = false;
};

ScaledResults::ScaledResults(const LinearLayer& layer, const PeftSpec& spec,
                             std::unique_ptr<WeightProducts> inner, Collective* share_inputs)
    : parameters_(layer.parameters),
      normalizes_(spec.use_dora),
      inner_(std::move(inner)),
      in_(layer.in_features),
      bias_(spec.use_dora && layer.adds_bias ? layer.bias : -1) {
  for (const OutputWeight& weight : layer.weights) {
    Output output{.column = out_, .columns = weight.rows, .weight = weight.first};
    if (weight.adapters > 0) {
      output.vector = weight.first_adapter + weight.adapters - 1;
      const std::string& name = (*layer.parameters)[weight.first_adapter].adapter_of;
      if (normalizes_) output.scale = static_cast<float>(LoraScale(spec, name));
    }
    out_ += weight.rows;
    outputs_.push_back(output);
  }
  if (!normalizes_) return;
  lengths_ = std::make_shared<RowLengths>(this, share_inputs);
  layer.parameters->AddCopies(outputs_.front().weight, lengths_);
}

int64_t ScaledResults::FactorNumbers() const {
  int64_t numbers = 0;
  for (const Output& output : outputs_) {
    if (!normalizes_ || output.vector < 0) continue;
    for (const int64_t factor : {output.vector - 2, output.vector - 1}) {
      numbers += (*parameters_)[factor].StoredElements();
    }
  }
  return numbers;
}

TensorView ScaledResults::PartOf(const Tensor& vector, const Output& output) {
  return vector.Elements(output.column, output.columns).view();
}

const Tensor& ScaledResults::inverse_lengths() const {
  return lengths_->inverse();
}

Status ScaledResults::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(inner_->Pack(context, what));
  return normalizes_ ? lengths_->Renew(context) : OkStatus();
}

Status ScaledResults::RowLengths::BringFactors(Context& context) {
  const ParameterSet& parameters = *products_->parameters_;
  factors_.clear();
  for (const Output& output : products_->outputs_) {
    for (int64_t index = output.vector - 2; output.vector >= 0 && index < output.vector; ++index) {
      if (!parameters.on_host(index) || parameters.values_sharded()) continue;
      WEFT_ASSIGN_OR_RETURN(factors_[index], BroughtUp(context, parameters.padded_value(index)));
    }
  }
  return OkStatus();
}

// Some rows at a time: a copy of a large weight would not be small.
Status ScaledResults::RowLengths::Measure(Context& context, const Output& output) const {
  constexpr int64_t kNumbersAtOnce = 1 << 20;
  const Stream& stream = context.stream;
  const ParameterSet& parameters = *products_->parameters_;
  const int64_t in = products_->in_;
  const int64_t most = std::clamp<int64_t>(kNumbersAtOnce / in, 1, output.columns);
  const TensorView weight = parameters.padded_value(output.weight);
  const TensorView a = FactorOf(output.vector - 2), b = FactorOf(output.vector - 1);
  WEFT_ASSIGN_OR_RETURN(const auto operand, kernels::NewPackedWeight(stream.device, a.shape[0],
                                                                     a.shape[1], DType::kF32));
  WEFT_RETURN_IF_ERROR(operand->Pack(stream, a));
  const auto matrix = [&](int64_t columns) {
    return Tensor::New(context, Component::kWorkspace, DType::kF32, {most, columns});
  };
  WEFT_ASSIGN_OR_RETURN(const Tensor factors, matrix(b.shape[1]));
  WEFT_ASSIGN_OR_RETURN(const Tensor sums, matrix(in));
  WEFT_ASSIGN_OR_RETURN(const Tensor norms, matrix(in));
  WEFT_ASSIGN_OR_RETURN(const Tensor ones,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {in}));
  WEFT_RETURN_IF_ERROR(kernels::Fill(stream, {ones, 1}));
  const TensorView inverse = PartOf(inverse_, output);
  for (int64_t first = 0; first < output.columns; first += most) {
    const int64_t rows = std::min(most, output.columns - first);
    const Tensor factor = factors.Rows(0, rows), sum = sums.Rows(0, rows);
    WEFT_RETURN_IF_ERROR(kernels::AddScaled(
        stream, {.x = RowsOf(b, first, rows), .y = factor, .factor = output.scale, .keep = 0}));
    WEFT_RETURN_IF_ERROR(
        kernels::AddScaled(stream, {.x = RowsOf(weight, first, rows), .y = sum, .keep = 0}));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        stream, {.dy = factor, .weight = operand.get(), .dx = sum, .accumulate = true}));
    // The RMS norm gives 1 / RMS of each row: sqrt(in) times its inverse length.
    constexpr float kLeast = 1e-30f;  // of a row of zeros, as those behind the classes are
    WEFT_RETURN_IF_ERROR(
        kernels::RmsNormForward(stream, {.residual = sum,
                                         .delta = {},
                                         .residual_out = {},
                                         .weight = ones,
                                         .epsilon = kLeast,
                                         .y = norms.Rows(0, rows),
                                         .rrms = inverse_.Elements(output.column + first, rows)}));
  }
  WEFT_RETURN_IF_ERROR(kernels::Scale(stream, {inverse, 1 / std::sqrt(static_cast<float>(in))}));
  return share_inputs_ == nullptr ? OkStatus() : AddColumnsOfOthers(context, inverse);
}

Status ScaledResults::RowLengths::AddColumnsOfOthers(Context& context,
                                                     const TensorView& inverse) const {
  std::vector<float> lengths(static_cast<size_t>(inverse.shape.Elements()));
  WEFT_RETURN_IF_ERROR(Download(context.stream, inverse, lengths.data()));
  std::vector<double> squares;
  for (const double each : lengths) squares.push_back(1 / (each * each));
  WEFT_RETURN_IF_ERROR(SumScalars(*share_inputs_, squares));
  std::transform(squares.begin(), squares.end(), lengths.begin(),
                 [](double sum) { return static_cast<float>(1 / std::sqrt(sum)); });
  return Upload(context.stream, lengths.data(), inverse);
}

Result<Tensor> ScaledResults::Gains(Context& context) const {
  WEFT_ASSIGN_OR_RETURN(Tensor gains,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {out_}));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {gains, 1}));
  for (const Output& output : outputs_) {
    if (output.vector < 0) continue;
    const TensorView vector = parameters_->padded_operand(output.vector);
    const TensorView own = PartOf(gains, output);
    WEFT_RETURN_IF_ERROR(kernels::AffineForward(
        context.stream, {.x = AsRow(vector),
                         .scale = normalizes_ ? PartOf(inverse_lengths(), output) : TensorView(),
                         .shift = {},
                         .y = AsRow(own)}));
  }
  return gains;
}

// That of a classifier, which is padded, is alone.
TensorView ScaledResults::Bias() const {
  if (bias_ < 0) return {};
  const int64_t outputs = std::ssize(outputs_);
  return outputs == 1 ? parameters_->padded_operand(bias_)
                      : parameters_->stacked_operand(bias_, outputs);
}

Status ScaledResults::Forward(Context& context, const Tensor& x, const Tensor& y,
                              const GeluValue& active, const ForwardUse& use) const {
  WEFT_RETURN_IF_ERROR(inner_->Forward(context, x, y, {}, use));
  WEFT_ASSIGN_OR_RETURN(const Tensor gains, Gains(context));
  WEFT_RETURN_IF_ERROR(
      kernels::AffineForward(context.stream, {.x = y, .scale = gains, .shift = Bias(), .y = y}));
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Result<OutputGradient> ScaledResults::Prepare(Context& context, Tensor dy,
                                              const GradientUse& use) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor gains, Gains(context));
  WEFT_ASSIGN_OR_RETURN(Tensor scaled,
                        Tensor::New(context, Component::kWorkspace, dy.dtype(), dy.shape()));
  WEFT_RETURN_IF_ERROR(
      kernels::AffineForward(context.stream, {.x = dy, .scale = gains, .shift = {}, .y = scaled}));
  WEFT_ASSIGN_OR_RETURN(OutputGradient inner, inner_->Prepare(context, std::move(scaled), use));
  inner.first_row = use.first_row;
  OutputGradient prepared{std::move(dy)};
  prepared.inner = std::make_shared<const OutputGradient>(std::move(inner));
  prepared.first_row = use.first_row;
  return prepared;
}

Status ScaledResults::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                    const Tensor& before, const GeluValue& active) const {
  return inner_->InputGradient(context, dy.Inner(), dx, before, active);
}

Status ScaledResults::VectorGradient(Context& context, const Output& output, const Tensor& dgains,
                                     const WeightGradientTarget& to) const {
  const TensorView own = PartOf(dgains, output);
  if (normalizes_) {
    WEFT_RETURN_IF_ERROR(
        kernels::AffineForward(context.stream, {.x = AsRow(own),
                                                .scale = PartOf(inverse_lengths(), output),
                                                .shift = {},
                                                .y = AsRow(own)}));
  }
  return AddOrSet(context, own, to.dtensors.back(), to.accumulate);
}

Status ScaledResults::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                     std::span<const WeightGradientTarget> targets) const {
  Tensor dgains;
  for (const WeightGradientTarget& to : targets) {
    if (to.dtensors.empty() || !to.dtensors.back()) continue;
    if (!dgains) {
      const int64_t rows = x.shape().Rows();
      WEFT_ASSIGN_OR_RETURN(const Tensor results,
                            Tensor::New(context, Component::kWorkspace, x.dtype(), {rows, out_}));
      WEFT_RETURN_IF_ERROR(inner_->Forward(context, x, results, {}, {true, dy.first_row}));
      CountWork(context.profiler, 2.0 * static_cast<double>(rows * (in_ * out_ + FactorNumbers())));
      WEFT_ASSIGN_OR_RETURN(dgains, NewZeros(context, out_));
      WEFT_ASSIGN_OR_RETURN(const Tensor gains, Gains(context));
      WEFT_RETURN_IF_ERROR(kernels::AffineBackward(
          context.stream,
          {.dy = dy.dy, .x = results, .scale = gains, .dx = {}, .dscale = dgains, .dshift = {}}));
    }
    for (const Output& output : outputs_) {
      if (output.column != to.column || output.vector < 0) continue;
      WEFT_RETURN_IF_ERROR(VectorGradient(context, output, dgains, to));
    }
  }
  for (const WeightGradientTarget& to : targets) {
    WeightGradientTarget rest = to;
    // A bias that is added after the scale has the gradient of the result.
    if (normalizes_) rest.dbias = {};
    if (!rest.dtensors.empty()) rest.dtensors.pop_back();
    if (rest.trains_weight() || rest.dbias) {
      WEFT_RETURN_IF_ERROR(inner_->WeightGradient(context, x, dy.Inner(), {&rest, 1}));
    }
    if (!normalizes_ || !to.dbias) continue;
    rest = to;
    rest.dweight = {};
    rest.dtensors.clear();
    WEFT_RETURN_IF_ERROR(inner_->WeightGradient(context, x, {dy.dy}, {&rest, 1}));
  }
  return OkStatus();
}

ScaledInputs::ScaledInputs(const LinearLayer& layer, std::unique_ptr<WeightProducts> inner)
    : parameters_(layer.parameters),
      vector_(layer.weights.front().first_adapter),
      inner_(std::move(inner)) {}

Result<Tensor> ScaledInputs::Scaled(Context& context, const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor scaled,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      context.stream, {.x = x, .scale = parameters_->operand(vector_), .shift = {}, .y = scaled}));
  return scaled;
}

Status ScaledInputs::Forward(Context& context, const Tensor& x, const Tensor& y,
                             const GeluValue& active, const ForwardUse& use) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Scaled(context, x));
  return inner_->Forward(context, scaled, y, active, use);
}

// The operands are the gradient of the scaled inputs, which is made at once: of what the inner
// products prepare for it nothing stays.
Result<OutputGradient> ScaledInputs::Prepare(Context& context, Tensor dy,
                                             const GradientUse& use) const {
  const int64_t in = parameters_->operand(vector_).shape.Elements();
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Tensor::New(context, Component::kWorkspace, dy.dtype(),
                                                         {dy.shape().Rows(), in}));
  WEFT_ASSIGN_OR_RETURN(const OutputGradient inner, inner_->Prepare(context, dy,
                                                                    {.for_input = true,
                                                                     .for_weight = use.for_weight,
                                                                     .first_row = use.first_row}));
  WEFT_RETURN_IF_ERROR(inner_->InputGradient(context, inner, scaled, {}, {}));
  OutputGradient prepared{std::move(dy)};
  prepared.inner = std::make_shared<const OutputGradient>(inner.ForWeight());
  if (use.for_input) prepared.for_input.values = scaled;
  if (use.for_weight) prepared.for_weight.values = scaled;
  return prepared;
}

Status ScaledInputs::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                   const Tensor& before, const GeluValue& active) const {
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      context.stream,
      {.x = dy.for_input.values, .scale = parameters_->operand(vector_), .shift = {}, .y = dx}));
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status ScaledInputs::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                    std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    if (!to.dtensors.empty() && to.dtensors.front()) {
      WEFT_ASSIGN_OR_RETURN(const Tensor sum, NewZeros(context, x.shape()[-1]));
      WEFT_RETURN_IF_ERROR(
          kernels::AffineBackward(context.stream, {.dy = dy.for_weight.values,
                                                   .x = x,
                                                   .scale = parameters_->operand(vector_),
                                                   .dx = {},
                                                   .dscale = sum,
                                                   .dshift = {}}));
      WEFT_RETURN_IF_ERROR(AddOrSet(context, sum.view(), to.dtensors.front(), to.accumulate));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Scaled(context, x));
    WEFT_RETURN_IF_ERROR(inner_->WeightGradient(context, scaled, dy.Inner(), {&to, 1}));
  }
  return OkStatus();
}

}  // namespace weft::engine
