#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

/// Trains several adapters as jobs of their own would (model.peft.adapters): each starts as it
/// would by itself, learns from the mean loss over its own targets with a rate of its own, and its
/// gradient is clipped by its own norm. Not thread-safe.
class JointAdapters {
 public:
  explicit JointAdapters(const PeftSpec& spec) : adapters_(spec.adapters) {}

  /// `start` with the draws that the parameter, which is of an adapter, has in a job of its own.
  Initializer StartOf(const Parameter& parameter, Initializer start) const;

  Status OnTraining(const TrainingParts& parts);

  /// Makes the gradient of each that of its own mean loss, and clips it.
  Status BeforeUpdate(Context& state, const PendingUpdate& update);

  void OnStepEnd(const FinishedStep& step) const;
  void OnEvaluated(const JointLosses& losses, std::map<std::string, double>& metrics) const;

 private:
  /// What the updates of one adapter change on this rank.
  struct Adapter {
    std::vector<ParameterPart> parts;
    double gradient_norm = 0;
  };

  /// Where the gradient of a part is now: late updates exchange the memory of all
  /// (ParameterSet::MoveGradients).
  TensorView GradientOf(const ParameterPart& part) const;
  /// Measures the gradients of all adapters, of all ranks, with the loss scale.
  Result<std::vector<NormSums>> Measure(Context& state);
  void ReportLosses(const JointLosses& losses, std::string_view metric,
                    std::map<std::string, double>& metrics) const;

  std::vector<AdapterSpec> adapters_;
  std::vector<Adapter> trained_;
  TrainingParts parts_;
  const float* all_gradients_ = nullptr;  ///< ParameterSet::gradients before the first step.
  ReadbackOf<NormSums> norms_;            ///< Where parameters are updated.
};

}  // namespace weft::engine
