#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/v1/worker.grpc.pb.h"

namespace weft::daemon {

/// A coordinator for one worker, in this process: records what the worker says, answers as told.
class FakeCoordinator : private v1::WorkerService::Service {
 public:
  double lease_seconds = 5;
  double heartbeat_seconds = 0.05;
  std::string refuse;
  std::atomic<bool> answer_registrations{true};
  std::atomic<bool> acknowledge_heartbeats{true};
  std::atomic<bool> acknowledge_logs{true};
  std::atomic<bool> acknowledge_reports{true};
  std::vector<v1::AttemptKey> adopt;

  ~FakeCoordinator() override { Stop(); }

  /// Serves; the same port again after a Stop.
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  void Send(const v1::CoordinatorMessage& message) {
    std::lock_guard lock(mutex_);
    if (stream_ != nullptr) stream_->Write(message);
  }

  /// Waits up to ten seconds for a message, old or new, that `wanted` accepts.
  std::optional<v1::WorkerMessage> WaitFor(
      const std::function<bool(const v1::WorkerMessage&)>& wanted) {
    std::unique_lock lock(mutex_);
    std::optional<v1::WorkerMessage> found;
    changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      for (const v1::WorkerMessage& message : messages_) {
        if (wanted(message)) {
          found = message;
          return true;
        }
      }
      return false;
    });
    return found;
  }
  std::optional<v1::AttemptReport> WaitForReport(const std::string& job, int64_t epoch,
                                                 v1::AttemptState state) {
    auto message = WaitFor([&](const v1::WorkerMessage& m) {
      return m.attempt().job_id() == job && m.attempt().epoch() == epoch &&
             m.attempt().state() == state;
    });
    if (!message) return std::nullopt;
    return message->attempt();
  }
  void ForgetMessages() {
    std::lock_guard lock(mutex_);
    messages_.clear();
  }
  std::vector<v1::WorkerMessage> Messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  /// Texts of the lines received of an attempt, in order, each position once.
  std::vector<std::string> Lines(const std::string& job) {
    std::lock_guard lock(mutex_);
    return lines_[job];
  }

 private:
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

  grpc::Status Attach(grpc::ServerContext*, Stream* stream) override {
    {
      std::lock_guard lock(mutex_);
      stream_ = stream;
    }
    v1::WorkerMessage message;
    while (stream->Read(&message)) {
      v1::CoordinatorMessage reply;
      if (message.has_register_() && answer_registrations) {
        reply.mutable_registered()->set_lease_seconds(lease_seconds);
        reply.mutable_registered()->set_heartbeat_seconds(heartbeat_seconds);
        reply.mutable_registered()->set_refused(refuse);
        for (const v1::AttemptKey& key : adopt) *reply.mutable_registered()->add_adopted() = key;
      } else if (message.has_heartbeat() && acknowledge_heartbeats) {
        reply.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
      } else if (message.has_logs()) {
        int64_t last = Store(message.logs());
        if (acknowledge_logs) {
          reply.mutable_log_ack()->set_job_id(message.logs().job_id());
          reply.mutable_log_ack()->set_epoch(message.logs().epoch());
          reply.mutable_log_ack()->set_sequence(last);
        }
      } else if (message.has_attempt() && acknowledge_reports) {
        reply.mutable_attempt_ack()->set_job_id(message.attempt().job_id());
        reply.mutable_attempt_ack()->set_epoch(message.attempt().epoch());
        reply.mutable_attempt_ack()->set_state(message.attempt().state());
        if (message.attempt().has_first_rank()) {
          reply.mutable_attempt_ack()->set_first_rank(message.attempt().first_rank());
        }
      } else if (message.has_store()) {
        Answer(message.store(), reply);
      }
      std::lock_guard lock(mutex_);
      messages_.push_back(message);
      changed_.notify_all();
      if (reply.message_case() != v1::CoordinatorMessage::MESSAGE_NOT_SET) stream->Write(reply);
    }
    std::lock_guard lock(mutex_);
    if (stream_ == stream) stream_ = nullptr;
    return grpc::Status::OK;
  }

  int64_t Store(const v1::LogBatch& batch) {
    std::lock_guard lock(mutex_);
    std::vector<std::string>& lines = lines_[batch.job_id()];
    for (int i = 0; i < batch.lines_size(); ++i) {
      if (batch.first_sequence() + i == static_cast<int64_t>(lines.size()) + 1) {
        lines.push_back(batch.lines(i).text());
      }
    }
    return static_cast<int64_t>(lines.size());
  }

  /// A get that comes before its set waits for it.
  void Answer(const v1::StoreRequest& request, v1::CoordinatorMessage& reply) {
    std::lock_guard lock(mutex_);
    if (request.has_set()) {
      values_[request.set().key()] = request.set().value();
      for (const v1::StoreRequest& waiting : gets_) {
        if (waiting.get().key() != request.set().key()) continue;
        v1::CoordinatorMessage late;
        late.mutable_store()->set_request_id(waiting.request_id());
        late.mutable_store()->set_value(request.set().value());
        stream_->Write(late);
      }
    } else if (!values_.contains(request.get().key())) {
      gets_.push_back(request);
      return;
    }
    reply.mutable_store()->set_request_id(request.request_id());
    if (request.has_get()) reply.mutable_store()->set_value(values_[request.get().key()]);
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Stream* stream_ = nullptr;
  std::vector<v1::WorkerMessage> messages_;
  std::map<std::string, std::vector<std::string>> lines_;
  std::map<std::string, std::string> values_;
  std::vector<v1::StoreRequest> gets_;
};

}  // namespace weft::daemon
