#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/techniques/preference_optimization/dpo.h"
#include "worker/engine/techniques/preference_optimization/preference_optimization_cost.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {
namespace {

/// Direct preference optimisation. The network at the start is the reference: it judges all pairs
/// once, before anything is updated, and its log-probabilities are state from then on.
class PreferenceOptimization : public Technique {
 public:
  explicit PreferenceOptimization(const PreferenceSpec& spec) : spec_(spec) {}

  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    reference_[DataPart::kTraining].resize(static_cast<size_t>(parts.train_sequences));
    reference_[DataPart::kValidation].resize(static_cast<size_t>(parts.validation_sequences));
    return OkStatus();
  }

  std::string_view WhyNoGraphs() const override {
    return "the host judges the answers of a batch before its gradients";
  }

  bool JudgesSequences() const override { return true; }

  Result<SequenceLosses> JudgeSequences(DataPart part, const SequenceScores& scores) override {
    if (!has_reference_) WEFT_RETURN_IF_ERROR(JudgeByReference());
    std::vector<double> reference;
    for (size_t s = 0; s < scores.indices.size(); ++s) {
      const int64_t index = scores.indices[s];
      const bool follows = s % 2 == 0 ? index % 2 == 0 : index == scores.indices[s - 1] + 1;
      if (!follows || index < 0 || index >= std::ssize(reference_[part])) {
        return InternalError("sequence " + std::to_string(index) + " is no answer of a pair of " +
                             std::to_string(reference_[part].size()) + " sequences");
      }
      reference.push_back(reference_[part][static_cast<size_t>(index)]);
    }
    DpoResult result = DpoLosses(spec_, scores.log_probabilities, reference);
    if (part == DataPart::kTraining) last_ = result;
    return std::move(result.losses);
  }

  Status OnStepEnd(const FinishedStep& step) override {
    std::map<std::string, double>& metrics = *step.metrics;
    metrics.emplace(kChosenRewardMetric, last_.chosen_reward);
    metrics.emplace(kRejectedRewardMetric, last_.rejected_reward);
    metrics.emplace(kRewardMarginMetric, last_.chosen_reward - last_.rejected_reward);
    metrics.emplace(kRewardAccuracyMetric, last_.accuracy);
    return OkStatus();
  }

  std::vector<NamedTensor> StateTensors() override {
    std::vector<NamedTensor> tensors;
    for (const auto& [part, name] : {std::pair{DataPart::kTraining, "preference/reference"},
                                     {DataPart::kValidation, "preference/validation_reference"}}) {
      std::vector<float>& values = reference_[part];
      if (values.empty()) continue;
      tensors.push_back({name, {values.data(), DType::kF32, {std::ssize(values)}}});
    }
    return tensors;
  }

  void OnRestored(int64_t steps) override { has_reference_ = steps > 0; }

 private:
  Status JudgeByReference() {
    for (auto& [part, values] : reference_) {
      if (values.empty()) continue;
      WEFT_ASSIGN_OR_RETURN(const std::vector<double> scores, parts_.score_sequences(part));
      values.assign(scores.begin(), scores.end());
    }
    has_reference_ = true;
    return OkStatus();
  }

  PreferenceSpec spec_;
  TrainingParts parts_;
  /// Log-probabilities of the network at the start, by the index of the sequence, f32 as in
  /// checkpoints.
  std::map<DataPart, std::vector<float>> reference_;
  bool has_reference_ = false;
  DpoResult last_;
};

}  // namespace

std::unique_ptr<Technique> NewPreferenceOptimization(const TechniqueInputs& inputs) {
  const PreferenceSpec& spec = inputs.train.preference;
  return spec.method == "dpo" ? std::make_unique<PreferenceOptimization>(spec) : nullptr;
}

}  // namespace weft::engine
