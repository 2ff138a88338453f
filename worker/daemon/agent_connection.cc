// How an agent keeps its connection: dials, registers, sends heartbeats, holds the lease.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/log.h"
#include "common/version.h"
#include "proto/convert.h"
#include "worker/daemon/agent.h"
#include "worker/daemon/agent_share.h"

namespace weft::daemon {
namespace asio = boost::asio;

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// The first answer must come within this time, and later ones within half a lease, too.
constexpr std::chrono::seconds kRegisterPatience{10};

/// While ranks run, people see progress at least this often, whatever the lease allows.
constexpr milliseconds kProgressEvery{500};

}  // namespace

void Agent::Dial() {
  int64_t dial = ++dial_;
  registered_ = false;
  metrics_.CountDial();
  // Posted to our thread; what comes from an earlier connection is void.
  Result<std::shared_ptr<Connection>> dialled =
      Connection::Dial(settings_.coordinator, settings_.tls,
                       {[this, dial](v1::CoordinatorMessage message) {
                          asio::post(io_, [this, dial, message = std::move(message)] {
                            if (dial == dial_) OnMessage(message);
                          });
                        },
                        [this, dial](const Status& status) {
                          asio::post(io_, [this, dial, status] {
                            if (dial == dial_) OnClosed(status);
                          });
                        }});
  if (!dialled.ok()) return OnClosed(dialled.status());  // its files are being replaced, perhaps
  connection_ = *std::move(dialled);
  v1::WorkerMessage message;
  v1::Register& hello = *message.mutable_register_();
  hello.set_worker_id(settings_.profile.worker_id);
  hello.set_incarnation(settings_.incarnation);
  hello.set_machine(settings_.machine);
  hello.set_version(kVersion);
  hello.set_api_level(kApiLevel);
  *hello.mutable_profile() = ToProto<v1::WorkerProfile>(settings_.profile);
  AddRunning(hello.mutable_running());
  register_sent_ = clock_.Monotonic();
  connection_->Send(std::move(message));
  // A registration that is answered after a lease renews nothing, and starts would be refused until
  // the next heartbeat is answered.
  dial_timer_.expires_after(heartbeat_patience_.count() == 0
                                ? nanoseconds(kRegisterPatience)
                                : std::min<nanoseconds>(kRegisterPatience, heartbeat_patience_));
  dial_timer_.async_wait([this, dial](const boost::system::error_code& error) {
    // Cancelling a timer does not take back a wait that is over and queued: it can run after
    // OnClosed, or after the next dial.
    if (!error && dial == dial_ && !registered_ && connection_ != nullptr) connection_->Cancel();
  });
}

void Agent::OnClosed(const Status& status) {
  // Once for each loss, not for each vain dial after it.
  if (!leaving_ && (registered_ || dial_ == 1)) {
    WEFT_LOG_WARNING << "no connection to the coordinator at " << settings_.coordinator << ": "
                     << status.message() << "; dialling again";
  }
  registered_ = false;
  connection_.reset();
  metrics_.SetAttached(false);
  // What was not acknowledged may not have arrived.
  for (auto& [key, placement] : placements_) placement->reports_sent = 0;
  link_measurement_.Stop("the connection to the coordinator broke");
  health_check_.Stop();
  if (leaving_) return Leave();
  heartbeat_timer_.cancel();
  heartbeats_sent_.clear();
  dial_timer_.expires_after(duration_cast<nanoseconds>(backoff_.Next(lease_.LongestBreak())));
  dial_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Dial();
  });
}

void Agent::OnMessage(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kRegistered:
      return OnRegistered(message.registered());
    case v1::CoordinatorMessage::kHeartbeatAck:
      return OnHeartbeatAck(message.heartbeat_ack().sequence());
    case v1::CoordinatorMessage::kStart:
      return OnStart(message.start());
    case v1::CoordinatorMessage::kStop:
      return OnStop(message.stop());
    case v1::CoordinatorMessage::kMembership:
      return OnMembership(message.membership());
    case v1::CoordinatorMessage::kProfile:
      return OnProfileRequest(message.profile());
    case v1::CoordinatorMessage::kMeasure:
      return OnMeasureLink(message.measure());
    case v1::CoordinatorMessage::kStore:
      return OnStoreReply(message.store());
    case v1::CoordinatorMessage::kLogAck:
      return OnLogAck(message.log_ack());
    case v1::CoordinatorMessage::kAttemptAck:
      return OnAttemptAck(message.attempt_ack());
    case v1::CoordinatorMessage::kCheckHealth:
      return OnCheckHealth(message.check_health());
    case v1::CoordinatorMessage::MESSAGE_NOT_SET:
      return;  // of a newer coordinator
  }
}

void Agent::OnRegistered(const v1::Registered& registered) {
  if (!registered.refused().empty()) {
    GiveUpWork();
    return on_done_(ConflictError("the coordinator at " + settings_.coordinator +
                                  " refuses this worker: " + registered.refused()));
  }
  WEFT_LOG_INFO << "attached to " << settings_.coordinator << " as " << settings_.profile.worker_id
                << ", lease " << registered.lease_seconds() << " s";
  registered_ = true;
  backoff_.Reset();
  metrics_.SetAttached(true);
  lease_.SetLength(FromSeconds(registered.lease_seconds()));
  lease_.Renew(register_sent_);
  heartbeat_every_ =
      std::max<nanoseconds>(FromSeconds(registered.heartbeat_seconds()), milliseconds(10));
  // A connection that is silent for half a lease is given up while there is time for another.
  heartbeat_patience_ = FromSeconds(registered.lease_seconds() / 2);
  ScheduleLeaseCheck();
  ScheduleHeartbeat();

  for (auto& [key, placement] : placements_) {
    bool adopted = std::any_of(registered.adopted().begin(), registered.adopted().end(),
                               [&](const v1::AttemptKey& k) {
                                 return k.job_id() == key.first && k.epoch() == key.second;
                               });
    if (!adopted && !placement->attempt.over()) {
      WEFT_LOG_WARNING << "the coordinator does not know attempt " << key.second << " of "
                       << key.first << " any more; killing its ranks";
      placement->attempt.Stop(/*graceful=*/false);
    }
    for (RankLog& log : placement->logs) log.sent = log.lines.acknowledged();
    for (const v1::CheckpointReport& checkpoint : placement->checkpoints) {
      v1::WorkerMessage message;
      *message.mutable_checkpoint() = checkpoint;
      connection_->Send(std::move(message));
    }
    for (const auto& [name, request] : placement->set) {
      v1::WorkerMessage message;
      *message.mutable_store() = request;
      message.mutable_store()->set_request_id(next_store_call_++);
      connection_->Send(std::move(message));
    }
  }
  SendUnsent();
  for (const auto& [id, call] : store_calls_) {
    v1::WorkerMessage message;
    *message.mutable_store() = call.request;
    connection_->Send(std::move(message));
  }
  for (auto& [key, placement] : placements_) Pump(*placement);
}

void Agent::AddRunning(google::protobuf::RepeatedPtrField<v1::RunningAttempt>* running) {
  for (const auto& [key, placement] : placements_) {
    // One that has ended is not missing, and its last progress goes before the report of its end.
    if (!placement->attempt.over() || placement->reports_sent < placement->reports.size()) {
      *running->Add() = placement->attempt.Running();
    }
  }
  // The same of what an earlier daemon has ended.
  for (const UnsentAttempt& attempt : unsent_.attempts()) *running->Add() = attempt.running;
}

void Agent::ScheduleHeartbeat() {
  bool busy = std::any_of(placements_.begin(), placements_.end(),
                          [](const auto& entry) { return !entry.second->attempt.over(); });
  heartbeat_timer_.expires_after(busy ? std::min<nanoseconds>(heartbeat_every_, kProgressEvery)
                                      : heartbeat_every_);
  heartbeat_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !registered_) return;
    if (!heartbeats_sent_.empty() &&
        clock_.Monotonic() - heartbeats_sent_.begin()->second > heartbeat_patience_) {
      WEFT_LOG_WARNING << "the coordinator does not answer heartbeats; dialling again";
      return connection_->Cancel();
    }
    SendHeartbeat();
    ScheduleHeartbeat();
  });
}

void Agent::SendHeartbeat() {
  v1::WorkerMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_sequence(++heartbeat_);
  heartbeat.set_draining(draining_);
  for (const DeviceSpec& device : settings_.profile.devices) {
    if (device.unusable.empty()) continue;
    v1::BrokenDevice& broken = *heartbeat.add_broken_devices();
    broken.set_index(device.index);
    broken.set_why(device.unusable);
  }
  AddRunning(heartbeat.mutable_running());
  heartbeats_sent_[heartbeat_] = clock_.Monotonic();
  connection_->Send(std::move(message));
  metrics_.SetRunningAttempts(heartbeat.running_size());
  int64_t waiting = 0;
  for (const auto& [key, placement] : placements_) waiting += placement->WaitingLines();
  metrics_.SetWaitingLogLines(waiting);
  metrics_.RemoveOldRuns();
  ForgetOldShares();
}

void Agent::OnHeartbeatAck(int64_t sequence) {
  auto sent = heartbeats_sent_.find(sequence);
  if (sent == heartbeats_sent_.end()) return;
  lease_.Renew(sent->second);
  heartbeats_sent_.erase(heartbeats_sent_.begin(), std::next(sent));
  ScheduleLeaseCheck();
}

void Agent::ScheduleLeaseCheck() {
  lease_timer_.expires_after(std::max(lease_.Deadline() - clock_.Monotonic(), nanoseconds(0)));
  lease_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    if (!lease_.Expired()) return ScheduleLeaseCheck();
    GiveUpWork();
  });
}

void Agent::GiveUpWork() {
  bool any = false;
  for (auto& [key, placement] : placements_) {
    placement->next.reset();
    if (placement->attempt.over()) continue;
    any = true;
    placement->attempt.Abort(v1::WORKER_LOST, "the worker's lease ran out, so it killed its ranks");
  }
  if (!any) return;
  WEFT_LOG_ERROR << "the lease ran out without word from the coordinator; all ranks are killed";
  metrics_.CountLeaseExpiry();
}

}  // namespace weft::daemon
