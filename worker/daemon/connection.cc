#include "worker/daemon/connection.h"

#include <utility>

#include "proto/grpc_status.h"

namespace weft::daemon {

std::shared_ptr<Connection> Connection::Dial(const std::string& address, Events events) {
  grpc::ChannelArguments arguments;
  // A channel for each dial, with sub-channels of its own: the waiting time between dials is ours
  // (Backoff), not that of a channel which remembers earlier failures.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);

  std::shared_ptr<Connection> connection(new Connection(std::move(events)));
  connection->self_ = connection;
  connection->stub_ = v1::WorkerService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  connection->stub_->async()->Attach(&connection->context_, connection.get());
  // Held until the reading side ends: until then Send may start a write at any time.
  connection->AddHold();
  connection->StartRead(&connection->incoming_);
  connection->StartCall();
  return connection;
}

void Connection::Send(v1::WorkerMessage message) {
  std::lock_guard lock(mutex_);
  if (ended_ || finishing_) return;
  outgoing_.push_back(std::move(message));
  if (writing_) return;
  writing_ = true;
  StartWrite(&outgoing_.front());
}

void Connection::Finish() {
  std::lock_guard lock(mutex_);
  if (ended_ || finishing_) return;
  finishing_ = true;
  if (!writing_) StartWritesDone();
}

void Connection::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok || ended_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (finishing_) {
    StartWritesDone();
  }
}

void Connection::OnReadDone(bool ok) {
  if (ok) {
    events_.on_message(std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  RemoveHold();
}

void Connection::OnDone(const grpc::Status& status) {
  events_.on_closed(FromGrpcStatus(status));
  self_.reset();
}

}  // namespace weft::daemon
