#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/models/model.h"
#include "worker/engine/train/trainer.h"
#include "worker/trainer/learned_start.h"

namespace weft::trainer {

/// Where an attempt goes on.
struct StartPoint {
  engine::TrainCounters counters;
  std::string checkpoint_path;   ///< Empty for a fresh start.
  std::string base_fingerprint;  ///< As in CheckpointManifest, as the next.
  std::vector<std::string> base_tensors;
  bool grown = false;                 ///< A fresh start from the weights of a phase before.
  std::optional<double> loss_before;  ///< Of that phase, its validation loss. Rank 0 only.
  double fit_flops = 0;               ///< See GrowthLosses. Rank 0 only.
  std::vector<std::string> warnings;  ///< Damaged checkpoints that were passed over. Rank 0 only.
  std::vector<std::string> notes;     ///< What people should know of the start. Rank 0 only.
};

/// Gives all ranks the state to start from: rank 0 loads the newest sound checkpoint of the run, or
/// else weights grown from a phase before, or the imported ones, or else leaves the fresh ones, and
/// broadcasts. `learned`: as GrowState has it, where there is no checkpoint. `data_fingerprint` is
/// what this attempt trains on: kInvalid when the checkpoint is of other data or another model, or
/// of a frozen network that is no longer in model.import_path (ReadBase).
Result<StartPoint> PrepareState(Env& env, const AttemptSpec& spec,
                                const std::string& data_fingerprint, LearnedStart* learned,
                                engine::Model& model, engine::Trainer& trainer,
                                engine::Collective& group);

/// Notes that the training went back to its newest checkpoint, or to the beginning, and goes on
/// with `counters`: PrepareState of a later attempt does the same until a checkpoint holds them.
Status SaveRollback(Env& env, const std::string& run_dir, const engine::TrainCounters& counters);

}  // namespace weft::trainer
