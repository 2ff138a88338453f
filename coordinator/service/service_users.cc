#include <algorithm>
#include <optional>

#include "common/env_confined.h"
#include "common/failpoint.h"
#include "common/formats/data_files.h"
#include "common/formats/imported_weights.h"
#include "common/model/job_paths.h"
#include "common/model/technique_cost.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "coordinator/service/imported_sizes.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr int64_t kMostPriority = 1000;  // as scheduling.priority
/// The check reads a little of files that are here: the caller waits. Workers may have others.
constexpr bool kMissingIsError = false;
constexpr DataCheckLimits kDataCheck = {
    .bytes_per_file = 256 << 10, .bytes = 4 << 20, .missing_is_error = kMissingIsError};

/// Where two specs differ first: "train.steps was 20, is 10".
std::string FirstDifference(const Json& before, const Json& now, const std::string& path = "") {
  if (before.is_object() && now.is_object()) {
    for (const auto& [key, value] : before.items()) {
      if (!now.contains(key) || now.at(key) == value) continue;
      return FirstDifference(value, now.at(key), path.empty() ? key : path + "." + key);
    }
  }
  constexpr size_t kShown = 60;
  return path + " was " + before.dump().substr(0, kShown) + ", is " + now.dump().substr(0, kShown);
}

}  // namespace

Result<Transaction> Audited(Result<Transaction> change, const std::shared_ptr<CallRecord>& by) {
  if (change.ok() && !change->empty()) change->audit = by;
  return change;
}

void Service::AnswerAgain(const std::string& job_id, const std::string& client_request_id,
                          const JobSpec& spec,
                          const std::function<void(Result<SubmitResult>)>& done) {
  Result<JobView> view = Get(job_id);
  if (!view.ok()) return done(view.status());
  const Json before = ToJson(view->job.spec), now = ToJson(spec);
  if (before == now) return done(SubmitResult{std::move(*view), true});
  done(ConflictError("client_request_id '" + client_request_id + "' was used before, for job " +
                     job_id + " of another spec (" + FirstDifference(before, now) +
                     "); hint: a new submission needs a request id of its own"));
}

void Service::Submit(const JobSpec& spec, const std::string& client_request_id,
                     const std::function<void(Result<SubmitResult>)>& done,
                     const std::shared_ptr<CallRecord>& by) {
  Status status = ValidateJob(spec);
  if (status.ok()) status = CheckPaths(spec, options_.data_roots, kRootsHint);
  JobRecord job;
  job.spec = spec;
  job.queue = spec.scheduling.queue;
  job.priority = spec.scheduling.priority;
  if (by != nullptr) job.owner = by->record.who;
  ConfinedEnv files(options_.data_roots, kRootsHint);
  if (status.ok()) status = ResolveImport(files, job.spec);
  // What was submitted is not judged again: files, queues and other jobs may have changed since.
  if (const Result<std::string> known = store_.JobOfRequest(job.owner, client_request_id);
      status.ok() && known.ok()) {
    if (by != nullptr) by->record.object = *known;
    return AnswerAgain(*known, client_request_id, job.spec, done);
  }
  if (status.ok()) status = CheckImportedWeights(files, job.spec, kMissingIsError);
  if (status.ok()) status = CheckDataFiles(files, job.spec, kDataCheck);
  if (status.ok()) status = CheckScheduling(job.spec);
  if (status.ok()) status = CheckPriority(job.queue, job.priority, by);
  if (status.ok() && (client_request_id.empty() || client_request_id.size() > 128)) {
    status = InvalidError("client_request_id must have 1 to 128 characters");
  }
  if (status.ok()) status = Failpoint("coordinator.submit.before_commit");
  if (!status.ok()) {
    done(status);
    return;
  }
  Transaction change;
  change.client_request_id = client_request_id;
  job.id = ids_.Next(spec.name);
  job.submitted_at = clock_.UnixSeconds();
  job.queued_at = job.submitted_at;
  job.run_dir = JoinPath(options_.run_root, job.id);
  change.events.push_back({job.id, 0, job.submitted_at, "submitted", client_request_id});
  if (by != nullptr) {
    by->record.object = job.id;
    change.audit = by;
  }
  change.job = job;
  store_.Commit(
      change, [this, job, client_request_id, done, by](Result<CommitResult> result) mutable {
        if (!result.ok()) {
          // Some job has or had the random id, or one before it was deleted meanwhile.
          if (result.status().code() == StatusCode::kConflict) {
            looks_.Post([this, job, client_request_id, done, by] {
              Submit(job.spec, client_request_id, done, by);
            });
            return;
          }
          metrics_.StoreFailed();
          done(result.status().WithContext("store the job"));
          return;
        }
        if (Status crash = Failpoint("coordinator.submit.after_commit"); !crash.ok()) {
          done(crash);
          return;
        }
        if (!result->existing_job_id.empty()) {
          if (by != nullptr) by->record.object = result->existing_job_id;
          loop_.Post([this, id = result->existing_job_id, client_request_id, spec = job.spec,
                      done] { AnswerAgain(id, client_request_id, spec, done); });
          return;
        }
        metrics_.JobSubmitted(job.queue);
        job.version = result->job_version;
        job.ordinal = result->job_ordinal;
        loop_.Post([this, job] {
          // A cancel may have loaded it from the store meanwhile.
          if (!live_.count(job.id)) {
            auto live = std::make_unique<LiveJob>();
            live->current.job = job;
            live->current.retry = options_.retry;
            live->SetPhase();
            live->progress.steps_total = StepsBefore(job.spec, PhaseCount(job.spec));
            live->account = LedgerAccount(job.submitted_at);
            Add(std::move(live));
          }
          (void)WaitForJobs(*live_.at(job.id));
          ScheduleSoon();
        });
        done(SubmitResult{JobView{std::move(job), {}, {}}, false});
      });
}

void Service::ChangeForUser(const std::string& job_id, Decide decide,
                            std::function<void(Result<JobView>)> done,
                            std::shared_ptr<CallRecord> by) {
  loop_.Post(
      [this, job_id, decide = std::move(decide), done = std::move(done), by = std::move(by)] {
        Change(
            job_id, [decide, by](const JobCase& current) { return Audited(decide(current), by); },
            [this, job_id, done](const Status& status) {
              done(status.ok() ? Get(job_id) : Result<JobView>(status));
            },
            false);
      });
}

void Service::Cancel(const std::string& job_id, std::function<void(Result<JobView>)> done,
                     std::shared_ptr<CallRecord> by) {
  ChangeForUser(
      job_id, [this](const JobCase& current) { return CancelJob(current, clock_.UnixSeconds()); },
      std::move(done), std::move(by));
}

void Service::Retry(const std::string& job_id, std::function<void(Result<JobView>)> done,
                    std::shared_ptr<CallRecord> by) {
  ChangeForUser(
      job_id, [this](const JobCase& current) { return RetryJob(current, clock_.UnixSeconds()); },
      std::move(done), std::move(by));
}

void Service::Pause(const std::string& job_id, std::function<void(Result<JobView>)> done,
                    std::shared_ptr<CallRecord> by) {
  ChangeForUser(
      job_id, [this](const JobCase& current) { return PauseJob(current, clock_.UnixSeconds()); },
      std::move(done), std::move(by));
}

void Service::Resume(const std::string& job_id, std::function<void(Result<JobView>)> done,
                     std::shared_ptr<CallRecord> by) {
  ChangeForUser(
      job_id, [this](const JobCase& current) { return ResumeJob(current, clock_.UnixSeconds()); },
      std::move(done), std::move(by));
}

void Service::Update(const std::string& job_id, const std::optional<std::string>& queue,
                     std::optional<int64_t> priority, std::function<void(Result<JobView>)> done,
                     std::shared_ptr<CallRecord> by) {
  if (Status known = queue ? CheckQueue(*queue) : OkStatus(); !known.ok()) {
    done(known);
    return;
  }
  if (priority && std::abs(*priority) > kMostPriority) {
    done(InvalidError("priority is " + std::to_string(*priority) + ", but must be -1000 to 1000"));
    return;
  }
  ChangeForUser(
      job_id,
      [this, queue, priority, by](const JobCase& current) -> Result<Transaction> {
        const JobRecord& job = current.job;
        WEFT_RETURN_IF_ERROR(
            CheckPriority(queue.value_or(job.queue), priority.value_or(job.priority), by));
        return UpdateJob(current, queue, priority, clock_.UnixSeconds());
      },
      std::move(done), by);
}

Result<std::string> Service::ResolveId(const std::string& id_or_prefix) {
  if (id_or_prefix.empty()) return InvalidError("a job id is needed; hint: weft job list");
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> ids, store_.FindJobIds(id_or_prefix, 3));
  if (ids.empty()) {
    return NotFoundError("there is no job '" + id_or_prefix + "'; hint: weft job list");
  }
  if (ids.front() == id_or_prefix || ids.size() == 1) return ids.front();
  return InvalidError("'" + id_or_prefix + "' is the beginning of several jobs (" + ids[0] + ", " +
                      ids[1] + (ids.size() > 2 ? ", ..." : "") + "); hint: give more of the id");
}

Result<JobView> Service::Get(const std::string& job_id) {
  WEFT_ASSIGN_OR_RETURN(JobRecord job, store_.GetJob(job_id));
  WEFT_ASSIGN_OR_RETURN(std::vector<AttemptRecord> attempts, store_.ListAttempts(job_id));
  // One that began since the job was read is not of that state.
  std::erase_if(attempts, [&](const auto& attempt) { return attempt.epoch > job.last_epoch; });
  return Compose(std::move(job), std::move(attempts));
}

Result<JobPage> Service::List(const JobQuery& query) {
  JobPage page;
  WEFT_ASSIGN_OR_RETURN(page.jobs, store_.ListJobs(query));
  if (std::ssize(page.jobs) == query.limit) page.next_before_ordinal = page.jobs.back().ordinal;
  std::lock_guard lock(view_mutex_);
  for (JobSummary& job : page.jobs) {
    auto it = overlays_.find(job.id);
    if (it == overlays_.end() || IsTerminal(job.state)) continue;
    const Overlay& overlay = it->second;
    if (overlay.progress) {
      job.progress = *overlay.progress;
      job.progress.norms.clear();
      job.progress.recent_losses.clear();
    }
    if (job.state == JobState::kQueued && overlay.reason != Reason::kNone) {
      job.reason = overlay.reason;
      job.message = overlay.message;
    }
  }
  return page;
}

std::vector<WorkerView> Service::Workers() {
  std::lock_guard lock(view_mutex_);
  std::vector<WorkerView> views;
  for (const auto& [id, session] : sessions_) {
    WorkerView view;
    view.profile = Calibrated(session.profile);
    view.state = session.State();
    view.last_heartbeat_at = session.last_heartbeat_at;
    view.version = session.version;
    view.machine = session.machine;
    view.network_bytes_per_second = session.profile.network_bytes_per_second;
    view.network_source = session.given_network > 0           ? NetworkSource::kGiven
                          : view.network_bytes_per_second > 0 ? NetworkSource::kMeasured
                                                              : NetworkSource::kAssumed;
    if (view.network_source == NetworkSource::kAssumed) {
      view.network_bytes_per_second = session.profile.loopback_bytes_per_second;
    }
    view.links = links_.Of(session.machine);
    if (auto said = worker_scheduling_.find(id); said != worker_scheduling_.end()) {
      view.scheduling = said->second.scheduling;
      view.scheduling_why = said->second.why;
    }
    view.suspicion = suspicions_.Of(id, clock_.UnixSeconds());
    if (auto jobs = placed_.find(id); jobs != placed_.end()) {
      view.job_ids.assign(jobs->second.begin(), jobs->second.end());
    }
    views.push_back(std::move(view));
  }
  return views;
}

Result<std::vector<CheckpointRecord>> Service::Checkpoints(const std::string& job_id) {
  WEFT_RETURN_IF_ERROR(store_.OwnerOf(job_id).status());
  return store_.ListCheckpoints(job_id);
}

}  // namespace weft::coordinator
