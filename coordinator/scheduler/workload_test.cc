// Random workloads, each run to its end on a virtual clock, with what must hold of every pass.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct WorkloadJob {
  std::string id;
  JobSpec spec;
  double submitted_at = 0, seconds = 0, left = 0, started = 0;
  int64_t priority = 0, preemptions = 0;
  std::string queue = kDefaultQueue;
  Plan plan, next;
  bool submitted = false, running = false, ran = false, ended = false, promised = false,
       resized = false;
  double first_start = -1;
  double promised_start = kNever;  ///< Earliest start that a pass has said while it was first.
};

/// One random workload.
class Workload {
 public:
  enum class Kind {
    kPlain,
    kFirstComeFirstServed,
    kPriorities,
    kQueues,
    kOpenSizes,
    kOpenSizesOnCpus
  };

  Workload(uint64_t seed, Kind kind) : random_(seed), kind_(kind), situation_(1 + Draw(3)) {
    units_ = AmountOf(situation_.snapshot.cluster).gpus;
    if (OnCpus()) MakeCoresOfGpus();
    SchedulerRules& rules = situation_.snapshot.rules;
    rules.scale_up.after_seconds = 0;
    rules.age_factor = static_cast<double>(Draw(40));
    rules.preempt_factor = Draw(2) == 0 ? 0 : 1.5;
    if (kind == Kind::kFirstComeFirstServed) rules.age_factor = rules.preempt_factor = 0;
    rules.protected_seconds = static_cast<double>(1 + Draw(60));
    rules.scale_up.restart.assumed_start_seconds = 1;
    if (HasQueues()) {
      const int64_t half = units_ / 2;
      situation_.snapshot.queues = {Queue("a", half), Queue("b", units_ - half), Queue("c", 0)};
      QueueSpec& limited = situation_.snapshot.queues[2];
      (OnCpus() ? limited.limit_cores : limited.limit_gpus) = units_ - 1;
    }
    if (HasOpenSizes()) rules.scale_up.after_seconds = static_cast<double>(1 + Draw(60));
    const int jobs = 4 + Draw(10);
    for (int i = 0; i < jobs; ++i) {
      WorkloadJob& job = jobs_.emplace_back();
      job.id = "j" + std::to_string(i);
      job.submitted_at = static_cast<double>(Draw(500));
      job.seconds = job.left = static_cast<double>(1 + Draw(400));
      job.spec.resources.device = OnCpus() ? "cpu" : "cuda";
      job.spec.resources.ranks = 1 + Draw(Draw(3) == 0 ? static_cast<int>(units_) - 1 : 4);
      if (!Equal()) job.priority = Draw(3);
      if (HasQueues()) job.queue = std::string(1, "abc"[Draw(3)]);
      if (HasOpenSizes() && Draw(2) == 0) job.spec.resources.ranks = 0;
    }
  }

  void Run() {
    for (int events = 0; events < 2000; ++events) {
      double then = kNever;
      for (const WorkloadJob& job : jobs_) {
        if (!job.submitted) then = std::min(then, job.submitted_at);
        if (job.running) then = std::min(then, now_ + job.left);
      }
      if (waits_) then = std::min(then, now_ + 30);
      if (then == kNever) break;
      Advance(then);
      for (int passes = 0; Pass(); ++passes) {
        ASSERT_LT(passes, 30) << "jobs displace each other for ever";
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const WorkloadJob& job : jobs_) {
      ASSERT_TRUE(job.ended) << job.id << " starves";
      CheckWait(job);
    }
  }

  /// First come, first served, and nobody is displaced: the start that the first job is promised is
  /// kept, whoever comes later.
  bool KeepsReservations() const {
    const SchedulerRules& rules = situation_.snapshot.rules;
    return Equal() && rules.age_factor <= 0 && rules.preempt_factor <= 0;
  }

 private:
  /// All jobs have the same priority and one queue.
  bool Equal() const { return kind_ == Kind::kPlain || kind_ == Kind::kFirstComeFirstServed; }
  bool OnCpus() const { return kind_ == Kind::kOpenSizesOnCpus; }
  bool HasOpenSizes() const { return kind_ == Kind::kOpenSizes || OnCpus(); }
  bool HasQueues() const { return kind_ == Kind::kQueues || HasOpenSizes(); }
  /// Each machine has as many cores as it had GPUs, and none of these.
  void MakeCoresOfGpus() {
    SchedulerSnapshot& snapshot = situation_.snapshot;
    for (WorkerProfile& worker : snapshot.cluster.workers) {
      worker.device = "cpu";
      worker.cores = std::ssize(worker.devices);
      worker.devices.clear();
    }
    snapshot.free = AllFree(snapshot.cluster);
  }
  int Draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  QueueSpec Queue(const std::string& name, int64_t quota) const {
    QueueSpec queue;
    queue.name = name;
    (OnCpus() ? queue.quota_cores : queue.quota_gpus) = quota;
    return queue;
  }
  WorkloadJob& Find(const std::string& id) {
    return jobs_[static_cast<size_t>(std::atoi(id.c_str() + 1))];
  }

  void Advance(double then) {
    for (WorkloadJob& job : jobs_) {
      if (job.running) job.left -= then - now_;
      if (job.running && job.left <= 1e-9) {
        job.running = false;
        job.ended = true;
        displaced_.erase(job.id);
      }
      if (job.submitted_at <= then) job.submitted = true;
    }
    now_ = then;
  }

  /// Whether another pass must follow, since jobs were stopped.
  bool Pass() {
    SchedulerSnapshot& snapshot = situation_.snapshot;
    snapshot.now = now_;
    snapshot.queue.clear();
    snapshot.active.clear();
    snapshot.free = AllFree(snapshot.cluster);
    for (WorkloadJob& job : jobs_) {
      if (!job.submitted || job.ended) continue;
      // A job of an open size takes as long on any number.
      const auto units = static_cast<double>(
          job.ran ? ComputeOf(job.plan) : std::max<int64_t>(job.spec.resources.ranks, 1));
      const auto steps = static_cast<int64_t>(std::ceil(job.left * units));
      if (job.running) {
        TakeCapacity(job.plan, snapshot.free);
        ActiveJob& active = snapshot.active.emplace_back();
        active.id = job.id;
        active.queue = job.queue;
        active.priority = job.priority;
        active.submitted_at = job.submitted_at;
        active.preemptions = job.preemptions;
        active.unsaved_seconds = now_ - job.started;
        active.job.spec = &job.spec;
        active.job.plan = &job.plan;
        active.job.attempt_seconds = now_ - job.started;
        active.job.steps_left = steps;
        active.job.step_seconds = 1 / units;
        active.job.saved = true;
      } else {
        QueuedJob& queued = snapshot.queue.emplace_back();
        queued.id = job.id;
        queued.queue = job.queue;
        queued.priority = job.priority;
        queued.spec = &job.spec;
        queued.submitted_at = job.submitted_at;
        queued.steps_left = steps;
        queued.preemptions = job.preemptions;
        if (job.spec.resources.ranks > 0) {
          const int64_t ranks = job.spec.resources.ranks;
          queued.size =
              JobSize{OnCpus() ? ComputeAmount{0, ranks} : ComputeAmount{ranks, 0}, 1 / units};
        }
        queued.replanned = job.resized;
        if (job.resized) queued.next_plan = &job.next;
        if (job.ran) queued.last_plan = &job.plan;
        queued.promised = job.promised;
      }
    }
    if (snapshot.queue.empty()) {
      waits_ = false;
      return false;
    }
    const SchedulerDecisions decisions = situation_.Decide();
    Check(snapshot, decisions);
    if (::testing::Test::HasFatalFailure()) return false;
    waits_ = !decisions.waits.empty();
    awaited_.clear();
    for (const PreemptDecision& preemption : decisions.preemptions) {
      WorkloadJob& victim = Find(preemption.job_id);
      victim.running = false;
      ++victim.preemptions;
      displaced_[victim.id][preemption.for_job] = victim.left;
      awaited_.insert(preemption.for_job);
      Find(preemption.for_job).promised = true;
    }
    for (const ResizeDecision& resize : decisions.resizes) {
      WorkloadJob& job = Find(resize.job_id);
      job.running = false;
      job.resized = true;
      job.next = resize.change.plan;
      if (!resize.for_job.empty()) Find(resize.for_job).promised = true;
    }
    for (const StartDecision& start : decisions.starts) {
      WorkloadJob& job = Find(start.job_id);
      job.running = job.ran = true;
      job.promised = job.resized = false;
      job.plan = start.plan;
      job.started = now_;
      if (job.first_start < 0) job.first_start = now_;
    }
    return !decisions.preemptions.empty() || !decisions.resizes.empty();
  }

  void Check(const SchedulerSnapshot& snapshot, const SchedulerDecisions& decisions) {
    ASSERT_EQ(decisions.starts.size() + decisions.waits.size(), snapshot.queue.size());
    FreeMap free = snapshot.free;
    std::set<std::string> starts;
    for (const StartDecision& start : decisions.starts) {
      ASSERT_TRUE(Fits(start.plan, free)) << "more than there is";
      const int64_t ranks = Find(start.job_id).spec.resources.ranks;
      ASSERT_EQ(ComputeOf(start.plan), ranks > 0 ? ranks : ComputeOf(start.plan)) << "a gang";
      TakeCapacity(start.plan, free);
      starts.insert(start.job_id);
    }
    for (const std::string& id : awaited_) {
      ASSERT_TRUE(starts.contains(id)) << "what was freed for " << id << " does not place it";
    }
    for (const PreemptDecision& preemption : decisions.preemptions) {
      const WorkloadJob& victim = Find(preemption.job_id);
      ASSERT_TRUE(victim.running);
      ASSERT_LT(victim.preemptions, 40) << victim.id << " is displaced again and again";
      // Who displaces the one that displaced it has become much shorter meanwhile, by the factor of
      // both times; unless what their queues hold has changed.
      const auto& before = displaced_[preemption.for_job];
      const auto left = before.find(victim.id);
      ASSERT_FALSE(!HasQueues() && left != before.end() &&
                   Find(preemption.for_job).left * 2 > left->second)
          << victim.id << " and " << preemption.for_job << " displace each other";
    }
    CheckReservation(decisions);
    CheckLimits(snapshot, decisions);
  }

  void CheckReservation(const SchedulerDecisions& decisions) {
    if (!KeepsReservations()) return;
    for (const StartDecision& start : decisions.starts) {
      ASSERT_LE(now_, Find(start.job_id).promised_start + 1e-6) << start.job_id << " was delayed";
    }
    if (decisions.waits.empty()) return;
    const WaitDecision& first = decisions.waits.front();
    WorkloadJob& job = Find(first.job_id);
    ASSERT_TRUE(first.start_in_seconds);
    ASSERT_LE(now_ + *first.start_in_seconds, job.promised_start + 1) << job.id << " is delayed";
    job.promised_start = std::min(job.promised_start, now_ + *first.start_in_seconds + 1);
  }

  void CheckLimits(const SchedulerSnapshot& snapshot, const SchedulerDecisions& decisions) {
    if (!HasQueues()) return;
    std::map<std::string, int64_t> grown;
    for (const ResizeDecision& resize : decisions.resizes) {
      grown[resize.job_id] = ComputeOf(resize.change.plan);
    }
    int64_t held = 0;
    for (const ActiveJob& job : snapshot.active) {
      if (job.queue == "c") held += std::max(ComputeOf(*job.job.plan), grown[job.id]);
    }
    for (const StartDecision& start : decisions.starts) {
      if (Find(start.job_id).queue == "c") held += ComputeOf(start.plan);
    }
    ASSERT_LE(held, units_ - 1);
  }

  /// Nobody who comes after its turn goes before a job, so that it waits for the others at most.
  /// With priorities, queues or open sizes others may; but the cluster is never idle while jobs
  /// wait, and no step is made twice, so that all others one after the other are the longest wait.
  void CheckWait(const WorkloadJob& job) {
    const bool plain = Equal();
    const double work =
        job.seconds * static_cast<double>(job.spec.resources.ranks) / static_cast<double>(units_);
    const double turn = job.submitted_at + situation_.snapshot.rules.age_factor * work;
    double others = 0;
    for (const WorkloadJob& other : jobs_) {
      if (plain ? other.submitted_at <= turn : &other != &job) others += other.seconds;
    }
    const double from = plain ? turn : job.submitted_at;
    ASSERT_LE(job.first_start, from + others + 60) << job.id << " waits longer than its bound";
  }

  std::mt19937_64 random_;
  Kind kind_;
  GpuSituation situation_;
  int64_t units_ = 0;  ///< GPUs, or cores.
  double now_ = 0;
  std::deque<WorkloadJob> jobs_;
  bool waits_ = false;
  std::set<std::string> awaited_;  ///< For whom jobs were stopped in the last pass.
  /// By job those that displaced it, and what was left of it then.
  std::map<std::string, std::map<std::string, double>> displaced_;
};

class Workloads : public ::testing::TestWithParam<Workload::Kind> {};

/// WEFT_WORKLOADS: how many of each kind; else as many as a few seconds allow.
TEST_P(Workloads, KeepTheirPromises) {
  const char* asked = std::getenv("WEFT_WORKLOADS");
  const int most = asked != nullptr ? std::atoi(asked) : 3000;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  int done = 0;
  int with_reservations = 0;
  for (; done < most && (asked != nullptr || std::chrono::steady_clock::now() < end); ++done) {
    SCOPED_TRACE("seed " + std::to_string(done));
    Workload workload(static_cast<uint64_t>(done), GetParam());
    workload.Run();
    ASSERT_FALSE(HasFatalFailure());
    with_reservations += workload.KeepsReservations();
  }
  RecordProperty("workloads", done);
  RecordProperty("workloads_with_reservations", with_reservations);
}

INSTANTIATE_TEST_SUITE_P(All, Workloads,
                         ::testing::Values(Workload::Kind::kPlain,
                                           Workload::Kind::kFirstComeFirstServed,
                                           Workload::Kind::kPriorities, Workload::Kind::kQueues,
                                           Workload::Kind::kOpenSizes,
                                           Workload::Kind::kOpenSizesOnCpus));

}  // namespace
}  // namespace weft::coordinator
