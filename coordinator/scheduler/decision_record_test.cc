#include "coordinator/scheduler/decision_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;

/// Jobs that start, wait, give way and shrink, one whose plan is not known, and one whose plan was
/// given up.
struct Recorded : GpuSituation {
  Recorded() : GpuSituation(2) {
    QueueSpec queue;
    queue.name = "team";
    queue.limit_gpus = 9;
    snapshot.queues = {queue};
    Run("long", 4, 100000);
    Run("elastic", 8, 100000);
    specs.back()->resources.ranks = 0;
    Wait("short", 4, 100).priority = 1;
    Wait("wide", 16, 1000).submitted_at += 0.1;
    Wait("limited", 9, 3000).queue = "team";
    Wait("again", 2, 30).last_plan = plans.emplace_back(std::make_unique<Plan>(GpuPlan(2))).get();
    Wait("unknown", 3, 10).size.reset();
    QueuedJob& given_up = Wait("given up", 3, 10);
    given_up.size.reset();
    given_up.given_up_reason = &why;
    for (auto& spec : specs) {
      spec->name = "job";
      spec->data.train = {"text"};
    }
    snapshot.rules.age_factor = 12.3456789012345;
  }

  std::string Line(PassWriter& writer) const {
    PlanAnswers answers;
    const PlanFunction plan = [](const JobSpec& spec,
                                 const ClusterProfile& cluster) -> Result<PlanReport> {
      if (spec.resources.ranks == 3) return UnavailableError("being looked for");
      return PlanGpus(spec, cluster);
    };
    const SchedulerDecisions decisions = Schedule(snapshot, Recording(plan, answers));
    return writer.Write(snapshot, answers, decisions);
  }

  const std::string why = "it took too long";
};

TEST(DecisionRecord, APassDecidesTheSameAgain) {
  Recorded recorded;
  PassWriter writer;
  const std::string first = recorded.Line(writer);
  recorded.snapshot.now += 60;
  recorded.snapshot.queue.erase(recorded.snapshot.queue.begin());
  const std::string second = recorded.Line(writer);
  const Status status = ReplayDecisions(first + "\n" + second + "\n" + "{\"now\": ");
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_LT(second.size(), first.size() / 4) << "specs and plans are written once";
}

TEST(DecisionRecord, SaysWhatDiffersFirst) {
  const Recorded recorded;
  PassWriter writer;
  Json pass = Json::parse(recorded.Line(writer));
  EXPECT_TRUE(ReplayDecisions(pass.dump() + "\n").ok());
  pass["decisions"]["waits"][0][0] = "other";
  const Status status = ReplayDecisions(pass.dump() + "\n");
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_THAT(status.message(), HasSubstr("pass 1: waits[0]: recorded [\"other\""));
}

TEST(DecisionRecord, HoldsTheLinksThatPlacementFollowed) {
  GpuSituation s(4);
  s.Wait("wide", 16, 1000);
  s.specs[0]->name = "job";
  s.specs[0]->data.train = {"text"};
  s.snapshot.links = {{"m2", "m3", LinkLevel(1e9)}};
  PlanAnswers answers;
  const SchedulerDecisions decisions = Schedule(s.snapshot, Recording(PlanGpus, answers));
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].plan.rank_workers.front(), "m2");
  PassWriter writer;
  Json pass = Json::parse(writer.Write(s.snapshot, answers, decisions));
  const Status same = ReplayDecisions(pass.dump() + "\n");
  EXPECT_TRUE(same.ok()) << same.message();
  pass["added"][std::to_string(pass["links"].get<int64_t>())] = Json::array();
  EXPECT_THAT(ReplayDecisions(pass.dump() + "\n").message(), HasSubstr("pass 1: starts[0]"));
}

TEST(DecisionRecord, HoldsSparesAndTheFirstJobsThatWereHeldBack) {
  GpuSituation s(2);
  s.snapshot.rules.spare_workers = 1;
  s.Wait("new", 8, 100);
  QueuedJob& again = s.Wait("again", 8, 1000);
  again.last_plan = s.plans.emplace_back(std::make_unique<Plan>(GpuPlan(8))).get();
  again.recovers = true;
  for (auto& spec : s.specs) {
    spec->name = "job";
    spec->data.train = {"text"};
  }
  for (int i = 0; i < 600; ++i) s.snapshot.held.push_back({std::to_string(i), "later", {"new"}});
  PlanAnswers answers;
  const SchedulerDecisions decisions = Schedule(s.snapshot, Recording(PlanGpus, answers));
  ASSERT_EQ(decisions.starts.size(), 1u);
  EXPECT_EQ(decisions.starts[0].job_id, "again");
  ASSERT_EQ(decisions.waits.size(), 601u);
  PassWriter writer;
  Json pass = Json::parse(writer.Write(s.snapshot, answers, decisions));
  const Status same = ReplayDecisions(pass.dump() + "\n");
  EXPECT_TRUE(same.ok()) << same.message();
  EXPECT_EQ(pass["held"].size(), 500u);
  EXPECT_EQ(pass["decisions"]["waits"].size(), 501u);
  pass["rules"][11] = 0;
  EXPECT_FALSE(ReplayDecisions(pass.dump() + "\n").ok()) << "without spares both start";
}

TEST(DecisionRecord, ReadsThoseOfVersionsWithoutSparesAndHeldJobs) {
  const Recorded recorded;
  PassWriter writer;
  Json pass = Json::parse(recorded.Line(writer));
  pass.erase("held");
  pass["rules"].erase(size_t{11});
  for (Json& row : pass["queue"]) {
    row.erase(size_t{17});
    if (row[16].is_null()) row.erase(size_t{16});
  }
  const Status same = ReplayDecisions(pass.dump() + "\n");
  EXPECT_TRUE(same.ok()) << same.message();
}

TEST(DecisionRecord, SurvivesDamage) {
  const Recorded recorded;
  PassWriter writer;
  const std::string line = recorded.Line(writer);
  EXPECT_FALSE(ReplayDecisions("nonsense\n").ok());
  EXPECT_EQ(ReplayDecisions("{}\n").code(), StatusCode::kCorrupt);
  for (const char* part :
       {"queue", "active", "plans", "free", "cluster", "rules", "links", "held", "added"}) {
    Json pass = Json::parse(line);
    pass[part] = "x";
    EXPECT_FALSE(ReplayDecisions(pass.dump() + "\n").ok()) << part;
  }
}

}  // namespace
}  // namespace weft::coordinator
