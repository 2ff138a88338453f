#include "coordinator/api/job_streams.h"

#include <deque>
#include <memory>
#include <mutex>

#include "coordinator/api/convert.h"
#include "proto/grpc_status.h"

namespace weft::coordinator {
namespace {

/// A stream that writes one message at a time and looks for the next when the last is out, or when
/// it is woken. Lives until gRPC is done with it.
template <class Message>
class PulledStream : public grpc::ServerWriteReactor<Message>,
                     public std::enable_shared_from_this<PulledStream<Message>> {
 public:
  PulledStream(Metrics& metrics, const char* method) : metrics_(metrics), method_(method) {}

  /// Keeps itself alive, watches `notifier` and writes the first message.
  void Begin(Notifier& notifier, const std::string& key) {
    self_ = this->shared_from_this();
    watch_ = notifier.Add(key, [weak = this->weak_from_this()] {
      if (auto stream = weak.lock()) stream->Wake();
    });
    Wake();
  }
  void Fail(const Status& status) {
    self_ = this->shared_from_this();
    std::lock_guard lock(mutex_);
    End(ToGrpcStatus(status));
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) {
      End(grpc::Status::CANCELLED);
    } else {
      Pump();
    }
  }
  void OnCancel() override {
    std::lock_guard lock(mutex_);
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    watch_.reset();
    metrics_.RpcHandled("Coordinator", method_, code_);
    std::shared_ptr<PulledStream> last = std::move(self_);
  }

 protected:
  enum class Next { kMessage, kNothingYet, kEnd };

  /// Fills `message` if there is one to send. Called with the lock held, `woken` when something
  /// changed since the last kNothingYet.
  virtual Result<Next> Pull(bool woken, Message& message) = 0;

 private:
  void Wake() {
    std::lock_guard lock(mutex_);
    woken_ = true;
    Pump();
  }
  void Pump() {
    if (writing_ || ended_) return;
    bool woken = std::exchange(woken_, false);
    Result<Next> next = Pull(woken, message_);
    if (!next.ok()) {
      End(ToGrpcStatus(next.status()));
    } else if (*next == Next::kEnd) {
      End(grpc::Status::OK);
    } else if (*next == Next::kMessage) {
      writing_ = true;
      this->StartWrite(&message_);
    }
  }
  void End(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    code_ = std::string(StatusCodeName(FromGrpcStatus(status).code()));
    this->Finish(status);
  }

  Metrics& metrics_;
  const char* method_;
  std::string code_ = "OK";
  std::unique_ptr<Notifier::Watch> watch_;
  std::shared_ptr<PulledStream> self_;

  std::mutex mutex_;
  Message message_;
  bool writing_ = false;
  bool ended_ = false;
  bool woken_ = false;
};

class JobWatch : public PulledStream<v1::JobUpdate> {
 public:
  JobWatch(Service& service, Metrics& metrics, std::string id)
      : PulledStream(metrics, "WatchJob"), service_(service), id_(std::move(id)) {}

 private:
  Result<Next> Pull(bool woken, v1::JobUpdate& message) override {
    if (ended_job_) return Next::kEnd;
    if (!woken) return Next::kNothingYet;
    WEFT_ASSIGN_OR_RETURN(JobView view, service_.Get(id_));
    *message.mutable_job() = ToMessage(view);
    ended_job_ = IsTerminal(view.job.state);
    return Next::kMessage;
  }

  Service& service_;
  std::string id_;
  bool ended_job_ = false;
};

class LogStream : public PulledStream<v1::LogLine> {
 public:
  LogStream(Service& service, Metrics& metrics, LogQuery query, bool follow)
      : PulledStream(metrics, "StreamLogs"),
        service_(service),
        query_(std::move(query)),
        follow_(follow) {}

 private:
  Result<Next> Pull(bool, v1::LogLine& message) override {
    if (lines_.empty()) {
      // The state before the lines: what an ended job has written is then surely read.
      bool ended = !follow_;
      if (follow_) {
        WEFT_ASSIGN_OR_RETURN(JobRecord job, service_.store().GetJob(query_.job_id));
        ended = IsTerminal(job.state);
      }
      WEFT_ASSIGN_OR_RETURN(std::vector<LogRecord> lines, service_.store().ReadLogs(query_));
      if (lines.empty()) return ended ? Next::kEnd : Next::kNothingYet;
      lines_.assign(std::make_move_iterator(lines.begin()), std::make_move_iterator(lines.end()));
      query_.after_sequence = lines_.back().sequence;
    }
    message = ToMessage(lines_.front());
    lines_.pop_front();
    return Next::kMessage;
  }

  Service& service_;
  LogQuery query_;
  bool follow_;
  std::deque<LogRecord> lines_;
};

}  // namespace

grpc::ServerWriteReactor<v1::JobUpdate>* NewJobWatch(Service& service, Metrics& metrics,
                                                     const std::string& job_id) {
  auto stream = std::make_shared<JobWatch>(service, metrics, job_id);
  stream->Begin(service.job_changes(), job_id);
  return stream.get();
}

grpc::ServerWriteReactor<v1::LogLine>* NewLogStream(Service& service, Metrics& metrics,
                                                    const v1::StreamLogsRequest& request) {
  LogQuery query;
  query.job_id = request.id();
  query.after_sequence = request.after_sequence();
  if (request.has_rank()) query.rank = request.rank();
  if (request.has_epoch()) query.epoch = request.epoch();
  Status status = service.store().OwnerOf(query.job_id).status();
  if (status.ok() && request.tail() > 0) {
    Result<int64_t> cursor = service.store().TailCursor(query, request.tail());
    status = cursor.status();
    if (status.ok()) query.after_sequence = *cursor;
  }
  auto stream = std::make_shared<LogStream>(service, metrics, query, request.follow());
  if (status.ok()) {
    stream->Begin(service.log_changes(), request.id());
  } else {
    stream->Fail(status);
  }
  return stream.get();
}

}  // namespace weft::coordinator
