#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/optim/parameter_rules.h"

namespace weft::engine {

/// What changes from update to update besides kernels::UpdateInputs.
struct RuleArgs {
  kernels::StepValue<int64_t> update = int64_t{1};  ///< UpdateArgs::update
  bool keeps_second_moments = false;                ///< Likewise.
};

/// A rule of kernels/optimizer that treats all tensors in one pass.
struct FusedRule {
  std::string_view name;
  Status (*run)(const Stream& stream, const OptimizerSpec& spec,
                const kernels::UpdateInputs& inputs, const RuleArgs& args);
};

/// The rule of spec.name, or null: sgd, lars, adam, adamw, lamb, lion.
const FusedRule* FindFusedRule(const OptimizerSpec& spec);

/// What a kernel needs of `part`; its state is for the caller to fill in.
kernels::UpdateTensor UpdateTensorOf(const ParameterSet& parameters, const ParameterPart& part,
                                     const ParameterRule& rule);

/// Has `tensor` be where `part` and its gradient are now, of those in a file.
void PlaceOf(const ParameterSet& parameters, const ParameterPart& part,
             kernels::UpdateTensor& tensor);

/// Inputs of a kernel for one update of `tensors`, in context.step.
kernels::UpdateInputs InputsOf(const Context& context, const UpdateArgs& args,
                               const std::vector<kernels::UpdateTensor>& tensors);

/// Moves the gradient of `tensor`, which was in the buffer `from`, to the same place in `to`; not
/// where that is none.
void MoveGradient(const float* from, const float* to, kernels::UpdateTensor& tensor);

/// An optimizer that is a fused rule, for `parts` of the parameters.
class FusedOptimizer : public Optimizer {
 public:
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const FusedRule& rule,
                                                const ParameterSet& parameters,
                                                const std::vector<ParameterRule>& rules,
                                                std::span<const ParameterPart> parts);

  /// In the host memory pool it runs tile by tile, in the order of the parameters, and reports
  /// each (UpdateProgress): the bits are the same.
  Status Update(Context& context, const UpdateArgs& args) override;
  bool repeats() const override { return true; }
  std::vector<NamedTensor> StateTensors() const override { return state_.Named(); }

 private:
  FusedOptimizer(const OptimizerSpec& spec, const FusedRule& rule, const ParameterSet& set)
      : spec_(spec), rule_(rule), set_(set) {}

  /// The tensors of those parameters that UpdateArgs::frozen leaves.
  std::vector<kernels::UpdateTensor> Moved(const std::vector<bool>& frozen) const;
  /// The update of what `args` does not freeze, as the one of this number.
  Status UpdateAs(kernels::StepValue<int64_t> update, Context& context, const UpdateArgs& args);

  OptimizerSpec spec_;
  const FusedRule& rule_;
  const ParameterSet& set_;
  OptimizerState state_;
  std::vector<kernels::UpdateTensor> tensors_;
  std::vector<ParameterPart> parts_;  ///< Of each.
  const float* gradients_ = nullptr;  ///< The buffer that theirs are in.
};

}  // namespace weft::engine
