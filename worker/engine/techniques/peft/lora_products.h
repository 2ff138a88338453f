#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/spec/peft_spec.h"
#include "kernels/linear/linear.h"
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

/// The dropout of the inputs of adapters. Tensor-parallel ranks may have some columns of them each,
/// and draw for these what one rank draws.
struct InputDropout {
  float probability = 0;
  int64_t columns = 0;       ///< Of x here,
  int64_t all_columns = 0;   ///< and on all ranks,
  int64_t first_column = 0;  ///< this is the first one of them here.

  InputDropout(const LinearLayer& layer, double dropout);

  bool any() const { return probability > 0; }
  /// Drops x [rows, columns] into y, which may be x. `first_row` as of Tape.
  Status Apply(Context& context, uint32_t site, const Tensor& x, const Tensor& y,
               int64_t first_row) const;
};

/// Products of a layer some of whose weights have the factors of LoRA besides (Hu et al. 2021,
/// arXiv 2106.09685): y = x Wᵀ + b + scale (drop(x) Aᵀ) Bᵀ, where x Wᵀ + b are the products of the
/// base, in any format, and those of the factors dense. With MiSS (Kang and Yin 2024, arXiv
/// 2409.15371) A is RepeatedOnes. AdaLoRA (Zhang et al. 2023, arXiv 2303.10512) has a diagonal E
/// between the factors: scale ((drop(x) Aᵀ) E) Bᵀ. Of several adapters (model.peft.adapters) each
/// has its part of the rows of x. What is between the factors is computed again in the backward
/// pass.
class LoraProducts : public WeightProducts {
 public:
  /// `base` multiplies by the weights of `layer` alone. `ones`, of MiSS, gives those of a rank for
  /// this layer.
  using OnesOfRank = std::function<std::shared_ptr<RepeatedOnes>(int64_t rank)>;
  LoraProducts(const LinearLayer& layer, const PeftSpec& spec, const OnesOfRank& ones,
               std::unique_ptr<WeightProducts> base);

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
  /// The factors of one output, or of it those for a part of the rows.
  struct Adapter {
    int64_t column = 0;  ///< The first of its columns of y.
    int64_t columns = 0;
    int64_t rank = 0;
    int64_t ranks_before = 0;  ///< Of the outputs before it.
    int64_t first_tensor = 0;  ///< Of those that the layer has besides the weight, its first.
    int64_t row_part = 0;      ///< ParameterAttributes::row_part
    float scale = 1;
    uint32_t site = 0;                        ///< Of its dropout.
    std::optional<PackedParameter> a = {};    ///< Or else
    std::shared_ptr<RepeatedOnes> ones = {};  ///< this.
    PackedParameter b;
    int64_t diagonal = -1;  ///< Index of E [rank]; -1: none.

    const kernels::PackedWeight* first() const { return a ? a->packed() : ones->packed.get(); }
  };
  /// kInvalid where batches of this many rows have no equal parts.
  Status CheckRows(int64_t rows) const;
  /// The first of `rows` rows that the adapter multiplies,
  int64_t FirstRow(const Adapter& adapter, int64_t rows) const {
    return adapter.row_part * (rows / row_parts_);
  }
  /// and all of those of x.
  Tensor RowsOf(const Adapter& adapter, const Tensor& x) const;
  /// x or, with dropout, what is left of it in a pass of training.
  Result<Tensor> Dropped(Context& context, const Adapter& adapter, const Tensor& x,
                         int64_t first_row) const;
  /// x Aᵀ, [rows, rank].
  Result<Tensor> FirstProduct(Context& context, const Adapter& adapter, const Tensor& x) const;
  /// Makes it scale x Aᵀ E.
  Status ApplyScale(Context& context, const Adapter& adapter, const Tensor& middle) const;
  /// The gradient scale dy B of x Aᵀ E for the adapter, in what Prepare made for all of `rows`
  /// rows.
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
  InputDropout dropout_;
  std::unique_ptr<WeightProducts> base_;
  std::vector<Adapter> adapters_;  ///< By column, then by part of the rows.
  int64_t ranks_ = 0;              ///< Of all outputs.
  int64_t row_parts_ = 1;          ///< ParameterAttributes::row_parts
};

}  // namespace weft::engine
