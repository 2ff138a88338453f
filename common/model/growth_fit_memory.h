#pragma once

#include <cstdint>
#include <optional>

#include "common/model/memory_inputs.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft {

// The training that learns a growth operator (growth.method ligo) before its phase begins. Each
// rank has the whole model with gradients, whatever the phase shares or offloads, and no state of
// an optimizer; ranks that share a model between them all compute the same. All functions are pure.

/// The job of that training; `phase` is a JobOfPhase, or the same as planned.
JobSpec JobOfGrowthFit(const JobSpec& phase);

/// Its plan: the data-parallel ranks, micro-batches and threads of `plan`, which is of `phase`.
/// Where that has the whole model on the device of each rank blocks keep what they keep there, else
/// their inputs alone.
Plan PlanOfGrowthFit(const JobSpec& phase, const Plan& plan);

/// Its memory.
class GrowthFitMemory {
 public:
  /// None for a phase that learns no growth. `phase` is as planned, with its mesh.
  static std::optional<GrowthFitMemory> Of(const JobSpec& phase, const MemoryMachine& machine);

  /// Bytes of a rank where the phase has `inputs`. Of these the batches and ranks count and, where
  /// each rank has the whole model on its device, what blocks keep. On CPUs with the old weights
  /// and the operator, which are on the host, and without what the operator makes of one tensor.
  MemoryBreakdown Of(const MemoryInputs& inputs) const;

  /// Bytes of the old weights and the operator on CPUs, which stay until the model of the phase has
  /// its weights.
  int64_t host_bytes() const { return old_bytes_ + operator_bytes_; }

 private:
  MemoryInputs whole_;  ///< Except the batches and ranks.
  bool keeps_ = false;  ///< What blocks keep is as in the phase.
  int64_t old_bytes_ = 0;
  int64_t operator_bytes_ = 0;
};

}  // namespace weft
