#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/train/step_report.h"
#include "worker/engine/train/trainer_parts.h"

namespace weft::engine {

/// Exchanges what the ranks of a training need of each other in a step, over every axis of the
/// mesh; where there is one rank it does nothing. All ranks make the same calls in the same order.
/// Waiting is charged to PhaseSeconds::communication_exposed, except that of SplitDerived. Not
/// thread-safe.
class TrainingRanks {
 public:
  explicit TrainingRanks(const TrainerParts& parts) : parts_(parts) {}

  /// The number of data-parallel ranks.
  int64_t data_ranks() const;

  /// What this rank updates, where that is not everything.
  std::span<const ParameterPart> updated_parts() const {
    return parts_.reducer != nullptr ? parts_.reducer->parts() : std::span<const ParameterPart>();
  }

  /// Replaces each value by its sum over the ranks of TrainerParts::reducer, added in rank order.
  Status SumScalars(std::span<double> values, PhaseSeconds& seconds) const;

  /// The same over the ranks that have other parts of the same replica of the model.
  Status SumOverReplica(std::span<double> values, PhaseSeconds& seconds) const;

  /// Where ranks update different parts: over those that together have all of them.
  Status SumOverParts(std::span<double> values, PhaseSeconds& seconds) const;

  /// All numbers of parameter `index`, see GradientReducer::GatherParts.
  Result<std::vector<float>> GatherParts(int64_t index, std::span<const float> own,
                                         PhaseSeconds& seconds) const;

  /// Waits until the gradients hold the sums over all ranks.
  Status FinishGradients(PhaseSeconds& seconds) const;

  /// Calls `split` for all derived parameters, see GradientReducer::SplitDerived. Charges nothing:
  /// what it waits for is among its work, and the caller charges both as one phase.
  Status SplitDerived(const GradientReducer::Split& split) const;

  /// Where ranks update different parts: what they have updated goes to all of them.
  Status GatherParameters(PhaseSeconds& seconds) const;

  /// Replaces each magnitude by the largest of all ranks; adds the wait to `waited` (seconds).
  Status TakeMaxima(const TensorView& magnitudes, double& waited) const;

  /// Bytes of the host that collectives keep, which no Allocator gave them.
  int64_t held_bytes() const;

 private:
  TrainerParts parts_;
};

}  // namespace weft::engine
