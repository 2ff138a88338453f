// Random workloads, each run to its end on a virtual clock, with what must hold of every pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

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
       resized = false, recovers = false;
  double stops_at = kNever;  ///< It was stopped, and holds what it has until then.
  double first_start = -1, ended_at = -1;
  double promised_start = kNever;  ///< Earliest start that a pass has said while it was first.
  double promised_at = 0;          ///< When that was.

  bool IsStopping() const { return stops_at < kNever; }
};

/// A machine that takes no jobs for a while.
struct WorkloadOutage {
  std::string worker;
  double from = 0, until = 0;
  bool drains = false;  ///< Its jobs save and stop; else it is lost with them.
};

/// A job that was stopped for another one.
struct WorkloadStop {
  double time = 0;
  const WorkloadJob* victim = nullptr;
  const WorkloadJob* winner = nullptr;
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
    kOpenSizesOnCpus,
    kStream,   ///< Short jobs of little priority come all the while.
    kRacks,    ///< Unequal machines, some in another rack.
    kOutages,  ///< The same machines drain, or are lost, and come back.
    kShippedRules,
  };

  Workload(uint64_t seed, Kind kind) : random_(seed), kind_(kind), situation_(1 + Draw(3)) {
    if (HasUnequalMachines()) MakeUnequalMachines();
    machines_ = situation_.snapshot.cluster;
    units_ = AmountOf(machines_).gpus;
    if (OnCpus()) MakeCoresOfGpus();
    SetRules();
    if (HasQueues()) {
      const int64_t half = units_ / 2;
      situation_.snapshot.queues = {Queue("a", half), Queue("b", units_ - half), Queue("c", 0)};
      QueueSpec& limited = situation_.snapshot.queues[2];
      (OnCpus() ? limited.limit_cores : limited.limit_gpus) = units_ - 1;
    }
    // Promises of starts count on stops that take no time.
    slowest_stop_ = kind == Kind::kShippedRules || Draw(2) == 0 ? 0 : 1 + Draw(30);
    const int times = kind == Kind::kShippedRules ? 15 : 1;
    const int longest = kind == Kind::kStream ? 100 : 400 * times;
    const int jobs = 4 + Draw(10);
    for (int i = 0; i < jobs; ++i) {
      const int at = Draw(500 * times);
      const int seconds = 1 + Draw(longest);
      const int widest = Draw(3) == 0 ? static_cast<int>(units_) - 1 : 4;
      WorkloadJob& job = Submit(at, seconds, 1 + Draw(widest));
      if (!Equal()) job.priority = Draw(3);
      if (HasQueues()) job.queue = std::string(1, "abc"[Draw(3)]);
      if (HasOpenSizes() && Draw(2) == 0) job.spec.resources.ranks = 0;
    }
    if (kind == Kind::kStream) {
      constexpr int kLastOfStream = 3000;
      for (int at = 0; at < kLastOfStream; at += 5 + Draw(20)) {
        const int seconds = 1 + Draw(40);
        WorkloadJob& job = Submit(at, seconds, 1 + Draw(4));
        job.priority = Draw(2);
      }
    }
    if (kind == Kind::kOutages) MakeOutages();
  }

  void Run() {
    for (int events = 0; events < 20000; ++events) {
      const double then = NextEvent();
      if (then == kNever) break;
      Advance(then);
      for (int passes = 0; Pass(); ++passes) {
        ASSERT_LT(passes, 30) << "jobs displace each other for ever";
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const WorkloadJob& job : jobs_) {
      ASSERT_TRUE(job.ended) << job.id << " starves";
      if (kind_ == Kind::kStream) {
        CheckWaitInStream(job);
      } else {
        CheckWait(job);
      }
    }
  }

  /// First come, first served, and nobody is displaced: the start that the first job is promised is
  /// kept, whoever comes later.
  bool KeepsReservations() const {
    const SchedulerRules& rules = situation_.snapshot.rules;
    return Equal() && rules.age_factor <= 0 && rules.preempt_factor <= 0;
  }
  /// Starts that came when they were promised, or before.
  int64_t kept_promises() const { return kept_promises_; }

 private:
  /// All jobs have the same priority and one queue.
  bool Equal() const { return kind_ == Kind::kPlain || kind_ == Kind::kFirstComeFirstServed; }
  bool OnCpus() const { return kind_ == Kind::kOpenSizesOnCpus; }
  bool HasOpenSizes() const { return kind_ == Kind::kOpenSizes || OnCpus(); }
  bool HasQueues() const { return kind_ == Kind::kQueues || HasOpenSizes(); }
  bool HasUnequalMachines() const { return kind_ == Kind::kRacks || kind_ == Kind::kOutages; }
  void SetRules() {
    if (kind_ == Kind::kShippedRules) return;
    SchedulerRules& rules = situation_.snapshot.rules;
    rules.scale_up.after_seconds = HasOpenSizes() ? 1 + Draw(60) : 0;
    rules.age_factor = Draw(40);
    rules.preempt_factor = Draw(2) == 0 ? 0 : 1.5;
    if (kind_ == Kind::kFirstComeFirstServed) rules.age_factor = rules.preempt_factor = 0;
    rules.protected_seconds = 1 + Draw(60);
    rules.scale_up.restart.assumed_start_seconds = 1;
  }
  void MakeUnequalMachines() {
    ClusterProfile& cluster = situation_.snapshot.cluster;
    cluster = Machines(2 + Draw(4), 8);
    for (WorkerProfile& worker : cluster.workers) {
      worker.devices.resize(static_cast<size_t>(1 + Draw(8)));
      worker.rack = "rack-" + std::to_string(Draw(2));
    }
  }
  void MakeOutages() {
    for (const WorkerProfile& worker : machines_.workers) {
      if (Draw(2) == 0) continue;
      const double from = Draw(500);
      outages_.push_back({worker.worker_id, from, from + 50 + Draw(300), Draw(2) == 0});
    }
  }
  WorkloadJob& Submit(int at, int seconds, int64_t ranks) {
    WorkloadJob& job = jobs_.emplace_back();
    job.id = "j" + std::to_string(jobs_.size() - 1);
    job.submitted_at = at;
    job.seconds = job.left = seconds;
    job.spec.resources.device = OnCpus() ? "cpu" : "cuda";
    job.spec.resources.ranks = std::min(ranks, units_);
    return job;
  }
  /// Each machine has as many cores as it had GPUs, and none of these.
  void MakeCoresOfGpus() {
    for (WorkerProfile& worker : machines_.workers) {
      worker.device = "cpu";
      worker.cores = std::ssize(worker.devices);
      worker.devices.clear();
    }
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

  double NextEvent() const {
    const double look_again = kind_ == Kind::kShippedRules ? 300 : 30;
    double then = waits_ ? now_ + look_again : kNever;
    for (const WorkloadJob& job : jobs_) {
      if (!job.submitted) then = std::min(then, job.submitted_at);
      if (job.running) then = std::min(then, now_ + job.left);
      then = std::min(then, job.stops_at);
    }
    for (const WorkloadOutage& outage : outages_) {
      for (const double time : {outage.from, outage.until}) {
        if (time > now_) then = std::min(then, time);
      }
    }
    return then;
  }

  void Advance(double then) {
    for (WorkloadJob& job : jobs_) {
      if (job.running) job.left -= then - now_;
      if (job.running && job.left <= 1e-9) {
        job.running = false;
        job.ended = true;
        job.ended_at = then;
        displaced_.erase(job.id);
      }
      if (job.stops_at <= then) job.stops_at = kNever;
      if (job.submitted_at <= then) job.submitted = true;
    }
    for (const WorkloadOutage& outage : outages_) {
      if (outage.from > now_ && outage.from <= then) Begin(outage, then);
    }
    now_ = then;
  }

  void Begin(const WorkloadOutage& outage, double now) {
    out_seconds_ += outage.until - outage.from;
    awaited_.clear();  // there may be less room now
    for (WorkloadJob& job : jobs_) {
      const std::vector<std::string>& on = job.plan.rank_workers;
      if (std::find(on.begin(), on.end(), outage.worker) == on.end()) continue;
      if (outage.drains && job.running) StopNow(job, now);
      if (outage.drains || !(job.running || job.IsStopping())) continue;
      job.running = false;
      job.stops_at = kNever;
      job.recovers = true;
    }
  }

  /// It holds what it has for some time more.
  void StopNow(WorkloadJob& job, double now) {
    job.running = false;
    const double takes = slowest_stop_ == 0 ? 0 : Draw(slowest_stop_ + 1);
    stopping_seconds_ += takes;
    if (takes > 0) job.stops_at = now + takes;
  }

  bool IsOut(const std::string& worker) const {
    return std::any_of(outages_.begin(), outages_.end(), [&](const WorkloadOutage& outage) {
      return outage.worker == worker && outage.from <= now_ && now_ < outage.until;
    });
  }

  void TakeMachines(SchedulerSnapshot& snapshot) const {
    snapshot.cluster = machines_;
    std::erase_if(snapshot.cluster.workers,
                  [this](const WorkerProfile& worker) { return IsOut(worker.worker_id); });
    snapshot.free = AllFree(snapshot.cluster);
  }

  /// Whether another pass must follow, since jobs were stopped.
  bool Pass() {
    SchedulerSnapshot& snapshot = situation_.snapshot;
    snapshot.now = now_;
    snapshot.queue.clear();
    snapshot.active.clear();
    TakeMachines(snapshot);
    for (WorkloadJob& job : jobs_) {
      if (!job.submitted || job.ended) continue;
      // A job of an open size takes as long on any number.
      const auto units = static_cast<double>(
          job.ran ? ComputeOf(job.plan) : std::max<int64_t>(job.spec.resources.ranks, 1));
      const auto steps = static_cast<int64_t>(std::ceil(job.left * units));
      if (job.running || job.IsStopping()) {
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
        active.stopping = job.IsStopping();
        active.may_stop = job.running;
        if (active.stopping && job.resized) active.next_plan = &job.next;
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
        queued.recovers = job.recovers;
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
    for (const PreemptDecision& preemption : decisions.preemptions) {
      WorkloadJob& victim = Find(preemption.job_id);
      ++victim.preemptions;
      displaced_[victim.id][preemption.for_job] = victim.left;
      stops_.push_back({now_, &victim, &Find(preemption.for_job)});
      Promise(preemption.for_job);
      StopNow(victim, now_);
    }
    for (const ResizeDecision& resize : decisions.resizes) {
      WorkloadJob& job = Find(resize.job_id);
      job.resized = true;
      job.next = resize.change.plan;
      if (!resize.for_job.empty()) Promise(resize.for_job);
      StopNow(job, now_);
    }
    for (const StartDecision& start : decisions.starts) {
      WorkloadJob& job = Find(start.job_id);
      job.running = job.ran = true;
      job.promised = job.resized = job.recovers = false;
      awaited_.erase(job.id);
      job.plan = start.plan;
      job.started = now_;
      if (job.first_start < 0) job.first_start = now_;
    }
    return !decisions.preemptions.empty() || !decisions.resizes.empty();
  }

  void Promise(const std::string& id) {
    awaited_.insert(id);
    Find(id).promised = true;
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
    const bool all_stopped = std::none_of(snapshot.active.begin(), snapshot.active.end(),
                                          [](const auto& job) { return job.stopping; });
    std::erase_if(awaited_, [&](const std::string& id) {
      return !starts.contains(id) && WouldDelayTheFirst(id, decisions);
    });
    for (const std::string& id : awaited_) {
      ASSERT_TRUE(!all_stopped || starts.contains(id))
          << "what was freed for " << id << " does not place it";
    }
    for (const PreemptDecision& preemption : decisions.preemptions) CheckPreemption(preemption);
    if (::testing::Test::HasFatalFailure()) return;
    if (kind_ == Kind::kShippedRules) {
      CheckShippedReservation(decisions);
    } else {
      CheckReservation(decisions);
    }
    CheckLimits(snapshot, decisions);
  }

  /// Stops took so long that the job would now end after the first one is to start.
  bool WouldDelayTheFirst(const std::string& id, const SchedulerDecisions& decisions) {
    if (decisions.waits.empty() || decisions.waits.front().job_id == id) return false;
    const std::optional<double> start = decisions.waits.front().start_in_seconds;
    return slowest_stop_ > 0 && start && Find(id).left > *start;
  }

  void CheckPreemption(const PreemptDecision& preemption) {
    const WorkloadJob& victim = Find(preemption.job_id);
    const WorkloadJob& winner = Find(preemption.for_job);
    ASSERT_TRUE(victim.running);
    const auto higher = std::count_if(jobs_.begin(), jobs_.end(), [&](const WorkloadJob& job) {
      return job.priority > victim.priority;
    });
    ASSERT_LT(victim.preemptions, 40 + higher) << victim.id << " is displaced again and again";
    ASSERT_TRUE(victim.preemptions == 0 ||
                now_ - victim.started >= situation_.snapshot.rules.protected_seconds)
        << victim.id << " is displaced again before it could train";
    ASSERT_TRUE(HasOpenSizes() || !awaited_.contains(winner.id))
        << "more is stopped for " << winner.id << " than it needs";
    // Who displaces the one that displaced it has become much shorter meanwhile, by the factor of
    // both times; unless what their queues hold has changed.
    const auto& before = displaced_[winner.id];
    const auto left = before.find(victim.id);
    ASSERT_FALSE(!HasQueues() && left != before.end() && winner.left * 2 > left->second)
        << victim.id << " and " << winner.id << " displace each other";
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

  /// What is left of the job, in seconds of the whole cluster.
  double WorkLeft(const WorkloadJob& job) const {
    return job.left * static_cast<double>(job.spec.resources.ranks) / static_cast<double>(units_);
  }
  /// Whether the first one has its turn before the other, or about when it has.
  bool MayGoBefore(const WorkloadJob& a, const WorkloadJob& b) const {
    const auto turn = [this](const WorkloadJob& job) {
      return job.submitted_at + situation_.snapshot.rules.age_factor * WorkLeft(job);
    };
    return a.priority != b.priority ? a.priority > b.priority : turn(a) <= turn(b) + 1;
  }

  /// A job that was first starts when that was promised, unless one came after the promise whose
  /// turn is before it. Promises do not count while so much more is left of a running job of the
  /// same priority that it may give way: that passes as it trains, and the promise with it.
  void CheckShippedReservation(const SchedulerDecisions& decisions) {
    const double factor = situation_.snapshot.rules.preempt_factor;
    const auto is_void = [&](const WorkloadJob& job) {
      return std::any_of(jobs_.begin(), jobs_.end(), [&](const WorkloadJob& other) {
        if (!other.submitted || &other == &job) return false;
        const bool overtakes = other.submitted_at > job.promised_at && MayGoBefore(other, job);
        const bool may_give_way = other.running && other.priority == job.priority &&
                                  WorkLeft(job) * factor <= WorkLeft(other) + 1;
        return overtakes || may_give_way;
      });
    };
    for (WorkloadJob& job : jobs_) {
      if (job.promised_start < kNever && is_void(job)) job.promised_start = kNever;
    }
    for (const StartDecision& start : decisions.starts) {
      WorkloadJob& job = Find(start.job_id);
      ASSERT_LE(now_, job.promised_start + 1) << job.id << " was delayed";
      if (job.promised_start < kNever) ++kept_promises_;
      job.promised_start = kNever;
    }
    if (decisions.waits.empty() || !decisions.waits.front().start_in_seconds) return;
    WorkloadJob& job = Find(decisions.waits.front().job_id);
    const double start = now_ + *decisions.waits.front().start_in_seconds;
    if (start >= job.promised_start) return;
    job.promised_start = start;
    job.promised_at = now_;
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
    const double turn = Turn(job);
    double others = 0;
    for (const WorkloadJob& other : jobs_) {
      if (plain ? other.submitted_at <= turn : &other != &job) others += other.seconds;
    }
    const double from = plain ? turn : job.submitted_at;
    ASSERT_LE(job.first_start, from + others + stopping_seconds_ + out_seconds_ + 60)
        << job.id << " waits longer than its bound";
  }

  /// When its turn has come before it ran: who comes later goes behind it, or has more priority.
  double Turn(const WorkloadJob& job) const {
    const double work =
        job.seconds * static_cast<double>(job.spec.resources.ranks) / static_cast<double>(units_);
    return job.submitted_at + situation_.snapshot.rules.age_factor * work;
  }

  /// However many short jobs come: from its turn on a job waits for those before it, one after the
  /// other the first in the queue. The first one waits for those that run, which is less than the
  /// longest job; as much again for what starts early on what it may take back.
  void CheckWaitInStream(const WorkloadJob& job) {
    const double turn = Turn(job);
    const auto goes_before = [&](const WorkloadJob& other) {
      return other.ended_at > turn && other.submitted_at <= job.first_start &&
             (other.priority > job.priority ||
              (other.priority == job.priority && other.submitted_at <= turn));
    };
    double longest = 0;
    for (const WorkloadJob& other : jobs_) longest = std::max(longest, other.seconds);
    auto before = std::count_if(jobs_.begin(), jobs_.end(), goes_before);
    before += std::count_if(stops_.begin(), stops_.end(), [&](const WorkloadStop& stop) {
      return stop.time >= turn && stop.time <= job.first_start &&
             (goes_before(*stop.victim) || goes_before(*stop.winner));
    });
    ASSERT_LE(job.first_start,
              turn + 2 * static_cast<double>(1 + before) * longest + stopping_seconds_ + 60)
        << job.id << " waits longer than its bound";
  }

  std::mt19937_64 random_;
  Kind kind_;
  GpuSituation situation_;
  ClusterProfile machines_;
  std::vector<WorkloadOutage> outages_;
  int64_t units_ = 0;  ///< GPUs, or cores.
  int slowest_stop_ = 0;
  double now_ = 0;
  std::deque<WorkloadJob> jobs_;
  bool waits_ = false;
  std::set<std::string> awaited_;  ///< For whom jobs were stopped, until they start.
  std::vector<WorkloadStop> stops_;
  double stopping_seconds_ = 0, out_seconds_ = 0;
  int64_t kept_promises_ = 0;
  /// By job those that displaced it, and what was left of it then.
  std::map<std::string, std::map<std::string, double>> displaced_;
};

class Workloads : public ::testing::TestWithParam<Workload::Kind> {};

/// WEFT_WORKLOADS: how many of each kind; else as many of the first ones as a few seconds allow.
TEST_P(Workloads, KeepTheirPromises) {
  const char* asked = std::getenv("WEFT_WORKLOADS");
  const int most = asked != nullptr ? std::atoi(asked) : 1500;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  int done = 0;
  int with_reservations = 0;
  int64_t kept_promises = 0;
  for (; done < most && (asked != nullptr || std::chrono::steady_clock::now() < end); ++done) {
    SCOPED_TRACE("seed " + std::to_string(done));
    Workload workload(static_cast<uint64_t>(done), GetParam());
    workload.Run();
    ASSERT_FALSE(HasFatalFailure());
    with_reservations += workload.KeepsReservations();
    kept_promises += workload.kept_promises();
  }
  if (GetParam() == Workload::Kind::kShippedRules) {
    EXPECT_GT(kept_promises, 0) << "nothing was promised";
  }
  RecordProperty("workloads", done);
  RecordProperty("workloads_with_reservations", with_reservations);
  RecordProperty("kept_promises", std::to_string(kept_promises));
}

INSTANTIATE_TEST_SUITE_P(
    All, Workloads,
    ::testing::Values(Workload::Kind::kPlain, Workload::Kind::kFirstComeFirstServed,
                      Workload::Kind::kPriorities, Workload::Kind::kQueues,
                      Workload::Kind::kOpenSizes, Workload::Kind::kOpenSizesOnCpus,
                      Workload::Kind::kStream, Workload::Kind::kRacks, Workload::Kind::kOutages,
                      Workload::Kind::kShippedRules));

}  // namespace
}  // namespace weft::coordinator
