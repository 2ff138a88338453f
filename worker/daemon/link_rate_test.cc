#include "worker/daemon/link_rate.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "common/failpoint.h"

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

TEST(LinkBytesPerSecond, LeavesOutTheRoundTripAndSmallRounds) {
  // 1e9 bytes/s and a round trip of a millisecond; one round was disturbed, a small one was lucky.
  const std::vector<LinkRound> rounds = {
      {64e3, 1.0001e-3}, {8e6, 9e-3}, {16e6, 50e-3}, {16e6, 17e-3}};
  EXPECT_NEAR(LinkBytesPerSecond(rounds, 1e-3), 1e9, 1e3);
}

TEST(LinkBytesPerSecond, IsNoneWithoutRoundsAndFiniteWhateverTheRoundTrip) {
  EXPECT_EQ(LinkBytesPerSecond({}, 1e-3), 0);
  // A round that was shorter than the round trip is taken to have a tenth of its time for bytes.
  const std::vector<LinkRound> rounds = {{1e6, 1e-3}};
  EXPECT_DOUBLE_EQ(LinkBytesPerSecond(rounds, 2e-3), 1e10);
}

TEST(SecondsPerDirection, AreTenRoundTripsWithinTheLimit) {
  EXPECT_DOUBLE_EQ(SecondsPerDirection(1e-4, 5), 0.5);
  EXPECT_DOUBLE_EQ(SecondsPerDirection(0.1, 5), 1);
  // Both directions leave time for the round that is under way.
  EXPECT_DOUBLE_EQ(SecondsPerDirection(0.3, 4.5), 1.8);
}

/// Both ends on loopback.
class Link : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<LinkListener> listener = LinkListener::Open("127.0.0.1");
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
  }
  void TearDown() override { EXPECT_TRUE(SetFailpoints("").ok()); }

  LinkLimit In(milliseconds time) const { return {steady_clock::now() + time, &stop_}; }

  /// A connection to the listener, which shows nothing.
  Socket Dial() const {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return socket;
  }

  const std::string token_ = std::string(kLinkTokenBytes, 'x');
  std::atomic<bool> stop_ = false;
  std::optional<LinkListener> listener_;
};

TEST_F(Link, IsMeasuredBothWays) {
  Status served;
  std::thread server([&] { served = listener_->Serve(token_, In(milliseconds(10000))); });
  const Result<LinkRate> rate =
      MeasureLink("127.0.0.1", listener_->port(), token_, In(milliseconds(10000)));
  server.join();
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  EXPECT_TRUE(served.ok()) << served.message();
  EXPECT_GT(rate->send_bytes_per_second, 1e7);
  EXPECT_GT(rate->receive_bytes_per_second, 1e7);
  EXPECT_GT(rate->round_trip_seconds, 0);
  EXPECT_LT(rate->round_trip_seconds, 0.1);
}

TEST_F(Link, ThatIsSlowIsMeasuredInTime) {
  // 256 KiB in ten milliseconds at most: 26 MB/s.
  ASSERT_TRUE(SetFailpoints("worker.link.chunk=sleep:10").ok());
  std::thread server([&] { (void)listener_->Serve(token_, In(milliseconds(10000))); });
  const auto begin = steady_clock::now();
  const Result<LinkRate> rate =
      MeasureLink("127.0.0.1", listener_->port(), token_, In(milliseconds(10000)));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(3000));
  server.join();
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  EXPECT_LT(rate->send_bytes_per_second, 30e6);
  EXPECT_GT(rate->send_bytes_per_second, 1e6);
  EXPECT_LT(rate->receive_bytes_per_second, 30e6);
}

TEST_F(Link, ServesNobodyWithoutTheToken) {
  Status served;
  std::thread server([&] { served = listener_->Serve(token_, In(milliseconds(10000))); });
  const Socket silent = Dial();
  const std::string wrong(kLinkTokenBytes, 'y');
  const Result<LinkRate> stranger =
      MeasureLink("127.0.0.1", listener_->port(), wrong, In(milliseconds(5000)));
  EXPECT_FALSE(stranger.ok());
  const Result<LinkRate> friendly =
      MeasureLink("127.0.0.1", listener_->port(), token_, In(milliseconds(5000)));
  server.join();
  EXPECT_TRUE(friendly.ok()) << friendly.status().message();
  EXPECT_TRUE(served.ok());
}

TEST_F(Link, EndsAtItsLimitAndWhenItIsStopped) {
  const Status late = listener_->Serve(token_, In(milliseconds(50)));
  EXPECT_EQ(late.code(), StatusCode::kUnavailable) << late.message();
  // The kernel takes the connection, but nobody answers.
  const Result<LinkRate> silent =
      MeasureLink("127.0.0.1", listener_->port(), token_, In(milliseconds(50)));
  EXPECT_EQ(silent.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(silent.status().message(), HasSubstr("did not answer"));
  stop_ = true;
  EXPECT_EQ(listener_->Serve(token_, In(milliseconds(10000))).code(), StatusCode::kAborted);
}

TEST_F(Link, SaysThatTheWorkerHasNoFileDescriptorLeft) {
  const Socket peer = Dial();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status served = listener_->Serve(token_, In(milliseconds(10000)));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(served.message(), HasSubstr("take a connection"));
}

TEST_F(Link, ToAClosedPortSaysSo) {
  const int port = listener_->port();
  listener_.reset();
  const Result<LinkRate> rate = MeasureLink("127.0.0.1", port, token_, In(milliseconds(1000)));
  ASSERT_FALSE(rate.ok());
  EXPECT_THAT(rate.status().message(), HasSubstr("connect to 127.0.0.1 port"));
}

}  // namespace
}  // namespace weft::daemon
