#include "coordinator/service/metrics.h"

#include <prometheus/text_serializer.h>

#include "common/text.h"
#include "common/tls/certificate.h"
#include "common/version.h"

namespace weft::coordinator {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

Buckets FastBuckets() {
  return {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5};
}
Buckets SlowBuckets() {
  return {0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 1800, 3600, 14400, 86400};
}
Buckets RatioBuckets() {
  return {0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2};
}
Buckets FineRatioBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};
}
Buckets RowBuckets() {
  return {1, 2, 4, 8, 16, 32, 64};
}

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      jobs_(BuildGauge()
                .Name("weft_coord_jobs")
                .Help("Jobs that have not ended, by queue and state.")
                .Register(*registry_)),
      submitted_(BuildCounter()
                     .Name("weft_coord_jobs_submitted_total")
                     .Help("Jobs accepted, by queue.")
                     .Register(*registry_)),
      deleted_(BuildCounter()
                   .Name("weft_coord_jobs_deleted_total")
                   .Help("Jobs forgotten, as asked or by retention.")
                   .Register(*registry_)
                   .Add({})),
      finished_(BuildCounter()
                    .Name("weft_coord_jobs_finished_total")
                    .Help("Jobs that ended, by queue, outcome and reason.")
                    .Register(*registry_)),
      transitions_(BuildCounter()
                       .Name("weft_coord_job_transitions_total")
                       .Help("Changes of state of jobs.")
                       .Register(*registry_)),
      replanned_(BuildCounter()
                     .Name("weft_coord_jobs_replanned_total")
                     .Help("Running jobs stopped at a checkpoint to go on by another plan.")
                     .Register(*registry_)
                     .Add({})),
      peers_joined_(BuildCounter()
                        .Name("weft_coord_peers_joined_total")
                        .Help("Ranks that joined a running attempt.")
                        .Register(*registry_)
                        .Add({})),
      peers_left_(BuildCounter()
                      .Name("weft_coord_peers_left_total")
                      .Help("Ranks that left a running attempt, which went on.")
                      .Register(*registry_)
                      .Add({})),
      pending_(BuildGauge()
                   .Name("weft_coord_pending_jobs")
                   .Help("Queued jobs, by queue and what they wait for.")
                   .Register(*registry_)),
      queue_wait_(BuildHistogram()
                      .Name("weft_coord_queue_wait_seconds")
                      .Help("From entering the queue to dispatch, by queue.")
                      .Register(*registry_)),
      queue_eta_error_(BuildHistogram()
                           .Name("weft_coord_queue_eta_error_seconds")
                           .Help("Difference of the first predicted and the actual start.")
                           .Register(*registry_)),
      preemptions_(BuildCounter()
                       .Name("weft_coord_preemptions_total")
                       .Help("Jobs stopped at a checkpoint for others, by their queue.")
                       .Register(*registry_)),
      preempted_work_(BuildCounter()
                          .Name("weft_coord_preempted_work_device_seconds_total")
                          .Help("What these stops were priced at: seconds times GPUs or cores.")
                          .Register(*registry_)),
      quota_(BuildGauge()
                 .Name("weft_coord_quota_devices")
                 .Help("GPUs or cores that belong to a queue.")
                 .Register(*registry_)),
      used_(BuildGauge()
                .Name("weft_coord_queue_used_devices")
                .Help("GPUs or cores that jobs of a queue hold.")
                .Register(*registry_)),
      fair_share_(BuildGauge()
                      .Name("weft_coord_fair_share_ratio")
                      .Help("What a queue holds over its fair share.")
                      .Register(*registry_)),
      schedule_cycle_(BuildHistogram()
                          .Name("weft_coord_schedule_cycle_duration_seconds")
                          .Help("One pass over the queue.")
                          .Register(*registry_)
                          .Add({}, FastBuckets())),
      schedule_last_(BuildGauge()
                         .Name("weft_coord_schedule_last_success_timestamp_seconds")
                         .Help("End of the last pass over the queue.")
                         .Register(*registry_)
                         .Add({})),
      plan_duration_(BuildHistogram()
                         .Name("weft_coord_plan_duration_seconds")
                         .Help("Time of one call of the planner, by result.")
                         .Register(*registry_)),
      plan_candidates_(BuildCounter()
                           .Name("weft_coord_plan_candidates_total")
                           .Help("Plans the planner looked at.")
                           .Register(*registry_)
                           .Add({})),
      plan_step_time_error_(
          BuildHistogram()
              .Name("weft_coord_plan_step_time_error_ratio")
              .Help("Difference of measured and predicted step time over the measured one.")
              .Register(*registry_)
              .Add({}, RatioBuckets())),
      plan_memory_error_(
          BuildHistogram()
              .Name("weft_coord_plan_memory_error_ratio")
              .Help("Difference of measured and predicted memory of rank 0 over the measured one.")
              .Register(*registry_)
              .Add({}, FineRatioBuckets())),
      calibration_runs_(BuildGauge()
                            .Name("weft_coord_plan_calibration_runs")
                            .Help("Runs that plans are calibrated by; 0: the defaults.")
                            .Register(*registry_)
                            .Add({})),
      workers_(BuildGauge()
                   .Name("weft_coord_workers")
                   .Help("Known workers, by state.")
                   .Register(*registry_)),
      link_measurements_(BuildCounter()
                             .Name("weft_coord_link_measurements_total")
                             .Help("Measurements of the network between two machines, by outcome.")
                             .Register(*registry_)),
      link_rate_(BuildGauge()
                     .Name("weft_coord_link_bytes_per_second")
                     .Help("One TCP stream between two machines, the slower direction.")
                     .Register(*registry_)),
      link_latency_(BuildGauge()
                        .Name("weft_coord_link_latency_seconds")
                        .Help("From one machine to another, one way.")
                        .Register(*registry_)),
      lease_expirations_(BuildCounter()
                             .Name("weft_coord_lease_expirations_total")
                             .Help("Leases of workers that ran out.")
                             .Register(*registry_)
                             .Add({})),
      fenced_(BuildCounter()
                  .Name("weft_coord_fenced_requests_total")
                  .Help("Messages of workers refused for an old epoch or incarnation.")
                  .Register(*registry_)),
      dispatch_(BuildHistogram()
                    .Name("weft_coord_dispatch_duration_seconds")
                    .Help("From the stored dispatch to the worker's first answer.")
                    .Register(*registry_)
                    .Add({}, FastBuckets())),
      recovery_(BuildHistogram()
                    .Name("weft_coord_recovery_duration_seconds")
                    .Help("From an interruption to training again, by cause.")
                    .Register(*registry_)),
      job_seconds_(BuildCounter()
                       .Name("weft_coord_job_seconds_total")
                       .Help("Wall time of all jobs, by what it went to.")
                       .Register(*registry_)),
      attempt_failures_(BuildCounter()
                            .Name("weft_coord_attempt_failures_total")
                            .Help("Attempts that ended because something failed, by reason.")
                            .Register(*registry_)),
      machine_checks_(BuildCounter()
                          .Name("weft_coord_machine_checks_total")
                          .Help("Checks of machines before they get ranks, by outcome.")
                          .Register(*registry_)),
      suspicion_(BuildGauge()
                     .Name("weft_coord_worker_suspicion")
                     .Help("Failures lately that may have been of the worker's machine.")
                     .Register(*registry_)),
      quarantined_(BuildGauge()
                       .Name("weft_coord_worker_quarantined")
                       .Help("1 while a worker gets no ranks because of its checks or failures.")
                       .Register(*registry_)),
      straggler_(BuildGauge()
                     .Name("weft_coord_straggler_ratio")
                     .Help("Time of a rank for its part of a step over that of its like.")
                     .Register(*registry_)),
      store_txn_(BuildHistogram()
                     .Name("weft_coord_store_txn_duration_seconds")
                     .Help("Durable commits.")
                     .Register(*registry_)
                     .Add({}, FastBuckets())),
      store_batch_(BuildHistogram()
                       .Name("weft_coord_store_batch_rows")
                       .Help("Changes that shared one durable commit.")
                       .Register(*registry_)
                       .Add({}, RowBuckets())),
      store_errors_(BuildCounter()
                        .Name("weft_coord_store_errors_total")
                        .Help("Changes the store could not make durable.")
                        .Register(*registry_)
                        .Add({})),
      store_writable_(BuildGauge()
                          .Name("weft_coord_store_writable")
                          .Help("1: the database takes changes; 0: its disk is full.")
                          .Register(*registry_)
                          .Add({})),
      checkpoints_(BuildCounter()
                       .Name("weft_coord_checkpoints_total")
                       .Help("Checkpoints reported, by state.")
                       .Register(*registry_)),
      log_lines_(BuildCounter()
                     .Name("weft_coord_log_lines_total")
                     .Help("Log lines stored.")
                     .Register(*registry_)
                     .Add({})),
      startup_(BuildGauge()
                   .Name("weft_coord_startup_replay_seconds")
                   .Help("Time to load the store at start.")
                   .Register(*registry_)
                   .Add({})),
      connections_refused_(BuildCounter()
                               .Name("weft_rpc_server_connections_refused_total")
                               .Help("Connections closed at once: there were too many.")
                               .Register(*registry_)
                               .Add({})),
      rpc_handled_(BuildCounter()
                       .Name("weft_rpc_server_handled_total")
                       .Help("Calls answered, by service, method and code.")
                       .Register(*registry_)),
      auth_failures_(BuildCounter()
                         .Name("weft_rpc_auth_failures_total")
                         .Help("Calls whose caller is unknown, or may not do that, by method and "
                               "code.")
                         .Register(*registry_)),
      rate_limited_(BuildCounter()
                        .Name("weft_rpc_rate_limited_total")
                        .Help("Calls over a limit of their caller, by method.")
                        .Register(*registry_)),
      audited_(BuildCounter()
                   .Name("weft_coord_audit_events_total")
                   .Help("Records of the audit log, by method and result.")
                   .Register(*registry_)),
      certificate_end_(BuildGauge()
                           .Name("weft_tls_certificate_not_after_timestamp_seconds")
                           .Help("When the certificate of this process ends.")
                           .Register(*registry_)) {
  BuildGauge()
      .Name("weft_build_info")
      .Help("Always 1; the version is a label.")
      .Register(*registry_)
      .Add({{"version", kVersion}, {"compiler", __VERSION__}})
      .Set(1);
  for (int i = 0; i < kJobStates; ++i) {
    const auto state = static_cast<JobState>(i);
    if (!IsTerminal(state)) SetLiveJobs(kDefaultQueue, state, 0);
  }
  for (const char* state : {"ready", "disconnected", "lost"}) SetWorkers(state, 0);
  SetStoreWritable(true);
  SetPending({});
  SetQueues(QueueUses({}, {}, {}));
  // Series that are there before anything happens, for dashboards.
  const prometheus::Labels queue = {{"queue", kDefaultQueue}};
  queue_wait_.Add(queue, SlowBuckets());
  queue_eta_error_.Add(queue, SlowBuckets());
  preemptions_.Add(queue);
  // From its first one on there is a rate.
  attempt_failures_.Add({{"reason", AsciiLowerCase(Name(Reason::kSilentCorruption))}});
  for (const char* kind : {"gpu", "core"}) {
    preempted_work_.Add({{"queue", kDefaultQueue}, {"kind", kind}});
  }
}

void Metrics::JobTime(const Ledger& more) {
  const auto add = [this](const char* name, double seconds) {
    if (seconds > 0) job_seconds_.Add({{"class", name}}).Increment(seconds);
  };
  add("queued", more.queued_seconds);
  add("starting", more.starting_seconds);
  add("useful", more.useful_seconds);
  add("rework", more.rework_seconds);
  add("checkpoint", more.checkpoint_seconds);
  add("recovery", more.recovery_seconds);
  add("data_wait", more.data_wait_seconds);
  add("straggler", more.straggler_seconds);
}

void Metrics::AttemptFailed(Reason reason) {
  attempt_failures_.Add({{"reason", AsciiLowerCase(Name(reason))}}).Increment();
}

void Metrics::MachineChecked(const std::string& outcome) {
  machine_checks_.Add({{"outcome", outcome}}).Increment();
}

namespace {

/// A series that is there only while it says something.
void SetOrRemove(prometheus::Family<prometheus::Gauge>& family, const prometheus::Labels& labels,
                 double value) {
  if (value > 0) {
    family.Add(labels).Set(value);
  } else if (family.Has(labels)) {
    family.Remove(&family.Add(labels));
  }
}

}  // namespace

void Metrics::SetSuspicion(const std::string& worker, double suspicion) {
  SetOrRemove(suspicion_, {{"worker", worker}}, suspicion);
}

void Metrics::SetQuarantined(const std::string& worker, bool quarantined) {
  SetOrRemove(quarantined_, {{"worker", worker}}, quarantined ? 1 : 0);
}

void Metrics::SetStraggler(const std::string& run, const std::string& worker, double ratio) {
  SetOrRemove(straggler_, {{"run", run}, {"worker", worker}}, ratio);
}

std::string Metrics::Text() const {
  if (!certificate_path_.empty()) {
    const Result<double> end = tls::CertificateEnd(certificate_path_);
    if (end.ok()) certificate_end_.Add({{"role", "coordinator"}}).Set(*end);
  }
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void Metrics::SetLiveJobs(const std::string& queue, JobState state, int64_t count) {
  jobs_.Add({{"queue", queue}, {"state", AsciiLowerCase(Name(state))}})
      .Set(static_cast<double>(count));
}

void Metrics::JobSubmitted(const std::string& queue) {
  submitted_.Add({{"queue", queue}}).Increment();
}

void Metrics::JobMoved(JobState from, JobState to) {
  transitions_.Add({{"from", AsciiLowerCase(Name(from))}, {"to", AsciiLowerCase(Name(to))}})
      .Increment();
}

void Metrics::JobFinished(const std::string& queue, JobState outcome, Reason reason) {
  finished_
      .Add({{"queue", queue},
            {"outcome", AsciiLowerCase(Name(outcome))},
            {"reason", AsciiLowerCase(Name(reason))}})
      .Increment();
}

void Metrics::SetPending(const std::map<std::pair<std::string, Reason>, int64_t>& counts) {
  std::map<std::pair<std::string, Reason>, int64_t> all = counts;
  for (const Reason reason :
       {Reason::kWaitingForWorkers, Reason::kWaitingForCapacity, Reason::kWaitingForQuota,
        Reason::kWaitingForJobs, Reason::kPlanning}) {
    all.insert({{kDefaultQueue, reason}, 0});
  }
  std::lock_guard lock(pending_mutex_);
  for (const auto& [key, gauge] : pending_series_) {
    if (!all.contains(key)) gauge->Set(0);
  }
  for (const auto& [key, count] : all) {
    prometheus::Gauge*& gauge = pending_series_[key];
    if (gauge == nullptr) {
      gauge = &pending_.Add({{"queue", key.first}, {"reason", AsciiLowerCase(Name(key.second))}});
    }
    gauge->Set(static_cast<double>(count));
  }
}

void Metrics::ScheduleCycle(double seconds, double unix_seconds) {
  schedule_cycle_.Observe(seconds);
  schedule_last_.Set(unix_seconds);
}

void Metrics::QueueWaited(const std::string& queue, double seconds) {
  queue_wait_.Add({{"queue", queue}}, SlowBuckets()).Observe(seconds);
}

void Metrics::QueueEtaError(const std::string& queue, double seconds) {
  queue_eta_error_.Add({{"queue", queue}}, SlowBuckets()).Observe(seconds);
}

void Metrics::JobPreempted(const std::string& queue, bool on_gpus, double lost_device_seconds) {
  preemptions_.Add({{"queue", queue}}).Increment();
  preempted_work_.Add({{"queue", queue}, {"kind", on_gpus ? "gpu" : "core"}})
      .Increment(lost_device_seconds);
}

void Metrics::SetQueues(const std::vector<QueueUse>& queues) {
  for (const QueueUse& use : queues) {
    const std::pair<const char*, std::pair<int64_t, int64_t>> kinds[] = {
        {"gpu", {use.spec.quota_gpus, use.used.gpus}},
        {"core", {use.spec.quota_cores, use.used.cores}}};
    for (const auto& [kind, amount] : kinds) {
      const prometheus::Labels labels = {{"queue", use.spec.name}, {"kind", kind}};
      quota_.Add(labels).Set(static_cast<double>(amount.first));
      used_.Add(labels).Set(static_cast<double>(amount.second));
    }
    fair_share_.Add({{"queue", use.spec.name}}).Set(use.fair_share_ratio);
  }
}

void Metrics::Planned(bool found, double seconds, int64_t candidates) {
  plan_duration_.Add({{"result", found ? "found" : "none"}}, FastBuckets()).Observe(seconds);
  plan_candidates_.Increment(static_cast<double>(candidates));
}

void Metrics::SetWorkers(const std::string& state, int64_t count) {
  workers_.Add({{"state", state}}).Set(static_cast<double>(count));
}

void Metrics::LinkMeasured(bool measured) {
  link_measurements_.Add({{"outcome", measured ? "measured" : "failed"}}).Increment();
}

void Metrics::SetLink(const std::string& machine, const std::string& peer, double bytes_per_second,
                      double latency_seconds) {
  const prometheus::Labels labels = {{"machine", machine}, {"peer", peer}};
  link_rate_.Add(labels).Set(bytes_per_second);
  link_latency_.Add(labels).Set(latency_seconds);
}

void Metrics::RemoveLink(const std::string& machine, const std::string& peer) {
  const prometheus::Labels labels = {{"machine", machine}, {"peer", peer}};
  link_rate_.Remove(&link_rate_.Add(labels));
  link_latency_.Remove(&link_latency_.Add(labels));
}

void Metrics::Fenced(const std::string& method) {
  fenced_.Add({{"method", method}}).Increment();
}

void Metrics::Recovered(Reason cause, double seconds) {
  recovery_.Add({{"cause", AsciiLowerCase(Name(cause))}}, SlowBuckets()).Observe(seconds);
}

void Metrics::StoreCommitted(double seconds, int64_t changes) {
  store_txn_.Observe(seconds);
  store_batch_.Observe(static_cast<double>(changes));
}

void Metrics::CheckpointReported(bool verified) {
  checkpoints_.Add({{"state", verified ? "verified" : "durable"}}).Increment();
}

void Metrics::RpcHandled(const std::string& service, const std::string& method,
                         const std::string& code) {
  rpc_handled_.Add({{"service", service}, {"method", method}, {"code", code}}).Increment();
}

void Metrics::AuthFailed(const std::string& method, const std::string& reason) {
  auth_failures_.Add({{"method", method}, {"reason", reason}}).Increment();
}

void Metrics::RateLimited(const std::string& method) {
  rate_limited_.Add({{"method", method}}).Increment();
}

void Metrics::Audited(const std::string& method, const std::string& result) {
  audited_.Add({{"method", method}, {"result", result}}).Increment();
}

}  // namespace weft::coordinator
