#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/data/sequence_range.h"
#include "worker/engine/data/unread_sequences.h"
#include "worker/engine/train/share_order.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// What a rank trains on in one local step of a round by time.
struct RoundShare {
  int64_t step = 0;       ///< Of the job, by what all ranks have trained on until then.
  int64_t first_row = 0;  ///< Of that step's batch: keys the dropout masks.
  std::vector<SequenceRange> sequences;  ///< Numbers in the training order.
};

/// The round of a rank with train.local_round_seconds: when it ends, and on what the rank trains.
/// The sequences that no rank has trained on are divided into shares of global_batch / ranks, which
/// ranks take in a ShareOrder. What they have not come to they leave for the next round, where it
/// comes first. So a sequence is trained on once in each pass over the data. Not thread-safe.
class TimedRound {
 public:
  struct Options {
    int64_t rank = 0;
    int64_t ranks = 1;
    int64_t global_batch = 1;  ///< Sequences; a multiple of ranks.
    int64_t steps = 1;         ///< Of the job.
    double seconds = 0;        ///< Of a round.
  };
  explicit TimedRound(const Options& options);

  /// All ranks go on from `counters`, which are of an outer step; their updates become this rank's.
  /// How fast ranks are is not known.
  void Restored(TrainCounters& counters);

  // Times are in seconds, by any clock of this rank.

  /// A local step begins, the first of the round with it.
  void OnStep(double now);

  /// What it trains on, and what the one after it would; none: this rank has no more in this round.
  const RoundShare& share() const { return share_; }
  const std::optional<RoundShare>& next() const { return next_; }

  /// Counts the local step of `report`, which has ended. Whether it was the last of the round:
  /// another one like the mean of the round would end too late, or there are no more sequences.
  bool Ends(double now, const StepReport& report);

  /// Makes the report of the last local step one of the round, of this rank, before the outer step.
  /// The loss is the mean over targets of the steps that were not skipped.
  void Summarize(StepReport& report) const;

  /// After it, with all ranks: what they have trained on is in `counters`, and their updates are
  /// `own_updates` of this rank. `sum` replaces values by their sums over the ranks.
  Status Finish(const std::function<Status(std::span<double>)>& sum, int64_t own_updates,
                TrainCounters& counters);

  /// Whether no local step of the round has begun.
  bool at_start() const { return local_steps_ == 0; }

 private:
  int64_t share_size() const { return options_.global_batch / options_.ranks; }
  void Begin();
  /// The next share of this rank, if there is one.
  std::optional<RoundShare> Take();
  /// What ranks that have made this many local steps have trained on.
  std::vector<SequenceRange> PlacesOf(std::span<const double> local_steps) const;

  const Options options_;
  UnreadSequences unread_{{0}};
  int64_t sequences_ = 0;  ///< Trained on before this round, by all.
  std::vector<double> speeds_;

  ShareOrder order_;
  int64_t given_ = 0;  ///< Shares that order_ has given.
  RoundShare share_;
  std::optional<RoundShare> next_;
  int64_t local_steps_ = 0;
  double start_ = 0;
  double seconds_ = 0;  ///< Of the local steps.
  StepReport sum_;      ///< Of the local steps' reports what is summed.
  double loss_sum_ = 0;
};

}  // namespace weft::engine
