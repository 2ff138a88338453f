#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/spec/peft_spec.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// Ranks that may count after `step` steps of a training of `steps`, of `all` with `kept` at its
/// end: a cubic decline between the first and the last steps (Zhang et al. 2023, arXiv 2303.10512).
int64_t RankBudget(const AdaLoraSpec& spec, int64_t step, int64_t steps, int64_t all, int64_t kept);

/// Moves the ranks of AdaLoRA to the layers where they matter, as Hugging Face's peft library does:
/// keeps the factors near orthogonal, scores each rank of each adapter after an update, and makes
/// the diagonals of the lowest ones zero. The hooks of a Technique; all data-parallel ranks choose
/// alike. Not thread-safe.
class AdaLora {
 public:
  explicit AdaLora(const AdaLoraSpec& spec) : spec_(spec) {}

  Status OnTraining(const TrainingParts& parts);

  /// Adds the gradient of the mean of ‖P Pᵀ - I‖ over all factors P.
  Status OnGradients(Context& state, int64_t step);

  void BeforeUpdate(const PendingUpdate& update) { gate_ = update.gate; }

  /// Scores the update of the step of OnGradients, and chooses ranks.
  Status OnUpdated();

  std::vector<NamedTensor> StateTensors();

 private:
  /// A tensor of an adapter, and the indices of its means in scores_.
  struct Scored {
    int64_t parameter = 0;
    size_t sensitivity = 0;
    size_t uncertainty = 0;
  };
  struct Adapter {
    Scored a, b, diagonal;
    std::vector<uint8_t> kept = {};  ///< Of each rank, what was chosen last: 1 or 0.
  };
  /// Of x and y [rank, in] x yᵀ, of [out, rank] xᵀ y: [rank, rank] on the host, row-major.
  static Result<std::vector<float>> ProductOverSides(Context& context, const TensorView& x,
                                                     const TensorView& y, bool of_rows);
  Status AddOrthogonality(Context& context, int64_t factor, bool of_rows) const;
  /// Takes a tensor and its gradient into its two means.
  Status Score(Context& context, const Scored& tensor, float clip) const;
  /// Of each rank of all adapters, in their order.
  Result<std::vector<double>> ScoresOfRanks(Context& context) const;
  Status Choose(Context& context, int64_t budget);
  Status Mask(Context& context) const;

  int64_t LastChoice() const { return parts_.job->train.steps - spec_.tfinal; }

  AdaLoraSpec spec_;
  TrainingParts parts_;
  std::vector<Adapter> adapters_;
  OptimizerState scores_;
  kernels::UpdateGate gate_;
  int64_t step_ = 0;
  int32_t ended_ = 0;  ///< 1: the last choice has been made.
};

}  // namespace weft::engine
