#include "worker/engine/techniques/sparse24/sparse24_products.h"

#include <numeric>
#include <utility>

#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Sides of the blocks of masks.
constexpr int64_t kSide = 4;

TensorView WeightOf(const LinearLayer& layer) {
  return layer.parameters->stacked_value(layer.weight, layer.outputs);
}

// The first of the rows of a weight that are here.
int64_t FirstRow(const Parameter& weight) {
  return weight.shard.whole() || weight.shard.axis != 0 ? 0 : weight.shard.ranges.front().begin;
}

}  // namespace

Status Sparse24Layer::Choose() {
  const ParameterSet& parameters = *layer_.parameters;
  chosen_ = true;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const Parameter& weight = parameters[i];
    chosen_ = chosen_ && CanBeSparse24(weight);
    if (!chosen_ || (weight.shape[0] % kSide == 0 && weight.shape[1] % kSide == 0)) continue;
    return InvalidError("train.sparsity needs weights whose sides are multiples of 4, and " +
                        weight.name + " is " + std::to_string(weight.shape[0]) + " x " +
                        std::to_string(weight.shape[1]) +
                        " on this rank; hint: resources.tensor_parallel, model.mlp_width");
  }
  return OkStatus();
}

Status Sparse24Layer::Allocate(Context& context) {
  if (!chosen_) return OkStatus();
  const Shape shape = WeightOf(layer_).shape;
  WEFT_ASSIGN_OR_RETURN(mask_, Tensor::New(context, Component::kParameters, DType::kU16,
                                           {shape[0] / kSide, shape[1] / kSide}));
  WEFT_ASSIGN_OR_RETURN(
      flips_, Tensor::New(context, Component::kParameters, DType::kI32, {shape[0] / kSide}));
  return Clear(context.stream, mask_);
}

Status Sparse24Layer::FindMask(Context& context, const SparsitySpec& spec) {
  const TensorView weight = WeightOf(layer_);
  Changed();
  if (spec.method == "s_ste" && scale_ == 0) WEFT_RETURN_IF_ERROR(FindScale(context));
  return HasRowMasks(spec) ? kernels::RowMask(context.stream, {weight, mask_, flips_})
                           : kernels::TransposableMask(context.stream, {weight, mask_, flips_});
}

// <W, s(W)> / <s(W), s(W)>
Status Sparse24Layer::FindScale(Context& context) {
  const TensorView weight = WeightOf(layer_);
  WEFT_ASSIGN_OR_RETURN(const Tensor shrunk,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, weight.shape));
  WEFT_RETURN_IF_ERROR(kernels::SoftThreshold(context.stream, {.weight = weight, .y = shrunk}));
  WEFT_ASSIGN_OR_RETURN(const HostCopy values, HostCopy::Of(context.stream, weight));
  WEFT_ASSIGN_OR_RETURN(const HostCopy parts, HostCopy::Of(context.stream, shrunk));
  double product = 0, square = 0;
  kernels::cpu::WithFloatType(weight.dtype, [&]<class T>() {
    const T* w = values.view().As<T>();
    const auto* s = parts.view().As<float>();
    for (int64_t i = 0; i < weight.shape.Elements(); ++i) {
      product += static_cast<double>(ToFloat(w[i])) * s[i];
      square += static_cast<double>(s[i]) * s[i];
    }
  });
  scale_ = square > 0 ? static_cast<float>(product / square) : 1.0f;
  return OkStatus();
}

Result<int64_t> Sparse24Layer::CountFlips(Context& context) const {
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(context.stream, flips_));
  const auto* of_rows = copy.view().As<int32_t>();
  return std::accumulate(of_rows, of_rows + flips_.shape()[0], int64_t{0});
}

std::vector<Sparse24Layer::Part> Sparse24Layer::Parts() {
  std::vector<Part> parts;
  int64_t row = 0;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const int64_t rows = (*layer_.parameters)[i].shape[0] / kSide;
    parts.push_back({i, mask_.Rows(row, rows), &scale_});
    row += rows;
  }
  return parts;
}

Sparse24Products::Sparse24Products(const Sparse24Layer* layer, const Sparse24Mode* mode)
    : layer_(layer),
      mode_(mode),
      dense_(layer->layer()),
      site_(SiteHash(
          ((*layer->layer().parameters)[layer->layer().weight].name + "/2:4 gradient").c_str())) {}

Status Sparse24Products::Pack(Context& context, Repack what) {
  if (!mode_->sparse || layer_->version() == 0) {
    sparse_ = nullptr;
    held_ = {};
    return dense_.Pack(context, what);
  }
  const LinearLayer& layer = layer_->layer();
  const TensorView weight = WeightOf(layer);
  if (sparse_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(sparse_, kernels::NewSparseWeight(context.stream.device, weight.shape[0],
                                                            weight.shape[1], layer.compute));
    mask_version_ = -1;
  }
  if (mask_version_ != layer_->version()) {
    WEFT_RETURN_IF_ERROR(sparse_->SetMask(context.stream, layer_->mask()));
    mask_version_ = layer_->version();
  }
  WEFT_RETURN_IF_ERROR(PackSparse(context, weight));
  return held_.Set(context.allocator, Component::kParameters, sparse_->Bytes());
}

Status Sparse24Products::PackSparse(Context& context, const TensorView& weight) {
  if (mode_->spec.method != "s_ste") return sparse_->Pack(context.stream, weight);
  WEFT_ASSIGN_OR_RETURN(const Tensor shrunk,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, weight.shape));
  WEFT_RETURN_IF_ERROR(kernels::SoftThreshold(
      context.stream, {.weight = weight, .y = shrunk, .scale = layer_->scale()}));
  return sparse_->Pack(context.stream, shrunk);
}

Status Sparse24Products::Forward(Context& context, const Tensor& x, const Tensor& y,
                                 const GeluValue& active, bool training) const {
  if (sparse_ == nullptr) return dense_.Forward(context, x, y, active, training);
  const LinearLayer& layer = layer_->layer();
  const bool adds_bias = layer.adds_bias && layer.bias >= 0;
  WEFT_RETURN_IF_ERROR(kernels::SparseForward(
      context.stream,
      {.x = x,
       .weight = sparse_.get(),
       .bias =
           adds_bias ? layer.parameters->stacked_operand(layer.bias, layer.outputs) : TensorView(),
       .y = y}));
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

// Each of the stacked weights draws for its own columns, as it does where ranks share them.
Result<OutputGradient> Sparse24Products::Prepare(Context& context, Tensor dy,
                                                 const GradientUse& use) const {
  const SparsitySpec& spec = mode_->spec;
  if (sparse_ == nullptr || !use.for_weight || spec.gradient_estimate == "exact") {
    return dense_.Prepare(context, std::move(dy), use);
  }
  ProfileScope scope(context.profiler, "linear: 2:4 gradient");
  WEFT_ASSIGN_OR_RETURN(Tensor estimate, Tensor::New(context, Component::kWorkspace, dy.dtype(),
                                                     {dy.shape().Rows(), dy.shape()[-1]}));
  const LinearLayer& layer = layer_->layer();
  int64_t all_columns = 0;
  for (int64_t i = layer.weight; i < layer.weight + layer.outputs; ++i) {
    all_columns += (*layer.parameters)[i].logical_shape()[0];
  }
  int64_t column = 0, first_column = 0;
  for (int64_t i = layer.weight; i < layer.weight + layer.outputs; ++i) {
    const Parameter& weight = (*layer.parameters)[i];
    const int64_t columns = weight.shape[0];
    WEFT_RETURN_IF_ERROR(kernels::Mvue(
        context.stream,
        {.x = dy.Columns(column, columns),
         .y = estimate.Columns(column, columns),
         .draw = spec.gradient_estimate == "sequential" ? kernels::MvueDraw::kSequential
                                                        : kernels::MvueDraw::kMinimumVariance,
         .key = {context.seed, static_cast<uint32_t>(context.step), site_},
         // Sequences whose length is no multiple of 4 share draws at their ends.
         .first_row = use.first_row / kSide * kSide,
         .first_column = first_column + FirstRow(weight),
         .all_columns = all_columns}));
    column += columns;
    first_column += weight.logical_shape()[0];
  }
  return OutputGradient{std::move(dy), {}, {std::move(estimate), {}}};
}

Status Sparse24Products::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                       const Tensor& before, const GeluValue& active) const {
  if (sparse_ == nullptr) return dense_.InputGradient(context, dy, dx, before, active);
  WEFT_RETURN_IF_ERROR(kernels::SparseBackwardInput(
      context.stream, {.dy = dy.dy, .weight = sparse_.get(), .dx = dx}));
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status Sparse24Products::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                        std::span<const WeightGradientTarget> targets) const {
  const Tensor& estimate = dy.for_weight.values;
  if (!estimate) return dense_.WeightGradient(context, x, dy, targets);
  for (const WeightGradientTarget& to : targets) {
    if (to.dweight) {
      WEFT_RETURN_IF_ERROR(kernels::SparseBackwardWeight(
          context.stream, {.x = x,
                           .dy = estimate.Columns(to.column, to.columns),
                           .dweight = to.dweight,
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

std::unique_ptr<WeightProducts> Sparse24ProductsFactory::Make(const LinearLayer& layer) {
  if (!CanBeSparse24((*layer.parameters)[layer.weight])) {
    return std::make_unique<DenseProducts>(layer);
  }
  layers_.push_back(std::make_unique<Sparse24Layer>(layer));
  if (!HasSparseProducts(mode_.spec)) return std::make_unique<DenseProducts>(layer);
  return std::make_unique<Sparse24Products>(layers_.back().get(), &mode_);
}

Status Sparse24ProductsFactory::ChooseLayers() {
  for (const auto& layer : layers_) WEFT_RETURN_IF_ERROR(layer->Choose());
  return OkStatus();
}

Status Sparse24ProductsFactory::Allocate(Context& context) {
  for (const auto& layer : layers_) WEFT_RETURN_IF_ERROR(layer->Allocate(context));
  return OkStatus();
}

Status Sparse24ProductsFactory::FindMasks(Context& context) {
  for (const auto& layer : layers_) {
    if (!layer->mask()) continue;  // It is not trained.
    WEFT_RETURN_IF_ERROR(layer->FindMask(context, mode_.spec));
  }
  return OkStatus();
}

void Sparse24ProductsFactory::MasksChanged() {
  for (const auto& layer : layers_) {
    if (layer->mask()) layer->Changed();
  }
}

Result<Sparse24ProductsFactory::Flips> Sparse24ProductsFactory::CountFlips(Context& context) const {
  Flips flips;
  for (const auto& layer : layers_) {
    if (!layer->mask()) continue;
    WEFT_ASSIGN_OR_RETURN(const int64_t changed, layer->CountFlips(context));
    flips.changed += changed;
    flips.elements += kSide * kSide * layer->mask().shape.Elements();
  }
  return flips;
}

std::vector<Sparse24Layer::Part> Sparse24ProductsFactory::Parts() const {
  std::vector<Sparse24Layer::Part> all;
  for (const auto& layer : layers_) {
    if (!layer->mask()) continue;
    for (const Sparse24Layer::Part& part : layer->Parts()) all.push_back(part);
  }
  return all;
}

}  // namespace weft::engine
