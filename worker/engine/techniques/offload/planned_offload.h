#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/spec/plan.h"
#include "worker/engine/techniques/offload/offloaded_gradients.h"
#include "worker/engine/techniques/offload/streamed_parameters.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

/// The tier below the device that the plan wants, of at most this many bytes (0: no limit); none
/// where nothing is offloaded.
std::optional<HostMemoryPool::Options> HostMemoryPoolOf(const Plan& plan, int64_t limit_bytes = 0);

/// What moves gradients and parameters between the tiers as the plan says; made before a Trainer,
/// which it outlives.
struct PlannedOffload {
  std::unique_ptr<OffloadedGradients> gradients;   ///< Or none: the reducer of the trainer.
  std::unique_ptr<StreamedParameters> parameters;  ///< Or none.

  /// `context` and `parameters`, those of a model made with ModelOptionsOf(plan), outlive it, as
  /// does `ranks`, with which this one's gradients are reduced in every step (NewReducer), or none.
  static PlannedOffload Of(const Plan& plan, Context& context, ParameterSet* parameters,
                           BucketReducer* ranks = nullptr);
};

}  // namespace weft::engine
