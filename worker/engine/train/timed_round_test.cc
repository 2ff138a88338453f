// Rounds by time of ranks whose clocks are made up.
#include "worker/engine/train/timed_round.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::engine {
namespace {

using ::testing::ElementsAre;

TEST(ShareOrder, EachRankHasOneAndThenWhoIsDoneFirst) {
  ShareOrder order({1, 4, 1});
  std::vector<int64_t> ranks;
  for (int i = 0; i < 12; ++i) ranks.push_back(order.Next());
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 1, 1, 1, 1, 1, 1, 0, 1, 2));
  for (int i = 12; i < 600; ++i) order.Next();
  EXPECT_THAT((std::vector{order.TakenBy(0), order.TakenBy(1), order.TakenBy(2)}),
              ElementsAre(100, 400, 100));
}

constexpr int64_t kBatch = 12, kLength = 10;

std::vector<int64_t> FirstRanks(int64_t ranks) {
  std::vector<int64_t> numbers(static_cast<size_t>(ranks));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// Ranks in one thread.
class Peers {
 public:
  Peers(int64_t ranks, int64_t steps, double seconds) : counters_(static_cast<size_t>(ranks)) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      rounds_.emplace_back(TimedRound::Options{.members = {1, rank, FirstRanks(ranks)},
                                               .global_batch = kBatch,
                                               .share = kBatch / ranks,
                                               .steps = steps,
                                               .seconds = seconds});
    }
  }

  /// One that goes on from what others have left.
  void Restore(const TrainCounters& counters) {
    for (size_t rank = 0; rank < rounds_.size(); ++rank) {
      counters_[rank] = counters;
      rounds_[rank].Restored(counters_[rank]);
    }
  }

  /// A round in which a step of each rank takes this many seconds. Returns how many each has made.
  std::vector<int64_t> Round(const std::vector<double>& step_seconds) {
    std::vector<int64_t> made;
    StepReport report;
    report.tokens = report.targets = kBatch / std::ssize(rounds_) * kLength;
    double end = 0;
    for (size_t rank = 0; rank < rounds_.size(); ++rank) {
      TimedRound& round = rounds_[rank];
      EXPECT_TRUE(round.at_start());
      made.push_back(0);
      for (double now = 100;; now += step_seconds[rank]) {
        round.OnStep(now);
        EXPECT_LT(round.share().step, steps_most_);
        for (const SequenceRange& range : round.share().sequences) {
          for (int64_t i = 0; i < range.count; ++i) {
            EXPECT_TRUE(read_.insert(range.first + i).second) << range.first + i << " again";
          }
        }
        ++made.back();
        if (round.Ends(now + step_seconds[rank], report)) {
          end = std::max(end, now + step_seconds[rank] - 100);
          break;
        }
      }
    }
    // What all report, and then what all learn.
    std::vector<double> sum;
    for (size_t rank = 0; rank < rounds_.size(); ++rank) {
      const auto tell = [&sum](std::span<double> values) {
        sum.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
        return UnavailableError("the others are not there yet");
      };
      EXPECT_FALSE(rounds_[rank].Exchange(tell, made[rank]).ok());
    }
    for (size_t rank = 0; rank < rounds_.size(); ++rank) {
      const auto learn = [&sum](std::span<double> values) {
        std::copy(sum.begin(), sum.end(), values.begin());
        return OkStatus();
      };
      counters_[rank].updates = 1000;  // the largest, as LocalRounds has it
      EXPECT_TRUE(rounds_[rank].Exchange(learn, made[rank]).ok());
      rounds_[rank].Finish(counters_[rank]);
      EXPECT_EQ(counters_[rank].rounds, counters_[0].rounds);
      EXPECT_EQ(counters_[rank].step, counters_[0].step);
      EXPECT_EQ(counters_[rank].updates, made[rank]);
    }
    EXPECT_EQ(std::ssize(read_), counters_[0].rounds.sequences);
    seconds_ += end;
    return made;
  }

  const TrainCounters& counters() const { return counters_[0]; }
  std::set<int64_t>& read() { return read_; }
  double seconds() const { return seconds_; }
  void CheckStepsBelow(int64_t steps) { steps_most_ = steps; }

 private:
  std::vector<TimedRound> rounds_;
  std::vector<TrainCounters> counters_;
  std::set<int64_t> read_;
  int64_t steps_most_ = int64_t{1} << 40;
  double seconds_ = 0;
};

/// How many of the first `count` sequences are missing.
int64_t Missing(const std::set<int64_t>& read, int64_t count) {
  return count - std::distance(read.begin(), read.lower_bound(count));
}

TEST(TimedRound, RanksMakeAsManyStepsAsTheyManage) {
  Peers peers(2, 1000, 20);
  EXPECT_THAT(peers.Round({1, 4}), ElementsAre(20, 5));
  EXPECT_EQ(peers.counters().step, 25 / 2);
  EXPECT_EQ(peers.counters().rounds.sequences, 25 * 6);
  EXPECT_THAT(peers.counters().rounds.updates, ElementsAre(20, 5));
  EXPECT_THAT(peers.Round({1.5, 30}), ElementsAre(13, 1)) << "at least one";
  EXPECT_EQ(peers.counters().step, 39 / 2);
}

TEST(TimedRound, WhatIsNotReadInARoundComesFirstInTheNext) {
  Peers peers(3, 10000, 20);
  peers.Round({1, 4, 0.5});
  EXPECT_GT(Missing(peers.read(), kBatch * peers.counters().step), 0) << "speeds were not known";
  // As soon as speeds are known the sequences that are read are nearly successive.
  for (int round = 0; round < 3; ++round) peers.Round({1, 4, 0.5});
  EXPECT_LE(peers.counters().rounds.unread.size(), 7u);
  // They change all the time: still each sequence once, and none is left behind.
  for (int round = 0; round < 60; ++round) {
    peers.Round({1 + round % 3 * 2.0, 4 - round % 4 * 0.9, 0.5 + round % 5});
    const int64_t sequences = peers.counters().rounds.sequences;
    EXPECT_EQ(Missing(peers.read(), sequences - 3 * 40 * 4), 0) << "older than three rounds";
  }
}

TEST(TimedRound, TheTrainingEndsWithAsManySequencesAsItsSteps) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t steps : {1, 2, 7, 50}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(steps) + " steps");
      Peers peers(ranks, steps, 20);
      peers.CheckStepsBelow(steps);
      const std::vector<double> all = {1, 4, 0.7, 2};
      const std::vector<double> step_seconds(all.begin(), all.begin() + ranks);
      int64_t step = 0;
      int rounds = 0;
      while (peers.counters().step < steps) {
        peers.Round(step_seconds);
        ASSERT_GT(peers.counters().step, std::exchange(step, peers.counters().step));
        ++rounds;
      }
      const int64_t over = peers.counters().rounds.sequences - steps * kBatch;
      EXPECT_GE(over, 0);
      EXPECT_LT(over, kBatch) << "less than a share of each rank but one";
      EXPECT_LT(rounds, 8);
      EXPECT_EQ(Missing(peers.read(), peers.counters().rounds.sequences), 0);
    }
  }
}

TEST(TimedRound, NobodyWaitsLongerThanAStepOfTheSlowest) {
  Peers peers(2, 100000, 40);
  int64_t made = 0;
  for (int round = 0; round < 20; ++round) {
    const std::vector<int64_t> of_round = peers.Round({1.1, 4.3});
    made += of_round[0] + of_round[1];
    EXPECT_EQ(of_round[0], 36);
    EXPECT_EQ(of_round[1], 9);
  }
  const double sum_of_rates = 1 / 1.1 + 1 / 4.3;
  EXPECT_GT(static_cast<double>(made) / peers.seconds(), 0.97 * sum_of_rates);
}

TEST(TimedRound, OtherRanksGoOnWithWhatIsLeft) {
  Peers two(2, 1000, 20);
  for (int round = 0; round < 3; ++round) two.Round({1 + round * 0.3, 4});
  const TrainCounters left = two.counters();
  EXPECT_GT(left.rounds.unread.size(), 1u);
  for (const int64_t ranks : {1, 2, 3, 4, 6}) {
    Peers others(ranks, 1000, 20);
    others.read() = two.read();
    others.Restore(left);
    const std::vector<double> all = {1, 2, 1, 3, 1, 1};
    for (int round = 0; round < 3; ++round) {
      others.Round({all.begin(), all.begin() + ranks});
    }
    EXPECT_EQ(Missing(others.read(), left.rounds.unread.back()), 0) << ranks;
  }
  // Where there is nothing of rounds by time, it goes on with the step.
  Peers plain(2, 1000, 20);
  TrainCounters counters;
  counters.step = 5;
  for (int64_t number = 0; number < 5 * kBatch; ++number) plain.read().insert(number);
  plain.Restore(counters);
  plain.Round({1, 1});
  EXPECT_EQ(Missing(plain.read(), plain.counters().rounds.sequences), 0);
}

TEST(TimedRound, ARanksUpdatesStayItsOwn) {
  TrainCounters counters;
  counters.step = 5;
  counters.updates = 40;
  counters.rounds = {60, {60}, {40, 10}};
  for (const auto& [rank, updates] : {std::pair<int64_t, int64_t>{0, 40}, {1, 10}, {2, 40}}) {
    TimedRound round({.members = {1, rank, FirstRanks(3)},
                      .global_batch = kBatch,
                      .share = kBatch / 3,
                      .steps = 50,
                      .seconds = 1});
    TrainCounters own = counters;
    round.Restored(own);
    EXPECT_EQ(own.updates, updates);
  }
}

TEST(TimedRound, TheReportIsOfAllStepsThatWereMade) {
  TimedRound round({.members = {1, 0, FirstRanks(1)},
                    .global_batch = 2,
                    .share = 2,
                    .steps = 50,
                    .seconds = 10});
  StepReport report;
  report.tokens = 20;
  report.targets = 20;
  report.loss = 2;
  report.seconds.forward = 0.5;
  round.OnStep(0);
  EXPECT_FALSE(round.Ends(1, report));
  report.targets = 10;
  report.loss = 5;
  EXPECT_FALSE(round.Ends(2, report));
  report.loss = 1e9;
  report.skipped = true;
  EXPECT_TRUE(round.Ends(8, report)) << "another one ends after 10.67 s";
  round.Summarize(report);
  EXPECT_EQ(report.targets, 30) << "of what was learned";
  EXPECT_DOUBLE_EQ(report.loss, (2 * 20 + 5 * 10) / 30.0);
  EXPECT_EQ(report.tokens, 60) << "of what was read";
  EXPECT_DOUBLE_EQ(report.seconds.forward, 1.5);
}

}  // namespace
}  // namespace weft::engine
