#include "worker/daemon/rank_pulse.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "common/clock.h"
#include "common/wait_name.h"

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatient(1000);

/// What a process uses in a second.
struct Rate {
  double processors = 0;
  int64_t io_bytes = 0;
  int64_t page_faults = 0;
};

/// A pulse that is looked at each second.
class Watched {
 public:
  explicit Watched(seconds longest_spin = kPatient) : pulse(seconds(0), longest_spin) {}

  /// A process goes on at that rate.
  void Until(int64_t second, const Rate& rate) {
    while (now_ < second) {
      ++now_;
      use_.state = 'S';
      use_.cpu_ticks += std::llround(rate.processors * static_cast<double>(sysconf(_SC_CLK_TCK)));
      use_.io_bytes += rate.io_bytes;
      use_.page_faults += rate.page_faults;
      pulse.Take(use_, seconds(now_));
    }
  }
  /// Nobody looks until then.
  void SleepUntil(int64_t second) { now_ = second; }
  double Silent() const { return pulse.SilentSeconds(seconds(now_)); }

  RankPulse pulse;

 private:
  ProcessUse use_;
  int64_t now_ = 0;
};

constexpr Rate kWaits{.processors = 0.01, .io_bytes = 1000};

TEST(RankPulse, WhileItTrainsMessagesCountAndPagesFromADisk) {
  Watched rank;
  rank.pulse.SetActivity("training");
  rank.Until(10, {.processors = 1, .io_bytes = 1 << 30});
  EXPECT_EQ(rank.Silent(), 10) << "it may spin while it waits for a peer, and write a checkpoint";
  rank.pulse.OnMessage(seconds(11));
  rank.Until(13, kWaits);
  EXPECT_EQ(rank.Silent(), 2);
  rank.Until(15, {.page_faults = 1});
  EXPECT_EQ(rank.Silent(), 0) << "its machine is short of memory";
}

TEST(RankPulse, WhileItExchangesMovedDataCountToo) {
  Watched rank;
  rank.pulse.SetActivity("exchanging");
  rank.Until(10, {.processors = 1});
  EXPECT_EQ(rank.Silent(), 10) << "it may spin while it waits for a peer";
  rank.Until(11, {.io_bytes = 1 << 20});
  EXPECT_EQ(rank.Silent(), 0);
}

TEST(RankPulse, OtherwiseWorkOfProcessorOrDiskCounts) {
  Watched rank;
  EXPECT_EQ(rank.pulse.activity(), "starting");
  rank.Until(2, {.processors = 0.5});
  EXPECT_EQ(rank.Silent(), 0);
  rank.Until(4, kWaits);
  EXPECT_EQ(rank.Silent(), 2);
  rank.Until(6, {.io_bytes = 1 << 20});
  EXPECT_EQ(rank.Silent(), 0);
  rank.pulse.SetActivity("saving");
  rank.Until(8, {.page_faults = 1});
  EXPECT_EQ(rank.Silent(), 0);
}

TEST(RankPulse, AStartThatOnlyUsesAProcessorFallsSilentAfterAWhile) {
  Watched rank(seconds(100));
  rank.Until(99, {.processors = 1});
  EXPECT_EQ(rank.Silent(), 0);
  rank.Until(100, {.processors = 1, .io_bytes = 1 << 20});  // it reads something
  rank.Until(200, {.processors = 1});
  EXPECT_EQ(rank.Silent(), 0);
  rank.Until(500, {.processors = 1});
  EXPECT_EQ(rank.Silent(), 300) << "it spins";
  rank.pulse.OnMessage(seconds(510));
  rank.Until(520, {.processors = 1});
  EXPECT_EQ(rank.Silent(), 0);
  // Only a start: what comes later has its own reports.
  rank.pulse.SetActivity("evaluating");
  rank.Until(900, {.processors = 1});
  EXPECT_EQ(rank.Silent(), 0);
}

TEST(RankPulse, WhatTheDaemonSleptThroughIsNoSilenceOfTheRank) {
  Watched rank;
  rank.pulse.SetActivity("training");
  rank.Until(3, kWaits);
  rank.SleepUntil(1000);
  rank.Until(1001, kWaits);
  EXPECT_EQ(rank.Silent(), 3 + ToSeconds(RankPulse::kLongestGap));
  rank.Until(1004, kWaits);
  EXPECT_EQ(rank.Silent(), 6 + ToSeconds(RankPulse::kLongestGap));
  // The first thing that is done after a sleep is to read what has come.
  rank.SleepUntil(2000);
  rank.pulse.OnMessage(seconds(2000));
  rank.Until(2002, kWaits);
  EXPECT_EQ(rank.Silent(), 1);
}

TEST(RankPulse, FindsAProcessThatSpinsInItsStart) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    for (volatile int64_t i = 0;;) i = i + 1;
  }
  RankPulse pulse(seconds(0), seconds(2)), patient(seconds(0), kPatient);
  auto spin_until = [pid](int64_t ticks) {
    for (int i = 0; i < 1000 && ReadProcessUse(pid)->cpu_ticks < ticks; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  };
  spin_until(10);
  pulse.Sample(pid, seconds(1));
  patient.Sample(pid, seconds(1));
  EXPECT_EQ(pulse.SilentSeconds(seconds(1)), 0);
  spin_until(60);
  pulse.Sample(pid, seconds(4));
  patient.Sample(pid, seconds(4));
  EXPECT_EQ(pulse.SilentSeconds(seconds(4)), 3);
  EXPECT_EQ(patient.SilentSeconds(seconds(4)), 0);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(RankPulse, SeesWhatAProcessWaitsIn) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const WaitName name("all-reduce");
    while (true) pause();
  }
  RankPulse pulse(seconds(0), kPatient);
  auto state = [&, second = 0]() mutable {
    pulse.Sample(pid, seconds(++second));
    return pulse.StateText();
  };
  for (int i = 0; i < 1000 && state() != "sleeping in all-reduce"; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(state(), "sleeping in all-reduce");
  kill(pid, SIGSTOP);
  waitpid(pid, nullptr, WUNTRACED);
  EXPECT_EQ(state(), "stopped") << "it waits for nobody";
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(RankPulse, SeesWhatAProcessDoes) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    for (volatile int64_t i = 0;;) i = i + 1;
  }
  RankPulse pulse(seconds(0), kPatient);
  for (int i = 0; i < 1000 && ReadProcessUse(pid)->cpu_ticks < 10; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  pulse.Sample(pid, milliseconds(1000));
  EXPECT_EQ(pulse.SilentSeconds(milliseconds(1000)), 0);
  EXPECT_EQ(pulse.StateText(), "running");
  kill(pid, SIGSTOP);
  waitpid(pid, nullptr, WUNTRACED);
  for (int second = 2; second <= 12; ++second) pulse.Sample(pid, seconds(second));
  // The first of these sees what it used before it was stopped.
  EXPECT_GE(pulse.SilentSeconds(seconds(12)), 10);
  EXPECT_EQ(pulse.StateText(), "stopped");
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_FALSE(ReadProcessUse(pid));
}

}  // namespace
}  // namespace weft::daemon
