#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/remat_schedule.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/plan.h"

namespace weft::planner {

/// A plan that the search looks at, with its predicted time and memory.
struct CostedPlan {
  bool on_devices = false;  ///< Each rank has a GPU of its own.
  int64_t ranks = 1;
  int64_t tensor = 1;            ///< Tensor-parallel ranks.
  int64_t pipeline = 1;          ///< Pipeline stages.
  int64_t context = 1;           ///< Context-parallel ranks.
  int64_t experts = 1;           ///< Expert-parallel ranks, among the data-parallel ones.
  int64_t ranks_per_worker = 1;  ///< At most this many on each.
  int64_t threads = 1;
  int64_t micro_batch = 1;
  int64_t accumulation_steps = 1;
  int64_t recomputed_blocks = 0;  ///< The first ones, each once; of a schedule, all replays.
  int64_t attention_blocks = 0;   ///< After them, those that recompute attention alone.
  RematPlan schedule;             ///< Instead, where it is not empty.
  std::vector<int64_t> cut;       ///< Blocks of each stage of a pipeline.
  TimeBreakdown time;
  MemoryBreakdown memory;            ///< Of the fullest rank.
  std::vector<int64_t> stage_bytes;  ///< By rank of a pipeline; empty: as many as the fullest.
  bool learns_growth = false;        ///< It is that of learning a growth operator.
  int64_t device_bytes = 0;          ///< Of it on the device, with offload or a limit for that.
  bool lacks_cores = false;          ///< There are no cores or GPUs for its ranks.
  std::string infeasible_reason;     ///< Why it cannot run; empty when it can.

  /// The part of the memory by which ranks are placed: that of GPUs, or of workers.
  int64_t PlacedBytes() const {
    return on_devices && device_bytes > 0 ? device_bytes : TotalBytes(memory);
  }
  /// What a rank on a GPU has of its worker's memory.
  int64_t HostBytes() const { return TotalBytes(memory) - PlacedBytes(); }

  /// The number of data-parallel ranks.
  int64_t data_ranks() const { return ranks / (tensor * pipeline * context); }
  /// The number of ranks that sum their gradients: data- and context-parallel ones.
  int64_t gradient_ranks() const { return ranks / (tensor * pipeline); }
};

/// Bytes that rank `rank` of the plan holds, where it has its place by them.
int64_t BytesOfRank(const CostedPlan& costed, int64_t rank);

/// Ranks on each of `workers`: filled one after the other, at most costed.ranks_per_worker on each,
/// as many as its cores and its memory, or its GPUs, hold. Adds up to less than costed.ranks when
/// there is no room for all.
std::vector<int64_t> PlaceRanks(const CostedPlan& costed,
                                const std::vector<const WorkerProfile*>& workers);

}  // namespace weft::planner
