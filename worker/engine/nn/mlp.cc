#include "worker/engine/nn/mlp.h"

#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/swiglu/swiglu.h"

namespace weft::engine {
namespace {

LinearOptions UpOptions(const MlpOptions& o, const TensorParallel* ranks) {
  WEFT_CHECK(o.up.size() == (o.activation == MlpActivation::kSwiGlu ? 2 : 1),
             "a layer for each input of the activation");
  LinearOptions options{{}, o.width, o.bias};
  if (ranks != nullptr) {
    options.inputs = ranks->FeatureColumns(o.width);
    options.in_features = ranks->Features(o.width);
  }
  for (const std::string& name : o.up) {
    ParameterList::StackedPart part{name, o.inner, ParameterRole::kMlpUp, {}};
    if (ranks != nullptr) {
      part.shard = ranks->Rows({o.inner});
      part.rows = part.shard.size();
    }
    options.outputs.push_back(std::move(part));
  }
  return options;
}

LinearOptions DownOptions(const MlpOptions& o, const TensorParallel* ranks) {
  LinearOptions options{{{o.down, o.width, ParameterRole::kMlpDown}}, o.inner, o.bias};
  if (ranks == nullptr) return options;
  options.outputs[0].shard = ranks->FeatureRows(o.width);
  options.outputs[0].rows = ranks->Features(o.width);
  options.inputs = ranks->Columns(o.inner);
  options.in_features = options.inputs.size();
  return options;
}

kernels::GeluForm FormOf(MlpActivation activation) {
  return activation == MlpActivation::kErfGelu ? kernels::GeluForm::kErf : kernels::GeluForm::kTanh;
}

kernels::UnitFunction UnitOf(MlpActivation activation) {
  return activation == MlpActivation::kSilu ? kernels::UnitFunction::kSilu
                                            : kernels::UnitFunction::kRelu;
}

}  // namespace

Mlp::Mlp(ParameterSet* parameters, const MlpOptions& o, const ProductOptions& products)
    : activation_(o.activation),
      tensor_(products.tensor),
      factory_(products.factory),
      up_(parameters, UpOptions(o, tensor_), products),
      down_(parameters, DownOptions(o, tensor_), products),
      inner_(up_.out_features() / static_cast<int64_t>(o.up.size())) {}

Status Mlp::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(up_.Pack(context, what));
  return down_.Pack(context, what);
}

Result<Value> Mlp::Forward(Context& context, Tape& tape, const Value& x) const {
  WEFT_ASSIGN_OR_RETURN(ShardsInput in, CopyToTensorParallelRegion(context, tape, tensor_, x));
  // A partial sum has no activation.
  std::optional<GeluValue> taken = sums_features() ? std::nullopt : TakenBy(up_);
  WEFT_ASSIGN_OR_RETURN(Value inner, up_.Forward(context, tape, in.value, std::move(in.saved),
                                                 taken ? &*taken : nullptr));
  in = {};
  WEFT_ASSIGN_OR_RETURN(inner, ReduceFromFeatureRegion(context, tape, tensor_, std::move(inner)));
  WEFT_ASSIGN_OR_RETURN(Value out,
                        Project(context, tape, inner, taken ? std::move(taken->value) : Tensor()));
  return ReduceFromTensorParallelRegion(context, tape, tensor_, std::move(out));
}

std::optional<GeluValue> Mlp::TakenBy(const Linear& layer) const {
  GeluValue taken{FormOf(activation_)};
  if (is_gelu()) return taken;
  if (gated()) taken.other = kernels::ProductActivation::kSwiGlu;
  if (activation_ == MlpActivation::kSquaredRelu && !keeps_two_of_four()) {
    taken.other = kernels::ProductActivation::kSquaredRelu;
  }
  if (!taken.other || !layer.Fuses(*taken.other)) return std::nullopt;
  return taken;
}

Status Mlp::Activate(Context& context, const Tensor& x, const Tensor& y) const {
  ProfileScope scope(context.profiler, "activation forward");
  if (is_gelu()) return kernels::GeluForward(context.stream, {x, y, FormOf(activation_)});
  if (activation_ == MlpActivation::kSquaredRelu) {
    return kernels::SquaredReluForward(context.stream, {x, y, keeps_two_of_four()});
  }
  if (!gated()) return kernels::UnitForward(context.stream, {x, y, UnitOf(activation_)});
  const int64_t inner = InnerOf(x);
  return kernels::SwiGluForward(context.stream, {x.Columns(0, inner), x.Columns(inner, inner), y});
}

// Gradient of SwiGLU's inputs from that of its result; `active`, when given, becomes the result
// again.
Result<Tensor> Mlp::DifferentiateSwiGlu(Context& context, const Tensor& dactive, const Tensor& x,
                                        const Tensor& active) const {
  ProfileScope scope(context.profiler, "activation backward");
  const int64_t inner = InnerOf(x);
  WEFT_ASSIGN_OR_RETURN(Tensor dx,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(kernels::SwiGluBackward(context.stream, {.dy = dactive,
                                                                .gate = x.Columns(0, inner),
                                                                .up = x.Columns(inner, inner),
                                                                .dgate = dx.Columns(0, inner),
                                                                .dup = dx.Columns(inner, inner),
                                                                .y = active}));
  return dx;
}

Result<Tensor> Mlp::DifferentiateBehind(Context& context, const OutputGradient& dy, const Tensor& x,
                                        const Tensor& active) const {
  if (std::optional<GeluValue> taken = TakenBy(down_)) {
    taken->value = active;
    return down_.InputGradient(context, dy, x, *taken);
  }
  WEFT_ASSIGN_OR_RETURN(Tensor dx, down_.InputGradient(context, dy));
  ProfileScope scope(context.profiler, "activation backward");
  WEFT_RETURN_IF_ERROR(
      activation_ == MlpActivation::kSquaredRelu
          ? kernels::SquaredReluBackward(context.stream, {dx, x, dx, active, keeps_two_of_four()})
          : kernels::UnitBackward(context.stream, {dx, x, dx, active, UnitOf(activation_)}));
  return dx;
}

Result<Value> Mlp::Project(Context& context, Tape& tape, const Value& x, Tensor active) const {
  ProfileScope scope(context.profiler, "linear forward");
  if (!active) {
    WEFT_ASSIGN_OR_RETURN(active, Tensor::New(context, Component::kWorkspace, x.tensor.dtype(),
                                              ActiveShape(x.tensor)));
    WEFT_RETURN_IF_ERROR(Activate(context, x.tensor, active));
  }
  WEFT_ASSIGN_OR_RETURN(Tensor result, down_.Apply(context, tape, active));
  down_.Use(tape);
  const bool trains = down_.Trains(tape);
  Value y = tape.NewValue(std::move(result), trains || x.needs_gradient());
  if (!tape.Records(y)) return y;
  const ColumnPart part =
      tensor_ == nullptr
          ? ColumnPart()
          : ColumnPart{tensor_->columns() * inner_, tensor_->column() * inner_, gated() ? 2 : 1};
  WEFT_ASSIGN_OR_RETURN(SavedTensor saved, tape.Keep(context, x.tensor, part));
  tape.Record("mlp backward",
              [this, trains, x_node = x.node, y_node = y.node, saved = std::move(saved)](
                  Context& ctx, Tape& t) -> Status {
                WEFT_ASSIGN_OR_RETURN(const OutputGradient dy,
                                      down_.Prepare(ctx, t, t.TakeGradient(y_node),
                                                    x_node != Value::kNoNode, trains));
                WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
                Tensor again;
                if (trains) {
                  WEFT_ASSIGN_OR_RETURN(again, Tensor::New(ctx, Component::kWorkspace,
                                                           input.dtype(), ActiveShape(input)));
                }
                if (x_node == Value::kNoNode) {
                  WEFT_RETURN_IF_ERROR(Activate(ctx, input, again));
                  return down_.AddWeightGradient(ctx, t, again, dy);
                }
                // While the sum of the input's gradient is on its way; a gate's needs the sum
                // first, which is of half as many columns.
                const auto add_weight_gradient = [&]() -> Status {
                  if (!trains) return OkStatus();
                  if (!t.defers()) return down_.AddWeightGradient(ctx, t, again, dy);
                  const OutputGradient waits = dy.ForWeight();
                  t.Defer("mlp backward", [this, again, waits](Context& c, Tape& later) {
                    return down_.AddWeightGradient(c, later, again, waits);
                  });
                  return OkStatus();
                };
                Tensor dx;
                if (!gated() || (!sums_features() && TakenBy(down_))) {
                  WEFT_ASSIGN_OR_RETURN(dx, DifferentiateBehind(ctx, dy, input, again));
                  WEFT_ASSIGN_OR_RETURN(
                      dx, SumOverFeatures(ctx, tensor_, std::move(dx), add_weight_gradient));
                } else {
                  WEFT_ASSIGN_OR_RETURN(Tensor dactive, down_.InputGradient(ctx, dy));
                  WEFT_ASSIGN_OR_RETURN(dactive, SumOverFeatures(ctx, tensor_, std::move(dactive)));
                  WEFT_ASSIGN_OR_RETURN(dx, DifferentiateSwiGlu(ctx, dactive, input, again));
                  WEFT_RETURN_IF_ERROR(add_weight_gradient());
                }
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
