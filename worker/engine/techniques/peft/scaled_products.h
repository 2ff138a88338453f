#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/peft_spec.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// Products whose results are multiplied by a vector: y = g * (x Wᵀ + b) with (IA)³ (Liu et al.
/// 2022, arXiv 2205.05638), where g is trained; y = g * (x Wᵀ + scale (x Aᵀ) Bᵀ) + b with DoRA (Liu
/// et al. 2024, arXiv 2402.09353), where g is a trained magnitude over the length of each row of W
/// + scale B A. As in Hugging Face's peft library, the gradient takes this length for a constant.
/// g is 1 for outputs of the layer without an adapter. Results before their scale are computed
/// again in the backward pass.
class ScaledResults : public WeightProducts {
 public:
  /// `inner` multiplies without the scale. Of (IA)³ it has the biases, and each adapter is one
  /// vector. Of DoRA, with `spec.use_dora`, it has A and B and no biases, and each adapter is A, B
  /// and the vector. `share_inputs`: the ranks that have other columns of W, or none.
  ScaledResults(const LinearLayer& layer, const PeftSpec& spec,
                std::unique_ptr<WeightProducts> inner, Collective* share_inputs);

  Status Pack(Context& context, Repack what) override;
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  /// One output of the layer.
  struct Output {
    int64_t column = 0;
    int64_t columns = 0;
    int64_t weight = 0;   ///< Index of the weight,
    int64_t vector = -1;  ///< and of the vector, behind A and B of DoRA; -1: none.
    float scale = 1;      ///< Of B A.
  };
  class RowLengths;
  /// [columns] f32 of an output.
  static TensorView PartOf(const Tensor& vector, const Output& output);
  /// 1 / length of the rows of W + scale B A of a DoRA.
  const Tensor& inverse_lengths() const;
  /// Numbers of A and B of a DoRA, of all outputs together.
  int64_t FactorNumbers() const;
  /// What is added after the scale, or none.
  TensorView Bias() const;
  /// The vector g, [out] f32.
  Result<Tensor> Gains(Context& context) const;
  /// The gradient of the vector of an output, from that of g.
  Status VectorGradient(Context& context, const Output& output, const Tensor& dgains,
                        const WeightGradientTarget& to) const;

  const ParameterSet* parameters_;
  bool normalizes_;  ///< DoRA
  std::unique_ptr<WeightProducts> inner_;
  std::vector<Output> outputs_;
  int64_t out_ = 0;
  int64_t in_;
  int64_t bias_;  ///< Index of the first bias that is added after the scale, or -1.
  std::shared_ptr<RowLengths> lengths_;  ///< Of DoRA.
};

/// Products whose inputs are multiplied by a trained vector: y = (l * x) Wᵀ + b ((IA)³, of a layer
/// with one output).
class ScaledInputs : public WeightProducts {
 public:
  /// `inner` multiplies without the scale.
  ScaledInputs(const LinearLayer& layer, std::unique_ptr<WeightProducts> inner);

  Status Pack(Context& context, Repack what) override { return inner_->Pack(context, what); }
  Status Forward(Context& context, const Tensor& x, const Tensor& y, const GeluValue& active,
                 const ForwardUse& use) const override;
  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override;
  Status InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                       const Tensor& before, const GeluValue& active) const override;
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override;

 private:
  Result<Tensor> Scaled(Context& context, const Tensor& x) const;

  const ParameterSet* parameters_;
  int64_t vector_;
  std::unique_ptr<WeightProducts> inner_;
};

}  // namespace weft::engine
