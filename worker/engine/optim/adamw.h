#pragma once

#include <memory>
#include <vector>

#include "kernels/adamw/adamw.h"
#include "worker/engine/optim/optimizer.h"

namespace weft::engine {

/// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101); decays parameters with decay() only.
class AdamW : public Optimizer {
 public:
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet* parameters);

  Status Update(Context& context, const UpdateArgs& args) override;
  std::vector<NamedTensor> StateTensors() const override;

 private:
  AdamW(const OptimizerSpec& spec, const ParameterSet* parameters)
      : spec_(spec), parameters_(parameters) {}

  OptimizerSpec spec_;
  const ParameterSet* parameters_;
  std::vector<int64_t> trained_;  ///< Parameter of each of tensors_.
  Tensor first_moments_;          ///< Flat, laid out like the gradients.
  Tensor second_moments_;         ///< Likewise.
  std::vector<kernels::AdamWTensor> tensors_;
};

}  // namespace weft::engine
