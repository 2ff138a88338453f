#include "worker/engine/train/timed_round.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/number.h"

namespace weft::engine {
namespace {

/// Slower ones are expected to be this slow: the order of shares has an end then.
constexpr double kLeastShareOfFastest = 1e-4;

/// What each rank reports of its round.
enum Told : uint8_t { kLocalSteps, kSeconds, kUpdates, kTolds };

/// Nothing is known of them.
std::vector<double> AlikeSpeeds(int64_t ranks) {
  return std::vector<double>(static_cast<size_t>(ranks), 1.0);
}

void Add(const PhaseSeconds& from, PhaseSeconds& to) {
  to.data += from.data;
  to.forward += from.forward;
  to.backward += from.backward;
  to.communication_exposed += from.communication_exposed;
  to.optimizer += from.optimizer;
}

}  // namespace

TimedRound::TimedRound(const Options& options)
    : options_(options), speeds_(AlikeSpeeds(options.ranks)), order_(speeds_) {
  Begin();
}

void TimedRound::Restored(TrainCounters& counters) {
  const RoundState& state = counters.rounds;
  if (state.unread.empty()) {
    sequences_ = counters.step * options_.global_batch;
    unread_ = UnreadSequences({sequences_});
  } else {
    sequences_ = state.sequences;
    unread_ = UnreadSequences(state.unread);
  }
  if (const auto ranks = state.updates.size(); ranks > 0) {
    counters.updates = state.updates[static_cast<size_t>(options_.rank) % ranks];
  }
  speeds_ = AlikeSpeeds(options_.ranks);
  Begin();
}

void TimedRound::Begin() {
  order_ = ShareOrder(speeds_);
  given_ = local_steps_ = 0;
  sum_ = {};
  loss_sum_ = 0;
  share_ = *Take();
  next_ = Take();
}

std::optional<RoundShare> TimedRound::Take() {
  const int64_t left = options_.steps * options_.global_batch - sequences_;
  for (;;) {
    const int64_t place = given_ * share_size();
    // Each rank has at least one.
    if (given_ >= options_.ranks && place >= left) return std::nullopt;
    ++given_;
    if (order_.Next() != options_.rank) continue;
    const int64_t number = sequences_ + place;
    return RoundShare{std::min(number / options_.global_batch, options_.steps - 1),
                      number % options_.global_batch, unread_.At(place, share_size())};
  }
}

void TimedRound::OnStep(double now) {
  if (at_start()) start_ = now;
}

bool TimedRound::Ends(double now, const StepReport& report) {
  ++local_steps_;
  seconds_ = now - start_;
  if (!report.skipped) {
    loss_sum_ += report.loss * D(report.targets);
    sum_.targets += report.targets;
    sum_.right += report.right;
  }
  sum_.tokens += report.tokens;
  sum_.padding_tokens += report.padding_tokens;
  sum_.tiers.stall_seconds += report.tiers.stall_seconds;
  Add(report.seconds, sum_.seconds);
  if (!report.norms.empty()) sum_.norms = report.norms;
  if (!next_) return true;
  if (seconds_ + seconds_ / D(local_steps_) > options_.seconds) return true;
  share_ = *std::exchange(next_, Take());
  return false;
}

void TimedRound::Summarize(StepReport& report) const {
  report.loss = sum_.targets > 0 ? loss_sum_ / D(sum_.targets) : report.loss;
  report.targets = sum_.targets;
  report.right = sum_.right;
  report.tokens = sum_.tokens;
  report.padding_tokens = sum_.padding_tokens;
  report.tiers.stall_seconds = sum_.tiers.stall_seconds;
  report.seconds = sum_.seconds;
  report.norms = sum_.norms;
}

std::vector<SequenceRange> TimedRound::PlacesOf(std::span<const double> local_steps) const {
  std::vector<SequenceRange> places;
  ShareOrder order(speeds_);
  int64_t left = 0;
  for (const double steps : local_steps) left += static_cast<int64_t>(steps);
  for (int64_t place = 0; left > 0; place += share_size()) {
    const int64_t rank = order.Next();
    if (order.TakenBy(rank) > static_cast<int64_t>(local_steps[static_cast<size_t>(rank)])) {
      continue;
    }
    --left;
    if (!places.empty() && places.back().first + places.back().count == place) {
      places.back().count += share_size();
    } else {
      places.push_back({place, share_size()});
    }
  }
  return places;
}

Status TimedRound::Finish(const std::function<Status(std::span<double>)>& sum, int64_t own_updates,
                          TrainCounters& counters) {
  const auto ranks = static_cast<size_t>(options_.ranks);
  // Zero where others have their numbers, so that the sum is what each has put in.
  std::vector<double> told(kTolds * ranks);
  const auto of = [&](Told what) { return std::span(told).subspan(what * ranks, ranks); };
  const auto own = static_cast<size_t>(options_.rank);
  of(kLocalSteps)[own] = D(local_steps_);
  of(kSeconds)[own] = seconds_;
  of(kUpdates)[own] = D(own_updates);
  WEFT_RETURN_IF_ERROR(sum(told));

  const std::vector<SequenceRange> places = PlacesOf(of(kLocalSteps));
  for (const SequenceRange& range : places) sequences_ += range.count;
  unread_.Remove(places);
  for (size_t rank = 0; rank < ranks; ++rank) {
    speeds_[rank] = of(kLocalSteps)[rank] / std::max(of(kSeconds)[rank], 1e-9);
  }
  const double least = kLeastShareOfFastest * *std::max_element(speeds_.begin(), speeds_.end());
  for (double& speed : speeds_) speed = std::max(speed, least);

  counters.step = std::min(sequences_ / options_.global_batch, options_.steps);
  counters.updates = own_updates;
  counters.rounds.sequences = sequences_;
  counters.rounds.unread = unread_.bounds();
  counters.rounds.updates.assign(of(kUpdates).begin(), of(kUpdates).end());
  Begin();
  return OkStatus();
}

}  // namespace weft::engine
