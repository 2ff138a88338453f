#include "worker/engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/train/pipeline_run.h"

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
  Result<EvaluationReport> report = EvaluateWeights();
  WEFT_RETURN_IF_ERROR(ExchangeWeights(averages));
  return report;
}

Result<EvaluationReport> Trainer::EvaluateWeights() {
  WEFT_RETURN_IF_ERROR(weights_.Prepare(std::nullopt));
  Stopwatch watch;
  Context& context = *parts_.context;
  int64_t count = parts_.validation->Sequences();
  if (job_.train.eval_sequences > 0) count = std::min(count, job_.train.eval_sequences);
  const int64_t end = count * (parts_.rank + 1) / ranks_.data_ranks();
  WEFT_ASSIGN_OR_RETURN(auto total, ReadbackOf<BatchLoss>::New(context));
  PhaseSeconds ignored;
  StepClock not_of_a_step;
  PipelineRun pipeline({.context = &context,
                        .model = parts_.model,
                        .tensor = parts_.tensor,
                        .pipeline = parts_.pipeline,
                        .clock = &not_of_a_step});
  const auto evaluate = [&](int64_t first, int64_t sequences, BatchLoss* sum) -> Result<int64_t> {
    WEFT_ASSIGN_OR_RETURN(Batch batch, parts_.validation->Get(0, first, sequences));
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens, TokenBatch::New(context, batch, first));
    if (parts_.pipeline != nullptr) {
      WEFT_RETURN_IF_ERROR(pipeline.Evaluate(tokens, sum));
      return batch.target_count;
    }
    Tape tape(nullptr);
    WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, tokens, 1.0f, sum));
    return batch.target_count;
  };
  int64_t targets = 0, passes = 0;
  for (int64_t first = count * parts_.rank / ranks_.data_ranks(); first < end; ++passes) {
    const int64_t sequences = std::min(plan_.micro_batch, end - first);
    WEFT_ASSIGN_OR_RETURN(const int64_t found, evaluate(first, sequences, total.device()));
    targets += found;
    first += sequences;
  }
  if (parts_.model->parameters().values_sharded() || parts_.experts != nullptr) {
    // Ranks with fewer sequences take part in what the others gather, or send to experts.
    const int64_t most = (count + ranks_.data_ranks() - 1) / ranks_.data_ranks();
    WEFT_ASSIGN_OR_RETURN(auto unused, ReadbackOf<BatchLoss>::New(context));
    for (; passes < (most + plan_.micro_batch - 1) / plan_.micro_batch; ++passes) {
      WEFT_RETURN_IF_ERROR(evaluate(0, 1, unused.device()).status());
    }
  }
  WEFT_RETURN_IF_ERROR(pipeline.Finish());
  WEFT_RETURN_IF_ERROR(total.Fetch(context));
  WEFT_ASSIGN_OR_RETURN(const BatchLoss* own, total.Wait());
  std::array<double, 3> sums = {own->sum, static_cast<double>(targets),
                                static_cast<double>(own->right)};
  if (parts_.pipeline != nullptr) {
    // The last stage alone has computed the loss; all know the targets.
    std::array<double, 2> losses = {sums[0], sums[2]};
    WEFT_RETURN_IF_ERROR(parts_.pipeline->SumScalars(losses));
    sums = {losses[0], sums[1], losses[1]};
  }
  WEFT_RETURN_IF_ERROR(ranks_.SumScalars(sums, ignored));
  if (rounds_ != nullptr) WEFT_RETURN_IF_ERROR(rounds_->SumScalars(sums));
  if (sums[1] == 0) return InvalidError("the validation data has no targets");
  return EvaluationReport{sums[0] / sums[1], static_cast<int64_t>(sums[1]),
                          static_cast<int64_t>(sums[2]), watch.Lap()};
}

Result<bool> Trainer::WeightsAreFinite() {
  WEFT_RETURN_IF_ERROR(FinishUpdates());
  const ParameterSet& parameters = parts_.model->parameters();
  NormSums measured;
  if (parameters.file() != nullptr) {
    NormStream stream;
    ParameterFileIterator walk(parameters.file(), {.values = true});
    for (int64_t i = 0; i < parameters.size(); ++i) {
      WEFT_RETURN_IF_ERROR(walk.MoveTo(parameters[i].unit));
      WEFT_RETURN_IF_ERROR(stream.Add(NormTensorOf(parameters.held_value(i).view)));
      WEFT_RETURN_IF_ERROR(stream.EndTensor());
    }
    WEFT_RETURN_IF_ERROR(walk.Finish());
    measured = stream.sums();
  } else {
    std::vector<kernels::NormTensor> all;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      all.push_back(NormTensorOf(parameters.held_value(i).view));
    }
    Context state = StateContext();
    WEFT_ASSIGN_OR_RETURN(auto sums, ReadbackOf<NormSums>::New(state));
    WEFT_RETURN_IF_ERROR(Measure(state, all, sums.device()));
    WEFT_RETURN_IF_ERROR(sums.Fetch(state));
    WEFT_ASSIGN_OR_RETURN(const NormSums* read, sums.Wait());
    measured = *read;
  }
  std::array<double, 1> non_finite = {static_cast<double>(measured.non_finite)};
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(ranks_.SumOverReplica(non_finite, ignored));
  if (parameters.values_sharded()) {
    WEFT_RETURN_IF_ERROR(ranks_.SumOverParts(non_finite, ignored));
  }
  return non_finite[0] == 0;
}

}  // namespace weft::engine
