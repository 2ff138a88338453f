#pragma once

#include <cstdint>

#include "common/spec/attempt_spec.h"
#include "common/spec/phase_spec.h"
#include "common/status.h"
#include "worker/engine/growth/learned_growth.h"
#include "worker/engine/models/model.h"
#include "worker/engine/train/trainer.h"

namespace weft::trainer {

/// Whether a growth is by an operator that is learned, which ranks do together.
inline bool LearnsGrowth(const GrowthSpec& growth) {
  return growth.method == "ligo";
}

/// What the learning of a growth operator came to.
struct LearnedStart {
  int64_t steps = 0;
  int64_t tokens = 0;     ///< That the loss was differentiated at.
  double first_loss = 0;  ///< Of the batch of the first step, in nats, ...
  double last_loss = 0;   ///< ... and of that of the last one, before its update.
  double flops = 0;       ///< Of what the operator computes itself.
};

/// Learns `learned` on the loss of `model`, which `trainer` trains by spec.plan, in
/// growth.fit_steps steps on the batches of the training from `data_step` on, and fills the model
/// with what it then makes. The counters of the trainer are as before its first step afterwards.
/// All ranks call it, each with the whole model and its gradients on its device, as rows of
/// refusals want it of learned growth.
Result<LearnedStart> LearnGrowth(const AttemptSpec& spec, int64_t data_step,
                                 engine::LearnedGrowth& learned, engine::Model& model,
                                 engine::Trainer& trainer);

}  // namespace weft::trainer
