#include "worker/engine/nn/classifier_head.h"

#include <algorithm>
#include <utility>

#include "common/model/model_counts.h"
#include "common/model/model_sizes.h"
#include "kernels/logit_penalty/logit_penalty.h"
#include "kernels/step_totals/step_totals.h"
#include "worker/engine/nn/adapter_tensors.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Products with the weight of a classifier, whose packed copy others renew, as the embedding may
/// have the same.
class ClassifierProducts : public WeightProducts {
 public:
  ClassifierProducts(const ParameterSet* parameters, const PackedParameter* weight, int64_t bias)
      : parameters_(parameters), weight_(weight), bias_(bias) {}

  Status Pack(Context& /*context*/, Repack /*what*/) override { return OkStatus(); }

  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& /*active*/,
                 const ForwardUse& /*use*/) const override {
    const TensorView bias = bias_ < 0 ? TensorView() : parameters_->padded_operand(bias_);
    return kernels::LinearForward(context.stream, {x, weight_->packed(), bias, y});
  }

  Result<OutputGradient> Prepare(Context& /*context*/, Tensor dy,
                                 const GradientUse& /*use*/) const override {
    return OutputGradient{std::move(dy)};
  }

  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& /*before*/, const GeluValue& /*active*/) const override {
    return kernels::LinearBackwardInput(context.stream, {dy.dy, weight_->packed(), dx, false});
  }

  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override {
    for (const WeightGradientTarget& to : targets) {
      WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
          context.stream, {x, dy.dy, to.dweight, to.dbias, to.accumulate}));
    }
    return OkStatus();
  }

 private:
  const ParameterSet* parameters_;
  const PackedParameter* weight_;
  int64_t bias_;
};

}  // namespace

ClassifierHead::ClassifierHead(const ParameterSet* parameters, const PackedParameter* weight,
                               int64_t vocabulary, int64_t bias, bool counts,
                               const TensorParallel* ranks)
    : parameters_(parameters),
      weight_(weight),
      products_(std::make_unique<ClassifierProducts>(parameters, weight, bias)),
      vocabulary_(vocabulary),
      bias_(bias),
      counts_(counts),
      tensor_(ranks) {}

void ClassifierHead::Adapt(ParameterSet* parameters, ProductsFactory* factory, DType compute) {
  if (factory == nullptr) return;
  const Parameter weight = (*parameters)[weight_->index()];  // registering moves it
  const Shape whole = weight.logical_shape();
  ParameterInfo info;
  static_cast<ParameterAttributes&>(info) = weight;
  info.name = weight.name;
  info.shape = {whole[0], whole[1]};
  first_adapter_ = parameters->size();
  adapters_ = RegisterAdapters(parameters, *factory, info,
                               {.outputs = weight.shard, .padded_rows = weight.padded_rows});
  if (adapters_ == 0) return;
  const OutputWeight output{.rows = weight.padded_rows,
                            .first = weight_->index(),
                            .first_adapter = first_adapter_,
                            .adapters = adapters_};
  const LinearLayer layer{.parameters = parameters,
                          .weight = weight_->index(),
                          .weights = {output},
                          .in_features = weight.shape[1],
                          .bias = bias_,
                          .shares_outputs = !weight.shard.whole(),
                          .block = {.index = -1},
                          .compute = compute};
  products_ = factory->MakeAround(layer, [this](const LinearLayer& own) {
    return std::make_unique<ClassifierProducts>(parameters_, weight_, own.bias);
  });
}

double ClassifierHead::AdapterFlops(const Tape* tape) const {
  int64_t numbers = 0;
  for (int64_t i = first_adapter_; i < first_adapter_ + adapters_; ++i) {
    const Parameter& parameter = (*parameters_)[i];
    const bool counts = parameter.shape.rank >= 2 && (tape == nullptr || tape->Trains(i));
    if (counts) numbers += parameter.StoredElements();
  }
  return 2.0 * static_cast<double>(numbers);
}

Status ClassifierHead::AddWeightGradient(Context& context, Tape& tape, const Tensor& input,
                                         const OutputGradient& dlogits) const {
  WeightGradientTarget target{.columns = dlogits.dy.shape()[-1]};
  const auto write = [&](int64_t index) -> Result<TensorView> {
    if (!tape.Trains(index)) return TensorView();
    WEFT_ASSIGN_OR_RETURN(const auto written, tape.parameters().Write(index));
    target.accumulate = written.accumulate;
    return parameters_->padded_gradient(index);
  };
  WEFT_ASSIGN_OR_RETURN(target.dweight, write(weight_->index()));
  if (bias_ >= 0) {
    WEFT_ASSIGN_OR_RETURN(target.dbias, write(bias_));
  }
  for (int64_t i = 0; i < adapters_; ++i) {
    WEFT_ASSIGN_OR_RETURN(target.dtensors.emplace_back(), write(first_adapter_ + i));
  }
  if (rows_ != nullptr) WEFT_RETURN_IF_ERROR(AddRowsGradient(context, tape, input, dlogits.dy));
  if (!target.dbias && !target.trains_weight()) return OkStatus();
  return products_->WeightGradient(context, input, dlogits, {&target, 1});
}

Status ClassifierHead::AddRowsGradient(Context& context, Tape& tape, const Tensor& input,
                                       const Tensor& dlogits) const {
  if (!tape.Trains(rows_->parameter)) return OkStatus();
  const int64_t rows = dlogits.shape().Rows(), count = (*parameters_)[rows_->parameter].shape[0];
  WEFT_ASSIGN_OR_RETURN(const Tensor own, Tensor::New(context, Component::kWorkspace,
                                                      dlogits.dtype(), {rows, count}));
  // Other ranks have other rows of the table.
  if (shares_classes()) WEFT_RETURN_IF_ERROR(Clear(context.stream, own));
  for (const TrainedTableRows::Run& run : rows_->runs) {
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, dlogits.Columns(run.first, run.count),
                                  own.Columns(run.row, run.count)));
  }
  WEFT_ASSIGN_OR_RETURN(const auto target, tape.parameters().Write(rows_->parameter));
  CountWork(context.profiler, 2.0 * static_cast<double>(rows * target.gradient.shape.Elements()));
  return kernels::LinearBackwardWeight(
      context.stream,
      {.x = input, .dy = own, .dweight = target.gradient, .accumulate = target.accumulate});
}

std::vector<int64_t> ClassifierHead::Parameters() const {
  std::vector<int64_t> indices = {weight_->index()};
  if (bias_ >= 0) indices.push_back(bias_);
  if (rows_ != nullptr) indices.push_back(rows_->parameter);
  for (int64_t i = 0; i < adapters_; ++i) indices.push_back(first_adapter_ + i);
  return indices;
}

Status ClassifierHead::CrossEntropy(Context& context, const kernels::CrossEntropyArgs& args,
                                    const Tensor& found) const {
  if (!shares_classes()) return kernels::CrossEntropy(context.stream, args);
  const Shard::Range rows = tensor_->Part(vocabulary_);
  const kernels::LogitsPart part{rows.begin, rows.size(), vocabulary_};
  const int64_t count = args.logits.shape[0], numbers = kernels::kLogitsPartNumbers;
  const Tensor all = found.Part(0, DType::kF32, {tensor_->columns() * numbers, count});
  const Tensor own = all.Rows(tensor_->column() * numbers, numbers);
  WEFT_RETURN_IF_ERROR(
      kernels::MeasureLogitsPart(context.stream, {args.logits, args.targets, part, own}));
  WEFT_RETURN_IF_ERROR(tensor_->along_row()
                           ->AllGather(context.stream, own, all, "softmax of shards")
                           .Wait(context.stream));
  return kernels::CrossEntropyOfParts(context.stream, {.logits = args.logits,
                                                       .targets = args.targets,
                                                       .part = part,
                                                       .found = all,
                                                       .grad_scale = args.grad_scale.value,
                                                       .write_gradient = args.write_gradient,
                                                       .losses = args.losses,
                                                       .gradient_weights = args.gradient_weights});
}

Status ClassifierHead::Penalize(Context& context, const Tensor& own, const Tensor& targets,
                                kernels::StepValue<float> gradient_scale, const Tensor& dlogits,
                                const Tensor& squares) const {
  ProfileScope scope(context.profiler, "head: logit penalty");
  const int64_t classes = shares_classes() ? tensor_->Part(vocabulary_).size() : vocabulary_;
  const double factor = added_->penalty / static_cast<double>(vocabulary_);
  return kernels::LogitPenalty(context.stream, {.logits = own,
                                                .targets = targets,
                                                .vocabulary = classes,
                                                .grad_scale = gradient_scale,
                                                .factor = static_cast<float>(factor),
                                                .gradient = dlogits,
                                                .squares = squares});
}

Status ClassifierHead::Loss(Context& context, Tape& tape, const Value& hidden,
                            const HeadTargets& targets, kernels::StepValue<float> gradient_scale,
                            BatchLoss* total) const {
  WEFT_CHECK(tape.recording() || !tape.differentiable(), "the head runs once a pass");
  ProfileScope scope(context.profiler, "head");
  const std::vector<int64_t> parameters = Parameters();
  const bool trains = std::any_of(parameters.begin(), parameters.end(),
                                  [&](int64_t index) { return tape.Trains(index); });
  const bool differentiate = tape.recording() && (trains || hidden.needs_gradient());
  const int64_t rows = hidden.tensor.shape().Rows();
  if (rows == 0) return OkStatus();
  const int64_t width = hidden.tensor.shape()[-1];
  const DType dtype = hidden.tensor.dtype();
  const int64_t columns = weight_->packed()->out_features();
  // Ranks take the same chunks, whatever the size of their shards.
  const int64_t widest =
      tensor_ == nullptr
          ? columns
          : PaddedVocabulary((vocabulary_ + tensor_->columns() - 1) / tensor_->columns());
  const int64_t chunk = LogitsChunkRows(widest, rows, static_cast<int64_t>(DTypeSize(dtype)));

  WEFT_ASSIGN_OR_RETURN(Tensor logits_space, Tensor::New(context, Component::kWorkspace, dtype,
                                                         {std::min(chunk, rows), columns}));
  Tensor losses = targets.losses;
  if (!losses) {
    WEFT_ASSIGN_OR_RETURN(losses, Tensor::New(context, Component::kWorkspace, DType::kF32, {rows}));
  }
  Tensor predictions;
  if (counts_) {
    WEFT_ASSIGN_OR_RETURN(predictions,
                          Tensor::New(context, Component::kWorkspace, DType::kI32, {rows}));
  }
  Tensor found;
  if (shares_classes()) {
    WEFT_ASSIGN_OR_RETURN(found, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                             {tensor_->columns() * kernels::kLogitsPartNumbers,
                                              std::min(chunk, rows)}));
  }
  const bool penalizes = differentiate && added_ != nullptr && added_->penalty > 0;
  Tensor own_space, squares;
  if (penalizes) {
    WEFT_ASSIGN_OR_RETURN(own_space, Tensor::New(context, Component::kWorkspace, dtype,
                                                 {std::min(chunk, rows), columns}));
    WEFT_ASSIGN_OR_RETURN(squares,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, {rows}));
  }
  Tensor dhidden;
  if (differentiate) {
    for (const int64_t index : parameters) tape.UseParameter(index);
  }
  if (differentiate && hidden.needs_gradient()) {
    WEFT_ASSIGN_OR_RETURN(dhidden,
                          Tensor::New(context, Component::kWorkspace, dtype, {rows, width}));
  }
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const double product = 2.0 * static_cast<double>(count * width) * static_cast<double>(columns);
    const double of_adapters = static_cast<double>(count) * AdapterFlops(nullptr);
    const Tensor input = hidden.tensor.Rows(begin, count);
    const Tensor logits = logits_space.Rows(0, count);
    {
      ProfileScope gemm(context.profiler, "head: logits");
      WEFT_RETURN_IF_ERROR(
          products_->Forward(context, input, logits, {},
                             {.training = differentiate, .first_row = tape.first_row() + begin}));
      CountWork(context.profiler, product + of_adapters);
    }
    if (tensor_ != nullptr && tensor_->along_column() != nullptr) {
      WEFT_RETURN_IF_ERROR(tensor_->along_column()
                               ->AllReduce(context.stream, logits, Reduction::kSum, "logits")
                               .Wait(context.stream));
    }
    if (penalizes) {
      WEFT_RETURN_IF_ERROR(CopyRows(context.stream, logits, own_space.Rows(0, count)));
    }
    if (added_ != nullptr) {
      ProfileScope gemm(context.profiler, "head: added logits");
      WEFT_RETURN_IF_ERROR(
          added_->source->AddLogits(context, targets.source_hidden.Rows(begin, count), logits));
    }
    {
      ProfileScope loss(context.profiler, "head: cross entropy");
      WEFT_RETURN_IF_ERROR(CrossEntropy(
          context,
          {logits, targets.classes.Elements(begin, count), vocabulary_, gradient_scale,
           differentiate, losses.Elements(begin, count),
           counts_ ? predictions.Elements(begin, count).view() : TensorView(),
           targets.gradient_weights ? targets.gradient_weights.Elements(begin, count).view()
                                    : TensorView()},
          found));
    }
    if (penalizes) {
      WEFT_RETURN_IF_ERROR(Penalize(context, own_space.Rows(0, count),
                                    targets.classes.Elements(begin, count), gradient_scale, logits,
                                    squares.Elements(begin, count)));
    }
    if (!differentiate) continue;
    WEFT_ASSIGN_OR_RETURN(const OutputGradient dlogits,
                          products_->Prepare(context, logits,
                                             {.for_input = static_cast<bool>(dhidden),
                                              .for_weight = trains,
                                              .first_row = tape.first_row() + begin}));
    if (dhidden) {
      ProfileScope gemm(context.profiler, "head: input gradient");
      WEFT_RETURN_IF_ERROR(
          products_->InputGradient(context, dlogits, dhidden.Rows(begin, count), {}, {}));
      CountWork(context.profiler, product + of_adapters);
    }
    if (!trains) continue;
    ProfileScope gemm(context.profiler, "head: weight gradient");
    WEFT_RETURN_IF_ERROR(AddWeightGradient(context, tape, input, dlogits));
    if (tape.Trains(weight_->index())) CountWork(context.profiler, product);
    CountWork(context.profiler, static_cast<double>(count) * AdapterFlops(&tape));
  }
  if (penalizes) {
    WEFT_RETURN_IF_ERROR(
        kernels::AddLosses(context.stream, {.losses = squares, .sum = added_->squares}));
  }
  if (differentiate) {
    tape.Record("head backward",
                [parameters, node = hidden.node, dhidden = std::move(dhidden)](Context& ctx,
                                                                               Tape& t) -> Status {
                  for (const int64_t index : parameters) {
                    WEFT_RETURN_IF_ERROR(t.parameters().Done(index));
                  }
                  return t.AddGradient(ctx, node, dhidden);
                });
  }
  return kernels::AddLosses(context.stream, {.losses = losses,
                                             .predictions = predictions,
                                             .targets = targets.classes,
                                             .sum = &total->sum,
                                             .right = &total->right});
}

Result<Tensor> ClassifierHead::Logits(Context& context, const Tensor& hidden) const {
  WEFT_ASSIGN_OR_RETURN(Tensor logits,
                        Tensor::New(context, Component::kWorkspace, hidden.dtype(),
                                    {hidden.shape().Rows(), weight_->packed()->out_features()}));
  WEFT_RETURN_IF_ERROR(products_->Forward(context, hidden, logits, {}, {}));
  return logits;
}

}  // namespace weft::engine
