#include "worker/engine/nn/linear.h"

#include <numeric>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "worker/engine/tensor/host_tier.h"

namespace weft::engine {
namespace {

std::vector<ParameterSet::StackedPart> Weights(const LinearOptions& options) {
  std::vector<ParameterSet::StackedPart> parts = options.outputs;
  for (ParameterSet::StackedPart& part : parts) {
    part.name += ".weight";
    if (options.inputs.whole()) continue;
    part.shard = part.shard.whole() ? options.inputs : part.shard.Across(options.inputs);
  }
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

int64_t LayerOf(const LinearOptions& options, Fp8Scaling* fp8) {
  if (fp8 == nullptr) return 0;
  if (options.fp8_layer) return *options.fp8_layer;
  return fp8->AddLayer(
      {.inputs = !options.inputs.whole(), .gradients = !options.outputs.front().shard.whole()});
}

void CountProduct(Context& context, int64_t rows, int64_t in, int64_t out) {
  CountWork(context.profiler,
            2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out));
}

/// Of sharded values the device has whole ones when copies are made.
bool HasMasterOnHost(const ParameterSet& parameters, int64_t index) {
  return parameters.on_host(index) && !parameters.values_sharded();
}

}  // namespace

PackedParameter::PackedParameter(ParameterSet* parameters, int64_t index,
                                 const ProductOptions& products, int64_t count)
    : copies_(std::make_shared<Copies>()) {
  copies_->parameters = parameters;
  copies_->index = index;
  copies_->count = count;
  copies_->products = products;
  copies_->spare = &parameters->spare_copies();
  parameters->AddCopies(index, copies_);
  if (products.fp8 == nullptr) return;
  copies_->fp8_weight =
      products.fp8->AddWeight([copies = copies_.get()] { return copies->Master(); });
}

Status PackedParameter::Pack(Context& context, Repack what) {
  const ParameterSet& parameters = *copies_->parameters;
  if (parameters.values_sharded() || parameters.streamed()) return OkStatus();
  if (version() > 0 && what == Repack::kTrained && !copies_->trained()) return OkStatus();
  return copies_->Make(context);
}

bool PackedParameter::Copies::trained() const {
  for (int64_t i = index; i < index + count; ++i) {
    if ((*parameters)[i].trainable()) return true;
  }
  return false;
}

TensorView PackedParameter::Copies::Master() const {
  return count == 1 ? parameters->padded_value(index) : parameters->stacked_value(index, count);
}

// The packed copy alone is on the device, or the matrix that products read.
Status PackedParameter::Copies::Reserve(Context& context) {
  const TensorView master = Master();
  WEFT_ASSIGN_OR_RETURN(packed,
                        spare->Take(context, master.shape[0], master.shape[1], products.compute));
  if (!HasMasterOnHost(*parameters, index)) return OkStatus();
  kernels::PackedWeight& weight = *packed.weight;
  WEFT_RETURN_IF_ERROR(packed.held.Set(context.allocator, Component::kParameters, weight.Bytes()));
  if (!weight.reads_master()) return OkStatus();
  // A CUDA device has it in the type that its products read, as which it comes.
  const bool converts = context.stream.device.type == DeviceType::kCuda;
  const DType type = converts ? products.compute : master.dtype;
  if (type != master.dtype) {
    WEFT_RETURN_IF_ERROR(context.host->up().ReserveStaging(context.host->allocator()));
  }
  WEFT_ASSIGN_OR_RETURN(stored, Tensor::New(context, Component::kParameters, type, master.shape));
  return OkStatus();
}

Status PackedParameter::Copies::Make(Context& context) {
  const TensorView master = Master();
  ++version;
  if (products.fp8 != nullptr) {
    return products.fp8->QuantizeWeight(context, fp8_weight, master, fp8);
  }
  if (packed.weight == nullptr) WEFT_RETURN_IF_ERROR(Reserve(context));
  if (HasMasterOnHost(*parameters, index)) return MakeOffloaded(context, master);
  WEFT_RETURN_IF_ERROR(packed.weight->Pack(context.stream, master));
  return packed.held.Set(context.allocator, Component::kParameters, packed.weight->Bytes());
}

Status PackedParameter::Copies::MakeOffloaded(Context& context, const TensorView& master) {
  HostTier& host = *context.host;
  kernels::PackedWeight& weight = *packed.weight;
  for (int64_t i = index; i < index + count; ++i) parameters->AwaitUpdated(host, i);
  if (!weight.reads_master()) {
    return host.up().Move(static_cast<size_t>(weight.Bytes()),
                          [&] { return weight.Pack(context.stream, master); });
  }
  host.up().Copy(stored, master);
  return weight.Pack(context.stream, stored);
}

Linear::Linear(ParameterSet* parameters, const LinearOptions& options,
               const ProductOptions& products)
    : parameters_(parameters),
      fp8_(products.fp8),
      fp8_layer_(LayerOf(options, products.fp8)),
      adds_bias_(options.inputs.whole() || options.inputs.ranges.front().begin == 0),
      rows_(RowsOf(options)),
      weight_(parameters, parameters->RegisterStack(Weights(options), {options.in_features}),
              products, static_cast<int64_t>(options.outputs.size())),
      bias_(options.bias ? parameters->RegisterStack(Biases(options.outputs), {}) : -1),
      in_features_(options.in_features),
      out_features_(std::accumulate(rows_.begin(), rows_.end(), int64_t{0})) {
  if (bias_ >= 0 && !options.inputs.whole()) parameters->SetSeesAllRows(bias_);
}

TensorView Linear::Bias() const {
  return bias_ < 0 ? TensorView() : parameters_->stacked_operand(bias_, weight_.count());
}

Status Linear::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(weight_.Pack(context, what));
  if (fp8_ == nullptr || bias_ < 0) return OkStatus();
  if (!fp8_bias_) {
    WEFT_ASSIGN_OR_RETURN(
        fp8_bias_, Tensor::New(context, Component::kParameters, DType::kBF16, {out_features_}));
  }
  return kernels::Cast(context.stream, {Bias(), fp8_bias_});
}

Result<Tensor> Linear::Apply(Context& context, const Tape& tape, const Tensor& x,
                             GeluValue* active) const {
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, tape.component(), weight_.compute(),
                                              {x.shape().Rows(), out_features_}));
  if (active != nullptr) {
    WEFT_ASSIGN_OR_RETURN(active->value,
                          Tensor::New(context, Component::kWorkspace, y.dtype(), y.shape()));
  }
  WEFT_RETURN_IF_ERROR(ApplyTo(context, tape, x, y, active));
  return y;
}

Status Linear::ApplyTo(Context& context, const Tape& tape, const Tensor& x, const Tensor& y,
                       GeluValue* active) const {
  if (x.shape().Rows() == 0) return OkStatus();
  if (fp8_ == nullptr) {
    kernels::LinearForwardArgs args{.x = x, .weight = weight_.packed(), .y = y};
    if (adds_bias_) args.bias = Bias();
    if (active != nullptr) {
      args.active = active->value;
      args.gelu = active->form;
    }
    WEFT_RETURN_IF_ERROR(kernels::LinearForward(context.stream, args));
  } else {
    WEFT_ASSIGN_OR_RETURN(Fp8Tensor x8, fp8_->QuantizeInput(context, fp8_layer_, x, {.codes = true},
                                                            tape.differentiable()));
    WEFT_RETURN_IF_ERROR(
        kernels::MatmulFp8(context.stream, {.a = x8.Rows(),
                                            .b = weight_.fp8().Rows(),
                                            .bias = adds_bias_ ? fp8_bias_ : Tensor(),
                                            .c = y,
                                            .fast_sums = true}));
    if (active != nullptr) {
      WEFT_RETURN_IF_ERROR(kernels::GeluForward(context.stream, {y, active->value, active->form}));
    }
  }
  CountProduct(context, x.shape().Rows(), in_features_, out_features_);
  return OkStatus();
}

Result<Linear::OutputGradient> Linear::Prepare(Context& context, const Tape& tape, Tensor dy,
                                               bool for_input, bool for_weight) const {
  OutputGradient prepared{std::move(dy), {}};
  for_weight = for_weight && TrainsWeight(tape);
  const bool has_rows = prepared.dy.shape().Rows() > 0;
  if (fp8_ == nullptr || !has_rows || (!for_input && !for_weight)) return prepared;
  ProfileScope scope(context.profiler, "linear: FP8 gradient");
  WEFT_ASSIGN_OR_RETURN(prepared.fp8,
                        fp8_->QuantizeGradient(context, fp8_layer_, prepared.dy,
                                               {.codes = for_input, .transposed = for_weight}));
  return prepared;
}

Result<Tensor> Linear::InputGradient(Context& context, const OutputGradient& dy,
                                     const Tensor& before, const GeluValue& active) const {
  WEFT_ASSIGN_OR_RETURN(Tensor dx, Tensor::New(context, Component::kWorkspace, weight_.compute(),
                                               {dy.dy.shape().Rows(), in_features_}));
  WEFT_RETURN_IF_ERROR(InputGradientTo(context, dy, dx, before, active));
  return dx;
}

Status Linear::InputGradientTo(Context& context, const OutputGradient& dy, const Tensor& dx,
                               const Tensor& before, const GeluValue& active) const {
  ProfileScope scope(context.profiler, "linear backward");
  if (fp8_ == nullptr) {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(context.stream, {.dy = dy.dy,
                                                                       .weight = weight_.packed(),
                                                                       .dx = dx,
                                                                       .before = before,
                                                                       .active = active.value,
                                                                       .gelu = active.form}));
  } else {
    WEFT_RETURN_IF_ERROR(kernels::MatmulFp8(
        context.stream, {.a = dy.fp8.Rows(), .b = weight_.fp8().Columns(), .c = dx}));
    if (before) {
      WEFT_RETURN_IF_ERROR(
          kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form}));
    }
  }
  CountProduct(context, dy.dy.shape().Rows(), in_features_, out_features_);
  return OkStatus();
}

// The gradients that `to` names of `columns` columns of y from `column` on.
Status Linear::WeightProduct(Context& context, const Tensor& x, const Fp8Tensor& x8,
                             const OutputGradient& dy, int64_t column, int64_t columns,
                             const kernels::LinearBackwardWeightArgs& to) const {
  kernels::LinearBackwardWeightArgs args = to;
  args.x = x;
  args.dy = dy.dy.Columns(column, columns);
  if (fp8_ != nullptr && to.dweight) {
    WEFT_RETURN_IF_ERROR(kernels::MatmulFp8(
        context.stream, {.a = {dy.fp8.transposed.Rows(column, columns), dy.fp8.inverse_scale},
                         .b = x8.Columns(),
                         .c = to.dweight,
                         .accumulate = to.accumulate}));
    if (!to.dbias) return OkStatus();
    args.dweight = {};
  }
  return kernels::LinearBackwardWeight(context.stream, args);
}

Status Linear::AddWeightGradient(Context& context, Tape& tape, const Tensor& x,
                                 const OutputGradient& dy) const {
  ProfileScope scope(context.profiler, "linear: weight gradient");
  if (x.shape().Rows() == 0) return AddNoGradient(context, tape);
  Fp8Tensor x8;
  if (fp8_ != nullptr && TrainsWeight(tape)) {
    WEFT_ASSIGN_OR_RETURN(x8,
                          fp8_->QuantizeInput(context, fp8_layer_, x, {.transposed = true}, false));
  }
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
      for (const int64_t index : {weight ? weight_.index() + end : -1, bias ? bias_ + end : -1}) {
        if (index < 0) continue;
        WEFT_ASSIGN_OR_RETURN(const auto target, gradients.Write(index));
        accumulate = target.accumulate;
      }
    }
    if (weight || bias) {
      kernels::LinearBackwardWeightArgs args;
      args.accumulate = accumulate;
      if (weight) {
        args.dweight = parameters_->stacked_gradient(weight_.index() + first, end - first);
      }
      if (bias) args.dbias = parameters_->stacked_gradient(bias_ + first, end - first);
      WEFT_RETURN_IF_ERROR(WeightProduct(context, x, x8, dy, column, columns, args));
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

Status Linear::AddNoGradient(Context& context, Tape& tape) const {
  for (int64_t i = 0; i < weight_.count(); ++i) {
    for (const int64_t index : {weight_.index() + i, bias_ < 0 ? -1 : bias_ + i}) {
      if (index < 0) continue;
      WEFT_RETURN_IF_ERROR(tape.parameters().Add(context, index).status());
      WEFT_RETURN_IF_ERROR(tape.parameters().Done(index));
    }
  }
  return OkStatus();
}

void Linear::Use(Tape& tape) const {
  for (int64_t i = 0; i < weight_.count(); ++i) {
    tape.UseParameter(weight_.index() + i);
    if (bias_ >= 0) tape.UseParameter(bias_ + i);
  }
}

bool Linear::TrainsWeight(const Tape& tape) const {
  for (int64_t i = 0; i < weight_.count(); ++i) {
    if (tape.Trains(weight_.index() + i)) return true;
  }
  return false;
}

bool Linear::Trains(const Tape& tape) const {
  for (int64_t i = 0; i < weight_.count(); ++i) {
    if (tape.Trains(weight_.index() + i) || (bias_ >= 0 && tape.Trains(bias_ + i))) return true;
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
