#include "coordinator/scheduler/job_order.h"

#include <algorithm>
#include <limits>

namespace weft::coordinator {
namespace {

constexpr size_t kAhead = 4;  ///< Jobs that are fetched before their turn.

/// What is known of the job's size, by a measurement before a plan.
std::optional<JobSize> KnownSize(const QueuedJob& job) {
  if (job.last_plan != nullptr) {
    const double step =
        job.step_seconds > 0 ? job.step_seconds : job.last_plan->prediction.step_seconds;
    return JobSize{AmountOf(*job.last_plan), step};
  }
  return job.size;
}

bool GoesFirst(const QueuedJob& job) {
  return job.promised || (job.replanned && job.next_plan != nullptr);
}

/// The turn of a job among those of its queue: what is compared there, and no more, so that a long
/// queue is sorted without a look at its jobs.
struct TurnInQueue {
  bool first;
  int64_t priority;
  double at;
  size_t index;  ///< In the queue of the snapshot.

  bool operator<(const TurnInQueue& other) const {
    if (first != other.first) return first;
    if (priority != other.priority) return priority > other.priority;
    if (at != other.at) return at < other.at;
    return index < other.index;
  }
};

}  // namespace

double WorkOf(double seconds, const ComputeAmount& amount, const ComputeAmount& total) {
  const auto part = [](int64_t some, int64_t all) {
    return static_cast<double>(some) / static_cast<double>(std::max<int64_t>(all, 1));
  };
  return seconds *
         (amount.gpus > 0 ? part(amount.gpus, total.gpus) : part(amount.cores, total.cores));
}

double SecondsLeft(const RunningJob& job) {
  const double step = job.step_seconds > 0 ? job.step_seconds : job.plan->prediction.step_seconds;
  if (step <= 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(std::max<int64_t>(job.steps_left, 0)) * step;
}

Turn TurnRules::Of(size_t queue, int64_t priority, const ComputeAmount& amount, double seconds,
                   double submitted_at) const {
  const double work = WorkOf(seconds, amount, total_);
  return {queue, priority, amount, work, At(work, submitted_at)};
}

JobOrder::JobOrder(const SchedulerSnapshot& snapshot, const TurnRules& rules, QueueTree held)
    : held_(std::move(held)), leaves_(held_.size()), below_(held_.size()) {
  for (size_t queue = 0; queue < held_.size(); ++queue) {
    const size_t parent = held_.parent(queue);
    (parent == queue ? tops_ : below_[parent]).push_back(queue);
  }
  std::vector<RankedJob> ranked;
  ranked.reserve(snapshot.queue.size());
  std::vector<double> works;
  for (const QueuedJob& job : snapshot.queue) {
    const std::optional<JobSize> size = KnownSize(job);
    RankedJob& entry = ranked.emplace_back();
    entry.job = &job;
    entry.goes_first = GoesFirst(job);
    entry.known_size = size && job.steps_left > 0 && size->step_seconds > 0;
    if (size && size->step_seconds > 0) {
      entry.seconds = static_cast<double>(job.steps_left) * size->step_seconds;
    }
    entry.turn = rules.Of(held_.Find(job.queue), job.priority,
                          size ? size->amount : ComputeAmount{}, entry.seconds, job.submitted_at);
    if (entry.known_size) works.push_back(entry.turn.work);
  }
  double median = 0;
  if (!works.empty()) {
    const auto middle = works.begin() + std::ssize(works) / 2;
    std::nth_element(works.begin(), middle, works.end());
    median = *middle;
  }
  std::vector<std::vector<TurnInQueue>> turns(held_.size());
  for (size_t i = 0; i < ranked.size(); ++i) {
    Turn& turn = ranked[i].turn;
    if (!ranked[i].known_size) turn.at = rules.At(median, ranked[i].job->submitted_at);
    turns[turn.queue].push_back({ranked[i].goes_first, turn.priority, turn.at, i});
  }
  for (size_t queue = 0; queue < held_.size(); ++queue) {
    std::sort(turns[queue].begin(), turns[queue].end());
    leaves_[queue].jobs.reserve(turns[queue].size());
    for (const TurnInQueue& turn : turns[queue]) leaves_[queue].jobs.push_back(ranked[turn.index]);
  }
}

bool JobOrder::Before(const RankedJob& a, const RankedJob& b) const {
  if (a.goes_first != b.goes_first) return a.goes_first;
  if (const int quota =
          held_.CompareQuota(a.turn.queue, a.turn.amount, b.turn.queue, b.turn.amount)) {
    return quota < 0;
  }
  if (a.turn.priority != b.turn.priority) return a.turn.priority > b.turn.priority;
  if (const int share = held_.CompareShare(a.turn.queue, b.turn.queue)) return share < 0;
  return a.turn.at < b.turn.at;
}

size_t JobOrder::Better(size_t a, size_t b) const {
  if (a == held_.size()) return b;
  if (b == held_.size()) return a;
  const RankedJob& first = leaves_[a].jobs[leaves_[a].next];
  const RankedJob& second = leaves_[b].jobs[leaves_[b].next];
  return Before(second, first) ? b : a;
}

size_t JobOrder::Best(size_t queue) const {
  size_t best = leaves_[queue].next < leaves_[queue].jobs.size() ? queue : held_.size();
  for (const size_t child : below_[queue]) best = Better(best, Best(child));
  return best;
}

const RankedJob* JobOrder::Next() {
  size_t best = held_.size();
  for (const size_t top : tops_) best = Better(best, Best(top));
  if (best == held_.size()) return nullptr;
  Leaf& leaf = leaves_[best];
  const RankedJob* job = &leaf.jobs[leaf.next++];
  // Jobs lie in another order, and are looked at soon.
  if (leaf.next + kAhead < leaf.jobs.size()) __builtin_prefetch(leaf.jobs[leaf.next + kAhead].job);
  held_.Take(best, job->turn.amount);
  return job;
}

}  // namespace weft::coordinator
