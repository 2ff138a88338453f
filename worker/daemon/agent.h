#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/spec/cluster_spec.h"
#include "weft/v1/worker.pb.h"
#include "worker/daemon/attempt.h"
#include "worker/daemon/backoff.h"
#include "worker/daemon/connection.h"
#include "worker/daemon/health_check.h"
#include "worker/daemon/lease.h"
#include "worker/daemon/link_measurement.h"
#include "worker/daemon/log_buffer.h"
#include "worker/daemon/metrics.h"
#include "worker/daemon/unsent_reports.h"

namespace weft::daemon {

/// The worker's side of the Attach stream: keeps it up, holds the lease, starts and stops attempts
/// as the coordinator says, and sends what they report until it is acknowledged. Everything happens
/// on the one thread of the io_context.
class Agent : private AttemptListener {
 public:
  struct Settings {
    std::string coordinator;  ///< "host:port"
    std::string incarnation;
    std::string machine;  ///< Name of the machine, shared by all workers on it; empty: not known.
    WorkerProfile profile;
    std::string log_dir;
    AttemptSettings attempt;
    std::string unsent_path = {};    ///< As in UnsentReports.
    std::string check_program = {};  ///< As in HealthCheck.
    tls::Files tls = {};             ///< Empty: plain text.
  };

  /// `on_done` is called once, when there is nothing left to do: after a drain (with OK), or when
  /// the coordinator refuses this worker.
  Agent(boost::asio::io_context& io, const Clock& clock, Settings settings, Metrics& metrics,
        std::function<void(Status)> on_done);
  ~Agent() override;

  /// Dials, and goes on dialling.
  void Start();

  /// Takes no more work; ranks save and stop within `limit` or are killed; then on_done. A second
  /// call kills them at once.
  void Drain(std::chrono::duration<double> limit);

  /// Something happened on a GPU of this machine. A broken one is reported to the coordinator, and
  /// no rank starts there any more.
  void OnDevice(const DeviceEvent& event);

  /// Looks for ranks that have ended; to be called after SIGCHLD.
  void ReapChildren();

 private:
  using Key = std::pair<std::string, int64_t>;  // job id, epoch
  struct Placement;
  struct RankLog;
  struct StoreCall;

  // Life of the connection.
  void Dial();
  void OnMessage(const v1::CoordinatorMessage& message);
  void OnClosed(const Status& status);
  void OnRegistered(const v1::Registered& registered);
  void OnHeartbeatAck(int64_t sequence);
  void SendHeartbeat();
  void ScheduleHeartbeat();
  void ScheduleLeaseCheck();
  void GiveUpWork();
  void AddRunning(google::protobuf::RepeatedPtrField<v1::RunningAttempt>* running);

  // Commands.
  void OnStart(const v1::StartAttempt& start);
  void OnStop(const v1::StopAttempt& stop);
  /// Why a rank of it cannot run here; empty: all can.
  std::string BrokenUnder(const v1::StartAttempt& start) const;
  void OnMembership(const v1::Membership& membership);
  void OnProfileRequest(const v1::ProfileAttempt& request);
  void OnMeasureLink(const v1::MeasureLink& request);
  void OnCheckHealth(const v1::CheckHealth& request);
  void OnStoreReply(const v1::StoreReply& reply);
  void OnLogAck(const v1::LogAck& ack);
  void OnAttemptAck(const v1::AttemptAck& ack);

  // AttemptListener.
  void OnReport(v1::AttemptReport report) override;
  void OnLogLine(Attempt& attempt, v1::LogLine line) override;
  void OnCheckpoint(v1::CheckpointReport report) override;
  void OnProfile(v1::ProfileReply reply) override;
  void OnStoreRequest(Attempt& attempt, v1::StoreRequest request, StoreAnswer answer) override;

  // Sending.
  Placement* FindPlacement(const Key& key);
  void Pump(Placement& placement);
  void PumpLog(const Attempt& attempt, RankLog& log);
  void SendUnsent();
  /// Leaves what the coordinator does not know for the next daemon on the data folder.
  void KeepUnsent();
  void SchedulePump();
  void SendLinkReply(v1::LinkReply reply);
  void SendHealthReply(v1::HealthReply reply);
  /// Says that an attempt has failed by a mistake of the order; nothing of it is here.
  void SendRefused(const v1::StartAttempt& start, const Status& why);
  void SendStopped(const std::string& job_id, int64_t epoch, const std::string& message);
  void ForgetOldShares();
  void FinishDrainIfDone();
  void Leave();

  boost::asio::io_context& io_;
  const Clock& clock_;
  Settings settings_;
  Metrics& metrics_;
  std::function<void(Status)> on_done_;

  std::shared_ptr<Connection> connection_;
  int64_t dial_ = 0;         // callbacks of earlier connections are distinguished by it
  bool registered_ = false;  // on this connection
  Backoff backoff_;
  Lease lease_;
  std::chrono::nanoseconds register_sent_{0};
  std::chrono::nanoseconds heartbeat_every_{0};
  std::chrono::nanoseconds heartbeat_patience_{0};
  int64_t heartbeat_ = 0;
  std::map<int64_t, std::chrono::nanoseconds> heartbeats_sent_;  // not acknowledged yet
  boost::asio::steady_timer dial_timer_;
  boost::asio::steady_timer heartbeat_timer_;
  boost::asio::steady_timer lease_timer_;
  boost::asio::steady_timer pump_timer_;
  boost::asio::steady_timer drain_timer_;
  bool pump_scheduled_ = false;
  bool draining_ = false;
  bool farewell_ = false;  // the ranks are gone, the last acknowledgements are awaited
  bool leaving_ = false;   // the stream is being ended from this side

  std::map<Key, std::unique_ptr<Placement>> placements_;
  UnsentReports unsent_;                         // of an earlier daemon
  std::map<std::string, int64_t> newest_epoch_;  // by job, of all commands seen
  std::map<int64_t, StoreCall> store_calls_;
  int64_t next_store_call_ = 1;
  LinkMeasurement link_measurement_;
  HealthCheck health_check_;
};

}  // namespace weft::daemon
