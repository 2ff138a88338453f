#pragma once

#include <cstdint>

#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {

// For tests of what a step takes: GPT-2, machines, and a pass.

inline ModelShape Shape(int64_t tensor = 1, bool sequence = false) {
  JobSpec job = Gpt2Job();
  return ModelShape(ShapeOf(job).spec, tensor, sequence);
}

/// GPUs joined at 300 GB/s, with 25 GB/s each to other machines.
inline WorkerProfile GpuMachine(int gpus) {
  WorkerProfile worker = GpuWorker("g", gpus, 80 * kGiB);
  worker.network_bytes_per_second = 25e9 * gpus;
  return worker;
}

inline PassCost PassOf(const StepInputs& inputs, const StepRates& rates) {
  return CostOfPass(inputs.shape, 1, inputs.tokens, *inputs.precision, 0, 0, rates, 1, 1);
}

}  // namespace weft::planner
