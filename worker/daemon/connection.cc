#include "worker/daemon/connection.h"

#include <thread>
#include <utility>

#include "proto/grpc_status.h"
#include "proto/grpc_tls.h"

namespace weft::daemon {

Result<std::shared_ptr<Connection>> Connection::Dial(const std::string& address,
                                                     const tls::Files& files, Events events) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                        ChannelCredentialsOf(files));
  grpc::ChannelArguments arguments;
  // A channel for each dial, with sub-channels of its own: the waiting time between dials is ours
  // (Backoff), not that of a channel which remembers earlier failures.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);

  std::shared_ptr<Connection> connection(new Connection(std::move(events)));
  connection->stub_ =
      v1::WorkerService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
  std::thread([connection] { connection->Run(); }).detach();
  return connection;
}

void Connection::Run() {
  std::unique_ptr<Stream> stream = stub_->Attach(&context_);
  std::thread writer([&] { WriteQueued(*stream); });
  v1::CoordinatorMessage message;
  while (stream->Read(&message)) events_.on_message(std::move(message));
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  writer.join();
  events_.on_closed(FromGrpcStatus(stream->Finish()));
  stream.reset();
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Connection::WriteQueued(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || finishing_ || !outgoing_.empty(); });
    if (ended_) return;
    bool more = !outgoing_.empty();
    v1::WorkerMessage message;
    if (more) {
      message = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
    lock.unlock();
    bool ok = more ? stream.Write(message) : stream.WritesDone();
    lock.lock();
    if (!more || !ok) return;
  }
}

void Connection::Send(v1::WorkerMessage message) {
  std::lock_guard lock(mutex_);
  if (ended_ || finishing_) return;
  outgoing_.push_back(std::move(message));
  changed_.notify_all();
}

void Connection::Finish() {
  std::lock_guard lock(mutex_);
  finishing_ = true;
  changed_.notify_all();
}

void Connection::WaitClosed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_; });
}

}  // namespace weft::daemon
