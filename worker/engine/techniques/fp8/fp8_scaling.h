#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/train_spec.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// A matrix quantised to FP8, row-major, column-major, or both, and its scale.
struct Fp8Tensor {
  Tensor codes;          ///< [rows, columns], or none
  Tensor transposed;     ///< [columns, rows padded to a multiple of 16 with zeros], or none
  Tensor inverse_scale;  ///< [1] f32

  kernels::Fp8Matrix Rows() const { return {codes, inverse_scale}; }
  kernels::Fp8Matrix Columns() const { return {transposed, inverse_scale}; }
};

/// Turns the operands of a model's linear layers into FP8, and keeps the scales (Micikevicius et
/// al. 2022, arXiv 2209.05433). Weights are scaled by their largest magnitude, for they are
/// quantised once a step. Activations and their gradients are scaled by the largest magnitude of
/// the steps before (delayed) or by their own (current, and before a step that had them has ended).
/// The magnitude of a sharded matrix is the largest of its shards. No scale ever comes to the host.
/// Not thread-safe.
class Fp8Scaling {
 public:
  /// `tensor_group`, which outlives this: the tensor-parallel ranks, or none. They do the same
  /// in the same order.
  Fp8Scaling(Fp8Spec spec, bool with_gradients, Collective* tensor_group = nullptr)
      : spec_(std::move(spec)), with_gradients_(with_gradients), tensor_group_(tensor_group) {}

  const Fp8Spec& spec() const { return spec_; }

  /// Layers of a block: queries, keys and values, attention's result, up, down.
  static constexpr int64_t kLayersOfBlock = 4;

  /// What each tensor-parallel rank has a part of.
  struct Parts {
    bool inputs = false;
    bool gradients = false;
  };

  /// Registers a layer, whose number it returns. Before Allocate.
  int64_t AddLayer(Parts parts) {
    parts_.push_back(parts);
    return layers_++;
  }

  /// Registers a weight, whose number it returns. `trained`: whether updates change it. Before
  /// Allocate.
  int64_t AddWeight(std::function<TensorView()> value, std::function<bool()> trained) {
    weights_.push_back(std::move(value));
    trained_.push_back(std::move(trained));
    return static_cast<int64_t>(weights_.size()) - 1;
  }

  /// Says that the layers here are those of these blocks, of this many with FP8 operands in the
  /// whole network: what StateTensors are parts of.
  void SetStage(const std::vector<Shard::Range>& blocks, int64_t of);

  Status Allocate(Context& context);

  /// What of a matrix is wanted.
  struct Wanted {
    bool codes = false;
    bool transposed = false;
  };

  /// The input of a layer. With `record` its magnitude counts for later scales: in the forward
  /// passes of training.
  Result<Fp8Tensor> QuantizeInput(Context& context, int64_t layer, const Tensor& x, Wanted wanted,
                                  bool record) const;
  /// The gradient of a layer's result; always counts.
  Result<Fp8Tensor> QuantizeGradient(Context& context, int64_t layer, const Tensor& dy,
                                     Wanted wanted) const;
  /// Computes the scales of all weights, over the tensor-parallel ranks, as they are now; they stay
  /// where only what is trained has changed, and none of the weights is. All of these ranks call it
  /// before QuantizeWeight.
  Status AgreeOnWeights(Context& context, Repack what);
  /// The same, with the scales of inputs and gradients as they are now: before weights are packed.
  Status StartPack(Context& context, Repack what);
  /// The weight of this number, into `to`, which keeps its memory.
  Status QuantizeWeight(Context& context, int64_t number, const TensorView& weight,
                        Fp8Tensor& to) const;

  /// Largest magnitudes of the step under way, f32, for ranks to agree on, the tensor-parallel
  /// ones, too; none with current scaling.
  TensorView magnitudes() const { return delayed() ? amax_.view() : TensorView(); }

  /// The scales of the next step, after step `step`.
  Status FinishStep(Context& context, int64_t step);

  /// StateTensors() have been overwritten with those of a run of `steps` steps, in which all
  /// tensors are taken to have been quantised.
  void Restored(int64_t steps) { has_history_.assign(static_cast<size_t>(2 * layers_), steps > 0); }

  /// Scales and magnitudes by tensor, for checkpoints: the inputs of all layers of the network,
  /// then the gradients of their results. None with current scaling.
  std::vector<NamedTensor> StateTensors() const;

 private:
  bool delayed() const { return spec_.scaling == "delayed"; }
  DType GradientType() const { return spec_.formats == "hybrid" ? DType::kF8E5M2 : DType::kF8E4M3; }
  Result<Fp8Tensor> Quantize(Context& context, int64_t tensor, DType type, const Tensor& x,
                             Wanted wanted, bool record) const;
  /// `in_parts`: the tensor-parallel ranks have other parts, and the same scale.
  Status ScaleByOwn(Context& context, const TensorView& x, DType type, bool in_parts,
                    const Tensor& scale, const Tensor& inverse) const;

  Fp8Spec spec_;
  bool with_gradients_;
  Collective* tensor_group_;
  std::vector<Parts> parts_;                          ///< By layer.
  std::vector<std::function<TensorView()>> weights_;  ///< By number,
  std::vector<std::function<bool()>> trained_;        ///< as these.
  bool agreed_ = false;                               ///< On the scales of weights.
  int64_t layers_ = 0;
  std::optional<Shard> stage_;  ///< Of the network's tensors, see SetStage.
  // Both have an entry for each tensor. A branch that a step skips has no magnitudes in it.
  mutable std::vector<bool> recorded_;  ///< In the step under way.
  std::vector<bool> has_history_;       ///< In a step that has ended.
  // These have an f32 number for each tensor.
  Tensor amax_;  ///< Of the step under way.
  Tensor history_;
  Tensor scale_;
  Tensor inverse_scale_;
  Tensor operand_scale_;  ///< These numbers as products take them.
  Tensor largest_code_;
  // For a tensor that is scaled by its own magnitude: [1], zero between uses, and [1, 1].
  Tensor own_amax_;
  Tensor own_history_;
  // These are for weights, with tensor-parallel ranks: zero between uses, [weights, 1], and as
  // above.
  Tensor weight_amax_;
  Tensor weight_history_;
  Tensor weight_largest_code_;
  Tensor weight_scale_;
  Tensor weight_inverse_scale_;
  Tensor weight_operand_scale_;
};

}  // namespace weft::engine
