#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/field.h"
#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/models/model.h"
#include "worker/engine/train/trainer.h"
#include "worker/trainer/learned_start.h"

namespace weft::trainer {

/// The loss on both sides of a growth, how it was made, and what that took:
/// `<run_dir>/growth.json`.
struct GrowthLosses {
  std::optional<double> before_nats;
  std::optional<double> after_nats;
  double fit_flops = 0;
  std::optional<GrowthSpec> growth;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("before_nats", "Validation loss at the end of the phase before.")
              .Unit("nats per token"),
          self.before_nats);
    visit(Field("after_nats", "Validation loss of the grown weights.").Unit("nats per token"),
          self.after_nats);
    visit(Field("fit_flops",
                "Floating-point operations that learned the growth operator, which the phase's "
                "training_flops have, too.")
              .Unit("FLOP"),
          self.fit_flops);
    visit(Field("growth", "How the weights were grown; absent where it was not noted."),
          self.growth);
  }
};

Status SaveGrowthLosses(Env& env, const std::string& run_dir, const GrowthLosses& losses);
/// Without a file: empty.
Result<GrowthLosses> ReadGrowthLosses(Env& env, const std::string& run_dir);

/// What a phase starts with, besides its weights.
struct GrownStart {
  /// Steps of this phase whose data the phases before have read. Where batch and sequence length
  /// stay, no sequence is read again before the others; another length cuts the text anew, and as
  /// many tokens are left out.
  int64_t data_offset = 0;
  /// Steps of this phase that were trained already, where it goes on from a part of its own, and
  /// their tokens.
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t updates = 0;                ///< That the optimizer's state is of; 0 for a new state.
  std::optional<double> loss_before;  ///< Validation loss of the phase before.
  double fit_flops = 0;               ///< See GrowthLosses.
  std::string note;                   ///< For people.
};

/// Whether a phase may begin with the optimizer's state of the one before.
bool MayKeepState(const GrowthSpec& growth);

/// Learns the operator by which spec.start grows the trained weights of the phase before
/// (LearnGrowth). `model` is whole. kInvalid as GrowState has it.
Result<LearnedStart> LearnGrowthOfPhase(Env& env, const AttemptSpec& spec, engine::Model& model,
                                        engine::Trainer& trainer, engine::Collective& group);

/// Fills `model`, or this rank's part of it, with what spec.start makes of the trained weights of
/// earlier phases (engine::GrowthOperator, or `learned` where the growth was learned, else null),
/// and the optimizer's state of `trainer` where it is kept. kInvalid when a phase has no sound
/// checkpoint or is of another network, or when growth.optimizer_state kept or asymmetric asks for
/// more than moments.
Result<GrownStart> GrowState(Env& env, const AttemptSpec& spec, LearnedStart* learned,
                             engine::Model& model, engine::Trainer& trainer);

}  // namespace weft::trainer
