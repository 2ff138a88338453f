// What jobs wait for besides machines: jobs that they come after, and room in their group; and how
// long they may run.
#include <algorithm>
#include <cmath>

#include "common/clock.h"
#include "common/spec/spec_json.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Jobs of one group: of one name, and of one person.
using GroupKey = std::pair<std::string, std::string>;

GroupKey GroupOf(const JobRecord& job) {
  return {job.owner, job.spec.scheduling.group};
}

/// Seconds as people write them: "90 s".
std::string SecondsText(double seconds) {
  return std::to_string(std::llround(seconds)) + " s";
}

std::string HasEnded(const std::string& job_id, JobState state) {
  return "job " + job_id + ", which it comes after, " +
         (state == JobState::kCancelled ? "was CANCELLED" : "has FAILED");
}

}  // namespace

Status Service::CheckScheduling(const JobSpec& spec) {
  WEFT_RETURN_IF_ERROR(CheckQueue(spec.scheduling.queue));
  for (const std::string& id : spec.scheduling.after) {
    Result<JobRecord> before = store_.GetJob(id);
    if (before.status().code() == StatusCode::kNotFound) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> longer, store_.FindJobIds(id, 2));
      return InvalidError(
          "scheduling.after: there is no job '" + id + "'" +
          (longer.size() == 1 ? "; did you mean '" + longer[0] + "'?" : "; hint: weft job list"));
    }
    if (!before.ok()) return before.status();
    if (before->state == JobState::kFailed || before->state == JobState::kCancelled) {
      return InvalidError("scheduling.after: job " + id + " is " +
                          std::string(Name(before->state)) + "; hint: weft job retry " + id);
    }
  }
  return OkStatus();
}

Status Service::WaitForJobs(LiveJob& live) {
  const JobRecord& job = live.current.job;
  live.waits_for.clear();
  Status unread;
  for (const std::string& id : job.spec.scheduling.after) {
    const auto it = live_.find(id);
    // One that is not there was forgotten before a user retried this one: nobody forgets it while
    // this one has not ended.
    JobState state = JobState::kFailed;
    if (it != live_.end()) {
      state = it->second->current.job.state;
    } else if (const Result<JobRecord> before = store_.GetJob(id); before.ok()) {
      state = before->state;
    } else if (before.status().code() != StatusCode::kNotFound) {
      unread =
          before.status().WithContext("read job " + id + ", which job " + job.id + " comes after");
      live.waits_for.insert(id);
      continue;
    }
    if (state == JobState::kSucceeded) continue;
    live.waits_for.insert(id);  // also of one that failed: until it is given up it must not start
    if (IsTerminal(state)) {
      GiveUp(job.id, Reason::kJobBeforeFailed, HasEnded(id, state));
      return OkStatus();
    }
    dependents_[id].insert(job.id);
  }
  return unread;
}

void Service::EndWaits(const JobRecord& ended) {
  const auto found = dependents_.find(ended.id);
  if (found == dependents_.end()) return;
  const std::set<std::string> waiting = std::move(found->second);
  dependents_.erase(found);
  for (const std::string& id : waiting) {
    const auto it = live_.find(id);
    if (it == live_.end()) continue;
    if (ended.state == JobState::kSucceeded) {
      it->second->waits_for.erase(ended.id);
      ScheduleSoon();
    } else {
      GiveUp(id, Reason::kJobBeforeFailed, HasEnded(ended.id, ended.state));
    }
  }
}

void Service::GiveUp(const std::string& job_id, Reason reason, const std::string& why) {
  // Not from within the change that led here.
  loop_.Post([this, job_id, reason, why] {
    if (!live_.contains(job_id)) return;
    Change(
        job_id,
        [this, reason, why](const JobCase& current) {
          return GiveUpJob(current, reason, why, clock_.UnixSeconds());
        },
        [](const Status&) {}, true);
  });
}

std::vector<HeldJob> Service::HoldBack() const {
  std::map<int64_t, HeldJob> held;  // by order of submission
  std::map<GroupKey, int64_t> active;
  for (const auto& [ordinal, live] : linked_) {
    const JobRecord& job = live->current.job;
    const bool runs = job.state != JobState::kQueued && job.state != JobState::kPaused;
    if (!job.spec.scheduling.group.empty() && (runs || live->reserved)) ++active[GroupOf(job)];
  }
  std::vector<const LiveJob*> limited;
  for (const auto& [ordinal, linked] : linked_) {
    const LiveJob& live = *linked;
    if (live.current.job.state != JobState::kQueued) continue;
    const SchedulingSpec& scheduling = live.current.job.spec.scheduling;
    if (!live.waits_for.empty()) {
      HeldJob& job = held[ordinal];
      job.id = live.current.job.id;
      for (const std::string& id : scheduling.after) {
        if (live.waits_for.contains(id)) job.blocked_by.push_back(id);
      }
      job.why = "comes after job " + job.blocked_by.front();
      if (job.blocked_by.size() > 1) {
        job.why += " and " + std::to_string(job.blocked_by.size() - 1) + " more";
      }
      job.why += ", which must have succeeded first";
    } else if (scheduling.group_limit > 0 && !live.reserved && InfeasibleNow(live) == nullptr) {
      limited.push_back(&live);
    }
  }
  // Those of a group that go first may try to start, the others wait for them.
  std::stable_sort(limited.begin(), limited.end(), [](const LiveJob* a, const LiveJob* b) {
    return a->current.job.priority > b->current.job.priority;
  });
  for (const LiveJob* live : limited) {
    const JobRecord& job = live->current.job;
    int64_t& used = active[GroupOf(job)];
    const int64_t limit = job.spec.scheduling.group_limit;
    if (used++ < limit) continue;
    held[job.ordinal] = {job.id,
                         std::to_string(limit) + " jobs of its group " + job.spec.scheduling.group +
                             " run or go first, as many as scheduling.group_limit allows",
                         {}};
  }
  std::vector<HeldJob> in_order;
  for (auto& [ordinal, job] : held) in_order.push_back(std::move(job));
  return in_order;
}

void Service::WatchTime(const std::string& job_id) {
  const auto it = live_.find(job_id);
  if (it == live_.end()) return;
  const JobCase& current = it->second->current;
  const double limit = current.job.spec.scheduling.time_limit_seconds;
  const JobState state = current.job.state;
  const bool runs = state == JobState::kStarting || state == JobState::kRunning;
  if (limit <= 0 || (!runs && state != JobState::kQueued)) return;
  const double left = limit - RunSeconds(current, clock_.UnixSeconds());
  if (left <= 0) {
    GiveUp(job_id, Reason::kTimeLimit,
           "it ran for " + SecondsText(limit) +
               ", as long as scheduling.time_limit_seconds allows; hint: its last checkpoint is "
               "kept, weft job retry gives it that time again");
  } else if (runs) {
    const auto delay = FromSeconds(left);
    loop_.PostAfter(delay, [this, job_id, epoch = current.attempt->epoch] {
      const auto now = live_.find(job_id);
      if (now == live_.end() || !now->second->current.attempt) return;
      if (now->second->current.attempt->epoch == epoch) WatchTime(job_id);
    });
  }
}

}  // namespace weft::coordinator
