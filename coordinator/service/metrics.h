#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "coordinator/recovery/ledger.h"
#include "coordinator/service/queue_use.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// What the coordinator counts and measures; the table is in docs/metrics.md. Thread-safe.
class Metrics {
 public:
  Metrics();

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }
  /// All of them in the text format of Prometheus.
  std::string Text() const;

  void SetLiveJobs(const std::string& queue, JobState state, int64_t count);
  void JobSubmitted(const std::string& queue);
  void JobDeleted() { deleted_.Increment(); }
  void JobMoved(JobState from, JobState to);
  void JobFinished(const std::string& queue, JobState outcome, Reason reason);
  /// Stopped at a checkpoint to go on by another plan.
  void JobReplanned() { replanned_.Increment(); }
  /// Ranks that came to a running attempt, or left one that went on.
  void PeerJoined() { peers_joined_.Increment(); }
  void PeerLeft() { peers_left_.Increment(); }
  /// Jobs that wait, by queue and what they wait for: all of them.
  void SetPending(const std::map<std::pair<std::string, Reason>, int64_t>& counts);
  void QueueWaited(const std::string& queue, double seconds);
  /// |predicted - actual start| of a job that waited.
  void QueueEtaError(const std::string& queue, double seconds);
  /// A job of `queue` stops for another one, and loses that work: seconds times GPUs (`on_gpus`) or
  /// cores.
  void JobPreempted(const std::string& queue, bool on_gpus, double lost_device_seconds);
  /// `queues` are all of them.
  void SetQueues(const std::vector<QueueUse>& queues);
  /// At `unix_seconds`.
  void ScheduleCycle(double seconds, double unix_seconds);
  void Planned(bool found, double seconds, int64_t candidates);
  /// |measured - predicted| / measured of an attempt that ended.
  void PlanStepTimeError(double ratio) { plan_step_time_error_.Observe(ratio); }
  void PlanMemoryError(double ratio) { plan_memory_error_.Observe(ratio); }
  /// Runs that the plans of machines are calibrated by, over all their kinds.
  void SetCalibrationRuns(int64_t runs) { calibration_runs_.Set(static_cast<double>(runs)); }
  /// `state` is "ready", "disconnected" or "lost".
  void SetWorkers(const std::string& state, int64_t count);
  void LinkMeasured(bool measured);
  /// Sets the speed of the network between two machines.
  void SetLink(const std::string& machine, const std::string& peer, double bytes_per_second,
               double latency_seconds);
  void RemoveLink(const std::string& machine, const std::string& peer);
  void LeaseExpired() { lease_expirations_.Increment(); }
  /// A message refused because its epoch, worker or incarnation is not the present one.
  void Fenced(const std::string& method);
  void Dispatched(double seconds) { dispatch_.Observe(seconds); }
  /// From the interruption to training again.
  void Recovered(Reason cause, double seconds);
  /// More time of some job, by what it went to.
  void JobTime(const Ledger& more);
  /// An attempt ended because something failed.
  void AttemptFailed(Reason reason);
  /// `outcome` is "passed", "failed" or "unanswered".
  void MachineChecked(const std::string& outcome);
  /// 0: it is none any more.
  void SetSuspicion(const std::string& worker, double suspicion);
  void SetQuarantined(const std::string& worker, bool quarantined);
  /// A rank of the job on that worker is this many times as slow as its like; 0: no more.
  void SetStraggler(const std::string& run, const std::string& worker, double ratio);
  void StoreCommitted(double seconds, int64_t changes);
  void StoreFailed() { store_errors_.Increment(); }
  /// The store takes changes; a full disk is what keeps it from that.
  void SetStoreWritable(bool writable) { store_writable_.Set(writable ? 1 : 0); }
  void CheckpointReported(bool verified);
  void LogLines(int64_t lines) { log_lines_.Increment(static_cast<double>(lines)); }
  void SetStartupSeconds(double seconds) { startup_.Set(seconds); }
  /// One more than the server serves at a time.
  void ConnectionRefused() { connections_refused_.Increment(); }
  void RpcHandled(const std::string& service, const std::string& method, const std::string& code);
  /// A call whose caller is unknown, or may not do that. `reason`: the code of the answer.
  void AuthFailed(const std::string& method, const std::string& reason);
  /// A call over a limit of its caller.
  void RateLimited(const std::string& method);
  /// A record of the audit log, as it is stored.
  void Audited(const std::string& method, const std::string& result);
  /// Looks at the certificate in that file whenever the metrics are read.
  void WatchCertificate(const std::string& path) { certificate_path_ = path; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Gauge>& jobs_;
  prometheus::Family<prometheus::Counter>& submitted_;
  prometheus::Counter& deleted_;
  prometheus::Family<prometheus::Counter>& finished_;
  prometheus::Family<prometheus::Counter>& transitions_;
  prometheus::Counter& replanned_;
  prometheus::Counter& peers_joined_;
  prometheus::Counter& peers_left_;
  prometheus::Family<prometheus::Gauge>& pending_;
  std::mutex pending_mutex_;  ///< Guards what follows.
  std::map<std::pair<std::string, Reason>, prometheus::Gauge*> pending_series_;
  prometheus::Family<prometheus::Histogram>& queue_wait_;
  prometheus::Family<prometheus::Histogram>& queue_eta_error_;
  prometheus::Family<prometheus::Counter>& preemptions_;
  prometheus::Family<prometheus::Counter>& preempted_work_;
  prometheus::Family<prometheus::Gauge>& quota_;
  prometheus::Family<prometheus::Gauge>& used_;
  prometheus::Family<prometheus::Gauge>& fair_share_;
  prometheus::Histogram& schedule_cycle_;
  prometheus::Gauge& schedule_last_;
  prometheus::Family<prometheus::Histogram>& plan_duration_;
  prometheus::Counter& plan_candidates_;
  prometheus::Histogram& plan_step_time_error_;
  prometheus::Histogram& plan_memory_error_;
  prometheus::Gauge& calibration_runs_;
  prometheus::Family<prometheus::Gauge>& workers_;
  prometheus::Family<prometheus::Counter>& link_measurements_;
  prometheus::Family<prometheus::Gauge>& link_rate_;
  prometheus::Family<prometheus::Gauge>& link_latency_;
  prometheus::Counter& lease_expirations_;
  prometheus::Family<prometheus::Counter>& fenced_;
  prometheus::Histogram& dispatch_;
  prometheus::Family<prometheus::Histogram>& recovery_;
  prometheus::Family<prometheus::Counter>& job_seconds_;
  prometheus::Family<prometheus::Counter>& attempt_failures_;
  prometheus::Family<prometheus::Counter>& machine_checks_;
  prometheus::Family<prometheus::Gauge>& suspicion_;
  prometheus::Family<prometheus::Gauge>& quarantined_;
  prometheus::Family<prometheus::Gauge>& straggler_;
  prometheus::Histogram& store_txn_;
  prometheus::Histogram& store_batch_;
  prometheus::Counter& store_errors_;
  prometheus::Gauge& store_writable_;
  prometheus::Family<prometheus::Counter>& checkpoints_;
  prometheus::Counter& log_lines_;
  prometheus::Gauge& startup_;
  prometheus::Counter& connections_refused_;
  prometheus::Family<prometheus::Counter>& rpc_handled_;
  prometheus::Family<prometheus::Counter>& auth_failures_;
  prometheus::Family<prometheus::Counter>& rate_limited_;
  prometheus::Family<prometheus::Counter>& audited_;
  prometheus::Family<prometheus::Gauge>& certificate_end_;
  std::string certificate_path_;  ///< Set before the first read.
};

}  // namespace weft::coordinator
