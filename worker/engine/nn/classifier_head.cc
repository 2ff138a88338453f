#include "worker/engine/nn/classifier_head.h"

#include <algorithm>

#include "common/model/model_counts.h"
#include "common/model/model_sizes.h"
#include "kernels/logit_penalty/logit_penalty.h"
#include "kernels/step_totals/step_totals.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

Status ClassifierHead::AddWeightGradient(Context& context, Tape& tape, const Tensor& input,
                                         const Tensor& dlogits) const {
  kernels::LinearBackwardWeightArgs args{input, dlogits, {}, {}, false};
  if (tape.Trains(weight_->index())) {
    WEFT_ASSIGN_OR_RETURN(const auto target, tape.parameters().Write(weight_->index()));
    args.accumulate = target.accumulate;
    args.dweight = parameters_->padded_gradient(weight_->index());
  }
  if (bias_ >= 0 && tape.Trains(bias_)) {
    WEFT_ASSIGN_OR_RETURN(const auto target, tape.parameters().Write(bias_));
    args.accumulate = target.accumulate;
    args.dbias = parameters_->padded_gradient(bias_);
  }
  if (rows_ != nullptr) WEFT_RETURN_IF_ERROR(AddRowsGradient(context, tape, input, dlogits));
  return args.dweight || args.dbias ? kernels::LinearBackwardWeight(context.stream, args)
                                    : OkStatus();
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
    const Tensor input = hidden.tensor.Rows(begin, count);
    const Tensor logits = logits_space.Rows(0, count);
    {
      ProfileScope gemm(context.profiler, "head: logits");
      WEFT_RETURN_IF_ERROR(
          kernels::LinearForward(context.stream, {input, weight_->packed(), Bias(), logits}));
      CountWork(context.profiler, product);
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
    if (dhidden) {
      ProfileScope gemm(context.profiler, "head: input gradient");
      WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
          context.stream, {logits, weight_->packed(), dhidden.Rows(begin, count), false}));
      CountWork(context.profiler, product);
    }
    if (!differentiate || !trains) continue;
    ProfileScope gemm(context.profiler, "head: weight gradient");
    WEFT_RETURN_IF_ERROR(AddWeightGradient(context, tape, input, logits));
    if (tape.Trains(weight_->index())) CountWork(context.profiler, product);
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
  WEFT_RETURN_IF_ERROR(
      kernels::LinearForward(context.stream, {hidden, weight_->packed(), Bias(), logits}));
  return logits;
}

}  // namespace weft::engine
