#include "coordinator/planner/calibration/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/spec/spec_json.h"
#include "coordinator/planner/calibration/fit.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

WorkerProfile Machine() {
  WorkerProfile machine = CpuMachine("w1", 4, 64 * kGiB);
  machine.cpu_model = "Loom 3000";
  return machine;
}

/// A run by the best plan for `job`, which took as long as was planned.
TimedRun RunOf(JobSpec job, const std::string& id, const WorkerProfile& machine = Machine()) {
  job.train.steps = 50;
  job.schedule.warmup_steps = 0;
  const Result<PlanReport> report = PlanJob(job, {{machine}});
  EXPECT_TRUE(report.ok()) << id << ": " << report.status().message();
  TimedRun run;
  run.id = id;
  run.job = std::move(job);
  run.plan = report->candidates.front().plan;
  run.machines = {machine};
  run.step_seconds = run.plan.prediction.step_seconds;
  run.timed_steps = 49;
  return run;
}

JobSpec Gpt(int64_t layers, int64_t width, int64_t length, int64_t batch) {
  JobSpec job = SmallGpt2();
  job.model.layers = layers;
  job.model.width = width;
  job.model.heads = width / 64;
  job.model.vocab_size = 4096;
  job.model.context = length;
  job.train.sequence_length = length;
  job.train.global_batch = batch;
  job.resources.ranks = 1;
  job.resources.threads_per_rank = 1;
  return job;
}

/// Jobs that differ in what their steps are made of.
std::vector<JobSpec> Jobs() {
  std::vector<JobSpec> jobs;
  for (const auto& [layers, width] : {std::pair{2, 128}, {4, 256}, {2, 768}, {8, 192}}) {
    for (const int64_t length : {64, 512}) {
      for (const int64_t ranks : {1, 2, 4}) {
        JobSpec job = Gpt(layers, width, length, 8);
        job.resources.ranks = ranks;
        job.resources.micro_batch = length == 64 ? 2 : 1;
        job.train.precision = ranks == 1 || length == 64 ? "bf16" : "fp32";
        if (ranks == 4 && width == 192) job.resources.zero_stage = 2;
        if (ranks == 2 && width == 256) job.resources.tensor_parallel = 2;
        if (ranks == 1 && width == 256) job.resources.recompute = "block";
        jobs.push_back(job);
      }
    }
  }
  return jobs;
}

TimeCalibration Truth() {
  TimeCalibration truth;
  truth.small_products = 0.6;
  truth.large_products = 0.9;
  truth.attention_share = 0.15;
  truth.memory_share = 1.8;
  truth.link_share = 0.4;
  truth.message_seconds = 150e-6;
  truth.operation_seconds = 9e-6;
  truth.beside_share = 0.8;
  return truth;
}

/// Runs of all jobs on a machine with the constants `truth`, to within a few percent.
std::vector<TimedRun> RunsOf(const TimeCalibration& truth) {
  std::vector<TimedRun> runs;
  for (const JobSpec& job : Jobs()) {
    runs.push_back(RunOf(job, "run-" + std::to_string(runs.size())));
    TimedRun& run = runs.back();
    const double noise = 1 + 0.03 * std::sin(7.0 * static_cast<double>(runs.size()));
    run.step_seconds = StepSeconds(RunForecast::Of(run)->Step(truth)) * noise;
  }
  return runs;
}

double ErrorAt(const TimeCalibration& calibration, const TimeCalibration& truth,
               const TimedRun& run) {
  const RunForecast forecast = RunForecast::Of(run).value();
  return std::fabs(StepSeconds(forecast.Step(calibration)) / StepSeconds(forecast.Step(truth)) - 1);
}

TEST(RunForecast, IsWhatWasPlanned) {
  std::vector<JobSpec> jobs = Jobs();
  JobSpec pipeline = Gpt(4, 256, 128, 8);
  pipeline.resources.ranks = 2;
  pipeline.resources.pipeline_parallel = 2;
  pipeline.resources.micro_batch = 1;
  jobs.push_back(pipeline);
  JobSpec gathered = Gpt(4, 256, 128, 8);
  gathered.resources.ranks = 4;
  gathered.resources.zero_stage = 3;
  jobs.push_back(gathered);
  JobSpec attention = Gpt(4, 256, 128, 8);
  attention.resources.recompute = "attention";
  jobs.push_back(attention);
  JobSpec optimal = Gpt(6, 256, 256, 8);
  optimal.resources.recompute = "optimal";
  optimal.resources.memory_per_rank_bytes = int64_t{260} << 20;
  jobs.push_back(optimal);
  JobSpec offloaded = Gpt(4, 256, 128, 8);
  offloaded.resources.offload_optimizer = "host";
  offloaded.resources.device_memory_bytes = int64_t{1} << 30;
  offloaded.resources.host_link_bytes_per_second = 1'000'000'000;
  jobs.push_back(offloaded);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const TimedRun run = RunOf(jobs[i], std::to_string(i));
    const Result<RunForecast> forecast = RunForecast::Of(run);
    ASSERT_TRUE(forecast.ok()) << i << ": " << forecast.status().message();
    EXPECT_NEAR(StepSeconds(forecast->Step({})), run.plan.prediction.step_seconds,
                1e-9 * run.plan.prediction.step_seconds)
        << i;
  }
}

TEST(RunForecast, EachConstantMakesSomeStepsLonger) {
  std::vector<TimedRun> runs = RunsOf({});
  JobSpec offloaded = Gpt(2, 768, 16, 1);
  offloaded.resources.offload_optimizer = "host";
  offloaded.resources.device_memory_bytes = int64_t{1} << 30;
  runs.push_back(RunOf(offloaded, "offloaded"));
  TimeCalibration worse;
  VisitConstants(worse, [&](const Field& field, double& constant) {
    const double kept = constant;
    constant = field.unit == "seconds" ? 3 * constant + 5e-3 : constant / 3;
    int longer = 0;
    for (const TimedRun& run : runs) {
      const double seconds = StepSeconds(RunForecast::Of(run)->Step(worse));
      EXPECT_GE(seconds, run.step_seconds * 0.96) << field.name << " " << run.id;
      longer += seconds > run.step_seconds * 1.04 ? 1 : 0;
    }
    EXPECT_GT(longer, 0) << field.name;
    constant = kept;
  });
}

TEST(Calibrate, FindsTheTruthBehindRuns) {
  const TimeCalibration truth = Truth();
  const std::vector<TimedRun> runs = RunsOf(truth);
  const CalibrationReport report = Calibrate(runs, {});
  ASSERT_THAT(report.machines, SizeIs(1));
  EXPECT_THAT(report.left_out, IsEmpty());
  const MachineReport& machine = report.machines.front();
  EXPECT_EQ(machine.machine, "Loom 3000 (avx512_bf16)");
  EXPECT_TRUE(machine.adopted) << machine.verdict;
  EXPECT_EQ(machine.calibration.runs, std::ssize(runs));
  EXPECT_GT(machine.defaults.median, 0.15);
  EXPECT_LT(machine.after.median, 0.03);
  EXPECT_LT(machine.held_out.median, 0.04);
  EXPECT_GE(machine.held_out.median, machine.after.median) << "unseen runs are not easier";
  const auto within = [](double found, double wanted, double ratio) {
    EXPECT_NEAR(std::log(found / wanted), 0, std::log(ratio)) << found << " for " << wanted;
  };
  within(machine.calibration.large_products, truth.large_products, 1.15);
  within(machine.calibration.attention_share, truth.attention_share, 1.3);
  within(machine.calibration.beside_share, truth.beside_share, 1.15);
  // And what it says of another job.
  JobSpec other = Gpt(5, 512, 256, 8);
  other.resources.ranks = 2;
  EXPECT_LT(ErrorAt(machine.calibration, truth, RunOf(other, "other")), 0.08);
}

// Products of one width are slow, which no constant knows.
TEST(Calibrate, RunsNearSayWhatConstantsCannot) {
  const TimeCalibration truth = Truth();
  TimeCalibration slow = truth;
  slow.small_products /= 1.3;
  slow.large_products /= 1.3;
  const auto job_of = [](int64_t layers, int64_t width, int64_t ranks) {
    JobSpec job = Gpt(layers, width, 64, 8);
    job.resources.ranks = ranks;
    job.resources.micro_batch = 2;
    return job;
  };
  const auto seconds_of = [&](const TimedRun& run) {
    return StepSeconds(RunForecast::Of(run)->Step(run.job.model.width == 256 ? slow : truth));
  };
  std::vector<TimedRun> runs;
  for (const int64_t width : {64, 256, 1024}) {
    for (const int64_t layers : {2, 8}) {
      for (const int64_t ranks : {1, 2}) {
        runs.push_back(RunOf(job_of(layers, width, ranks), "run"));
        runs.back().step_seconds = seconds_of(runs.back());
      }
    }
  }
  const CalibrationReport report = Calibrate(runs, {});
  const MachineReport& machine = report.machines.front();
  EXPECT_TRUE(machine.adopted) << machine.verdict;
  EXPECT_LT(machine.near.mean, 0.8 * machine.held_out.mean);
  EXPECT_EQ(machine.calibration.error_ratio, machine.near.median);
  int64_t known = 0;
  for (const MeasuredShape& shape : machine.calibration.shapes) known += shape.runs;
  EXPECT_EQ(known, std::ssize(runs));
  EXPECT_THAT(FormatCalibration(report), HasSubstr("and by runs near"));
  // A job that is none of these.
  const TimedRun other = RunOf(job_of(5, 256, 4), "other");
  const auto error = [&](const TimeCalibration& calibration) {
    return std::fabs(StepSeconds(RunForecast::Of(other)->Step(calibration)) / seconds_of(other) -
                     1);
  };
  TimeCalibration constants = machine.calibration;
  constants.shapes.clear();
  EXPECT_LT(error(machine.calibration), 0.6 * error(constants));

  // And plans say so.
  WorkerProfile taught = Machine();
  taught.calibration = machine.calibration;
  const auto reason = [&](int64_t width) {
    return PlanJob(job_of(5, width, 1), {{taught}})->candidates.front().reason;
  };
  EXPECT_THAT(reason(256), HasSubstr("its products as 4 runs near measured them: x 1."));
  EXPECT_THAT(reason(4096), Not(HasSubstr("runs near")));
}

TEST(Calibrate, IsTheSameOnAnyNumberOfThreads) {
  const std::vector<TimedRun> runs = RunsOf(Truth());
  EXPECT_EQ(ToJson(Calibrate(runs, {}, 1)).dump(), ToJson(Calibrate(runs, {}, 3)).dump());
}

TEST(Calibrate, OneStrangeRunDoesNotMoveTheOthers) {
  std::vector<TimedRun> runs = RunsOf(Truth());
  runs[3].step_seconds *= 20;
  runs[11].step_seconds /= 8;
  const MachineReport machine = Calibrate(runs, {}).machines.front();
  EXPECT_TRUE(machine.adopted);
  EXPECT_LT(machine.held_out.median, 0.06);
}

TEST(Calibrate, FewRunsMoveNothingFar) {
  std::vector<TimedRun> runs = RunsOf({});
  runs.resize(2);
  for (TimedRun& run : runs) run.step_seconds *= 1000;
  const TimeCalibration fitted = Calibrate(runs, {}).machines.front().calibration;
  VisitConstants(fitted, [](const Field& field, const double& value) {
    EXPECT_GE(value, field.min) << field.name;
    EXPECT_LE(value, field.max) << field.name;
  });
  TimedRun other = RunOf(Gpt(5, 512, 256, 8), "other");
  EXPECT_LT(StepSeconds(RunForecast::Of(other)->Step(fitted)), 4 * other.step_seconds);
}

TEST(Calibrate, NothingIsAdoptedFromOneRunOrWhereTheDefaultsAreRight) {
  EXPECT_THAT(Calibrate({}, {}).machines, IsEmpty());
  EXPECT_THAT(FormatCalibration(Calibrate({}, {})), HasSubstr("no run to learn from"));
  std::vector<TimedRun> runs = RunsOf(Truth());
  runs.resize(1);
  const CalibrationReport one = Calibrate(runs, {});
  EXPECT_FALSE(one.machines.front().adopted);
  EXPECT_THAT(FormatCalibration(one), HasSubstr("one run says nothing of others"));

  std::vector<TimedRun> right = RunsOf({});
  for (TimedRun& run : right) run.step_seconds = run.plan.prediction.step_seconds;
  EXPECT_FALSE(Calibrate(right, {}).machines.front().adopted);
}

TEST(Calibrate, RepeatedRunsAreNoEvidenceForEachOther) {
  std::vector<TimedRun> runs(6, RunsOf(Truth()).front());
  const MachineReport machine = Calibrate(runs, {}).machines.front();
  EXPECT_EQ(machine.held_out.median, machine.defaults.median);
  EXPECT_FALSE(machine.adopted);
}

TEST(Calibrate, SaysOfEachRunThatDoesNotCountWhy) {
  const TimedRun good = RunOf(Gpt(2, 128, 64, 4), "good");
  const auto why = [&](const std::function<void(TimedRun&)>& spoil) {
    TimedRun bad = good;
    spoil(bad);
    const CalibrationReport report = Calibrate({bad}, {});
    EXPECT_THAT(report.machines, IsEmpty());
    return report.left_out.empty() ? "" : report.left_out.front().why;
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(why([](TimedRun& run) { run.step_seconds = kNan; }), HasSubstr("no step was timed"));
  EXPECT_THAT(why([](TimedRun& run) { run.step_seconds = 0; }), HasSubstr("no step was timed"));
  EXPECT_THAT(why([](TimedRun& run) { run.timed_steps = 4; }), HasSubstr("only 4 of at least 5"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.device = "cuda"; }), HasSubstr("GPUs"));
  EXPECT_THAT(why([](TimedRun& run) { run.job.train.local_steps = 4; }), HasSubstr("local steps"));
  EXPECT_THAT(why([](TimedRun& run) {
                run.job.model.vocab_size = 0;
                run.job.data.tokenizer.path = "/tokenizer";
              }),
              HasSubstr("model.vocab_size"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.micro_batch = 0; }), HasSubstr("below 1"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.mesh.data = -1; }), HasSubstr("below 1"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.accumulation_steps = 3; }),
              HasSubstr("another batch"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.rank_workers = {}; }), HasSubstr("where its ranks"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.rank_workers = {"gone"}; }), HasSubstr("gone"));
  EXPECT_THAT(why([](TimedRun& run) { run.plan.recompute_schedule = {"nonsense"}; }),
              Not(IsEmpty()));
  EXPECT_THAT(why([](TimedRun& run) { run.job.model.heads = 3; }), Not(IsEmpty()));
  EXPECT_THAT(why([](TimedRun& run) { run.machines = {}; }), HasSubstr("that it ran on"));
  EXPECT_THAT(why([](TimedRun& run) {
                run.machines.push_back(run.machines.front());
                run.machines.back().cpu_model = "Loom 4000";
              }),
              HasSubstr("several kinds"));
}

TEST(Calibrate, KindsOfMachinesLearnByThemselves) {
  std::vector<TimedRun> runs = RunsOf(Truth());
  WorkerProfile other = Machine();
  other.cpu_model = "Loom 4000";
  for (const TimedRun& run : RunsOf({})) {
    runs.push_back(run);
    runs.back().machines = {other};
  }
  const CalibrationReport report = Calibrate(runs, {});
  ASSERT_THAT(report.machines, SizeIs(2));
  EXPECT_TRUE(report.machines[0].adopted);
  EXPECT_GT(report.machines[0].defaults.median, report.machines[1].defaults.median);
}

TEST(Calibrate, BeforeIsWhatWasInUse) {
  const std::vector<TimedRun> runs = RunsOf(Truth());
  const MachineReport first = Calibrate(runs, {}).machines.front();
  const MachineReport again =
      Calibrate(runs, {{first.machine, first.calibration}}).machines.front();
  EXPECT_EQ(again.before.median, first.after.median);
  EXPECT_EQ(again.defaults.median, first.defaults.median);
  EXPECT_EQ(again.calibration, first.calibration) << "it starts from the defaults each time";
}

TEST(Planner, SaysThatItsTimesAreCalibrated) {
  WorkerProfile machine = Machine();
  machine.calibration = Truth();
  machine.calibration.runs = 12;
  machine.calibration.error_ratio = 0.042;
  const TimedRun plain = RunOf(Gpt(2, 128, 64, 4), "plain");
  const Result<PlanReport> report = PlanJob(plain.job, {{machine}});
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->candidates.front().reason,
              HasSubstr("times by measured rates calibrated by 12 runs (median error 4.2 %)"));
  EXPECT_GT(report->candidates.front().plan.prediction.step_seconds, plain.step_seconds);
}

}  // namespace
}  // namespace weft::planner
