#pragma once

#include <compare>
#include <cstdint>

#include "common/model/memory_model.h"
#include "common/model/remat_memory.h"
#include "common/model/remat_schedule.h"

namespace weft {

/// Bytes of temporary tensors, for the tokens of a micro-batch.
struct PassSizes {
  int64_t row;               ///< Of the residual stream, of the tokens and features that are here.
  int64_t gathered;          ///< Of the tokens of all ranks, where they share these between shards.
  int64_t attended;          ///< [tokens, width], of the heads that are here.
  int64_t qkv;               ///< Queries, keys and values.
  int64_t inner;             ///< Inside of the MLP, after the activation.
  int64_t before;            ///< The same before it; of all experts.
  int64_t passed = 0;        ///< Before and behind the experts: besides the choices
  int64_t to_experts = 0;    ///< what all of them read,
  int64_t from_experts = 0;  ///< and what they make of the own tokens.
  int64_t active = 0;        ///< Inside of one expert, after the activation.
  int64_t exchanged = 0;  ///< Results of experts, or their gradients, for tokens of several ranks.
  int64_t narrow;         ///< A row of a factorised embedding; 0 without.
  int64_t head;           ///< [rows of the head, width]

  explicit PassSizes(const MemoryInputs& inputs);
};

/// Workspace of a block's backward pass: around the MLP, and around attention.
struct BlockWorkspace {
  int64_t mlp = 0;
  int64_t reading = 0;    ///< When the gradient of what attention read is made,
  int64_t heads = 0;      ///< and while attention's own are: both around attention.
  int64_t attending = 0;  ///< Of the latter, the gradient of attention's result while it is read.
  int64_t restored = 0;   ///< And what is restored from quantised values.
  int64_t most() const { return std::max({mlp, reading, heads}); }
};

/// What the first block with a backward pass does not save and others do, because nothing up to it
/// is trained; 0 where that block is run again.
int64_t UnsavedByFirstBlock(const MemoryInputs& inputs);

/// The plan of the blocks for their saved tensors.
RematPlan PlanOfBlocks(const MemoryInputs& inputs);

/// Peak of saved tensors and of results that are alive with them, in each tier.
TierPeaks ActivationPeaks(const MemoryInputs& inputs);

/// Peak of what else the passes of a step take, besides this many bytes of activations.
int64_t WorkspacePeak(const MemoryInputs& inputs, int64_t activations);

/// Memory of a micro-batch on a pipeline stage, without its batch and messages.
struct StageMemory {
  PassBytes activations;  ///< On the device.
  PassBytes workspace;
  int64_t offloaded_activations = 0;  ///< In the host tier, from the forward pass on.
};

/// A stage by what of its blocks is recomputed, or whose attention is, in segments of this many;
/// before it nothing trains the first ones.
struct StageKind {
  int64_t blocks = 0;
  int64_t recomputed = 0;
  int64_t attention = 0;
  int64_t segment = 1;
  int64_t untrained = 0;
  bool first = true;
  bool last = true;

  auto operator<=>(const StageKind&) const = default;
};

/// The memory of the stages of a pipeline, with what they have in common found once.
class StagePassMemory {
 public:
  /// `inputs` are of one rank with the whole network, and differ later in what is recomputed alone;
  /// `defers` as PassesOfFirstBlocks.
  StagePassMemory(const MemoryInputs& inputs, bool defers);

  StageMemory Of(const MemoryInputs& inputs, const StageKind& stage) const;
  /// The memory of a stage whose blocks do what `plan` says.
  StageMemory Of(const MemoryInputs& inputs, const StageKind& stage, const RematPlan& plan) const;

 private:
  BlockBytes BlockOf(const StageKind& stage) const;
  StreamBytes StartOf(const StageKind& stage) const;
  int64_t EndOf(const StageKind& stage) const { return stage.last ? last_ : size_.row; }
  /// Adds the memory in addition to what the blocks save.
  void AddRest(const MemoryInputs& inputs, const StageKind& stage, const RematPlan& plan,
               StageMemory& memory) const;
  /// `restored`: during the backward pass of attention.
  void DeferWeightGradientsOf(const MemoryInputs& inputs, const StageKind& stage, int64_t restored,
                              StageMemory& memory) const;

  bool defers_;
  PassSizes size_;
  BlockBytes block_;
  int64_t embedded_;  ///< What the embeddings leave saved.
  int64_t last_;      ///< Results behind the last block of all.
  int64_t head_;      ///< What the classifier wants, and of it what stays.
  int64_t head_gradient_;
  int64_t narrow_head_;  ///< A row that a projection before the classifier reads; 0 without.
  int64_t widened_;
  BlockWorkspace workspace_;         ///< Without what is restored from quantised values.
  int64_t deferred_ = 0;             ///< Gradients that wait of a block,
  int64_t compressed_deferred_ = 0;  ///< of one that keeps in bits these more,
  int64_t backward_workspace_ = 0;   ///< and what its backward pass wants besides them.
};

/// Bytes of a micro-batch's tokens and their metadata, where kernels read it, except for images.
int64_t BatchBytes(const MemoryInputs& inputs);

/// Workspace of an evaluation, which keeps nothing, for a micro-batch in a block.
int64_t EvaluationBytes(const MemoryInputs& inputs);

}  // namespace weft
