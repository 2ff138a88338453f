#include "worker/daemon/rank_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "worker/daemon/process_scan.h"

namespace weft::daemon {
namespace {

using ::testing::ElementsAre;

/// Runs /bin/sh scripts as ranks and collects what they do.
class RankProcessTest : public ::testing::Test {
 protected:
  struct Run {
    std::unique_ptr<RankProcess> process;
    std::vector<std::string> output, errors, control;
    std::optional<int> wait_status;
  };

  std::unique_ptr<Run> Start(const std::string& script, pid_t group = 0) {
    auto run = std::make_unique<Run>();
    RankCommand command{{"/bin/sh", "-c", script}, {Marker()}, 3, group};
    auto process = RankProcess::Start(
        io_, command,
        {[r = run.get()](bool is_stderr, std::string line) {
           (is_stderr ? r->errors : r->output).push_back(std::move(line));
         },
         [r = run.get()](std::string line) { r->control.push_back(std::move(line)); },
         [r = run.get()](int status) { r->wait_status = status; }});
    EXPECT_TRUE(process.ok()) << process.status().ToString();
    run->process = std::move(*process);
    return run;
  }

  /// Turns the loop until `done` or ten seconds have passed.
  template <class Done>
  bool Until(Run& run, Done done) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      io_.restart();
      io_.run_for(std::chrono::milliseconds(2));
      run.process->Reap();
    }
    return true;
  }
  bool UntilEnd(Run& run) {
    return Until(run, [&] { return run.wait_status.has_value(); });
  }

  static std::string Marker() { return "WEFT_TEST_MARKER=" + std::to_string(getpid()); }

  boost::asio::io_context io_;
};

TEST_F(RankProcessTest, DeliversOutputControlMessagesAndTheExitStatus) {
  auto run = Start(
      "echo out; echo err >&2; echo '{\"a\":1}' >&3; read line <&3; echo \"got $line\"; cat; "
      "exit 7");
  run->process->SendControl("hello");
  ASSERT_TRUE(UntilEnd(*run));
  EXPECT_THAT(run->output, ElementsAre("out", "got hello"));
  EXPECT_THAT(run->errors, ElementsAre("err"));
  EXPECT_THAT(run->control, ElementsAre("{\"a\":1}"));
  EXPECT_EQ(WEXITSTATUS(*run->wait_status), 7);
  run->process->SendControl("too late");  // harmless
  io_.run_for(std::chrono::milliseconds(5));
}

TEST_F(RankProcessTest, SaysWhichSignalEndedIt) {
  auto run = Start("kill -SEGV $$");
  ASSERT_TRUE(UntilEnd(*run));
  EXPECT_TRUE(WIFSIGNALED(*run->wait_status));
  EXPECT_EQ(WTERMSIG(*run->wait_status), SIGSEGV);
}

TEST_F(RankProcessTest, EndsAlthoughAGrandchildHoldsTheStreamsAndTheScanFindsIt) {
  auto run = Start("setsid sleep 1000 & echo started");
  ASSERT_TRUE(UntilEnd(*run));
  EXPECT_THAT(run->output, ElementsAre("started"));
  EXPECT_EQ(FindProcesses({Marker()}).size(), 1u);
  EXPECT_TRUE(FindProcesses({Marker(), "WEFT_OTHER=1"}).empty());
  EXPECT_TRUE(KillProcesses({Marker()}, std::chrono::seconds(5)).ok());
  EXPECT_TRUE(FindProcesses({Marker()}).empty());
}

TEST_F(RankProcessTest, SharesAProcessGroupAndDiesWithItsOwner) {
  auto leader = Start("exit 0");
  auto member = Start("sleep 1000", leader->process->pid());
  EXPECT_EQ(getpgid(member->process->pid()), leader->process->pid());
  ASSERT_TRUE(UntilEnd(*leader));
  pid_t pid = member->process->pid();
  member->process.reset();
  EXPECT_EQ(kill(pid, 0), -1) << "killed and reaped";
}

TEST_F(RankProcessTest, StartsWithNoDescriptorButItsOwn) {
  auto run = Start("ls /proc/self/fd | wc -l; readlink /proc/self/fd/0");
  ASSERT_TRUE(UntilEnd(*run));
  // stdin, the pipe to wc, stderr, control, and the folder that ls itself reads.
  EXPECT_THAT(run->output, ElementsAre("5", "/dev/null"));
}

TEST_F(RankProcessTest, CannotStartWhatIsNotThere) {
  auto process = RankProcess::Start(io_, {{"/no/such/trainer"}, {}, 3, 0}, {});
  ASSERT_FALSE(process.ok());
  EXPECT_EQ(process.status().code(), StatusCode::kNotFound);
  EXPECT_NE(process.status().message().find("/no/such/trainer"), std::string::npos);
}

}  // namespace
}  // namespace weft::daemon
