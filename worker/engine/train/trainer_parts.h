#pragma once

#include <cstdint>

#include "worker/engine/data/batch_source.h"
#include "worker/engine/models/model.h"
#include "worker/engine/techniques/parallel/gradient_reducer.h"
#include "worker/engine/techniques/parallel/pipeline_parallel.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/round_members.h"

namespace weft::engine {

/// Whom a Trainer works with; all outlive it.
struct TrainerParts {
  Context* context = nullptr;
  Model* model = nullptr;  ///< Its parameters initialized or loaded.
  BatchSource* train = nullptr;
  BatchSource* validation = nullptr;   ///< Or none.
  GradientReducer* reducer = nullptr;  ///< None for one rank.
  /// With train.local_steps, what sums in outer steps over the ranks that have the same part of
  /// other workers, or none for one worker; then `reducer` is of the context-parallel ranks of this
  /// worker, or none.
  GradientReducer* outer = nullptr;
  int64_t rank = 0;  ///< Among the data-parallel ranks.
  /// Of train.local_round_seconds, where ranks come and go; else none, which are all ranks.
  RoundMembers round_members = {};
  /// The tensor-parallel ranks of the model, which was made with it, or none. They train on the
  /// same sequences.
  const TensorParallel* tensor = nullptr;
  /// The context-parallel ranks, or none; of reducer's. `train` and `validation` give the chunks of
  /// this one.
  const ContextParallel* sequences = nullptr;
  /// The expert-parallel ranks of the model, which was made with it, or none; of reducer's. They
  /// train on different sequences.
  const ExpertParallel* experts = nullptr;
  /// The ranks of the pipeline, or none. They train on the same sequences.
  PipelineParallel* pipeline = nullptr;
  bool graphs = true;  ///< On a device, steps that repeat are launched as graphs.
  /// False: Differentiate alone is asked for, and the optimizer keeps no state.
  bool updates = true;
};

}  // namespace weft::engine
