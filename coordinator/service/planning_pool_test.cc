#include "coordinator/service/planning_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Work that goes on until it is asked to stop or told to end.
struct Endless {
  std::promise<void> began, ended;
  std::promise<bool> overran;  ///< What it received once it was asked to stop.
  std::atomic<bool> enough = false;

  PlanningPool::Work Work() {
    return [this](const PlanTicket& ticket) {
      began.set_value();
      while (!ticket.stop().stop_requested() && !enough) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      overran.set_value(ticket.overran());
      ended.set_value();
    };
  }
};

TEST(PlanningPoolTest, WorkThatTakesLongerThanItsBudgetIsAskedToStop) {
  ManualClock clock;
  Endless work;
  PlanningPool pool(clock, 2);
  ASSERT_NE(pool.Add(seconds(8), work.Work()), nullptr);
  work.began.get_future().wait();
  clock.Advance(milliseconds(7900));
  pool.Wake();
  auto ended = work.ended.get_future();
  EXPECT_EQ(ended.wait_for(milliseconds(50)), std::future_status::timeout);
  clock.Advance(milliseconds(200));
  pool.Wake();
  EXPECT_TRUE(work.overran.get_future().get());
}

TEST(PlanningPoolTest, BudgetsAreWatchedByTheMachinesClock) {
  Endless work;
  PlanningPool pool(Clock::System(), 2);
  std::this_thread::sleep_for(milliseconds(20));  // nothing is watched yet
  pool.Add(milliseconds(10), work.Work());
  EXPECT_TRUE(work.overran.get_future().get());
}

TEST(PlanningPoolTest, CancelledWorkEndsWithoutHavingOverrunItsBudget) {
  Endless work;
  PlanningPool pool(Clock::System(), 2);
  const auto ticket = pool.Add(seconds(100), work.Work());
  work.began.get_future().wait();
  pool.Cancel(ticket);
  EXPECT_FALSE(work.overran.get_future().get());
}

TEST(PlanningPoolTest, WorkThatIsCancelledBeforeItsTurnIsCalledAtOnceToSaySo) {
  Endless first, second;
  PlanningPool pool(Clock::System(), 2);
  pool.Add(seconds(100), first.Work());
  pool.Add(seconds(100), second.Work());
  first.began.get_future().wait();
  second.began.get_future().wait();
  std::vector<bool> calls;
  const auto ticket = pool.Add(
      seconds(100), [&](const PlanTicket& own) { calls.push_back(own.stop().stop_requested()); });
  pool.Cancel(ticket);
  EXPECT_EQ(calls, std::vector<bool>{true});
  pool.Cancel(ticket);
  pool.Stop();
  EXPECT_EQ(calls.size(), 1u) << "once";
}

TEST(PlanningPoolTest, TakesNoMoreThanMayWait) {
  Endless first, second;
  PlanningPool pool(Clock::System(), 2, 1);
  pool.Add(seconds(100), first.Work());
  first.began.get_future().wait();
  pool.Add(seconds(100), second.Work());
  second.began.get_future().wait();
  std::promise<void> waited;
  ASSERT_NE(pool.Add(seconds(100), [&](const PlanTicket&) { waited.set_value(); }), nullptr);
  EXPECT_EQ(pool.Add(seconds(100), [](const PlanTicket&) {}), nullptr);
  first.enough = true;
  waited.get_future().wait();
  EXPECT_NE(pool.Add(seconds(100), [](const PlanTicket&) {}), nullptr);
}

// Whatever waits: the next of one thread is the oldest, that of the others the newest.
TEST(PlanningPoolTest, AFloodOfSlowWorkDelaysOthersByOnePieceOfIt) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> running;
  std::map<int, bool> released;
  std::promise<void> small;
  PlanningPool pool(Clock::System(), 2);
  const auto slow = [&](int number) {
    return [&, number](const PlanTicket& ticket) {
      std::unique_lock lock(mutex);
      running.push_back(number);
      changed.notify_all();
      changed.wait(lock, [&] { return released[number] || ticket.stop().stop_requested(); });
    };
  };
  for (int i = 0; i < 20; ++i) pool.Add(seconds(100), slow(i));
  pool.Add(seconds(100), [&](const PlanTicket&) { small.set_value(); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running.size() == 2; });
    for (const int number : {running[0], running[1]}) released[number] = true;
    changed.notify_all();
  }
  EXPECT_EQ(small.get_future().wait_for(seconds(20)), std::future_status::ready);
  {
    const std::lock_guard lock(mutex);
    for (int i = 0; i < 20; ++i) released[i] = true;
    changed.notify_all();
  }
}

TEST(PlanningPoolTest, WhatIsMovedToTheEndOfTheLineIsTheLastOfItsHeadAndTheFirstOfItsEnd) {
  Endless first, second;
  std::mutex mutex;
  std::vector<char> order;
  std::promise<void> all;
  PlanningPool pool(Clock::System(), 2);
  pool.Add(seconds(100), first.Work());
  pool.Add(seconds(100), second.Work());
  first.began.get_future().wait();
  second.began.get_future().wait();
  std::vector<std::shared_ptr<PlanTicket>> tickets;
  for (const char name : {'a', 'b', 'c', 'd'}) {
    tickets.push_back(pool.Add(seconds(100), [&, name](const PlanTicket&) {
      const std::lock_guard lock(mutex);
      order.push_back(name);
      if (order.size() == 4) all.set_value();
    }));
  }
  pool.MoveToEnd({tickets[1], tickets[0]});
  first.enough = true;  // of one of the threads, which has the rest for itself
  all.get_future().wait();
  const std::lock_guard lock(mutex);
  const std::vector<char> from_head = {'c', 'd', 'b', 'a'};
  const std::vector<char> from_end(from_head.rbegin(), from_head.rend());
  EXPECT_TRUE(order == from_head || order == from_end) << std::string(order.begin(), order.end());
}

TEST(PlanningPoolTest, StopEndsWhatRunsAndWaits) {
  Endless first, second;
  PlanningPool pool(Clock::System(), 2);
  pool.Add(seconds(100), first.Work());
  pool.Add(seconds(100), second.Work());
  first.began.get_future().wait();
  second.began.get_future().wait();
  std::optional<bool> stopped;
  pool.Add(seconds(100), [&](const PlanTicket& own) { stopped = own.stop().stop_requested(); });
  pool.Stop();
  EXPECT_EQ(stopped, true);
  EXPECT_EQ(pool.Add(seconds(1), [](const PlanTicket&) {}), nullptr);
}

TEST(PlanningPoolTest, WithoutThreadsWorkWaitsForWhoeverDrivesIt) {
  ManualClock clock;
  std::vector<std::string> done;
  const auto work = [&](const char* name) {
    return [&done, name](const PlanTicket& ticket) {
      done.push_back(name + std::string(ticket.stop().stop_requested() ? " stopped" : ""));
    };
  };
  {
    PlanningPool pool(clock, 0);
    pool.Add(seconds(1), work("first"));
    const auto second = pool.Add(seconds(1), work("second"));
    pool.Add(seconds(1), work("third"));
    EXPECT_TRUE(done.empty());
    EXPECT_TRUE(pool.RunFirst());
    pool.Cancel(second);
  }
  EXPECT_EQ(done, (std::vector<std::string>{"first", "second stopped", "third stopped"}));
}

}  // namespace
}  // namespace weft::coordinator
