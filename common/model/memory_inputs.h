#pragma once

#include <cstdint>
#include <string_view>

#include "common/model/memory_model.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft {

/// What the memory of a rank depends on besides job and plan.
struct MemoryMachine {
  /// How it multiplies operands of the type that the plan's precision has; says the device, too.
  ProductKind products = ProductKind::kTiles;
  int64_t product_workspace_bytes = 0;  ///< On a CUDA device: ProductWorkspaceBytes.
};

/// A CUDA device of this compute capability ("9.0").
MemoryMachine CudaMachine(std::string_view compute_capability);

/// The inputs of memory of a rank of `plan`, a plan of `job`. A rank of a pipeline is taken to have
/// all blocks: its stages have parts of them (PipelineMemory). Where the engine refuses the plan's
/// recomputation, nothing is recomputed.
MemoryInputs MemoryInputsOf(const JobSpec& job, const Plan& plan, const MemoryMachine& machine);

/// The part of it that holds for every plan of a mesh: `planned` asks for what was chosen
/// (JobAsPlanned), and `shape` is its ShapeOfRank; the sizes of blocks are then those that steps of
/// a rank compute (RankUnits). Left at their defaults are batches, threads, ranks and what they
/// shard, recomputation, and what is counted parameter by parameter: optimizer, open_gradients,
/// kept.
MemoryInputs MemoryInputsOfMesh(const JobSpec& planned, const ModelShape& shape,
                                const MemoryMachine& machine);

}  // namespace weft
