#pragma once

#include <cstdint>

#include "common/spec/attempt_spec.h"
#include "common/spec/phase_spec.h"
#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/growth/learned_growth.h"
#include "worker/engine/models/model.h"
#include "worker/engine/train/trainer.h"

namespace weft::trainer {

/// Whether a growth is by an operator that is learned, which ranks do together.
inline bool LearnsGrowth(const GrowthSpec& growth) {
  return growth.method == "ligo";
}

/// A growth operator that was learned, and what that came to.
struct LearnedStart {
  engine::LearnedGrowth growth;
  int64_t steps = 0;
  int64_t tokens = 0;     ///< That the loss was differentiated at.
  double first_loss = 0;  ///< Of the batch of the first step, in nats, ...
  double last_loss = 0;   ///< ... and of that of the last one, before its update.
  double flops = 0;       ///< Of what the operator computes itself, once all values are made.
};

/// Learns `growth` on the loss of `model`, which is whole and which `trainer` differentiates, in
/// growth.fit_steps steps on the batches of the training from `data_step` on. All ranks of `group`
/// call it, and have the same operator afterwards, bit for bit. kInvalid where the loss is not
/// finite.
Result<LearnedStart> LearnGrowth(const AttemptSpec& spec, int64_t data_step,
                                 engine::LearnedGrowth growth, engine::Model& model,
                                 engine::Trainer& trainer, engine::Collective& group);

}  // namespace weft::trainer
