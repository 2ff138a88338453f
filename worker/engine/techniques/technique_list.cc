#include "worker/engine/techniques/technique_list.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace weft::engine {

TechniqueList::TechniqueList(std::span<const std::unique_ptr<Technique>> of_model,
                             std::vector<std::unique_ptr<Technique>> of_training)
    : own_(std::move(of_training)) {
  for (const auto& technique : of_model) all_.push_back(technique.get());
  for (const auto& technique : own_) all_.push_back(technique.get());
}

Status TechniqueList::OnTraining(const TrainingParts& parts) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->OnTraining(parts));
  return OkStatus();
}

std::string_view TechniqueList::WhyNoGraphs() const {
  for (const Technique* technique : all_) {
    if (const std::string_view why = technique->WhyNoGraphs(); !why.empty()) return why;
  }
  return "";
}

bool TechniqueList::RunsAlone(int64_t step) const {
  return std::any_of(all_.begin(), all_.end(),
                     [step](const Technique* t) { return t->RunsAlone(step); });
}

ScheduledStep TechniqueList::Scheduled(ScheduledStep place) const {
  for (const Technique* technique : all_) place = technique->Scheduled(place);
  return place;
}

int64_t TechniqueList::TrainedLength(int64_t step, int64_t length) const {
  for (const Technique* technique : all_) length = technique->TrainedLength(step, length);
  return length;
}

Status TechniqueList::BeforeStep(int64_t step) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->BeforeStep(step));
  return OkStatus();
}

bool TechniqueList::WeightsDependOnStep() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Technique* t) { return t->WeightsDependOnStep(); });
}

Status TechniqueList::BeforeForward(Context& context, std::optional<int64_t> step) {
  for (Technique* technique : all_) {
    WEFT_RETURN_IF_ERROR(technique->BeforeForward(context, step));
  }
  return OkStatus();
}

bool TechniqueList::ObservesFirstGradients() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Technique* t) { return t->ObservesFirstGradients(); });
}

void TechniqueList::OnFirstMicroBatch() {
  for (Technique* technique : all_) technique->OnFirstMicroBatch();
}

Status TechniqueList::OnFirstGradient(Context& context, const TensorView& gradient) {
  for (Technique* technique : all_) {
    WEFT_RETURN_IF_ERROR(technique->OnFirstGradient(context, gradient));
  }
  return OkStatus();
}

bool TechniqueList::JudgesSequences() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Technique* t) { return t->JudgesSequences(); });
}

Result<SequenceLosses> TechniqueList::JudgeSequences(DataPart part, const SequenceScores& scores) {
  const auto judge = std::find_if(all_.begin(), all_.end(),
                                  [](const Technique* t) { return t->JudgesSequences(); });
  WEFT_CHECK(judge != all_.end(), "no technique judges sequences");
  return (*judge)->JudgeSequences(part, scores);
}

Status TechniqueList::OnDerivedGradients(Context& state, std::span<const int64_t> derived,
                                         int64_t step) {
  for (Technique* technique : all_) {
    WEFT_RETURN_IF_ERROR(technique->OnDerivedGradients(state, derived, step));
  }
  return OkStatus();
}

Status TechniqueList::OnGradients(Context& state, int64_t step) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->OnGradients(state, step));
  return OkStatus();
}

Status TechniqueList::BeforeUpdate(Context& state, const PendingUpdate& update) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->BeforeUpdate(state, update));
  return OkStatus();
}

Status TechniqueList::AfterUpdate(Context& state) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->AfterUpdate(state));
  return OkStatus();
}

bool TechniqueList::ClipsGradients() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Technique* t) { return t->ClipsGradients(); });
}

bool TechniqueList::KeepsSecondMoments(int64_t step) const {
  return std::any_of(all_.begin(), all_.end(),
                     [step](const Technique* t) { return t->KeepsSecondMoments(step); });
}

std::vector<bool> TechniqueList::FrozenIn(int64_t step) const {
  for (const Technique* technique : all_) {
    if (std::vector<bool> frozen = technique->FrozenIn(step); !frozen.empty()) return frozen;
  }
  return {};
}

RestartedState TechniqueList::Restarted() const {
  for (const Technique* technique : all_) {
    if (RestartedState restarted = technique->Restarted(); !restarted.parameters.empty()) {
      return restarted;
    }
  }
  return {};
}

bool TechniqueList::ReplacesUpdate(int64_t step) const {
  return std::any_of(all_.begin(), all_.end(),
                     [step](const Technique* t) { return t->ReplacesUpdate(step); });
}

Status TechniqueList::InsteadOfUpdate(Context& state, int64_t step) {
  for (Technique* technique : all_) {
    if (!technique->ReplacesUpdate(step)) continue;
    WEFT_RETURN_IF_ERROR(technique->InsteadOfUpdate(state, step));
  }
  return OkStatus();
}

bool TechniqueList::ReadsUpdatedParameters() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Technique* t) { return t->ReadsUpdatedParameters(); });
}

bool TechniqueList::NeedsWholeUpdates() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Technique* t) { return t->NeedsWholeUpdates(); });
}

Status TechniqueList::OnUpdated(int64_t updates) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->OnUpdated(updates));
  return OkStatus();
}

Status TechniqueList::OnLearned(Context& state) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->OnLearned(state));
  return OkStatus();
}

Status TechniqueList::OnStepEnd(const FinishedStep& step) {
  for (Technique* technique : all_) WEFT_RETURN_IF_ERROR(technique->OnStepEnd(step));
  return OkStatus();
}

bool TechniqueList::Finished() const {
  return std::any_of(all_.begin(), all_.end(), [](const Technique* t) { return t->Finished(); });
}

Result<std::vector<AveragedParameter>> TechniqueList::EvaluatedAverages(int64_t updates) {
  std::vector<AveragedParameter> averages;
  for (Technique* technique : all_) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> some,
                          technique->EvaluatedAverages(updates));
    averages.insert(averages.end(), some.begin(), some.end());
  }
  return averages;
}

void TechniqueList::OnEvaluated(const JointLosses& losses, std::map<std::string, double>& metrics) {
  for (Technique* technique : all_) technique->OnEvaluated(losses, metrics);
}

std::string_view TechniqueList::SubNetworkMetric() const {
  for (const Technique* technique : all_) {
    if (const std::string_view metric = technique->SubNetworkMetric(); !metric.empty()) {
      return metric;
    }
  }
  return "";
}

void TechniqueList::SelectSubNetwork(bool selected) {
  for (Technique* technique : all_) technique->SelectSubNetwork(selected);
}

double TechniqueList::SubNetworkWeight(int64_t step) const {
  double weight = 0;
  for (const Technique* technique : all_) weight += technique->SubNetworkWeight(step);
  return weight;
}

std::vector<NamedTensor> TechniqueList::StateTensors() {
  std::vector<NamedTensor> tensors;
  for (Technique* technique : all_) {
    for (NamedTensor& tensor : technique->StateTensors()) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void TechniqueList::OnRestored(int64_t steps) {
  for (Technique* technique : all_) technique->OnRestored(steps);
}

}  // namespace weft::engine
