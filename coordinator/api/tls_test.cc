// TLS as clients and workers meet it: real certificates, real handshakes.
#include <atomic>
#include <fstream>

#include "common/env.h"
#include "common/http/address.h"
#include "common/sha256.h"
#include "common/tls/certificate_authority.h"
#include "common/tls/revocation_list.h"
#include "coordinator/api/testing.h"
#include "proto/grpc_tls.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

class TlsTest : public ApiTest {
 protected:
  void Prepare() override {
    authority_ = std::make_unique<tls::CertificateAuthority>(dir_ / "certs");
    ASSERT_TRUE(authority_->Init().ok());
    Issue({"server", "localhost", {"localhost", "127.0.0.1"}});
    security_.tls = {dir_ / "certs/server.pem", "", dir_ / "certs/ca.pem"};
  }
  std::string Issue(const tls::Holder& holder) const {
    Result<std::string> path = authority_->Issue(holder);
    EXPECT_TRUE(path.ok()) << path.status().message();
    return path.ok() ? *path : "";
  }
  tls::Files FilesOf(const std::string& certificate) const {
    return {certificate, "", dir_ / "certs/ca.pem"};
  }
  /// A channel of its own, so that it makes a handshake of its own.
  std::shared_ptr<grpc::Channel> Dial(const tls::Files& files) const {
    auto credentials = ChannelCredentialsOf(files);
    EXPECT_TRUE(credentials.ok()) << credentials.status().message();
    if (!credentials.ok()) return nullptr;
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(coordinator_->address, *credentials, own);
  }
  static grpc::Status AskWho(const std::shared_ptr<grpc::Channel>& channel, v1::WhoAmIResponse& who,
                             const std::string& token = "") {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata(kTokenMetadata, std::string(kTokenScheme) + token);
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    return v1::Coordinator::NewStub(channel)->WhoAmI(&context, {}, &who);
  }
  /// What a worker that says it is `id` hears.
  std::string AttachAs(const std::string& id, const tls::Files& files,
                       const std::string& token = "") const {
    auto stub = v1::WorkerService::NewStub(Dial(files));
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata(kTokenMetadata, std::string(kTokenScheme) + token);
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    auto stream = stub->Attach(&context);
    v1::WorkerMessage message;
    *message.mutable_register_() = FakeWorker::Hello(id);
    stream->Write(message);
    v1::CoordinatorMessage answer;
    if (!stream->Read(&answer)) return "broken: " + stream->Finish().error_message();
    context.TryCancel();
    while (stream->Read(&answer)) {
    }
    (void)stream->Finish();
    return answer.registered().refused().empty() ? "attached" : answer.registered().refused();
  }

  std::unique_ptr<tls::CertificateAuthority> authority_;
};

TEST_F(TlsTest, CertificatesNamePeopleAndPlainTextOrStrangersGetNothing) {
  v1::WhoAmIResponse who;
  grpc::Status status = AskWho(Dial(FilesOf(Issue({"client", "ann", {}}))), who);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(who.name(), "ann");
  EXPECT_EQ(who.role(), "admin") << "no file of people says otherwise";

  EXPECT_EQ(AskWho(Dial({}), who).error_code(), grpc::StatusCode::UNAVAILABLE) << "plain text";
  status = AskWho(Dial({"", "", dir_ / "certs/ca.pem"}), who);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << "no certificate";
  status = AskWho(Dial(FilesOf(Issue({"worker", "w", {}}))), who);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << "a worker is nobody here";

  // A certificate of another CA, of a client that trusts ours.
  const tls::CertificateAuthority stranger(dir_ / "stranger");
  ASSERT_TRUE(stranger.Init().ok());
  ASSERT_TRUE(stranger.Issue({"client", "ann", {}}).ok());
  const tls::Files theirs{dir_ / "stranger/client-ann.pem", "", dir_ / "stranger/ca.pem"};
  auto read = tls::ReadCredentials(theirs);
  ASSERT_TRUE(read.ok());
  grpc::SslCredentialsOptions forged;
  forged.pem_root_certs = *ReadFile(Env::Posix(), dir_ / "certs/ca.pem");
  forged.pem_cert_chain = read->certificate;
  forged.pem_private_key = read->key;
  EXPECT_EQ(AskWho(grpc::CreateChannel(coordinator_->address, grpc::SslCredentials(forged)), who)
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // And a client that trusts another CA does not talk to our server.
  EXPECT_EQ(AskWho(Dial({"", "", dir_ / "stranger/ca.pem"}), who).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, TheFileOfPeopleDecidesWhatACertificateOrATokenMay) {
  std::ofstream(dir_ / "people.yaml")
      << "people:\n- {name: ann, role: viewer}\n- {name: bob, role: "
         "admin, token_sha256: "
      << Sha256Hex("bobs") << "}\n";
  std::filesystem::permissions(dir_ / "people.yaml", std::filesystem::perms(0600));
  auto people = People::Open(dir_ / "people.yaml", Clock::System());
  ASSERT_TRUE(people.ok()) << people.status().message();
  security_.access.people = std::move(*people);
  Restart();
  v1::WhoAmIResponse who;
  ASSERT_TRUE(AskWho(Dial(FilesOf(Issue({"client", "ann", {}}))), who).ok());
  EXPECT_EQ(who.role(), "viewer");
  ASSERT_TRUE(AskWho(Dial({"", "", dir_ / "certs/ca.pem"}), who, "bobs").ok());
  EXPECT_EQ(who.name(), "bob");
  EXPECT_THAT(AttachAs("node-1", {"", "", dir_ / "certs/ca.pem"}, "bobs"),
              HasSubstr("shows none of a worker"))
      << "no role of a person makes a worker";
  EXPECT_EQ(AskWho(Dial(FilesOf(Issue({"client", "eve", {}}))), who).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(TlsTest, AWorkerAttachesAsTheOneOfItsCertificateAndAsNoOther) {
  const std::string certificate = Issue({"worker", "node-1", {}});
  EXPECT_EQ(AttachAs("node-1", FilesOf(certificate)), "attached");
  EXPECT_THAT(AttachAs("node-2", FilesOf(certificate)),
              AllOf(HasSubstr("shows that of 'node-1'"), HasSubstr("hint: weft certs issue")));
  EXPECT_THAT(AttachAs("node-1", {"", "", dir_ / "certs/ca.pem"}),
              HasSubstr("shows none of a worker"));
  EXPECT_THAT(AttachAs("ann", FilesOf(Issue({"client", "ann", {}}))),
              HasSubstr("shows none of a worker"));
  auto log = coordinator_->store->ListAudit({});
  ASSERT_TRUE(log.ok());
  ASSERT_EQ(log->size(), 3u);
  EXPECT_EQ((*log)[0].who + " " + (*log)[0].method + " " + (*log)[0].object,
            "node-1 Attach node-2");
}

TEST_F(TlsTest, RevokedCertificatesAreRefusedAlsoOnConnectionsThatAreOpen) {
  const std::string list = dir_ / "certs/ca-crl.pem";
  auto revoked = tls::RevocationList::Open(list, security_.tls.authorities, Clock::System());
  ASSERT_TRUE(revoked.ok()) << revoked.status().message();
  security_.access.revoked = std::move(*revoked);
  Restart();
  const tls::Files ann = FilesOf(Issue({"client", "ann", {}}));
  const auto channel = Dial(ann);
  v1::WhoAmIResponse who;
  ASSERT_TRUE(AskWho(channel, who).ok());
  const tls::Files node = FilesOf(Issue({"worker", "node-1", {}}));
  const auto worker_channel = Dial(node);
  auto stub = v1::WorkerService::NewStub(worker_channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  auto stream = stub->Attach(&context);
  v1::WorkerMessage message;
  *message.mutable_register_() = FakeWorker::Hello("node-1");
  stream->Write(message);
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.registered().refused(), "");

  // A list that makes no sense changes nothing.
  const std::string sound = *ReadFile(Env::Posix(), list);
  std::ofstream(list) << "noise";
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_TRUE(AskWho(channel, who).ok());
  std::ofstream(list) << sound;
  ASSERT_TRUE(authority_->Revoke({"client", "ann", {}}).ok());
  ASSERT_TRUE(authority_->Revoke({"worker", "node-1", {}}).ok());
  std::this_thread::sleep_for(milliseconds(600));
  const grpc::Status refused = AskWho(channel, who);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("was revoked"), HasSubstr("hint: ")));
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_sequence(1);
  stream->Write(heartbeat);
  while (stream->Read(&answer)) EXPECT_FALSE(answer.has_heartbeat_ack());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  // Their names may come again, with new certificates.
  EXPECT_TRUE(AskWho(Dial(FilesOf(Issue({"client", "ann", {}}))), who).ok());
  EXPECT_EQ(AttachAs("node-1", FilesOf(Issue({"worker", "node-1", {}}))), "attached");
}

TEST_F(TlsTest, OnlyLoopbackIsServedInPlainText) {
  ServerSecurity plain;
  for (const char* address : {"0.0.0.0:0", ":0", "[::]:0"}) {
    auto server = Server::Listen(address, *coordinator_->service, coordinator_->metrics, {}, plain);
    EXPECT_EQ(server.status().code(), StatusCode::kInvalid) << address;
    EXPECT_THAT(server.status().message(), AllOf(HasSubstr("--tls-cert"), HasSubstr("--insecure")));
  }
  plain.plain_allowed = true;
  EXPECT_TRUE(
      Server::Listen("0.0.0.0:0", *coordinator_->service, coordinator_->metrics, {}, plain).ok());
  EXPECT_TRUE(
      Server::Listen("0.0.0.0:0", *coordinator_->service, coordinator_->metrics, {}, security_)
          .ok());
}

TEST_F(TlsTest, TheLimitOfConnectionsHoldsWithTls) {
  ServerLimits limits;
  limits.connections = 1;
  auto server = Server::Listen("127.0.0.1:0", *coordinator_->service, coordinator_->metrics, limits,
                               security_);
  ASSERT_TRUE(server.ok()) << server.status().message();
  coordinator_->address = "127.0.0.1:" + std::to_string((*server)->port());
  const tls::Files files = FilesOf(Issue({"client", "ann", {}}));
  const auto first = Dial(files);
  v1::WhoAmIResponse who;
  ASSERT_TRUE(AskWho(first, who).ok());
  EXPECT_EQ(AskWho(Dial(files), who).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(AskWho(first, who).ok());
  EXPECT_GE(coordinator_->Metric("weft_rpc_server_connections_refused_total"), 1);
}

TEST_F(TlsTest, OldConnectionsEndAndCallsGoOn) {
  ServerLimits limits;
  limits.connection_age = milliseconds(300);
  limits.age_grace = milliseconds(200);
  auto server = Server::Listen("127.0.0.1:0", *coordinator_->service, coordinator_->metrics, limits,
                               security_);
  ASSERT_TRUE(server.ok()) << server.status().message();
  coordinator_->address = "127.0.0.1:" + std::to_string((*server)->port());
  auto stub = v1::WorkerService::NewStub(Dial(FilesOf(Issue({"worker", "node-1", {}}))));
  grpc::ClientContext context;
  auto stream = stub->Attach(&context);
  v1::WorkerMessage message;
  *message.mutable_register_() = FakeWorker::Hello("node-1");
  stream->Write(message);
  const auto channel = Dial(FilesOf(Issue({"client", "ann", {}})));
  for (int i = 0; i < 150; ++i) {
    v1::WhoAmIResponse who;
    const grpc::Status status = AskWho(channel, who);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::this_thread::sleep_for(milliseconds(10));
  }
  // A stream has to be dialled again, as a worker does.
  v1::CoordinatorMessage answer;
  while (stream->Read(&answer)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Two CAs follow each other while calls come in, each second one on a connection of its own.
TEST_F(TlsTest, CertificatesRotateUnderLoadWithoutAFailedCall) {
  security_.access.calls_per_second = 1e6;
  security_.access.calls_at_once = 1e6;
  Restart();
  const tls::Files files = FilesOf(Issue({"client", "ann", {}}));
  const std::string first_ca = *ReadFile(Env::Posix(), files.authorities);
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0;
  std::atomic<int> failed = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      auto channel = Dial(files);
      for (int call = 0; !stop; ++call) {
        if (call % 2 == 0) channel = Dial(files);
        v1::WhoAmIResponse who;
        const grpc::Status status = AskWho(channel, who);
        ++calls;
        if (!status.ok()) {
          ++failed;
          ADD_FAILURE() << status.error_message();
        }
        std::this_thread::sleep_for(milliseconds(8));
      }
    });
  }
  // The server reads its files every second.
  const auto noticed = [] { std::this_thread::sleep_for(milliseconds(2500)); };
  for (int rotation = 0; rotation < 2; ++rotation) {
    EXPECT_TRUE(authority_->AddAuthority().ok());
    noticed();
    EXPECT_TRUE(authority_->SwitchAuthority().ok());
    noticed();
    EXPECT_TRUE(authority_->DropOldAuthority().ok());
    noticed();
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(calls, 500);
  RecordProperty("calls", calls.load());
  RecordProperty("failed_calls", failed.load());
  // What the first CA signed is worth nothing any more.
  v1::WhoAmIResponse who;
  std::ofstream(dir_ / "first-ca.pem") << first_ca;
  EXPECT_FALSE(AskWho(Dial({"", "", dir_ / "first-ca.pem"}), who).ok());
  EXPECT_TRUE(AskWho(Dial(files), who).ok());
}

// Connections end all the time here, and are made again with the certificates of that moment.
TEST_F(TlsTest, AWorkerAndSubmissionsLiveThroughARotation) {
  options_.lease = seconds(5);
  security_.access.jobs_per_person = 100'000;
  Restart();
  ServerLimits limits;
  limits.connection_age = milliseconds(300);
  limits.age_grace = milliseconds(2000);
  auto server = Server::Listen("127.0.0.1:0", *coordinator_->service, coordinator_->metrics, limits,
                               security_);
  ASSERT_TRUE(server.ok()) << server.status().message();
  coordinator_->address = "127.0.0.1:" + std::to_string((*server)->port());
  const tls::Files ann = FilesOf(Issue({"client", "ann", {}}));
  const tls::Files node = FilesOf(Issue({"worker", "node-1", {}}));
  const auto submit = [](const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& request_id) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec();
    request.set_client_request_id(request_id);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    v1::SubmitJobResponse response;
    const grpc::Status status =
        v1::Coordinator::NewStub(channel)->SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  };
  // Its one core is taken by one job; all others wait.
  const v1::Register hello = FakeWorker::Hello("node-1", 1);
  auto worker = std::make_unique<FakeWorker>(Dial(node), hello);
  ASSERT_TRUE(worker->Await(kRegistered));
  const std::string trained = submit(Dial(ann), "trained");
  ASSERT_TRUE(worker->Await(kStart));
  worker->Report(trained, 1, v1::ATTEMPT_TRAINING);

  std::atomic<bool> stop = false;
  int redials = 0;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!stop) {
      if (worker->Ended()) {
        worker = std::make_unique<FakeWorker>(Dial(node), FakeWorker::Running(hello, trained, 1));
        const auto registered = worker->Await(kRegistered);
        EXPECT_TRUE(registered && registered->registered().adopted_size() == 1);
        ++redials;
      }
      worker->Heartbeat(trained, 1, 1);
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  std::atomic<int> submissions = 1;
  std::atomic<int> wrong = 0;
  for (int person = 0; person < 2; ++person) {
    threads.emplace_back([&, person] {
      std::shared_ptr<grpc::Channel> channel;
      for (int i = 0; !stop; ++i) {
        if (i % 2 == 0) channel = Dial(ann);
        const std::string request = std::to_string(person) + "-" + std::to_string(i);
        const std::string job = submit(channel, request);
        ++submissions;
        if (job.empty() || submit(channel, request) != job) ++wrong;
        std::this_thread::sleep_for(milliseconds(25));
      }
    });
  }
  // The server reads its files every second.
  const auto noticed = [] { std::this_thread::sleep_for(milliseconds(2500)); };
  EXPECT_TRUE(authority_->AddAuthority().ok());
  noticed();
  EXPECT_TRUE(authority_->SwitchAuthority().ok());
  noticed();
  EXPECT_TRUE(authority_->DropOldAuthority().ok());
  noticed();
  stop = true;
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0) << "submissions";
  EXPECT_EQ(std::ssize(*coordinator_->store->FindJobIds("", 1 << 20)), submissions);
  EXPECT_GE(redials, 2);
  jobs_ = v1::Coordinator::NewStub(Dial(ann));
  worker = std::make_unique<FakeWorker>(Dial(node), FakeWorker::Running(hello, trained, 1));
  ASSERT_TRUE(worker->Await(kRegistered));
  Finish(*worker, trained, 1);
  EXPECT_EQ(AwaitState(trained, {v1::SUCCEEDED}).attempts_size(), 1) << "no attempt was lost";
  RecordProperty("submissions", submissions.load());
  RecordProperty("wrong_submissions", wrong.load());
  RecordProperty("redials", redials);
}

}  // namespace
}  // namespace weft::coordinator
