#include "worker/engine/train/evaluation.h"

#include <array>
#include <vector>

#include "worker/engine/train/trainer.h"

namespace weft::engine {

Status Trainer::ExchangeWeights(const std::vector<AveragedParameter>& averages) {
  if (averages.empty()) return OkStatus();
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  Context state = StateContext();
  WEFT_RETURN_IF_ERROR(Exchange(state, averages));
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(ranks_.GatherParameters(ignored));
  weights_.Changed(Repack::kTrained);
  return OkStatus();
}

Result<std::vector<AveragedParameter>> Trainer::EvaluatedAverages() {
  WEFT_ASSIGN_OR_RETURN(std::vector<AveragedParameter> all, updaters_.Averages(counters_.updates));
  WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> others,
                        techniques_.EvaluatedAverages(counters_.updates));
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

Result<EvaluationReport> Trainer::Evaluate() {
  if (parts_.validation == nullptr) return NotFoundError("the job has no validation data");
  // One that is late stays so.
  if (offloaded_ != nullptr) WEFT_RETURN_IF_ERROR(offloaded_->FinishUnlessLate());
  WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> averages, EvaluatedAverages());
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  const auto evaluate = [this]() -> Result<EvaluationReport> {
    WEFT_RETURN_IF_ERROR(weights_.Prepare(std::nullopt));
    return EvaluateLoss(parts_, ranks_, rounds_.get(),
                        {.sequences = job_.train.eval_sequences, .micro_batch = plan_.micro_batch});
  };
  Result<EvaluationReport> report = evaluate();
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  return report;
}

Result<bool> Trainer::WeightsAreFinite() {
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  const ParameterSet& parameters = parts_.model->parameters();
  WEFT_ASSIGN_OR_RETURN(const int64_t found, CountNonFiniteWeights(*parts_.context, parameters));
  std::array<double, 1> non_finite = {static_cast<double>(found)};
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(ranks_.SumOverReplica(non_finite, ignored));
  if (parameters.values_sharded()) {
    WEFT_RETURN_IF_ERROR(ranks_.SumOverParts(non_finite, ignored));
  }
  return non_finite[0] == 0;
}

}  // namespace weft::engine
