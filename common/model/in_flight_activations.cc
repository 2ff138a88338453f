#include "common/model/in_flight_activations.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "common/pipeline/messages.h"

namespace weft {
namespace {

using Counts = std::vector<int32_t>;

/// Counts, none as large as another in all places, nor between two others.
class Largest {
 public:
  void Add(const Counts& counts) {
    // One of the two ends of several counts on one straight line is the largest.
    if (!last_.empty()) {
      step_to_ = counts;
      for (size_t i = 0; i < counts.size(); ++i) step_to_[i] -= last_[i];
      if (step_to_ != last_step_) Keep(last_);
      last_step_.swap(step_to_);
    } else {
      Keep(counts);
    }
    last_ = counts;
  }

  Counts All() && {
    if (!last_.empty()) Keep(last_);
    Counts all;
    for (const Counts& counts : kept_) all.insert(all.end(), counts.begin(), counts.end());
    return all;
  }

 private:
  static bool AtMost(const Counts& a, const Counts& b) {
    return std::equal(a.begin(), a.end(), b.begin(), std::less_equal<>());
  }
  void Keep(const Counts& counts) {
    for (const Counts& other : kept_) {
      if (AtMost(counts, other)) return;
    }
    std::erase_if(kept_, [&](const Counts& other) { return AtMost(other, counts); });
    kept_.push_back(counts);
  }

  std::vector<Counts> kept_;
  Counts last_, last_step_, step_to_;
};

/// Messages with the neighbour on one side.
class Side {
 public:
  /// Its neighbour's words on how many have been taken come with what is taken here.
  Side(const PipelineSchedule& schedule, int64_t rank, PipelineSide side)
      : acknowledged_(
            side == PipelineSide::kNext
                ? TakenBeforeSending(schedule, (rank + 1) % schedule.ranks, PipelineSide::kPrevious)
                : TakenBeforeSending(schedule, (rank + schedule.ranks - 1) % schedule.ranks,
                                     PipelineSide::kNext)) {}

  void Take() { taken_ = acknowledged_[came_++]; }
  void Send() { ++sent_; }
  int64_t in_flight() const { return sent_ - taken_; }
  /// One that is still to come is asked for.
  int64_t asked() const { return came_ < acknowledged_.size() ? 1 : 0; }

 private:
  std::vector<int64_t> acknowledged_;
  size_t came_ = 0;
  int64_t sent_ = 0;
  int64_t taken_ = 0;
};

/// A rank that does its steps.
class Rank {
 public:
  Rank(const PipelineSchedule& schedule, int64_t rank)
      : schedule_(schedule),
        rank_(rank),
        chunks_(static_cast<size_t>(schedule.chunks)),
        next_(schedule, rank, PipelineSide::kNext),
        previous_(schedule, rank, PipelineSide::kPrevious),
        held_(2 * chunks_ + 3),
        found_(2 * chunks_) {
    batches() = static_cast<int32_t>(schedule.micro_batches);
  }

  void Do(const PipelineStep& step) {
    const auto chunk = static_cast<size_t>(step.chunk);
    const int64_t stage = schedule_.StageOf(rank_, step.chunk);
    const bool first = stage == 0, last = stage + 1 == schedule_.stages();
    switch (step.op) {
      case PipelineOp::kForward:
        if (!first) previous_.Take();
        Note(found_[chunk]);
        ++held_[chunk];
        if (!last) next_.Send();
        break;
      case PipelineOp::kBackward:
      case PipelineOp::kBackwardInput:
        if (!last) next_.Take();
        --held_[chunk];
        Note(found_[chunks_ + chunk]);
        if (step.op == PipelineOp::kBackwardInput) ++held_[chunks_ + chunk];
        if (!first) previous_.Send();
        if (step.chunk == 0) --batches();
        break;
      // Less is there than in the step before.
      case PipelineOp::kBackwardWeight:
        --held_[chunks_ + chunk];
        break;
    }
  }

  /// The largest moments of forward steps by chunk, then those of backward steps.
  std::vector<Largest> found() && { return std::move(found_); }

 private:
  int32_t& batches() { return held_[2 * chunks_ + 2]; }

  // Outputs go to the next rank, and gradients come from there.
  void Note(Largest& of_step) {
    held_[2 * chunks_] = static_cast<int32_t>(next_.in_flight() + previous_.asked());
    held_[2 * chunks_ + 1] = static_cast<int32_t>(previous_.in_flight() + next_.asked());
    of_step.Add(held_);
  }

  const PipelineSchedule& schedule_;
  const int64_t rank_;
  const size_t chunks_;
  Side next_, previous_;
  Counts held_;
  std::vector<Largest> found_;
};

}  // namespace

InFlightActivations::InFlightActivations(const PipelineSchedule& schedule)
    : chunks_(schedule.chunks), defers_(schedule.split_backward) {
  for (int64_t r = 0; r < schedule.ranks; ++r) {
    Rank rank(schedule, r);
    for (const PipelineStep& step : schedule.steps[static_cast<size_t>(r)]) rank.Do(step);
    std::vector<Moments>& moments = moments_.emplace_back();
    for (Largest& largest : std::move(rank).found()) {
      const auto index = static_cast<int64_t>(moments.size());
      moments.push_back(
          {index < chunks_, static_cast<int32_t>(index % chunks_), std::move(largest).All()});
    }
    falls_from_.push_back(r > 0 && NoMoreThanBefore(r) ? falls_from_.back() : r);
  }
}

bool InFlightActivations::NoMoreThanBefore(int64_t rank) const {
  const std::vector<Moments>& own = moments_[static_cast<size_t>(rank)];
  const std::vector<Moments>& before = moments_[static_cast<size_t>(rank - 1)];
  const auto each = 2 * chunks_ + 3;
  for (size_t kind = 0; kind < own.size(); ++kind) {
    const std::vector<int32_t>& others = before[kind].counts;
    for (auto at = own[kind].counts.begin(); at != own[kind].counts.end(); at += each) {
      bool found = false;
      for (auto other = others.begin(); !found && other != others.end(); other += each) {
        found = std::equal(at, at + each, other, std::less_equal<>());
      }
      if (!found) return false;
    }
  }
  return true;
}

int64_t InFlightActivations::InFlight(int64_t rank, int64_t chunk) const {
  int64_t most = 0;
  for (const Moments& moments : moments_[static_cast<size_t>(rank)]) {
    const int64_t own = moments.chunk == chunk ? 1 : 0;
    const auto each = static_cast<size_t>(2 * chunks_ + 3);
    for (size_t at = 0; at < moments.counts.size(); at += each) {
      most = std::max(most, own + moments.counts[at + static_cast<size_t>(chunk)]);
    }
  }
  return most;
}

int64_t InFlightActivations::Most(int64_t rank, const std::vector<PassBytes>& passes,
                                  const NonPassBytes& beside) const {
  // Most of these are often nothing, in all moments.
  std::vector<std::pair<size_t, int64_t>> bytes;
  bytes.reserve(2 * passes.size() + 3);
  const auto add = [&](size_t place, int64_t each) {
    if (each > 0) bytes.emplace_back(place, each);
  };
  const size_t chunks = passes.size();
  for (size_t c = 0; c < chunks; ++c) {
    add(c, passes[c].kept);
    add(chunks + c, passes[c].waiting);
  }
  add(2 * chunks, beside.output);
  add(2 * chunks + 1, beside.gradient);
  add(2 * chunks + 2, beside.batch);
  int64_t most = 0;
  for (const Moments& moments : moments_[static_cast<size_t>(rank)]) {
    const PassBytes& own = passes[static_cast<size_t>(moments.chunk)];
    int64_t others = 0;
    for (size_t at = 0; at < moments.counts.size(); at += 2 * chunks + 3) {
      const int32_t* const counts = &moments.counts[at];
      int64_t sum = 0;
      for (const auto& [place, each] : bytes) sum += counts[place] * each;
      others = std::max(others, sum);
    }
    most = std::max(most, others + (moments.forward ? own.forward : own.backward));
  }
  return most;
}

}  // namespace weft
