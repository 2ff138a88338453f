#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "common/status.h"
#include "common/tls/certificate.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::daemon {

/// One Attach stream, from dialling to its end, on two threads of its own: nobody waits for a slow
/// peer. Thread-safe; the callbacks come on one of those threads, on_closed last and once.
class Connection {
 public:
  struct Events {
    std::function<void(v1::CoordinatorMessage)> on_message;
    std::function<void(Status)> on_closed;
  };

  /// Starts to dial `address` ("host:port"), with the files of TLS as they are now, if there are
  /// some. What is sent before the stream is connected is kept.
  static Result<std::shared_ptr<Connection>> Dial(const std::string& address,
                                                  const tls::Files& files, Events events);

  /// Queues a message; dropped when the stream has ended.
  void Send(v1::WorkerMessage message);

  /// Sends what is queued, then ends the stream from this side.
  void Finish();

  /// Ends the stream at once.
  void Cancel() { context_.TryCancel(); }

  /// Blocks until on_closed has returned.
  void WaitClosed();

 private:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>;

  explicit Connection(Events events) : events_(std::move(events)) {}
  void Run();
  void WriteQueued(Stream& stream);

  Events events_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;  // of a call on the stub's channel: goes before it

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::WorkerMessage> outgoing_;
  bool finishing_ = false;
  bool ended_ = false;   // nothing can be sent any more
  bool closed_ = false;  // on_closed has returned
};

}  // namespace weft::daemon
