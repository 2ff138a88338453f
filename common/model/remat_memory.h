#pragma once

#include <cstdint>

#include "common/model/remat_schedule.h"

namespace weft {

/// Bytes of a block's tensors for a micro-batch.
struct BlockBytes {
  /// What a block saves for its backward pass.
  struct Kept {
    int64_t saved = 0;                    ///< All.
    int64_t before_qkv = 0;               ///< Of it, up to the product to queries, keys and values.
    int64_t attention = 0;                ///< Of it, the inside of attention.
    int64_t recompute_input = 0;          ///< Saved in addition to recompute attention.
    int64_t norm_product_input = 0;       ///< Of it, what the product after a norm reads,
    int64_t attention_product_input = 0;  ///< the product after attention,
    int64_t expert_product_input = 0;     ///< and those of experts.
  };
  int64_t row = 0;            ///< [tokens, width], of the residual stream.
  int64_t gathered = 0;       ///< A result of a branch, with sequence parallelism.
  int64_t attended = 0;       ///< What attention makes.
  int64_t qkv = 0;            ///< Queries, keys and values.
  int64_t mlp_hidden = 0;     ///< Inside of the MLP, before the activation.
  int64_t mlp_quantised = 0;  ///< The same where it is quantised, in addition to all of these.
  int64_t log_sum_exp = 0;
  Kept kept = {};         ///< Quantised, where it is compressed.
  Kept plain = {};        ///< As it is: a block that is replayed alone.
  int64_t last_norm = 0;  ///< Of `kept`, with post_norm, what the norm after the MLP saves.
  int64_t input = 0;      ///< What is saved of the input of blocks that are recomputed.
  int64_t unsaved = 0;    ///< Of what a block does not save, what lives until its MLP is done.
  int64_t after_mlp = 0;  ///< Rows after the MLP next to the input, where nothing is saved.
  bool post_norm = false;
  bool keeps_input = true;  ///< A block keeps the stream that it reads: a product of it is trained.
  bool compressed = false;  ///< What a block keeps is not what it computes with.
  bool shifted = false;     ///< Keeps a shifted copy of the stream besides the stream itself.
  int64_t untrained = 0;    ///< The first blocks, which have no backward pass.
};

/// Bytes of the residual stream in addition to the saved tensors.
struct StreamBytes {
  int64_t saved = 0;   ///< On the tape.
  int64_t stream = 0;  ///< The two terms of the residual stream, as far as they are not saved.
  int64_t delta = 0;
  bool input_is_saved = false;  ///< The stream is one tensor, which `saved` has, or workspace.
};

/// Bytes that a step of the plan saves in the forward pass; 0 where it is not trained.
int64_t SavedByStep(const RematStep& step, const BlockBytes& bytes);

/// The largest sums in each tier.
struct TierPeaks {
  int64_t device = 0;
  int64_t host = 0;  ///< What is offloaded, which crosses the link once each way.
};

/// Bytes that blocks hold of a micro-batch.
struct PassBytes {
  int64_t kept = 0;      ///< From the end of the forward pass on.
  int64_t waiting = 0;   ///< From the end of the backward pass on, for deferred weight gradients.
  int64_t forward = 0;   ///< At most, in the forward pass,
  int64_t backward = 0;  ///< and in the backward pass.
};

/// Follows the saved tensors of a forward pass over blocks and of its backward pass, as the engine
/// (worker/engine/nn/block_stack.h, activation_offload.h) allocates them. `start`: before the first
/// block; `at_end`: what comes on top after the last one, before the backward pass.
TierPeaks PeakOfBlocks(const RematPlan& plan, const BlockBytes& bytes, const StreamBytes& start,
                       int64_t at_end);

/// The same on the device of a plan by numbers, without a host to send to: segments of `segment`
/// blocks (the last one may have fewer) take the first `recomputed` of `layers`, the next
/// `attention` blocks recompute their attention, and the others keep all. In a time that does not
/// depend on the numbers.
int64_t PeakOfFirstBlocks(int64_t layers, int64_t recomputed, int64_t attention, int64_t segment,
                          const BlockBytes& bytes, const StreamBytes& start, int64_t at_end);

/// The same pass by pass, `kept` without what comes at the end. `defers`: weight gradients are
/// deferred, and their inputs stay (Tape::DeferWeightGradients).
PassBytes PassesOfFirstBlocks(int64_t layers, int64_t recomputed, int64_t attention,
                              int64_t segment, const BlockBytes& bytes, const StreamBytes& start,
                              int64_t at_end, bool defers);

/// The same of any plan.
struct TierPasses {
  PassBytes device;
  int64_t host = 0;  ///< As TierPeaks::host, from the forward pass to the backward pass.
};
TierPasses PassesOf(const RematPlan& plan, const BlockBytes& bytes, const StreamBytes& start,
                    int64_t at_end, bool defers);

}  // namespace weft
