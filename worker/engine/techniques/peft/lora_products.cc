#include "worker/engine/techniques/peft/lora_products.h"

#include <algorithm>
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

LoraProducts::LoraProducts(const LinearLayer& layer, const PeftSpec& spec, const OnesOfRank& ones)
    : parameters_(layer.parameters),
      compute_(layer.compute),
      in_features_(layer.in_features),
      all_inputs_(layer.inputs.whole() ? layer.in_features : layer.inputs.extent),
      first_input_(FirstInput(layer)),
      dropout_(static_cast<float>(spec.dropout)),
      dense_(layer) {
  int64_t column = 0;
  for (const OutputWeight& weight : layer.weights) {
    if (weight.adapters > 0) {
      const Parameter& tensor = (*layer.parameters)[weight.first_adapter];
      const bool fixed = spec.method == "miss";
      Adapter adapter{.column = column,
                      .columns = weight.rows,
                      .rank = fixed ? tensor.shape[1] : tensor.shape[0],
                      .ranks_before = ranks_,
                      .scale = fixed ? 1 : static_cast<float>(LoraScale(spec, tensor.adapter_of)),
                      .site = SiteHash(tensor.name.c_str()),
                      .b = PackedParameter(layer.parameters, weight.first_adapter + (fixed ? 0 : 1),
                                           layer.compute),
                      .diagonal = spec.method == "adalora" ? weight.first_adapter + 2 : -1};
      if (fixed) {
        adapter.ones = ones(adapter.rank);
      } else {
        adapter.a.emplace(layer.parameters, weight.first_adapter, layer.compute);
      }
      ranks_ += adapter.rank;
      adapters_.push_back(std::move(adapter));
    }
    column += weight.rows;
  }
}

Status LoraProducts::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(dense_.Pack(context, what));
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

Status LoraProducts::Drop(Context& context, const Adapter& adapter, const Tensor& x,
                          const Tensor& y, int64_t first_row) const {
  kernels::DropoutArgs args{
      .x = x, .y = y, .probability = dropout_, .key = DropoutKey(context, adapter.site, 0)};
  args.step = context.Number(args.key.step, &StepNumbers::step).at;
  args.first_element = static_cast<uint64_t>(first_row * all_inputs_ + first_input_);
  if (in_features_ < all_inputs_) {
    args.columns = in_features_;
    args.row_stride = all_inputs_;
  }
  return kernels::Dropout(context.stream, args);
}

Result<Tensor> LoraProducts::Dropped(Context& context, const Adapter& adapter, const Tensor& x,
                                     int64_t first_row) const {
  if (dropout_ == 0) return x;
  WEFT_ASSIGN_OR_RETURN(Tensor left,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(Drop(context, adapter, x, left, first_row));
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
  WEFT_RETURN_IF_ERROR(dense_.Forward(context, x, y, {}, use));
  for (const Adapter& adapter : adapters_) {
    Tensor left = x;
    if (use.training) {
      WEFT_ASSIGN_OR_RETURN(left, Dropped(context, adapter, x, use.first_row));
    }
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, FirstProduct(context, adapter, left));
    WEFT_RETURN_IF_ERROR(ApplyScale(context, adapter, middle));
    WEFT_RETURN_IF_ERROR(
        kernels::LinearForward(context.stream, {.x = middle,
                                                .weight = adapter.b.packed(),
                                                .y = y.Columns(adapter.column, adapter.columns),
                                                .accumulate = true}));
  }
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Tensor LoraProducts::MiddleGradientOf(const Adapter& adapter, const Tensor& gradients,
                                      int64_t rows) const {
  const int64_t before = adapter.ranks_before * rows;
  return gradients.Part(static_cast<size_t>(before) * DTypeSize(compute_), compute_,
                        {rows, adapter.rank});
}

Result<OutputGradient> LoraProducts::Prepare(Context& context, Tensor dy,
                                             const GradientUse& use) const {
  const int64_t rows = dy.shape().Rows();
  WEFT_ASSIGN_OR_RETURN(const Tensor gradients,
                        Tensor::New(context, Component::kWorkspace, compute_, {rows, ranks_}));
  for (const Adapter& adapter : adapters_) {
    const Tensor own = MiddleGradientOf(adapter, gradients, rows);
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = dy.Columns(adapter.column, adapter.columns),
                         .weight = adapter.b.packed(),
                         .dx = own}));
    WEFT_RETURN_IF_ERROR(Scaled(context, adapter, own));
    if (use.for_input) continue;  // counted with the products of the input's gradient
    CountWork(context.profiler, 2.0 * static_cast<double>(rows * adapter.columns * adapter.rank));
  }
  OutputGradient prepared{std::move(dy)};
  if (use.for_input) prepared.for_input.values = gradients;
  if (use.for_weight) prepared.for_weight.values = gradients;
  prepared.first_row = use.first_row;
  return prepared;
}

Status LoraProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                   const Tensor& before, const GeluValue& active) const {
  WEFT_RETURN_IF_ERROR(dense_.InputGradient(context, dy, dx, {}, {}));
  const int64_t rows = dx.shape().Rows();
  for (const Adapter& adapter : adapters_) {
    Tensor own = dx;
    if (dropout_ > 0) {
      WEFT_ASSIGN_OR_RETURN(own, Tensor::New(context, Component::kWorkspace, compute_, dx.shape()));
    }
    WEFT_ASSIGN_OR_RETURN(
        const Tensor gradient,
        ThroughDiagonal(context, adapter, MiddleGradientOf(adapter, dy.for_input.values, rows)));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream,
        {.dy = gradient, .weight = adapter.first(), .dx = own, .accumulate = dropout_ == 0}));
    if (dropout_ == 0) continue;
    WEFT_RETURN_IF_ERROR(Drop(context, adapter, own, own, dy.first_row));
    WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {dx, own, dx}));
  }
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status LoraProducts::FactorGradients(Context& context, const Adapter& adapter, const Tensor& x,
                                     const OutputGradient& dy,
                                     const WeightGradientTarget& to) const {
  const TensorView da = adapter.a ? to.dtensors[0] : TensorView();
  const TensorView db = to.dtensors[adapter.a ? 1 : 0];
  const TensorView de = adapter.diagonal < 0 ? TensorView() : to.dtensors[2];
  if (!da && !db && !de) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Tensor left, Dropped(context, adapter, x, dy.first_row));
  const int64_t rows = x.shape().Rows();
  const Tensor gradient = MiddleGradientOf(adapter, dy.for_weight.values, rows);
  if (da) {
    WEFT_ASSIGN_OR_RETURN(const Tensor through, ThroughDiagonal(context, adapter, gradient));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = left, .dy = through, .dweight = da, .accumulate = to.accumulate}));
  }
  if (!db && !de) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Tensor middle, FirstProduct(context, adapter, left));
  CountWork(context.profiler, 2.0 * static_cast<double>(rows * adapter.rank * in_features_));
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
  return kernels::LinearBackwardWeight(context.stream, {.x = middle,
                                                        .dy = dy.dy.Columns(to.column, to.columns),
                                                        .dweight = db,
                                                        .accumulate = to.accumulate});
}

Status LoraProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                    std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    const auto adapter = std::find_if(adapters_.begin(), adapters_.end(), [&](const Adapter& each) {
      return each.column == to.column;
    });
    if (!to.dtensors.empty() && adapter != adapters_.end()) {
      WEFT_RETURN_IF_ERROR(FactorGradients(context, *adapter, x, dy, to));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_RETURN_IF_ERROR(dense_.WeightGradient(context, x, dy, {&to, 1}));
  }
  return OkStatus();
}

}  // namespace weft::engine
