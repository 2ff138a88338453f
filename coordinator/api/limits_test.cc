// What clients that send nothing, too much or nonsense can do to a coordinator.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cmath>
#include <functional>

#include "coordinator/api/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

/// A TCP connection that speaks no HTTP/2.
class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawConnection() {
    if (fd_ >= 0) close(fd_);
  }
  /// Whether the other side ends it within the time.
  bool Ends(seconds limit) {
    const timeval wait{limit.count(), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    char bytes[256];
    while (true) {
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
      if (got < 0) return false;
    }
  }

 private:
  int fd_;
};

void Rate(v1::WorkerProfile& profile, double flops_per_second) {
  v1::GemmRate* rate = profile.add_gemm();
  rate->set_precision("fp32");
  rate->set_flops_per_second(flops_per_second);
}

class LimitsTest : public ApiTest {
 protected:
  void Serve(const ServerLimits& limits) {
    auto server =
        Server::Listen("127.0.0.1:0", *coordinator_->service, coordinator_->metrics, limits);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  void TearDown() override {
    server_.reset();
    ApiTest::TearDown();
  }
  /// A call over a new connection.
  grpc::Status Call(milliseconds limit = seconds(5)) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto stub = v1::Coordinator::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials(), own));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    v1::GetVersionResponse response;
    return stub->GetVersion(&context, {}, &response);
  }

  std::unique_ptr<Server> server_;
};

TEST_F(LimitsTest, AConnectionThatSaysNothingEnds) {
  ServerLimits limits;
  limits.handshake = milliseconds(200);
  Serve(limits);
  RawConnection silent(server_->port());
  EXPECT_TRUE(silent.Ends(seconds(10)));
  EXPECT_TRUE(Call().ok());
}

TEST_F(LimitsTest, OneConnectionTooManyIsClosedAtOnceAndPlacesComeFree) {
  ServerLimits limits;
  limits.connections = 3;
  limits.handshake = std::chrono::hours(1);
  Serve(limits);
  std::vector<RawConnection> silent;
  for (int i = 0; i < 3; ++i) silent.emplace_back(server_->port());
  RawConnection one_more(server_->port());
  EXPECT_TRUE(one_more.Ends(seconds(10)));
  EXPECT_EQ(coordinator_->Metric("weft_rpc_server_connections_refused_total"), 1);
  silent.pop_back();
  grpc::Status status = Call();
  for (int i = 0; i < 100 && !status.ok(); ++i) {  // gRPC sees the end a little later
    std::this_thread::sleep_for(milliseconds(20));
    status = Call();
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(LimitsTest, ProfilesThatNoMachineHasAreRefusedWithTheReason) {
  struct Case {
    std::function<void(v1::WorkerProfile&)> change;
    std::string says;
  };
  for (const auto& [change, says] :
       std::vector<Case>{{[](auto& p) { p.set_cores(-5); }, "cores"},
                         {[](auto& p) { p.set_cores(1'000'000'000'000'000); }, "cores"},
                         {[](auto& p) { p.set_memory_bytes(-1); }, "memory_bytes"},
                         {[](auto& p) { p.set_copy_bytes_per_second(NAN); },
                          "copy_bytes_per_second is nan, but must be a number"},
                         {[](auto& p) { Rate(p, -1); }, "flops_per_second"},
                         {[](auto& p) { Rate(p, INFINITY); }, "flops_per_second"}}) {
    v1::WorkerMessage message;
    *message.mutable_register_() = FakeWorker::Hello("rogue");
    change(*message.mutable_register_()->mutable_profile());
    auto stub = v1::WorkerService::NewStub(
        grpc::CreateChannel(coordinator_->address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    auto stream = stub->Attach(&context);
    stream->Write(message);
    v1::CoordinatorMessage answer;
    std::string why;
    while (stream->Read(&answer)) why += answer.registered().refused();
    why += stream->Finish().error_message();
    EXPECT_THAT(why, HasSubstr(says));
    grpc::ClientContext list;
    v1::ListWorkersResponse workers;
    ASSERT_TRUE(jobs_->ListWorkers(&list, {}, &workers).ok());
    EXPECT_EQ(workers.workers_size(), 0) << says;
  }
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = Spec();
  v1::WorkerProfile* machine = plan.mutable_cluster()->add_workers();
  machine->set_worker_id("m");
  machine->set_device("cpu");
  machine->set_cores(2);
  machine->set_memory_bytes(-7);
  grpc::ClientContext context;
  v1::PlanReport report;
  const grpc::Status status = jobs_->PlanJob(&context, plan, &report);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("memory_bytes is -7"));
}

}  // namespace
}  // namespace weft::coordinator
