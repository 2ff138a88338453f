#pragma once

#include <algorithm>
#include <cstdint>

#include "common/model/model_shape.h"
#include "common/model/precision.h"
#include "common/model/technique_cost.h"
#include "common/model/technique_products.h"
#include "common/model/transfer_waits.h"
#include "common/number.h"
#include "common/spec/job_spec.h"
#include "common/spec/time_calibration.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// One forward and backward pass over a micro-batch on one kind of worker. Products are in
/// seconds; the rest in bytes, since what memory gives depends on who else uses it.
struct PassCost {
  double gemm_seconds = 0;
  double backward_gemm_seconds = 0;           ///< Part of gemm_seconds.
  double block_forward_gemm_seconds = 0;      ///< To recompute one block.
  double attention_forward_gemm_seconds = 0;  ///< To recompute the inside of its attention.
  double attention_product_seconds = 0;       ///< One of its products over queries and keys.
  double memory_bytes = 0;
  double block_forward_memory_bytes = 0;
  double weight_gradient_bytes = 0;  ///< Written once a pass, and read from the second pass on.
  double step_product_seconds = 0;   ///< Once a step: the products of StepWork, searches for masks,
  double step_f32_numbers = 0;       ///< and the numbers that it reads and writes as f32
  double step_parameter_numbers = 0;  ///< and as parameters.
  RankedNumbers ranked;               ///< Of StepWork.
  double merge_product_seconds = 0;   ///< The same of merging weights once (MergeWorkOf).
  double merge_f32_numbers = 0;
  double merge_parameter_numbers = 0;
  double gathered_list_seconds = 0;  ///< To list what counts of gathered weights, once.
  double packing_seconds = 0;        ///< Once a step, of weights that are not gathered, likewise.
  double format_share = 0;    ///< Share of the blocks whose products are in the recipe's format.
  double computed_share = 1;  ///< Expected share of the blocks' work that training computes.
  double scoring_passes = 0;  ///< Forward passes besides, which the sums above have.
};

/// Share of a network's blocks whose products are in the format of the recipe.
double FormatShare(const ModelSpec& model, const PrecisionRecipe& precision,
                   const FormatBlocks& format_blocks);

/// `format_share` counts where operands in the recipe's format are multiplied as such
/// (StepRates::Multiplies). `context_ranks`: context-parallel ranks, which have equal parts of each
/// sequence and of its pairs of a query and a key. Products take as many times longer as runs near
/// by (StepRates::Near) say. `mlp`: how a technique multiplies by the weights of MLPs. `train`:
/// what techniques of the training compute besides.
PassCost CostOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                    const PrecisionRecipe& precision, double format_share, double dropout,
                    const StepRates& rates, int64_t threads, int64_t context_ranks,
                    const TechniqueProducts& techniques = {}, const TrainSpec& train = {});

/// What the blocks of such a rank compute, which StepRates::Near asks.
MeasuredShape BlockOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                          DType products, int64_t context_ranks);

/// PassCost::weight_gradient_bytes of such a network.
inline double WeightGradientBytes(const ModelShape& shape) {
  return 4 * D(std::min(shape.packed, shape.trained));
}

/// The pass where its products take `times` times longer.
PassCost SlowedBy(PassCost pass, double times);

/// One block of the pass, where memory gives `bandwidth` bytes a second.
BlockSeconds SecondsOfBlock(const PassCost& pass, const ModelShape& shape, double bandwidth);

}  // namespace weft::planner
