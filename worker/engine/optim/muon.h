#pragma once

#include <memory>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/optim/parameter_rules.h"

namespace weft::engine {

/// Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for everything else:
///   M = momentum M + (1 - momentum) g;  U = nesterov ? (1 - momentum) g + momentum M : M
///   p -= lr (scale orthogonal(U) + wd p)
/// with `scale` by the shape: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)), which
/// gives a step the root mean square of one of AdamW (Liu et al. 2025, arXiv 2502.16982). Matrices
/// that are stacked in a parameter are orthogonalized each on its own.
class Muon : public Optimizer {
 public:
  /// `compute`: the type of the operands of products.
  static Result<std::unique_ptr<Optimizer>> New(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet& parameters,
                                                const std::vector<ParameterRule>& rules,
                                                DType compute);

  Status Update(Context& context, const UpdateArgs& args) override;
  bool repeats() const override { return rest_->repeats(); }
  void OnApplied() override { rest_->OnApplied(); }
  std::vector<NamedTensor> StateTensors() const override;

 private:
  struct Matrix {
    kernels::UpdateTensor tensor;
    int64_t columns = 0;
    std::vector<int64_t> parts;  ///< Rows of each.
  };

  Muon(const OptimizerSpec& spec, DType compute) : spec_(spec), compute_(compute) {}

  Status UpdateMatrix(Context& context, const UpdateArgs& args, const Matrix& matrix) const;

  OptimizerSpec spec_;
  DType compute_;
  OptimizerState state_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<Optimizer> rest_;
};

}  // namespace weft::engine
