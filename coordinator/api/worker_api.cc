#include "coordinator/api/worker_api.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "common/log.h"
#include "coordinator/api/convert.h"
#include "proto/grpc_status.h"
#include "proto/grpc_tls.h"

namespace weft::coordinator {
namespace {

/// Which worker a certificate names.
struct WorkerIdentity {
  bool needed = false;
  std::string certificate;  ///< Name in it; empty: no certificate of a worker.
  std::string serial;       ///< Of the certificate; empty: none.
  std::string peer;

  /// Why that worker is not to attach by it; empty: it may.
  std::string WhyNot(const std::string& worker_id) const {
    if (!needed || certificate == worker_id) return "";
    return "worker '" + worker_id + "' needs a certificate of its own, but shows " +
           (certificate.empty() ? "none of a worker" : "that of '" + certificate + "'") +
           "; hint: weft certs issue DIR worker " + worker_id;
  }
};

/// One stream. Lives until gRPC is done with it and the service has let go of the link.
class AttachStream : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>,
                     public WorkerLink,
                     public std::enable_shared_from_this<AttachStream> {
 public:
  AttachStream(Service& service, Metrics& metrics, AuditedCalls& calls, Admission& admission,
               WorkerIdentity identity)
      : service_(service),
        metrics_(metrics),
        calls_(calls),
        admission_(admission),
        identity_(std::move(identity)) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      service_.Detach(shared_from_this());
      End(grpc::Status::OK);
      return;
    }
    if (Status status = Handle(); !status.ok()) {
      WEFT_LOG_WARNING << "a worker's message is refused: " << status.message();
      service_.Detach(shared_from_this());
      End(ToGrpcStatus(status));
      return;
    }
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    writing_ = false;
    if (!ok) outgoing_.clear();
    Pump();
  }

  void OnCancel() override {
    service_.Detach(shared_from_this());
    End(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    metrics_.RpcHandled("WorkerService", "Attach", "OK");
    std::shared_ptr<AttachStream> last = std::move(self_);
  }

  void SendRegistered(double lease_seconds, double heartbeat_seconds,
                      const std::vector<AttemptKey>& adopted) override {
    v1::CoordinatorMessage message;
    v1::Registered& registered = *message.mutable_registered();
    registered.set_lease_seconds(lease_seconds);
    registered.set_heartbeat_seconds(heartbeat_seconds);
    for (const AttemptKey& key : adopted) {
      v1::AttemptKey& item = *registered.add_adopted();
      item.set_job_id(key.job_id);
      item.set_epoch(key.epoch);
    }
    Send(std::move(message));
  }

  void Refuse(const std::string& why) override {
    WEFT_LOG_WARNING << "a worker is refused: " << why;
    v1::CoordinatorMessage message;
    message.mutable_registered()->set_refused(why);
    Send(std::move(message));
    Close();
  }

  void AckHeartbeat(int64_t sequence) override {
    v1::CoordinatorMessage message;
    message.mutable_heartbeat_ack()->set_sequence(sequence);
    Send(std::move(message));
  }

  void Start(const StartOrder& order) override {
    v1::CoordinatorMessage message;
    *message.mutable_start() = ToMessage(order);
    Send(std::move(message));
  }

  void Stop(const std::string& job_id, int64_t epoch, bool graceful) override {
    v1::CoordinatorMessage message;
    v1::StopAttempt& stop = *message.mutable_stop();
    stop.set_job_id(job_id);
    stop.set_epoch(epoch);
    stop.set_graceful(graceful);
    Send(std::move(message));
  }

  void SetMembership(const MembershipOrder& order) override {
    v1::CoordinatorMessage message;
    *message.mutable_membership() = ToMessage(order);
    Send(std::move(message));
  }

  void AckReport(const std::string& job_id, const PlacementReport& report) override {
    v1::CoordinatorMessage message;
    v1::AttemptAck& ack = *message.mutable_attempt_ack();
    ack.set_job_id(job_id);
    ack.set_epoch(report.epoch);
    ack.set_state(ToMessage(report.event));
    if (report.first_rank) ack.set_first_rank(static_cast<int32_t>(*report.first_rank));
    Send(std::move(message));
  }

  void AckLogs(const LogAppend& logs, int64_t position) override {
    v1::CoordinatorMessage message;
    v1::LogAck& ack = *message.mutable_log_ack();
    ack.set_job_id(logs.job_id);
    ack.set_epoch(logs.epoch);
    ack.set_first_rank(static_cast<int32_t>(logs.first_rank));
    ack.set_sequence(position);
    Send(std::move(message));
  }

  void ReplyStore(int64_t request_id, const Result<std::string>& value) override {
    v1::CoordinatorMessage message;
    v1::StoreReply& reply = *message.mutable_store();
    reply.set_request_id(request_id);
    if (value.ok()) {
      reply.set_value(*value);
    } else {
      reply.set_error(value.status().message());
    }
    Send(std::move(message));
  }

  void Profile(int64_t request_id, const AttemptKey& attempt, int64_t steps) override {
    v1::CoordinatorMessage message;
    v1::ProfileAttempt& request = *message.mutable_profile();
    request.set_request_id(request_id);
    request.set_job_id(attempt.job_id);
    request.set_epoch(attempt.epoch);
    request.set_steps(static_cast<int32_t>(steps));
    Send(std::move(message));
  }

  void MeasureLink(const LinkOrder& order) override {
    v1::CoordinatorMessage message;
    *message.mutable_measure() = ToMessage(order);
    Send(std::move(message));
  }

  void CheckHealth(int64_t request_id, double limit_seconds) override {
    v1::CoordinatorMessage message;
    v1::CheckHealth& request = *message.mutable_check_health();
    request.set_request_id(request_id);
    request.set_limit_seconds(limit_seconds);
    Send(std::move(message));
  }

  void Close() override {
    std::lock_guard lock(mutex_);
    closing_ = true;
    Pump();
  }

 private:
  Status Handle() {
    std::shared_ptr<WorkerLink> link = shared_from_this();
    if (!registered_ != incoming_.has_register_()) {
      return InvalidError("the first message of a stream, and no other, must be register");
    }
    // One that attaches hears more of it below.
    if (registered_ && admission_.IsRevoked(identity_.serial)) {
      return DeniedError("the certificate of worker '" + identity_.certificate + "' was revoked");
    }
    switch (incoming_.message_case()) {
      case v1::WorkerMessage::kRegister: {
        registered_ = true;
        WEFT_ASSIGN_OR_RETURN(WorkerHello hello, FromMessage(incoming_.register_()));
        if (admission_.IsRevoked(identity_.serial)) {
          RefuseIdentity(hello.worker_id, "the certificate of worker '" + identity_.certificate +
                                              "' was revoked; hint: weft certs issue DIR worker " +
                                              hello.worker_id + " makes a new one");
          return OkStatus();
        }
        if (const std::string why = identity_.WhyNot(hello.worker_id); !why.empty()) {
          RefuseIdentity(hello.worker_id, why);
          return OkStatus();
        }
        service_.Attach(link, std::move(hello));
        return OkStatus();
      }
      case v1::WorkerMessage::kHeartbeat: {
        WEFT_ASSIGN_OR_RETURN(auto running, FromMessage(incoming_.heartbeat().running()));
        std::map<int64_t, std::string> broken;
        for (const v1::BrokenDevice& device : incoming_.heartbeat().broken_devices()) {
          broken[device.index()] = device.why();
        }
        if (!broken.empty()) service_.BreakDevices(link, std::move(broken));
        service_.Heartbeat(link, incoming_.heartbeat().sequence(), std::move(running),
                           incoming_.heartbeat().draining());
        return OkStatus();
      }
      case v1::WorkerMessage::kAttempt: {
        WEFT_ASSIGN_OR_RETURN(PlacementReport report, FromMessage(incoming_.attempt()));
        service_.Report(link, incoming_.attempt().job_id(), std::move(report));
        return OkStatus();
      }
      case v1::WorkerMessage::kLogs:
        service_.AppendLogs(link, FromMessage(incoming_.logs()));
        return OkStatus();
      case v1::WorkerMessage::kCheckpoint: {
        const v1::CheckpointReport& report = incoming_.checkpoint();
        std::optional<int64_t> resume_step;
        if (report.has_resume_step()) resume_step = report.resume_step();
        service_.ReportCheckpoint(link, FromMessage(report.checkpoint()), resume_step);
        return OkStatus();
      }
      case v1::WorkerMessage::kStore: {
        v1::StoreRequest& request = *incoming_.mutable_store();
        AttemptKey attempt{request.job_id(), request.epoch()};
        if (request.has_set()) {
          service_.StoreSet(link, request.request_id(), attempt, request.set().key(),
                            std::move(*request.mutable_set()->mutable_value()));
        } else {
          service_.StoreGet(link, request.request_id(), attempt, request.get().key(),
                            request.get().timeout_seconds());
        }
        return OkStatus();
      }
      case v1::WorkerMessage::kProfile: {
        const v1::ProfileReply& reply = incoming_.profile();
        Result<std::string> report = reply.report_json();
        if (!reply.error().empty()) report = ConflictError(reply.error());
        service_.ReportProfile(link, reply.request_id(), std::move(report));
        return OkStatus();
      }
      case v1::WorkerMessage::kLink:
        service_.ReportLink(link, FromMessage(incoming_.link()));
        return OkStatus();
      case v1::WorkerMessage::kHealth:
        service_.ReportHealth(link, FromMessage(incoming_.health()));
        return OkStatus();
      case v1::WorkerMessage::MESSAGE_NOT_SET:
        return OkStatus();  // of a newer worker; it may say more than this version knows
    }
    return OkStatus();
  }

  void RefuseIdentity(const std::string& worker_id, const std::string& why) {
    const std::string code = NameOf(grpc::StatusCode::PERMISSION_DENIED);
    metrics_.AuthFailed("Attach", code);
    Caller caller;
    caller.peer = identity_.peer;
    if (!admission_.Records(caller)) return Refuse(why);
    auto call = std::make_shared<CallRecord>();
    call->record.time = Clock::System().UnixSeconds();
    call->record.who = identity_.certificate;
    call->record.role = "worker";
    call->record.peer = identity_.peer;
    call->record.method = "Attach";
    call->record.object = worker_id;
    call->record.result = code;
    calls_.Store(std::move(call),
                 [self = shared_from_this(), why](const Status&) { self->Refuse(why); });
  }

  void Send(v1::CoordinatorMessage message) {
    std::lock_guard lock(mutex_);
    if (ended_ || closing_) return;
    outgoing_.push_back(std::move(message));
    Pump();
  }

  /// Needs mutex_.
  void Pump() {
    if (ended_ || writing_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      ended_ = true;
      Finish(grpc::Status::OK);
    }
  }

  void End(const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    Finish(status);
  }

  Service& service_;
  Metrics& metrics_;
  AuditedCalls& calls_;
  Admission& admission_;
  const WorkerIdentity identity_;
  v1::WorkerMessage incoming_;
  bool registered_ = false;
  std::shared_ptr<AttachStream> self_;  // until OnDone

  std::mutex mutex_;
  std::deque<v1::CoordinatorMessage> outgoing_;
  bool writing_ = false;
  bool closing_ = false;
  bool ended_ = false;
};

}  // namespace

grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* WorkerApi::Attach(
    grpc::CallbackServerContext* context) {
  WorkerIdentity identity{tls_, tls::NameIn(PeerUris(*context), "worker"), PeerSerial(*context),
                          context->peer()};
  auto stream =
      std::make_shared<AttachStream>(service_, metrics_, calls_, admission_, std::move(identity));
  stream->Begin();
  return stream.get();
}

}  // namespace weft::coordinator
