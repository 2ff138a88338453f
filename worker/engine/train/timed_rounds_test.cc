// Rounds by time of ranks over Gloo: the weighted outer step against float64, and a slow
// rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/clock.h"
#include "common/rng.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/train/local_rounds.h"

namespace weft::engine {
namespace {

using Values = std::vector<float>;

constexpr int64_t kBatch = 12;

MeshCase TimedCase(int64_t ranks, double seconds, int64_t steps,
                   const std::string& precision = "fp32") {
  MeshCase c{TinyJob(kBatch), TinyPlan(precision, 1, kBatch / ranks)};
  c.plan.mesh.data = ranks;
  c.job.train.steps = steps;
  c.job.train.local_round_seconds = seconds;
  c.job.schedule.kind = "constant";
  c.job.optimizer.learning_rate = 0.01;
  return c;
}

TEST(TimedRoundsTest, TheOuterStepWeighsRanksByTheirTargets) {
  constexpr double kRate = 0.6, kMomentum = 0.8;
  const std::vector<std::vector<int64_t>> targets = {{40, 10, 25}, {7, 0, 900}};  // by round
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    MeshCase c = TimedCase(3, 60, 100, precision);
    c.job.train.outer_learning_rate = kRate;
    c.job.train.outer_momentum = kMomentum;
    const auto moved = [](size_t round, int rank, size_t i) {
      PhiloxStream random(
          PhiloxKey{round + 1, static_cast<uint32_t>(rank), static_cast<uint32_t>(i)});
      return 0.01f * static_cast<float>(random.Below(1000)) / 1000.0f - 0.005f;
    };
    std::vector<std::vector<Values>> global(3);  // by rank and round
    std::vector<double> losses;
    RunRanks(3, std::chrono::seconds(60), [&](Collective& world) {
      MeshRank rank(c, world);
      auto& own = global[static_cast<size_t>(world.rank())];
      ParameterSet& parameters = rank.run.model->parameters();
      auto rounds = LocalRounds::New(rank.run.context, c.job.train, parameters, rank.outer.get(),
                                     world.rank());
      ASSERT_TRUE(rounds.ok()) << rounds.status().message();
      own.push_back(rank.run.Parameters());
      for (size_t round = 0; round < targets.size(); ++round) {
        size_t i = 0;
        for (int64_t p = 0; p < parameters.size(); ++p) {
          float* value = parameters.value(p).As<float>();
          for (int64_t k = 0; k < parameters[p].shape.Elements(); ++k, ++i) {
            value[k] += moved(round, world.rank(), i);
          }
        }
        StepClock clock;
        TrainCounters counters;
        StepReport report;
        report.targets = targets[round][static_cast<size_t>(world.rank())];
        report.loss = world.rank() + 1;
        (*rounds)->OnUpdated();
        const auto as_it_is = [] { return OkStatus(); };
        ASSERT_TRUE((*rounds)->Finish(rank.run.context, clock, as_it_is, counters, report).ok());
        own.push_back(rank.run.Parameters());
        if (world.rank() == 0) losses.push_back(report.loss);
      }
    });
    const size_t count = global[0][0].size();
    std::vector<double> momentum(count), truth(global[0][0].begin(), global[0][0].end());
    for (size_t round = 0; round < targets.size(); ++round) {
      double all = 0, loss = 0;
      for (size_t rank = 0; rank < 3; ++rank) {
        all += static_cast<double>(targets[round][rank]);
        loss += static_cast<double>(targets[round][rank]) * static_cast<double>(rank + 1);
        EXPECT_EQ(global[rank][round + 1], global[0][round + 1]) << "the same bits";
      }
      EXPECT_NEAR(losses[round], loss / all, 1e-12);
      double off = 0, far = 0;
      for (size_t i = 0; i < count; ++i) {
        double delta = 0;
        for (int rank = 0; rank < 3; ++rank) {
          // What f32 made of the sum, as the rank had it.
          const double local = global[0][round][i] + moved(round, rank, i);
          delta += static_cast<double>(targets[round][static_cast<size_t>(rank)]) / all *
                   (static_cast<double>(global[0][round][i]) - local);
        }
        momentum[i] = kMomentum * momentum[i] + delta;
        truth[i] -= kRate * (delta + kMomentum * momentum[i]);
        off += std::pow(truth[i] - static_cast<double>(global[0][round + 1][i]), 2);
        far += std::pow(delta, 2);
      }
      EXPECT_LT(std::sqrt(off), 1e-4 * std::sqrt(far)) << round;
    }
  }
}

/// Sequences that take their time, and what was asked for.
class SlowTokens : public BatchSource {
 public:
  SlowTokens(const MeshCase& c, std::chrono::milliseconds of_sequence, std::vector<int64_t>* read)
      : tokens_(c.job.model.vocab_size, c.length()), of_sequence_(of_sequence), read_(read) {}

  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    EXPECT_LE(first + count, kBatch) << "within the batch of a step";
    for (int64_t i = 0; i < count; ++i) read_->push_back(step * kBatch + first + i);
    std::this_thread::sleep_for(count * of_sequence_);
    return tokens_.Get(step, first, count);
  }

 private:
  RandomTokens tokens_;
  std::chrono::milliseconds of_sequence_;
  std::vector<int64_t>* read_;
};

/// What two ranks have done; the second takes four times as long.
struct Unequal {
  std::vector<std::vector<StepReport>> outer =
      std::vector<std::vector<StepReport>>(2);          ///< By rank: of outer steps.
  std::vector<std::vector<TrainCounters>> counters{2};  ///< Likewise.
  std::vector<std::vector<Values>> values{2};           ///< Likewise.
  std::vector<std::vector<int64_t>> read{2};            ///< Sequences by rank.
  std::vector<double> busy = {0, 0};                    ///< Seconds of local steps by rank.
  double seconds = 0;
};

Unequal TrainUnequal(const MeshCase& c) {
  using Clock = std::chrono::steady_clock;
  Unequal made;
  made.outer.resize(2);
  RunRanks(2, std::chrono::seconds(120), [&](Collective& world) {
    const auto number = static_cast<size_t>(world.rank());
    MeshCase own = c;
    own.tokens = [&] {
      return std::make_unique<SlowTokens>(c, std::chrono::milliseconds(number == 0 ? 3 : 12),
                                          &made.read[number]);
    };
    MeshRank rank(own, world);
    const auto start = Clock::now();
    while (!rank.trainer->finished()) {
      const auto begin = Clock::now();
      auto report = rank.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      const double seconds = SecondsSince(begin);
      made.busy[number] += seconds;
      if (!rank.trainer->AtOuterStep()) continue;
      made.busy[number] -= report->seconds.communication_exposed;
      made.outer[number].push_back(*report);
      made.counters[number].push_back(rank.trainer->counters());
      made.values[number].push_back(rank.run.Parameters());
    }
    if (number == 0) made.seconds = SecondsSince(start);
  });
  return made;
}

TEST(TimedRoundsTest, ASlowRankMakesFewerStepsAndHardlyHoldsUpTheOther) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    constexpr int64_t kSteps = 60;
    const MeshCase c = TimedCase(2, 0.7, kSteps, precision);
    const Unequal made = TrainUnequal(c);
    const size_t rounds = made.outer[0].size();
    ASSERT_EQ(rounds, made.outer[1].size());
    EXPECT_GE(rounds, 2u);
    int64_t step = 0;
    for (size_t round = 0; round < rounds; ++round) {
      EXPECT_EQ(made.values[0][round], made.values[1][round]) << "the same bits";
      EXPECT_EQ(made.outer[0][round].loss, made.outer[1][round].loss);
      EXPECT_EQ(made.outer[0][round].targets, made.outer[1][round].targets);
      EXPECT_EQ(made.counters[0][round].rounds, made.counters[1][round].rounds);
      EXPECT_GT(made.counters[0][round].step, std::exchange(step, made.counters[0][round].step));
    }
    const TrainCounters& end = made.counters[0].back();
    EXPECT_EQ(end.step, kSteps);
    // Each sequence once, and as many as the steps say, except for half a batch.
    std::set<int64_t> read(made.read[0].begin(), made.read[0].end());
    read.insert(made.read[1].begin(), made.read[1].end());
    const int64_t all = std::ssize(made.read[0]) + std::ssize(made.read[1]);
    EXPECT_EQ(std::ssize(read), all) << "none twice";
    EXPECT_EQ(end.rounds.sequences, all);
    EXPECT_GE(all, kSteps * kBatch);
    EXPECT_LT(all, kSteps * kBatch + kBatch);
    EXPECT_EQ(end.tokens, all * c.length());
    EXPECT_EQ(*read.rbegin(), all - 1) << "none is left out";
    EXPECT_THAT(end.rounds.unread, testing::ElementsAre(all));
    // Each has made updates of its own, the slow one as many fewer as its steps are longer.
    const std::vector<int64_t>& updates = end.rounds.updates;
    EXPECT_EQ(made.counters[1].back().updates, updates[1]);
    EXPECT_EQ(updates[0], std::ssize(made.read[0]) * 2 / kBatch);
    const double ratio = static_cast<double>(updates[0]) / static_cast<double>(updates[1]);
    EXPECT_GT(ratio, 1.2) << "it need not keep up";
    // A step of the slow one is measured, since a busy machine adds to those of both.
    const double slower = made.busy[1] / static_cast<double>(updates[1]) /
                          (made.busy[0] / static_cast<double>(updates[0]));
    EXPECT_GT(ratio / slower, 0.4) << "the fast one does not wait";
    EXPECT_LT(ratio / slower, 4) << "nor does the slow one, except for less than a step of a round";
    // Both made most of the steps that they would have made had they never waited.
    double possible = 0;
    for (size_t rank = 0; rank < 2; ++rank) {
      possible += static_cast<double>(updates[rank]) / made.busy[rank] * made.seconds;
    }
    EXPECT_GT(static_cast<double>(updates[0] + updates[1]), 0.5 * possible);
  }
}

TEST(TimedRoundsTest, OneRankMakesRoundsToo) {
  MeshCase c = TimedCase(1, 0.05, 20);
  RunRanks(1, std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    while (!rank.trainer->finished()) ASSERT_TRUE(rank.trainer->Step().ok());
    EXPECT_EQ(rank.trainer->counters().step, 20);
    EXPECT_EQ(rank.trainer->counters().updates, 20);
    EXPECT_EQ(rank.trainer->counters().tokens, 20 * kBatch * c.length());
  });
}

TEST(TimedRoundsTest, OtherRanksReadWhatWasLeftInPieces) {
  // Two ranks leave out what three then read: shares of four sequences out of ranges of six.
  TrainCounters left;
  left.step = 3;
  left.rounds = {42, {6, 12, 30, 36, 54}, {5, 2}};
  const MeshCase c = TimedCase(3, 0.01, 6);
  std::vector<std::vector<int64_t>> read(3);
  RunRanks(3, std::chrono::seconds(60), [&](Collective& world) {
    const auto number = static_cast<size_t>(world.rank());
    MeshCase own = c;
    own.tokens = [&] {
      return std::make_unique<SlowTokens>(c, std::chrono::milliseconds(0), &read[number]);
    };
    MeshRank rank(own, world);
    EXPECT_TRUE(rank.trainer->Restored(left).ok());
    while (!rank.trainer->finished()) ASSERT_TRUE(rank.trainer->Step().ok());
    EXPECT_EQ(rank.trainer->counters().step, 6);
    EXPECT_GE(rank.trainer->counters().rounds.sequences, 6 * kBatch);
  });
  std::multiset<int64_t> all;
  for (const auto& of_rank : read) all.insert(of_rank.begin(), of_rank.end());
  EXPECT_GE(std::ssize(all), 6 * kBatch - 42);
  for (const int64_t number : all) {
    EXPECT_EQ(all.count(number), 1u) << number;
    EXPECT_TRUE((number >= 6 && number < 12) || (number >= 30 && number < 36) || number >= 54)
        << number << " was read before";
  }
  for (const int64_t number : {6, 11, 30, 35, 54}) EXPECT_TRUE(all.contains(number)) << number;
}

}  // namespace
}  // namespace weft::engine
