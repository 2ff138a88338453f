#include "worker/engine/nn/linear.h"

#include <numeric>

namespace weft::engine {
namespace {

std::vector<ParameterSet::StackedPart> Weights(std::vector<ParameterSet::StackedPart> parts) {
  for (ParameterSet::StackedPart& part : parts) part.name += ".weight";
  return parts;
}

std::vector<ParameterSet::StackedPart> Biases(std::vector<ParameterSet::StackedPart> parts) {
  for (ParameterSet::StackedPart& part : parts) {
    part.name += ".bias";
    part.role = ParameterRole::kBias;
  }
  return parts;
}

std::vector<int64_t> RowsOf(const LinearOptions& options) {
  std::vector<int64_t> rows;
  for (const ParameterSet::StackedPart& part : options.outputs) rows.push_back(part.rows);
  return rows;
}

void CountProduct(Context& context, int64_t rows, int64_t in, int64_t out) {
  CountWork(context.profiler,
            2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out));
}

}  // namespace

Status PackedParameter::Pack(Context& context, Repack what) {
  bool trained = false;
  for (int64_t i = index_; i < index_ + count_; ++i) trained |= (*parameters_)[i].trainable();
  if (packed_ != nullptr && what == Repack::kTrained && !trained) return OkStatus();
  const TensorView master =
      count_ == 1 ? parameters_->padded_value(index_) : parameters_->stacked_value(index_, count_);
  if (packed_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(packed_, kernels::NewPackedWeight(context.stream.device, master.shape[0],
                                                            master.shape[1], compute_));
  }
  WEFT_RETURN_IF_ERROR(packed_->Pack(context.stream, master));
  ++version_;
  return held_.Set(context.allocator, Component::kParameters, packed_->Bytes());
}

Linear::Linear(ParameterSet* parameters, const LinearOptions& options, DType compute)
    : parameters_(parameters),
      rows_(RowsOf(options)),
      weight_(parameters,
              parameters->RegisterStack(Weights(options.outputs), {options.in_features}), compute,
              static_cast<int64_t>(options.outputs.size())),
      bias_(options.bias ? parameters->RegisterStack(Biases(options.outputs), {}) : -1),
      in_features_(options.in_features),
      out_features_(std::accumulate(rows_.begin(), rows_.end(), int64_t{0})) {}

Result<Tensor> Linear::Apply(Context& context, Component component, const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, component, weight_.compute(),
                                              {x.shape().Rows(), out_features_}));
  const TensorView bias =
      bias_ < 0 ? TensorView() : parameters_->stacked_value(bias_, weight_.count());
  WEFT_RETURN_IF_ERROR(kernels::LinearForward(context.stream, {x, weight_.packed(), bias, y}));
  CountProduct(context, x.shape().Rows(), in_features_, out_features_);
  return y;
}

Result<Tensor> Linear::InputGradient(Context& context, const Tensor& dy) const {
  ProfileScope scope(context.profiler, "linear backward");
  WEFT_ASSIGN_OR_RETURN(Tensor dx, Tensor::New(context, Component::kWorkspace, weight_.compute(),
                                               {dy.shape().Rows(), in_features_}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearBackwardInput(context.stream, {dy, weight_.packed(), dx, false}));
  CountProduct(context, dy.shape().Rows(), in_features_, out_features_);
  return dx;
}

Status Linear::AddWeightGradient(Context& context, Tape& tape, const Tensor& x,
                                 const Tensor& dy) const {
  ProfileScope scope(context.profiler, "linear: weight gradient");
  ParameterGradients& gradients = tape.parameters();
  const auto outputs = static_cast<int64_t>(rows_.size());
  const auto trains_weight = [&](int64_t i) { return gradients.trainable(weight_.index() + i); };
  const auto trains_bias = [&](int64_t i) { return bias_ >= 0 && gradients.trainable(bias_ + i); };
  // Neighbours that are trained alike are one product.
  int64_t column = 0;
  for (int64_t first = 0; first < outputs;) {
    const bool weight = trains_weight(first);
    const bool bias = trains_bias(first);
    bool accumulate = false;
    int64_t columns = 0;
    int64_t end = first;
    for (; end < outputs && trains_weight(end) == weight && trains_bias(end) == bias; ++end) {
      columns += rows_[end];
      if (weight) accumulate = gradients.Write(weight_.index() + end).accumulate;
      if (bias) accumulate = gradients.Write(bias_ + end).accumulate;
    }
    if (weight || bias) {
      kernels::LinearBackwardWeightArgs args{x, dy.Columns(column, columns), {}, {}, accumulate};
      if (weight) {
        args.dweight = parameters_->stacked_gradient(weight_.index() + first, end - first);
      }
      if (bias) args.dbias = parameters_->stacked_gradient(bias_ + first, end - first);
      WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(context.stream, args));
      if (weight) CountProduct(context, x.shape().Rows(), in_features_, columns);
    }
    column += columns;
    first = end;
  }
  for (int64_t i = 0; i < outputs; ++i) {
    WEFT_RETURN_IF_ERROR(gradients.Done(weight_.index() + i));
    if (bias_ >= 0) WEFT_RETURN_IF_ERROR(gradients.Done(bias_ + i));
  }
  return OkStatus();
}

void Linear::Use(Tape& tape) const {
  for (int64_t i = 0; i < weight_.count(); ++i) {
    tape.UseParameter(weight_.index() + i);
    if (bias_ >= 0) tape.UseParameter(bias_ + i);
  }
}

bool Linear::Trains(const Tape& tape) const {
  for (int64_t i = 0; i < weight_.count(); ++i) {
    if (tape.Trains(weight_.index() + i) || (bias_ >= 0 && tape.Trains(bias_ + i))) return true;
  }
  return false;
}

Result<Value> Linear::Forward(Context& context, Tape& tape, const Value& x) const {
  ProfileScope scope(context.profiler, "linear forward");
  WEFT_ASSIGN_OR_RETURN(Tensor result, Apply(context, tape.component(), x.tensor));
  Use(tape);
  const bool trains = Trains(tape);
  Value y = tape.NewValue(std::move(result), trains || x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("linear backward",
              [this, trains, x_node = x.node, y_node = y.node,
               saved = Tape::Save(trains ? x.tensor : Tensor())](Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                if (trains) {
                  WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
                  WEFT_RETURN_IF_ERROR(AddWeightGradient(ctx, t, input, dy));
                }
                if (x_node == Value::kNoNode) return OkStatus();
                WEFT_ASSIGN_OR_RETURN(Tensor dx, InputGradient(ctx, dy));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
