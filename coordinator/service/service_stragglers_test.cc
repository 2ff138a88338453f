// Ranks that hold up the others, by a clock that tests move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServiceStragglersTest : public ServiceTest {
 protected:
  void SetUp() override {
    options_.lease = seconds(100);
    ServiceTest::SetUp();
  }
  /// One rank on each of the workers, whose steps take these seconds.
  void Beat(const std::string& id, int64_t epoch,
            const std::vector<std::pair<std::shared_ptr<FakeLink>, double>>& ranks) {
    clock_.Advance(seconds(10));
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      RunningAttempt running{id, epoch, {}, {}};
      running.progress.step = ++step_;
      running.activity = {"", "training", 0, 1, ""};
      running.paces = {{static_cast<int64_t>(rank), "", ranks[rank].second}};
      const int64_t sequence = ++heartbeats_;
      service_->Heartbeat(ranks[rank].first, sequence, {running}, false);
      ASSERT_TRUE(ranks[rank].first->Saw("heartbeat " + std::to_string(sequence)));
    }
  }
  std::string Train(const std::vector<std::shared_ptr<FakeLink>>& links) {
    const std::string id = Submit(std::ssize(links))->view.job.id;
    for (const auto& link : links) {
      EXPECT_TRUE(link->Saw("start " + id + " 1"));
      service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
    }
    EXPECT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
    return id;
  }
  std::string EventText(const std::string& id, const std::string& kind) {
    for (int i = 0; i < 500; ++i) {
      const Result<std::vector<EventRecord>> events = service_->Events(id);
      for (const EventRecord& event : *events) {
        if (event.kind == kind) return event.text;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return "";
  }
  int64_t step_ = 0;
};

TEST_F(ServiceStragglersTest, AreNamedWithTheirMachine) {
  auto a = Attach("a");
  auto b = Attach("b");
  auto c = Attach("c");
  auto d = Attach("d");
  const std::string id = Train({a, b, c, d});
  for (int i = 0; i < 6; ++i) Beat(id, 1, {{a, 1}, {b, 1.3}, {c, 1.01}, {d, 1}});
  EXPECT_THAT(EventText(id, "straggler"), HasSubstr("rank 1 on worker b takes 1.30 times"));
  EXPECT_THAT(service_->Get(id)->job.message, HasSubstr("rank 1 on worker b"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("weft_coord_straggler_ratio{run=\"" + id + "\",worker=\"b\"} 1.3"));
  EXPECT_NEAR(service_->Get(id)->ledger.straggler_seconds, 4 * 0.3, 1e-6)
      << "four steps since it was named, each 0.3 s longer than without it";
  EXPECT_GT(service_->Workers()[1].suspicion, 0);
  EXPECT_EQ(service_->Workers()[0].suspicion, 0);
  // The first of these heartbeats is looked at before the others come.
  for (int i = 0; i < 2; ++i) Beat(id, 1, {{a, 1}, {b, 1}, {c, 1}, {d, 1}});
  EXPECT_EQ(service_->Get(id)->job.message, "");
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("weft_coord_straggler_ratio{")));
}

TEST_F(ServiceStragglersTest, LeaveAJobThatRunsAsItIsByDefault) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Train({a, b});
  auto c = Attach("c");
  for (int i = 0; i < 6; ++i) Beat(id, 1, {{a, 1}, {b, 2}});
  EXPECT_NE(EventText(id, "straggler"), "");
  EXPECT_FALSE(b->Saw("stop", milliseconds(20)));
}

TEST_F(ServiceStragglersTest, AreLeftForAFreeMachineWhereThatIsAsked) {
  options_.straggler_action = StragglerAction::kMove;
  StartService();
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Train({a, b});
  auto c = Attach("c");
  // The plan for the other machine is made meanwhile.
  const std::string stop = "stop " + id + " 1 gracefully";
  for (int i = 0; i < 500 && !a->Saw(stop, milliseconds(10)); ++i) Beat(id, 1, {{a, 1}, {b, 2}});
  ASSERT_TRUE(a->Saw(stop));
  ASSERT_TRUE(b->Saw("stop " + id + " 1 gracefully"));
  for (const auto& link : {a, b}) {
    service_->Report(link, id, {"", 1, PlacementEvent::kStopped, Reason::kNone, "", ""});
  }
  EXPECT_TRUE(c->Saw("start " + id + " 2"));
  EXPECT_TRUE(a->Saw("start " + id + " 2"));
  EXPECT_FALSE(b->Saw("start " + id + " 2", milliseconds(20)));
  EXPECT_THAT(EventText(id, "replan"), HasSubstr("rank 1 on worker b takes 2.00 times"));
}

TEST_F(ServiceStragglersTest, StayWhereNoOtherMachineIsFree) {
  options_.straggler_action = StragglerAction::kMove;
  StartService();
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Train({a, b});
  for (int i = 0; i < 6; ++i) Beat(id, 1, {{a, 1}, {b, 2}});
  EXPECT_NE(EventText(id, "straggler"), "");
  EXPECT_FALSE(b->Saw("stop", milliseconds(20)));
}

}  // namespace
}  // namespace weft::coordinator
