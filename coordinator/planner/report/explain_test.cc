#include "coordinator/planner/report/explain.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pipeline/named_schedule.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/report/sensitivity.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

PlanExplanation Explain(const JobSpec& job, const ClusterProfile& cluster,
                        const PlanQuery& query = {}) {
  Result<PlanExplanation> explanation = ExplainPlan(job, cluster, query);
  EXPECT_TRUE(explanation.ok()) << explanation.status().message();
  return explanation.ok() ? *std::move(explanation) : PlanExplanation();
}

const Prediction& Chosen(const PlanExplanation& explanation) {
  return explanation.report.candidates.front().plan.prediction;
}

double GainFrom(const PlanExplanation& explanation, const std::string& what) {
  for (const Sensitivity& each : explanation.sensitivity) {
    if (each.what == what) return each.gain;
  }
  ADD_FAILURE() << "nothing is said of " << what;
  return -1;
}

/// `job` with lines of an alternative.
JobSpec With(const JobSpec& job, const std::string& lines) {
  const Result<Document> document = ParseYaml(lines, "lines");
  EXPECT_TRUE(document.ok()) << lines;
  Json json = ToJson(job);
  json.merge_patch(document->value);
  Result<JobSpec> changed = FromJson<JobSpec>(json);
  EXPECT_TRUE(changed.ok()) << changed.status().message();
  return *changed;
}

TEST(ExplainPlan, HasTheReportOfThePlanner) {
  const JobSpec job = SmallGpt2();
  const ClusterProfile cluster{{CpuMachine("a", 4, 16 * kGiB), CpuMachine("b", 4, 16 * kGiB)}};
  const PlanExplanation explanation = Explain(job, cluster, {.top = 3});
  Result<PlanReport> report = PlanJob(job, cluster);
  ASSERT_TRUE(report.ok());
  report->candidates.resize(3);
  EXPECT_EQ(ToJson(explanation.report), ToJson(*report));
  EXPECT_THAT(explanation.details, SizeIs(3));
  EXPECT_EQ(explanation.details[0].finish_seconds, 1000 * Chosen(explanation).step_seconds);
}

TEST(ExplainPlan, IsTheSameAfterItsWayOverTheWire) {
  PlanQuery query;
  query.frontier = true;
  query.costs.machines.push_back({.workers = "*", .price_per_hour = 2});
  const PlanExplanation explanation =
      Explain(SmallGpt2(), {{CpuMachine("a", 2, 16 * kGiB)}}, query);
  const Result<PlanExplanation> back = FromJson<PlanExplanation>(ToJson(explanation));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(ToJson(*back), ToJson(explanation));
}

TEST(ExplainPlan, ShowsHowOftenAJobThatLeavesItOpenShouldSave) {
  JobSpec job = SmallGpt2();
  const ClusterProfile cluster{{CpuMachine("a", 2, 16 * kGiB)}};
  const PlanExplanation given = Explain(job, cluster);
  EXPECT_EQ(given.details[0].steps_between_saves, 0) << "the job says it";
  EXPECT_THAT(FormatExplanation(given), Not(HasSubstr("a save and a failure in")));
  job.checkpoint.interval = "auto";
  const PlanExplanation open = Explain(job, cluster);
  EXPECT_GT(open.details[0].steps_between_saves, 0);
  EXPECT_GT(open.details[0].save_stall_seconds, 0);
  EXPECT_THAT(FormatExplanation(open),
              HasSubstr("every " + std::to_string(open.details[0].steps_between_saves) + " steps"));
}

// One rank has nothing that hides behind anything else, so that each part shrinks by itself.
TEST(Sensitivity, OfOneRankIsTheShareOfEachPart) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 1;
  const PlanExplanation explanation = Explain(job, {{CpuMachine("a", 1, 16 * kGiB)}});
  const TimeBreakdown& time = Chosen(explanation).time;
  const double step = StepSeconds(time);
  ASSERT_EQ(time.recompute_seconds, 0);
  const auto gain = [&](double part) { return step / (step - part * (1 - 1 / 1.1)) - 1; };
  EXPECT_NEAR(GainFrom(explanation, "compute"), gain(time.gemm_seconds), 1e-9);
  // A core draws less than the machine offers: 16 GB/s of 20, whatever the machine has.
  EXPECT_NEAR(GainFrom(explanation, "memory bandwidth"), 0, 1e-9);

  ClusterProfile narrow{{CpuMachine("a", 1, 16 * kGiB)}};
  narrow.workers[0].copy_bytes_per_second = 4e9;
  const PlanExplanation slower = Explain(job, narrow);
  const TimeBreakdown& parts = Chosen(slower).time;
  const double total = StepSeconds(parts);
  const double bytes = parts.memory_bound_seconds + parts.optimizer_seconds;
  EXPECT_NEAR(GainFrom(slower, "memory bandwidth"), total / (total - bytes * (1 - 1 / 1.1)) - 1,
              1e-9);
}

TEST(Sensitivity, OfRatesThatNobodyMeasuredIsThatOfTheRatesInTheirPlace) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 1;
  ClusterProfile cluster{{CpuMachine("a", 2, 16 * kGiB)}};
  cluster.workers[0].gemm.clear();
  cluster.workers[0].copy_bytes_per_second = 0;
  const PlanExplanation explanation = Explain(job, cluster);
  const TimeBreakdown& time = Chosen(explanation).time;
  const double share = time.gemm_seconds / StepSeconds(time);
  EXPECT_NEAR(GainFrom(explanation, "compute"), 1 / (1 - share * (1 - 1 / 1.1)) - 1, 0.005);
  EXPECT_GT(GainFrom(explanation, "memory bandwidth"), 0);

  // The same on a GPU, where tables replace measurements.
  const PlanExplanation gpu = Explain(job, {{GpuMachine("g", 1, 80 * kGiB)}});
  const TimeBreakdown& parts = Chosen(gpu).time;
  const double whole = StepSeconds(parts);
  EXPECT_NEAR(GainFrom(gpu, "compute"), whole / (whole - parts.gemm_seconds * (1 - 1 / 1.1)) - 1,
              0.005);
}

TEST(Sensitivity, OfLinksIsWhatFasterOnesGive) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 2;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 8;
  ClusterProfile cluster{{CpuMachine("a", 1, 16 * kGiB), CpuMachine("b", 1, 16 * kGiB)}};
  for (WorkerProfile& worker : cluster.workers) worker.loopback_bytes_per_second = 5e6;
  const PlanExplanation explanation = Explain(job, cluster);
  for (WorkerProfile& worker : cluster.workers) worker.loopback_bytes_per_second *= 1.1;
  const Result<PlanReport> faster = PlanJob(job, cluster);
  ASSERT_TRUE(faster.ok());
  const double gain =
      Chosen(explanation).step_seconds / faster->candidates[0].plan.prediction.step_seconds - 1;
  EXPECT_GT(gain, 0.02);
  EXPECT_NEAR(GainFrom(explanation, "links between machines"), gain, 1e-9);
  EXPECT_EQ(explanation.details[0].binding, "links");
}

TEST(Sensitivity, LinksThatAreStatedAreRaisedToo) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 2;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 8;
  ClusterProfile cluster{{CpuMachine("a", 1, 16 * kGiB), CpuMachine("b", 1, 16 * kGiB)}};
  for (WorkerProfile& worker : cluster.workers) worker.network_bytes_per_second = 1e9;
  cluster.links = {{.workers = {"a", "b"}, .bytes_per_second = 5e6}};
  const PlanExplanation explanation = Explain(job, cluster);
  cluster.links.front().bytes_per_second *= 1.1;
  const Result<PlanReport> faster = PlanJob(job, cluster);
  ASSERT_TRUE(faster.ok());
  const double gain =
      Chosen(explanation).step_seconds / faster->candidates[0].plan.prediction.step_seconds - 1;
  EXPECT_GT(gain, 0.02);
  EXPECT_NEAR(GainFrom(explanation, "links between machines"), gain, 1e-9);
}

TEST(Sensitivity, OfGpusSaysWhichLinksCount) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 4;
  job.resources.micro_batch = 4;
  ClusterProfile cluster{{GpuMachine("g", 4, 80 * kGiB)}};
  for (DeviceSpec& device : cluster.workers[0].devices) {
    for (DeviceLink& link : device.links) link.bytes_per_second = 2e9;
  }
  const PlanExplanation inside = Explain(job, cluster);
  EXPECT_GT(GainFrom(inside, "links inside machines"), 0.02);
  EXPECT_THAT(inside.sensitivity,
              Not(Contains(::testing::Field(&Sensitivity::what, "links between machines"))));

  ClusterProfile apart;
  for (const char* id : {"a", "b", "c", "d"}) apart.workers.push_back(GpuMachine(id, 1, 80 * kGiB));
  for (WorkerProfile& worker : apart.workers) worker.loopback_bytes_per_second = 1e9;
  EXPECT_GT(GainFrom(Explain(job, apart), "links between machines"), 0.02);
}

TEST(ExplainPlan, PricesWhatIsInUseAndSaysWhatIsNotKnown) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 4;
  job.resources.micro_batch = 4;
  const ClusterProfile cluster{{GpuMachine("h-1", 2, 80 * kGiB), GpuMachine("h-2", 2, 80 * kGiB),
                                GpuMachine("h-3", 2, 80 * kGiB)}};
  PlanQuery query;
  query.costs.currency = "USD";
  query.costs.machines = {{.workers = "h-*",
                           .price_per_hour = 1,
                           .device_price_per_hour = 2.5,
                           .watts = 300,
                           .device_watts = 700}};
  const PlanExplanation explanation = Explain(job, cluster, query);
  const PlanDetail& detail = explanation.details[0];
  const double hours = 1000 * Chosen(explanation).step_seconds / 3600;
  EXPECT_EQ(detail.devices, 4);
  EXPECT_EQ(detail.machines, 2);
  EXPECT_DOUBLE_EQ(detail.price_per_hour, 2 * 1 + 4 * 2.5);
  EXPECT_DOUBLE_EQ(detail.price, 12 * hours);
  EXPECT_DOUBLE_EQ(detail.watts, 2 * 300 + 4 * 700);
  EXPECT_DOUBLE_EQ(detail.kilowatt_hours, 3.4 * hours);
  EXPECT_THAT(explanation.notes, IsEmpty());
  EXPECT_THAT(FormatExplanation(explanation), HasSubstr("12.00 USD an hour"));

  query.costs.machines[0].workers = "h-1";
  const PlanExplanation partly = Explain(job, cluster, query);
  EXPECT_EQ(partly.details[0].price, 0);
  EXPECT_THAT(partly.notes, Contains(HasSubstr("the price of h-2 is not known")));
  EXPECT_THAT(partly.notes, Contains(HasSubstr("the power of h-2 is not known")));
}

TEST(ExplainPlan, TheFewestDevicesAreThoseOnWhichAPlanFits) {
  JobSpec job = SmallGpt2();
  job.resources.zero_stage = 3;
  const ClusterProfile cluster{{GpuMachine("g", 8, 3 * kGiB / 2)}};
  int64_t fewest = 0;
  for (int64_t devices = 8; devices >= 1; --devices) {
    if (PlanJob(job, FirstDevices(cluster, true, devices)).ok()) fewest = devices;
  }
  ASSERT_GT(fewest, 1) << "the test wants a model that one GPU does not hold";
  EXPECT_EQ(Explain(job, cluster).fewest_devices, fewest);
}

TEST(ExplainPlan, SaysOfEveryWayWhatAskingForItGives) {
  JobSpec plain = SmallGpt2(), shared = SmallGpt2();
  shared.resources.zero_stage = 3;
  const ClusterProfile cluster{{CpuMachine("a", 4, 4 * kGiB)}};
  int fitting = 0, refused = 0;
  for (const JobSpec& job : {plain, shared}) {
    for (const Alternative& way : Explain(job, cluster).alternatives) {
      SCOPED_TRACE(way.lines + ": " + way.reason);
      const JobSpec changed = With(job, way.lines);
      const Result<PlanReport> report = PlanJob(changed, cluster);
      EXPECT_EQ(report.ok(), way.fits);
      EXPECT_FALSE(way.reason.empty());
      if (report.ok()) {
        ++fitting;
        const Prediction& best = report->candidates[0].plan.prediction;
        EXPECT_DOUBLE_EQ(best.step_seconds, way.step_seconds);
        EXPECT_EQ(TotalBytes(best.memory_per_rank), way.memory_bytes);
      } else if (!ValidateJob(changed).ok()) {
        ++refused;
        EXPECT_THAT(ValidateJob(changed).message(), HasSubstr(way.reason));
      } else {
        EXPECT_THAT(report.status().message(), HasSubstr(way.reason));
      }
    }
  }
  EXPECT_GT(fitting, 8);
  EXPECT_GT(refused, 3);
}

/// `job` with the lines of an explanation.
JobSpec WithLines(JobSpec job, const PlanExplanation& explanation) {
  for (const std::string& line : explanation.lines) {
    const size_t colon = line.find(": "), dot = line.find('.');
    job = With(job,
               "resources: { " + line.substr(dot + 1, colon - dot - 1) + line.substr(colon) + " }");
  }
  return job;
}

/// The resources of the coordinator's plan where those lines are asked for.
ResourceSpec AskedAsExplained(const JobSpec& job, const ClusterProfile& cluster) {
  const PlanExplanation explanation = Explain(job, cluster, {.any_mesh = true});
  const JobSpec asked = WithLines(job, explanation);
  const Result<PlanReport> report = PlanJob(asked, cluster);
  EXPECT_TRUE(report.ok()) << report.status().message();
  if (!report.ok()) return {};
  EXPECT_DOUBLE_EQ(report->candidates[0].plan.prediction.step_seconds,
                   Chosen(explanation).step_seconds);
  return asked.resources;
}

TEST(ExplainPlan, LinesAskForTheChosenPlan) {
  AskedAsExplained(SmallGpt2(), {{CpuMachine("a", 4, 16 * kGiB)}});
}

TEST(ExplainPlan, LinesAskForGridsAndGroups) {
  // Four tensor-parallel ranks with two heads have to shard features, too (2-D).
  JobSpec job = SmallGpt2();
  job.model.heads = 2;
  job.model.attention_dropout = 0.1;  // which rules out context parallelism
  job.train.global_batch = 1;
  job.resources.threads_per_rank = 1;
  const ClusterProfile small{{CpuMachine("a", 4, 16 * kGiB)}};
  const ResourceSpec grid = AskedAsExplained(job, small);
  EXPECT_EQ(grid.tensor_parallel, 4);
  EXPECT_EQ(grid.tensor_rows, 2);
  // Two GPUs have room together, and the network between two such is slower than their links.
  ClusterProfile machines{{GpuMachine("a", 2, kGiB * 3 / 2), GpuMachine("b", 2, kGiB * 3 / 2)}};
  for (WorkerProfile& worker : machines.workers) worker.loopback_bytes_per_second = 10e9;
  job = SmallGpt2();
  job.train.global_batch = 512;
  job.train.precision = "bf16_pure";  // which rules out tensor parallelism,
  job.model.attention_dropout = 0.1;  // this context parallelism,
  job.model.distinct_blocks = 2;      // and this pipelines
  const ResourceSpec groups = AskedAsExplained(job, machines);
  EXPECT_GT(groups.zero_stage, 0);
  EXPECT_EQ(groups.zero_shard_ranks, 2);
}

TEST(Timeline, IsTheScheduleThatTheEngineRuns) {
  for (const char* name : {"gpipe", "1f1b", "zero_bubble", "interleaved"}) {
    SCOPED_TRACE(name);
    JobSpec job = SmallGpt2();
    job.resources.ranks = 3;
    job.resources.threads_per_rank = 1;
    job.resources.micro_batch = 2;
    job.train.global_batch = 12;
    job.resources.pipeline_parallel = 3;
    job.resources.pipeline_schedule = name;
    job.resources.pipeline_chunks = std::string(name) == "interleaved" ? 2 : 1;
    const PlanExplanation explanation = Explain(job, {{CpuMachine("a", 3, 64 * kGiB)}});
    const Timeline& timeline = explanation.timeline;
    const Plan& plan = explanation.report.candidates[0].plan;
    const Result<PipelineSchedule> schedule =
        NamedSchedule(name, 3, plan.pipeline_chunks, plan.accumulation_steps);
    ASSERT_TRUE(schedule.ok());
    ASSERT_THAT(timeline.ranks, SizeIs(3));
    EXPECT_EQ(timeline.micro_batches, 6);
    EXPECT_EQ(timeline.micro_batches_shown, 6);
    double busy = 0, end = 0;
    for (size_t rank = 0; rank < 3; ++rank) {
      const std::vector<TimelineStep>& steps = timeline.ranks[rank].steps;
      ASSERT_EQ(steps.size(), schedule->steps[rank].size());
      for (size_t i = 0; i < steps.size(); ++i) {
        const PipelineStep& step = schedule->steps[rank][i];
        EXPECT_EQ(steps[i].op, PipelineOpName(step.op));
        EXPECT_EQ(steps[i].micro_batch, step.micro_batch);
        EXPECT_EQ(steps[i].stage, schedule->StageOf(static_cast<int64_t>(rank), step.chunk));
        EXPECT_GE(steps[i].start, i == 0 ? 0 : steps[i - 1].end);
        busy += steps[i].end - steps[i].start;
        end = std::max(end, steps[i].end);
      }
    }
    EXPECT_DOUBLE_EQ(timeline.passes_seconds, end);
    EXPECT_NEAR(timeline.idle_share, 1 - busy / (3 * end), 1e-9);
    // The plan was chosen by this step time: what is left is the update of the rank that computes
    // most, which here exchanges no gradients.
    EXPECT_NEAR(timeline.step_seconds - end, plan.prediction.time.optimizer_seconds,
                0.01 * timeline.step_seconds);
  }
}

TEST(Timeline, OfOneRankHasItsMicroBatchesAndTheUpdate) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 1;
  job.resources.micro_batch = 4;
  const PlanExplanation explanation = Explain(job, {{CpuMachine("a", 1, 16 * kGiB)}});
  ASSERT_THAT(explanation.timeline.ranks, SizeIs(1));
  EXPECT_THAT(explanation.timeline.ranks[0].steps, SizeIs(2 * 4));
  const TimeBreakdown& time = Chosen(explanation).time;
  EXPECT_NEAR(explanation.timeline.passes_seconds,
              StepSeconds(time) - time.optimizer_seconds - time.exposed_communication_seconds,
              1e-9);
}

TEST(Timeline, OfManyMicroBatchesListsTheFirst) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 1;
  job.resources.micro_batch = 1;
  job.train.global_batch = 4096;
  const PlanExplanation explanation = Explain(job, {{CpuMachine("a", 1, 16 * kGiB)}});
  EXPECT_EQ(explanation.timeline.micro_batches, 4096);
  EXPECT_EQ(explanation.timeline.micro_batches_shown, 600);
  EXPECT_THAT(explanation.timeline.ranks[0].steps, SizeIs(1200));
}

TEST(ExplainPlan, KeepsToTheDevicesThatItMayUse) {
  const JobSpec job = SmallGpt2();
  const ClusterProfile cluster{{GpuMachine("g", 8, 80 * kGiB), GpuMachine("h", 8, 80 * kGiB)}};
  const PlanExplanation explanation = Explain(job, cluster, {.most_devices = 3});
  EXPECT_EQ(explanation.devices, 3);
  for (const PlanCandidate& candidate : explanation.report.candidates) {
    EXPECT_LE(RankCount(candidate.plan.mesh), 3);
  }
  EXPECT_THAT(explanation.notes, Contains(HasSubstr("at most 3 GPUs")));
}

PlanQuery CheapQuery() {
  PlanQuery query;
  query.goal = "cheapest";
  query.costs.machines = {{.workers = "slow-*", .price_per_hour = 1},
                          {.workers = "fast-*", .price_per_hour = 10}};
  return query;
}

ClusterProfile TwoKinds() {
  return {{CpuMachine("slow-1", 2, 16 * kGiB, 1), CpuMachine("slow-2", 2, 16 * kGiB, 1),
           CpuMachine("fast-1", 2, 16 * kGiB, 4), CpuMachine("fast-2", 2, 16 * kGiB, 4)}};
}

TEST(ExplainPlan, TheCheapestIsThatOfThePointsThatAreInTime) {
  PlanQuery query = CheapQuery();
  const PlanExplanation cheap = Explain(SmallGpt2(), TwoKinds(), query);
  double least = 1e300, fastest = 1e300, cheap_finish = 0;
  for (const FrontierPoint& point : cheap.frontier) {
    if (point.price < least) {
      least = point.price;
      cheap_finish = point.finish_seconds;
    }
    fastest = std::min(fastest, point.finish_seconds);
  }
  EXPECT_DOUBLE_EQ(cheap.details[0].price, least);
  EXPECT_THAT(cheap.report.candidates[0].plan.rank_workers, Each(HasSubstr("slow")));
  EXPECT_THAT(Explain(SmallGpt2(), TwoKinds()).report.candidates[0].plan.rank_workers,
              Contains(HasSubstr("fast")));

  // A little more than the fastest takes: only few are in time, and the cheapest of them is taken.
  ASSERT_LT(1.2 * fastest, cheap_finish);
  query.finish_within_seconds = 1.2 * fastest;
  const PlanExplanation quick = Explain(SmallGpt2(), TwoKinds(), query);
  double in_time = 1e300;
  for (const FrontierPoint& point : quick.frontier) {
    if (point.finish_seconds <= 1.2 * fastest) in_time = std::min(in_time, point.price);
  }
  EXPECT_DOUBLE_EQ(quick.details[0].price, in_time);
  EXPECT_LE(quick.details[0].finish_seconds, 1.2 * fastest);
  EXPECT_GT(in_time, least);
}

TEST(ExplainPlan, TheCheapestNeedsPrices) {
  const auto none = ExplainPlan(SmallGpt2(), TwoKinds(), {.goal = "cheapest"});
  EXPECT_EQ(none.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(none.status().message(), HasSubstr("no machine has a price; hint: "));
}

TEST(ExplainPlan, SaysByHowMuchItIsLateAndWhatWouldDo) {
  const JobSpec job = SmallGpt2();
  const ClusterProfile cluster{{GpuMachine("g", 8, 80 * kGiB)}};
  const double eight = Explain(job, cluster).details[0].finish_seconds;
  const double one = Explain(job, cluster, {.most_devices = 1}).details[0].finish_seconds;
  ASSERT_LT(1.1 * eight, one);
  PlanQuery query{.most_devices = 1, .finish_within_seconds = 1.1 * eight};
  const Status late = ExplainPlan(job, cluster, query).status();
  EXPECT_EQ(late.code(), StatusCode::kExhausted);
  EXPECT_THAT(late.message(), HasSubstr("1000 steps in "));
  EXPECT_THAT(late.message(), HasSubstr(" more than the "));
  // What it says of steps is true.
  const std::string& text = late.message();
  const size_t at = text.find("make no more than ");
  ASSERT_NE(at, std::string::npos) << text;
  JobSpec shorter = job;
  shorter.train.steps = std::stoll(text.substr(at + 18));
  EXPECT_TRUE(ExplainPlan(shorter, cluster, query).ok()) << text;
  // And what it says of devices.
  const size_t devices = text.find("allow ");
  ASSERT_NE(devices, std::string::npos) << text;
  query.most_devices = std::stoll(text.substr(devices + 6));
  EXPECT_TRUE(ExplainPlan(job, cluster, query).ok()) << text;
}

TEST(ExplainPlan, OfferedRemediesFit) {
  JobSpec job = SmallGpt2();
  job.resources.ranks = 4;
  job.resources.recompute = "none";
  job.resources.micro_batch = 4;
  const ClusterProfile cluster{{CpuMachine("a", 4, 8 * kGiB)}};
  const Status status = ExplainPlan(job, cluster, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  const std::string& text = status.message();
  const size_t times = text.find("give machines ");
  ASSERT_NE(times, std::string::npos) << text;
  const double factor = std::stod(text.substr(times + 14));
  const auto with_memory = [&](double more) {
    ClusterProfile larger = cluster;
    larger.workers[0].memory_limit_bytes = static_cast<int64_t>(8 * kGiB * more);
    return PlanJob(job, larger).ok();
  };
  EXPECT_TRUE(with_memory(factor)) << text;
  EXPECT_FALSE(with_memory(factor - 0.02)) << text;
  size_t found = 0;
  for (size_t at = text.find("hint:"); (at = text.find("resources: {", at)) != std::string::npos;) {
    const size_t end = text.find('}', at);
    const JobSpec changed = With(job, text.substr(at, end - at + 1));
    EXPECT_TRUE(PlanJob(changed, cluster).ok()) << text.substr(at, end - at + 1);
    ++found;
    at = end;
  }
  EXPECT_GE(found, 1U) << text;
}

TEST(ExplainPlan, OfferedDevicesFit) {
  JobSpec job = SmallGpt2();
  job.resources.zero_stage = 3;
  const ClusterProfile cluster{{GpuMachine("g", 8, 3 * kGiB / 2)}};
  const std::string text = ExplainPlan(job, cluster, {.most_devices = 1}).status().message();
  const size_t at = text.find("allow ");
  ASSERT_NE(at, std::string::npos) << text;
  const int64_t devices = std::stoll(text.substr(at + 6));
  EXPECT_TRUE(ExplainPlan(job, cluster, {.most_devices = devices}).ok());
  EXPECT_FALSE(ExplainPlan(job, cluster, {.most_devices = devices - 1}).ok());
}

TEST(ExplainPlan, RefusesWhatThePlannerRefuses) {
  EXPECT_EQ(ExplainPlan(SmallGpt2(), {}, {}).status().code(), StatusCode::kUnavailable);
  JobSpec job = SmallGpt2();
  job.model.heads = 7;
  EXPECT_EQ(ExplainPlan(job, {{CpuMachine("a", 1, kGiB)}}, {}).status().code(),
            StatusCode::kInvalid);
  JobSpec gpus = SmallGpt2();
  gpus.resources.device = "cuda";
  EXPECT_EQ(ExplainPlan(gpus, {{CpuMachine("a", 1, 16 * kGiB)}}, {}).status().code(),
            StatusCode::kExhausted);
}

}  // namespace
}  // namespace weft::planner
