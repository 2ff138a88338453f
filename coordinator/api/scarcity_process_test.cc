// weft-coordinator without space, and with clients that want too much of it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "common/http/server.h"
#include "coordinator/api/process_testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ScarcityTest : public MainTest {
 protected:
  /// A port that was free just now: a process that cannot write says nowhere which one it took.
  static int FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    close(fd);
    return ntohs(address.sin_port);
  }
  std::vector<std::string> ArgsOn(const std::string& data, const std::string& listen,
                                  const std::string& pages) {
    return {"--listen",   listen,      "--metrics-listen", pages,
            "--data-dir", dir_ / data, "--run-root",       dir_ / "runs"};
  }
  static void GiveSpace(const Process& process) {
    const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
    ASSERT_EQ(prlimit(process.pid(), RLIMIT_FSIZE, &all, nullptr), 0);
  }
  /// What the page says, once it begins so or ten seconds have passed.
  static std::string AwaitPage(const std::string& address, const std::string& path,
                               const std::string& beginning) {
    Result<http::Reply> reply = UnavailableError("");
    for (int i = 0; i < 500; ++i) {
      reply = http::Get(address, path, std::chrono::seconds(5));
      if (reply.ok() && reply->body.rfind(beginning, 0) == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return reply.ok() ? reply->body : reply.status().message();
  }
  static int64_t ResidentKilobytes(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
    }
    return -1;
  }
};

TEST_F(ScarcityTest, AFullDiskIsServedReadOnlyUntilThereIsSpace) {
  // A database that was closed, and one whose process was killed.
  for (int end : {SIGTERM, SIGKILL}) {
    const std::string data = "d" + std::to_string(end);
    std::string id;
    {
      Process process(Args(data));
      ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
      v1::SubmitJobResponse response;
      ASSERT_TRUE(Submit(Address(data), "one", response).ok());
      id = response.job().id();
      process.Signal(end);
      process.AwaitExit();
    }
    const std::string address = "127.0.0.1:" + std::to_string(FreePort());
    const std::string pages = "127.0.0.1:" + std::to_string(FreePort());
    Process process(ArgsOn(data, address, pages), "", 0);
    ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
    auto stub =
        v1::Coordinator::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::ListJobsResponse list;
    const grpc::Status listed = stub->ListJobs(&context, {}, &list);
    ASSERT_TRUE(listed.ok()) << listed.error_message();
    ASSERT_EQ(list.jobs_size(), 1);
    EXPECT_EQ(list.jobs(0).id(), id);
    v1::SubmitJobResponse response;
    const grpc::Status refused = Submit(address, "two", response);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << refused.error_message();
    EXPECT_THAT(refused.error_message(), HasSubstr("hint: free space"));
    EXPECT_THAT(AwaitPage(pages, "/readyz", "degraded"), StartsWith("degraded, read-only: "));
    EXPECT_THAT(AwaitPage(pages, "/healthz", "alive"), StartsWith("alive"));
    EXPECT_THAT(AwaitPage(pages, "/metrics", ""), HasSubstr("weft_coord_store_writable 0"));
    GiveSpace(process);
    EXPECT_EQ(AwaitPage(pages, "/readyz", "ready"), "ready\n");
    EXPECT_TRUE(Submit(address, "two", response).ok());
    EXPECT_THAT(AwaitPage(pages, "/metrics", ""), HasSubstr("weft_coord_store_writable 1"));
    process.Signal(SIGTERM);
    EXPECT_EQ(process.AwaitExit(), 0) << process.output();
  }
}

TEST_F(ScarcityTest, WithoutADatabaseItWaitsForSpaceAndSaysSo) {
  const std::string pages = "127.0.0.1:" + std::to_string(FreePort());
  Process process(ArgsOn("new", "127.0.0.1:0", pages), "", 0);
  EXPECT_THAT(AwaitPage(pages, "/readyz", "waiting for space"), StartsWith("waiting for space: "));
  EXPECT_THAT(AwaitPage(pages, "/healthz", "alive"), StartsWith("alive: waiting for space: "));
  GiveSpace(process);
  ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
  EXPECT_EQ(AwaitPage(pages, "/readyz", "ready"), "ready\n");
  v1::SubmitJobResponse response;
  EXPECT_TRUE(Submit(Address("new"), "one", response).ok());
}

TEST_F(ScarcityTest, ASignalEndsTheWaitForSpace) {
  const std::string pages = "127.0.0.1:" + std::to_string(FreePort());
  Process process(ArgsOn("new", "127.0.0.1:0", pages), "", 0);
  AwaitPage(pages, "/readyz", "waiting for space");
  process.Signal(SIGTERM);
  EXPECT_EQ(process.AwaitExit(), 0) << process.output();
}

TEST_F(ScarcityTest, MessagesThatAreTooLargeLeaveNoMemoryBehind) {
  Process process(Args("a"));
  ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
  v1::SubmitJobResponse response;
  ASSERT_TRUE(Submit(Address("a"), "one", response).ok());
  const auto send = [&](int messages) {
    for (int i = 0; i < messages; ++i) {
      auto stub = v1::Coordinator::NewStub(
          grpc::CreateChannel(Address("a"), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      v1::SubmitJobRequest request;
      request.mutable_spec()->set_name(std::string(size_t{64} << 20, 'x'));
      request.set_client_request_id("large");
      EXPECT_EQ(stub->SubmitJob(&context, request, &response).error_code(),
                grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  };
  // The allocator keeps some memory for each thread that has read a message: how much depends on
  // the number of processors. What more messages add does not.
  send(4);
  const int64_t before = ResidentKilobytes(process.pid());
  send(12);
  const int64_t grown = ResidentKilobytes(process.pid()) - before;
  std::printf("twelve more messages of 64 MiB: resident memory grew by %lld KiB\n",
              static_cast<long long>(grown));
  EXPECT_LT(grown, (int64_t{12} * 64 << 10) / 8);
}

TEST_F(ScarcityTest, ItsHealthCheckFollowsIt) {
  const auto check = [&] {
    Process probe({"--healthcheck", "--data-dir", dir_ / "a"});
    return probe.AwaitExit();
  };
  EXPECT_EQ(check(), 1) << "nothing runs";
  Process process(Args("a"));
  ASSERT_TRUE(process.AwaitOutput(" ready on ")) << process.output();
  for (int i = 0; i < 100 && check() != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(check(), 0);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.AwaitExit(), 0);
  EXPECT_EQ(check(), 1);
}

}  // namespace
}  // namespace weft::coordinator
