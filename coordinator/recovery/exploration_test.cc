// Every interleaving of a small world: 2 jobs, 2 workers, messages that come late or twice, crashes
// of workers and of the coordinator (whose memory is the store alone), cancels and retries.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>
#include <sstream>
#include <unordered_set>

#include "common/spec/phases.h"
#include "coordinator/recovery/job_logic.h"

namespace weft::coordinator {
namespace {

constexpr int kJobs = 2;
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

/// The stored state, and the world outside.
struct World {
  JobCase jobs[kJobs];
  size_t completed[kJobs] = {};  ///< Phases of each job.
  std::set<std::tuple<int, std::string, int64_t, IntentKind>> outbox;
  std::map<std::string, std::set<Ranks>> running;
  /// Attempts a worker process has seen: it starts none twice, and forgets when it crashes.
  std::map<std::string, std::set<std::pair<int, int64_t>>> known;
  std::set<Message> reports;
  int cancels = 1, retries = 1, crashes = 1, suspicions = 1, replans = 1, drains = 1;
  int preemptions = 1, pauses = 1, resumes = 1, ends = 1;

  std::string Key() const {
    std::ostringstream out;
    for (const JobCase& c : jobs) {
      out << static_cast<int>(c.job.state) << ',' << c.job.last_epoch << ',' << c.job.budget_from;
      if (c.attempt) {
        out << ',' << static_cast<int>(c.attempt->reason) << c.attempt->ended_at.has_value();
        for (const auto& s : c.attempt->placements) out << s.worker_id << static_cast<int>(s.state);
      }
      out << 'p' << c.phase;
      out << ';';
    }
    for (const auto& [job, worker, epoch, kind] : outbox) {
      out << job << worker << epoch << static_cast<int>(kind) << ' ';
    }
    for (const auto& [worker, set] : running) {
      out << '|' << worker;
      for (const Ranks& r : set) out << r.job << r.epoch << r.training << ' ';
    }
    for (const auto& [worker, set] : known) {
      out << '|';
      for (const auto& [job, epoch] : set) out << job << epoch << ' ';
    }
    for (const Message& m : reports) {
      out << '/' << m.job << m.worker << m.epoch << static_cast<int>(m.event);
    }
    out << '#' << cancels << retries << crashes << suspicions << replans << drains << preemptions
        << pauses << resumes << ends;
    return out.str();
  }

  void Commit(int index, const Transaction& change) {
    JobCase& c = jobs[index];
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
      c.job = *change.job;
    }
    if (change.attempt) {
      if (c.attempt && c.attempt->epoch < change.attempt->epoch) {
        EXPECT_TRUE(c.attempt->ended_at);
        c.previous_reason = c.attempt->reason;
      }
      if (change.attempt->reason == Reason::kCompleted) ++completed[index];
      c.phase = std::min(completed[index], PhaseCount(c.job.spec) - 1);
      c.attempt = change.attempt;
    }
    for (const auto& i : change.remove_intents) outbox.erase({index, i.worker_id, i.epoch, i.kind});
    for (const auto& i : change.add_intents) outbox.insert({index, i.worker_id, i.epoch, i.kind});
  }

  bool Busy(const std::string& worker) const {
    for (const JobCase& c : jobs) {
      if (!c.attempt) continue;
      for (const PlacementRecord& s : c.attempt->placements) {
        if (s.worker_id == worker && !IsGone(s.state)) return true;
      }
    }
    return false;
  }
};

void CheckInvariants(const World& world) {
  for (int j = 0; j < kJobs; ++j) {
    const JobRecord& job = world.jobs[j].job;
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
    ASSERT_LE(job.last_epoch - job.budget_from, job.spec.retry.max_attempts);
    ASSERT_EQ(IsTerminal(job.state), job.ended_at.has_value());
    ASSERT_EQ(job.state == JobState::kSucceeded, world.completed[j] == PhaseCount(job.spec))
        << world.Key();
  }
}

using Visit = std::function<void(World)>;

void CoordinatorSteps(const World& world, const Visit& visit) {
  for (int j = 0; j < kJobs; ++j) {
    const JobCase& c = world.jobs[j];
    for (const std::vector<std::string>& placement : {std::vector<std::string>{"a"}, {"a", "b"}}) {
      bool free = true;
      for (const auto& worker : placement) free = free && !world.Busy(worker);
      Plan plan;
      plan.rank_workers = placement;
      if (auto change = DispatchAttempt(c, plan, 1); free && change.ok()) {
        World next = world;
        next.Commit(j, *change);
        visit(next);
      }
    }
    if (world.suspicions > 0 && c.attempt) {  // a lease runs out although the worker lives
      World next = world;
      --next.suspicions;
      next.Commit(j, *InterruptAttempt(c, c.attempt->epoch, Reason::kWorkerLost, "", 1));
      visit(next);
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
        visit(next);
      }
    }
    if (world.replans > 0 && c.attempt) {
      auto change = ReplanAttempt(c, c.attempt->epoch, "more ranks", 1);
      if (change.ok() && !change->empty()) {
        World next = world;
        --next.replans;
        next.Commit(j, *change);
        visit(next);
      }
    }
    if (world.drains > 0 && c.attempt) {  // a worker says that it drains
      auto change = DrainAttempt(c, c.attempt->epoch, "worker a drains", 1);
      if (change.ok() && !change->empty()) {
        World next = world;
        --next.drains;
        next.Commit(j, *change);
        visit(next);
      }
    }
    // What is asked for changes the job, or nothing; each a limited number of times.
    const auto ask = [&](int World::*left, const Result<Transaction>& change) {
      if (world.*left == 0 || !change.ok() || change->empty()) return;
      World next = world;
      --(next.*left);
      next.Commit(j, *change);
      visit(next);
    };
    if (c.attempt) {
      ask(&World::preemptions, PreemptAttempt(c, c.attempt->epoch, "a job goes first", 1));
    }
    ask(&World::pauses, PauseJob(c, 1));
    ask(&World::resumes, ResumeJob(c, 1));
    ask(&World::ends, GiveUpJob(c, Reason::kTimeLimit, "its time is over", 1));
    if (world.cancels > 0) {
      World next = world;
      --next.cancels;
      next.Commit(j, *CancelJob(c, 1));
      visit(next);
    }
    if (auto change = RetryJob(c, 1); world.retries > 0 && change.ok()) {
      World next = world;
      --next.retries;
      next.Commit(j, *change);
      visit(next);
    }
  }
  for (const Message& m : world.reports) {
    World next = world;
    PlacementReport report{m.worker, m.epoch, m.event, Reason::kNone, "", ""};
    next.Commit(m.job, *ApplyReport(world.jobs[m.job], report, 1));
    visit(next);  // the coordinator dies after the commit: the report comes again
    next.reports.erase(m);
    visit(next);
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
    visit(next);
  }
  for (const auto& [worker, set] : world.running) {
    for (const Ranks& r : set) {
      World next = world;
      next.running[worker].erase(r);
      if (!r.training) {
        World trains = next;
        trains.running[worker].insert({r.job, r.epoch, true});
        trains.reports.insert({r.job, worker, r.epoch, PlacementEvent::kTraining});
        visit(trains);
      }
      for (PlacementEvent end :
           {PlacementEvent::kFinished, PlacementEvent::kFailed, PlacementEvent::kStopped}) {
        World ended = next;
        if (end == PlacementEvent::kStopped && ended.drains-- == 0) continue;  // unasked
        ended.reports.insert({r.job, worker, r.epoch, end});
        visit(ended);
      }
    }
    if (world.crashes > 0 && !set.empty()) {
      World next = world;
      --next.crashes;
      next.running[worker].clear();
      next.known[worker].clear();
      std::erase_if(next.reports, [&](const Message& m) { return m.worker == worker; });
      visit(next);
    }
  }
}

/// What was seen of all worlds that can follow.
struct Explored {
  std::set<JobState> states;
  std::set<Reason> went_on_after;  ///< Why attempts ended that another one followed.
  std::set<Reason> ended_for;      ///< Why jobs ended.
};

/// Goes from one world to all that can follow, breadth first, up to a limit.
Explored Explore(World start) {
  for (int j = 0; j < kJobs; ++j) {
    start.jobs[j].job.id = std::string(1, static_cast<char>('0' + j));
    start.jobs[j].job.spec = JobSpec{};
    start.jobs[j].job.spec.retry.max_attempts = 1;
  }
  start.jobs[0].job.spec.retry.max_attempts = 2;
  start.jobs[1].job.spec.phases.resize(2);
  std::unordered_set<std::string> seen = {start.Key()};
  std::deque<World> frontier = {start};
  Explored explored;
  constexpr size_t kLimit = 60000;
  while (!frontier.empty() && seen.size() < kLimit) {
    World world = std::move(frontier.front());
    frontier.pop_front();
    Visit visit = [&](const World& next) {
      if (!seen.insert(next.Key()).second) return;
      CheckInvariants(next);
      for (const JobCase& c : next.jobs) {
        explored.states.insert(c.job.state);
        if (c.previous_reason) explored.went_on_after.insert(*c.previous_reason);
        if (IsTerminal(c.job.state)) explored.ended_for.insert(c.job.reason);
      }
      frontier.push_back(next);
    };
    CoordinatorSteps(world, visit);
    WorkerSteps(world, visit);
    if (testing::Test::HasFailure()) break;
  }
  std::cout << "explored " << seen.size() << " states, "
            << (frontier.empty() ? "all" : "not all; breadth first") << "\n";
  return explored;
}

TEST(Exploration, NoInterleavingDoublesALiveEpochOrOutlivesAnAttempt) {
  World start;
  start.preemptions = start.pauses = start.resumes = start.ends = 0;
  const Explored explored = Explore(start);
  EXPECT_EQ(explored.states.size(), static_cast<size_t>(kJobStates) - 2) << "all but the pause";
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kReplanned));
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kDrained));
}

TEST(Exploration, NeitherDoPausesPreemptionsAndTimeLimits) {
  World start;
  start.replans = start.drains = start.suspicions = start.retries = 0;
  const Explored explored = Explore(start);
  EXPECT_EQ(explored.states.size(), static_cast<size_t>(kJobStates));
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kPreempted));
  EXPECT_TRUE(explored.went_on_after.contains(Reason::kPausedByUser));
  EXPECT_TRUE(explored.ended_for.contains(Reason::kTimeLimit));
}

}  // namespace
}  // namespace weft::coordinator
