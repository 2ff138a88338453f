#include "worker/engine/techniques/peft/dropped_dora.h"

#include <algorithm>
#include <utility>

#include "common/rng.h"
#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "worker/engine/techniques/peft/scaled_products.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// y = a - y.
Status SubtractFrom(Context& context, const Tensor& a, const Tensor& y) {
  WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {y, -1}));
  return kernels::Add(context.stream, {a, y, y});
}

/// The layer of one output.
LinearLayer OutputLayer(const LinearLayer& layer, size_t index) {
  LinearLayer own = layer;
  own.weights = {layer.weights[index]};
  own.weight = own.weights.front().first;
  own.outputs = 1;
  if (layer.bias >= 0) own.bias = layer.bias + static_cast<int64_t>(index);
  return own;
}

}  // namespace

DroppedDora::DroppedDora(const LinearLayer& layer, const PeftSpec& spec,
                         const LoraProducts::OnesOfRank& ones, Collective* share_inputs)
    : dropout_(layer, spec.dropout), in_(layer.in_features) {
  PeftSpec without_dropout = spec;
  without_dropout.dropout = 0;
  int64_t column = 0;
  for (size_t i = 0; i < layer.weights.size(); ++i) {
    const OutputWeight& weight = layer.weights[i];
    const LinearLayer own = OutputLayer(layer, i);
    Output output;
    output.column = column;
    output.columns = weight.rows;
    output.adapted = weight.adapters > 0;
    if (output.adapted) {
      LinearLayer without_bias = own;
      without_bias.bias = -1;
      auto dense = std::make_unique<DenseProducts>(without_bias);
      output.dense = dense.get();
      auto inner =
          std::make_unique<LoraProducts>(without_bias, without_dropout, ones, std::move(dense));
      output.products =
          std::make_unique<ScaledResults>(own, without_dropout, std::move(inner), share_inputs);
      output.site = SiteHash((*layer.parameters)[weight.first_adapter].name.c_str());
    } else {
      auto dense = std::make_unique<DenseProducts>(own);
      output.dense = dense.get();
      output.products = std::move(dense);
    }
    outputs_.push_back(std::move(output));
    column += weight.rows;
  }
}

Status DroppedDora::Pack(Context& context, Repack what) {
  for (const Output& output : outputs_) {
    WEFT_RETURN_IF_ERROR(output.products->Pack(context, what));
  }
  return OkStatus();
}

Result<Tensor> DroppedDora::Dropped(Context& context, const Output& output, const Tensor& x,
                                    int64_t first_row) const {
  WEFT_ASSIGN_OR_RETURN(Tensor left,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(dropout_.Apply(context, output.site, x, left, first_row));
  return left;
}

Result<Tensor> DroppedDora::ColumnsOf(Context& context, const Output& output,
                                      const Tensor& matrix) const {
  if (outputs_.size() == 1) return matrix;
  WEFT_ASSIGN_OR_RETURN(Tensor own, Tensor::New(context, Component::kWorkspace, matrix.dtype(),
                                                {matrix.shape().Rows(), output.columns}));
  WEFT_RETURN_IF_ERROR(
      CopyRows(context.stream, matrix.Columns(output.column, output.columns), own));
  return own;
}

Status DroppedDora::Forward(Context& context, const Tensor& x, const Tensor& y,
                            const GeluValue& active, const ForwardUse& use) const {
  const int64_t rows = x.shape().Rows();
  for (const Output& output : outputs_) {
    const bool drops = use.training && output.adapted;
    Tensor own = y;
    if (outputs_.size() > 1) {
      WEFT_ASSIGN_OR_RETURN(
          own, Tensor::New(context, Component::kWorkspace, y.dtype(), {rows, output.columns}));
    }
    Tensor read = x;
    if (drops) {
      WEFT_ASSIGN_OR_RETURN(read, Dropped(context, output, x, use.first_row));
    }
    WEFT_RETURN_IF_ERROR(output.products->Forward(context, read, own, {}, use));
    if (drops) {
      WEFT_RETURN_IF_ERROR(SubtractFrom(context, x, read));
      WEFT_RETURN_IF_ERROR(kernels::LinearForward(
          context.stream,
          {.x = read, .weight = output.dense->packed(), .y = own, .accumulate = true}));
      CountWork(context.profiler, 2.0 * static_cast<double>(rows * output.columns * in_));
    }
    if (outputs_.size() == 1) continue;
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, own, y.Columns(output.column, output.columns)));
  }
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

Result<OutputGradient> DroppedDora::Prepare(Context& /*context*/, Tensor dy,
                                            const GradientUse& use) const {
  OutputGradient prepared{std::move(dy)};
  prepared.first_row = use.first_row;
  return prepared;
}

Status DroppedDora::AddAdapterGradient(Context& context, const Output& output, const Tensor& dy,
                                       const Tensor& base, int64_t first_row,
                                       const Tensor& dx) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor own,
                        Tensor::New(context, Component::kWorkspace, dx.dtype(), dx.shape()));
  WEFT_ASSIGN_OR_RETURN(const OutputGradient prepared,
                        output.products->Prepare(context, dy, {.for_input = true}));
  WEFT_RETURN_IF_ERROR(output.products->InputGradient(context, prepared, own, {}, {}));
  CountWork(context.profiler, 2.0 * static_cast<double>(dy.shape().Rows() * output.columns * in_));
  // base + drop(own - base)
  WEFT_RETURN_IF_ERROR(SubtractFrom(context, base, own));
  WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {own, -1}));
  WEFT_RETURN_IF_ERROR(dropout_.Apply(context, output.site, own, own, first_row));
  return kernels::Add(context.stream, {dx, own, dx});
}

Status DroppedDora::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                  const Tensor& before, const GeluValue& active) const {
  bool begun = false;
  for (const Output& output : outputs_) {
    WEFT_ASSIGN_OR_RETURN(const Tensor part, ColumnsOf(context, output, dy.dy));
    Tensor base = dx;
    if (begun && output.adapted) {
      WEFT_ASSIGN_OR_RETURN(base,
                            Tensor::New(context, Component::kWorkspace, dx.dtype(), dx.shape()));
    }
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardInput(context.stream, {.dy = part,
                                                      .weight = output.dense->packed(),
                                                      .dx = base,
                                                      .accumulate = begun && !output.adapted}));
    if (output.adapted) {
      WEFT_RETURN_IF_ERROR(AddAdapterGradient(context, output, part, base, dy.first_row, dx));
      if (begun) WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {dx, base, dx}));
    }
    begun = true;
  }
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status DroppedDora::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                   std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    // Each is of one output, since one of them has an adapter.
    const auto output = std::find_if(outputs_.begin(), outputs_.end(),
                                     [&](const Output& each) { return each.column == to.column; });
    WEFT_ASSIGN_OR_RETURN(const Tensor part, ColumnsOf(context, *output, dy.dy));
    WeightGradientTarget own = to;
    own.column = 0;
    own.dweight = own.dbias = {};
    if (own.trains_weight()) {
      WEFT_ASSIGN_OR_RETURN(const Tensor read, Dropped(context, *output, x, dy.first_row));
      WEFT_ASSIGN_OR_RETURN(const OutputGradient prepared,
                            output->products->Prepare(context, part, {.for_weight = true}));
      WEFT_RETURN_IF_ERROR(output->products->WeightGradient(context, read, prepared, {&own, 1}));
    }
    if (!to.dweight && !to.dbias) continue;
    own.dweight = to.dweight;
    own.dbias = to.dbias;
    own.dtensors.clear();
    WEFT_RETURN_IF_ERROR(output->dense->WeightGradient(context, x, {part}, {&own, 1}));
  }
  return OkStatus();
}

}  // namespace weft::engine
