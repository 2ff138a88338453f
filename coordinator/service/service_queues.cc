// The queues as they are configured, and what their jobs hold.
#include <algorithm>

#include "common/log.h"
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

Result<JobExplanation> Service::Explain(const std::string& id_or_prefix) {
  WEFT_ASSIGN_OR_RETURN(const JobView view, Get(id_or_prefix));
  JobExplanation explained;
  explained.id = view.job.id;
  explained.state = view.job.state;
  explained.reason = view.job.reason;
  explained.message = view.job.message;
  std::lock_guard lock(view_mutex_);
  const auto overlay = overlays_.find(view.job.id);
  if (view.job.state != JobState::kQueued || overlay == overlays_.end() || !overlay->second.wait) {
    return explained;
  }
  const WaitDecision& wait = *overlay->second.wait;
  explained.position = wait.position;
  explained.waiting = overlay->second.waiting;
  explained.would_start_now = wait.would_start_now;
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
  return explained;
}

}  // namespace weft::coordinator
