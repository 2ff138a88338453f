#pragma once

#include <algorithm>
#include <cstdint>

#include "common/model/context_attention.h"
#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "common/model/precision.h"
#include "common/model/remat_memory.h"
#include "common/model/remat_schedule.h"
#include "common/model/transfer_waits.h"
#include "common/spec/plan.h"
#include "common/spec/time_calibration.h"
#include "coordinator/planner/rate_model.h"

namespace weft::planner {

/// One forward and backward pass over a micro-batch on one kind of worker. Products are in
/// seconds; the rest in bytes, since what memory gives depends on who else uses it.
struct PassCost {
  double gemm_seconds = 0;
  double backward_gemm_seconds = 0;           ///< Part of gemm_seconds.
  double block_forward_gemm_seconds = 0;      ///< Of one block: what recomputing it costs.
  double attention_forward_gemm_seconds = 0;  ///< The same of the inside of its attention.
  double attention_product_seconds = 0;       ///< One of its products over queries and keys.
  double memory_bytes = 0;
  double block_forward_memory_bytes = 0;
  double weight_gradient_bytes = 0;   ///< Written once a pass, and read from the second pass on.
  double step_product_seconds = 0;    ///< Once a step, of the products of StepWork.
  double step_f32_numbers = 0;        ///< Once a step, as StepWork has it,
  double step_parameter_numbers = 0;  ///< like this.
  double format_share = 0;  ///< Of the blocks, those whose products are in the recipe's format.
};

/// Of the blocks of a network, those whose products are in the format of the recipe.
double FormatShare(const ModelSpec& model, const PrecisionRecipe& precision,
                   const FormatBlocks& format_blocks);

/// `format_share`: counts on a GPU alone. A CPU computes products in a format on widened operands,
/// as fast as those of precision.products. `sharers`: ranks that have
/// equal parts of each sequence, and of its pairs of a query and a key. Products take as many times
/// longer as runs near by (RateModel::Near) say.
PassCost CostOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                    const PrecisionRecipe& precision, double format_share, double dropout,
                    const RateModel& rates, int64_t threads, int64_t sharers = 1);

/// What the blocks of such a rank compute, by what CostOfPass goes.
MeasuredShape BlockOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                          DType products, int64_t sharers = 1);

/// PassCost::weight_gradient_bytes of such a network.
inline double WeightGradientBytes(const ModelShape& shape) {
  return 4 * static_cast<double>(std::min(shape.packed, shape.trained));
}

/// How a rank takes its steps.
struct StepInputs {
  ModelShape shape;
  int64_t accumulation_steps = 1;
  int64_t recomputed_blocks = 0;
  int64_t threads = 1;
  int64_t ranks = 1;  ///< That see different tokens, each of shape.tensor ranks.
  int64_t ranks_on_worker = 1;
  int64_t bucket_bytes = 1;
  const PrecisionRecipe* precision = &kBf16Precision;
  int64_t zero_stage = 0;
  int64_t tokens = 0;                      ///< Of a micro-batch, on one of them.
  ShardedParameters sharded = {};          ///< With zero_stage 3.
  int64_t host_link_bytes_per_second = 0;  ///< 0: as fast as memory.
  int64_t uploaded_weight_bytes = 0;       ///< After an update, with offloads_optimizer.
  int64_t recomputed_attentions = 0;       ///< Blocks of which attention alone is computed again.
  StreamedBytes streamed = {};             ///< Weights that come up in every pass,
  int64_t resident_weight_bytes = 0;       ///< and once a step.
  /// The same of a stage of a pipeline that has one block, between the ends of the network or at
  /// one of them.
  struct StreamedStage {
    StreamedBytes inner = {};
    StreamedBytes first = {};
    StreamedBytes last = {};
  } streamed_stage = {};
  int64_t activation_bytes = 0;  ///< Of a micro-batch, that go down and come up again.
  /// CodedActivationBytes, of each way.
  int64_t coded_bytes = 0;
  /// The same of a block of a pipeline, which keeps all, all but the inside of attention, or its
  /// input.
  struct CodedBlock {
    int64_t all = 0;
    int64_t but_attention = 0;
    int64_t input = 0;
  } coded_block = {};
  bool offloads_optimizer = false;  ///< Gradients go down in every pass.
  /// With that, units that stand on the device and are updated there.
  struct KeptUnits {
    int64_t trained = 0;       ///< Numbers.
    int64_t first_blocks = 0;  ///< Blocks of them with which, behind the embeddings, the forward
                               ///< pass begins,
    int64_t last_blocks = 0;   ///< and with which, before the head, it ends.
  } kept = {};
  int64_t file_bytes = 0;          ///< Of state in a file, read and written in an update.
  StreamedBytes file_pass = {};    ///< Read and written in the passes of a micro-batch.
  StreamedStage filed_stage = {};  ///< FiledWeightBytes, as streamed_stage.
  ContextSharing context = {};     ///< Of `ranks`, those that share each sequence.
  int64_t sharers = 1;             ///< Of `ranks`, those that share (ShardRanks).
  int64_t local_steps = 1;         ///< Steps that each worker of `ranks` makes by itself.
  double sent_gradients = 1;       ///< Of the bytes of gradients those that travel between ranks.
  RematPlan schedule = {};         ///< What travels, where a schedule says so,
  BlockBytes block = {};           ///< and how much a block keeps.

  /// With local_steps each worker's `ranks` share its sequences.
  int64_t Workers() const { return ranks / context.ranks; }
  /// Groups that share, each among its ranks.
  int64_t Groups() const { return sharers > 1 ? ranks / sharers : 1; }
  /// Of `ranks`, or of those that share, those that have the same experts.
  int64_t ExpertReplicas() const { return (sharers > 1 ? sharers : ranks) / shape.expert_ranks; }
  /// Numbers that one of them updates.
  double Updated() const {
    const bool shares_experts = shape.expert_ranks > 1 && sharers > 1;
    const auto experts = static_cast<double>(shares_experts ? shape.stored_trained_experts : 0);
    return (static_cast<double>(shape.Updated()) - experts) / static_cast<double>(sharers) +
           experts / static_cast<double>(ExpertReplicas());
  }
  /// Ranks hold parts of the parameters, and gather whole ones in every pass.
  bool SharesParameters() const { return zero_stage > 2 && sharers > 1; }
};

/// Of a block of that pass, where memory gives so many bytes a second.
BlockSeconds SecondsOfBlock(const PassCost& pass, const ModelShape& shape, double bandwidth);

/// Bytes a second each way between the tiers of a rank. On CPUs what the job says, or a share of
/// what memory gives: half of it, which reads and writes each, where no run has told more. Of a GPU
/// what was measured, or its slot allows.
double TierLink(int64_t host_link_bytes_per_second, double bandwidth, const RateModel& rates);

/// How fast a rank tells others something, on its worker or beyond it.
struct Wire {
  double bytes_per_second = 0;
  double message_seconds = 0;
};
Wire WireOf(const StepInputs& inputs, const RateModel& rates, bool within_worker);

/// Of a pass, with ranks that share matrices: each layer sums the residual stream twice forward and
/// twice backward, and twice more when it is recomputed; embedding and classifier once. Nothing
/// runs beside it.
double TensorSeconds(const StepInputs& inputs, const RateModel& rates);

/// Of a step, with ranks that share matrices: they add up the gradients of which each has a summand
/// (ModelShape::summands).
double SummandSeconds(const StepInputs& inputs, const RateModel& rates);

/// What ranks that share sequences tell each other for the attentions of a pass, less what a ring
/// hides behind them: all but the first step's keys come while others are attended to.
double ContextSeconds(const StepInputs& inputs, const PassCost& pass, const RateModel& rates);

/// Of a pass, with ranks that share experts, where tokens are spread evenly: rows go to experts and
/// back in each layer, forward and backward, and once more where a block is recomputed. Before that
/// the ranks agree on how many. Nothing runs beside it.
double ExpertSeconds(const StepInputs& inputs, const RateModel& rates);

/// Bytes that the outer step of ranks with local_steps reads and writes, beside what they exchange.
double OuterStepBytes(const StepInputs& inputs);

/// Where the time of one optimizer step goes on this worker.
TimeBreakdown PredictStep(const StepInputs& inputs, const PassCost& pass, const RateModel& rates);

/// The same on its GPUs: the processor starts kernels while the device computes, collectives hide
/// behind the backward pass, and nothing is packed but copies for products of another type. Without
/// TensorSeconds, and what ranks that share sequences tell each other.
TimeBreakdown PredictDeviceStep(const StepInputs& inputs, const PassCost& pass,
                                const DeviceModel& device, double network_bytes_per_second);

}  // namespace weft::planner
