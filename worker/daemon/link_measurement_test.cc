#include "worker/daemon/link_measurement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "worker/daemon/link_rate.h"

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

/// A worker's end, and what it answers.
struct End {
  explicit End(boost::asio::io_context& io)
      : measurement(io, "127.0.0.1", [this](v1::LinkReply reply) { answer = std::move(reply); }) {}
  std::optional<v1::LinkReply> answer;
  LinkMeasurement measurement;
};

class LinkMeasurementTest : public ::testing::Test {
 protected:
  v1::MeasureLink Request(int64_t id, int port = 0, double limit_seconds = 5) {
    v1::MeasureLink request;
    request.set_request_id(id);
    request.set_token(std::string(kLinkTokenBytes, 'a'));
    request.set_limit_seconds(limit_seconds);
    if (port > 0) request.set_host("127.0.0.1");
    request.set_port(port);
    return request;
  }
  v1::LinkReply Await(End& end) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(10);
    while (!end.answer && steady_clock::now() < deadline) {
      io_.restart();
      io_.run_for(milliseconds(5));
    }
    EXPECT_TRUE(end.answer.has_value());
    return std::exchange(end.answer, std::nullopt).value_or(v1::LinkReply());
  }

  boost::asio::io_context io_;
  End listens_{io_};
  End connects_{io_};
};

TEST_F(LinkMeasurementTest, TellsThePortAndThenTheRates) {
  listens_.measurement.Start(Request(7));
  const v1::LinkReply opened = Await(listens_);
  ASSERT_GT(opened.port(), 0) << opened.error();
  EXPECT_EQ(opened.request_id(), 7);
  connects_.measurement.Start(Request(7, opened.port()));
  const v1::LinkReply rates = Await(connects_);
  EXPECT_EQ(rates.error(), "");
  EXPECT_EQ(rates.request_id(), 7);
  EXPECT_GT(rates.send_bytes_per_second(), 0);
  EXPECT_GT(rates.receive_bytes_per_second(), 0);
  EXPECT_GT(rates.round_trip_seconds(), 0);
  EXPECT_FALSE(listens_.answer) << "the end that listened has nothing to add";
}

TEST_F(LinkMeasurementTest, ClosesThePortWhenItIsStopped) {
  listens_.measurement.Start(Request(1));
  const int port = Await(listens_).port();
  listens_.measurement.Stop("a job started");
  const v1::LinkReply stopped = Await(listens_);
  EXPECT_EQ(stopped.error(), "a job started");
  // The next one waits for the end of the first.
  listens_.measurement.Start(Request(2));
  EXPECT_GT(Await(listens_).port(), 0);
  const LinkLimit limit{steady_clock::now() + milliseconds(500)};
  EXPECT_FALSE(MeasureLink("127.0.0.1", port, std::string(kLinkTokenBytes, 'a'), limit).ok());
}

TEST_F(LinkMeasurementTest, ClosesThePortAtItsLimit) {
  listens_.measurement.Start(Request(1, 0, 0.05));
  ASSERT_GT(Await(listens_).port(), 0);
  EXPECT_THAT(Await(listens_).error(), HasSubstr("did not answer in time"));
}

TEST_F(LinkMeasurementTest, RefusesATokenThatIsNone) {
  v1::MeasureLink request = Request(1);
  request.set_token("");
  listens_.measurement.Start(request);
  EXPECT_EQ(Await(listens_).error(), "the token is none");
}

}  // namespace
}  // namespace weft::daemon
