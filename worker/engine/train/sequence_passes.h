#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/spec/batch_schedule.h"
#include "common/status.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/techniques/sequence_losses.h"
#include "worker/engine/techniques/technique_list.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/train/step_clock.h"
#include "worker/engine/train/step_report.h"
#include "worker/engine/train/trainer_parts.h"
#include "worker/engine/train/training_ranks.h"

namespace weft::engine {

/// The forward passes of a loss of whole sequences (Technique::JudgeSequences). Its gradient is
/// that of the cross entropy with a weight for each sequence, and the weights follow from the
/// log-probabilities of all sequences of the batch: so the whole batch is scored without gradients
/// before its passes with them. All ranks make the same calls. Not thread-safe.
class SequencePasses {
 public:
  struct Options {
    BatchSchedule schedule;
    int64_t micro_batch = 1;     ///< Sequences.
    int64_t eval_sequences = 0;  ///< Of the validation data, from the first one; 0: all.
  };

  /// All outlive this.
  SequencePasses(const TrainerParts& parts, const TrainingRanks* ranks, TechniqueList* techniques,
                 const Options& options)
      : parts_(parts), ranks_(ranks), techniques_(techniques), options_(options) {}

  /// This is another one of the data-parallel ranks from now on.
  void SetRank(int64_t rank) { parts_.rank = rank; }

  /// Scores the micro-batches of a step and gives them the weights of their gradients
  /// (TokenBatch::gradient_weights); enqueues that the losses of this rank's sequences are added to
  /// *total, memory of the device.
  Status Weigh(std::vector<TokenBatch>& batches, BatchLoss* total, PhaseSeconds& seconds);

  /// The log-probability of each sequence of a part of the data, by its index.
  Result<std::vector<double>> Score(DataPart part);

  /// Mean loss over the validation data that evaluations read.
  Result<EvaluationReport> Evaluate();

  /// Number of sequences of the validation data that evaluations read.
  int64_t evaluated_sequences() const;

  /// Memory of the device for the cross entropy of passes, which nobody reads.
  Result<BatchLoss*> IgnoredLoss();

 private:
  /// Log-probabilities of the sequences of one micro-batch.
  Result<std::vector<double>> ScoreBatch(const TokenBatch& batch);
  /// Scores sequences [first, first + count) of a batch, which become [at, at + count) of `scores`.
  Status ScoreRange(BatchSource& source, int64_t step, int64_t first, int64_t count, size_t at,
                    SequenceScores& scores);
  /// Scores of all ranks: of a step of the training data, or of what evaluations read.
  Result<SequenceScores> ScoreStep(int64_t step);
  Result<SequenceScores> ScoreValidation();
  /// Exchanges what each rank has found of its own sequences, the others being zero.
  Status Exchange(SequenceScores& scores, PhaseSeconds& seconds) const;

  TrainerParts parts_;
  const TrainingRanks* ranks_;
  TechniqueList* techniques_;
  Options options_;
  std::optional<ReadbackOf<BatchLoss>> ignored_loss_;
};

}  // namespace weft::engine
