#include "tests/simulation/users.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "common/spec/phases.h"

namespace weft::simulation {

using coordinator::AttemptRecord;
using coordinator::AuditRecord;
using coordinator::CallRecord;
using coordinator::IsTerminal;
using coordinator::JobState;
using coordinator::JobView;
using coordinator::Service;
using coordinator::SubmitResult;
using coordinator::WorkerScheduling;
using coordinator::WorkerView;
using std::chrono::milliseconds;
using std::chrono::seconds;

Users::Users(Timeline& timeline, Coordinator& coordinator, Rules& rules,
             std::vector<std::string> workers, int64_t gpus, int64_t machines)
    : timeline_(timeline),
      coordinator_(coordinator),
      rules_(rules),
      workers_(std::move(workers)),
      gpus_(gpus),
      machines_(machines) {}

std::shared_ptr<CallRecord> Users::Call(const std::string& method, const std::string& object) {
  auto call = std::make_shared<CallRecord>();
  call->record.who = "someone";
  call->record.role = "admin";
  call->record.peer = "call " + std::to_string(calls_.size());
  call->record.method = method;
  call->record.object = object;
  call->record.result = "OK";
  calls_.push_back(call);
  return call;
}

void Users::Answered(const std::shared_ptr<CallRecord>& call, bool changed) {
  if (changed && !call->stored) {
    rules_.Break(call->record.method + " of " + call->record.object +
                 " was answered, and the audit log has no record of it");
  }
}

void Users::Submit() {
  auto job = std::make_shared<Job>();
  job->request_id = "request-" + std::to_string(jobs_.size());
  JobSpec& spec = job->spec;
  spec.name = "job" + std::to_string(jobs_.size());
  spec.data.train = {"/data/a"};
  spec.resources.device = "cuda";
  const int64_t ranks = 1 + timeline_.Pick(gpus_);
  if (timeline_.Chance(0.25)) {
    // Its ranks come and go while it runs.
    spec.resources.device = "cpu";
    spec.resources.min_ranks = 1 + timeline_.Pick(std::min<int64_t>(2, machines_));
    spec.train.local_round_seconds = 1;
  } else if (timeline_.Chance(0.3)) {
    spec.resources.min_ranks = 1;
    spec.resources.max_ranks = ranks;
    spec.train.global_batch = 840;
  } else {
    spec.resources.ranks = ranks;
    spec.train.global_batch = 8 * ranks;
  }
  spec.train.steps = 5 + timeline_.Pick(200);
  spec.schedule.warmup_steps = 1;
  if (spec.train.local_round_seconds == 0 && timeline_.Chance(0.2)) {
    spec.phases.resize(2 + static_cast<size_t>(timeline_.Pick(2)));
    for (PhaseSpec& phase : spec.phases) phase.steps = 5 + timeline_.Pick(60);
  }
  spec.checkpoint.every_steps = 1 + timeline_.Pick(30);
  spec.retry.max_attempts = 1 + timeline_.Pick(6);
  SchedulingSpec& scheduling = spec.scheduling;
  scheduling.priority = timeline_.Chance(0.3) ? 10 : 0;
  if (timeline_.Chance(0.15)) scheduling.time_limit_seconds = 20 + timeline_.Pick(200);
  if (spec.resources.ranks > 0 && ranks <= kNarrowGpus) scheduling.queue = kNarrowQueue;
  if (timeline_.Chance(0.2)) {
    scheduling.group = "array";
    scheduling.group_limit = 1;
  }
  const std::string before = SomeJob();
  if (timeline_.Chance(0.2) && !before.empty()) scheduling.after = {before};
  jobs_.push_back(job);
  Ask(job);
}

void Users::Ask(const std::shared_ptr<Job>& job) {
  if (!job->id.empty() || job->refused) return;
  timeline_.After(timeline_.Between(milliseconds(500), seconds(3)), [this, job] { Ask(job); });
  if (coordinator_.service() == nullptr) return;
  const std::shared_ptr<CallRecord> call = Call("SubmitJob", "");
  coordinator_.service()->Submit(
      job->spec, job->request_id,
      [this, job, call](const Result<SubmitResult>& result) {
        if (!result.ok()) {
          if (result.status().code() == StatusCode::kExhausted) return;
          // What it should come after has failed, or was deleted.
          job->refused = result.status().message().starts_with("scheduling.after");
          if (job->refused) return;
          return rules_.Break(job->request_id + " is refused: " + result.status().message());
        }
        const std::string& id = result->view.job.id;
        if (!job->id.empty() && job->id != id) {
          rules_.Break(job->request_id + " became both " + job->id + " and " + id);
        }
        job->id = id;
        Answered(call, !result->already_submitted);
      },
      call);
}

std::string Users::SomeJob() {
  if (jobs_.empty()) return "";
  return jobs_[static_cast<size_t>(timeline_.Pick(std::ssize(jobs_)))]->id;
}

void Users::Meddle() {
  Service* service = coordinator_.service();
  if (service == nullptr) return;
  const std::string id = SomeJob();
  const std::string& worker = workers_[static_cast<size_t>(timeline_.Pick(std::ssize(workers_)))];
  const auto done = [](const Result<JobView>&) {};
  const auto call = [&](const char* method, const std::string& object) {
    timeline_.Note(std::string(method) + " " + object);
    return Call(method, object);
  };
  switch (timeline_.Pick(id.empty() ? 2 : 9)) {
    case 0:
      return service->SetWorkerScheduling(
          worker, timeline_.Chance(0.5) ? WorkerScheduling::kDraining : WorkerScheduling::kCordoned,
          "", [](const Result<WorkerView>&) {}, call("DrainWorker", worker));
    case 1:
      return service->SetWorkerScheduling(
          worker, WorkerScheduling::kSchedulable, "", [](const Result<WorkerView>&) {},
          call("ResumeWorker", worker));
    case 2:
      return service->Cancel(id, done, call("CancelJob", id));
    case 3:
      return service->Retry(id, done, call("RetryJob", id));
    case 4:
      return service->Pause(id, done, call("PauseJob", id));
    case 5:
    case 6:
      return service->Resume(id, done, call("ResumeJob", id));
    case 7:
      return service->Update(id, std::nullopt, timeline_.Pick(20), done, call("UpdateJob", id));
    default:
      if (!timeline_.Chance(0.3)) return;
      deleted_.insert(id);
      return service->Delete(
          id, false, [](const auto&) {}, call("DeleteJob", id));
  }
}

void Users::Settle() {
  Service* service = coordinator_.service();
  if (service == nullptr) return;
  for (const std::string& worker : workers_) {
    service->SetWorkerScheduling(worker, WorkerScheduling::kSchedulable, "",
                                 [](const Result<WorkerView>&) {});
  }
  const auto unfinished = coordinator_.database().ListUnfinished();
  for (const coordinator::UnfinishedJob& job : *unfinished) {
    if (job.state == JobState::kPaused || job.state == JobState::kPausing) {
      service->Resume(job.id, [](const Result<JobView>&) {});
    }
  }
}

bool Users::AllEnded() const {
  return std::all_of(jobs_.begin(), jobs_.end(),
                     [](const auto& job) { return job->refused || !job->id.empty(); }) &&
         coordinator_.database().ListUnfinished()->empty();
}

std::vector<std::string> Users::Unfinished() const {
  std::vector<std::string> unfinished;
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (job->refused) continue;
    if (job->id.empty()) {
      unfinished.push_back(job->request_id + ": not answered");
      continue;
    }
    const auto stored = coordinator_.database().GetJob(job->id);
    if (!stored.ok() ? deleted_.contains(job->id) : IsTerminal(stored->state)) continue;
    std::string& line = unfinished.emplace_back(job->id);
    if (!stored.ok()) {
      line += ": " + stored.status().message();
    } else {
      line += ": " + std::string(Name(stored->state)) + " " + std::string(Name(stored->reason)) +
              " " + stored->message;
    }
    if (coordinator_.service() == nullptr) continue;
    const Result<JobView> view = coordinator_.service()->Get(job->id);
    if (view.ok()) line += "; " + std::string(Name(view->job.reason)) + " " + view->job.message;
  }
  return unfinished;
}

void Users::Check(const Ranks& ranks) {
  Service& service = *coordinator_.service();
  std::set<std::string> ids;
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (job->refused) continue;
    if (!ids.insert(job->id).second) rules_.Break(job->id + " is the job of two requests");
    const Result<JobView> view = service.Get(job->id);
    if (!view.ok()) {
      if (!deleted_.contains(job->id))
        rules_.Break(job->id + " is lost: " + view.status().message());
      continue;
    }
    const coordinator::JobRecord& stored = view->job;
    const int64_t steps = StepsBefore(job->spec, PhaseCount(job->spec));
    if (stored.state == JobState::kSucceeded && ranks.SavedStep(job->id) < steps) {
      rules_.Break(job->id + " succeeded with step " + std::to_string(ranks.SavedStep(job->id)) +
                   " of " + std::to_string(steps));
    }
    if (ranks.AnyOf(job->id)) rules_.Break(job->id + " has ended, and some of its ranks live");
    int64_t last = 0;
    for (const AttemptRecord& attempt : view->attempts) {
      if (attempt.epoch <= last) rules_.Break(job->id + " has an epoch twice");
      if (!attempt.ended_at) rules_.Break(job->id + " has ended, and one of its attempts has not");
      last = attempt.epoch;
    }
    CheckLog(job->id);
    const double lived = *stored.ended_at - stored.submitted_at;
    if (std::fabs(view->ledger.Total() - lived) > 1e-3) {
      rules_.Break(job->id + " lived " + std::to_string(lived) + " s, its ledger sums to " +
                   std::to_string(view->ledger.Total()) + " s");
    }
  }
  const auto page = service.List({.limit = 10000});
  for (const coordinator::JobSummary& job : page->jobs) {
    if (!ids.contains(job.id)) rules_.Break(job.id + " is a job that nobody wanted");
  }
  if (!coordinator_.database().ListIntents()->empty()) rules_.Break("an order is never done");
  if (!*coordinator_.database().AuditChainHolds()) rules_.Break("the audit log does not hold");
  std::set<std::string> audited;
  const auto records =
      coordinator_.database().ListAudit({.who = "", .object = "", .limit = 100000});
  for (const AuditRecord& record : *records) {
    if (!audited.insert(record.peer).second) rules_.Break(record.peer + " is audited twice");
  }
  for (const std::shared_ptr<CallRecord>& call : calls_) {
    if (call->stored && !audited.contains(call->record.peer)) {
      rules_.Break("the audit log has lost " + call->record.method + " of " + call->record.object);
    }
  }
}

void Users::CheckLog(const std::string& job_id) {
  int64_t last = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> lines;  // by epoch and rank
  const auto log = coordinator_.database().ReadLogs(
      {.job_id = job_id, .rank = std::nullopt, .epoch = std::nullopt, .limit = 1000000});
  for (const coordinator::LogRecord& line : *log) {
    if (line.sequence != ++last) rules_.Break("a line of the log of " + job_id + " is missing");
    const int64_t number = ++lines[{line.epoch, line.rank}];
    if (line.text != std::to_string(number)) {
      rules_.Break("line " + std::to_string(number) + " of rank " + std::to_string(line.rank) +
                   " in attempt " + std::to_string(line.epoch) + " of " + job_id +
                   " is stored as " + line.text);
    }
  }
}

}  // namespace weft::simulation
