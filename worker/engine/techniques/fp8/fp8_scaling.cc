#include "worker/engine/techniques/fp8/fp8_scaling.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/float8.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize_fp8/quantize_fp8.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Result<Tensor> Filled(Context& context, const Shape& shape, float value) {
  WEFT_ASSIGN_OR_RETURN(Tensor tensor,
                        Tensor::New(context, Component::kParameters, DType::kF32, shape));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {tensor, value}));
  return tensor;
}

Status Largest(Context& context, Collective& ranks, const Tensor& magnitudes) {
  return ranks.AllReduce(context.stream, magnitudes, Reduction::kMaxMagnitude, "largest magnitudes")
      .Wait(context.stream);
}

int64_t PaddedRows(int64_t rows) {
  return (rows + 15) / 16 * 16;
}

// Products take a scale at a multiple of 16 bytes: the floats of such a vector are as far apart.
constexpr int64_t kFloatsApart = 4;

Result<Tensor> FilledApart(Context& context, int64_t count, float value) {
  return Filled(context, {kFloatsApart * count}, value);
}

Status SetApart(Context& context, const Tensor& vector, const Tensor& apart) {
  const int64_t count = vector.shape()[0];
  return CopyRows(context.stream, vector.Part(0, DType::kF32, {count, 1}),
                  apart.Part(0, DType::kF32, {count, kFloatsApart}).Columns(0, 1));
}

Tensor ElementApart(const Tensor& apart, int64_t i) {
  return apart.Elements(kFloatsApart * i, 1);
}

// Makes what is wanted of [rows, columns] and is not there.
Status Prepare(Context& context, Component component, DType type, const Shape& shape,
               Fp8Scaling::Wanted wanted, Fp8Tensor& to) {
  if (wanted.codes && !to.codes) {
    WEFT_ASSIGN_OR_RETURN(to.codes, Tensor::New(context, component, type, shape));
  }
  if (wanted.transposed && !to.transposed) {
    WEFT_ASSIGN_OR_RETURN(to.transposed,
                          Tensor::New(context, component, type, {shape[1], PaddedRows(shape[0])}));
  }
  return OkStatus();
}

}  // namespace

void Fp8Scaling::SetStage(const std::vector<Shard::Range>& blocks, int64_t of) {
  stage_ = Shard{.axis = 0, .extent = 2 * kLayersOfBlock * of, .ranges = {}};
  for (const int64_t first : {int64_t{0}, kLayersOfBlock * of}) {
    for (const Shard::Range& range : blocks) {
      stage_->ranges.push_back(
          {first + kLayersOfBlock * range.begin, first + kLayersOfBlock * range.end});
    }
  }
  WEFT_CHECK(stage_->size() == 2 * layers_, "each block has as many layers");
}

Status Fp8Scaling::Allocate(Context& context) {
  if (layers_ == 0) return OkStatus();  // of a stage whose blocks are all bf16
  WEFT_ASSIGN_OR_RETURN(own_amax_, Filled(context, {1}, 0));
  WEFT_ASSIGN_OR_RETURN(own_history_, Filled(context, {1, 1}, 0));
  const int64_t tensors = 2 * layers_;
  WEFT_ASSIGN_OR_RETURN(largest_code_, Filled(context, {tensors}, LargestFloat8(GradientType())));
  WEFT_RETURN_IF_ERROR(kernels::Fill(
      context.stream, {largest_code_.Elements(0, layers_), LargestFloat8(DType::kF8E4M3)}));
  if (tensor_group_ != nullptr) {
    const auto weights = static_cast<int64_t>(weights_.size());
    WEFT_ASSIGN_OR_RETURN(weight_amax_, Filled(context, {weights}, 0));
    WEFT_ASSIGN_OR_RETURN(weight_history_, Filled(context, {weights, 1}, 0));
    WEFT_ASSIGN_OR_RETURN(weight_largest_code_,
                          Filled(context, {weights}, LargestFloat8(DType::kF8E4M3)));
    WEFT_ASSIGN_OR_RETURN(weight_scale_, Filled(context, {weights}, 1));
    WEFT_ASSIGN_OR_RETURN(weight_inverse_scale_, Filled(context, {weights}, 1));
    WEFT_ASSIGN_OR_RETURN(weight_operand_scale_, FilledApart(context, weights, 1));
  }
  if (!delayed()) return OkStatus();
  recorded_.assign(static_cast<size_t>(tensors), false);
  has_history_.assign(static_cast<size_t>(tensors), false);
  WEFT_ASSIGN_OR_RETURN(amax_, Filled(context, {tensors}, 0));
  WEFT_ASSIGN_OR_RETURN(history_, Filled(context, {tensors, spec_.history}, 0));
  WEFT_ASSIGN_OR_RETURN(scale_, Filled(context, {tensors}, 1));
  WEFT_ASSIGN_OR_RETURN(inverse_scale_, Filled(context, {tensors}, 1));
  WEFT_ASSIGN_OR_RETURN(operand_scale_, FilledApart(context, tensors, 1));
  return OkStatus();
}

// A tensor of zeros keeps scale 1.
Status Fp8Scaling::ScaleByOwn(Context& context, const TensorView& x, DType type, bool in_parts,
                              const Tensor& scale, const Tensor& inverse) const {
  const bool e4m3 = type == DType::kF8E4M3;
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {scale, 1}));
  WEFT_RETURN_IF_ERROR(kernels::QuantizeFp8(context.stream, {.x = x, .amax = own_amax_}));
  if (in_parts && tensor_group_ != nullptr) {
    WEFT_RETURN_IF_ERROR(Largest(context, *tensor_group_, own_amax_));
  }
  return kernels::UpdateFp8Scales(context.stream,
                                  {.amax = own_amax_,
                                   .history = own_history_,
                                   .largest_code = largest_code_.Elements(e4m3 ? 0 : layers_, 1),
                                   .scale = scale,
                                   .inverse_scale = inverse,
                                   .margin = static_cast<int>(spec_.margin)});
}

Result<Fp8Tensor> Fp8Scaling::Quantize(Context& context, int64_t tensor, DType type,
                                       const Tensor& x, Wanted wanted, bool record) const {
  Fp8Tensor to;
  Tensor scale;
  const auto index = static_cast<size_t>(tensor);
  if (delayed() && record) recorded_[index] = true;
  if (delayed() && has_history_[index]) {
    scale = scale_.Elements(tensor, 1);
    to.inverse_scale = ElementApart(operand_scale_, tensor);
  } else {
    WEFT_ASSIGN_OR_RETURN(scale, Tensor::New(context, Component::kWorkspace, DType::kF32, {1}));
    WEFT_ASSIGN_OR_RETURN(to.inverse_scale,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, {1}));
    const bool of_input = tensor < layers_;
    const Parts& parts = parts_[static_cast<size_t>(of_input ? tensor : tensor - layers_)];
    WEFT_RETURN_IF_ERROR(ScaleByOwn(context, x, type, of_input ? parts.inputs : parts.gradients,
                                    scale, to.inverse_scale));
  }
  const Shape shape{x.shape().Rows(), x.shape()[-1]};
  WEFT_RETURN_IF_ERROR(Prepare(context, Component::kWorkspace, type, shape, wanted, to));
  WEFT_RETURN_IF_ERROR(kernels::QuantizeFp8(
      context.stream, {.x = x,
                       .scale = scale,
                       .q = to.codes,
                       .transposed = to.transposed,
                       .amax = record && delayed() ? amax_.Elements(tensor, 1) : Tensor()}));
  return to;
}

Result<Fp8Tensor> Fp8Scaling::QuantizeInput(Context& context, int64_t layer, const Tensor& x,
                                            Wanted wanted, bool record) const {
  return Quantize(context, layer, DType::kF8E4M3, x, wanted, record);
}

Result<Fp8Tensor> Fp8Scaling::QuantizeGradient(Context& context, int64_t layer, const Tensor& dy,
                                               Wanted wanted) const {
  return Quantize(context, layers_ + layer, GradientType(), dy, wanted, true);
}

Status Fp8Scaling::StartPack(Context& context, Repack what) {
  if (operand_scale_) WEFT_RETURN_IF_ERROR(SetApart(context, inverse_scale_, operand_scale_));
  return AgreeOnWeights(context, what);
}

Status Fp8Scaling::AgreeOnWeights(Context& context, Repack what) {
  if (tensor_group_ == nullptr || weights_.empty()) return OkStatus();
  // The scales of all of them are made together: one that is trained is enough.
  const auto is_trained = [](const auto& trained) { return trained(); };
  if (agreed_ && what == Repack::kTrained && std::ranges::none_of(trained_, is_trained)) {
    return OkStatus();
  }
  for (size_t i = 0; i < weights_.size(); ++i) {
    WEFT_RETURN_IF_ERROR(kernels::QuantizeFp8(
        context.stream,
        {.x = weights_[i](), .amax = weight_amax_.Elements(static_cast<int64_t>(i), 1)}));
  }
  WEFT_RETURN_IF_ERROR(Largest(context, *tensor_group_, weight_amax_));
  // One of zeros has scale 1, whatever it was before.
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {weight_scale_, 1}));
  WEFT_RETURN_IF_ERROR(
      kernels::UpdateFp8Scales(context.stream, {.amax = weight_amax_,
                                                .history = weight_history_,
                                                .largest_code = weight_largest_code_,
                                                .scale = weight_scale_,
                                                .inverse_scale = weight_inverse_scale_,
                                                .margin = static_cast<int>(spec_.margin)}));
  WEFT_RETURN_IF_ERROR(SetApart(context, weight_inverse_scale_, weight_operand_scale_));
  agreed_ = true;
  return OkStatus();
}

Status Fp8Scaling::QuantizeWeight(Context& context, int64_t number, const TensorView& weight,
                                  Fp8Tensor& to) const {
  constexpr DType kType = DType::kF8E4M3;
  WEFT_RETURN_IF_ERROR(Prepare(context, Component::kParameters, kType, weight.shape,
                               {.codes = true, .transposed = with_gradients_}, to));
  Tensor scale;
  if (tensor_group_ != nullptr) {
    scale = weight_scale_.Elements(number, 1);
    to.inverse_scale = ElementApart(weight_operand_scale_, number);
  } else {
    if (!to.inverse_scale) {
      WEFT_ASSIGN_OR_RETURN(to.inverse_scale, Filled(context, {1}, 1));
    }
    WEFT_ASSIGN_OR_RETURN(scale, Tensor::New(context, Component::kWorkspace, DType::kF32, {1}));
    WEFT_RETURN_IF_ERROR(ScaleByOwn(context, weight, kType, false, scale, to.inverse_scale));
  }
  return kernels::QuantizeFp8(
      context.stream, {.x = weight, .scale = scale, .q = to.codes, .transposed = to.transposed});
}

Status Fp8Scaling::FinishStep(Context& context, int64_t step) {
  if (!delayed() || layers_ == 0) return OkStatus();
  for (size_t i = 0; i < recorded_.size(); ++i) {
    if (recorded_[i]) has_history_[i] = true;
    recorded_[i] = false;
  }
  WEFT_RETURN_IF_ERROR(
      kernels::UpdateFp8Scales(context.stream, {.amax = amax_,
                                                .history = history_,
                                                .largest_code = largest_code_,
                                                .scale = scale_,
                                                .inverse_scale = inverse_scale_,
                                                .slot = step % spec_.history,
                                                .margin = static_cast<int>(spec_.margin)}));
  return SetApart(context, inverse_scale_, operand_scale_);
}

std::vector<NamedTensor> Fp8Scaling::StateTensors() const {
  if (!delayed() || layers_ == 0) return {};
  std::vector<NamedTensor> tensors = {{"fp8/magnitudes", history_.view()},
                                      {"fp8/scales", scale_.view()},
                                      {"fp8/inverse_scales", inverse_scale_.view()}};
  for (NamedTensor& tensor : tensors) {
    if (!stage_) continue;
    tensor.part = {.whole = stage_->LogicalShape(tensor.view.shape), .shard = *stage_};
  }
  return tensors;
}

}  // namespace weft::engine
