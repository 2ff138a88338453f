#include "worker/engine/nn/activation_compressor.h"

#include <utility>

#include "kernels/group_quantize/group_quantize.h"

namespace weft::engine {
namespace {

constexpr int64_t kMostTensorsOfALayer = 16;

/// Codes and scales of a tensor, in one piece of memory; the codes first, so that they are aligned.
struct Parts {
  Tensor codes;
  Tensor scales;

  Parts(const Tensor& memory, int64_t elements, int64_t bits) {
    const int64_t groups = kernels::QuantizeGroups(elements);
    codes = memory.Part(0, DType::kU8, {groups, 16 * bits});
    scales = memory.Part(codes.Bytes(), DType::kF32, {groups, 2});
  }
};

}  // namespace

Result<SavedTensor> ActivationCompressor::Keep(Context& context, const Tensor& tensor) {
  ProfileScope scope(context.profiler, "compress activation");
  const int64_t elements = tensor.shape().Elements();
  const int64_t bytes = kernels::QuantizeGroups(elements) * (8 + 16 * bits_);
  WEFT_ASSIGN_OR_RETURN(Tensor memory,
                        Tensor::New(context, Component::kActivations, DType::kU8, {bytes}));
  const Parts parts(memory, elements, bits_);
  // The golden ratio spreads layers and tensors over the sites of other names.
  const auto place = static_cast<uint32_t>(layer_ * kMostTensorsOfALayer + kept_++);
  const PhiloxKey key = {context.seed, static_cast<uint32_t>(context.step),
                         SiteHash("saved activation") + place * 0x9e3779b9u};
  WEFT_RETURN_IF_ERROR(kernels::GroupQuantize(
      context.stream, {.x = tensor,
                       .codes = parts.codes,
                       .scales = parts.scales,
                       .bits = bits_,
                       .key = key,
                       .step = context.Number(key.step, &StepNumbers::step).at,
                       .first_element = static_cast<uint64_t>(first_token_ * tensor.shape()[-1])}));
  return Tape::Save({},
                    [kept = KeepExactly(std::move(memory)), bits = bits_, dtype = tensor.dtype(),
                     shape = tensor.shape()](Context& ctx, const Tensor&) -> Result<Tensor> {
                      ProfileScope restoring(ctx.profiler, "restore activation");
                      WEFT_ASSIGN_OR_RETURN(const Tensor coded, kept.Restore(ctx));
                      WEFT_ASSIGN_OR_RETURN(Tensor restored,
                                            Tensor::New(ctx, Component::kWorkspace, dtype, shape));
                      const Parts of(coded, shape.Elements(), bits);
                      WEFT_RETURN_IF_ERROR(kernels::GroupDequantize(
                          ctx.stream, {of.codes, of.scales, bits, restored}));
                      return restored;
                    });
}

SavedTensor ActivationCompressor::KeepExactly(Tensor tensor) {
  return below_ == nullptr ? Tape::AsItIs(std::move(tensor))
                           : below_->KeepExactly(std::move(tensor));
}

}  // namespace weft::engine
