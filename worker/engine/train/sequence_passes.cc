#include "worker/engine/train/sequence_passes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/step_totals/step_totals.h"

namespace weft::engine {
namespace {

SequenceScores NoScores(int64_t sequences) {
  const auto size = static_cast<size_t>(sequences);
  return {std::vector<int64_t>(size), std::vector<double>(size)};
}

void Put(const TokenBatch& batch, const std::vector<double>& found, size_t at,
         SequenceScores& scores) {
  std::copy(batch.sequence_indices.begin(), batch.sequence_indices.end(),
            scores.indices.begin() + static_cast<ptrdiff_t>(at));
  std::copy(found.begin(), found.end(),
            scores.log_probabilities.begin() + static_cast<ptrdiff_t>(at));
}

}  // namespace

Result<BatchLoss*> SequencePasses::IgnoredLoss() {
  if (!ignored_loss_) {
    WEFT_ASSIGN_OR_RETURN(auto memory, ReadbackOf<BatchLoss>::New(*parts_.context));
    ignored_loss_.emplace(std::move(memory));
  }
  return ignored_loss_->device();
}

Result<std::vector<double>> SequencePasses::ScoreBatch(const TokenBatch& batch) {
  if (std::ssize(batch.sequence_indices) != batch.sequences) {
    return InvalidError("the loss is of whole sequences, and the data do not number them");
  }
  Context& context = *parts_.context;
  TokenBatch scored = batch;
  WEFT_ASSIGN_OR_RETURN(scored.losses,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {batch.count}));
  WEFT_ASSIGN_OR_RETURN(BatchLoss* const ignored, IgnoredLoss());
  Tape tape(nullptr);
  WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, scored, 1.0f, ignored));
  WEFT_ASSIGN_OR_RETURN(const HostCopy losses, HostCopy::Of(context.stream, scored.losses));
  std::vector<double> found;
  const auto* of_row = losses.view().As<float>();
  for (int64_t s = 0; s < batch.sequences; ++s, of_row += batch.length) {
    found.push_back(-std::accumulate(of_row, of_row + batch.length, 0.0));
  }
  return found;
}

Status SequencePasses::Exchange(SequenceScores& scores, PhaseSeconds& seconds) const {
  const size_t size = scores.indices.size();
  std::vector<double> all(scores.indices.begin(), scores.indices.end());
  all.insert(all.end(), scores.log_probabilities.begin(), scores.log_probabilities.end());
  WEFT_RETURN_IF_ERROR(ranks_->SumScalars(all, seconds));
  for (size_t s = 0; s < size; ++s) {
    scores.indices[s] = static_cast<int64_t>(all[s]);
    scores.log_probabilities[s] = all[size + s];
  }
  return OkStatus();
}

Status SequencePasses::Weigh(std::vector<TokenBatch>& batches, BatchLoss* total,
                             PhaseSeconds& seconds) {
  Context& context = *parts_.context;
  const int64_t own =
      std::accumulate(batches.begin(), batches.end(), int64_t{0},
                      [](int64_t sum, const TokenBatch& batch) { return sum + batch.sequences; });
  SequenceScores scores = NoScores(own * ranks_->data_ranks());
  for (const TokenBatch& batch : batches) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<double> found, ScoreBatch(batch));
    Put(batch, found, static_cast<size_t>(batch.first_sequence), scores);
  }
  WEFT_RETURN_IF_ERROR(Exchange(scores, seconds));
  WEFT_ASSIGN_OR_RETURN(const SequenceLosses judged,
                        techniques_->JudgeSequences(DataPart::kTraining, scores));
  for (TokenBatch& batch : batches) {
    WEFT_ASSIGN_OR_RETURN(batch.gradient_weights,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, {batch.count}));
    WEFT_ASSIGN_OR_RETURN(const Tensor losses, Tensor::New(context, Component::kWorkspace,
                                                           DType::kF32, {batch.sequences}));
    const auto first = static_cast<size_t>(batch.first_sequence);
    WEFT_RETURN_IF_ERROR(
        FillOnHost(context.stream, batch.gradient_weights, [&](const TensorView& weights) {
          for (int64_t row = 0; row < batch.count; ++row) {
            const auto sequence = first + static_cast<size_t>(row / batch.length);
            // The loss at a target is minus its log-probability.
            weights.As<float>()[row] = static_cast<float>(-judged.derivatives[sequence]);
          }
        }));
    WEFT_RETURN_IF_ERROR(FillOnHost(context.stream, losses, [&](const TensorView& values) {
      for (int64_t s = 0; s < batch.sequences; ++s) {
        values.As<float>()[s] = static_cast<float>(judged.losses[first + static_cast<size_t>(s)]);
      }
    }));
    WEFT_RETURN_IF_ERROR(
        kernels::AddLosses(context.stream, {.losses = losses, .sum = &total->sum}));
  }
  return OkStatus();
}

Status SequencePasses::ScoreRange(BatchSource& source, int64_t step, int64_t first, int64_t count,
                                  size_t at, SequenceScores& scores) {
  WEFT_ASSIGN_OR_RETURN(const Batch batch, source.Get(step, first, count));
  WEFT_ASSIGN_OR_RETURN(const TokenBatch tokens, TokenBatch::New(*parts_.context, batch, first));
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> found, ScoreBatch(tokens));
  Put(tokens, found, at, scores);
  return OkStatus();
}

// In the micro-batches of the step, so that the rows are padded as they will be.
Result<SequenceScores> SequencePasses::ScoreStep(int64_t step) {
  const int64_t sequences = options_.schedule.At(step);
  const int64_t own = sequences / ranks_->data_ranks(), begin = own * parts_.rank;
  SequenceScores scores = NoScores(sequences);
  for (int64_t first = begin; first < begin + own; first += options_.micro_batch) {
    WEFT_RETURN_IF_ERROR(ScoreRange(*parts_.train, step, first, options_.micro_batch,
                                    static_cast<size_t>(first), scores));
  }
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(Exchange(scores, ignored));
  return scores;
}

int64_t SequencePasses::evaluated_sequences() const {
  if (parts_.validation == nullptr) return 0;
  const int64_t count = parts_.validation->Sequences();
  return options_.eval_sequences > 0 ? std::min(count, options_.eval_sequences) : count;
}

Result<SequenceScores> SequencePasses::ScoreValidation() {
  const int64_t count = evaluated_sequences(), ranks = ranks_->data_ranks();
  const int64_t end = count * (parts_.rank + 1) / ranks;
  SequenceScores scores = NoScores(count);
  int64_t passes = 0;
  for (int64_t first = count * parts_.rank / ranks; first < end; ++passes) {
    const int64_t sequences = std::min(options_.micro_batch, end - first);
    WEFT_RETURN_IF_ERROR(
        ScoreRange(*parts_.validation, 0, first, sequences, static_cast<size_t>(first), scores));
    first += sequences;
  }
  if (parts_.model->parameters().values_sharded()) {
    // Ranks with fewer sequences take part in what the others gather.
    const int64_t most = (count + ranks - 1) / ranks;
    SequenceScores unused = NoScores(1);
    for (; passes < (most + options_.micro_batch - 1) / options_.micro_batch; ++passes) {
      WEFT_RETURN_IF_ERROR(ScoreRange(*parts_.validation, 0, 0, 1, 0, unused));
    }
  }
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(Exchange(scores, ignored));
  return scores;
}

Result<std::vector<double>> SequencePasses::Score(DataPart part) {
  const bool training = part == DataPart::kTraining;
  const int64_t count = training ? parts_.train->Sequences() : evaluated_sequences();
  std::vector<double> by_index(static_cast<size_t>(count));
  const auto take = [&](const SequenceScores& scores) {
    for (size_t s = 0; s < scores.indices.size(); ++s) {
      by_index.at(static_cast<size_t>(scores.indices[s])) = scores.log_probabilities[s];
    }
  };
  if (!training) {
    WEFT_ASSIGN_OR_RETURN(const SequenceScores scores, ScoreValidation());
    take(scores);
    return by_index;
  }
  // The first steps go through all of the data once.
  int64_t done = 0;
  for (int64_t step = 0; done < count; done += options_.schedule.At(step++)) {
    WEFT_ASSIGN_OR_RETURN(const SequenceScores scores, ScoreStep(step));
    take(scores);
  }
  return by_index;
}

Result<EvaluationReport> SequencePasses::Evaluate() {
  Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(const SequenceScores scores, ScoreValidation());
  WEFT_ASSIGN_OR_RETURN(const SequenceLosses judged,
                        techniques_->JudgeSequences(DataPart::kValidation, scores));
  const auto targets = std::ssize(judged.losses);
  const double sum = std::accumulate(judged.losses.begin(), judged.losses.end(), 0.0);
  return EvaluationReport{
      .loss = sum / static_cast<double>(targets), .targets = targets, .seconds = watch.Lap()};
}

}  // namespace weft::engine
