#include "coordinator/service/metrics.h"

#include <prometheus/text_serializer.h>

#include <cctype>

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

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace

Metrics::Metrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      jobs_(BuildGauge()
                .Name("weft_coord_jobs")
                .Help("Jobs that have not ended, by state.")
                .Register(*registry_)),
      submitted_(BuildCounter()
                     .Name("weft_coord_jobs_submitted_total")
                     .Help("Jobs accepted.")
                     .Register(*registry_)
                     .Add({})),
      deleted_(BuildCounter()
                   .Name("weft_coord_jobs_deleted_total")
                   .Help("Jobs forgotten, as asked or by retention.")
                   .Register(*registry_)
                   .Add({})),
      finished_(BuildCounter()
                    .Name("weft_coord_jobs_finished_total")
                    .Help("Jobs that ended, by outcome and reason.")
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
      pending_(BuildGauge()
                   .Name("weft_coord_pending_jobs")
                   .Help("Queued jobs, by what they wait for.")
                   .Register(*registry_)),
      queue_wait_(BuildHistogram()
                      .Name("weft_coord_queue_wait_seconds")
                      .Help("From entering the queue to dispatch.")
                      .Register(*registry_)
                      .Add({}, SlowBuckets())),
      schedule_cycle_(BuildHistogram()
                          .Name("weft_coord_schedule_cycle_duration_seconds")
                          .Help("One pass over the queue.")
                          .Register(*registry_)
                          .Add({}, FastBuckets())),
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
    if (!IsTerminal(static_cast<JobState>(i))) SetLiveJobs(static_cast<JobState>(i), 0);
  }
  for (const char* state : {"ready", "disconnected", "lost"}) SetWorkers(state, 0);
  SetStoreWritable(true);
  SetPending(Reason::kWaitingForWorkers, 0);
  SetPending(Reason::kWaitingForCapacity, 0);
  SetPending(Reason::kPlanning, 0);
}

std::string Metrics::Text() const {
  if (!certificate_path_.empty()) {
    const Result<double> end = tls::CertificateEnd(certificate_path_);
    if (end.ok()) certificate_end_.Add({{"role", "coordinator"}}).Set(*end);
  }
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void Metrics::SetLiveJobs(JobState state, int64_t count) {
  jobs_.Add({{"state", Lower(Name(state))}}).Set(static_cast<double>(count));
}

void Metrics::JobMoved(JobState from, JobState to) {
  transitions_.Add({{"from", Lower(Name(from))}, {"to", Lower(Name(to))}}).Increment();
}

void Metrics::JobFinished(JobState outcome, Reason reason) {
  finished_.Add({{"outcome", Lower(Name(outcome))}, {"reason", Lower(Name(reason))}}).Increment();
}

void Metrics::SetPending(Reason reason, int64_t count) {
  pending_.Add({{"reason", Lower(Name(reason))}}).Set(static_cast<double>(count));
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
  recovery_.Add({{"cause", Lower(Name(cause))}}, SlowBuckets()).Observe(seconds);
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
