// Calls of a real server with any bytes in place of a message. The first line names the call, as
// "SubmitJob" or "Attach"; then come its messages, each after two bytes that say how long it is,
// the lower first. A call that takes messages of one only gets the first. Each must be answered.
// "SubmitJob viewer" also says the role of who calls, which is admin otherwise.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/sha256.h"
#include "coordinator/access/people.h"
#include "coordinator/access/role.h"
#include "coordinator/api/server.h"
#include "coordinator/planner/planner.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/grpc_tls.h"
#include "tests/fuzz/input.h"
#include "weft/v1/coordinator.grpc.pb.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPlanBudget(20);
/// A unary call that takes longer was forgotten.
constexpr seconds kAnswerLimit(30);
/// Streams may be silent; nobody waits for more of one.
constexpr milliseconds kStreamLimit(20);
constexpr int kMostReplies = 8;
/// Then a new coordinator comes, so that what one input leaves does not pile up.
constexpr int kInputsPerCoordinator = 300;

constexpr double kNoLimit = 1e9;

/// A person of each role, whose token is its name, from a file at `path` that is written for it.
std::unique_ptr<People> OneOfEachRole(const std::string& path) {
  std::string text = "people:\n";
  for (const Role role : kRoles) {
    if (role == Role::kNobody) continue;
    const std::string name(Name(role));
    text += "- {name: " + name + ", role: " + name + ", token_sha256: " + Sha256Hex(name) + "}\n";
  }
  std::ofstream(path) << text;
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  auto people = People::Open(path, Clock::System());
  WEFT_FUZZ_EXPECT(people.ok());
  return std::move(*people);
}

/// A coordinator whose jobs are in memory.
class World {
 public:
  World() {
    auto store = SqliteStore::Open({.path = ":memory:"});
    WEFT_FUZZ_EXPECT(store.ok());
    store_ = std::move(*store);
    ServiceOptions options;
    options.run_root = std::filesystem::temp_directory_path() / "weft_rpc_fuzz_runs";
    options.lease = seconds(2);
    options.heartbeat = milliseconds(200);
    options.planning.budget = options.planning.call_budget = kPlanBudget;
    service_ =
        std::make_unique<Service>(*store_, Clock::System(), planner::PlanJob, metrics_, options);
    WEFT_FUZZ_EXPECT(service_->Start().ok());
    ServerSecurity security;
    security.access.people = OneOfEachRole(people_file_);
    security.access.calls_per_second = security.access.calls_at_once = kNoLimit;
    security.access.jobs_per_person = static_cast<int64_t>(kNoLimit);
    auto server = Server::Listen("127.0.0.1:0", *service_, metrics_, {}, std::move(security));
    WEFT_FUZZ_EXPECT(server.ok());
    server_ = std::move(*server);
    stub_ = std::make_unique<grpc::GenericStub>(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  }
  ~World() {
    service_->CloseLinks();
    server_.reset();
    service_->Stop();
    std::filesystem::remove(people_file_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  grpc::GenericStub& stub() { return *stub_; }

 private:
  const std::string people_file_ =
      std::filesystem::temp_directory_path() / ("weft_rpc_fuzz_people_" + std::to_string(getpid()));
  Metrics metrics_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

World& Fresh() {
  static std::unique_ptr<World> world;
  static int inputs = 0;
  if (world == nullptr || ++inputs % kInputsPerCoordinator == 0) {
    world.reset();
    world = std::make_unique<World>();
  }
  return *world;
}

/// All calls of the service, so that none is left out.
std::vector<const google::protobuf::MethodDescriptor*> Methods() {
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  // What was generated is only known once it was used.
  (void)v1::SubmitJobRequest::descriptor();
  (void)v1::WorkerMessage::descriptor();
  for (const char* name : {"weft.v1.Coordinator", "weft.v1.WorkerService"}) {
    const auto* service = pool->FindServiceByName(name);
    WEFT_FUZZ_EXPECT(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) methods.push_back(service->method(i));
  }
  return methods;
}

/// The one of that name; of other names any, so that changes of the name are tried, too.
const google::protobuf::MethodDescriptor& MethodOf(std::string_view name) {
  static const auto kMethods = Methods();
  for (const auto* method : kMethods) {
    if (method->name() == name) return *method;
  }
  return *kMethods[std::hash<std::string_view>()(name) % kMethods.size()];
}

std::vector<grpc::ByteBuffer> Messages(std::string_view bytes) {
  std::vector<grpc::ByteBuffer> messages;
  while (bytes.size() >= 2) {
    const size_t length = static_cast<uint8_t>(bytes[0]) | static_cast<uint8_t>(bytes[1]) << 8;
    bytes.remove_prefix(2);
    const grpc::Slice slice(std::string(bytes.substr(0, length)));
    messages.emplace_back(&slice, 1);
    bytes.remove_prefix(std::min(length, bytes.size()));
  }
  if (messages.empty()) messages.emplace_back();
  return messages;
}

/// One call from its first message to its status.
class Call {
 public:
  Call(grpc::GenericStub& stub, const google::protobuf::MethodDescriptor& method, Role role)
      : streams_(method.server_streaming()) {
    context_.AddMetadata(kTokenMetadata, std::string(kTokenScheme) + std::string(Name(role)));
    const auto limit = streams_ ? std::chrono::nanoseconds(kStreamLimit) : kAnswerLimit;
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(limit));
    stream_ = stub.PrepareCall(&context_, "/" + method.service()->full_name() + "/" + method.name(),
                               &queue_);
    stream_->StartCall(this);
    Done();
  }

  grpc::Status Run(const std::vector<grpc::ByteBuffer>& messages, bool takes_many) {
    for (size_t i = 0; i < (takes_many ? messages.size() : 1); ++i) {
      stream_->Write(messages[i], this);
      if (!Done()) break;
    }
    stream_->WritesDone(this);
    Done();
    for (int i = 0; i < kMostReplies; ++i) {
      grpc::ByteBuffer reply;
      stream_->Read(&reply, this);
      if (!Done()) break;
    }
    context_.TryCancel();  // of a stream that would go on
    grpc::Status status;
    stream_->Finish(&status, this);
    Done();
    WEFT_FUZZ_EXPECT(streams_ || status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    WEFT_FUZZ_EXPECT(!queue_.Next(&tag, &ok));
    return status;
  }

 private:
  /// The last operation has ended; whether it did what it should.
  bool Done() {
    void* tag = nullptr;
    bool ok = false;
    WEFT_FUZZ_EXPECT(queue_.Next(&tag, &ok));
    return ok;
  }

  const bool streams_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

}  // namespace
}  // namespace weft::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::coordinator;
  std::string_view bytes = weft::fuzz::Text(data, size);
  std::string_view role_name = weft::fuzz::TakeUntil(bytes, '\n');
  const std::string_view name = weft::fuzz::TakeUntil(role_name, ' ');
  const Role role = RoleFromName(role_name).value_or(Role::kAdmin);
  const auto& method = MethodOf(name);
  const grpc::Status status =
      Call(Fresh().stub(), method, role).Run(Messages(bytes), method.client_streaming());
  const Verb* verb = FindVerb(method.name());  // null of a worker's call
  WEFT_FUZZ_EXPECT(verb == nullptr || May(role, *verb, /*own=*/true) || !status.ok());
  return 0;
}
