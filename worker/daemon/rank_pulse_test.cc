#include "worker/daemon/rank_pulse.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatient(1000);

ProcessUse Use(int64_t cpu_ticks, int64_t io_bytes = 0, int64_t page_faults = 0) {
  return {'S', cpu_ticks, page_faults, io_bytes};
}

TEST(RankPulse, WhileItTrainsOnlyMessagesCount) {
  RankPulse pulse(seconds(0), kPatient);
  pulse.SetActivity("training");
  pulse.Take(Use(100000, 1 << 30, 7), seconds(10));
  EXPECT_EQ(pulse.SilentSeconds(seconds(10)), 10) << "it may spin while it waits for a peer";
  pulse.OnMessage(seconds(11));
  EXPECT_EQ(pulse.SilentSeconds(seconds(13)), 2);
}

TEST(RankPulse, OtherwiseWorkOfProcessorOrDiskCounts) {
  RankPulse pulse(seconds(0), kPatient);
  const int64_t second = sysconf(_SC_CLK_TCK);
  EXPECT_EQ(pulse.activity(), "starting");
  pulse.Take(Use(second), seconds(2));
  EXPECT_EQ(pulse.SilentSeconds(seconds(2)), 0);
  pulse.Take(Use(second, 1000), seconds(4));  // hardly anything: it waits
  EXPECT_EQ(pulse.SilentSeconds(seconds(4)), 2);
  pulse.Take(Use(second, 1 << 20), seconds(6));
  EXPECT_EQ(pulse.SilentSeconds(seconds(6)), 0);
  pulse.SetActivity("saving");
  pulse.Take(Use(second, 1 << 20, 1), seconds(8));
  EXPECT_EQ(pulse.SilentSeconds(seconds(8)), 0);
}

TEST(RankPulse, AStartThatOnlyUsesAProcessorFallsSilentAfterAWhile) {
  RankPulse pulse(seconds(0), seconds(100));
  const int64_t ticks = sysconf(_SC_CLK_TCK);
  pulse.Take(Use(50 * ticks), seconds(50));
  EXPECT_EQ(pulse.SilentSeconds(seconds(50)), 0);
  pulse.Take(Use(100 * ticks, 1 << 20), seconds(100));  // it reads something
  pulse.Take(Use(200 * ticks, 1 << 20), seconds(200));
  EXPECT_EQ(pulse.SilentSeconds(seconds(200)), 0);
  pulse.Take(Use(201 * ticks, 1 << 20), seconds(201));
  pulse.Take(Use(500 * ticks, 1 << 20), seconds(500));
  EXPECT_EQ(pulse.SilentSeconds(seconds(500)), 300) << "it spins";
  pulse.OnMessage(seconds(510));
  pulse.Take(Use(520 * ticks, 1 << 20), seconds(520));
  EXPECT_EQ(pulse.SilentSeconds(seconds(520)), 0);
  // Only a start: what comes later has its own reports.
  pulse.SetActivity("evaluating");
  pulse.Take(Use(900 * ticks, 1 << 20), seconds(900));
  EXPECT_EQ(pulse.SilentSeconds(seconds(900)), 0);
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
  pulse.Sample(pid, seconds(100));  // what it used before it was stopped
  pulse.Sample(pid, seconds(200));
  EXPECT_GE(pulse.SilentSeconds(seconds(200)), 100);
  EXPECT_EQ(pulse.StateText(), "stopped");
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_FALSE(ReadProcessUse(pid));
}

}  // namespace
}  // namespace weft::daemon
