#include "worker/engine/techniques/pruning/pruned_products.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/linear/linear.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/techniques/pruning/pruning_cost.h"
#include "worker/engine/techniques/weight_on_device.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Sides of the blocks of a mask of kernels/sparse24.
constexpr int64_t kSide = 4;

ComputeUnits UnitsOf(const Device& device) {
  if (device.type == DeviceType::kCuda) return ComputeUnits::kCuda;
  return kernels::cpu::ActiveIsa() >= kernels::cpu::Isa::kAmx ? ComputeUnits::kCpuMatrix
                                                              : ComputeUnits::kCpuVector;
}

// Packs bytes [kSide, columns] into the bits of each block.
void PackBlocks(const uint8_t* kept, int64_t columns, uint16_t* blocks) {
  for (int64_t block = 0; block < columns / kSide; ++block) {
    int bits = 0;
    for (int64_t r = 0; r < kSide; ++r) {
      for (int64_t c = 0; c < kSide; ++c) {
        const int bit = kept[r * columns + kSide * block + c] != 0 ? 1 : 0;
        bits |= bit << (kSide * r + c);
      }
    }
    blocks[block] = static_cast<uint16_t>(bits);
  }
}

}  // namespace

PrunedProducts::PrunedProducts(const LinearLayer& layer, const PruningSpec& spec,
                               const PrunedMode* mode)
    : layer_(layer), spec_(spec), mode_(mode), dense_(layer) {}

Result<double> PrunedProducts::Density(const Stream& stream) const {
  std::array<double, 2> counts = {0, 0};
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const auto mask = mode_->masks.find(i);
    if (mask == mode_->masks.end()) return 1.0;
    WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(stream, mask->second));
    const auto* from = copy.view().As<uint8_t>();
    const int64_t weights = mask->second.shape.Elements();
    counts[0] += static_cast<double>(weights - std::count(from, from + weights, uint8_t{0}));
    counts[1] += static_cast<double>(weights);
  }
  if (mode_->tensor_ranks != nullptr) {
    WEFT_RETURN_IF_ERROR(SumScalars(*mode_->tensor_ranks, counts));
  }
  return counts[0] / counts[1];
}

Status PrunedProducts::TakeMasks(Context& context) {
  sparse_ = nullptr;
  const Stream& stream = context.stream;
  const ComputeUnits units = UnitsOf(stream.device);
  // Tensor-parallel ranks on other processors sum what they keep, too.
  const bool may_be_sparse = UsesSparseProducts(spec_, layer_.compute, 0, units) ||
                             UsesSparseProducts(spec_, layer_.compute, 0, ComputeUnits::kCpuVector);
  if (!mode_->chosen || !may_be_sparse) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const double density, Density(stream));
  if (!UsesSparseProducts(spec_, layer_.compute, density, units)) return OkStatus();
  const ParameterSet& parameters = *layer_.parameters;
  int64_t out = 0;
  std::vector<uint16_t> blocks;
  for (int64_t i = layer_.weight; i < layer_.weight + layer_.outputs; ++i) {
    const int64_t rows = parameters[i].shape[0], columns = parameters[i].shape[1];
    if (rows % kSide != 0 || columns % kSide != 0) return OkStatus();
    const auto first = blocks.size();
    blocks.resize(first + static_cast<size_t>(rows * columns / (kSide * kSide)));
    WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(stream, mode_->masks.at(i)));
    const auto* from = copy.view().As<uint8_t>();
    for (int64_t row = 0; row < rows; row += kSide) {
      PackBlocks(from + row * columns, columns,
                 &blocks[first + static_cast<size_t>(row * columns / (kSide * kSide))]);
    }
    out += rows;
  }
  const int64_t in = layer_.in_features;
  WEFT_ASSIGN_OR_RETURN(sparse_, kernels::NewSparseWeight(stream.device, out, in, layer_.compute,
                                                          kernels::MaskKind::kUnstructured));
  TensorView mask(blocks.data(), DType::kU16, {out / kSide, in / kSide});
  Tensor on_device;
  if (units == ComputeUnits::kCuda) {
    WEFT_ASSIGN_OR_RETURN(on_device,
                          Tensor::New(context, Component::kWorkspace, DType::kU16, mask.shape));
    WEFT_RETURN_IF_ERROR(Upload(stream, blocks.data(), on_device));
    mask = on_device;
  }
  return sparse_->SetMask(stream, mask);
}

Status PrunedProducts::Pack(Context& context, Repack what) {
  if (version_ != mode_->version) {
    WEFT_RETURN_IF_ERROR(TakeMasks(context));
    version_ = mode_->version;
  }
  if (sparse_ == nullptr) {
    held_ = {};
    return dense_.Pack(context, what);
  }
  dense_.Release();
  const DType held = (*layer_.parameters)[layer_.weight].dtype;
  WEFT_ASSIGN_OR_RETURN(const WeightOnDevice weight, WeightOnDevice::Of(context, layer_, held));
  WEFT_RETURN_IF_ERROR(sparse_->Pack(context.stream, weight.view()));
  return held_.Set(context.allocator, Component::kParameters, sparse_->Bytes());
}

Status PrunedProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                               const GeluValue& active, const ForwardUse& use) const {
  if (sparse_ == nullptr) return dense_.Forward(context, x, y, active, use);
  const bool adds_bias = layer_.adds_bias && layer_.bias >= 0;
  return kernels::SparseForward(
      context.stream,
      {.x = x,
       .weight = sparse_.get(),
       .bias = adds_bias ? layer_.parameters->stacked_operand(layer_.bias, layer_.outputs)
                         : TensorView(),
       .y = y,
       .active = active.value,
       .activation = active.activation()});
}

Result<OutputGradient> PrunedProducts::Prepare(Context& context, Tensor dy,
                                               const GradientUse& use) const {
  return dense_.Prepare(context, std::move(dy), use);
}

Status PrunedProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                     const Tensor& before, const GeluValue& active) const {
  if (sparse_ == nullptr) return dense_.InputGradient(context, dy, dx, before, active);
  return kernels::SparseBackwardInput(context.stream, {.dy = dy.dy,
                                                       .weight = sparse_.get(),
                                                       .dx = dx,
                                                       .before = before,
                                                       .active = active.value,
                                                       .activation = active.activation()});
}

Status PrunedProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                      std::span<const WeightGradientTarget> targets) const {
  // A GPU differentiates by all weights: the technique makes the gradients of pruned ones zero.
  const bool samples = context.stream.device.type == DeviceType::kCpu;
  if (sparse_ == nullptr || mode_->whole_gradients || !samples) {
    return dense_.WeightGradient(context, x, dy, targets);
  }
  for (const WeightGradientTarget& to : targets) {
    const Tensor gradient = dy.dy.Columns(to.column, to.columns);
    if (to.dweight) {
      WEFT_RETURN_IF_ERROR(
          kernels::SampledBackwardWeight(context.stream, {.x = x,
                                                          .dy = gradient,
                                                          .weight = sparse_.get(),
                                                          .first_row = to.column,
                                                          .dweight = to.dweight,
                                                          .accumulate = to.accumulate}));
    }
    if (!to.dbias) continue;
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = x, .dy = gradient, .dbias = to.dbias, .accumulate = to.accumulate}));
  }
  return OkStatus();
}

std::unique_ptr<WeightProducts> PrunedProductsFactory::Make(const LinearLayer& layer) {
  const Parameter& weight = (*layer.parameters)[layer.weight];
  if (!IsPruned(spec_, weight, weight.name)) return std::make_unique<DenseProducts>(layer);
  return std::make_unique<PrunedProducts>(layer, spec_, &mode_);
}

}  // namespace weft::engine
