#include "worker/engine/nn/linear.h"

#include <iterator>
#include <numeric>
#include <utility>

#include "worker/engine/nn/dense_products.h"

namespace weft::engine {
namespace {

std::vector<ParameterList::StackedPart> Weights(const LinearOptions& options) {
  std::vector<ParameterList::StackedPart> parts = options.outputs;
  for (ParameterList::StackedPart& part : parts) {
    part.name += ".weight";
    if (options.inputs.whole()) continue;
    part.shard = part.shard.whole() ? options.inputs : part.shard.Across(options.inputs);
  }
  return parts;
}

std::vector<ParameterList::StackedPart> Biases(std::vector<ParameterList::StackedPart> parts) {
  for (ParameterList::StackedPart& part : parts) {
    part.name += ".bias";
    part.bias = true;
  }
  return parts;
}

std::vector<int64_t> RowsOf(const LinearOptions& options) {
  std::vector<int64_t> rows;
  for (const ParameterList::StackedPart& part : options.outputs) rows.push_back(part.rows);
  return rows;
}

void CountProduct(Context& context, int64_t rows, int64_t in, int64_t out) {
  CountWork(context.profiler,
            2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out));
}

LinearLayer LayerOf(ParameterSet* parameters, const LinearOptions& options, int64_t weight,
                    int64_t bias, const ProductOptions& products) {
  return {.parameters = parameters,
          .weight = weight,
          .outputs = std::ssize(options.outputs),
          .bias = bias,
          .shares_inputs = !options.inputs.whole(),
          .shares_outputs = !options.outputs.front().shard.whole(),
          .adds_bias = options.inputs.whole() || options.inputs.ranges.front().begin == 0,
          .group = options.group,
          .block = products.block,
          .compute = products.compute};
}

std::unique_ptr<WeightProducts> NewProducts(const ProductOptions& products,
                                            const LinearLayer& layer) {
  if (products.factory == nullptr) return std::make_unique<DenseProducts>(layer);
  return products.factory->Make(layer);
}

}  // namespace

Linear::Linear(ParameterSet* parameters, const LinearOptions& options,
               const ProductOptions& products)
    : parameters_(parameters),
      rows_(RowsOf(options)),
      weight_(parameters->RegisterStack(Weights(options), {options.in_features})),
      bias_(options.bias ? parameters->RegisterStack(Biases(options.outputs), {}) : -1),
      compute_(products.compute),
      in_features_(options.in_features),
      out_features_(std::accumulate(rows_.begin(), rows_.end(), int64_t{0})),
      products_(NewProducts(products, LayerOf(parameters, options, weight_, bias_, products))) {
  if (bias_ >= 0 && !options.inputs.whole()) parameters->SetSeesAllRows(bias_);
}

Result<Tensor> Linear::Apply(Context& context, const Tape& tape, const Tensor& x,
                             GeluValue* active) const {
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, tape.component(), compute_,
                                              {x.shape().Rows(), out_features_}));
  if (active != nullptr) {
    WEFT_ASSIGN_OR_RETURN(active->value,
                          Tensor::New(context, Component::kWorkspace, y.dtype(), y.shape()));
  }
  WEFT_RETURN_IF_ERROR(ApplyTo(context, tape, x, y, active == nullptr ? GeluValue() : *active));
  return y;
}

Status Linear::ApplyTo(Context& context, const Tape& tape, const Tensor& x, const Tensor& y,
                       const GeluValue& active) const {
  if (x.shape().Rows() == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(products_->Forward(context, x, y, active, tape.differentiable()));
  CountProduct(context, x.shape().Rows(), in_features_, out_features_);
  return OkStatus();
}

Result<OutputGradient> Linear::Prepare(Context& context, const Tape& tape, Tensor dy,
                                       bool for_input, bool for_weight) const {
  for_weight = for_weight && TrainsWeight(tape);
  const bool has_rows = dy.shape().Rows() > 0;
  if (!has_rows || (!for_input && !for_weight)) return OutputGradient{std::move(dy)};
  return products_->Prepare(context, std::move(dy), {for_input, for_weight, tape.first_row()});
}

Result<Tensor> Linear::InputGradient(Context& context, const OutputGradient& dy,
                                     const Tensor& before, const GeluValue& active) const {
  WEFT_ASSIGN_OR_RETURN(Tensor dx, Tensor::New(context, Component::kWorkspace, compute_,
                                               {dy.dy.shape().Rows(), in_features_}));
  WEFT_RETURN_IF_ERROR(InputGradientTo(context, dy, dx, before, active));
  return dx;
}

Status Linear::InputGradientTo(Context& context, const OutputGradient& dy, const Tensor& dx,
                               const Tensor& before, const GeluValue& active) const {
  ProfileScope scope(context.profiler, "linear backward");
  WEFT_RETURN_IF_ERROR(products_->InputGradient(context, dy, dx, before, active));
  CountProduct(context, dy.dy.shape().Rows(), in_features_, out_features_);
  return OkStatus();
}

// Neighbours that are trained alike are one product.
Result<std::vector<WeightGradientTarget>> Linear::TrainedTargets(
    ParameterGradients& gradients) const {
  const auto trains_weight = [&](int64_t i) { return gradients.trainable(weight_ + i); };
  const auto trains_bias = [&](int64_t i) { return bias_ >= 0 && gradients.trainable(bias_ + i); };
  std::vector<WeightGradientTarget> targets;
  int64_t column = 0;
  for (int64_t first = 0; first < outputs();) {
    const bool weight = trains_weight(first);
    const bool bias = trains_bias(first);
    WeightGradientTarget target{.column = column};
    int64_t end = first;
    for (; end < outputs() && trains_weight(end) == weight && trains_bias(end) == bias; ++end) {
      target.columns += rows_[static_cast<size_t>(end)];
      for (const int64_t index : {weight ? weight_ + end : -1, bias ? bias_ + end : -1}) {
        if (index < 0) continue;
        WEFT_ASSIGN_OR_RETURN(const auto written, gradients.Write(index));
        target.accumulate = written.accumulate;
      }
    }
    if (weight) target.dweight = parameters_->stacked_gradient(weight_ + first, end - first);
    if (bias) target.dbias = parameters_->stacked_gradient(bias_ + first, end - first);
    column += target.columns;
    first = end;
    if (weight || bias) targets.push_back(target);
  }
  return targets;
}

Status Linear::AddWeightGradient(Context& context, Tape& tape, const Tensor& x,
                                 const OutputGradient& dy) const {
  ProfileScope scope(context.profiler, "linear: weight gradient");
  if (x.shape().Rows() == 0) return AddNoGradient(context, tape);
  ParameterGradients& gradients = tape.parameters();
  WEFT_ASSIGN_OR_RETURN(const std::vector<WeightGradientTarget> targets, TrainedTargets(gradients));
  WEFT_RETURN_IF_ERROR(products_->WeightGradient(context, x, dy, targets));
  for (const WeightGradientTarget& target : targets) {
    if (target.dweight) CountProduct(context, x.shape().Rows(), in_features_, target.columns);
  }
  for (int64_t i = 0; i < outputs(); ++i) {
    WEFT_RETURN_IF_ERROR(gradients.Done(weight_ + i));
    if (bias_ >= 0) WEFT_RETURN_IF_ERROR(gradients.Done(bias_ + i));
  }
  return OkStatus();
}

Status Linear::AddNoGradient(Context& context, Tape& tape) const {
  for (int64_t i = 0; i < outputs(); ++i) {
    for (const int64_t index : {weight_ + i, bias_ < 0 ? -1 : bias_ + i}) {
      if (index < 0) continue;
      WEFT_RETURN_IF_ERROR(tape.parameters().Add(context, index).status());
      WEFT_RETURN_IF_ERROR(tape.parameters().Done(index));
    }
  }
  return OkStatus();
}

void Linear::Use(Tape& tape) const {
  for (int64_t i = 0; i < outputs(); ++i) {
    tape.UseParameter(weight_ + i);
    if (bias_ >= 0) tape.UseParameter(bias_ + i);
  }
}

bool Linear::TrainsWeight(const Tape& tape) const {
  for (int64_t i = 0; i < outputs(); ++i) {
    if (tape.Trains(weight_ + i)) return true;
  }
  return false;
}

bool Linear::Trains(const Tape& tape) const {
  for (int64_t i = 0; i < outputs(); ++i) {
    if (tape.Trains(weight_ + i) || (bias_ >= 0 && tape.Trains(bias_ + i))) return true;
  }
  return false;
}

Result<Value> Linear::Forward(Context& context, Tape& tape, const Value& x) const {
  if (!tape.recording() || !Trains(tape)) return Forward(context, tape, x, SavedTensor());
  WEFT_ASSIGN_OR_RETURN(SavedTensor saved, tape.Keep(context, x.tensor));
  return Forward(context, tape, x, std::move(saved));
}

Result<Value> Linear::Forward(Context& context, Tape& tape, const Value& x, SavedTensor saved,
                              GeluValue* active) const {
  ProfileScope scope(context.profiler, "linear forward");
  WEFT_ASSIGN_OR_RETURN(Tensor result, Apply(context, tape, x.tensor, active));
  Use(tape);
  const bool trains = Trains(tape);
  Value y = tape.NewValue(std::move(result), trains || x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("linear backward",
              [this, trains, x_node = x.node, y_node = y.node,
               saved = trains ? std::move(saved) : SavedTensor()](Context& ctx, Tape& t) -> Status {
                const bool for_input = x_node != Value::kNoNode;
                WEFT_ASSIGN_OR_RETURN(const OutputGradient dy,
                                      Prepare(ctx, t, t.TakeGradient(y_node), for_input, trains));
                const auto add = [this, saved, dy = dy.ForWeight()](Context& c,
                                                                    Tape& later) -> Status {
                  WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(c));
                  return AddWeightGradient(c, later, input, dy);
                };
                if (trains && t.defers()) {
                  t.Defer("linear backward", add);
                } else if (trains && t.IsSummed(x_node)) {
                  t.RunBeside("linear backward", add);
                } else if (trains) {
                  WEFT_RETURN_IF_ERROR(add(ctx, t));
                }
                if (!for_input) return OkStatus();
                WEFT_ASSIGN_OR_RETURN(Tensor dx, InputGradient(ctx, dy));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
