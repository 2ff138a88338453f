// Ranks that join a running attempt, as the scheduler decides it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/scheduler/decision_record.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Workers "m0", "m1", ... of one core each, and jobs whose ranks come and go.
struct PeerSituation : CoreSituation {
  explicit PeerSituation(int workers) : CoreSituation(workers, 1) {}

  /// A job with a rank on each of the first free workers, for `seconds` more.
  ActiveJob& RunPeers(int64_t ranks, int64_t most, int64_t seconds = 100000) {
    JobSpec& spec = Run("peers", ranks, seconds);
    spec.resources.max_ranks = most;
    ActiveJob& job = snapshot.active.back();
    job.job.no_peers_on.emplace(job.job.plan->rank_workers.begin(),
                                job.job.plan->rank_workers.end());
    return job;
  }
  /// A rank starts on that worker, to join the job.
  void Joins(ActiveJob& job, const std::string& worker) {
    job.job.no_peers_on->insert(worker);
    ++job.job.joining;
    snapshot.free.at(worker).cores = 0;
  }
  /// The worker is cordoned or drains: it offers nothing to any job.
  void Leave(const std::string& worker) {
    std::erase_if(snapshot.cluster.workers,
                  [&](const WorkerProfile& each) { return each.worker_id == worker; });
    snapshot.free.erase(worker);
  }
  /// Where ranks join.
  std::vector<std::string> Joined() const { return WorkersOf(Decide()); }
  static std::vector<std::string> WorkersOf(const SchedulerDecisions& decisions) {
    std::vector<std::string> workers;
    for (const JoinDecision& join : decisions.joins) {
      EXPECT_EQ(join.job_id, "peers");
      workers.push_back(join.worker_id);
    }
    EXPECT_THAT(decisions.resizes, IsEmpty()) << "nobody stops for it";
    return workers;
  }
};

TEST(Joins, TakeWhatIsFreeUpToTheMostAndNotBeyond) {
  PeerSituation s(5);
  ActiveJob& peers = s.RunPeers(2, 4);
  EXPECT_THAT(s.Joined(), ElementsAre("m2", "m3"));
  s.Joins(peers, "m2");
  EXPECT_THAT(s.Joined(), ElementsAre("m3")) << "one is on its way";
  s.Joins(peers, "m3");
  EXPECT_THAT(s.Joined(), IsEmpty());
  s.specs[0]->resources.max_ranks = 0;
  EXPECT_THAT(s.Joined(), ElementsAre("m4")) << "any number";
}

TEST(Joins, NoneWhereARankHasJustFailedWhichIsNoRankAnyMore) {
  PeerSituation s(4);
  ActiveJob& peers = s.RunPeers(2, 3);
  peers.job.no_peers_on->insert("m2");
  EXPECT_THAT(s.Joined(), ElementsAre("m3"));
}

TEST(Joins, NeedNeitherALongAttemptNorACheckpoint) {
  PeerSituation s(3);
  ActiveJob& peers = s.RunPeers(2, 0);
  peers.job.attempt_seconds = 1;
  peers.job.saved = false;
  s.snapshot.new_workers = {"m2"};
  EXPECT_THAT(s.Joined(), ElementsAre("m2"));
  peers.may_stop = false;
  EXPECT_THAT(s.Joined(), IsEmpty()) << "one of its workers is away, or its steps are recorded";
  peers.may_stop = true;
  s.snapshot.rules.scale_up.after_seconds = 0;
  EXPECT_THAT(s.Joined(), IsEmpty()) << "no job grows";
}

TEST(Joins, KeepWithinTheLimitOfTheQueue) {
  PeerSituation s(6);
  QueueSpec team = Queue("team");
  team.limit_cores = 4;
  s.snapshot.queues = {team};
  ActiveJob& peers = s.RunPeers(2, 0);
  peers.queue = "team";
  EXPECT_THAT(s.Joined(), ElementsAre("m2", "m3"));
  s.Joins(peers, "m2");
  EXPECT_THAT(s.Joined(), ElementsAre("m3")) << "the one on its way counts";
  s.Joins(peers, "m3");
  EXPECT_THAT(s.Joined(), IsEmpty());
  // Nor does a job of the queue start on what they are about to hold.
  s.Wait("new", 100).resources.ranks = 1;
  s.snapshot.queue.back().queue = "team";
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
}

TEST(Joins, LeaveRoomForTheOtherJobsOfTheQueue) {
  PeerSituation s(4);
  QueueSpec team = Queue("team");
  team.limit_cores = 3;
  s.snapshot.queues = {team};
  s.RunPeers(2, 0).queue = "team";
  s.Run("other", 1, 100000).resources.ranks = 1;
  s.snapshot.active.back().queue = "team";
  EXPECT_THAT(s.Joined(), IsEmpty());
}

TEST(Joins, NoneOnWorkersThatAreCordonedOrDrainOrHaveNoRoom) {
  PeerSituation s(5);
  s.RunPeers(2, 0);
  s.Leave("m2");
  s.snapshot.free.erase("m3");  // it is being checked
  EXPECT_THAT(s.Joined(), ElementsAre("m4"));
  s.snapshot.free.at("m4").memory_bytes = 0;
  s.plans[0]->prediction.memory_per_rank.parameters_bytes = 1;
  EXPECT_THAT(s.Joined(), IsEmpty());
}

TEST(Joins, LeaveSpareWorkersFree) {
  PeerSituation s(4);
  s.RunPeers(2, 0);
  s.snapshot.rules.spare_workers = 1;
  EXPECT_THAT(s.Joined(), ElementsAre("m2"));
}

TEST(Joins, TakeWhatIsLeftWhenNoJobWaitsForIt) {
  PeerSituation s(5);
  s.RunPeers(2, 0);
  s.Wait("new", 1000).resources.ranks = 2;
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("new"));
  EXPECT_THAT(PeerSituation::WorkersOf(decisions), SizeIs(1));
}

TEST(Joins, DoNotDelayAGangThatWaits) {
  PeerSituation s(5);
  ActiveJob& peers = s.RunPeers(2, 4);
  peers.preemptible = false;
  s.Run("ends", 1, 100).resources.ranks = 1;
  s.snapshot.active.back().preemptible = false;
  s.Wait("gang", 1000).resources.ranks = 3;
  s.snapshot.queue.back().priority = 1;
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  EXPECT_THAT(PeerSituation::WorkersOf(decisions), IsEmpty())
      << "in 100 seconds the gang starts on the three other workers";
  // Those of a job that ends before are in nobody's way.
  s.snapshot.active[0].job.steps_left = 2 * 50;
  EXPECT_THAT(s.Joined(), SizeIs(2));
}

TEST(Joins, FollowPriorityAndShare) {
  PeerSituation s(4);
  s.RunPeers(1, 0).priority = 1;
  s.Wait("new", 100000).resources.ranks = 3;
  // Two of four cores are the share of the job that runs. What is left is too little for the other.
  SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(PeerSituation::WorkersOf(decisions), SizeIs(1));
  EXPECT_THAT(Starts(decisions), IsEmpty());
  s.snapshot.queue[0].priority = 2;
  decisions = s.Decide();
  EXPECT_THAT(PeerSituation::WorkersOf(decisions), IsEmpty());
  EXPECT_THAT(Starts(decisions), ElementsAre("new"));
}

// Where the record of an active job has them.
constexpr size_t kNoPeersOn = 23, kJoining = 24;

TEST(Joins, AreDecidedTheSameAgainFromTheirRecord) {
  PeerSituation s(5);
  ActiveJob& peers = s.RunPeers(2, 4);
  s.Joins(peers, "m2");
  s.Wait("wide", 1000).resources.ranks = 6;
  for (auto& spec : s.specs) {
    spec->name = "job";
    spec->data.train = {"text"};
  }
  PassWriter writer;
  std::string lines;
  const auto record = [&] {
    PlanAnswers answers;
    const SchedulerDecisions decisions = Schedule(s.snapshot, Recording(PlanGpus, answers));
    EXPECT_EQ(decisions.joins.size(), std::ssize(s.snapshot.free) > 4 ? 1u : 0u);
    lines += writer.Write(s.snapshot, answers, decisions) + "\n";
  };
  record();
  const Json first = Json::parse(lines);
  s.Leave("m3");
  s.Leave("m4");
  record();
  const Status same = ReplayDecisions(lines);
  EXPECT_TRUE(same.ok()) << same.message();
  EXPECT_EQ(first["decisions"]["joins"].dump(), R"([["peers","m3"]])");

  // All of what the decision follows from is in the record.
  Json other = first;
  other["active"][0][kJoining] = 2;
  EXPECT_THAT(ReplayDecisions(other.dump() + "\n").message(), HasSubstr("joins[0]"));
  other = first;
  other["active"][0][kNoPeersOn].push_back("m3");
  EXPECT_THAT(ReplayDecisions(other.dump() + "\n").message(), HasSubstr("joins[0]"));
}

// Earlier versions wrote no number of those that join.
TEST(Joins, AreReadFromRecordsWithoutTheNumberOfThoseThatJoin) {
  PeerSituation s(5);
  ActiveJob& peers = s.RunPeers(2, 4);
  for (auto& spec : s.specs) {
    spec->name = "job";
    spec->data.train = {"text"};
  }
  ASSERT_EQ(peers.job.joining, 0);
  PlanAnswers answers;
  const SchedulerDecisions decisions = Schedule(s.snapshot, Recording(PlanGpus, answers));
  EXPECT_EQ(decisions.joins.size(), 2u);
  Json record = Json::parse(PassWriter().Write(s.snapshot, answers, decisions));
  record["active"][0].erase(kJoining);
  const Status same = ReplayDecisions(record.dump() + "\n");
  EXPECT_TRUE(same.ok()) << same.message();
}

}  // namespace
}  // namespace weft::coordinator
