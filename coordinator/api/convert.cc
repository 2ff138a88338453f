#include "coordinator/api/convert.h"

#include "proto/convert.h"

namespace weft::coordinator {
namespace {

constexpr size_t kMaxListedMessageBytes = 800;  // 200 characters of four bytes
constexpr size_t kMaxLineBytes = size_t{64} << 10;

v1::JobState StateMessage(JobState state) {
  v1::JobState message = v1::JOB_STATE_UNSPECIFIED;
  WEFT_CHECK(v1::JobState_Parse(std::string(Name(state)), &message), "a state without a message");
  return message;
}

v1::Reason ReasonMessage(Reason reason) {
  v1::Reason message = v1::REASON_UNSPECIFIED;
  WEFT_CHECK(v1::Reason_Parse(std::string(Name(reason)), &message), "a reason without a message");
  return message;
}

v1::Attempt AttemptMessage(const AttemptRecord& attempt) {
  v1::Attempt message;
  message.set_epoch(attempt.epoch);
  message.set_started_at(attempt.started_at);
  if (attempt.ended_at) message.set_ended_at(*attempt.ended_at);
  message.set_reason(ReasonMessage(attempt.reason));
  message.set_message(attempt.message);
  *message.mutable_plan() = ToProto<v1::Plan>(attempt.plan);
  if (attempt.first_step) message.set_first_step(*attempt.first_step);
  message.set_last_step(attempt.last_step);
  message.set_membership(attempt.membership);
  return message;
}

/// Cut to `limit` bytes without splitting a UTF-8 character.
std::string Clip(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit);
}

}  // namespace

v1::Job ToMessage(const JobView& view) {
  const JobRecord& job = view.job;
  v1::Job message;
  message.set_id(job.id);
  *message.mutable_spec() = ToProto<v1::JobSpec>(job.spec);
  message.set_state(StateMessage(job.state));
  message.set_reason(ReasonMessage(job.reason));
  message.set_message(job.message);
  message.set_submitted_at(job.submitted_at);
  if (job.started_at) message.set_started_at(*job.started_at);
  if (job.ended_at) message.set_ended_at(*job.ended_at);
  for (const AttemptRecord& attempt : view.attempts) {
    *message.add_attempts() = AttemptMessage(attempt);
  }
  *message.mutable_progress() = ToProto<v1::Progress>(job.progress);
  message.set_run_dir(job.run_dir);
  message.set_summary_json(job.summary_json);
  message.set_version(job.version);
  message.set_owner(job.owner);
  message.set_attempt_count(job.last_epoch);
  message.set_queue(job.queue);
  message.set_priority(job.priority);
  message.set_group(job.spec.scheduling.group);
  message.set_owner(job.owner);
  v1::Ledger& ledger = *message.mutable_ledger();
  ledger.set_queued_seconds(view.ledger.queued_seconds);
  ledger.set_starting_seconds(view.ledger.starting_seconds);
  ledger.set_useful_seconds(view.ledger.useful_seconds);
  ledger.set_rework_seconds(view.ledger.rework_seconds);
  ledger.set_checkpoint_seconds(view.ledger.checkpoint_seconds);
  ledger.set_recovery_seconds(view.ledger.recovery_seconds);
  ledger.set_data_wait_seconds(view.ledger.data_wait_seconds);
  ledger.set_straggler_seconds(view.ledger.straggler_seconds);
  return message;
}

v1::Job ToMessage(const JobSummary& job) {
  v1::Job message;
  message.set_id(job.id);
  message.set_state(StateMessage(job.state));
  message.set_reason(ReasonMessage(job.reason));
  message.set_message(Clip(job.message, kMaxListedMessageBytes));
  message.set_submitted_at(job.submitted_at);
  if (job.started_at) message.set_started_at(*job.started_at);
  if (job.ended_at) message.set_ended_at(*job.ended_at);
  message.set_run_dir(job.run_dir);
  message.set_version(job.version);
  message.set_owner(job.owner);
  message.set_attempt_count(job.last_epoch);
  message.set_queue(job.queue);
  message.set_priority(job.priority);
  message.set_group(job.group);
  message.set_owner(job.owner);
  // Field by field: the generic way goes through JSON, which takes ten times as long.
  v1::Progress& progress = *message.mutable_progress();
  progress.set_step(job.progress.step);
  progress.set_steps_total(job.progress.steps_total);
  progress.set_loss(job.progress.loss);
  if (job.progress.validation_loss) progress.set_validation_loss(*job.progress.validation_loss);
  progress.set_tokens_per_second(job.progress.tokens_per_second);
  progress.set_eta_seconds(job.progress.eta_seconds);
  return message;
}

namespace {

v1::NetworkSource ToMessage(NetworkSource source) {
  switch (source) {
    case NetworkSource::kGiven:
      return v1::GIVEN;
    case NetworkSource::kMeasured:
      return v1::MEASURED;
    case NetworkSource::kAssumed:
      return v1::ASSUMED;
  }
  return v1::NETWORK_SOURCE_UNSPECIFIED;
}

}  // namespace

v1::Worker ToMessage(const WorkerView& view) {
  v1::Worker message;
  *message.mutable_profile() = ToProto<v1::WorkerProfile>(view.profile);
  message.set_state(view.state == WorkerState::kReady          ? v1::READY
                    : view.state == WorkerState::kDisconnected ? v1::DISCONNECTED
                                                               : v1::LOST);
  for (const std::string& id : view.job_ids) message.add_job_ids(id);
  message.set_last_heartbeat_at(view.last_heartbeat_at);
  message.set_version(view.version);
  message.set_machine(view.machine);
  v1::WorkerScheduling scheduling = v1::WORKER_SCHEDULING_UNSPECIFIED;
  WEFT_CHECK(v1::WorkerScheduling_Parse(std::string(Name(view.scheduling)), &scheduling),
             "a scheduling without a message");
  message.set_scheduling(scheduling);
  message.set_scheduling_why(view.scheduling_why);
  message.set_suspicion(view.suspicion);
  v1::WorkerNetwork& network = *message.mutable_network();
  network.set_bytes_per_second(view.network_bytes_per_second);
  network.set_source(ToMessage(view.network_source));
  for (const LinkView& link : view.links) {
    v1::NetworkLink& item = *network.add_links();
    item.set_machine(link.machine);
    item.set_bytes_per_second(link.bytes_per_second);
    item.set_latency_seconds(link.latency_seconds);
    item.set_measured_at(link.measured_at);
    item.set_error(link.error);
  }
  return message;
}

v1::Queue ToMessage(const QueueUse& use) {
  v1::Queue message;
  message.set_name(use.spec.name);
  message.set_parent(use.spec.parent);
  message.set_weight(use.spec.weight);
  message.set_quota_gpus(use.spec.quota_gpus);
  message.set_quota_cores(use.spec.quota_cores);
  if (use.spec.limit_gpus) message.set_limit_gpus(*use.spec.limit_gpus);
  if (use.spec.limit_cores) message.set_limit_cores(*use.spec.limit_cores);
  if (use.spec.max_priority) message.set_max_priority(*use.spec.max_priority);
  message.set_used_gpus(use.used.gpus);
  message.set_used_cores(use.used.cores);
  message.set_running_jobs(use.running_jobs);
  message.set_waiting_jobs(use.waiting_jobs);
  message.set_fair_share_ratio(use.fair_share_ratio);
  return message;
}

v1::ExplainJobResponse ToMessage(const JobExplanation& explained) {
  v1::ExplainJobResponse message;
  message.set_id(explained.id);
  message.set_state(StateMessage(explained.state));
  message.set_reason(ReasonMessage(explained.reason));
  message.set_message(explained.message);
  message.set_position(explained.position);
  message.set_waiting(explained.waiting);
  if (explained.start_in_seconds) message.set_start_in_seconds(*explained.start_in_seconds);
  if (explained.earliest_start_in_seconds) {
    message.set_earliest_start_in_seconds(*explained.earliest_start_in_seconds);
  }
  if (explained.latest_start_in_seconds) {
    message.set_latest_start_in_seconds(*explained.latest_start_in_seconds);
  }
  for (const std::string& way : explained.would_start_now) message.add_would_start_now(way);
  for (const std::string& id : explained.blocked_by) message.add_blocked_by(id);
  return message;
}

v1::MeasureLink ToMessage(const LinkOrder& order) {
  v1::MeasureLink message;
  message.set_request_id(order.request_id);
  message.set_token(order.token);
  message.set_limit_seconds(order.limit_seconds);
  message.set_host(order.host);
  message.set_port(static_cast<int32_t>(order.port));
  return message;
}

v1::Checkpoint ToMessage(const CheckpointRecord& checkpoint) {
  v1::Checkpoint message;
  message.set_job_id(checkpoint.job_id);
  message.set_step(checkpoint.step);
  message.set_epoch(checkpoint.epoch);
  message.set_path(checkpoint.path);
  message.set_bytes(checkpoint.bytes);
  message.set_verified(checkpoint.verified);
  message.set_created_at(checkpoint.created_at);
  return message;
}

v1::JobEvent ToMessage(const EventRecord& event) {
  v1::JobEvent message;
  message.set_epoch(event.epoch);
  message.set_time(event.time);
  message.set_kind(event.kind);
  message.set_text(event.text);
  return message;
}

v1::LogLine ToMessage(const LogRecord& line) {
  v1::LogLine message;
  message.set_sequence(line.sequence);
  message.set_epoch(line.epoch);
  message.set_rank(static_cast<int32_t>(line.rank));
  message.set_is_stderr(line.is_stderr);
  message.set_time(line.time);
  message.set_text(line.text);
  return message;
}

v1::StartAttempt ToMessage(const StartOrder& order) {
  v1::StartAttempt message;
  message.set_job_id(order.job_id);
  message.set_epoch(order.epoch);
  *message.mutable_spec() = ToProto<v1::JobSpec>(order.spec);
  *message.mutable_plan() = ToProto<v1::Plan>(order.plan);
  for (int64_t rank : order.ranks) message.add_ranks(static_cast<int32_t>(rank));
  message.set_world_size(static_cast<int32_t>(order.plan.rank_workers.size()));
  message.set_run_dir(order.run_dir);
  message.set_mean_seconds_between_failures(order.mean_seconds_between_failures);
  message.set_membership(order.membership);
  message.set_joins(order.joins);
  return message;
}

v1::Membership ToMessage(const MembershipOrder& order) {
  v1::Membership message;
  message.set_job_id(order.job_id);
  message.set_epoch(order.epoch);
  message.set_number(order.number);
  for (int64_t rank : order.ranks) message.add_ranks(static_cast<int32_t>(rank));
  for (int64_t rank : order.gone) message.add_gone(static_cast<int32_t>(rank));
  return message;
}

v1::AttemptState ToMessage(PlacementEvent event) {
  switch (event) {
    case PlacementEvent::kStarted:
      return v1::ATTEMPT_STARTED;
    case PlacementEvent::kTraining:
      return v1::ATTEMPT_TRAINING;
    case PlacementEvent::kFinished:
      return v1::ATTEMPT_FINISHED;
    case PlacementEvent::kFailed:
      return v1::ATTEMPT_FAILED;
    case PlacementEvent::kStopped:
      return v1::ATTEMPT_STOPPED;
    case PlacementEvent::kLost:
      break;
  }
  return v1::ATTEMPT_STATE_UNSPECIFIED;
}

std::optional<JobState> FromMessage(v1::JobState state) {
  return JobStateFromName(v1::JobState_Name(state));
}

std::optional<WorkerScheduling> FromMessage(v1::WorkerScheduling scheduling) {
  return WorkerSchedulingFromName(v1::WorkerScheduling_Name(scheduling));
}

Reason FromMessage(v1::Reason reason) {
  return ReasonFromName(v1::Reason_Name(reason)).value_or(Reason::kNone);
}

Result<std::vector<RunningAttempt>> FromMessage(
    const google::protobuf::RepeatedPtrField<v1::RunningAttempt>& running) {
  std::vector<RunningAttempt> attempts;
  for (const v1::RunningAttempt& item : running) {
    WEFT_ASSIGN_OR_RETURN(Progress progress, FromProto<Progress>(item.progress()));
    attempts.push_back(
        {item.job_id(),
         item.epoch(),
         std::move(progress),
         {"", item.activity(), item.silent_seconds(), item.longest_step_seconds(),
          Clip(item.rank_states(), kMaxLineBytes), std::max<int64_t>(item.saved_bytes(), 0),
          std::max<int64_t>(item.evaluated_sequences(), 0)},
         item.checkpoint_seconds(),
         item.evaluation_seconds(),
         item.data_wait_seconds()});
    for (int i = 0; i < std::min(item.ranks_size(), item.rank_busy_seconds_size()); ++i) {
      attempts.back().paces.push_back({item.ranks(i), "", item.rank_busy_seconds(i)});
    }
    attempts.back().membership = item.membership();
    attempts.back().first_rank = item.first_rank();
  }
  return attempts;
}

Result<WorkerHello> FromMessage(const v1::Register& message) {
  WorkerHello hello;
  hello.worker_id = message.worker_id();
  hello.incarnation = message.incarnation();
  hello.version = message.version();
  hello.api_level = message.api_level();
  hello.machine = message.machine();
  // A peer of another level may mean something else by its profile; it is refused anyway.
  WEFT_ASSIGN_OR_RETURN(hello.profile, FromProto<WorkerProfile>(message.profile()));
  WEFT_ASSIGN_OR_RETURN(hello.running, FromMessage(message.running()));
  return hello;
}

LinkAnswer FromMessage(const v1::LinkReply& message) {
  return {message.request_id(),
          message.error(),
          message.port(),
          message.send_bytes_per_second(),
          message.receive_bytes_per_second(),
          message.round_trip_seconds()};
}

HealthAnswer FromMessage(const v1::HealthReply& message) {
  return {message.request_id(), message.error(), message.device()};
}

Result<PlacementReport> FromMessage(const v1::AttemptReport& message) {
  PlacementReport report;
  report.epoch = message.epoch();
  report.reason = FromMessage(message.reason());
  report.message = message.message();
  report.summary_json = message.summary_json();
  report.signal = message.signal();
  if (message.has_first_rank()) report.first_rank = message.first_rank();
  switch (message.state()) {
    case v1::ATTEMPT_STARTED:
      report.event = PlacementEvent::kStarted;
      return report;
    case v1::ATTEMPT_TRAINING:
      report.event = PlacementEvent::kTraining;
      return report;
    case v1::ATTEMPT_FINISHED:
      report.event = PlacementEvent::kFinished;
      return report;
    case v1::ATTEMPT_FAILED:
      report.event = PlacementEvent::kFailed;
      return report;
    case v1::ATTEMPT_STOPPED:
      report.event = PlacementEvent::kStopped;
      return report;
    default:
      return InvalidError("an attempt report without a state");
  }
}

LogAppend FromMessage(const v1::LogBatch& message) {
  LogAppend logs;
  logs.job_id = message.job_id();
  logs.epoch = message.epoch();
  logs.first_rank = message.first_rank();
  logs.first_position = std::max<int64_t>(1, message.first_sequence());
  for (const v1::LogLine& line : message.lines()) {
    logs.lines.push_back({0, message.epoch(), line.rank(), line.is_stderr(), line.time(),
                          Clip(line.text(), kMaxLineBytes)});
  }
  return logs;
}

CheckpointRecord FromMessage(const v1::Checkpoint& message) {
  return {message.job_id(), message.step(),     message.epoch(),     message.path(),
          message.bytes(),  message.verified(), message.created_at()};
}

}  // namespace weft::coordinator
