#include "worker/engine/techniques/sparse24/sparse24_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse24_decay/sparse24_decay.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/techniques/sparse24/lazy_adapters.h"
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

Status Sparse24Layer::Allocate(Context& context, const SparsitySpec& spec) {
  if (!chosen_) return OkStatus();
  const Shape shape = WeightOf(layer_).shape;
  WEFT_ASSIGN_OR_RETURN(mask_, Tensor::New(context, Component::kParameters, DType::kU16,
                                           {shape[0] / kSide, shape[1] / kSide}));
  WEFT_ASSIGN_OR_RETURN(
      flips_, Tensor::New(context, Component::kParameters, DType::kI32, {shape[0] / kSide}));
  if (HasBackwardMasks(spec)) {
    WEFT_ASSIGN_OR_RETURN(backward_mask_,
                          Tensor::New(context, Component::kParameters, DType::kU16, mask_.shape()));
    WEFT_RETURN_IF_ERROR(Clear(context.stream, backward_mask_));
  }
  return Clear(context.stream, mask_);
}

Status Sparse24Layer::KeepAll(const Stream& stream) {
  return FillOnHost(stream, mask_, [](const TensorView& mask) {
    std::fill_n(mask.As<uint16_t>(), mask.shape.Elements(), uint16_t{0xffff});
  });
}

Status Sparse24Layer::FindMask(Context& context, const SparsitySpec& spec) {
  const TensorView weight = WeightOf(layer_);
  Changed();
  if (spec.method == "s_ste" && scale_ == 0) WEFT_RETURN_IF_ERROR(FindScale(context));
  if (!HasRowMasks(spec)) {
    return kernels::TransposableMask(context.stream, {weight, mask_, flips_});
  }
  WEFT_RETURN_IF_ERROR(kernels::RowMask(context.stream, {weight, mask_, flips_}));
  return backward_mask_ ? FindBackwardMask(context.stream) : OkStatus();
}

// Of what the mask keeps, the two largest magnitudes of each four in a column, of equals the first.
Status Sparse24Layer::FindBackwardMask(const Stream& stream) {
  const TensorView weight = WeightOf(layer_);
  WEFT_ASSIGN_OR_RETURN(const HostCopy weights, HostCopy::Of(stream, weight));
  WEFT_ASSIGN_OR_RETURN(const HostCopy masks, HostCopy::Of(stream, mask_));
  const int64_t columns = weight.shape[1], blocks = columns / kSide;
  const auto* mask = masks.view().As<uint16_t>();
  const auto twice = [&](int64_t block, const auto& magnitude) {
    uint16_t kept = 0;
    for (int64_t c = 0; c < kSide; ++c) {
      std::array<int64_t, kSide> rows = {0, 1, 2, 3};
      const auto has = [&](int64_t r) { return (mask[block] >> (kSide * r + c) & 1) != 0; };
      const auto end = std::stable_partition(rows.begin(), rows.end(), has);
      std::stable_sort(rows.begin(), end,
                       [&](int64_t a, int64_t b) { return magnitude(a, c) > magnitude(b, c); });
      for (auto row = rows.begin(); row != end && row != rows.begin() + 2; ++row) {
        kept = static_cast<uint16_t>(kept | 1 << (kSide * *row + c));
      }
    }
    return kept;
  };
  return FillOnHost(stream, backward_mask_, [&](const TensorView& to) {
    kernels::cpu::WithFloatType(weight.dtype, [&]<class T>() {
      const T* w = weights.view().As<T>();
      for (int64_t block = 0; block < mask_.shape().Elements(); ++block) {
        const int64_t first = (block / blocks * columns + block % blocks) * kSide;
        to.As<uint16_t>()[block] = twice(block, [&](int64_t r, int64_t c) {
          return std::fabs(static_cast<float>(ToFloat(w[first + r * columns + c])));
        });
      }
    });
  });
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

TensorView Sparse24Layer::mask_of(int64_t column, int64_t columns) const {
  return mask_.Rows(column / kSide, columns / kSide);
}

std::vector<Sparse24Layer::Part> Sparse24Layer::Parts() {
  std::vector<Part> parts;
  int64_t row = 0;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const int64_t rows = (*layer_.parameters)[i].shape[0] / kSide;
    parts.push_back({i, mask_.Rows(row, rows),
                     backward_mask_ ? backward_mask_.Rows(row, rows) : TensorView(), &scale_});
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
    backward_ = nullptr;
    held_ = {};
    return dense_.Pack(context, what);
  }
  dense_.Release();
  WEFT_RETURN_IF_ERROR(PackSparse(context, layer_->mask(), sparse_));
  int64_t bytes = sparse_->Bytes();
  if (layer_->backward_mask()) {
    WEFT_RETURN_IF_ERROR(PackSparse(context, layer_->backward_mask(), backward_));
    bytes += backward_->Bytes();
  }
  mask_version_ = layer_->version();
  return held_.Set(context.allocator, Component::kParameters, bytes);
}

Status Sparse24Products::PackSparse(Context& context, const TensorView& mask,
                                    std::unique_ptr<kernels::SparseWeight>& sparse) {
  const LinearLayer& layer = layer_->layer();
  const TensorView weight = WeightOf(layer);
  const bool made = sparse == nullptr;
  if (made) {
    WEFT_ASSIGN_OR_RETURN(sparse, kernels::NewSparseWeight(context.stream.device, weight.shape[0],
                                                           weight.shape[1], layer.compute));
  }
  if (made || mask_version_ != layer_->version()) {
    WEFT_RETURN_IF_ERROR(sparse->SetMask(context.stream, mask));
  }
  if (mode_->spec.method != "s_ste") return sparse->Pack(context.stream, weight);
  WEFT_ASSIGN_OR_RETURN(const Tensor shrunk,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, weight.shape));
  WEFT_RETURN_IF_ERROR(kernels::SoftThreshold(
      context.stream, {.weight = weight, .y = shrunk, .scale = layer_->scale()}));
  return sparse->Pack(context.stream, shrunk);
}

Status Sparse24Products::Forward(Context& context, const Tensor& x, const Tensor& y,
                                 const GeluValue& active, const ForwardUse& use) const {
  if (sparse_ == nullptr) return dense_.Forward(context, x, y, active, use);
  const LinearLayer& layer = layer_->layer();
  const bool adds_bias = layer.adds_bias && layer.bias >= 0;
  return kernels::SparseForward(
      context.stream,
      {.x = x,
       .weight = sparse_.get(),
       .bias =
           adds_bias ? layer.parameters->stacked_operand(layer.bias, layer.outputs) : TensorView(),
       .y = y,
       .active = active.value,
       .activation = active.activation()});
}

namespace {

// Whether a kernel makes the estimate, and another one reads it: SparseBackwardWeightArgs.
bool StoresEstimates(Device device, DType dtype) {
  return device.type == DeviceType::kCuda && dtype == DType::kF32;
}

}  // namespace

Result<OutputGradient> Sparse24Products::Prepare(Context& context, Tensor dy,
                                                 const GradientUse& use) const {
  if (!estimates()) return dense_.Prepare(context, std::move(dy), use);
  return OutputGradient{std::move(dy), {}, {}, use.first_row};
}

// Each of the stacked weights draws for its own columns, as it does where ranks shard them. Those
// whose columns are neighbours in the whole layer, too, draw together.
std::vector<Sparse24Products::DrawnColumns> Sparse24Products::ColumnsIn(
    const WeightGradientTarget& target) const {
  const LinearLayer& layer = layer_->layer();
  std::vector<DrawnColumns> drawn;
  int64_t column = 0, logical = 0;
  for (int64_t i = layer.weight; i < layer.weight + layer.outputs; ++i) {
    const Parameter& weight = (*layer.parameters)[i];
    const int64_t columns = weight.shape[0], first = logical + FirstRow(weight);
    if (column >= target.column && column < target.column + target.columns) {
      if (!drawn.empty() && drawn.back().first_column + drawn.back().columns == first) {
        drawn.back().columns += columns;
      } else {
        drawn.push_back({column - target.column, columns, first});
      }
    }
    column += columns;
    logical += weight.logical_shape()[0];
  }
  return drawn;
}

Status Sparse24Products::EstimatedGradient(Context& context, const Tensor& x, const Tensor& dy,
                                           const DrawnColumns& drawn, int64_t first_row,
                                           const WeightGradientTarget& target) const {
  const LinearLayer& layer = layer_->layer();
  const Tensor columns = dy.Columns(target.column + drawn.column, drawn.columns);
  kernels::MvueArgs draws = {
      .x = {},
      .y = {},
      .draw = mode_->spec.gradient_estimate == "sequential" ? kernels::MvueDraw::kSequential
                                                            : kernels::MvueDraw::kMinimumVariance,
      .key = {context.seed, static_cast<uint32_t>(context.step), site_},
      // Sequences whose length is no multiple of 4 share draws at their ends.
      .first_row = first_row / kSide * kSide,
      .first_column = drawn.first_column};
  for (int64_t i = layer.weight; i < layer.weight + layer.outputs; ++i) {
    draws.all_columns += (*layer.parameters)[i].logical_shape()[0];
  }
  TensorView dweight = target.dweight;
  dweight.data = dweight.As<float>() + drawn.column * dweight.row_stride;
  dweight.shape = {drawn.columns, dweight.shape[1]};
  kernels::SparseBackwardWeightArgs args = {.x = x,
                                            .dy = columns,
                                            .dweight = dweight,
                                            .accumulate = target.accumulate,
                                            .estimate = &draws};
  Tensor estimate;
  if (StoresEstimates(context.stream.device, columns.dtype())) {
    WEFT_ASSIGN_OR_RETURN(estimate, Tensor::New(context, Component::kWorkspace, columns.dtype(),
                                                {columns.shape().Rows(), drawn.columns}));
    draws.x = columns;
    draws.y = args.dy = estimate;
    args.estimate = nullptr;
    WEFT_RETURN_IF_ERROR(kernels::Mvue(context.stream, draws));
  }
  return kernels::SparseBackwardWeight(context.stream, args);
}

Status Sparse24Products::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                       const Tensor& before, const GeluValue& active) const {
  if (sparse_ == nullptr) return dense_.InputGradient(context, dy, dx, before, active);
  return kernels::SparseBackwardInput(context.stream,
                                      {.dy = dy.dy,
                                       .weight = (backward_ ? backward_ : sparse_).get(),
                                       .dx = dx,
                                       .before = before,
                                       .active = active.value,
                                       .activation = active.activation()});
}

// What the masks of slope leave out never counts, in the norm of the gradients neither.
Status Sparse24Products::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                        std::span<const WeightGradientTarget> targets) const {
  WEFT_RETURN_IF_ERROR(WholeGradient(context, x, dy, targets));
  if (mode_->spec.method != "slope") return OkStatus();
  for (const WeightGradientTarget& to : targets) {
    if (!to.dweight) continue;
    WEFT_RETURN_IF_ERROR(kernels::MaskedWeightDecay(
        context.stream,
        {.weight = {to.dweight.data, DType::kF32, {to.dweight.shape.Elements()}, to.dweight.device},
         .mask = layer_->mask_of(to.column, to.columns),
         .decay = 1,
         .learning_rate = 1.0f}));
  }
  return OkStatus();
}

Status Sparse24Products::WholeGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                       std::span<const WeightGradientTarget> targets) const {
  if (!estimates()) return dense_.WeightGradient(context, x, dy, targets);
  ProfileScope scope(context.profiler, "linear: 2:4 gradient");
  for (const WeightGradientTarget& to : targets) {
    if (to.dweight) {
      for (const DrawnColumns& drawn : ColumnsIn(to)) {
        WEFT_RETURN_IF_ERROR(EstimatedGradient(context, x, dy.dy, drawn, dy.first_row, to));
      }
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
  if (!CanBeSparse24((*layer.parameters)[layer.weight]) || weft::PrunesActivations(mode_.spec)) {
    return std::make_unique<DenseProducts>(layer);
  }
  layers_.push_back(std::make_unique<Sparse24Layer>(layer));
  if (!HasSparseProducts(mode_.spec)) return std::make_unique<DenseProducts>(layer);
  auto sparse = std::make_unique<Sparse24Products>(layers_.back().get(), &mode_);
  if (mode_.spec.adapter_rank == 0) return sparse;
  return std::make_unique<LazyAdapterProducts>(layer, std::move(sparse), &mode_.adapters);
}

std::vector<ParameterInfo> Sparse24ProductsFactory::AdaptersOf(const ParameterInfo& weight) const {
  return LazyAdaptersOf(mode_.spec, weight);
}

std::vector<float> Sparse24ProductsFactory::Merged(
    const ParameterInfo& weight, std::span<const float> values,
    const std::vector<std::vector<float>>& tensors) const {
  const int64_t out = weight.shape[0], in = weight.shape[1], rank = mode_.spec.adapter_rank;
  std::vector<float> merged(values.begin(), values.end());
  for (int64_t row = 0; row < out; ++row) {
    for (int64_t column = 0; column < in; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < rank; ++k) {
        sum += static_cast<double>(tensors[1][row * rank + k]) * tensors[0][k * in + column];
      }
      merged[row * in + column] += static_cast<float>(sum);
    }
  }
  return merged;
}

Status Sparse24ProductsFactory::ChooseLayers() {
  for (const auto& layer : layers_) WEFT_RETURN_IF_ERROR(layer->Choose());
  return OkStatus();
}

Status Sparse24ProductsFactory::Allocate(Context& context) {
  for (const auto& layer : layers_) WEFT_RETURN_IF_ERROR(layer->Allocate(context, mode_.spec));
  return OkStatus();
}

Status Sparse24ProductsFactory::KeepAll(const Stream& stream) {
  for (const auto& layer : layers_) {
    if (layer->mask()) WEFT_RETURN_IF_ERROR(layer->KeepAll(stream));
  }
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
