#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/spec/peft_spec.h"
#include "kernels/linear/linear.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

/// The first of the columns of x that are here, among those of all tensor-parallel ranks.
inline int64_t FirstInput(const LinearLayer& layer) {
  return layer.inputs.whole() ? 0 : layer.inputs.ranges.front().begin;
}

/// The fixed first factor of MiSS, [rank, in]: row k has a one in each column that is k modulo the
/// rank, counted from `first_input` on. All layers of these sizes share it.
struct RepeatedOnes {
  int64_t rank = 1;
  int64_t in = 1;
  int64_t first_input = 0;
  Tensor values = {};
  std::unique_ptr<kernels::PackedWeight> packed = {};

  /// Makes it, the first time.
  Status Make(Context& context, DType compute);
};

/// Products of a layer some of whose weights have the factors of LoRA besides (Hu et al. 2021,
/// arXiv 2106.09685): y = x Wᵀ + b + scale (drop(x) Aᵀ) Bᵀ. With MiSS (Kang and Yin 2024, arXiv
/// 2409.15371) A is RepeatedOnes. AdaLoRA (Zhang et al. 2023, arXiv 2303.10512) has a diagonal E
/// between the factors: scale ((drop(x) Aᵀ) E) Bᵀ. What is between the factors is computed again in
/// the backward pass.
class LoraProducts : public WeightProducts {
 public:
  /// `ones`, of MiSS, gives those of a rank for this layer.
  using OnesOfRank = std::function<std::shared_ptr<RepeatedOnes>(int64_t rank)>;
  LoraProducts(const LinearLayer& layer, const PeftSpec& spec, const OnesOfRank& ones);

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
  /// The factors of one output.
  struct Adapter {
    int64_t column = 0;  ///< The first of its columns of y.
    int64_t columns = 0;
    int64_t rank = 0;
    int64_t ranks_before = 0;  ///< Of the adapters before it.
    float scale = 1;
    uint32_t site = 0;                        ///< Of its dropout.
    std::optional<PackedParameter> a = {};    ///< Or else
    std::shared_ptr<RepeatedOnes> ones = {};  ///< this.
    PackedParameter b;
    int64_t diagonal = -1;  ///< Index of E [rank]; -1: none.

    const kernels::PackedWeight* first() const { return a ? a->packed() : ones->packed.get(); }
  };
  /// x or, with dropout, what is left of it in a pass of training.
  Result<Tensor> Dropped(Context& context, const Adapter& adapter, const Tensor& x,
                         int64_t first_row) const;
  /// The dropout of x into y, which may be x.
  Status Drop(Context& context, const Adapter& adapter, const Tensor& x, const Tensor& y,
              int64_t first_row) const;
  /// x Aᵀ, [rows, rank].
  Result<Tensor> FirstProduct(Context& context, const Adapter& adapter, const Tensor& x) const;
  /// Makes it scale x Aᵀ E.
  Status ApplyScale(Context& context, const Adapter& adapter, const Tensor& middle) const;
  /// The gradient scale dy B of x Aᵀ E for the adapter, in what Prepare made for all.
  Tensor MiddleGradientOf(const Adapter& adapter, const Tensor& gradients, int64_t rows) const;
  /// The same of x Aᵀ: itself without E.
  Result<Tensor> ThroughDiagonal(Context& context, const Adapter& adapter,
                                 const Tensor& gradient) const;
  /// The gradients of the factors that `to` has a place for.
  Status FactorGradients(Context& context, const Adapter& adapter, const Tensor& x,
                         const OutputGradient& dy, const WeightGradientTarget& to) const;
  /// kernels::Scale by the scale of an adapter.
  static Status Scaled(Context& context, const Adapter& adapter, const Tensor& x);

  const ParameterSet* parameters_;
  DType compute_;
  int64_t in_features_;
  int64_t all_inputs_;   ///< Columns of x on all ranks,
  int64_t first_input_;  ///< of which this is the first one here.
  float dropout_;
  DenseProducts dense_;
  std::vector<Adapter> adapters_;  ///< By column.
  int64_t ranks_ = 0;              ///< Of all of them.
};

}  // namespace weft::engine
