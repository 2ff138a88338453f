// Who may do what, as callers meet it.
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "common/env.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "common/sha256.h"
#include "coordinator/api/testing.h"
#include "proto/grpc_tls.h"

namespace weft::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const google::protobuf::ServiceDescriptor& Calls() {
  return *v1::SubmitJobRequest::descriptor()->file()->FindServiceByName("Coordinator");
}

/// One that nothing else is called.
constexpr char kTokenOfTess[] = "weft_5bd1e995c2b2ae35";

class AccessTest : public ApiTest {
 protected:
  void Prepare() override {
    for (const char* name : {"default", "research", "production"}) {
      options_.queues.queues.emplace_back().name = name;
    }
    WritePeople(R"(people:
- {name: viv, role: viewer, token_sha256: )" +
                Sha256Hex("viv") + R"(}
- {name: una, role: user, token_sha256: )" +
                Sha256Hex("una") + R"(}
- {name: otto, role: operator, token_sha256: )" +
                Sha256Hex("otto") + R"(}
- {name: ada, role: admin, token_sha256: )" +
                Sha256Hex("ada") + R"(}
- {name: tess, role: user, token_sha256: )" +
                Sha256Hex(kTokenOfTess) + R"(}
- {name: vera, role: viewer, queues: [research], token_sha256: )" +
                Sha256Hex("vera") + R"(}
- {name: quinn, role: user, queues: [research], token_sha256: )" +
                Sha256Hex("quinn") + R"(}
- {name: olga, role: operator, queues: [research], token_sha256: )" +
                Sha256Hex("olga") + R"(}
- {name: amos, role: admin, queues: [research], token_sha256: )" +
                Sha256Hex("amos") + "}\n");
    auto people = People::Open(dir_ / "people.yaml", Clock::System());
    ASSERT_TRUE(people.ok()) << people.status().message();
    security_.access.people = std::move(*people);
    security_.access.needs_deadlines = true;
  }
  void WritePeople(const std::string& text) const {
    std::ofstream(dir_ / "people.part") << text;
    std::filesystem::permissions(dir_ / "people.part", std::filesystem::perms(0600));
    std::filesystem::rename(dir_ / "people.part", dir_ / "people.yaml");
  }

  /// A context of the person with that token; "" shows none.
  static std::unique_ptr<grpc::ClientContext> As(const std::string& token,
                                                 milliseconds limit = seconds(10)) {
    auto context = std::make_unique<grpc::ClientContext>();
    if (!token.empty()) context->AddMetadata(kTokenMetadata, std::string(kTokenScheme) + token);
    context->set_deadline(std::chrono::system_clock::now() + limit);
    return context;
  }
  grpc::Status SubmitAs(const std::string& token, v1::SubmitJobResponse& response,
                        const std::string& queue = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec();
    if (!queue.empty()) request.mutable_spec()->mutable_scheduling()->set_queue(queue);
    request.set_client_request_id("r" + std::to_string(++requests_));
    return jobs_->SubmitJob(As(token).get(), request, &response);
  }
  std::string JobOf(const std::string& token, const std::string& queue = "") {
    v1::SubmitJobResponse response;
    const grpc::Status status = SubmitAs(token, response, queue);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }
  /// A job for one call: calls that change nothing share theirs.
  std::string JobFor(const Verb& verb, const std::string& token, const std::string& queue) {
    if (verb.changes) return JobOf(token, queue);
    std::string& job = shared_jobs_[token + " " + queue];
    if (job.empty()) job = JobOf(token, queue);
    return job;
  }

  /// Any call by its name, about a job.
  grpc::Status Call(const std::string& method, const std::string& token,
                    const std::string& job_id) {
    const auto* call = Calls().FindMethodByName(method);
    std::unique_ptr<google::protobuf::Message> request(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(call->input_type())
            ->New());
    for (const char* name : {"id", "job_id"}) {
      const auto* field = request->GetDescriptor()->FindFieldByName(name);
      if (field != nullptr) request->GetReflection()->SetString(request.get(), field, job_id);
    }
    grpc::Slice slice(request->SerializeAsString());
    const grpc::ByteBuffer bytes(&slice, 1);
    grpc::GenericStub stub(
        grpc::CreateChannel(coordinator_->address, grpc::InsecureChannelCredentials()));
    grpc::CompletionQueue queue;
    // A watch of a job that waits has no end.
    const auto context = As(token, method == "WatchJob" ? milliseconds(200) : seconds(10));
    auto reader =
        stub.PrepareUnaryCall(context.get(), "/weft.v1.Coordinator/" + method, bytes, &queue);
    reader->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    reader->Finish(&reply, &status, this);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return status;
  }
  v1::ListAuditRecordsResponse Audit(const std::string& who = "", const std::string& object = "") {
    v1::ListAuditRecordsRequest request;
    request.set_who(who);
    request.set_object(object);
    v1::ListAuditRecordsResponse response;
    const grpc::Status status = jobs_->ListAuditRecords(As("ada").get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  std::map<std::string, std::string> shared_jobs_;
};

TEST_F(AccessTest, EveryCallIsInTheTableOfRights) {
  ASSERT_EQ(Calls().method_count(), std::ssize(kVerbs));
  for (int i = 0; i < Calls().method_count(); ++i) {
    EXPECT_NE(FindVerb(Calls().method(i)->name()), nullptr) << Calls().method(i)->name();
  }
}

/// Whether a request names a job.
bool IsAboutAJob(const Verb& verb) {
  const auto& request = *Calls().FindMethodByName(std::string(verb.method))->input_type();
  return request.FindFieldByName("id") != nullptr || request.FindFieldByName("job_id") != nullptr;
}

// Through every cell: role, call, whose job it is about, and whether that is in a queue of theirs.
TEST_F(AccessTest, TheServerDoesWhatTheTableSays) {
  const std::pair<Role, std::string> callers[] = {{Role::kNobody, ""},
                                                  {Role::kViewer, "viv"},
                                                  {Role::kUser, "una"},
                                                  {Role::kOperator, "otto"},
                                                  {Role::kAdmin, "ada"}};
  int cells = 0;
  for (const Verb& verb : kVerbs) {
    for (const auto& [role, token] : callers) {
      for (const bool own : {true, false}) {
        // A viewer has no jobs.
        const bool can_own = role >= Role::kUser;
        if (own && !can_own) continue;
        const std::string job = JobFor(verb, own ? token : token == "ada" ? "otto" : "ada", "");
        const grpc::Status status = Call(std::string(verb.method), token, job);
        const std::string cell = std::string(verb.method) + " by " + std::string(Name(role)) +
                                 (own ? " on its own job: " : " on a job of others: ") +
                                 status.error_message();
        if (role == Role::kNobody) {
          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << cell;
        } else {
          EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED,
                    May(role, verb, own))
              << cell;
          EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << cell;
        }
        ++cells;
      }
    }
    // People of one queue: they may act on the jobs of others in it only.
    const std::pair<Role, std::string> of_research[] = {{Role::kViewer, "vera"},
                                                        {Role::kUser, "quinn"},
                                                        {Role::kOperator, "olga"},
                                                        {Role::kAdmin, "amos"}};
    for (const auto& [role, token] : of_research) {
      for (const char* queue : {"research", "production"}) {
        const bool theirs = queue == std::string("research");
        const grpc::Status status =
            Call(std::string(verb.method), token, JobFor(verb, "ada", queue));
        // The request of SubmitJob is empty, and so for the queue that they have no right to.
        const bool may =
            May(role, verb, false) && (theirs || !IsAboutAJob(verb)) && verb.method != "SubmitJob";
        EXPECT_EQ(status.error_code() != grpc::StatusCode::PERMISSION_DENIED, may)
            << verb.method << " by " << token << " on a job in " << queue << ": "
            << status.error_message();
        ++cells;
      }
    }
  }
  EXPECT_EQ(cells, 16 * std::ssize(kVerbs));
  RecordProperty("cells", cells);
}

struct Someone {
  Role role;
  std::string token;
  bool of_research;  ///< And of no other queue.
};

std::vector<Someone> Everyone() {
  return {{Role::kNobody, "", false},   {Role::kViewer, "viv", false},
          {Role::kUser, "una", false},  {Role::kOperator, "otto", false},
          {Role::kAdmin, "ada", false}, {Role::kViewer, "vera", true},
          {Role::kUser, "quinn", true}, {Role::kOperator, "olga", true},
          {Role::kAdmin, "amos", true}};
}

// A worker as the object, attached or not: its queues say nothing of a person's right to it.
TEST_F(AccessTest, WorkersAreChangedByThoseWhomTheTableNames) {
  const auto worker = Worker(FakeWorker::Hello("w"));
  ASSERT_TRUE(worker->Await(v1::CoordinatorMessage::kRegistered));
  const auto scheduling = [&] {
    v1::ListWorkersResponse workers;
    EXPECT_TRUE(jobs_->ListWorkers(As("ada").get(), {}, &workers).ok());
    EXPECT_EQ(workers.workers_size(), 1);
    return workers.workers(0).scheduling();
  };
  const auto set = [&](const std::string& token, const std::string& id, v1::WorkerScheduling to) {
    v1::SetWorkerSchedulingRequest request;
    request.set_worker_id(id);
    request.set_scheduling(to);
    request.set_why("test");
    v1::Worker changed;
    return jobs_->SetWorkerScheduling(As(token).get(), request, &changed).error_code();
  };
  int cells = 0;
  for (const auto& [role, token, of_research] : Everyone()) {
    const grpc::StatusCode refusal = role == Role::kNobody ? grpc::StatusCode::UNAUTHENTICATED
                                                           : grpc::StatusCode::PERMISSION_DENIED;
    const bool may_set = May(role, *FindVerb("SetWorkerScheduling"), true);
    EXPECT_EQ(set(token, "w", v1::CORDONED), may_set ? grpc::StatusCode::OK : refusal) << token;
    EXPECT_EQ(scheduling(), may_set ? v1::CORDONED : v1::SCHEDULABLE) << token;
    ASSERT_EQ(set("ada", "w", v1::SCHEDULABLE), grpc::StatusCode::OK);
    EXPECT_EQ(set(token, "unknown", v1::CORDONED), may_set ? grpc::StatusCode::NOT_FOUND : refusal)
        << token;
    const bool may_forget = May(role, *FindVerb("ForgetWorker"), true);
    for (const auto& [id, answer] : {std::pair("w", grpc::StatusCode::FAILED_PRECONDITION),
                                     std::pair("unknown", grpc::StatusCode::NOT_FOUND)}) {
      v1::ForgetWorkerRequest request;
      request.set_worker_id(id);
      v1::ForgetWorkerResponse response;
      EXPECT_EQ(jobs_->ForgetWorker(As(token).get(), request, &response).error_code(),
                may_forget ? answer : refusal)
          << id << " by " << token;
    }
    cells += 4;
  }
  RecordProperty("worker_cells", cells);
}

// A queue as the object: who submits a job to it, or moves one there.
TEST_F(AccessTest, PeopleOfOneQueuePutJobsIntoNoOther) {
  int cells = 0;
  for (const auto& [role, token, of_research] : Everyone()) {
    const grpc::StatusCode refusal = role == Role::kNobody ? grpc::StatusCode::UNAUTHENTICATED
                                                           : grpc::StatusCode::PERMISSION_DENIED;
    for (const char* queue : {"research", "production", "default"}) {
      const bool theirs = !of_research || queue == std::string("research");
      v1::SubmitJobResponse submitted;
      const bool may_submit = May(role, *FindVerb("SubmitJob"), true) && theirs;
      EXPECT_EQ(SubmitAs(token, submitted, queue).error_code(),
                may_submit ? grpc::StatusCode::OK : refusal)
          << token << " to " << queue;
      ++cells;
      for (const bool own : {true, false}) {
        if (own && role < Role::kUser) continue;
        v1::UpdateJobRequest move;
        move.set_id(JobOf(own ? token : token == "ada" ? "otto" : "ada", "research"));
        move.set_queue(queue);
        v1::Job job;
        const bool may_move = May(role, *FindVerb("UpdateJob"), own) && theirs;
        EXPECT_EQ(jobs_->UpdateJob(As(token).get(), move, &job).error_code(),
                  may_move ? grpc::StatusCode::OK : refusal)
            << token << " to " << queue << (own ? ", its own job" : ", a job of others");
        v1::GetJobRequest get;
        get.set_id(move.id());
        ASSERT_TRUE(jobs_->GetJob(As("ada").get(), get, &job).ok());
        EXPECT_EQ(job.queue(), may_move ? queue : "research") << token;
        ++cells;
      }
    }
  }
  RecordProperty("queue_cells", cells);
}

TEST_F(AccessTest, PeopleLearnWhoTheyAreAndNobodyElseDoes) {
  v1::WhoAmIResponse response;
  ASSERT_TRUE(jobs_->WhoAmI(As("quinn").get(), {}, &response).ok());
  EXPECT_EQ(response.name(), "quinn");
  EXPECT_EQ(response.role(), "user");
  EXPECT_THAT(response.queues(), ElementsAre("research"));
  const grpc::Status stranger = jobs_->WhoAmI(As("guess").get(), {}, &response);
  EXPECT_EQ(stranger.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(stranger.error_message(), AllOf(HasSubstr("hint:"), Not(HasSubstr("guess"))));
}

TEST_F(AccessTest, JobsBelongToWhoSubmittedThemAndQueuesAreThoseOfAPerson) {
  const std::string id = JobOf("una");
  v1::GetJobRequest get;
  get.set_id(id);
  v1::Job job;
  ASSERT_TRUE(jobs_->GetJob(As("viv").get(), get, &job).ok());
  EXPECT_EQ(job.owner(), "una");
  JobOf("ada");
  v1::ListJobsRequest list;
  list.set_owner("una");
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(jobs_->ListJobs(As("viv").get(), list, &jobs).ok());
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).owner(), "una");

  v1::SubmitJobResponse response;
  EXPECT_TRUE(SubmitAs("quinn", response, "research").ok());
  for (const char* queue : {"", "production"}) {
    const grpc::Status status = SubmitAs("quinn", response, queue);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("must not put jobs in queue"));
  }
  // By the beginning of its id, it is the same job.
  v1::CancelJobRequest cancel;
  cancel.set_id(id.substr(0, id.size() - 1));
  const grpc::Status status = jobs_->CancelJob(As("quinn").get(), cancel, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("job " + id + " is of 'una'"));
}

TEST_F(AccessTest, PrioritiesAboveThatOfTheQueueAreThoseOfAdmins) {
  for (QueueSpec& queue : options_.queues.queues) {
    if (queue.name == "research") queue.max_priority = 10;
  }
  Restart();
  const auto submit = [&](const std::string& token, const std::string& queue, int64_t priority) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec();
    request.mutable_spec()->mutable_scheduling()->set_queue(queue);
    request.mutable_spec()->mutable_scheduling()->set_priority(priority);
    request.set_client_request_id("r" + std::to_string(++requests_));
    v1::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(As(token).get(), request, &response);
    return std::pair(status, response.job().id());
  };
  const auto update = [&](const std::string& token, const std::string& id,
                          std::optional<int64_t> priority, const std::string& queue = "") {
    v1::UpdateJobRequest request;
    request.set_id(id);
    if (priority) request.set_priority(*priority);
    if (!queue.empty()) request.set_queue(queue);
    v1::Job job;
    return jobs_->UpdateJob(As(token).get(), request, &job);
  };
  const grpc::Status refused = submit("una", "research", 11).first;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("priority 11 is above the max_priority 10 of queue 'research'"));
  const auto [sound, id] = submit("una", "research", 10);
  ASSERT_TRUE(sound.ok()) << sound.error_message();
  for (const char* token : {"una", "otto"}) {
    EXPECT_EQ(update(token, id, 1000).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << token;
    EXPECT_TRUE(update(token, id, -3).ok()) << token;
  }
  EXPECT_TRUE(update("ada", id, 1000).ok());
  EXPECT_TRUE(submit("amos", "research", 500).first.ok());
  // Nor does a job bring its priority along from a queue that allows it.
  const auto [free, other] = submit("una", "production", 1000);
  ASSERT_TRUE(free.ok()) << free.error_message();
  EXPECT_EQ(update("una", other, std::nullopt, "research").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(update("una", other, 10, "research").ok());
}

TEST_F(AccessTest, ARequestIdOfAnotherPersonSaysNothingOfItsJob) {
  const auto submit = [&](const std::string& token, int64_t layers) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec();
    request.mutable_spec()->mutable_model()->set_layers(layers);
    request.set_client_request_id("same");
    v1::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(As(token).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::pair(response.job().id(), response.already_submitted());
  };
  const auto [of_otto, first] = submit("otto", 2);
  EXPECT_FALSE(first);
  for (const int64_t layers : {2, 3}) {
    const auto [id, already] = submit(layers == 2 ? "una" : kTokenOfTess, layers);
    EXPECT_FALSE(already);
    EXPECT_NE(id, of_otto);
  }
  EXPECT_EQ(submit("otto", 2), std::pair(of_otto, true));
}

TEST_F(AccessTest, ABeginningThatBecomesThatOfAnothersJobDoesNothingToIt) {
  const std::string own = JobOf("una"), other = JobOf("otto");
  v1::Job job;
  v1::CancelJobRequest cancel;
  cancel.set_id("tiny-");
  const grpc::Status ambiguous = jobs_->CancelJob(As("una").get(), cancel, &job);
  EXPECT_EQ(ambiguous.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(ambiguous.error_message(), HasSubstr("is the beginning of several jobs"));
  cancel.set_id(own);
  ASSERT_TRUE(jobs_->CancelJob(As("una").get(), cancel, &job).ok());
  // While una's own job is deleted, "tiny-" becomes otto's.
  cancel.set_id("tiny-");
  std::vector<std::thread> burst;
  std::atomic<int> done{0};
  for (int i = 0; i < 4; ++i) {
    burst.emplace_back([&] {
      for (int call = 0; call < 25; ++call) {
        v1::Job none;
        if (jobs_->CancelJob(As("una").get(), cancel, &none).ok()) ++done;
      }
    });
  }
  v1::DeleteJobRequest forget;
  forget.set_id(own);
  v1::DeleteJobResponse deleted;
  EXPECT_TRUE(jobs_->DeleteJob(As("una").get(), forget, &deleted).ok());
  for (std::thread& each : burst) each.join();
  EXPECT_EQ(done, 0);
  EXPECT_EQ(jobs_->CancelJob(As("una").get(), cancel, &job).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::GetJobRequest get;
  get.set_id("tiny-");
  ASSERT_TRUE(jobs_->GetJob(As("una").get(), get, &job).ok());
  EXPECT_EQ(job.id(), other);
  EXPECT_EQ(job.state(), v1::QUEUED);
}

TEST_F(AccessTest, OfOtherQueuesPeopleHaveTheirOwnJobsAlone) {
  v1::CancelJobRequest cancel;
  cancel.set_id(JobOf("una", "production"));
  v1::Job job;
  grpc::Status status = jobs_->CancelJob(As("olga").get(), cancel, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("job " + cancel.id() +
                        " is of 'una' and in queue 'production', which is none of yours"));
  v1::StreamLogsRequest logs;
  logs.set_id(cancel.id());
  const auto read_as = [&](const std::string& token) {
    const auto context = As(token);
    auto stream = jobs_->StreamLogs(context.get(), logs);
    v1::LogLine line;
    while (stream->Read(&line)) {
    }
    return stream->Finish().error_code();
  };
  EXPECT_EQ(read_as("vera"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(read_as("viv"), grpc::StatusCode::OK);
  // By the queue that a job is in now.
  v1::UpdateJobRequest move;
  move.set_id(cancel.id());
  move.set_queue("research");
  ASSERT_TRUE(jobs_->UpdateJob(As("ada").get(), move, &job).ok());
  EXPECT_EQ(read_as("vera"), grpc::StatusCode::OK);
  EXPECT_TRUE(jobs_->CancelJob(As("olga").get(), cancel, &job).ok());
  // A job of one's own stays so.
  cancel.set_id(JobOf("quinn", "research"));
  move.set_id(cancel.id());
  move.set_queue("production");
  ASSERT_TRUE(jobs_->UpdateJob(As("ada").get(), move, &job).ok());
  status = jobs_->CancelJob(As("quinn").get(), cancel, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(AccessTest, ChangesAndRefusalsAreInTheAuditLogWhoseChainHolds) {
  const std::string id = JobOf("una");
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  v1::Job job;
  EXPECT_FALSE(jobs_->CancelJob(As("viv").get(), cancel, &job).ok());
  EXPECT_FALSE(jobs_->CancelJob(As("wrong").get(), cancel, &job).ok());
  EXPECT_TRUE(jobs_->CancelJob(As("una").get(), cancel, &job).ok());
  v1::RetryJobRequest none;
  none.set_id("no-such-job");
  EXPECT_FALSE(jobs_->RetryJob(As("una").get(), none, &job).ok());
  v1::ListWorkersResponse workers;
  EXPECT_TRUE(jobs_->ListWorkers(As("una").get(), {}, &workers).ok()) << "looking is not recorded";

  const v1::ListAuditRecordsResponse log = Audit();
  EXPECT_TRUE(log.chain_holds());
  std::vector<std::string> shown;
  for (const v1::AuditRecord& record : log.records()) {
    EXPECT_EQ(record.sequence(), std::ssize(shown) + 1);
    EXPECT_THAT(record.peer(), HasSubstr("127.0.0.1"));
    EXPECT_THAT(record.hash(), SizeIs(64));
    shown.push_back(record.who() + " " + record.role() + " " + record.method() + " " +
                    record.object() + " " + record.result());
  }
  EXPECT_THAT(shown, ElementsAre("una user SubmitJob " + id + " OK",
                                 "viv viewer CancelJob " + id + " PERMISSION_DENIED",
                                 " nobody CancelJob " + id + " UNAUTHENTICATED",
                                 "una user CancelJob " + id + " OK",
                                 "una user RetryJob no-such-job NOT_FOUND"));
  EXPECT_EQ(Audit("viv").records_size(), 1);
  EXPECT_EQ(Audit("", id).records_size(), 4);
  EXPECT_EQ(coordinator_->Metric("weft_coord_audit_events_total"), 5);
  EXPECT_EQ(coordinator_->Metric("weft_rpc_auth_failures_total"), 2);
  // They are kept.
  Restart();
  EXPECT_EQ(Audit().records_size(), 5);
}

TEST_F(AccessTest, ACallWhoseRecordIsLostFailsAndChangesNothing) {
  const auto calibrate = [&](bool dry_run) {
    v1::CalibratePlansRequest request;
    request.set_dry_run(dry_run);
    request.set_reset(!dry_run);
    v1::CalibratePlansResponse response;
    return jobs_->CalibratePlans(As("otto").get(), request, &response).error_code();
  };
  ASSERT_TRUE(SetFailpoints("coordinator.store.before_commit=full").ok());
  for (const bool dry_run : {true, false}) {
    EXPECT_EQ(calibrate(dry_run), grpc::StatusCode::RESOURCE_EXHAUSTED) << dry_run;
  }
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_EQ(Audit("otto").records_size(), 0);
  EXPECT_EQ(calibrate(true), grpc::StatusCode::OK);
  EXPECT_EQ(calibrate(false), grpc::StatusCode::OK);
  EXPECT_EQ(Audit("otto").records_size(), 2) << "one for each call";
}

TEST_F(AccessTest, NeitherLogsNorFilesHoldTokensOrTheSecretOfAnAttempt) {
  const std::string guess = "weft_27d4eb2f165667b1";
  const std::string secret = "the secret of the ranks 9e3779b9";
  InitLog("coordinator", LogLevel::kDebug);
  testing::internal::CaptureStderr();
  auto worker = Worker(FakeWorker::Hello("w"));
  const std::string job = JobOf(kTokenOfTess);
  v1::WhoAmIResponse who;
  EXPECT_FALSE(jobs_->WhoAmI(As(guess).get(), {}, &who).ok());
  ASSERT_TRUE(worker->Await(kStart));
  v1::WorkerMessage message;
  message.mutable_store()->set_request_id(1);
  message.mutable_store()->set_job_id(job);
  message.mutable_store()->set_epoch(1);
  message.mutable_store()->mutable_set()->set_key("token");
  message.mutable_store()->mutable_set()->set_value(secret);
  worker->Send(message);
  message.mutable_store()->set_request_id(2);
  message.mutable_store()->mutable_get()->set_key("token");
  message.mutable_store()->mutable_get()->set_timeout_seconds(5);
  worker->Send(message);
  std::optional<v1::CoordinatorMessage> reply;
  do {
    reply = worker->Await(v1::CoordinatorMessage::kStore);
  } while (reply && reply->store().request_id() != 2);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->store().value(), secret);
  worker.reset();
  coordinator_.reset();
  std::map<std::string, std::string> texts = {{"the log", testing::internal::GetCapturedStderr()}};
  EXPECT_THAT(texts["the log"], HasSubstr(job)) << "it is the log of this job";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
    if (!entry.is_regular_file()) continue;
    const Result<std::string> text = ReadFile(Env::Posix(), entry.path());
    ASSERT_TRUE(text.ok()) << text.status().message();
    texts[entry.path()] = *text;
  }
  EXPECT_TRUE(texts.contains((dir_ / "weft.db").string()));
  for (const auto& [name, text] : texts) {
    for (const std::string& hidden : {std::string(kTokenOfTess), guess, secret}) {
      EXPECT_EQ(text.find(hidden), std::string::npos) << hidden << " in " << name;
    }
  }
}

TEST_F(AccessTest, LimitsArePerPersonAndSayWhatToDo) {
  security_.access.calls_per_second = 1;
  security_.access.calls_at_once = 5;
  security_.access.jobs_per_person = 2;
  Restart();
  JobOf("una");
  JobOf("una");
  v1::SubmitJobResponse response;
  grpc::Status status = SubmitAs("una", response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("has 2 jobs"), HasSubstr("hint:")));
  requests_ -= 2;
  EXPECT_TRUE(SubmitAs("una", response).ok()) << "who asks again has that job already";
  EXPECT_TRUE(response.already_submitted());
  JobOf("otto");
  v1::WhoAmIResponse who;
  status = grpc::Status::OK;
  for (int i = 0; i < 200 && status.ok(); ++i) {
    status = jobs_->WhoAmI(As("una").get(), {}, &who);
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("calls per second"), HasSubstr("hint:")));
  EXPECT_TRUE(jobs_->WhoAmI(As("viv").get(), {}, &who).ok());
  EXPECT_GE(coordinator_->Metric("weft_rpc_rate_limited_total"), 2);
}

TEST_F(AccessTest, GuessingTokensIsSlowedDown) {
  v1::WhoAmIResponse who;
  grpc::StatusCode code = grpc::StatusCode::UNAUTHENTICATED;
  int guesses = 0;
  for (; guesses < 1000 && code == grpc::StatusCode::UNAUTHENTICATED; ++guesses) {
    code = jobs_->WhoAmI(As("guess" + std::to_string(guesses)).get(), {}, &who).error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GT(guesses, 50);
  EXPECT_TRUE(jobs_->WhoAmI(As("una").get(), {}, &who).ok()) << "who is known still gets in";
}

TEST_F(AccessTest, ACallThatChangesSomethingNeedsADeadline) {
  const std::string id = JobOf("una");
  grpc::ClientContext context;
  context.AddMetadata(kTokenMetadata, "Bearer una");
  v1::CancelJobRequest cancel;
  cancel.set_id(id);
  v1::Job job;
  const grpc::Status status = jobs_->CancelJob(&context, cancel, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("needs a deadline"));
}

TEST_F(AccessTest, AChangeOfTheFileOfPeopleCountsAtOnce) {
  v1::WhoAmIResponse who;
  EXPECT_TRUE(jobs_->WhoAmI(As("una").get(), {}, &who).ok());
  WritePeople("people:\n- {name: ada, role: admin, token_sha256: " + Sha256Hex("ada") + "}\n");
  bool out = false;
  for (int i = 0; i < 100 && !out; ++i) {
    std::this_thread::sleep_for(milliseconds(30));
    out = !jobs_->WhoAmI(As("una").get(), {}, &who).ok();
  }
  EXPECT_TRUE(out);
  EXPECT_TRUE(jobs_->WhoAmI(As("ada").get(), {}, &who).ok());
}

}  // namespace
}  // namespace weft::coordinator
