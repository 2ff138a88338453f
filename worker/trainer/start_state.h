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

namespace weft::trainer {

/// Where an attempt goes on.
struct StartPoint {
  engine::TrainCounters counters;
  std::string checkpoint_path;        ///< Empty for a fresh start.
  std::vector<std::string> warnings;  ///< Damaged checkpoints that were passed over. Rank 0 only.
};

/// Gives all ranks the state to start from: rank 0 loads the newest sound checkpoint of the run, or
/// else the imported weights, or else leaves the fresh ones, and broadcasts. `data_fingerprint` is
/// what this attempt trains on: kInvalid when the checkpoint is of other data or another model.
Result<StartPoint> PrepareState(Env& env, const AttemptSpec& spec,
                                const std::string& data_fingerprint, engine::Model& model,
                                engine::Trainer& trainer, engine::Collective& group);

}  // namespace weft::trainer
