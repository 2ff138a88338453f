#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "worker/engine/optim/fused_optimizer.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/optim/parameter_rules.h"

namespace weft::engine {

/// AdamW without a schedule (Defazio et al. 2024, arXiv 2405.15682). The parameters are the points
/// where gradients are taken; what training yields is their average, the state
/// "schedule_free_adamw/<parameter>/average".
class ScheduleFree : public Optimizer {
 public:
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet& parameters,
                                                const std::vector<ParameterRule>& rules,
                                                std::span<const ParameterPart> parts);

  Status Update(Context& context, const UpdateArgs& args) override;
  void OnApplied() override { weight_sum_ = next_weight_sum_; }
  std::vector<NamedTensor> StateTensors() const override;
  Result<std::vector<AveragedParameter>> Averages(Context& context) const override;

 private:
  ScheduleFree(const OptimizerSpec& spec, std::span<const ParameterPart> parts)
      : spec_(spec), parts_(parts.begin(), parts.end()) {}

  Status Start(Context& context);
  double AverageWeight(const UpdateArgs& args);

  OptimizerSpec spec_;
  OptimizerState state_;
  std::vector<ParameterPart> parts_;
  std::vector<kernels::UpdateTensor> tensors_;  ///< Of parts_.
  /// Sum of the weights of the averages, as a number and what f32 lacks of it; the host's, and
  /// state.
  std::array<float, 2> weight_sum_ = {};
  std::array<float, 2> next_weight_sum_ = {};  ///< Once the update has been made.
};

}  // namespace weft::engine
