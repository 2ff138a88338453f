#include "worker/engine/techniques/peft/lora_products.h"

#include <span>
#include <string>
#include <utility>

#include "common/rng.h"
#include "kernels/activation/activation.h"
#include "kernels/affine/affine.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/dropout.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

Status RepeatedOnes::Make(Context& context, DType compute) {
  if (packed != nullptr) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(values,
                        Tensor::New(context, Component::kParameters, DType::kF32, {rank, in}));
  WEFT_RETURN_IF_ERROR(FillOnHost(context.stream, values.view(), [&](const TensorView& host) {
    for (int64_t i = 0; i < rank * in; ++i) {
      host.As<float>()[i] = (first_input + i % in) % rank == i / in ? 1.0f : 0.0f;
    }
  }));
  WEFT_ASSIGN_OR_RETURN(packed, kernels::NewPackedWeight(context.stream.device, rank, in, compute));
  return packed->Pack(context.stream, values);
}

InputDropout::InputDropout(const LinearLayer& layer, double dropout)
    : probability(static_cast<float>(dropout)),
      columns(layer.in_features),
      all_columns(layer.inputs.whole() ? layer.in_features : layer.inputs.extent),
      first_column(FirstInput(layer)) {}

Status InputDropout::Apply(Context& context, uint32_t site, const Tensor& x, const Tensor& y,
                           int64_t first_row) const {
  kernels::DropoutArgs args{
      .x = x, .y = y, .probability = probability, .key = DropoutKey(context, site, 0)};
  args.step = context.Number(args.key.step, &StepNumbers::step).at;
  args.first_element = static_cast<uint64_t>(first_row * all_columns + first_column);
  if (columns < all_columns) {
    args.columns = columns;
    args.row_stride = all_columns;
  }
  return kernels::Dropout(context.stream, args);
}

LoraProducts::LoraProducts(const LinearLayer& layer, const PeftSpec& spec, const OnesOfRank& ones,
                           std::unique_ptr<WeightProducts> base)
    : parameters_(layer.parameters),
      compute_(layer.compute),
      in_features_(layer.in_features),
      dropout_(layer, spec.dropout),
      base_(std::move(base)) {
  int64_t column = 0;
  for (const OutputWeight& weight : layer.weights) {
    const int64_t parts =
        weight.adapters > 0 ? (*layer.parameters)[weight.first_adapter].row_parts : 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first_tensor = part * (weight.adapters / parts);
      const int64_t first = weight.first_adapter + first_tensor;
      const Parameter& tensor = (*layer.parameters)[first];
      const bool fixed = spec.method == "miss";
      Adapter adapter{
          .column = column,
          .columns = weight.rows,
          .rank = fixed ? tensor.shape[1] : tensor.shape[0],
          .ranks_before = ranks_,
          .first_tensor = first_tensor,
          .row_part = part,
          .scale = fixed ? 1 : static_cast<float>(LoraScale(spec, tensor.adapter_of)),
          .site = SiteHash(tensor.name.c_str()),
          .b = PackedParameter(layer.parameters, first + (fixed ? 0 : 1), layer.compute),
          .diagonal = spec.method == "adalora" ? first + 2 : -1};
      if (fixed) {
        adapter.ones = ones(adapter.rank);
      } else {
        adapter.a.emplace(layer.parameters, first, layer.compute);
      }
      adapters_.push_back(std::move(adapter));
    }
    if (parts > 0) {
      ranks_ += adapters_.back().rank;
      row_parts_ = parts;
    }
    column += weight.rows;
  }
}

Status LoraProducts::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(base_->Pack(context, what));
  for (Adapter& adapter : adapters_) {
    WEFT_RETURN_IF_ERROR(adapter.a ? adapter.a->Pack(context, what)
                                   : adapter.ones->Make(context, compute_));
    WEFT_RETURN_IF_ERROR(adapter.b.Pack(context, what));
  }
  return OkStatus();
}

Status LoraProducts::Scaled(Context& context, const Adapter& adapter, const Tensor& x) {
  return adapter.scale == 1 ? OkStatus() : kernels::Scale(context.stream, {x, adapter.scale});
}

Status LoraProducts::CheckRows(int64_t rows) const {
  if (rows % row_parts_ == 0) return OkStatus();
  return InvalidError("a batch of " + std::to_string(rows) + " tokens has no equal parts for " +
                      std::to_string(row_parts_) +
                      " adapters (model.peft.adapters); hint: choose one of them");
}

Tensor LoraProducts::RowsOf(const Adapter& adapter, const Tensor& x) const {
  if (row_parts_ == 1) return x;
  const int64_t rows = x.shape().Rows();
  return x.Rows(FirstRow(adapter, rows), rows / row_parts_);
}

Result<Tensor> LoraProducts::Dropped(Context& context, const Adapter& adapter, const Tensor& x,
                                     int64_t first_row) const {
  if (!dropout_.any()) return x;
  WEFT_ASSIGN_OR_RETURN(Tensor left,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(dropout_.Apply(context, adapter.site, x, left, first_row));
  return left;
}

Result<Tensor> LoraProducts::FirstProduct(Context& context, const Adapter& adapter,
                                          const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor middle, Tensor::New(context, Component::kWorkspace, compute_,
                                                   {x.shape().Rows(), adapter.rank}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearForward(context.stream, {.x = x, .weight = adapter.first(), .y = middle}));
  return middle;
}

Status LoraProducts::ApplyScale(Context& context, const Adapter& adapter,
                                const Tensor& middle) const {
  WEFT_RETURN_IF_ERROR(Scaled(context, adapter, middle));
  if (adapter.diagonal < 0) return OkStatus();
  return kernels::AffineForward(
      context.stream,
      {.x = middle, .scale = parameters_->operand(adapter.diagonal), .shift = {}, .y = middle});
}

Result<Tensor> LoraProducts::ThroughDiagonal(Context& context, const Adapter& adapter,
                                             const Tensor& gradient) const {
  if (adapter.diagonal < 0) return gradient;
  WEFT_ASSIGN_OR_RETURN(Tensor through, Tensor::New(context, Component::kWorkspace,
                                                    gradient.dtype(), gradient.shape()));
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      context.stream,
      {.x = gradient, .scale = parameters_->operand(adapter.diagonal), .shift = {}, .y = through}));
  return through;
}

Status LoraProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                             const GeluValue& active, const ForwardUse& use) const {
  const int64_t rows = x.shape().Rows();
  WEFT_RETURN_IF_ERROR(CheckRows(rows));
  WEFT_RETURN_IF_ERROR(base_->Forward(context, x, y, {}, use));
  for (const Adapter& adapter : adapters_) {
    Tensor left = RowsOf(adapter, x);
    if (use.training) {
      WEFT_ASSIGN_OR_RETURN(
          left, Dropped(context, adapter, left, use.first_row + FirstRow(adapter, rows)));
    }
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, FirstProduct(context, adapter, left));
    WEFT_RETURN_IF_ERROR(ApplyScale(context, adapter, middle));
    WEFT_RETURN_IF_ERROR(kernels::LinearForward(
        context.stream, {.x = middle,
                         .weight = adapter.b.packed(),
                         .y = RowsOf(adapter, y).Columns(adapter.column, adapter.columns),
                         .accumulate = true}));
  }
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Tensor LoraProducts::MiddleGradientOf(const Adapter& adapter, const Tensor& gradients,
                                      int64_t rows) const {
  const int64_t before = adapter.ranks_before * rows + adapter.rank * FirstRow(adapter, rows);
  return gradients.Part(static_cast<size_t>(before) * DTypeSize(compute_), compute_,
                        {rows / row_parts_, adapter.rank});
}

Result<OutputGradient> LoraProducts::Prepare(Context& context, Tensor dy,
                                             const GradientUse& use) const {
  const int64_t rows = dy.shape().Rows();
  WEFT_ASSIGN_OR_RETURN(const Tensor gradients,
                        Tensor::New(context, Component::kWorkspace, compute_, {rows, ranks_}));
  for (const Adapter& adapter : adapters_) {
    const Tensor own = MiddleGradientOf(adapter, gradients, rows);
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = RowsOf(adapter, dy).Columns(adapter.column, adapter.columns),
                         .weight = adapter.b.packed(),
                         .dx = own}));
    WEFT_RETURN_IF_ERROR(Scaled(context, adapter, own));
    if (use.for_input) continue;  // counted with the products of the input's gradient
    CountWork(context.profiler,
              2.0 * static_cast<double>(own.shape().Elements() * adapter.columns));
  }
  WEFT_ASSIGN_OR_RETURN(OutputGradient base, base_->Prepare(context, dy, use));
  OutputGradient prepared{std::move(dy)};
  prepared.inner = std::make_shared<const OutputGradient>(std::move(base));
  if (use.for_input) prepared.for_input.values = gradients;
  if (use.for_weight) prepared.for_weight.values = gradients;
  prepared.first_row = use.first_row;
  return prepared;
}

Status LoraProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                   const Tensor& before, const GeluValue& active) const {
  WEFT_RETURN_IF_ERROR(base_->InputGradient(context, dy.Inner(), dx, {}, {}));
  const int64_t rows = dx.shape().Rows();
  for (const Adapter& adapter : adapters_) {
    const Tensor all = RowsOf(adapter, dx);
    Tensor own = all;
    if (dropout_.any()) {
      WEFT_ASSIGN_OR_RETURN(own,
                            Tensor::New(context, Component::kWorkspace, compute_, all.shape()));
    }
    WEFT_ASSIGN_OR_RETURN(
        const Tensor gradient,
        ThroughDiagonal(context, adapter, MiddleGradientOf(adapter, dy.for_input.values, rows)));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream,
        {.dy = gradient, .weight = adapter.first(), .dx = own, .accumulate = !dropout_.any()}));
    if (!dropout_.any()) continue;
    WEFT_RETURN_IF_ERROR(
        dropout_.Apply(context, adapter.site, own, own, dy.first_row + FirstRow(adapter, rows)));
    WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {all, own, all}));
  }
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status LoraProducts::FactorGradients(Context& context, const Adapter& adapter, const Tensor& x,
                                     const OutputGradient& dy,
                                     const WeightGradientTarget& to) const {
  const auto dtensors = std::span(to.dtensors).subspan(static_cast<size_t>(adapter.first_tensor));
  const TensorView da = adapter.a ? dtensors[0] : TensorView();
  const TensorView db = dtensors[adapter.a ? 1 : 0];
  const TensorView de = adapter.diagonal < 0 ? TensorView() : dtensors[2];
  if (!da && !db && !de) return OkStatus();
  const int64_t rows = x.shape().Rows();
  WEFT_ASSIGN_OR_RETURN(const Tensor left, Dropped(context, adapter, RowsOf(adapter, x),
                                                   dy.first_row + FirstRow(adapter, rows)));
  const Tensor gradient = MiddleGradientOf(adapter, dy.for_weight.values, rows);
  if (da) {
    WEFT_ASSIGN_OR_RETURN(const Tensor through, ThroughDiagonal(context, adapter, gradient));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = left, .dy = through, .dweight = da, .accumulate = to.accumulate}));
  }
  if (!db && !de) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Tensor middle, FirstProduct(context, adapter, left));
  CountWork(context.profiler, 2.0 * static_cast<double>(middle.shape().Elements() * in_features_));
  if (de) {
    if (!to.accumulate) WEFT_RETURN_IF_ERROR(Clear(context.stream, de));
    WEFT_RETURN_IF_ERROR(
        kernels::AffineBackward(context.stream, {.dy = gradient,
                                                 .x = middle,
                                                 .scale = parameters_->operand(adapter.diagonal),
                                                 .dx = {},
                                                 .dscale = de,
                                                 .dshift = {}}));
  }
  if (!db) return OkStatus();
  WEFT_RETURN_IF_ERROR(ApplyScale(context, adapter, middle));
  return kernels::LinearBackwardWeight(context.stream,
                                       {.x = middle,
                                        .dy = RowsOf(adapter, dy.dy).Columns(to.column, to.columns),
                                        .dweight = db,
                                        .accumulate = to.accumulate});
}

Status LoraProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                    std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    for (const Adapter& adapter : adapters_) {
      if (to.dtensors.empty() || adapter.column != to.column) continue;
      WEFT_RETURN_IF_ERROR(FactorGradients(context, adapter, x, dy, to));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_RETURN_IF_ERROR(base_->WeightGradient(context, x, dy.Inner(), {&to, 1}));
  }
  return OkStatus();
}

}  // namespace weft::engine
