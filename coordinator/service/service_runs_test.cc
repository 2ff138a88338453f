#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "common/spec/spec_json.h"
#include "coordinator/planner/calibration/calibrate.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Workers with rates, and the planner that people get.
class RunsTest : public ServiceTest {
 protected:
  void SetUp() override {
    SqliteOptions sqlite;
    sqlite.path = ":memory:";
    store_ = std::move(*SqliteStore::Open(sqlite));
    Restart();
  }
  void Restart() {
    service_.reset();
    service_ = std::make_unique<Service>(*store_, clock_, planner::PlanJob, metrics_, options_);
    ASSERT_TRUE(service_->Start().ok());
  }
  static WorkerProfile Profile() {
    WorkerProfile profile;
    profile.cpu_model = "Loom 3000";
    profile.isa = "avx512";
    profile.cores = 2;
    profile.memory_bytes = profile.memory_limit_bytes = int64_t{8} << 30;
    profile.copy_bytes_per_second = 10e9;
    profile.loopback_bytes_per_second = 1e9;
    for (const int64_t m : {64, 1024}) profile.gemm.push_back({"fp32", m, 512, 512, 1, 50e9});
    return profile;
  }
  std::shared_ptr<FakeLink> AttachMachine() {
    auto link = std::make_shared<FakeLink>();
    WorkerHello hello;
    hello.worker_id = "w";
    hello.incarnation = "i";
    hello.version = kVersion;
    hello.api_level = kApiLevel;
    hello.profile = Profile();
    // What a worker says of its own calibration does not count.
    hello.profile.calibration.runs = 99;
    service_->Attach(link, hello);
    EXPECT_TRUE(link->Saw("registered"));
    return link;
  }
  static JobSpec Job(int64_t layers, int64_t width) {
    JobSpec job;
    job.name = "job";
    job.data.train = {"/data/a"};
    job.model.layers = layers;
    job.model.width = width;
    job.model.heads = 4;
    job.model.context = 64;
    job.model.vocab_size = 512;
    job.train.global_batch = 4;
    job.train.precision = "fp32";
    job.resources.ranks = job.resources.threads_per_rank = 1;
    return job;
  }
  std::string SubmitJob(const JobSpec& job) {
    std::promise<Result<SubmitResult>> promise;
    service_->Submit(job, "request-" + std::to_string(++requests_),
                     [&](Result<SubmitResult> r) { promise.set_value(std::move(r)); });
    auto result = promise.get_future().get();
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result->view.job.id;
  }
  /// Runs it to its end; its steps take `times` as long as planned.
  std::string RunJob(const std::shared_ptr<FakeLink>& link, const JobSpec& job, double times) {
    const std::string id = SubmitJob(job);
    EXPECT_TRUE(link->Saw("start " + id + " 1"));
    const Prediction prediction = service_->Get(id)->attempts[0].plan.prediction;
    MemoryBreakdown peak = prediction.memory_per_rank;
    peak.runtime_bytes = 0;
    const Json summary = {{"epoch", 1},
                          {"median_step_seconds", times * prediction.step_seconds},
                          {"timed_steps", 30},
                          {"memory_peak", ToJson(peak)}};
    service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
    FinishAttempt(link, id, 1, summary.dump());
    EXPECT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded);
    return id;
  }
  double Predicted(const JobSpec& job) {
    const auto report = PlanFor(job);
    EXPECT_TRUE(report.ok()) << report.status().message();
    reason_ = report->candidates.front().reason;
    return report->candidates.front().plan.prediction.step_seconds;
  }
  /// The metrics, once they have `sample`: they change after the state does.
  std::string MetricsWith(const std::string& sample) {
    std::string text;
    for (int i = 0; i < 5000 && text.find(sample) == std::string::npos; ++i) {
      if (i > 0) std::this_thread::sleep_for(milliseconds(1));
      text = prometheus::TextSerializer().Serialize(metrics_.registry()->Collect());
    }
    return text;
  }

  std::string reason_;  ///< Of what was planned last.
};

TEST_F(RunsTest, EveryRunThatEndsIsKeptWithPredictionAndMeasurement) {
  auto link = AttachMachine();
  const std::string id = RunJob(link, Job(2, 64), 1.5);
  const auto runs = store_->ListRuns(10);
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  ASSERT_EQ(runs->size(), 1U);
  const RunRecord& run = runs->front();
  EXPECT_EQ(run.job_id, id);
  EXPECT_EQ(run.timed_steps, 30);
  EXPECT_NEAR(run.step_seconds, 1.5 * run.plan.prediction.step_seconds, 1e-12);
  const MemoryBreakdown& memory = run.plan.prediction.memory_per_rank;
  EXPECT_EQ(run.memory_bytes, TotalBytes(memory) - memory.runtime_bytes);
  ASSERT_EQ(run.machines.size(), 1U);
  EXPECT_EQ(run.machines.front().gemm, Profile().gemm);
  EXPECT_EQ(run.machines.front().calibration, TimeCalibration()) << "as it was measured";
  const std::string text = MetricsWith("weft_coord_plan_memory_error_ratio_bucket{le=\"0.001\"} 1");
  // A third of what was measured.
  EXPECT_THAT(text, HasSubstr("weft_coord_plan_step_time_error_ratio_bucket{le=\"0.3\"} 0"));
  EXPECT_THAT(text, HasSubstr("weft_coord_plan_step_time_error_ratio_bucket{le=\"0.5\"} 1"));
  EXPECT_THAT(text, HasSubstr("weft_coord_plan_memory_error_ratio_bucket{le=\"0.001\"} 1"));
}

TEST_F(RunsTest, ACoordinatorThatRestartsKnowsHowWrongPredictionsWere) {
  RunJob(AttachMachine(), Job(2, 64), 2);  // half of what is measured
  Restart();
  auto link = AttachMachine();
  JobSpec both_cores = Job(2, 64);
  both_cores.resources.threads_per_rank = 2;
  const std::string runs = SubmitJob(both_cores);
  ASSERT_TRUE(link->Saw("start " + runs + " 1"));
  service_->Report(link, runs, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
  const std::string waits = SubmitJob(both_cores);
  JobExplanation why;
  for (int i = 0; i < 5000 && !why.start_in_seconds; ++i) {
    if (i > 0) std::this_thread::sleep_for(milliseconds(1));
    why = Explain(waits);
  }
  ASSERT_TRUE(why.start_in_seconds);
  EXPECT_NEAR(*why.latest_start_in_seconds / *why.start_in_seconds, 1.23, 1e-9);
}

TEST_F(RunsTest, AnAttemptWithoutMeasuredStepsLeavesNone) {
  auto link = AttachMachine();
  for (const std::string summary : {"", "no json", "[]", R"({"epoch":1})",
                                    R"({"epoch":1,"median_step_seconds":-1,"timed_steps":9})",
                                    R"({"epoch":7,"median_step_seconds":1,"timed_steps":9})",
                                    R"({"epoch":1,"median_step_seconds":"x"})"}) {
    const std::string id = SubmitJob(Job(2, 64));
    ASSERT_TRUE(link->Saw("start " + id + " 1"));
    FinishAttempt(link, id, 1, summary);
    ASSERT_EQ(AwaitState(id, JobState::kSucceeded), JobState::kSucceeded) << summary;
  }
  EXPECT_EQ(store_->ListRuns(10)->size(), 0U);
}

TEST_F(RunsTest, AnAttemptThatFailsCountsByWhatItsHeartbeatsTold) {
  auto link = AttachMachine();
  const std::string id = SubmitJob(Job(2, 64));
  ASSERT_TRUE(link->Saw("start " + id + " 1"));
  service_->Report(link, id, {"", 1, PlacementEvent::kTraining, Reason::kNone, "", ""});
  for (int step = 1; step <= 25; ++step) {
    Progress progress;
    progress.step = step;
    progress.step_seconds = 0.25;
    Pass(1, {link}, {{id, 1, progress}});
  }
  service_->Report(link, id, {"", 1, PlacementEvent::kFailed, Reason::kUserError, "bad data", ""});
  ASSERT_EQ(AwaitState(id, JobState::kFailed), JobState::kFailed);
  const auto runs = store_->ListRuns(10);
  ASSERT_EQ(runs->size(), 1U);
  EXPECT_EQ(runs->front().step_seconds, 0.25);
  EXPECT_EQ(runs->front().timed_steps, 25);
  EXPECT_EQ(runs->front().memory_bytes, 0);
}

TEST_F(RunsTest, CalibratedPlansStayOverARestartAndGoWhenAsked) {
  auto link = AttachMachine();
  const JobSpec other = Job(3, 96);
  const double before = Predicted(other);
  EXPECT_THAT(reason_, Not(HasSubstr("calibrated")));
  EXPECT_THAT(planner::FormatCalibration(*service_->CalibratePlans(false, false)),
              HasSubstr("no run to learn from"));
  for (const int64_t width : {64, 128, 256, 512}) {
    RunJob(link, Job(2, width), 1.5);
    RunJob(link, Job(6, width), 1.5);
  }
  const auto tried = service_->CalibratePlans(true, false);
  ASSERT_TRUE(tried.ok()) << tried.status().message();
  EXPECT_TRUE(tried->machines.front().adopted) << tried->machines.front().verdict;
  EXPECT_EQ(Predicted(other), before) << "a dry run changes nothing";

  const auto report = service_->CalibratePlans(false, false);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->machines.size(), 1U);
  EXPECT_EQ(report->machines.front().machine, "Loom 3000 (avx512)");
  EXPECT_NEAR(report->machines.front().defaults.median, 1.0 / 3, 0.01);
  EXPECT_LT(report->machines.front().held_out.median, 0.1);
  const double after = Predicted(other);
  EXPECT_NEAR(after / before, 1.5, 0.15);
  EXPECT_THAT(reason_, HasSubstr("calibrated by 8 runs"));
  EXPECT_EQ(service_->Workers().front().profile.calibration.runs, 8);
  const std::string runs = "weft_coord_plan_calibration_runs 8";
  EXPECT_THAT(MetricsWith(runs), HasSubstr(runs));

  Restart();
  link = AttachMachine();
  EXPECT_EQ(Predicted(other), after);
  const std::string id = SubmitJob(other);
  ASSERT_TRUE(link->Saw("start " + id + " 1"));
  EXPECT_EQ(service_->Get(id)->attempts[0].plan.prediction.step_seconds, after)
      << "jobs are planned with it, too";

  EXPECT_EQ(service_->CalibratePlans(true, true).status().code(), StatusCode::kInvalid);
  ASSERT_TRUE(service_->CalibratePlans(false, true).ok());
  EXPECT_EQ(Predicted(other), before);
  Restart();
  link = AttachMachine();
  EXPECT_EQ(Predicted(other), before);
  EXPECT_EQ(store_->ListRuns(10)->size(), 8U) << "what was measured stays";
}

TEST_F(RunsTest, RunsNearCountForPlansToComeAndStayOverARestart) {
  auto link = AttachMachine();
  for (const int64_t width : {64, 192, 320, 1024}) {
    for (const int64_t layers : {2, 4}) RunJob(link, Job(layers, width), width == 192 ? 1.8 : 1.3);
  }
  const JobSpec near = Job(3, 192), far = Job(1, 3072);
  const double before = Predicted(near);
  EXPECT_THAT(reason_, Not(HasSubstr("runs near")));
  const auto report = service_->CalibratePlans(false, false);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_LT(report->machines.front().near.mean, report->machines.front().held_out.mean);
  const double after = Predicted(near);
  EXPECT_GT(after, 1.35 * before);
  EXPECT_THAT(reason_, HasSubstr("runs near measured them: x 1."));
  Predicted(far);
  EXPECT_THAT(reason_, Not(HasSubstr("near measured")));
  Restart();
  link = AttachMachine();
  EXPECT_EQ(Predicted(near), after);
  ASSERT_TRUE(service_->CalibratePlans(false, true).ok());
  EXPECT_EQ(Predicted(near), before);
}

TEST_F(RunsTest, AClusterThatIsGivenIsTakenAsItIs) {
  auto link = AttachMachine();
  const JobSpec other = Job(3, 96);
  for (const int64_t width : {64, 128, 256, 512}) RunJob(link, Job(2, width), 2);
  ASSERT_TRUE(service_->CalibratePlans(false, false).ok());
  ClusterProfile given;
  given.workers = {Profile()};
  const auto report = PlanFor(other, given);
  ASSERT_TRUE(report.ok());
  EXPECT_LT(report->candidates.front().plan.prediction.step_seconds, Predicted(other));
}

}  // namespace
}  // namespace weft::coordinator
