#include "worker/engine/nn/linear.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "worker/engine/nn/adapter_tensors.h"
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

Shape ShapeOf(const ParameterInfo& tensor) {
  Shape shape;
  for (const int64_t extent : tensor.shape) shape.dims[shape.rank++] = extent;
  return shape;
}

/// A weight of this shape, as a ProductsFactory sees it.
ParameterInfo InfoOf(const ParameterList::StackedPart& weight, const Shape& shape, int64_t block) {
  ParameterInfo info;
  info.role = weight.role;
  info.block = block;
  info.expert = weight.expert;
  info.name = weight.name;
  info.shape = {shape[0], shape[1]};
  return info;
}

/// What the products have in the place of a weight.
struct Replacement {
  ParameterInfo weight = {};  ///< All of it, as `tensors` are.
  std::vector<ParameterInfo> tensors = {};
};

/// By output.
std::vector<Replacement> Replacements(const std::vector<ParameterList::StackedPart>& weights,
                                      int64_t in_features, const ProductOptions& products) {
  std::vector<Replacement> replaced(weights.size());
  for (size_t i = 0; products.factory != nullptr && i < weights.size(); ++i) {
    const Shape whole = weights[i].shard.LogicalShape({weights[i].rows, in_features});
    replaced[i].weight = InfoOf(weights[i], whole, products.block.index);
    replaced[i].tensors = products.factory->ReplacementsOf(replaced[i].weight);
  }
  return replaced;
}

/// The rows that are here of each of the matrices `parts`, which lie one under the other; without
/// those that are elsewhere.
std::vector<int64_t> PartsHere(const std::vector<int64_t>& parts, const Shard& shard) {
  if (shard.whole() || shard.axis != 0) return parts;
  std::vector<int64_t> here;
  int64_t begin = 0;
  for (const int64_t part : parts) {
    int64_t rows = 0;
    for (const Shard::Range& range : shard.ranges) {
      const int64_t first = std::max(begin, range.begin), end = std::min(begin + part, range.end);
      rows += std::max<int64_t>(end - first, 0);
    }
    if (rows > 0) here.push_back(rows);
    begin += part;
  }
  return here;
}

/// Registers the part of the tensors that goes with the part `of_weight` of the weight.
void RegisterTensors(ParameterSet* parameters, const Replacement& replaced, const Shard& of_weight,
                     const ProductsFactory& factory) {
  const ParameterInfo& weight = replaced.weight;
  for (const ParameterInfo& tensor : replaced.tensors) {
    Shard own;
    if (!of_weight.whole()) own = factory.ShardOfReplacement(weight, tensor, of_weight);
    const int64_t index =
        parameters->Register(tensor.name, own.PartShape(ShapeOf(tensor)), tensor.role,
                             {.bias = tensor.bias,
                              .shard = own,
                              .in_place_of = weight.name,
                              .weight_shape = {weight.shape[0], weight.shape[1]},
                              .parts = PartsHere(tensor.parts, own),
                              .read_directly = tensor.read_directly});
    if (!of_weight.whole() && own.whole()) parameters->SetPartialGradient(index);
  }
}

/// Registers the weights, one under the other unless one of them is replaced.
std::vector<OutputWeight> RegisterWeights(ParameterSet* parameters, const LinearOptions& options,
                                          const ProductOptions& products) {
  const std::vector<ParameterList::StackedPart> parts = Weights(options);
  const auto replaced = Replacements(parts, options.in_features, products);
  const bool whole = std::all_of(replaced.begin(), replaced.end(),
                                 [](const Replacement& each) { return each.tensors.empty(); });
  int64_t stacked = whole ? parameters->RegisterStack(parts, {options.in_features}) : -1;
  std::vector<OutputWeight> weights;
  for (size_t i = 0; i < parts.size(); ++i) {
    OutputWeight weight{.rows = parts[i].rows, .tensors = std::ssize(replaced[i].tensors)};
    if (whole) {
      weight.first = stacked++;
    } else if (replaced[i].tensors.empty()) {
      weight.first = parameters->RegisterStack({parts[i]}, {options.in_features});
    } else {
      weight.first = parameters->size();
      RegisterTensors(parameters, replaced[i], parts[i].shard, *products.factory);
    }
    weights.push_back(weight);
  }
  return weights;
}

/// Registers the biases, and then what the products have besides the weights. Returns the index of
/// the first bias, or -1.
int64_t RegisterRest(ParameterSet* parameters, const LinearOptions& options,
                     const ProductOptions& products, std::vector<OutputWeight>& weights) {
  const int64_t bias =
      options.bias ? parameters->RegisterStack(Biases(options.outputs), {}) : int64_t{-1};
  for (size_t i = 0; bias >= 0 && i < weights.size(); ++i) {
    parameters->SetBiasOf(bias + static_cast<int64_t>(i), weights[i].first);
  }
  for (size_t i = 0; products.factory != nullptr && i < weights.size(); ++i) {
    if (weights[i].tensors > 0) continue;
    ParameterList::StackedPart weight = options.outputs[i];
    weight.name += ".weight";
    const Shape whole =
        options.inputs.LogicalShape(weight.shard.LogicalShape({weight.rows, options.in_features}));
    weights[i].first_adapter = parameters->size();
    weights[i].adapters =
        RegisterAdapters(parameters, *products.factory, InfoOf(weight, whole, products.block.index),
                         {.outputs = weight.shard, .inputs = options.inputs});
  }
  return bias;
}

LinearLayer LinearLayerOf(ParameterSet* parameters, const LinearOptions& options,
                          const std::vector<OutputWeight>& weights, int64_t bias,
                          const ProductOptions& products) {
  return {.parameters = parameters,
          .weight = weights.front().first,
          .outputs = std::ssize(weights),
          .weights = weights,
          .in_features = options.in_features,
          .bias = bias,
          .inputs = options.inputs,
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
      weights_(RegisterWeights(parameters, options, products)),
      bias_(RegisterRest(parameters, options, products, weights_)),
      compute_(products.compute),
      in_features_(options.in_features),
      out_features_(std::accumulate(
          weights_.begin(), weights_.end(), int64_t{0},
          [](int64_t rows, const OutputWeight& weight) { return rows + weight.rows; })),
      has_tensors_(std::any_of(weights_.begin(), weights_.end(),
                               [](const OutputWeight& weight) { return weight.has_tensors(); })),
      products_of_row_(std::accumulate(weights_.begin(), weights_.end(), int64_t{0},
                                       [this](int64_t sum, const OutputWeight& weight) {
                                         return sum + ProductsOf(weight, nullptr);
                                       })),
      products_(
          NewProducts(products, LinearLayerOf(parameters, options, weights_, bias_, products))) {
  if (bias_ >= 0 && !options.inputs.whole()) parameters->SetSeesAllRows(bias_);
}

void Linear::CountProduct(Context& context, int64_t rows, int64_t products) const {
  if (context.profiler == nullptr) return;
  const auto all = static_cast<double>(in_features_ * out_features_);
  const auto here = static_cast<double>(products_->in_features(in_features_) *
                                        products_->out_features(out_features_));
  CountWork(context.profiler,
            2.0 * static_cast<double>(rows) * static_cast<double>(products) * (here / all));
}

Result<Tensor> Linear::Apply(Context& context, const Tape& tape, const Tensor& x,
                             GeluValue* active) const {
  WEFT_ASSIGN_OR_RETURN(Tensor y,
                        Tensor::New(context, tape.component(), compute_,
                                    {x.shape().Rows(), products_->out_features(out_features_)}));
  if (active != nullptr) {
    const int64_t columns = y.shape()[-1] / (kernels::IsGated(active->activation()) ? 2 : 1);
    WEFT_ASSIGN_OR_RETURN(active->value, Tensor::New(context, Component::kWorkspace, y.dtype(),
                                                     {y.shape().Rows(), columns}));
  }
  WEFT_RETURN_IF_ERROR(ApplyTo(context, tape, x, y, active == nullptr ? GeluValue() : *active));
  return y;
}

Status Linear::ApplyTo(Context& context, const Tape& tape, const Tensor& x, const Tensor& y,
                       const GeluValue& active) const {
  if (x.shape().Rows() == 0) return OkStatus();
  WEFT_RETURN_IF_ERROR(
      products_->Forward(context, x, y, active, {tape.differentiable(), tape.first_row()}));
  CountProduct(context, x.shape().Rows(), products_of_row_);
  return OkStatus();
}

Result<OutputGradient> Linear::Prepare(Context& context, const Tape& tape, Tensor dy,
                                       bool for_input, bool for_weight) const {
  for_weight = for_weight && TrainsWeight(tape);
  const bool has_rows = dy.shape().Rows() > 0;
  if (!has_rows || (!for_input && !for_weight)) return OutputGradient{std::move(dy)};
  WEFT_ASSIGN_OR_RETURN(
      OutputGradient prepared,
      products_->Prepare(context, std::move(dy), {for_input, for_weight, tape.first_row()}));
  prepared.first_row = tape.first_row();
  return prepared;
}

Result<Tensor> Linear::InputGradient(Context& context, const OutputGradient& dy,
                                     const Tensor& before, const GeluValue& active) const {
  const int64_t columns = before ? before.shape()[-1] : products_->in_features(in_features_);
  WEFT_ASSIGN_OR_RETURN(Tensor dx, Tensor::New(context, Component::kWorkspace, compute_,
                                               {dy.dy.shape().Rows(), columns}));
  WEFT_RETURN_IF_ERROR(InputGradientTo(context, dy, dx, before, active));
  return dx;
}

Status Linear::InputGradientTo(Context& context, const OutputGradient& dy, const Tensor& dx,
                               const Tensor& before, const GeluValue& active) const {
  ProfileScope scope(context.profiler, "linear backward");
  WEFT_RETURN_IF_ERROR(products_->InputGradient(context, dy, dx, before, active));
  CountProduct(context, dy.dy.shape().Rows(), products_of_row_);
  return OkStatus();
}

int64_t Linear::ProductsOf(const OutputWeight& weight, const ParameterGradients* gradients) const {
  int64_t products = 0;
  const auto add = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const Parameter& parameter = (*parameters_)[i];
      // An adapter that has no packed copy is a part of what the weight's products read.
      // Those of all parts of the rows together do as much as one does on all rows.
      const bool own =
          (parameter.is_weight() || !parameter.read_directly) && parameter.row_part == 0;
      const bool counts = gradients == nullptr || gradients->trainable(i);
      if (parameter.shape.rank >= 2 && own && counts) products += parameter.shape.Elements();
    }
  };
  add(weight.first, weight.end());
  add(weight.first_adapter, weight.first_adapter + weight.adapters);
  return products;
}

template <class Fn>
Status Linear::ForEachParameter(Fn&& fn) const {
  for (int64_t i = 0; i < outputs(); ++i) {
    const OutputWeight& weight = weights_[i];
    for (int64_t k = weight.first; k < weight.end(); ++k) WEFT_RETURN_IF_ERROR(fn(k));
    for (int64_t k = 0; k < weight.adapters; ++k) {
      WEFT_RETURN_IF_ERROR(fn(weight.first_adapter + k));
    }
    if (bias_ >= 0) WEFT_RETURN_IF_ERROR(fn(bias_ + i));
  }
  return OkStatus();
}

// Neighbours that are trained alike are one product, unless tensors are in the place of a weight or
// besides it.
Result<std::vector<WeightGradientTarget>> Linear::TrainedTargets(
    ParameterGradients& gradients) const {
  const auto trains_weight = [&](int64_t i) {
    return weights_[i].tensors == 0 && gradients.trainable(weights_[i].first);
  };
  const auto trains_bias = [&](int64_t i) { return bias_ >= 0 && gradients.trainable(bias_ + i); };
  std::vector<WeightGradientTarget> targets;
  int64_t column = 0;
  for (int64_t first = 0; first < outputs();) {
    const bool weight = trains_weight(first);
    const bool bias = trains_bias(first);
    WeightGradientTarget target{.column = column};
    const auto write = [&](int64_t index) -> Status {
      WEFT_ASSIGN_OR_RETURN(const auto written, gradients.Write(index));
      target.accumulate = written.accumulate;
      return OkStatus();
    };
    int64_t end = first;
    for (; end < outputs() && trains_weight(end) == weight && trains_bias(end) == bias; ++end) {
      if (end > first && has_tensors_) break;
      target.columns += weights_[end].rows;
      if (weight) WEFT_RETURN_IF_ERROR(write(weights_[end].first));
      if (bias) WEFT_RETURN_IF_ERROR(write(bias_ + end));
    }
    if (weight) {
      target.dweight = parameters_->stacked_gradient(weights_[first].first, end - first);
    }
    if (bias) target.dbias = parameters_->stacked_gradient(bias_ + first, end - first);
    for (int64_t i = 0; i < weights_[first].tensor_count(); ++i) {
      const int64_t index = weights_[first].first_tensor() + i;
      const bool trains = gradients.trainable(index);
      if (trains) WEFT_RETURN_IF_ERROR(write(index));
      target.dtensors.push_back(trains ? parameters_->gradient(index) : TensorView());
    }
    column += target.columns;
    first = end;
    if (bias || target.trains_weight()) targets.push_back(target);
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
  int64_t products = 0;
  for (const OutputWeight& weight : weights_) products += ProductsOf(weight, &gradients);
  CountProduct(context, x.shape().Rows(), products);
  return ForEachParameter([&](int64_t index) { return gradients.Done(index); });
}

Status Linear::AddNoGradient(Context& context, Tape& tape) const {
  return ForEachParameter([&](int64_t index) -> Status {
    WEFT_RETURN_IF_ERROR(tape.parameters().Add(context, index).status());
    return tape.parameters().Done(index);
  });
}

void Linear::Use(Tape& tape) const {
  const Status used = ForEachParameter([&](int64_t index) {
    tape.UseParameter(index);
    return OkStatus();
  });
  WEFT_CHECK(used.ok(), "a use has no error");
}

bool Linear::TrainsWeight(const Tape& tape) const {
  for (const OutputWeight& weight : weights_) {
    for (int64_t i = weight.first; i < weight.end(); ++i) {
      if (tape.Trains(i)) return true;
    }
    for (int64_t i = 0; i < weight.adapters; ++i) {
      if (tape.Trains(weight.first_adapter + i)) return true;
    }
  }
  return false;
}

bool Linear::Trains(const Tape& tape) const {
  for (int64_t i = 0; i < outputs(); ++i) {
    if (bias_ >= 0 && tape.Trains(bias_ + i)) return true;
  }
  return TrainsWeight(tape);
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
                  t.DeferForOverlap("linear backward", add);
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
