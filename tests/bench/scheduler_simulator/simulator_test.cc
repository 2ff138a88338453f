#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/bench/scheduler_simulator/baselines.h"
#include "tests/bench/scheduler_simulator/production.h"

namespace weft::bench {
namespace {

double MeanHours(const Trace& trace, const Outcome& outcome) {
  return Summarize(trace, outcome).mean_completion_seconds / 3600;
}

const ScalingCurve& Curve() {
  static const ScalingCurve curve({{1, 1}, {8, 7.5}, {64, 30}});
  return curve;
}

TEST(SchedulerSimulator, PoliciesDoWhatTheirNamesSay) {
  // Two GPUs: a long job of one, a job of both, short ones of one.
  const Trace trace = {{0, 100, 1, 1}, {1, 50, 2, 1}, {2, 10, 1, 1}, {3, 200, 1, 1}};
  const auto ends = [&](const std::string& policy) {
    std::vector<double> times = SimulateBaseline(policy, trace, 2, Curve()).completion_seconds;
    for (size_t i = 0; i < times.size(); ++i) times[i] += trace[i].submit_seconds;
    return times;
  };
  EXPECT_EQ(ends("fifo"), (std::vector<double>{100, 150, 160, 350}));
  EXPECT_EQ(ends("fit_first"), (std::vector<double>{100, 262, 12, 212}));
  EXPECT_EQ(ends("easy"), (std::vector<double>{100, 150, 12, 350}));
}

TEST(SchedulerSimulator, AnElasticSrsfGivesTheShortestJobAllThatMakesItFaster) {
  const Trace trace = {{0, 100, 1, 1}, {0, 10, 1, 1}};
  const double speed = Curve().Speed(2);
  const Outcome outcome = SimulateBaseline("srsf_elastic", trace, 2, Curve());
  EXPECT_NEAR(outcome.completion_seconds[1], 10 / speed, 1e-6);
  EXPECT_NEAR(outcome.completion_seconds[0], 110 / speed, 1e-6);
  const ScalingCurve flat({{1, 1}, {2, 1.2}});
  EXPECT_EQ(SimulateBaseline("srsf_elastic", trace, 2, flat).completion_seconds,
            (std::vector<double>{100, 10}));
}

TEST(SchedulerSimulator, TheSlowestJobIsSeen) {
  const Trace trace = {{0, 100, 1, 1}, {0, 10, 1, 1}};
  const Outcome outcome = SimulateBaseline("fifo", trace, 1, Curve());
  EXPECT_DOUBLE_EQ(Summarize(trace, outcome).max_slowdown, 11);
}

TEST(SchedulerSimulator, OursIsNearTheBestBaselineAndBeatsItWithResizes) {
  Trace trace = SyntheticTrace(200, 32, 0.9, 1);
  AddNoise(trace, 0.2, 2);
  double best = 1e9, elastic_best = 1e9;
  for (const std::string& policy : BaselineNames()) {
    // It reorders everything at every event, which no cluster would bear: for the benchmark alone.
    if (policy == "srsf_elastic") continue;
    const double mean = MeanHours(trace, SimulateBaseline(policy, trace, 32, Curve()));
    elastic_best = std::min(elastic_best, mean);
    if (policy != "rubick") best = std::min(best, mean);
  }
  ProductionOptions options;
  options.rules.scale_up.after_seconds = 0;
  const Outcome fixed = SimulateProduction(trace, 32, Curve(), options);
  EXPECT_LT(MeanHours(trace, fixed), 1.15 * best);
  EXPECT_EQ(fixed.resizes, 0);
  options = {};
  options.elastic = true;
  const Outcome elastic = SimulateProduction(trace, 32, Curve(), options);
  EXPECT_LT(MeanHours(trace, elastic), elastic_best);
}

TEST(SchedulerSimulator, ReadsTracesStrictly) {
  const std::string path = ::testing::TempDir() + "trace.csv";
  std::ofstream(path) << "vc,job,submit_s,duration_s,gpus\na,0,5,10,2\na,1,3,10,1\nb,0,0,1,1\n";
  const auto traces = ReadTraces(path);
  ASSERT_TRUE(traces.ok()) << traces.status().message();
  EXPECT_EQ(traces->at("a").front().gpus, 1) << "in the order of submission";
  std::ofstream(path) << "vc,job,submit_s,duration_s,gpus\na,0,5,ten,2\n";
  EXPECT_NE(ReadTraces(path).status().message().find(":2:"), std::string::npos);
  EXPECT_FALSE(ReadTraces(path + ".absent").ok());
}

}  // namespace
}  // namespace weft::bench
