#include "worker/engine/train/evaluation.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/number.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/train/exact_numbers.h"
#include "worker/engine/train/micro_batch_sums.h"
#include "worker/engine/train/part_losses.h"
#include "worker/engine/train/pipeline_run.h"
#include "worker/engine/train/state_context.h"

namespace weft::engine {

Result<EvaluationReport> EvaluateLoss(const TrainerParts& parts, const TrainingRanks& ranks,
                                      LocalRounds* rounds, const EvaluationOptions& options) {
  Stopwatch watch;
  Context& context = *parts.context;
  const int64_t data_ranks = ranks.data_ranks();
  int64_t count = parts.validation->Sequences();
  if (options.sequences > 0) count = std::min(count, options.sequences);
  // Each pass has as many sequences of each part.
  count = RoundUp(count, options.parts);
  // What ranks partition.
  const int64_t unit = options.exact ? options.micro_batch : options.parts;
  const int64_t units = (count + unit - 1) / unit;
  const int64_t end = std::min(units * (parts.rank + 1) / data_ranks * unit, count);
  WEFT_ASSIGN_OR_RETURN(PartLosses part_losses, PartLosses::New(context, options.parts));
  std::vector<int64_t> part_targets(part_losses.parts());
  WEFT_ASSIGN_OR_RETURN(auto total, ReadbackOf<BatchLoss>::New(context));
  PhaseSeconds ignored;
  StepClock not_of_a_step;
  PipelineRun pipeline({.context = &context,
                        .model = parts.model,
                        .tensor = parts.tensor,
                        .pipeline = parts.pipeline,
                        .clock = &not_of_a_step,
                        .part_losses = &part_losses});
  const auto run = [&](int64_t first, int64_t sequences, const PartLosses& losses,
                       BatchLoss* sum) -> Result<Batch> {
    WEFT_ASSIGN_OR_RETURN(Batch batch, parts.validation->Get(0, first, sequences));
    WEFT_ASSIGN_OR_RETURN(TokenBatch tokens, TokenBatch::New(context, batch, first));
    if (batch.part_targets.size() != part_targets.size()) {
      return InvalidError("the validation data are not of the jobs that are trained together");
    }
    if (parts.pipeline != nullptr) {
      WEFT_RETURN_IF_ERROR(pipeline.Evaluate(tokens, sum));
      return batch;
    }
    Tape tape(nullptr);
    WEFT_RETURN_IF_ERROR(losses.Prepare(context, tokens));
    WEFT_RETURN_IF_ERROR(parts.model->Loss(context, tape, tokens, 1.0f, sum));
    WEFT_RETURN_IF_ERROR(losses.Add(context, tokens));
    return batch;
  };
  int64_t targets = 0, passes = 0;
  ExactLoss exact;
  for (int64_t first = units * parts.rank / data_ranks * unit; first < end; ++passes) {
    const int64_t sequences = std::min(options.micro_batch, end - first);
    WEFT_ASSIGN_OR_RETURN(const Batch batch, run(first, sequences, part_losses, total.device()));
    targets += batch.target_count;
    for (size_t part = 0; part < part_targets.size(); ++part) {
      part_targets[part] += batch.part_targets[part];
    }
    first += sequences;
    if (options.exact) exact.Add(std::exchange(*total.host(), BatchLoss()));
  }
  if (parts.model->parameters().values_sharded() || parts.experts != nullptr) {
    // Ranks with fewer sequences take part in what the others gather, or send to experts.
    const int64_t most = (units + data_ranks - 1) / data_ranks * unit;
    WEFT_ASSIGN_OR_RETURN(auto unused, ReadbackOf<BatchLoss>::New(context));
    const PartLosses none;
    for (; passes < (most + options.micro_batch - 1) / options.micro_batch; ++passes) {
      WEFT_RETURN_IF_ERROR(run(0, options.parts, none, unused.device()).status());
    }
  }
  WEFT_RETURN_IF_ERROR(pipeline.Finish());
  WEFT_RETURN_IF_ERROR(total.Fetch(context));
  WEFT_ASSIGN_OR_RETURN(const BatchLoss* own, total.Wait());
  std::array<double, 3> sums = {own->sum, static_cast<double>(targets),
                                static_cast<double>(own->right)};
  // The last stage alone has computed the loss; all know the targets.
  if (options.exact) {
    std::vector<double> numbers;
    AppendTo(numbers, exact.sum, exact.right);
    if (parts.pipeline != nullptr) WEFT_RETURN_IF_ERROR(parts.pipeline->SumScalars(numbers));
    numbers.push_back(sums[1]);
    WEFT_RETURN_IF_ERROR(ranks.SumScalars(numbers, ignored));
    TakeFrom(numbers, exact.sum, exact.right);
    sums = {exact.sum.Value(), numbers.back(), static_cast<double>(exact.right)};
  } else {
    if (parts.pipeline != nullptr) {
      std::array<double, 2> losses = {sums[0], sums[2]};
      WEFT_RETURN_IF_ERROR(parts.pipeline->SumScalars(losses));
      sums = {losses[0], sums[1], losses[1]};
    }
    WEFT_RETURN_IF_ERROR(ranks.SumScalars(sums, ignored));
  }
  if (rounds != nullptr) WEFT_RETURN_IF_ERROR(rounds->SumScalars(sums));
  if (sums[1] == 0) return InvalidError("the validation data has no targets");
  EvaluationReport report{sums[0] / sums[1], static_cast<int64_t>(sums[1]),
                          static_cast<int64_t>(sums[2])};
  if (options.parts > 1) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<double> losses,
                          part_losses.Sum(context, ranks, parts.pipeline));
    std::vector<double> counts(part_targets.begin(), part_targets.end());
    WEFT_RETURN_IF_ERROR(ranks.SumScalars(counts, ignored));
    part_targets.assign(counts.begin(), counts.end());
    options.techniques->OnEvaluated({.sums = losses, .targets = part_targets},
                                    report.technique_metrics);
  }
  report.seconds = watch.Lap();
  return report;
}

Result<int64_t> CountNonFiniteWeights(const Context& context, const ParameterSet& parameters) {
  if (parameters.file() != nullptr) {
    NormStream stream;
    ParameterFileIterator walk(parameters.file(), {.values = true});
    for (int64_t i = 0; i < parameters.size(); ++i) {
      WEFT_RETURN_IF_ERROR(walk.MoveTo(parameters[i].unit));
      WEFT_RETURN_IF_ERROR(stream.Add(NormTensorOf(parameters.held_value(i).view)));
      WEFT_RETURN_IF_ERROR(stream.EndTensor());
      context.MarkProgress();
    }
    WEFT_RETURN_IF_ERROR(walk.Finish());
    return stream.sums().non_finite;
  }
  std::vector<kernels::NormTensor> all;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    // What is quantised is finite.
    if (parameters[i].quantized_words > 0) continue;
    all.push_back(NormTensorOf(parameters.held_value(i).view));
  }
  Context state = StateContextOf(context, parameters);
  WEFT_ASSIGN_OR_RETURN(auto sums, ReadbackOf<NormSums>::New(state));
  WEFT_RETURN_IF_ERROR(Measure(state, all, sums.device()));
  WEFT_RETURN_IF_ERROR(sums.Fetch(state));
  WEFT_ASSIGN_OR_RETURN(const NormSums* read, sums.Wait());
  return read->non_finite;
}

}  // namespace weft::engine
