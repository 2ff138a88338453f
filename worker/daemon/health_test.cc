// What probes learn of a worker, and a worker that starts on a full disk.
#include "worker/daemon/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <filesystem>
#include <thread>

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::StartsWith;

Result<http::Reply> Get(const std::string& address, const std::string& path) {
  return http::Get(address, path, milliseconds(10'000));
}

TEST(Health, FollowsTheEventLoopAndTheCoordinator) {
  Metrics metrics(Clock::System());
  Health health(metrics);
  http::Limits limits;
  limits.answer = milliseconds(200);
  auto server = http::Server::Listen("127.0.0.1:0", health.Pages(), limits);
  ASSERT_TRUE(server.ok()) << server.status().message();
  const std::string address = (*server)->local_address();
  health.Wait("measuring");
  EXPECT_EQ(Get(address, "/readyz")->status, 503);
  EXPECT_EQ(Get(address, "/readyz")->body, "measuring\n");
  EXPECT_EQ(Get(address, "/healthz")->status, 200);

  boost::asio::io_context io;
  health.Serve(io);
  EXPECT_EQ(Get(address, "/healthz")->status, 503) << "nobody runs the loop";
  EXPECT_EQ(Get(address, "/metrics")->status, 200) << "which is not behind it";
  auto work = boost::asio::make_work_guard(io);
  std::thread loop([&] { io.run(); });
  EXPECT_EQ(Get(address, "/healthz")->status, 200);
  EXPECT_EQ(Get(address, "/readyz")->status, 503);
  metrics.SetAttached(true);
  EXPECT_EQ(Get(address, "/readyz")->status, 200);
  health.Stop();
  EXPECT_EQ(Get(address, "/readyz")->body, "stopping\n");
  server->reset();
  work.reset();
  loop.join();
}

int FreePort() {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  return acceptor.local_endpoint().port();
}

TEST(Health, AWorkerOnAFullDiskWaitsForSpaceAndSaysSo) {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("weft-full-disk-" + std::to_string(getpid()));
  std::filesystem::remove_all(dir);
  const std::string pages = "127.0.0.1:" + std::to_string(FreePort());
  std::vector<std::string> args = {std::string(WEFT_BINARY_DIR) + "/weft-worker",
                                   "--data-dir",
                                   dir,
                                   "--coordinator",
                                   "127.0.0.1:1",
                                   "--devices",
                                   "none",
                                   "--trainer",
                                   std::string(WEFT_BINARY_DIR) + "/fake_trainer",
                                   "--metrics-listen",
                                   pages};
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const rlimit none{0, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &none);
    std::vector<char*> argv;
    for (auto& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  const auto await = [&](const std::string& beginning) {
    std::string text;
    for (int i = 0; i < 1000 && text.rfind(beginning, 0) != 0; ++i) {
      std::this_thread::sleep_for(milliseconds(20));
      Result<http::Reply> reply = Get(pages, "/readyz");
      text = reply.ok() ? reply->body : reply.status().message();
    }
    return text;
  };
  EXPECT_THAT(await("waiting for space: "), StartsWith("waiting for space: "));
  EXPECT_EQ(Get(pages, "/healthz")->status, 200);
  EXPECT_EQ(CheckHealth(dir), 1);
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, &all, nullptr), 0);
  EXPECT_THAT(await("the worker runs"), StartsWith("the worker runs but is not attached"));
  EXPECT_TRUE(std::filesystem::exists(dir / "daemon.json"));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace weft::daemon
