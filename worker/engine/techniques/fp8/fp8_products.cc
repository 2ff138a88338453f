#include "worker/engine/techniques/fp8/fp8_products.h"

#include <algorithm>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "worker/engine/nn/dense_products.h"

namespace weft::engine {
namespace {

kernels::Fp8Matrix MatrixOf(const ProductOperand& operand) {
  return {operand.values, operand.scales};
}

}  // namespace

Fp8Products::Fp8Products(const LinearLayer& layer, Fp8Scaling* scaling, int64_t number)
    : layer_(layer),
      scaling_(scaling),
      number_(number),
      weight_number_(scaling->AddWeight(
          [parameters = layer.parameters, first = layer.weight, count = layer.outputs] {
            return parameters->stacked_value(first, count);
          },
          [parameters = layer.parameters, first = layer.weight, count = layer.outputs] {
            return parameters->AnyTrainable(first, count);
          })) {}

Status Fp8Products::Pack(Context& context, Repack what) {
  if (!weight_.codes || what == Repack::kAll || trained()) {
    const TensorView weight = layer_.parameters->stacked_value(layer_.weight, layer_.outputs);
    WEFT_RETURN_IF_ERROR(scaling_->QuantizeWeight(context, weight_number_, weight, weight_));
  }
  return PackBias(context);
}

Status Fp8Products::PackBias(Context& context) {
  if (layer_.bias < 0) return OkStatus();
  const TensorView bias = layer_.parameters->stacked_operand(layer_.bias, layer_.outputs);
  if (!bias_) {
    WEFT_ASSIGN_OR_RETURN(bias_,
                          Tensor::New(context, Component::kParameters, DType::kBF16, bias.shape));
  }
  return kernels::Cast(context.stream, {bias, bias_});
}

Status Fp8Products::Forward(Context& context, const Tensor& x, const Tensor& y,
                            const GeluValue& active, const ForwardUse& use) const {
  WEFT_ASSIGN_OR_RETURN(
      const Fp8Tensor codes,
      scaling_->QuantizeInput(context, number_, x, {.codes = true}, use.training));
  WEFT_RETURN_IF_ERROR(
      kernels::MatmulFp8(context.stream, {.a = codes.Rows(),
                                          .b = weight_.Rows(),
                                          .bias = layer_.adds_bias ? bias_ : Tensor(),
                                          .c = y,
                                          .fast_sums = true}));
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

// Adapters ask for operands of weight gradients, too; a frozen weight has none.
Result<OutputGradient> Fp8Products::Prepare(Context& context, Tensor dy,
                                            const GradientUse& use) const {
  const bool for_weight = use.for_weight && trained();
  if (!use.for_input && !for_weight) return OutputGradient{std::move(dy)};
  ProfileScope scope(context.profiler, "linear: FP8 gradient");
  WEFT_ASSIGN_OR_RETURN(
      const Fp8Tensor codes,
      scaling_->QuantizeGradient(context, number_, dy,
                                 {.codes = use.for_input, .transposed = for_weight}));
  return OutputGradient{
      std::move(dy), {codes.codes, codes.inverse_scale}, {codes.transposed, codes.inverse_scale}};
}

Status Fp8Products::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                  const Tensor& before, const GeluValue& active) const {
  WEFT_RETURN_IF_ERROR(kernels::MatmulFp8(
      context.stream, {.a = MatrixOf(dy.for_input), .b = weight_.Columns(), .c = dx}));
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status Fp8Products::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                   std::span<const WeightGradientTarget> targets) const {
  Fp8Tensor codes;
  if (std::ranges::any_of(targets, [](const auto& to) { return static_cast<bool>(to.dweight); })) {
    WEFT_ASSIGN_OR_RETURN(
        codes, scaling_->QuantizeInput(context, number_, x, {.transposed = true}, false));
  }
  for (const WeightGradientTarget& to : targets) {
    if (to.dweight) {
      WEFT_RETURN_IF_ERROR(kernels::MatmulFp8(
          context.stream,
          {.a = {dy.for_weight.values.Rows(to.column, to.columns), dy.for_weight.scales},
           .b = codes.Columns(),
           .c = to.dweight,
           .accumulate = to.accumulate}));
    }
    if (!to.dbias) continue;
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardWeight(context.stream, {.x = x,
                                                       .dy = dy.dy.Columns(to.column, to.columns),
                                                       .dbias = to.dbias,
                                                       .accumulate = to.accumulate}));
  }
  return OkStatus();
}

Shard::Range Fp8ProductsFactory::BlocksOf(int64_t blocks) const {
  const Fp8Spec& spec = scaling_.spec();
  return {spec.bf16_first_blocks, blocks - spec.bf16_last_blocks};
}

std::unique_ptr<WeightProducts> Fp8ProductsFactory::Make(const LinearLayer& layer) {
  const Shard::Range in_fp8 = BlocksOf(layer.block.blocks);
  if (layer.block.index < in_fp8.begin || layer.block.index >= in_fp8.end) {
    return std::make_unique<DenseProducts>(layer);
  }
  const auto add = [&] {
    return scaling_.AddLayer({.inputs = layer.shares_inputs, .gradients = layer.shares_outputs});
  };
  int64_t number = 0;
  if (layer.group.empty()) {
    number = add();
  } else {
    const auto [of_group, is_new] = groups_.try_emplace(layer.group);
    if (is_new) of_group->second = add();
    number = of_group->second;
  }
  return std::make_unique<Fp8Products>(layer, &scaling_, number);
}

void Fp8ProductsFactory::SetStage(const std::vector<Shard::Range>& blocks, int64_t of) {
  const Shard::Range in_fp8 = BlocksOf(of);
  std::vector<Shard::Range> own;
  for (const Shard::Range& each : blocks) {
    const Shard::Range range{std::max(each.begin, in_fp8.begin) - in_fp8.begin,
                             std::min(each.end, in_fp8.end) - in_fp8.begin};
    if (range.size() > 0) own.push_back(range);
  }
  scaling_.SetStage(own, in_fp8.size());
}

}  // namespace weft::engine
