// Ranks that come and go between the outer steps of rounds by time.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/spec/spec_json.h"
#include "worker/engine/comm/local_collective.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/train/round_members.h"
#include "worker/engine/train/timed_round.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;

TEST(Regrouping, TheNewestStateHolds) {
  // Rank 1 missed the outer step that rank 0 has made, rank 2 is new.
  const std::vector<RoundPosition> positions = {
      {4, 2, 0, {0, 1, 5}}, {3, 2, 6, {0, 1, 5}}, {-1, 0, 0, {}}};
  const auto how = PlanRegrouping(positions);
  ASSERT_TRUE(how.ok()) << how.status().message();
  EXPECT_EQ(how->source, 0);
  EXPECT_THAT(how->current, ElementsAre(true, false, false));
  EXPECT_FALSE(how->ends_round) << "what rank 1 has learned is in the outer step already";
}

TEST(Regrouping, RanksAmidARoundEndIt) {
  const std::vector<RoundPosition> positions = {
      {-1, 0, 0, {}}, {3, 1, 0, {0, 1, 2}}, {3, 1, 2, {0, 1, 2}}};
  const auto how = PlanRegrouping(positions);
  ASSERT_TRUE(how.ok()) << how.status().message();
  EXPECT_EQ(how->source, 1);
  EXPECT_THAT(how->current, ElementsAre(false, true, true));
  EXPECT_TRUE(how->ends_round);
}

TEST(Regrouping, RanksThatMetInANewerMembershipAreAhead) {
  const auto how =
      PlanRegrouping(std::vector<RoundPosition>{{3, 1, 0, {0, 1, 2}}, {3, 2, 1, {0, 1}}});
  ASSERT_TRUE(how.ok()) << how.status().message();
  EXPECT_THAT(how->current, ElementsAre(false, true));
  EXPECT_TRUE(how->ends_round);
}

TEST(Regrouping, NewRanksAloneHaveNothingToGoOnFrom) {
  EXPECT_EQ(PlanRegrouping(std::vector<RoundPosition>{{}, {}}).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(PlanRegrouping({}).status().code(), StatusCode::kUnavailable);
}

constexpr int64_t kBatch = 12, kShare = 4;

TimedRound NewRound(RoundMembers members, int64_t steps = 1000) {
  return TimedRound({.members = std::move(members),
                     .global_batch = kBatch,
                     .share = kShare,
                     .steps = steps,
                     .seconds = 1000});
}

/// The numbers that a rank reads in `steps` local steps of a second.
std::set<int64_t> Read(TimedRound& round, int steps) {
  std::set<int64_t> read;
  StepReport report;
  report.tokens = report.targets = 10 * kShare;
  for (int step = 0; step < steps; ++step) {
    round.OnStep(step);
    for (const SequenceRange& range : round.share().sequences) {
      for (int64_t i = 0; i < range.count; ++i) read.insert(range.first + i);
    }
    EXPECT_FALSE(round.Ends(step + 1, report));
  }
  return read;
}

/// The outer step of these rounds, whose counters become the same.
void MakeOuterStep(const std::vector<TimedRound*>& rounds, std::vector<TrainCounters>& counters) {
  std::vector<double> sum;
  for (size_t i = 0; i < rounds.size(); ++i) {
    const auto tell = [&](std::span<double> values) {
      sum.resize(values.size());
      for (size_t k = 0; k < values.size(); ++k) sum[k] += values[k];
      return UnavailableError("the others are not there yet");
    };
    EXPECT_FALSE(rounds[i]->Exchange(tell, 100 + static_cast<int64_t>(i)).ok());
  }
  for (size_t i = 0; i < rounds.size(); ++i) {
    const auto learn = [&](std::span<double> values) {
      EXPECT_EQ(values.size(), sum.size());
      std::copy(sum.begin(), sum.end(), values.begin());
      return OkStatus();
    };
    EXPECT_TRUE(rounds[i]->Exchange(learn, 100 + static_cast<int64_t>(i)).ok());
    rounds[i]->Finish(counters[i]);
  }
}

TEST(RoundPeers, SharesOfALostRankComeFirstInTheNextRound) {
  const std::vector<int64_t> first = {0, 1, 2};
  TimedRound zero = NewRound({1, 0, first}), one = NewRound({1, 1, first}),
             lost = NewRound({1, 2, first});
  std::set<int64_t> read = Read(zero, 3);
  read.merge(Read(one, 1));
  const std::set<int64_t> of_lost = Read(lost, 2);
  EXPECT_EQ(read.size(), 16u);
  for (const int64_t number : of_lost) EXPECT_FALSE(read.contains(number));

  // Rank 2 is gone; number 5 has joined, with nothing learned.
  TimedRound joined = NewRound({2, 5, {5}});
  joined.Follow(zero.position());
  zero.Regroup({2, 0, {0, 1, 5}});
  one.Regroup({2, 1, {0, 1, 5}});
  joined.Regroup({2, 5, {0, 1, 5}});
  std::vector<TrainCounters> counters(3);
  MakeOuterStep({&zero, &one, &joined}, counters);
  EXPECT_EQ(counters[0].rounds.sequences, 16);
  EXPECT_EQ(counters[0].step, 1);
  EXPECT_THAT(counters[0].rounds.updates, ElementsAre(100, 101, 102)) << "of those who are there";
  EXPECT_EQ(counters[0].rounds, counters[1].rounds);
  EXPECT_EQ(zero.position().outer_steps, 1);
  EXPECT_THAT(zero.position().members, ElementsAre(0, 1, 5));
  ASSERT_EQ(zero.speeds().size(), 3u);
  EXPECT_DOUBLE_EQ(zero.speeds()[0], 1);
  EXPECT_DOUBLE_EQ(zero.speeds()[2], 1) << "of the new one the mean is expected";

  joined.TakeOver(zero.position(), {zero.speeds().begin(), zero.speeds().end()},
                  counters[2] = counters[0]);
  EXPECT_EQ(joined.position(), zero.position());
  std::set<int64_t> next = Read(zero, 1);
  next.merge(Read(one, 1));
  next.merge(Read(joined, 1));
  EXPECT_EQ(next.size(), 12u) << "each its own";
  for (const int64_t number : of_lost) EXPECT_TRUE(next.contains(number)) << number;
  for (const int64_t number : next) EXPECT_FALSE(read.contains(number)) << number;
}

TEST(RoundPeers, AtAnOuterStepARoundBeginsAnewWithTheOthers) {
  TimedRound zero = NewRound({1, 0, {0, 1}}), one = NewRound({1, 1, {0, 1}});
  Read(zero, 4);
  Read(one, 2);
  std::vector<TrainCounters> counters(2);
  MakeOuterStep({&zero, &one}, counters);
  // Rank 0 leaves.
  one.Regroup({2, 1, {1}});
  one.BeginAnew(counters[1]);
  EXPECT_THAT(counters[1].rounds.updates, ElementsAre(101));
  EXPECT_TRUE(one.at_start());
  const std::set<int64_t> next = Read(one, 2);
  EXPECT_EQ(next.size(), 8u);
  EXPECT_GE(*next.begin(), 16) << "nothing twice";
}

/// Notes what is read.
class NotedTokens : public BatchSource {
 public:
  NotedTokens(const MeshCase& c, std::vector<int64_t>* read)
      : tokens_(c.job.model.vocab_size, c.length()), read_(read) {}
  int64_t Sequences() const override { return tokens_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) read_->push_back(step * kBatch + first + i);
    return tokens_.Get(step, first, count);
  }

 private:
  RandomTokens tokens_;
  std::vector<int64_t>* read_;
};

/// Comes together with ranks of another group, as attempts do.
struct Meeting {
  std::unique_ptr<Collective> group;
  std::unique_ptr<BucketReducer> outer;
  std::vector<RoundPosition> positions;
  std::optional<StepReport> report;

  void Hold(MeshRank& rank, const MeshCase& c, const RoundMembers& members, bool has_state,
            HashStore& store) {
    CollectiveOptions options;
    options.rank = static_cast<int>(PlaceAmong(members.members, members.number));
    options.size = static_cast<int>(members.members.size());
    options.connect_timeout = std::chrono::seconds(60);
    auto connected = ConnectCollective(options, store);
    ASSERT_TRUE(connected.ok()) << connected.status().message();
    group = *std::move(connected);
    outer = NewOuterReducer(rank.run.context, c.plan, group.get(), nullptr,
                            &rank.run.model->parameters());
    const RoundPosition own = has_state ? rank.trainer->position() : RoundPosition();
    const auto texts = group->AllGather(ToJson(own).dump());
    ASSERT_TRUE(texts.ok()) << texts.status().message();
    for (const std::string& text : *texts) {
      positions.push_back(*FromJson<RoundPosition>(*ParseJson(text)));
    }
    auto made = rank.trainer->Regroup(outer.get(), members, positions);
    ASSERT_TRUE(made.ok()) << made.status().message();
    report = *made;
    HandOver(rank);
  }

  void HandOver(MeshRank& rank) {
    const Regrouping how = *PlanRegrouping(positions);
    const auto source = static_cast<int>(how.source);
    const auto texts = group->AllGather(ToJson(rank.trainer->counters()).dump());
    ASSERT_TRUE(texts.ok());
    const auto speeds = rank.trainer->round_speeds();
    const auto all_speeds =
        group->AllGather(Json(std::vector<double>(speeds.begin(), speeds.end())).dump());
    const auto all_positions = group->AllGather(ToJson(rank.trainer->position()).dump());
    for (int other = 0; other < group->size(); ++other) {
      if (how.current[static_cast<size_t>(other)]) continue;
      for (const NamedTensor& tensor : rank.trainer->StateTensors()) {
        if (tensor.view.Bytes() == 0) continue;
        if (group->rank() == source) {
          ASSERT_TRUE(group->Send({}, tensor.view, other).Wait({}).ok());
        } else if (group->rank() == other) {
          ASSERT_TRUE(group->Receive({}, tensor.view, source).Wait({}).ok());
        }
      }
    }
    if (how.current[static_cast<size_t>(group->rank())]) return;
    const auto at = static_cast<size_t>(source);
    ASSERT_TRUE(rank.trainer
                    ->TakeOver(*FromJson<RoundPosition>(*ParseJson((*all_positions)[at])),
                               ParseJson((*all_speeds)[at])->get<std::vector<double>>(),
                               *FromJson<TrainCounters>(*ParseJson((*texts)[at])))
                    .ok());
  }
};

TEST(RoundPeers, SurvivorsMakeTheOuterStepAndANewRankGoesOnWithThem) {
  constexpr double kRate = 0.6, kMomentum = 0.8;
  constexpr int64_t kSteps = 6;
  MeshCase c{TinyJob(kBatch), TinyPlan("fp32", 1, kShare)};
  c.plan.mesh.data = 3;
  c.job.train.steps = kSteps;
  c.job.train.local_round_seconds = 1000;
  c.job.train.outer_learning_rate = kRate;
  c.job.train.outer_momentum = kMomentum;
  c.job.schedule.kind = "constant";
  const std::vector<int64_t> first = {0, 1, 2}, then = {0, 1, 3};
  const std::vector<int> local_steps = {3, 1, 2};
  std::vector<std::vector<int64_t>> read(4);
  std::vector<std::vector<float>> start(3), learned(3), after(3), end(3);
  std::vector<TrainCounters> counters(3);
  HashStore second;
  RunRanks(3, std::chrono::seconds(60), [&](Collective& world) {
    const auto number = static_cast<size_t>(world.rank());
    const auto step = [](MeshRank& rank) {
      auto report = rank.trainer->Step();
      ASSERT_TRUE(report.ok()) << report.status().message();
    };
    MeshCase own = c;
    own.round_members = {1, world.rank(), first};
    own.tokens = [&] { return std::make_unique<NotedTokens>(c, &read[number]); };
    auto rank = std::make_unique<MeshRank>(own, world);
    start[number] = rank->run.Parameters();
    for (int i = 0; i < local_steps[number]; ++i) step(*rank);
    EXPECT_FALSE(rank->trainer->AtOuterStep());
    learned[number] = rank->run.Parameters();
    RoundMembers members{2, world.rank(), then};
    std::unique_ptr<Collective> alone;
    if (number == 2) {
      // This one dies; in its place comes another, number 3.
      rank.reset();
      world.Abort();
      alone = NewLocalCollective({}, "alone", 0);
      members.number = 3;
      own.plan.mesh.data = 1;
      own.round_members = {2, 3, {3}};
      own.tokens = [&] { return std::make_unique<NotedTokens>(c, &read[3]); };
      rank = std::make_unique<MeshRank>(own, *alone);
    }
    Meeting meeting;
    meeting.Hold(*rank, c, members, number != 2, second);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(meeting.report.has_value());
    after[number] = rank->run.Parameters();
    EXPECT_TRUE(rank->trainer->AtOuterStep());
    EXPECT_EQ(rank->trainer->counters().rounds.sequences, 4 * kShare);
    while (!rank->trainer->finished()) step(*rank);
    end[number] = rank->run.Parameters();
    counters[number] = rank->trainer->counters();
    rank.reset();
  });

  // Among the survivors, by what they have learned from: three steps and one.
  for (size_t rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(after[rank], after[0]) << "the same bits";
    EXPECT_EQ(end[rank], end[0]);
    EXPECT_EQ(counters[rank].rounds, counters[0].rounds);
    EXPECT_EQ(counters[rank].step, kSteps);
  }
  double off = 0, far = 0;
  for (size_t i = 0; i < start[0].size(); ++i) {
    const double before = start[0][i];
    const double delta = (3 * (before - learned[0][i]) + (before - learned[1][i])) / 4;
    off += std::pow(before - kRate * (1 + kMomentum) * delta - static_cast<double>(after[0][i]), 2);
    far += std::pow(delta, 2);
  }
  EXPECT_GT(far, 0);
  EXPECT_LT(std::sqrt(off), 1e-5 * std::sqrt(far));
  // What the lost rank had read counts for nothing and is read again; all else once.
  std::multiset<int64_t> all;
  for (const size_t rank : {0, 1, 3}) all.insert(read[rank].begin(), read[rank].end());
  EXPECT_FALSE(read[3].empty());
  EXPECT_EQ(std::ssize(all), counters[0].rounds.sequences);
  for (int64_t sequence = 0; sequence < kSteps * kBatch; ++sequence) {
    EXPECT_EQ(all.count(sequence), 1u) << sequence;
  }
}

}  // namespace
}  // namespace weft::engine
