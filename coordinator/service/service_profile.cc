#include <algorithm>

#include "coordinator/recovery/peers.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr int64_t kMaxSteps = 100;
constexpr auto kPatience = std::chrono::hours(1);

}  // namespace

void Service::Profile(const std::string& job_id, int64_t steps,
                      std::function<void(Result<JobProfile>)> done) {
  loop_.Post([this, job_id, steps, done = std::move(done)] {
    if (Status status = StartProfile(steps, {job_id, nullptr, done}); !status.ok()) {
      done(status);
    }
  });
}

Status Service::StartProfile(int64_t steps, ProfileCall call) {
  if (steps < 1 || steps > kMaxSteps) {
    return InvalidError("steps is " + std::to_string(steps) + ", but must be 1 to " +
                        std::to_string(kMaxSteps));
  }
  auto it = live_.find(call.job_id);
  if (it == live_.end() || it->second->current.job.state != JobState::kRunning ||
      !it->second->current.attempt) {
    WEFT_ASSIGN_OR_RETURN(JobRecord job, store_.GetJob(call.job_id));
    return ConflictError("job " + call.job_id + " is " + std::string(Name(job.state)) +
                         " and only a RUNNING one has steps to record; hint: weft job wait " +
                         call.job_id + " --for RUNNING");
  }
  const AttemptRecord& attempt = *it->second->current.attempt;
  auto placement = std::find_if(attempt.placements.begin(), attempt.placements.end(),
                                [&](const PlacementRecord& each) {
                                  return !each.ranks.empty() && HasFirstRank(attempt, each);
                                });
  auto session = placement == attempt.placements.end() ? sessions_.end()
                                                       : sessions_.find(placement->worker_id);
  if (session == sessions_.end() || session->second.link == nullptr) {
    return UnavailableError("the worker of rank 0 of job " + call.job_id +
                            " is not attached; hint: try again in some seconds");
  }
  call.link = session->second.link;
  const int64_t id = next_profile_++;
  call.link->Profile(id, {call.job_id, attempt.epoch}, steps);
  profiles_[id] = std::move(call);
  loop_.PostAfter(kPatience, [this, id] {
    EndProfile(id, UnavailableError("the steps were not done within an hour"));
  });
  return OkStatus();
}

void Service::ReportProfile(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                            Result<std::string> report_json) {
  loop_.Post([this, link, request_id, report_json = std::move(report_json)] {
    auto it = profiles_.find(request_id);
    if (it != profiles_.end() && it->second.link == link) EndProfile(request_id, report_json);
  });
}

void Service::EndProfile(int64_t request_id, Result<std::string> report_json) {
  auto it = profiles_.find(request_id);
  if (it == profiles_.end()) return;
  const ProfileCall call = std::move(it->second);
  profiles_.erase(it);
  if (report_json.ok()) {
    call.done(JobProfile{call.job_id, *std::move(report_json)});
  } else {
    call.done(report_json.status().WithContext("profile of job " + call.job_id));
  }
}

void Service::EndProfilesOf(const std::shared_ptr<WorkerLink>& link) {
  std::vector<int64_t> ids;
  for (const auto& [id, call] : profiles_) {
    if (call.link == link) ids.push_back(id);
  }
  for (int64_t id : ids) {
    EndProfile(id, UnavailableError("its worker lost the connection; hint: try again"));
  }
}

}  // namespace weft::coordinator
