#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// Settings that differ for some of the parameters.
struct ParameterGroupSpec {
  std::vector<std::string> parameters;
  double learning_rate_scale = 1.0;
  std::optional<double> weight_decay;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("parameters", "Name patterns (with *); the first group that matches holds.")
              .Required()
              .Range(1, 10000),
          self.parameters);
    visit(Field("learning_rate_scale", "Factor on the learning rate.").Range(0, 1e6),
          self.learning_rate_scale);
    visit(Field("weight_decay", "Instead of optimizer.weight_decay.").Range(0, 10),
          self.weight_decay);
  }
};

struct OptimizerSpec {
  std::string name = "adamw";
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  double trust_coefficient = 0.001;
  double update_clip = 1.0;
  double decay_exponent = 0.8;
  double muon_learning_rate = 0.0;
  int64_t muon_iterations = 5;
  std::string muon_scale = "match_adamw";
  double layer_decay = 1.0;
  std::vector<ParameterGroupSpec> groups;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Update rule. muon updates the matrices of the blocks, adamw the rest.")
              .OneOf({"sgd", "adam", "adamw", "lion", "lars", "lamb", "adafactor", "muon",
                      "schedule_free_adamw"}),
          self.name);
    visit(Field("learning_rate", "Peak learning rate.").Range(0, 100), self.learning_rate);
    visit(Field("beta1", "Decay of the first moment.").Range(0, 0.99999), self.beta1);
    visit(Field("beta2", "Decay of the second moment.").Range(0, 0.9999999), self.beta2);
    visit(Field("epsilon", "Added to the root of the second moment.").Range(0, 1), self.epsilon);
    visit(Field("weight_decay",
                "Decay of matrices, decoupled except for sgd, adam and lars; norms and biases are "
                "not decayed.")
              .Range(0, 10),
          self.weight_decay);
    visit(Field("momentum", "Of sgd, lars and muon.").Range(0, 0.99999), self.momentum);
    visit(Field("nesterov", "Look ahead along the momentum (sgd, muon)."), self.nesterov);
    visit(Field("trust_coefficient", "Factor on the layer-wise rates of lars.").Range(0, 100),
          self.trust_coefficient);
    visit(Field("update_clip", "Largest root mean square of an adafactor update.").Range(0, 1e9),
          self.update_clip);
    visit(
        Field("decay_exponent", "Adafactor's second moment decays by 1 - step^-this.").Range(0, 1),
        self.decay_exponent);
    visit(Field("muon_learning_rate", "Of the matrices that muon updates; 0: learning_rate.")
              .Range(0, 100),
          self.muon_learning_rate);
    visit(Field("muon_iterations", "Newton-Schulz iterations.").Range(1, 100),
          self.muon_iterations);
    visit(Field("muon_scale",
                "original: root of max(1, rows / columns); match_adamw: 0.2 x root of the larger "
                "side, so that learning rates of adamw carry over.")
              .OneOf({"original", "match_adamw"}),
          self.muon_scale);
    visit(Field("layer_decay",
                "Factor on the learning rate for each layer below the head; 1: all alike.")
              .Range(0, 1),
          self.layer_decay);
    visit(Field("groups", "Parameters with a rate or decay of their own."), self.groups);
  }
};

/// Whether an update of a part of a tensor is that part of an update of the whole: then ranks can
/// share it (plan.zero_stage).
inline bool UpdatesElementwise(const OptimizerSpec& optimizer) {
  const std::string& name = optimizer.name;
  return name != "lars" && name != "lamb" && name != "adafactor" && name != "muon";
}

/// The learning rate over a schedule of steps_before + train.steps + steps_after steps.
struct ScheduleSpec {
  std::string kind = "cosine";
  int64_t warmup_steps = 100;
  double final_ratio = 0.1;
  int64_t decay_steps = 0;
  int64_t steps_before = 0;
  int64_t steps_after = 0;
  int64_t reference_batch = 0;
  std::string batch_scaling = "none";

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("kind", "Shape of the learning rate after warm-up.")
              .OneOf({"constant", "linear", "cosine", "inverse_sqrt", "warmup_stable_decay"}),
          self.kind);
    visit(Field("warmup_steps", "Linear rise from 0 to the peak.").Unit("steps").Range(0, 1e12),
          self.warmup_steps);
    visit(
        Field("final_ratio", "Learning rate at the last step, as a share of the peak.").Range(0, 1),
        self.final_ratio);
    visit(Field("decay_steps",
                "Length of the last phase of warmup_stable_decay; 0: a tenth of all steps of the "
                "schedule.")
              .Unit("steps")
              .Range(0, 1e12),
          self.decay_steps);
    visit(Field("steps_before",
                "Steps of the schedule that come before those of this training, which goes on with "
                "what other trainings began.")
              .Unit("steps")
              .Range(0, 1e12),
          self.steps_before);
    visit(Field("steps_after", "Steps of the schedule that come after those of this training.")
              .Unit("steps")
              .Range(0, 1e12),
          self.steps_after);
    visit(Field("reference_batch", "Global batch at which learning_rate was found; 0: this job's.")
              .Unit("sequences")
              .Range(0, 1 << 24),
          self.reference_batch);
    visit(Field("batch_scaling",
                "How the learning rate follows global_batch / reference_batch: not, linearly, or "
                "by its square root.")
              .OneOf({"none", "linear", "square_root"}),
          self.batch_scaling);
  }
};

}  // namespace weft
