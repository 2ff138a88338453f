#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/data/sequence_range.h"
#include "worker/engine/data/unread_sequences.h"
#include "worker/engine/train/round_members.h"
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
/// The sequences that no rank has trained on are divided into equal shares, which ranks take in a
/// ShareOrder. What they have not come to they leave for the next round, where it comes first. So a
/// sequence is trained on once in each pass over the data. Ranks may come and go between rounds;
/// what one has learned that was lost amid a round is left for the next round, too. Not
/// thread-safe.
class TimedRound {
 public:
  struct Options {
    RoundMembers members;      ///< All of them.
    int64_t global_batch = 1;  ///< Sequences.
    int64_t share = 1;         ///< Sequences of a local step; global_batch is a multiple.
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

  /// Before it, with all ranks: they tell each other how many steps they have made, and of their
  /// updates, `own_updates` of this rank. `sum` replaces values by their sums over the ranks. It
  /// changes nothing: after an error it can be called again.
  Status Exchange(const std::function<Status(std::span<double>)>& sum, int64_t own_updates);

  /// After it: what all have trained on is in `counters`. The next round begins.
  void Finish(TrainCounters& counters);

  /// Whether no local step of the round has begun.
  bool at_start() const { return local_steps_ == 0; }

  // Where ranks come and go.

  /// How far this rank is.
  RoundPosition position() const;
  /// Expected of the members in this round, in shares per second.
  std::span<const double> speeds() const { return speeds_; }

  /// Ranks have come together anew: `members` make the next round, and this one ends with them.
  void Regroup(RoundMembers members) { next_members_ = std::move(members); }
  /// This rank is behind and has done nothing in the round of another rank, which is at `source`.
  void Follow(const RoundPosition& source);
  /// Then, unless an outer step ends the round, since no rank has made a step of it: it begins
  /// with the new members. Updates in `counters` become theirs.
  void BeginAnew(TrainCounters& counters);
  /// At the start of a round: takes the place of a rank that is at `source`, with its counters and
  /// speeds. The updates in `counters` become this rank's.
  void TakeOver(const RoundPosition& source, std::vector<double> speeds, TrainCounters& counters);

 private:
  int64_t place() const { return PlaceAmong(members_.members, members_.number); }
  /// That take part in the outer step.
  const RoundMembers& present() const { return next_members_ ? *next_members_ : members_; }
  void SetMembers(RoundMembers members);
  void Begin();
  /// The next share of this rank, if there is one.
  std::optional<RoundShare> Take();
  /// What ranks that have made this many local steps have trained on.
  std::vector<SequenceRange> PlacesOf(std::span<const double> local_steps) const;

  const Options options_;
  UnreadSequences unread_{{0}};
  int64_t sequences_ = 0;                     ///< Trained on before this round, by all.
  RoundMembers members_;                      ///< Of the round.
  std::optional<RoundMembers> next_members_;  ///< Of the next one, where others come together.
  std::vector<double> speeds_;                ///< Of members_.
  int64_t outer_steps_ = 0;
  std::vector<double> exchanged_;  ///< See Exchange: by member of the round, then by present rank.

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
