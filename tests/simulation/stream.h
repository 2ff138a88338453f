#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/service/worker_link.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/timeline.h"

namespace weft::simulation {

class Worker;

/// A connection between a worker and one life of the coordinator. Messages come late, in order, and
/// not at all once one of the ends is gone; a network that is cut holds them back.
class Stream : public coordinator::WorkerLink, public std::enable_shared_from_this<Stream> {
 public:
  using ToService =
      std::function<void(coordinator::Service&, const std::shared_ptr<coordinator::WorkerLink>&)>;

  Stream(Timeline& timeline, Coordinator& coordinator, Worker& worker);

  // Of the worker.
  void Send(ToService message);
  /// It ends the stream: what it has sent arrives yet, unless nothing ever has.
  void HangUp();
  /// Its machine is gone: nothing more comes of it. `silent`: not even the end of the stream.
  void Drop(bool silent);

  /// The coordinator has died.
  void EndLife();

  // Of the coordinator.
  void SendRegistered(double lease_seconds, double heartbeat_seconds,
                      const std::vector<coordinator::AttemptKey>& adopted) override;
  void Refuse(const std::string& why) override;
  void AckHeartbeat(int64_t sequence) override;
  void Start(const coordinator::StartOrder& order) override;
  void Stop(const std::string& job_id, int64_t epoch, bool graceful) override;
  void SetMembership(const coordinator::MembershipOrder& order) override;
  void AckReport(const std::string& job_id, const coordinator::PlacementReport& report) override;
  void AckLogs(const coordinator::LogAppend& logs, int64_t position) override;
  void ReplyStore(int64_t, const Result<std::string>&) override {}
  void Profile(int64_t, const coordinator::AttemptKey&, int64_t) override {}
  void MeasureLink(const coordinator::LinkOrder&) override {}
  void CheckHealth(int64_t request_id, double limit_seconds) override;
  void Close() override;

 private:
  /// To the end that has this stream still as its own.
  void ToWorker(std::function<void(Worker&)> message);
  void DeliverToWorker();
  void DeliverToService();
  Duration Latency();

  Timeline& timeline_;
  Coordinator& coordinator_;
  Worker& worker_;
  const int64_t life_;
  std::deque<std::function<void(Worker&)>> to_worker_;
  std::deque<ToService> to_service_;
  Duration last_to_worker_{0};
  Duration last_to_service_{0};
  bool arrived_ = false;   ///< Something has reached the coordinator.
  bool left_ = false;      ///< The worker has it no more.
  bool detached_ = false;  ///< The coordinator knows of its end.
};

}  // namespace weft::simulation
