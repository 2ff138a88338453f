#include "worker/daemon/health_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace weft::daemon {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

/// A program that does what a line of shell says.
class HealthCheckTest : public testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }

  void Program(const std::string& line) {
    std::ofstream(path_) << "#!/bin/sh\n" << line << "\n";
    ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
  }
  v1::HealthReply Check(double limit_seconds = 30) {
    WorkerProfile profile;
    profile.cores = 3;
    for (int index : {0, 4, 7}) {
      profile.devices.emplace_back().index = index;
      profile.devices.back().uuid = "GPU-" + std::to_string(index);
    }
    profile.devices[0].unusable = "broken";
    std::optional<v1::HealthReply> reply;
    boost::asio::io_context io;
    auto work = boost::asio::make_work_guard(io);
    HealthCheck check(io, path_, profile, [&](v1::HealthReply answer) {
      reply = std::move(answer);
      io.stop();
    });
    v1::CheckHealth request;
    request.set_request_id(9);
    request.set_limit_seconds(limit_seconds);
    check.Start(request);
    io.run_for(seconds(60));
    EXPECT_TRUE(reply.has_value());
    return reply.value_or(v1::HealthReply());
  }

  std::string path_ = testing::TempDir() + "check";
};

TEST_F(HealthCheckTest, TellsWhatTheProgramFound) {
  Program(R"(echo "{\"flops_per_second\": 5e9, \"memory_bytes_per_second\": 2e9}")");
  const v1::HealthReply reply = Check();
  EXPECT_EQ(reply.request_id(), 9);
  EXPECT_EQ(reply.error(), "");
  EXPECT_EQ(reply.device(), -1);
  EXPECT_EQ(reply.flops_per_second(), 5e9);
  EXPECT_EQ(reply.memory_bytes_per_second(), 2e9);
}

TEST_F(HealthCheckTest, NamesTheGpuByItsIndexOnTheMachine) {
  Program(R"([ "$1 $2 $CUDA_VISIBLE_DEVICES" = "--check-machine 3 GPU-4,GPU-7" ] || exit 1
echo "{\"error\": \"wrong\", \"device\": 1}")");
  const v1::HealthReply reply = Check();
  EXPECT_EQ(reply.error(), "wrong");
  EXPECT_EQ(reply.device(), 7) << "the second of those that work";
}

TEST_F(HealthCheckTest, AProgramThatDiesOrSaysNothingSensibleIsAnError) {
  Program("kill -SEGV $$");
  EXPECT_THAT(Check().error(), HasSubstr("it ended with signal 11"));
  Program("echo the disk is full; exit 3");
  EXPECT_THAT(Check().error(), HasSubstr("the disk is full"));
  Program("echo hello");
  EXPECT_THAT(Check().error(), HasSubstr("gave no result"));
}

TEST_F(HealthCheckTest, EndsWithoutAnAnswerWhenItTakesTooLongOrIsStopped) {
  Program("exec sleep 100");
  boost::asio::io_context io;
  bool answered = false;
  HealthCheck check(io, path_, {}, [&](const v1::HealthReply&) { answered = true; });
  v1::CheckHealth request;
  const auto begin = steady_clock::now();
  for (double limit : {0.1, 90.0}) {
    request.set_limit_seconds(limit);
    check.Start(request);
    io.run_for(std::chrono::milliseconds(500));
    io.restart();
    EXPECT_FALSE(answered);
  }
  check.Stop();
  EXPECT_LT(steady_clock::now() - begin, seconds(60)) << "the second one was killed";
}

}  // namespace
}  // namespace weft::daemon
