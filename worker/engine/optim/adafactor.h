#pragma once

#include <memory>
#include <vector>

#include "kernels/adafactor/adafactor.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/optim/parameter_rules.h"

namespace weft::engine {

/// Adafactor (Shazeer and Stern 2018, arXiv 1804.04235) without a first moment: of a matrix it
/// keeps a second moment by row and one by column.
class Adafactor : public Optimizer {
 public:
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet& parameters,
                                                const std::vector<ParameterRule>& rules);

  Status Update(Context& context, const UpdateArgs& args) override;
  std::vector<NamedTensor> StateTensors() const override { return state_.Named(); }

 private:
  explicit Adafactor(const OptimizerSpec& spec) : spec_(spec) {}

  OptimizerSpec spec_;
  OptimizerState state_;
  std::vector<kernels::AdafactorTensor> tensors_;
};

}  // namespace weft::engine
