// The queues as they are configured, and what their jobs hold.
#include <algorithm>

#include "common/log.h"
#include "coordinator/access/role.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {

Status Service::SetQueues(const QueuesSpec& queues) {
  WEFT_RETURN_IF_ERROR(ValidateQueues(queues));
  {
    std::lock_guard lock(view_mutex_);
    queues_ = queues;
  }
  WEFT_LOG_INFO << "queues: " << queues.queues.size() << " declared";
  loop_.Post([this] {
    CountQueues();
    ScheduleSoon();
  });
  return OkStatus();
}

Status Service::CheckQueue(const std::string& name) {
  std::lock_guard lock(view_mutex_);
  return CheckQueueOfJob(queues_, name);
}

Status Service::CheckPriority(const std::string& queue, int64_t priority,
                              const std::shared_ptr<CallRecord>& by) {
  if (by != nullptr && by->record.role == Name(Role::kAdmin)) return OkStatus();
  std::lock_guard lock(view_mutex_);
  return CheckPriorityOfJob(queues_, queue, priority);
}

void Service::Queues(std::function<void(std::vector<QueueUse>)> done) {
  loop_.Post([this, done = std::move(done)] { done(CountQueues()); });
}

std::vector<QueueUse> Service::CountQueues() {
  std::vector<QueuedUse> jobs;
  for (const auto& [id, live] : live_) {
    const JobRecord& job = live->current.job;
    if (IsTerminal(job.state) || job.state == JobState::kPaused) continue;
    QueuedUse& use = jobs.emplace_back();
    use.queue = job.queue;
    use.waits = job.state == JobState::kQueued && !live->reserved;
    if (live->reserved) {
      use.held = AmountOf(*live->reserved);
    } else if (!use.waits) {
      use.held = AmountOf(live->current.attempt->plan);
    }
  }
  QueuesSpec queues;
  {
    std::lock_guard lock(view_mutex_);
    queues = queues_;
  }
  std::vector<QueueUse> uses = QueueUses(queues, AmountOf(scheduled_cluster_), jobs);
  metrics_.SetQueues(uses);
  return uses;
}

void Service::Explain(const std::string& job_id, std::function<void(Result<JobExplanation>)> done) {
  const Result<JobView> view = Get(job_id);
  if (!view.ok()) return done(view.status());
  JobExplanation explained;
  explained.id = view->job.id;
  explained.state = view->job.state;
  explained.reason = view->job.reason;
  explained.message = view->job.message;
  if (explained.state != JobState::kQueued) return done(explained);
  loop_.Post([this, explained = std::move(explained), done = std::move(done)]() mutable {
    ExplainWait(explained);
    if (explained.position > 0) explained.would_start_now = WaysToStart(explained.id);
    done(std::move(explained));
  });
}

void Service::ExplainWait(JobExplanation& explained) {
  std::lock_guard lock(view_mutex_);
  const auto overlay = overlays_.find(explained.id);
  if (overlay == overlays_.end() || !overlay->second.wait) return;
  const WaitDecision& wait = *overlay->second.wait;
  explained.position = wait.position;
  explained.waiting = overlay->second.waiting;
  explained.blocked_by = wait.blocked_by;
  // What was from then is less from now.
  const double passed = clock_.UnixSeconds() - overlay->second.decided_at;
  const auto from_now = [passed](std::optional<double> seconds) {
    if (seconds) seconds = std::max(0.0, *seconds - passed);
    return seconds;
  };
  explained.start_in_seconds = from_now(wait.start_in_seconds);
  explained.earliest_start_in_seconds = from_now(wait.earliest_start_in_seconds);
  explained.latest_start_in_seconds = from_now(wait.latest_start_in_seconds);
}

std::vector<std::string> Service::WaysToStart(const std::string& job_id) {
  const auto it = live_.find(job_id);
  if (it == live_.end() || !HasATurn(job_id, *it->second)) return {};
  // Others that wait do not matter, and may be many.
  SchedulerSnapshot snapshot = TakeActive();
  for (const auto& [id, live] : live_) {
    if (live->reserved) AddReserved(id, *live, snapshot);
  }
  snapshot.queue.push_back(AsQueued(job_id, *it->second));
  return WouldStartNow(snapshot, [this](const JobSpec& spec, const ClusterProfile& cluster) {
    return plans_.Recall(spec, cluster);
  });
}

}  // namespace weft::coordinator
