#include "worker/engine/techniques/sparse24/sparse24_products.h"

#include <algorithm>
#include <utility>

#include "common/rng.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_decay/sparse24_decay.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/sparse24/lazy_adapters.h"

namespace weft::engine {
namespace {

// Sides of the blocks of masks.
constexpr int64_t kSide = 4;

// The first of the rows of a weight that are here.
int64_t FirstRow(const Parameter& weight) {
  return weight.shard.whole() || weight.shard.axis != 0 ? 0 : weight.shard.ranges.front().begin;
}

}  // namespace

Sparse24Products::Sparse24Products(const Sparse24Layer* layer, const Sparse24Mode* mode,
                                   SpareSparseCopies* spare)
    : layer_(layer),
      mode_(mode),
      dense_(layer->layer()),
      copies_(std::make_shared<SparseCopies>(layer, HasSoftThresholds(mode->spec), spare)),
      site_(SiteHash(
          ((*layer->layer().parameters)[layer->layer().weight].name + "/2:4 gradient").c_str())) {
  layer->layer().parameters->AddCopies(layer->layer().weight, copies_);
}

Status Sparse24Products::Pack(Context& context, Repack what) {
  copies_->Use(mode_->sparse && layer_->version() > 0);
  if (!copies_->used()) return dense_.Pack(context, what);
  dense_.Release();
  // Sharded weights are packed whenever they have been gathered.
  if (layer_->layer().parameters->values_sharded()) return OkStatus();
  return copies_->Make(context);
}

Status Sparse24Products::Forward(Context& context, const Tensor& x, const Tensor& y,
                                 const GeluValue& active, const ForwardUse& use) const {
  if (!copies_->used()) return dense_.Forward(context, x, y, active, use);
  const LinearLayer& layer = layer_->layer();
  const bool adds_bias = layer.adds_bias && layer.bias >= 0;
  return kernels::SparseForward(
      context.stream,
      {.x = x,
       .weight = copies_->forward(),
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

// Rows of context-parallel ranks follow each other chunk by chunk.
std::vector<RowSpan> Sparse24Products::SpansOf(const OutputGradient& dy) const {
  const int64_t rows = dy.dy.shape().Rows();
  const Sparse24Ranks& ranks = mode_->ranks;
  if (ranks.context == nullptr) return {{0, rows, dy.first_row}};
  const int64_t length = ranks.sequence_length / ranks.context->degree();
  return ranks.context->SpansOf(0, rows, length, dy.first_row);
}

Status Sparse24Products::EstimatedGradient(Context& context, const Tensor& x, const Tensor& dy,
                                           const DrawnColumns& drawn, const RowSpan& span,
                                           const WeightGradientTarget& target) const {
  const LinearLayer& layer = layer_->layer();
  const Tensor columns =
      dy.Rows(span.row, span.rows).Columns(target.column + drawn.column, drawn.columns);
  kernels::MvueArgs draws = {
      .x = {},
      .y = {},
      .draw = mode_->spec.gradient_estimate == "sequential" ? kernels::MvueDraw::kSequential
                                                            : kernels::MvueDraw::kMinimumVariance,
      .key = {context.seed, static_cast<uint32_t>(context.step), site_},
      // Sequences whose length is no multiple of 4 share draws at their ends.
      .first_row = span.token / kSide * kSide,
      .first_column = drawn.first_column};
  for (int64_t i = layer.weight; i < layer.weight + layer.outputs; ++i) {
    draws.all_columns += (*layer.parameters)[i].logical_shape()[0];
  }
  TensorView dweight = target.dweight;
  dweight.data = dweight.As<float>() + drawn.column * dweight.row_stride;
  dweight.shape = {drawn.columns, dweight.shape[1]};
  kernels::SparseBackwardWeightArgs args = {.x = x.Rows(span.row, span.rows),
                                            .dy = columns,
                                            .dweight = dweight,
                                            .accumulate = target.accumulate || span.row > 0,
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
  if (!copies_->used()) return dense_.InputGradient(context, dy, dx, before, active);
  return kernels::SparseBackwardInput(context.stream, {.dy = dy.dy,
                                                       .weight = copies_->backward(),
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
        for (const RowSpan& span : SpansOf(dy)) {
          WEFT_RETURN_IF_ERROR(EstimatedGradient(context, x, dy.dy, drawn, span, to));
        }
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
  auto sparse = std::make_unique<Sparse24Products>(layers_.back().get(), &mode_, &spare_);
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
  for (const auto& layer : layers_) WEFT_RETURN_IF_ERROR(layer->Choose(mode_.spec));
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

// Layers without a mask are not trained.
Status Sparse24ProductsFactory::FindMasks(Context& context) {
  const auto masked = std::find_if(layers_.begin(), layers_.end(), [](const auto& layer) {
    return static_cast<bool>(layer->mask());
  });
  if (masked == layers_.end()) return OkStatus();
  const ParameterSet& parameters = *(*masked)->layer().parameters;
  const auto of_unit = [&](int64_t unit) -> Status {
    for (const auto& layer : layers_) {
      if (!layer->mask() || parameters[layer->layer().weight].unit != unit) continue;
      WEFT_RETURN_IF_ERROR(layer->FindMask(context, mode_.spec, mode_.ranks.tensor));
    }
    return OkStatus();
  };
  return ForEachUnit(context, parameters, of_unit, Pass::kTrained);
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
