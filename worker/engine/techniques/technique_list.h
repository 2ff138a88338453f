#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// The techniques of a training. A hook of the list calls that of each technique (Technique), in
/// the order of the list, and stops at the first error. Not thread-safe.
class TechniqueList {
 public:
  /// Lists the techniques of the model, which outlive this, and then those of the training alone.
  TechniqueList(std::span<const std::unique_ptr<Technique>> of_model,
                std::vector<std::unique_ptr<Technique>> of_training);

  Status OnTraining(const TrainingParts& parts);
  /// The first reason, or "".
  std::string_view WhyNoGraphs() const;
  bool RunsAlone(int64_t step) const;

  /// Passes the step that each schedules on to the next; likewise below.
  ScheduledStep Scheduled(ScheduledStep place) const;
  int64_t TrainedLength(int64_t step, int64_t length) const;
  Status BeforeStep(int64_t step);
  /// Whether any of them says so; likewise below.
  bool WeightsDependOnStep() const;
  Status BeforeForward(Context& context, std::optional<int64_t> step);
  bool ObservesFirstGradients() const;
  void OnFirstMicroBatch();
  Status OnFirstGradient(Context& context, const TensorView& gradient);
  bool JudgesSequences() const;
  /// Asks the one that judges.
  Result<SequenceLosses> JudgeSequences(DataPart part, const SequenceScores& scores);
  Status OnDerivedGradients(Context& state, std::span<const int64_t> derived, int64_t step);
  Status OnGradients(Context& state, int64_t step);
  Status BeforeUpdate(Context& state, const PendingUpdate& update);
  Status AfterUpdate(Context& state);
  bool ClipsGradients() const;
  bool KeepsSecondMoments(int64_t step) const;
  /// Asks the one that freezes some.
  std::vector<bool> FrozenIn(int64_t step) const;
  /// Asks the one that has made some zero.
  RestartedState Restarted() const;
  bool ReplacesUpdate(int64_t step) const;
  /// Calls those that replace the update of `step`.
  Status InsteadOfUpdate(Context& state, int64_t step);
  bool ReadsUpdatedParameters() const;
  bool NeedsWholeUpdates() const;
  Status OnUpdated(int64_t updates);
  Status OnLearned(Context& state);
  Status OnStepEnd(const FinishedStep& step);
  bool Finished() const;

  /// Joins the averages of all of them.
  Result<std::vector<AveragedParameter>> EvaluatedAverages(int64_t updates);
  void OnEvaluated(const JointLosses& losses, std::map<std::string, double>& metrics);
  /// Asks the one that has a network within the network.
  std::string_view SubNetworkMetric() const;
  void SelectSubNetwork(bool selected);
  double SubNetworkWeight(int64_t step) const;
  std::vector<NamedTensor> StateTensors();
  void OnRestored(int64_t steps);

 private:
  std::vector<std::unique_ptr<Technique>> own_;  ///< Those of no model.
  std::vector<Technique*> all_;
};

}  // namespace weft::engine
