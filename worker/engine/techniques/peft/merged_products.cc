#include "worker/engine/techniques/peft/merged_products.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"

namespace weft::engine {

/// W' and its packed copy.
class MergedProducts::MergedCopy : public DerivedCopies {
 public:
  MergedCopy(const MergedProducts* products, PackedCopies* spare)
      : products_(products), spare_(spare) {}

  const kernels::PackedWeight* packed() const { return packed_.weight.get(); }

  bool trained() const override { return true; }
  // A CUDA device reads a matrix of the type of its products as it is: then that is W'. Elsewhere
  // W' stays where it was made, in f32, unless the packed copy is all that products read. What
  // products read has one place, since graphs of a device name it.
  Status Reserve(Context& context) override {
    const int64_t out = products_->out_, in = products_->in_;
    if (packed_.weight == nullptr) {
      WEFT_ASSIGN_OR_RETURN(packed_, spare_->Take(context, out, in, products_->compute_));
    }
    if (merged_ || !packed_.weight->reads_master()) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(merged_,
                          Tensor::New(context, Component::kParameters, TypeOf(context), {out, in}));
    return OkStatus();
  }
  Status Make(Context& context) override {
    WEFT_RETURN_IF_ERROR(Reserve(context));
    Tensor values = merged_;
    if (!merged_ || TypeOf(context) != DType::kF32) {
      WEFT_ASSIGN_OR_RETURN(values, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                {products_->out_, products_->in_}));
    }
    WEFT_RETURN_IF_ERROR(products_->Merge(context, values));
    if (merged_ && TypeOf(context) != DType::kF32) {
      WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {values, merged_}));
    }
    WEFT_RETURN_IF_ERROR(packed_.weight->Pack(context.stream, merged_ ? merged_ : values));
    return packed_.held.Set(context.allocator, Component::kParameters, packed_.weight->Bytes());
  }
  bool read_values() const override { return false; }
  void Drop() override {
    spare_->Give(std::move(packed_));
    merged_ = {};
  }

 private:
  DType TypeOf(const Context& context) const {
    return context.stream.device.type == DeviceType::kCuda ? products_->compute_ : DType::kF32;
  }

  const MergedProducts* products_;
  PackedCopies* spare_;
  Tensor merged_;  ///< W', where products read it besides its packed copy.
  PackedCopy packed_;
};

MergedProducts::MergedProducts(const LinearLayer& layer, const PeftSpec& spec)
    : parameters_(layer.parameters),
      compute_(layer.compute),
      in_(layer.in_features),
      bias_(layer.adds_bias ? layer.bias : -1) {
  for (const OutputWeight& weight : layer.weights) {
    Output output{.column = out_, .columns = weight.rows, .weight = weight.first};
    if (weight.adapters > 0) {
      ParameterInfo info;
      info.name = (*parameters_)[weight.first_adapter].adapter_of;
      const Shape whole = (*parameters_)[weight.first].logical_shape();
      info.shape = {whole[0], whole[1]};
      output.merged = NewMergedWeight(layer, spec, weight);
      for (const Gemm& product : MergeProducts(spec, info)) output.flops += product.Flops();
    }
    out_ += weight.rows;
    outputs_.push_back(std::move(output));
  }
  copy_ = std::make_shared<MergedCopy>(this, &layer.parameters->spare_copies());
  layer.parameters->AddCopies(outputs_.front().weight, copy_);
}

Status MergedProducts::Merge(Context& context, const Tensor& merged) const {
  for (const Output& output : outputs_) {
    const Tensor own = merged.Rows(output.column, output.columns);
    WEFT_RETURN_IF_ERROR(kernels::AddScaled(
        context.stream, {.x = parameters_->value(output.weight), .y = own, .keep = 0}));
    if (!output.merged) continue;
    WEFT_RETURN_IF_ERROR(output.merged->Merge(context, own));
    CountWork(context.profiler, output.flops);
  }
  return OkStatus();
}

Status MergedProducts::Pack(Context& context, Repack /*what*/) {
  return parameters_->values_sharded() ? OkStatus() : copy_->Make(context);
}

Status MergedProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                               const GeluValue& active, const ForwardUse& /*use*/) const {
  const TensorView bias =
      bias_ < 0 ? TensorView() : parameters_->stacked_operand(bias_, std::ssize(outputs_));
  return kernels::LinearForward(context.stream, {.x = x,
                                                 .weight = copy_->packed(),
                                                 .bias = bias,
                                                 .y = y,
                                                 .active = active.value,
                                                 .gelu = active.form});
}

Result<OutputGradient> MergedProducts::Prepare(Context& /*context*/, Tensor dy,
                                               const GradientUse& /*use*/) const {
  return OutputGradient{std::move(dy)};
}

Status MergedProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                     const Tensor& before, const GeluValue& active) const {
  return kernels::LinearBackwardInput(context.stream, {.dy = dy.dy,
                                                       .weight = copy_->packed(),
                                                       .dx = dx,
                                                       .before = before,
                                                       .active = active.value,
                                                       .gelu = active.form});
}

Status MergedProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                      std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    const Tensor own = dy.dy.Columns(to.column, to.columns);
    const auto output = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& each) {
      return each.column == to.column && each.merged;
    });
    if (!to.dtensors.empty() && output != outputs_.end()) {
      WEFT_ASSIGN_OR_RETURN(const Tensor gradient, Tensor::New(context, Component::kWorkspace,
                                                               DType::kF32, {to.columns, in_}));
      WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
          context.stream, {.x = x, .dy = own, .dweight = gradient, .accumulate = false}));
      CountWork(context.profiler, 2.0 * static_cast<double>(x.shape().Rows() * to.columns * in_));
      WEFT_RETURN_IF_ERROR(
          output->merged->Gradients(context, parameters_->value(output->weight), gradient, to));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardWeight(context.stream, {.x = x,
                                                       .dy = own,
                                                       .dweight = to.dweight,
                                                       .dbias = to.dbias,
                                                       .accumulate = to.accumulate}));
  }
  return OkStatus();
}

}  // namespace weft::engine
