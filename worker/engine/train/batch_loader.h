#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/spec/batch_schedule.h"
#include "worker/engine/data/batch_source.h"
#include "worker/engine/data/sequence_range.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/copy_stage.h"

namespace weft::engine {

/// What this rank trains on in a step.
struct StepBatches {
  std::vector<TokenBatch> micro_batches;
  int64_t sequences = 0;      ///< Of all ranks.
  int64_t first_targets = 0;  ///< Of the first micro-batch.
  int64_t targets = 0;
  int64_t tokens = 0;
  int64_t padding_tokens = 0;
  std::vector<int64_t> part_targets;  ///< Of `targets`, by part of the batches; none: of one job.
};

/// Loads the batches of each step; to a CUDA device it brings those of the next one while a step
/// runs. Not thread-safe.
class BatchLoader {
 public:
  struct Options {
    BatchSchedule schedule;
    int64_t micro_batch = 1;  ///< Sequences.
    int64_t rank = 0;         ///< Among the data-parallel ranks.
    int64_t ranks = 1;
    int64_t parts = 1;         ///< Equal ones, of different jobs, that each micro-batch has.
    int64_t taking_turns = 1;  ///< RanksTakingTurns.
  };

  /// `context` and `source` outlive this.
  static Result<std::unique_ptr<BatchLoader>> New(Context& context, BatchSource* source,
                                                  const Options& options);

  /// What a step trains on.
  struct Request {
    int64_t data_step = 0;  ///< The data of this step,
    int64_t length = 0;     ///< of each sequence its first tokens, this many; 0: all of them.
    /// In rounds by time these sequences, in place of the rank's part of the batch of data_step:
    /// numbers from that batch on; the first is row `first_row` of a global batch.
    std::vector<SequenceRange> sequences = {};
    int64_t first_row = 0;

    bool operator==(const Request&) const = default;
  };

  /// Takes those batches. The work enqueued from now on may read them.
  Result<StepBatches> Take(const Request& request);

  /// The first micro-batch of rank `rank` in a step.
  Result<TokenBatch> FirstOf(int64_t rank, const Request& request);

  /// Starts to bring them to the device. Errors are reported when they are taken. Does nothing on a
  /// CPU.
  void Prefetch(const Request& request);

 private:
  BatchLoader(Context& context, BatchSource* source, const Options& options)
      : context_(&context), source_(source), options_(options) {}

  /// What a micro-batch asks for.
  struct Piece {
    int64_t data_step = 0;
    SequenceRange range;    ///< Of the batch of data_step.
    int64_t first_row = 0;  ///< Of the global batch of the step.
  };
  std::vector<Piece> PiecesOf(const Request& request, int64_t sequences) const;
  Result<StepBatches> Load(const Request& request);

  Context* context_;
  BatchSource* source_;
  Options options_;
  std::unique_ptr<CopyStage> stage_;  ///< On a CUDA device.
  struct Prefetched {
    Request request;
    Result<StepBatches> batches;
  };
  std::optional<Prefetched> prefetched_;
};

}  // namespace weft::engine
