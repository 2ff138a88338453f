#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/group_norm.h"
#include "common/spec/plan.h"
#include "common/spec/resource_use.h"
#include "worker/engine/data/round_state.h"
#include "worker/engine/techniques/precision/loss_scale.h"

namespace weft::engine {

/// Where the time of a step went, on this rank.
struct PhaseSeconds {
  double data = 0;
  double forward = 0;   ///< Includes the classifier's share of the backward pass.
  double backward = 0;  ///< Includes recomputation.
  double communication_exposed = 0;
  double optimizer = 0;  ///< Norm, update and packing.

  double Total() const { return data + forward + backward + communication_exposed + optimizer; }
};

/// What happened in one optimizer step. All ranks report the same except seconds and memory.
struct StepReport {
  int64_t step = 0;          ///< The step this is about, from 0.
  double loss = 0;           ///< Mean over all targets of the global batch, before the update.
  double gradient_norm = 0;  ///< Before clipping, without the loss scale.
  double learning_rate = 0;
  int64_t tokens = 0;          ///< Of the global batch, padding included.
  int64_t padding_tokens = 0;  ///< Of the global batch.
  int64_t targets = 0;         ///< Of the global batch.
  int64_t right = 0;           ///< Of the targets, for classification: where the right class won.
  bool skipped = false;        ///< No update: a spike, or loss or gradient not finite.
  bool spike = false;          ///< The loss jumped, see train.guard.
  int64_t non_finite_gradients = 0;  ///< Elements.
  double loss_scale = 1;             ///< Of this step; 1 without loss scaling.
  bool overflow = false;  ///< A gradient was not finite, and the loss scale was lowered for it.
  std::map<std::string, double> technique_metrics;  ///< By TechniqueMetric::name.
  PhaseSeconds seconds;
  MemoryBreakdown peak_memory;  ///< Since the trainer started.
  MemoryBreakdown step_memory;  ///< Peak since the step before.
  MemoryBreakdown
      device_memory;  ///< Of peak_memory what is not in the host memory pool; with offload.
  std::vector<GroupNorm> norms;  ///< Every log_every_steps; empty in between and when skipped.
  TierUse tiers;                 ///< Since the step before.

  double Accuracy() const { return static_cast<double>(right) / static_cast<double>(targets); }
  double perplexity() const { return std::exp(loss); }
};

struct EvaluationReport {
  double loss = 0;  ///< Mean over all targets.
  int64_t targets = 0;
  int64_t right = 0;  ///< Of the targets, for classification.
  double seconds = 0;
  std::map<std::string, double> technique_metrics = {};  ///< By TechniqueMetric::name.

  double Accuracy() const { return static_cast<double>(right) / static_cast<double>(targets); }
  double perplexity() const { return std::exp(loss); }
};

/// The numbers of the training state besides its tensors.
struct TrainCounters {
  int64_t step = 0;
  int64_t updates = 0;
  int64_t skipped_steps = 0;
  int64_t tokens = 0;
  int64_t overflows = 0;
  LossScale loss_scale;
  int64_t data_offset = 0;
  int64_t loss_spikes = 0;
  int64_t rollbacks = 0;
  std::vector<double> recent_losses;
  RoundState rounds;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step", "Steps taken.").Unit("steps"), self.step);
    visit(Field("updates", "Steps that changed the parameters.").Unit("steps"), self.updates);
    visit(Field("skipped_steps", "Steps whose update was dropped.").Unit("steps"),
          self.skipped_steps);
    visit(Field("tokens", "Tokens trained on, over all ranks.").Unit("tokens"), self.tokens);
    visit(Field("overflows", "Of skipped_steps those that lowered the loss scale.").Unit("steps"),
          self.overflows);
    visit(Field("loss_scale", "Of the next step."), self.loss_scale);
    visit(Field("data_offset", "The next step reads the data of this many steps later.")
              .Unit("steps"),
          self.data_offset);
    visit(Field("loss_spikes", "Of skipped_steps those because the loss jumped.").Unit("steps"),
          self.loss_spikes);
    visit(Field("rollbacks", "Times the training went back and left out data."), self.rollbacks);
    visit(Field("recent_losses", "Window of the guard, oldest first; empty without one.")
              .Unit("nats per token"),
          self.recent_losses);
    visit(Field("rounds", "State of rounds by time."), self.rounds);
  }
};

}  // namespace weft::engine
