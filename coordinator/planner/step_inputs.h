#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/model/context_attention.h"
#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "common/model/precision.h"
#include "common/model/remat_memory.h"
#include "common/model/remat_schedule.h"
#include "common/model/sharded_parameters.h"
#include "common/model/technique_cost.h"
#include "common/number.h"
#include "coordinator/planner/rank_links.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// How a rank takes its steps: what the step-time formula (step_time.h) asks besides the cost of a
/// pass and the rates.
struct StepInputs {
  ModelShape shape;
  int64_t accumulation_steps = 1;
  int64_t recomputed_blocks = 0;
  int64_t threads = 1;
  int64_t ranks = 1;     ///< Data- and context-parallel ranks, each of shape.tensor ranks.
  int64_t pipeline = 1;  ///< Pipeline ranks; each stage has `ranks`.
  int64_t ranks_on_worker = 1;
  /// A lower bound assumes that no worker has more ranks, and that groups of ranks are on as few
  /// workers as they can be. 0: ranks fill workers of `ranks_on_worker` one after the other.
  int64_t most_on_worker = 0;
  bool spans_racks = false;  ///< The ranks are in several racks; never in a lower bound.
  /// What is stated of the network between the ranks; null: nothing, as in a lower bound.
  std::shared_ptr<const RankLinks> links = {};
  int64_t bucket_bytes = 1;
  const PrecisionRecipe* precision = &kBf16Precision;
  int64_t zero_stage = 0;
  int64_t tokens = 0;                      ///< Of a micro-batch, on one rank.
  ShardedParameters sharded = {};          ///< With zero_stage 3.
  int64_t host_link_bytes_per_second = 0;  ///< What the job says; 0: nothing.
  int64_t uploaded_weight_bytes = 0;       ///< After an update, with offloads_optimizer.
  bool uploads_at_once = false;            ///< Nothing overlaps with that, or with the update.
  int64_t recomputed_attentions = 0;       ///< Blocks that recompute attention alone.
  StreamedBytes streamed = {};             ///< Weights that are uploaded in every pass.
  int64_t resident_weight_bytes = 0;       ///< Weights that are uploaded once a step.
  /// `streamed` of a pipeline stage with one block: between the ends of the network, with the
  /// embeddings, or with the head.
  struct StreamedStage {
    StreamedBytes inner = {};
    StreamedBytes first = {};
    StreamedBytes last = {};
  } streamed_stage = {};
  int64_t activation_bytes = 0;  ///< Of a micro-batch, sent to the host and fetched again.
  /// CompressedActivationBytes in each direction.
  int64_t compressed_bytes = 0;
  /// CompressedActivationBytes of one block of a pipeline, by what the block keeps: all, all except
  /// the inside of attention, or its input alone.
  struct CompressedBlock {
    int64_t all = 0;
    int64_t but_attention = 0;
    int64_t input = 0;
  } compressed_block = {};
  bool offloads_optimizer = false;  ///< Gradients go to the host in every pass.
  /// Units that reside on the device and are updated there, with offloads_optimizer.
  struct DeviceUpdatedUnits {
    int64_t trained = 0;       ///< Their trained numbers.
    int64_t first_blocks = 0;  ///< Kept blocks right after the embeddings.
    int64_t last_blocks = 0;   ///< Kept blocks right before the head.
  } device_updated = {};
  int64_t file_bytes = 0;          ///< State in a file that an update reads and writes.
  StreamedBytes file_pass = {};    ///< Read and written in the passes of a micro-batch.
  StreamedStage filed_stage = {};  ///< FiledWeightBytes, as streamed_stage.
  ContextSharing context = {};     ///< Context-parallel ranks, which are among `ranks`.
  int64_t shard_ranks = 1;         ///< Ranks of a shard group (ShardRanks), among `ranks`.
  int64_t local_steps = 1;         ///< Steps that each worker of `ranks` makes by itself.
  double round_seconds = 0;        ///< As many of them as fit into it; 0: local_steps.
  bool micro_batch_tree = false;   ///< Gradients of micro-batches are added in a binary tree.
  std::optional<SecondPass> second_pass = {};  ///< Of micro-batches.
  double sent_gradients = 1;                   ///< Share of the bytes of gradients that ranks send.
  RematPlan schedule = {};  ///< What is recomputed and sent, where a schedule says it.
  BlockBytes block = {};    ///< With a schedule: what a block keeps.

  RankPlace place() const { return {threads, ranks_on_worker, spans_racks}; }
  /// Number of workers: with local_steps the context-parallel ranks are one worker.
  int64_t Workers() const { return ranks / context.ranks; }
  /// Shard groups.
  int64_t Groups() const { return shard_ranks > 1 ? ranks / shard_ranks : 1; }
  /// Ranks with the same experts, of a shard group or of all `ranks`.
  int64_t ExpertReplicas() const {
    return (shard_ranks > 1 ? shard_ranks : ranks) / shape.expert_ranks;
  }
  /// How often, by the number of passes, gradients are read or written besides being written in
  /// each: each pass but the first reads those that it adds to. In a tree they are added
  /// afterwards.
  double GradientReads(double passes) const {
    constexpr double kReadsOfSum = 3;  // two addends, and the sum is written
    if (!micro_batch_tree) return passes - 1;
    return kReadsOfSum * (passes - 1) / D(zero_stage > 1 ? shard_ranks : 1);
  }
  /// Numbers that a rank updates.
  double Updated() const {
    const bool shards_experts = shape.expert_ranks > 1 && shard_ranks > 1;
    const double experts = D(shards_experts ? shape.stored_trained_experts : 0);
    return (D(shape.Updated()) - experts) / D(shard_ranks) + experts / D(ExpertReplicas());
  }
  /// Each rank holds a shard of the parameters and gathers whole ones in every pass.
  bool SharesParameters() const { return zero_stage > 2 && shard_ranks > 1; }
};

}  // namespace weft::planner
