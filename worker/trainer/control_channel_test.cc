#include "worker/trainer/control_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <vector>

#include <gtest/gtest.h>

namespace weft::trainer {
namespace {

std::promise<bool>* gone = nullptr;

/// Reads lines from and writes lines to the daemon's end.
class DaemonEnd {
 public:
  DaemonEnd() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds_), 0); }
  ~DaemonEnd() { Close(); }
  int rank_fd() const { return fds_[1]; }
  void Close() {
    if (fds_[0] >= 0) close(fds_[0]);
    fds_[0] = -1;
  }
  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (read(fds_[0], &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Write(const std::string& text) {
    EXPECT_EQ(write(fds_[0], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void Send(const DaemonMessage& message) { Write(ToLine(message) + "\n"); }

 private:
  int fds_[2];
};

class ControlChannelTest : public testing::Test {
 protected:
  void SetUp() override { gone = &gone_; }
  static void OnGone(bool aborted) { gone->set_value(aborted); }

  std::promise<bool> gone_;
  DaemonEnd daemon_;
};

TEST_F(ControlChannelTest, ReportsArriveInOrderEvenWhenTheRankEnds) {
  {
    ControlChannel channel(daemon_.rank_fd(), OnGone);
    for (int64_t step = 1; step <= 50; ++step) channel.Report(StoppedMessage{step, "/p"});
  }
  for (int64_t step = 1; step <= 50; ++step) {
    Result<RankMessage> message = ParseRankMessage(daemon_.ReadLine());
    ASSERT_TRUE(message.ok());
    EXPECT_EQ(std::get<StoppedMessage>(*message).step, step);
  }
  EXPECT_EQ(daemon_.ReadLine(), "") << "end of file";
}

TEST_F(ControlChannelTest, TheStoreGoesThroughTheDaemon) {
  ControlChannel channel(daemon_.rank_fd(), OnGone);
  const std::string bytes("\0\n\xff", 3);
  auto set = std::async(std::launch::async, [&] { return channel.Set("rank/0", bytes); });
  auto request = std::get<StoreSetMessage>(*ParseRankMessage(daemon_.ReadLine()));
  EXPECT_EQ(request.key, "rank/0");
  EXPECT_EQ(*FromHex(request.value_hex), bytes);
  daemon_.Send(StoreReplyMessage{request.request_id, "", ""});
  EXPECT_TRUE(set.get().ok());

  // Two requests under way, answered the other way round and in pieces.
  auto get = [&](const char* key) {
    return std::async(std::launch::async,
                      [&channel, key] { return channel.Get(key, std::chrono::seconds(5)); });
  };
  auto first = get("a");
  auto a = std::get<StoreGetMessage>(*ParseRankMessage(daemon_.ReadLine()));
  auto second = get("b");
  auto b = std::get<StoreGetMessage>(*ParseRankMessage(daemon_.ReadLine()));
  EXPECT_EQ(a.timeout_seconds, 5);
  const std::string line = ToLine(DaemonMessage(StoreReplyMessage{b.request_id, "", "62"})) + "\n";
  daemon_.Write(line.substr(0, 10));
  daemon_.Write(line.substr(10));
  EXPECT_EQ(*second.get(), "b");
  daemon_.Send(StoreReplyMessage{a.request_id, "not set in time", ""});
  EXPECT_EQ(first.get().status().code(), StatusCode::kUnavailable);
}

TEST_F(ControlChannelTest, StopIsRememberedAndRubbishIgnored) {
  ControlChannel channel(daemon_.rank_fd(), OnGone);
  EXPECT_FALSE(channel.StopRequested());
  daemon_.Write("rubbish\n\n{\"reboot\":{}}\n");
  daemon_.Send(StopMessage{});
  for (int i = 0; i < 1000 && !channel.StopRequested(); ++i) usleep(5000);
  EXPECT_TRUE(channel.StopRequested());
}

TEST_F(ControlChannelTest, WhoWatchesHearsOfTheNewestMembershipAndOfNoOlderOne) {
  ControlChannel channel(daemon_.rank_fd(), OnGone);
  daemon_.Send(MembershipMessage{2, {0, 1}, {}});
  std::promise<void> two;
  std::promise<void> four;
  std::vector<int64_t> numbers;
  channel.WatchMembership([&](const MembershipMessage& membership) {
    numbers.push_back(membership.number);
    if (membership.number == 2) two.set_value();
    if (membership.number == 4) four.set_value();
  });
  two.get_future().wait();
  daemon_.Send(MembershipMessage{2, {0, 1}, {}});
  daemon_.Send(MembershipMessage{1, {0}, {}});
  daemon_.Send(MembershipMessage{4, {0, 3}, {1}});
  four.get_future().wait();
  channel.WatchMembership(nullptr);
  EXPECT_EQ(numbers, (std::vector<int64_t>{2, 4}));
}

TEST_F(ControlChannelTest, ADaemonThatDiesIsNoticedAndFreesWhoeverWaits) {
  ControlChannel channel(daemon_.rank_fd(), OnGone);
  auto waiting =
      std::async(std::launch::async, [&] { return channel.Get("never", std::chrono::minutes(5)); });
  daemon_.ReadLine();
  daemon_.Close();
  EXPECT_FALSE(gone_.get_future().get());
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kUnavailable);
}

TEST_F(ControlChannelTest, AbortIsDistinguished) {
  ControlChannel channel(daemon_.rank_fd(), OnGone);
  daemon_.Send(AbortMessage{});
  EXPECT_TRUE(gone_.get_future().get());
}

}  // namespace
}  // namespace weft::trainer
