// Every interleaving of small worlds: 1 or 2 jobs, 2 workers, messages that come late or twice,
// crashes of workers and of the coordinator (whose memory is the store alone), and what users ask
// for.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "common/spec/phases.h"
#include "coordinator/recovery/job_logic.h"

namespace weft::coordinator {
namespace {

const std::vector<std::string> kWorkers = {"a", "b"};

struct Ranks {
  int job;
  int64_t epoch;
  bool training;
  auto operator<=>(const Ranks&) const = default;
};

struct Message {
  int job;
  std::string worker;
  int64_t epoch;
  PlacementEvent event;
  auto operator<=>(const Message&) const = default;
};

PlacementReport Report(const Message& m) {
  return {m.worker, m.epoch, m.event, Reason::kNone, "", ""};
}

/// Failures in a row up to the newest attempt. No world saves a checkpoint, so that there are at
/// least as many as the attempts that count against max_attempts.
int64_t Failures(const JobCase& c) {
  if (!c.attempt) return c.failures;
  return FailuresInARow(c.failures, *c.attempt, std::nullopt, c.job.retried_from);
}

/// The stored state, and the world outside.
struct World {
  explicit World(std::vector<JobCase> cases) : completed(cases.size()) {
    for (JobCase& c : cases) {
      c.job.id = std::to_string(jobs.size());
      jobs.push_back(std::make_shared<const JobCase>(std::move(c)));
    }
  }

  /// Those of one state are shared: a job is large, and there are many worlds.
  std::vector<std::shared_ptr<const JobCase>> jobs;
  std::vector<size_t> completed;  ///< Phases of each job.
  std::set<std::tuple<int, std::string, int64_t, IntentKind>> outbox;
  std::map<std::string, std::set<Ranks>> running;
  /// Attempts a worker process has seen: it starts none twice, and forgets when it crashes.
  std::map<std::string, std::set<std::pair<int, int64_t>>> known;
  std::set<Message> reports;
  // How often each disturbance may still come.
  int cancels = 0, retries = 0, crashes = 0, suspicions = 0, replans = 0, drains = 0;
  int preemptions = 0, pauses = 0, resumes = 0, ends = 0;

  /// Leaves out what makes no difference any more, or worlds would differ in it for ever: reports
  /// on ranks that are gone, and attempts that no worker will start again.
  void Forget() {
    std::erase_if(reports, [&](const Message& m) {
      const JobCase& c = *jobs[m.job];
      if (c.attempt && c.attempt->epoch == m.epoch) {
        for (const PlacementRecord& s : c.attempt->placements) {
          if (s.worker_id == m.worker && !IsGone(s.state)) return false;
        }
      }
      const auto change = ApplyReport(c, Report(m), 1);
      EXPECT_TRUE(change.ok() && !change->job && !change->attempt && change->add_intents.empty() &&
                  change->remove_intents.empty())
          << "a late report changed something";
      return true;
    });
    for (auto& [worker, set] : known) {
      std::erase_if(set, [&](const auto& attempt) {
        return !outbox.contains({attempt.first, worker, attempt.second, IntentKind::kStart});
      });
    }
    std::erase_if(known, [](const auto& of_worker) { return of_worker.second.empty(); });
    std::erase_if(running, [](const auto& of_worker) { return of_worker.second.empty(); });
  }

  /// What tells it from other worlds: a byte for each number.
  std::string Key() const {
    std::string key;
    const auto put = [&](auto... numbers) { (key.push_back(static_cast<char>(numbers)), ...); };
    for (const auto& job : jobs) {
      const JobCase& c = *job;
      put(c.job.state, c.job.last_epoch, Failures(c), c.phase, c.attempt.has_value());
      if (!c.attempt) continue;
      put(c.attempt->reason, c.attempt->ended_at.has_value());
      for (const PlacementRecord& s : c.attempt->placements) put(s.worker_id[0], s.state);
    }
    put(outbox.size());
    for (const auto& [job, worker, epoch, kind] : outbox) put(job, worker[0], epoch, kind);
    for (const auto& [worker, set] : running) {
      put(worker[0], set.size());
      for (const Ranks& r : set) put(r.job, r.epoch, r.training);
    }
    for (const auto& [worker, set] : known) {
      put(worker[0], set.size());
      for (const auto& [job, epoch] : set) put(job, epoch);
    }
    put(reports.size());
    for (const Message& m : reports) put(m.job, m.worker[0], m.epoch, m.event);
    put(cancels, retries, crashes, suspicions, replans, drains, preemptions, pauses, resumes, ends);
    return key;
  }

  void Commit(int index, Transaction change) {
    for (const auto& i : change.remove_intents) outbox.erase({index, i.worker_id, i.epoch, i.kind});
    for (const auto& i : change.add_intents) outbox.insert({index, i.worker_id, i.epoch, i.kind});
    if (!change.job && !change.attempt) return;
    JobCase c = *jobs[index];
    if (change.job) {
      bool legal = change.job->state == c.job.state;
      std::vector<JobState> reached = {c.job.state};
      // One change may fire two rows (RUNNING -> RECOVERING -> QUEUED).
      for (int hop = 0; hop < 2; ++hop) {
        std::vector<JobState> next = reached;
        for (const JobTransition& row : JobTransitions()) {
          for (JobState from : reached) {
            if (row.from == from && row.outcome == JobOutcome::kMove) next.push_back(row.to);
          }
        }
        reached = next;
      }
      for (JobState state : reached) legal = legal || state == change.job->state;
      EXPECT_TRUE(legal) << Name(c.job.state) << " -> " << Name(change.job->state);
      c.job = *std::move(change.job);
    }
    if (change.attempt) {
      if (c.attempt && c.attempt->epoch < change.attempt->epoch) {
        EXPECT_TRUE(c.attempt->ended_at);
        c.previous_reason = c.attempt->reason;
        c.failures = Failures(c);
      }
      if (change.attempt->reason == Reason::kCompleted) {
        ++completed[index];
        c.failures = 0;
      }
      c.phase = std::min(completed[index], PhaseCount(c.job.spec) - 1);
      c.attempt = std::move(change.attempt);
    }
    jobs[index] = std::make_shared<const JobCase>(std::move(c));
  }

  bool Busy(const std::string& worker) const {
    for (const auto& job : jobs) {
      if (!job->attempt) continue;
      for (const PlacementRecord& s : job->attempt->placements) {
        if (s.worker_id == worker && !IsGone(s.state)) return true;
      }
    }
    return false;
  }
};

void CheckInvariants(const World& world) {
  for (int j = 0; j < static_cast<int>(world.jobs.size()); ++j) {
    const JobRecord& job = world.jobs[j]->job;
    std::set<int64_t> live;
    for (const auto& [worker, set] : world.running) {
      for (const Ranks& r : set) {
        if (r.job == j) live.insert(r.epoch);
      }
    }
    ASSERT_LE(live.size(), 1u) << "two epochs of job " << j << " are alive: " << world.Key();
    if (IsTerminal(job.state) || job.state == JobState::kQueued || job.state == JobState::kPaused) {
      ASSERT_TRUE(live.empty()) << "ranks outlive the attempt: " << world.Key();
    }
    if (!live.empty()) {
      ASSERT_EQ(*live.begin(), job.last_epoch);
    }
    ASSERT_LE(job.budget_from, job.last_epoch);
    ASSERT_LE(job.last_epoch - job.budget_from, Failures(*world.jobs[j]) + 1) << world.Key();
    ASSERT_LE(Failures(*world.jobs[j]), job.spec.retry.max_attempts)
        << "it is tried for ever: " << world.Key();
    ASSERT_EQ(IsTerminal(job.state), job.ended_at.has_value());
    ASSERT_EQ(job.state == JobState::kSucceeded, world.completed[j] == PhaseCount(job.spec))
        << world.Key();
  }
}

using Visit = std::function<void(World)>;

void CoordinatorSteps(const World& world, const Visit& visit) {
  for (int j = 0; j < static_cast<int>(world.jobs.size()); ++j) {
    const JobCase& c = *world.jobs[j];
    for (const std::vector<std::string>& placement : {std::vector<std::string>{"a"}, {"a", "b"}}) {
      bool free = true;
      for (const auto& worker : placement) free = free && !world.Busy(worker);
      if (!free) continue;
      Plan plan;
      plan.rank_workers = placement;
      if (auto change = DispatchAttempt(c, plan, 1); change.ok()) {
        World next = world;
        next.Commit(j, *std::move(change));
        visit(std::move(next));
      }
    }
    if (world.suspicions > 0 && c.attempt) {  // a lease runs out although the worker lives
      World next = world;
      --next.suspicions;
      next.Commit(j, *InterruptAttempt(c, c.attempt->epoch, Reason::kWorkerLost, "", 1));
      visit(std::move(next));
    }
    if (c.attempt) {  // the margin has passed: the worker has surely ended them
      for (const PlacementRecord& s : c.attempt->placements) {
        bool alive = false;
        auto it = world.running.find(s.worker_id);
        if (it != world.running.end()) {
          for (const Ranks& r : it->second) alive |= r.job == j && r.epoch == c.attempt->epoch;
        }
        bool undelivered =
            world.outbox.count({j, s.worker_id, c.attempt->epoch, IntentKind::kStart});
        if (IsGone(s.state) || alive || undelivered) continue;
        World next = world;
        PlacementReport report{s.worker_id, c.attempt->epoch, PlacementEvent::kLost, {}, "", ""};
        next.Commit(j, *ApplyReport(c, report, 1));
        visit(std::move(next));
      }
    }
    if (world.replans > 0 && c.attempt) {
      auto change = ReplanAttempt(c, c.attempt->epoch, "more ranks", 1);
      if (change.ok() && !change->empty()) {
        World next = world;
        --next.replans;
        next.Commit(j, *std::move(change));
        visit(std::move(next));
      }
    }
    if (world.drains > 0 && c.attempt) {  // a worker says that it drains
      auto change = DrainAttempt(c, c.attempt->epoch, "worker a drains", 1);
      if (change.ok() && !change->empty()) {
        World next = world;
        --next.drains;
        next.Commit(j, *std::move(change));
        visit(std::move(next));
      }
    }
    // What is asked for changes the job, or nothing; each a limited number of times.
    const auto ask = [&](int World::*left, const auto& change_of) {
      if (world.*left == 0) return;
      Result<Transaction> change = change_of();
      if (!change.ok() || change->empty()) return;
      World next = world;
      --(next.*left);
      next.Commit(j, *std::move(change));
      visit(std::move(next));
    };
    if (c.attempt) {
      ask(&World::preemptions,
          [&] { return PreemptAttempt(c, c.attempt->epoch, "a job goes first", 1); });
    }
    ask(&World::pauses, [&] { return PauseJob(c, 1); });
    ask(&World::resumes, [&] { return ResumeJob(c, 1); });
    ask(&World::ends, [&] { return GiveUpJob(c, Reason::kTimeLimit, "its time is over", 1); });
    if (world.cancels > 0) {
      World next = world;
      --next.cancels;
      next.Commit(j, *CancelJob(c, 1));
      visit(std::move(next));
    }
    if (world.retries > 0) {
      if (auto change = RetryJob(c, 1); change.ok()) {
        World next = world;
        --next.retries;
        next.Commit(j, *std::move(change));
        visit(std::move(next));
      }
    }
  }
  for (const Message& m : world.reports) {
    World next = world;
    next.Commit(m.job, *ApplyReport(*world.jobs[m.job], Report(m), 1));
    visit(next);  // the coordinator dies after the commit: the report comes again
    next.reports.erase(m);
    visit(std::move(next));
  }
}

void WorkerSteps(const World& world, const Visit& visit) {
  for (const auto& [job, worker, epoch, kind] : world.outbox) {
    World next = world;  // the intent stays until its effect is reported: delivered twice
    if (kind == IntentKind::kStart) {
      if (!next.known[worker].insert({job, epoch}).second) continue;
      next.running[worker].insert({job, epoch, false});
      next.reports.insert({job, worker, epoch, PlacementEvent::kStarted});
    } else {
      next.known[worker].insert({job, epoch});
      std::erase_if(next.running[worker],
                    [&](const Ranks& r) { return r.job == job && r.epoch == epoch; });
      next.reports.insert({job, worker, epoch, PlacementEvent::kStopped});
    }
    visit(std::move(next));
  }
  for (const auto& [worker, set] : world.running) {
    for (const Ranks& r : set) {
      World next = world;
      next.running[worker].erase(r);
      if (!r.training) {
        World trains = next;
        trains.running[worker].insert({r.job, r.epoch, true});
        trains.reports.insert({r.job, worker, r.epoch, PlacementEvent::kTraining});
        visit(std::move(trains));
      }
      for (PlacementEvent end :
           {PlacementEvent::kFinished, PlacementEvent::kFailed, PlacementEvent::kStopped}) {
        World ended = next;
        if (end == PlacementEvent::kStopped && ended.drains-- == 0) continue;  // unasked
        ended.reports.insert({r.job, worker, r.epoch, end});
        visit(std::move(ended));
      }
    }
    if (world.crashes > 0 && !set.empty()) {
      World next = world;
      --next.crashes;
      next.running[worker].clear();
      next.known[worker].clear();
      std::erase_if(next.reports, [&](const Message& m) { return m.worker == worker; });
      visit(std::move(next));
    }
  }
}

/// What was seen of all worlds that can follow.
struct Explored {
  std::set<JobState> states;
  std::set<Reason> went_on_after;  ///< Why attempts ended that another one followed.
  std::set<Reason> ended_for;      ///< Why jobs ended.
};

/// Goes from one world to all that can follow, breadth first, until there are `most` of them.
Explored Explore(World start, size_t most = std::numeric_limits<size_t>::max()) {
  std::unordered_set<std::string> seen = {start.Key()};
  std::deque<World> frontier = {std::move(start)};
  Explored explored;
  while (!frontier.empty() && seen.size() < most) {
    const World world = std::move(frontier.front());
    frontier.pop_front();
    const Visit visit = [&](World next) {
      next.Forget();
      if (!seen.insert(next.Key()).second) return;
      CheckInvariants(next);
      for (const auto& job : next.jobs) {
        explored.states.insert(job->job.state);
        if (job->previous_reason) explored.went_on_after.insert(*job->previous_reason);
        if (IsTerminal(job->job.state)) explored.ended_for.insert(job->job.reason);
      }
      frontier.push_back(std::move(next));
    };
    CoordinatorSteps(world, visit);
    WorkerSteps(world, visit);
    if (testing::Test::HasFailure()) break;
  }
  std::cout << "explored " << seen.size() << " states, "
            << (frontier.empty() ? "all" : "not all; breadth first") << "\n";
  return explored;
}

JobCase TriedJob(int64_t attempts, size_t phases) {
  JobCase c;
  c.job.spec.retry.max_attempts = attempts;
  c.job.spec.phases.resize(phases);
  return c;
}

/// A job that is tried twice in each of two phases.
World OneJob() {
  return World({TriedJob(2, 2)});
}

/// Jobs that are tried once.
World TwoJobs() {
  return World({TriedJob(1, 0), TriedJob(1, 0)});
}

/// One of them tried twice, the other one of two phases.
World TwoLongJobs() {
  return World({TriedJob(2, 0), TriedJob(1, 2)});
}

// All states, with a disturbance that comes at any time. Two at a time have too many of them,
// except those below, which have a crash, a wrong loss and a pause alone among theirs.

class OneDisturbance : public testing::TestWithParam<int World::*> {};

TEST_P(OneDisturbance, OfAJobBreaksNoInvariant) {
  World world = OneJob();
  world.*GetParam() = 1;
  Explore(world);
}

INSTANTIATE_TEST_SUITE_P(Exploration, OneDisturbance,
                         testing::Values(&World::cancels, &World::retries, &World::replans,
                                         &World::drains, &World::preemptions, &World::ends));

TEST(Exploration, ACrashAndAWorkerThatIsWronglyLostBreakNoInvariant) {
  World world = OneJob();
  world.crashes = world.suspicions = 1;
  Explore(world);
}

TEST(Exploration, APauseThatEndsBreaksNoInvariant) {
  World world = OneJob();
  world.pauses = world.resumes = 1;
  Explore(world);
}

TEST(Exploration, ACrashWithTwoJobsBreaksNoInvariant) {
  World world = TwoJobs();
  world.crashes = 1;
  Explore(world);
}

// All disturbances together, as far as time goes.

constexpr size_t kMost = 60000;

TEST(Exploration, ManyDisturbancesOfTwoJobsBreakNoInvariant) {
  World world = TwoLongJobs();
  world.cancels = world.retries = world.crashes = world.suspicions = world.replans = world.drains =
      1;
  const Explored explored = Explore(world, kMost);
  EXPECT_EQ(explored.states.size(), static_cast<size_t>(kJobStates) - 2) << "all but the pause";
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kReplanned));
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kDrained));
}

TEST(Exploration, PausesPreemptionsAndTimeLimitsOfTwoJobsBreakNoInvariant) {
  World world = TwoLongJobs();
  world.cancels = world.crashes = world.preemptions = world.pauses = world.resumes = world.ends = 1;
  const Explored explored = Explore(world, kMost);
  EXPECT_EQ(explored.states.size(), static_cast<size_t>(kJobStates));
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kPreempted));
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kPausedByUser));
  EXPECT_TRUE(explored.ended_for.contains(Reason::kTimeLimit));
}

}  // namespace
}  // namespace weft::coordinator
