#pragma once

#include <cstdint>

#include "worker/engine/techniques/technique_list.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/local_rounds.h"
#include "worker/engine/train/step_report.h"
#include "worker/engine/train/trainer_parts.h"
#include "worker/engine/train/training_ranks.h"

namespace weft::engine {

struct EvaluationOptions {
  int64_t sequences = 0;    ///< Of the validation data, from the first one; 0: all.
  int64_t micro_batch = 1;  ///< Sequences, which `parts` divides.
  int64_t parts = 1;        ///< Equal ones, of different jobs, that each pass has.
  /// Passes have whole micro-batches, the last but one that is shorter, and losses are added
  /// without rounding: the same bits on any number of ranks. On a CPU.
  bool exact = false;
  TechniqueList* techniques = nullptr;  ///< Told of the losses of parts; or none with one.
};

/// Mean loss over the validation data, which is there, of the weights as they are packed; each rank
/// computes its share. `rounds`: what sums over workers that make local steps, or none. kInvalid
/// without targets.
Result<EvaluationReport> EvaluateLoss(const TrainerParts& parts, const TrainingRanks& ranks,
                                      LocalRounds* rounds, const EvaluationOptions& options);

/// Numbers in the parameters of this rank that are NaN or infinite. Reads every one once.
Result<int64_t> CountNonFiniteWeights(const Context& context, const ParameterSet& parameters);

}  // namespace weft::engine
