#include "worker/engine/train/timed_round.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/number.h"

namespace weft::engine {
namespace {

/// Slower ones are expected to be this slow: the order of shares has an end then.
constexpr double kLeastShareOfFastest = 1e-4;

/// Nothing is known of them.
std::vector<double> AlikeSpeeds(const RoundMembers& members) {
  return std::vector<double>(members.members.size(), 1.0);
}

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / D(std::ssize(values));
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
    : options_(options),
      members_(options.members),
      speeds_(AlikeSpeeds(members_)),
      order_(speeds_) {
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
    counters.updates = state.updates[static_cast<size_t>(place()) % ranks];
  }
  speeds_ = AlikeSpeeds(members_);
  Begin();
}

void TimedRound::Begin() {
  order_ = ShareOrder(speeds_);
  given_ = local_steps_ = 0;
  seconds_ = 0;
  sum_ = {};
  loss_sum_ = 0;
  share_ = *Take();
  next_ = Take();
}

std::optional<RoundShare> TimedRound::Take() {
  const int64_t left = options_.steps * options_.global_batch - sequences_;
  for (;;) {
    const int64_t first = given_ * options_.share;
    // Each rank has at least one.
    if (given_ >= std::ssize(speeds_) && first >= left) return std::nullopt;
    ++given_;
    if (order_.Next() != place()) continue;
    const int64_t number = sequences_ + first;
    return RoundShare{std::min(number / options_.global_batch, options_.steps - 1),
                      number % options_.global_batch, unread_.At(first, options_.share)};
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
  for (int64_t place = 0; left > 0; place += options_.share) {
    const int64_t rank = order.Next();
    if (order.TakenBy(rank) > static_cast<int64_t>(local_steps[static_cast<size_t>(rank)])) {
      continue;
    }
    --left;
    if (!places.empty() && places.back().first + places.back().count == place) {
      places.back().count += options_.share;
    } else {
      places.push_back({place, options_.share});
    }
  }
  return places;
}

Status TimedRound::Exchange(const std::function<Status(std::span<double>)>& sum,
                            int64_t own_updates) {
  const size_t of_round = members_.members.size();
  // Zero where others have their numbers, so that the sum is what each has put in.
  std::vector<double> told(2 * of_round + present().members.size());
  if (const int64_t own = place(); own >= 0) {
    told[static_cast<size_t>(own)] = D(local_steps_);
    told[of_round + static_cast<size_t>(own)] = seconds_;
  }
  const auto rank = static_cast<size_t>(PlaceAmong(present().members, present().number));
  told[2 * of_round + rank] = D(own_updates);
  WEFT_RETURN_IF_ERROR(sum(told));
  exchanged_ = std::move(told);
  return OkStatus();
}

void TimedRound::Finish(TrainCounters& counters) {
  const size_t of_round = members_.members.size();
  const std::span<const double> told(exchanged_);
  const auto local_steps = told.first(of_round), seconds = told.subspan(of_round, of_round);
  const auto updates = told.subspan(2 * of_round);

  const std::vector<SequenceRange> places = PlacesOf(local_steps);
  for (const SequenceRange& range : places) sequences_ += range.count;
  unread_.Remove(places);
  for (size_t place = 0; place < of_round; ++place) {
    // Of one that is lost, or has just begun, nothing new is known.
    if (local_steps[place] == 0) continue;
    speeds_[place] = local_steps[place] / std::max(seconds[place], 1e-9);
  }
  const double least = kLeastShareOfFastest * *std::max_element(speeds_.begin(), speeds_.end());
  for (double& speed : speeds_) speed = std::max(speed, least);

  counters.step = std::min(sequences_ / options_.global_batch, options_.steps);
  counters.updates = static_cast<int64_t>(
      updates[static_cast<size_t>(PlaceAmong(present().members, present().number))]);
  counters.rounds.sequences = sequences_;
  counters.rounds.unread = unread_.bounds();
  counters.rounds.updates.assign(updates.begin(), updates.end());
  ++outer_steps_;
  if (next_members_) SetMembers(*std::exchange(next_members_, std::nullopt));
  Begin();
}

RoundPosition TimedRound::position() const {
  return {outer_steps_, members_.membership, local_steps_, members_.members};
}

void TimedRound::SetMembers(RoundMembers members) {
  const double mean = Mean(speeds_);
  speeds_ = OfMembers<double>(speeds_, members_.members, members.members, mean);
  members_ = std::move(members);
}

void TimedRound::Follow(const RoundPosition& source) {
  members_.members = source.members;
  speeds_ = AlikeSpeeds(members_);
  local_steps_ = 0;
  seconds_ = 0;
  sum_ = {};
  loss_sum_ = 0;
}

void TimedRound::BeginAnew(TrainCounters& counters) {
  RoundMembers members = *std::exchange(next_members_, std::nullopt);
  std::vector<int64_t>& updates = counters.rounds.updates;
  if (updates.size() == members_.members.size()) {
    updates = OfMembers<int64_t>(updates, members_.members, members.members, 0);
  }
  SetMembers(std::move(members));
  Begin();
}

void TimedRound::TakeOver(const RoundPosition& source, std::vector<double> speeds,
                          TrainCounters& counters) {
  outer_steps_ = source.outer_steps;
  Restored(counters);
  speeds_ = std::move(speeds);
  Begin();
}

}  // namespace weft::engine
