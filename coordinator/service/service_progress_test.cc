// What is noted of the progress that workers report.
#include <gtest/gtest.h>

#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

class ServiceProgressTest : public ServiceTest {
 protected:
  /// A heartbeat of a worker with ranks of the first attempt, that far in the training.
  void Beat(const std::shared_ptr<FakeLink>& link, const std::string& id, int64_t step,
            int64_t rollbacks) {
    const int64_t sequence = ++heartbeats_;
    service_->Heartbeat(link, sequence, {At(id, step, rollbacks)}, false);
    ASSERT_TRUE(link->Saw("heartbeat " + std::to_string(sequence)));
  }
  static RunningAttempt At(const std::string& id, int64_t step, int64_t rollbacks) {
    RunningAttempt running{id, 1, {}};
    running.progress.step = step;
    running.progress.rollbacks = rollbacks;
    return running;
  }
  /// Its events of rollbacks, once the changes so far are stored.
  std::vector<EventRecord> Rollbacks(const std::string& id) {
    // Changes of a job come one after the other.
    std::promise<void> updated;
    service_->Update(
        id, std::nullopt, ++priority_, [&](const Result<JobView>&) { updated.set_value(); },
        nullptr);
    updated.get_future().wait();
    std::vector<EventRecord> events = *store_->ListEvents(id);
    std::erase_if(events, [](const EventRecord& event) { return event.kind != "rollback"; });
    return events;
  }

 private:
  int64_t priority_ = 0;
};

TEST_F(ServiceProgressTest, ARollbackIsAnEventOfTheJobOnce) {
  auto a = Attach("a");
  auto b = Attach("b");
  const std::string id = Submit(2)->view.job.id;
  for (const auto& link : {a, b}) {
    ASSERT_TRUE(link->Saw("start " + id + " 1"));
    service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
    ASSERT_TRUE(link->Saw("ack " + id));
  }
  ASSERT_EQ(service_->Get(id)->job.state, JobState::kRunning);
  Beat(a, id, 13, 0);
  EXPECT_TRUE(Rollbacks(id).empty());
  Beat(a, id, 11, 1);
  // The worker of the second rank has not seen it yet.
  Beat(b, id, 13, 0);
  EXPECT_EQ(service_->Get(id)->job.progress.rollbacks, 1);
  Beat(a, id, 12, 1);
  const std::vector<EventRecord> events = Rollbacks(id);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].epoch, 1);
  EXPECT_EQ(events[0].text.find("rollback 1 of the training, after step 13 "), 0u)
      << events[0].text;

  StartService();
  a = Attach("a", 0, {At(id, 14, 1)});
  Beat(a, id, 15, 1);
  EXPECT_EQ(Rollbacks(id).size(), 1u) << "the next coordinator knows it";
  Beat(a, id, 12, 2);
  EXPECT_EQ(Rollbacks(id).size(), 2u);
}

TEST_F(ServiceProgressTest, AnAttemptThatGoesOnFromAnOlderCheckpointLowersTheNewestOne) {
  auto a = Attach("a");
  const std::string id = Submit(1)->view.job.id;
  const auto train = [&](int64_t epoch, int64_t step, std::optional<int64_t> checkpoint_step) {
    ASSERT_TRUE(a->Saw("start " + id + " " + std::to_string(epoch)));
    service_->Report(a, id, {"", epoch, PlacementEvent::kTraining, Reason::kNone, "", ""});
    ASSERT_EQ(AwaitState(id, JobState::kRunning), JobState::kRunning);
    RunningAttempt running{id, epoch, {}};
    running.progress.step = step;
    running.progress.checkpoint_step = checkpoint_step;
    const int64_t sequence = ++heartbeats_;
    service_->Heartbeat(a, sequence, {running}, false);
    ASSERT_TRUE(a->Saw("heartbeat " + std::to_string(sequence)));
  };
  const auto fail = [&](int64_t epoch) {
    service_->Report(a, id, {"", epoch, PlacementEvent::kFailed, Reason::kRankDied, "", ""});
    ASSERT_TRUE(a->Saw("start " + id + " " + std::to_string(epoch + 1)));
  };
  train(1, 25, std::nullopt);
  SaveAt(a, id, 1, 10);
  SaveAt(a, id, 1, 20);
  fail(1);
  EXPECT_EQ(service_->Get(id)->attempts[1].times.step, 20) << "where it is expected to go on";
  train(2, 12, 10);
  EXPECT_EQ(service_->Get(id)->job.progress.checkpoint_step, 10);
  fail(2);
  EXPECT_EQ(service_->Get(id)->attempts[2].times.step, 10);
}

}  // namespace
}  // namespace weft::coordinator
