#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/peft_spec.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/peft/lora_products.h"

namespace weft::engine {

/// DoRA (ScaledResults) whose adapters read dropped inputs in training, as Hugging Face's peft
/// library has it: y = x Wᵀ + b + g * (z (W + scale B A)ᵀ) - z Wᵀ with z = drop(x). So W is
/// multiplied twice: y is computed as g * (z (W + scale B A)ᵀ) + b + (x - z) Wᵀ. Each output has a
/// z of its own and is multiplied alone.
class DroppedDora : public WeightProducts {
 public:
  /// `share_inputs`: as of ScaledResults.
  DroppedDora(const LinearLayer& layer, const PeftSpec& spec, const LoraProducts::OnesOfRank& ones,
              Collective* share_inputs);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  /// Prepares nothing: each output's operands are made when its products are.
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  struct Output {
    int64_t column = 0;  ///< The first of its columns of y.
    int64_t columns = 0;
    std::unique_ptr<WeightProducts> products;
    const DenseProducts* dense = nullptr;  ///< Of its weight alone.
    bool adapted = false;
    uint32_t site = 0;  ///< Then: of its dropout.
  };
  /// z of an output.
  Result<Tensor> Dropped(Context& context, const Output& output, const Tensor& x,
                         int64_t first_row) const;
  /// The columns of an output, contiguous.
  Result<Tensor> ColumnsOf(Context& context, const Output& output, const Tensor& matrix) const;
  /// Adds what an output with an adapter adds to dx, where `base` is the gradient of x Wᵀ.
  Status AddAdapterGradient(Context& context, const Output& output, const Tensor& dy,
                            const Tensor& base, int64_t first_row, const Tensor& dx) const;

  InputDropout dropout_;
  int64_t in_;
  std::vector<Output> outputs_;
};

}  // namespace weft::engine
