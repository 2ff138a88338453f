#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/train_spec.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/parallel/gradient_reducer.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// The outer step of DiLoCo (Douillard et al. 2023, arXiv 2311.08105, algorithm 1), which ranks
/// make together after train.local_steps steps that each made by itself. G are the parameters after
/// the last outer step, L_i those that rank i of k has come to:
///   D = sum_i w_i (G - L_i) / k;  m = momentum m + D;  G -= learning_rate (D + momentum m)
/// and all ranks go on from G, with the same bits. Weights w_i, whose mean is 1, are 1 where ranks
/// make as many steps. G and m are f32, whatever the parameters are.
class OuterStep {
 public:
  /// `ranks` sums over the ranks; without it there is one rank. It and `parameters`, which have
  /// gradients, outlive this. kExhausted without memory for G and m.
  static Result<std::unique_ptr<OuterStep>> New(Context& context, const TrainSpec& train,
                                                const ParameterSet& parameters,
                                                GradientReducer* ranks);

  int64_t world_size() const { return ranks_ == nullptr ? 1 : ranks_->world_size(); }

  /// From now on these sum over the ranks.
  void SetRanks(GradientReducer* ranks) { ranks_ = ranks; }

  /// Replaces each value by its sum over the ranks, added in rank order.
  Status SumScalars(std::span<double> values);

  /// Leaves L - G of this rank in the gradients of the parameters, which nothing needs between two
  /// steps.
  Status Subtract(const Context& context);
  /// Then replaces it by the sum over the ranks; `weight`: of this one.
  Status Sum(const Context& context, double weight);

  /// Then makes the parameters the next G.
  Status Update(const Context& context);

  /// f32, of a trained parameter.
  TensorView value(int64_t parameter) const;

  /// The parameters are those of an outer step; `restored`: its state has been restored with them,
  /// and is not to be made of them.
  Status Restored(const Context& context, bool restored);

  /// "outer/<parameter>/momentum", and "outer/<parameter>/value" of those that are not f32.
  std::vector<NamedTensor> StateTensors() const;

 private:
  struct Entry {
    ParameterPart part;
    TensorView value;     ///< Of G.
    TensorView momentum;  ///< Of m.

    bool derived() const { return part.value.dtype == DType::kF32; }
  };

  OuterStep(const TrainSpec& train, const ParameterSet& parameters, GradientReducer* ranks);

  const float learning_rate_;
  const float momentum_;
  const ParameterSet& parameters_;
  GradientReducer* ranks_;
  OptimizerState state_;
  std::vector<Entry> entries_;
  std::vector<size_t> entry_of_;  ///< By parameter, of those that are trained.
};

}  // namespace weft::engine
