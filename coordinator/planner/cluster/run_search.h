#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "coordinator/planner/cluster/accelerator.h"
#include "coordinator/planner/cluster/software_stack.h"
#include "coordinator/planner/cluster/step_model.h"

namespace weft::planner {

/// A run with its step and the memory of its fullest rank.
struct PricedRun {
  ClusterRun run;
  double seconds = 0;
  double bytes = 0;
};

struct RunSearch {
  std::vector<PricedRun> fastest;  ///< Fastest first, up to kRunsKept.
  int64_t considered = 0;          ///< All such runs.
  int64_t fit = 0;                 ///< Of them, those that have room.
};

inline constexpr size_t kRunsKept = 32;

/// The fastest ways to train `model` on `devices` of a kind, by PredictStep and MemoryOf: every
/// degree of tensor (within a machine), pipeline, data and expert parallelism, stages a rank, ZeRO
/// stage (above 1 without a pipeline), micro-batch, with and without recomputation of blocks.
/// `memory_bytes` is what a device offers. On `threads` threads; the result does not
/// depend on their number. kInvalid: the model contradicts itself. kExhausted: nothing fits.
Result<RunSearch> FastestRuns(const AcceleratorSpec& device, const SoftwareStack& stack,
                              const DecoderShape& model, const std::string& precision,
                              int64_t devices, int64_t global_batch, double memory_bytes,
                              int threads = 1);

}  // namespace weft::planner
