// Which units stay on the device, where the optimizer is on the host, against trying them all.
#include "coordinator/planner/device_units.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Units = std::vector<int64_t>;

constexpr int64_t kMiB = int64_t{1} << 20;

/// A training whose link is slower than its passes, on one machine.
JobSpec Job(int64_t layers = 4) {
  JobSpec job = SmallJob();
  job.model.layers = layers;
  job.model.width = 256;
  job.model.heads = 4;
  job.model.vocab_size = 1024;
  job.model.context = 128;
  job.train.global_batch = 4;
  ResourceSpec& resources = job.resources;
  resources.ranks = resources.threads_per_rank = 1;
  resources.micro_batch = 4;
  resources.recompute = "none";
  resources.host_link_bytes_per_second = 500 * kMiB;
  return job;
}

ClusterProfile Machine() {
  return Cluster(1, 4, 16 * kGiB);
}

/// The least that the device may have for `job`.
int64_t LeastDeviceBytes(JobSpec job) {
  int64_t good = kGiB, bad = 1;
  while (good - bad > 4096) {
    const int64_t middle = (good + bad) / 2;
    job.resources.device_memory_bytes = middle;
    (PlanJob(job, Machine()).ok() ? good : bad) = middle;
  }
  return good;
}

/// The same where all is on it, or all of the optimizer on the host.
int64_t DeviceBytes(JobSpec job, const std::string& optimizer) {
  job.resources.offload_optimizer = optimizer;
  if (optimizer == "none") job.resources.host_link_bytes_per_second = 0;
  return LeastDeviceBytes(job);
}

/// The shortest step that any set of units gives that fits; infinite where none does.
double ByTryingAll(JobSpec job) {
  const int64_t units = job.model.layers + 2;
  double best = std::numeric_limits<double>::infinity();
  job.resources.offload_optimizer = "host";
  for (int64_t bits = 0; bits + 1 < int64_t{1} << units; ++bits) {
    Units& kept = job.resources.device_updated_units;
    kept.clear();
    for (int64_t unit = 0; unit < units; ++unit) {
      if ((bits >> unit & 1) != 0) kept.push_back(unit);
    }
    if (!ValidateJob(job).ok()) continue;
    const auto report = PlanJob(job, Machine());
    if (!report.ok()) continue;
    best = std::min(best, report->candidates.front().plan.prediction.step_seconds);
  }
  return best;
}

TEST(DeviceUnitSets, AreTheFirstOfTheBlocksThatAreAlikeWithAndWithoutTheEnds) {
  const std::vector<Units> sets = DeviceUnitSets(Job().model);
  EXPECT_EQ(sets.size(), 2u * 2u * 5u - 1);
  EXPECT_THAT(sets.back(), ElementsAre());
  EXPECT_THAT(sets.front(), ElementsAre(0, 1, 2, 3, 4)) << "all but the smallest unit";
  EXPECT_THAT(sets, testing::Contains(ElementsAre(0, 1, 2, 5)));
  EXPECT_THAT(sets, testing::Not(testing::Contains(ElementsAre(0, 2))));
}

TEST(DeviceUnitSets, AreOfAJobWhoseVocabularyItsTokenizerSays) {
  JobSpec job = Job();
  job.model.vocab_size = 0;
  job.resources.offload_optimizer = "part";
  job.resources.device_memory_bytes = 1000 * kMiB;
  const size_t sets = DeviceUnitSets(Job().model).size();
  EXPECT_EQ(WithUnits({job}).size(), sets);
}

TEST(DeviceUnitSets, DistinguishBlocksWithOtherTrainedParts) {
  ModelSpec model = Job(5).model;
  model.freeze = {"*wte*", "*wpe*", "*.h.0.*", "*.h.2.attn.*", "*.h.4.attn.*"};
  const std::vector<Units> sets = DeviceUnitSets(model);
  // Each set has none, one or both of units 2 and 4, in order, likewise of 3 and 5, maybe the head.
  EXPECT_EQ(sets.size(), 3u * 3u * 2u - 1);
  EXPECT_THAT(sets, testing::Contains(ElementsAre(2, 3, 4)));
  EXPECT_THAT(sets, testing::Each(testing::Not(testing::Contains(1))))
      << "nothing of it is trained";
}

TEST(PlanJob, KeepsTheUnitsOnTheDeviceThatTryingAllFinds) {
  PhiloxStream random{{11, 0, 0}};
  const auto pick = [&](const std::vector<int64_t>& values) {
    return values[random.Next() % values.size()];
  };
  int parts = 0;
  for (int i = 0; i < 12; ++i) {
    JobSpec job = Job(3);
    job.model.untied_classifier = false;
    job.model.vocab_size = pick({64, 1024, 6000});
    job.train.precision = pick({0, 1}) == 0 ? "fp32" : "bf16";
    if (pick({0, 1, 2}) == 0) job.model.freeze = {"*.h.1.attn.*"};
    if (pick({0, 1, 2}) == 0) job.resources.micro_batch = 2;
    job.resources.host_link_bytes_per_second = pick({50, 500, 4000}) * kMiB;
    const int64_t least = DeviceBytes(job, "host"), most = DeviceBytes(job, "none");
    ASSERT_LT(least, most);
    job.resources.device_memory_bytes = least + (most - least) * pick({5, 20, 45, 70, 95}) / 100;
    SCOPED_TRACE(std::to_string(i) + ": " + std::to_string(job.resources.device_memory_bytes));
    const double best = ByTryingAll(job);
    job.resources.offload_optimizer = "part";
    const Plan plan = Best(job, Machine());
    EXPECT_NEAR(plan.prediction.step_seconds / best, 1, 1e-12);
    EXPECT_EQ(plan.offload_optimizer, "host");
    parts += plan.device_updated_units.empty() ? 0 : 1;
  }
  EXPECT_GT(parts, 6) << "there is something to choose";
}

TEST(PlanJob, WithMoreRoomKeepsAllThenPartThenNoneOnTheHostAndIsNeverSlower) {
  JobSpec job = Job(6);
  const int64_t least = DeviceBytes(job, "host"), most = DeviceBytes(job, "none");
  job.resources.offload_optimizer = "auto";
  double before = std::numeric_limits<double>::infinity();
  std::vector<std::string> places;
  size_t kept = 0;
  for (int64_t percent = 0; percent <= 100; percent += 4) {
    job.resources.device_memory_bytes = least + (most - least) * percent / 100;
    const auto report = PlanJob(job, Machine());
    ASSERT_TRUE(report.ok()) << report.status().message();
    const PlanCandidate& chosen = report->candidates.front();
    const Plan& plan = chosen.plan;
    EXPECT_LE(plan.prediction.step_seconds, before * (1 + 1e-12)) << percent;
    before = plan.prediction.step_seconds;
    const bool part = !plan.device_updated_units.empty();
    const std::string place = part ? "part" : plan.offload_optimizer;
    if (places.empty() || places.back() != place) places.push_back(place);
    if (!part) continue;
    EXPECT_GE(plan.device_updated_units.size() + 1, kept) << percent;
    kept = plan.device_updated_units.size();
    EXPECT_THAT(chosen.reason, HasSubstr("optimizer on the host except that of units "));
  }
  EXPECT_THAT(places, ElementsAre("host", "part", "none"));
}

TEST(PlanJob, OfEqualBlocksTheFirstOnesOnTheDeviceMakeTheShorterStep) {
  JobSpec job = Job(6);
  job.resources.offload_optimizer = "host";
  const auto seconds = [&](const Units& kept) {
    job.resources.device_updated_units = kept;
    return Best(job, Machine()).prediction.step_seconds;
  };
  const double first = seconds({0, 1, 2, 3}), last = seconds({0, 4, 5, 6, 7});
  EXPECT_LT(first, last);
  EXPECT_LT(last, seconds({}));
}

/// A training whose weights come block by block, and in several passes a step.
JobSpec StreamingJob(int64_t layers) {
  JobSpec job = Job(layers);
  job.resources.micro_batch = 1;
  job.resources.offload_optimizer = job.resources.offload_parameters = "host";
  return job;
}

TEST(ResidentUnitSets, AreBlocksFarApartWithAndWithoutTheEnds) {
  const std::vector<Units> sets = ResidentUnitSets(Job(8).model);
  EXPECT_EQ(sets.size(), 9u * 4u - 1);
  EXPECT_THAT(sets.back(), ElementsAre());
  EXPECT_THAT(sets.front(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9)) << "all but the embeddings";
  EXPECT_THAT(sets, testing::Contains(ElementsAre(0, 2, 6)));
  EXPECT_THAT(sets, testing::Contains(ElementsAre(1, 3, 5, 7, 9)));
  for (const Units& set : sets) EXPECT_TRUE(std::is_sorted(set.begin(), set.end()));
}

TEST(PlanJob, HasTheWeightsStayThatTryingAllFinds) {
  int parts = 0;
  for (const char* precision : {"fp32", "bf16"}) {
    for (const int64_t vocabulary : {64, 6000}) {
      JobSpec job = StreamingJob(3);
      job.model.vocab_size = vocabulary;
      job.train.precision = precision;
      const int64_t least = LeastDeviceBytes(job);
      for (const int64_t percent : {0, 15, 30, 60}) {
        SCOPED_TRACE(std::string(precision) + " " + std::to_string(vocabulary) + " " +
                     std::to_string(percent));
        job.resources.device_memory_bytes = least + least * percent / 100;
        double best = std::numeric_limits<double>::infinity();
        for (int64_t bits = 0; bits + 1 < int64_t{1} << 5; ++bits) {
          JobSpec own = job;
          for (int64_t unit = 0; unit < 5; ++unit) {
            if ((bits >> unit & 1) != 0) own.resources.resident_units.push_back(unit);
          }
          const auto report = PlanJob(own, Machine());
          if (!report.ok()) continue;
          best = std::min(best, report->candidates.front().plan.prediction.step_seconds);
        }
        JobSpec own = job;
        own.resources.offload_parameters = "part";
        const Plan plan = Best(own, Machine());
        EXPECT_NEAR(plan.prediction.step_seconds / best, 1, 1e-12);
        EXPECT_EQ(plan.offload_parameters, "host");
        parts += plan.resident_units.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(parts, 6) << "there is something to choose";
}

TEST(PlanJob, WithMoreRoomHasMoreWeightsStayAndIsNeverSlower) {
  JobSpec job = StreamingJob(6);
  const int64_t least = LeastDeviceBytes(job);
  job.resources.offload_parameters = "auto";
  double before = std::numeric_limits<double>::infinity();
  std::vector<std::string> places;
  for (int64_t percent = 0; percent <= 150; percent += 5) {
    job.resources.device_memory_bytes = least + least * percent / 100;
    const auto report = PlanJob(job, Machine());
    ASSERT_TRUE(report.ok()) << report.status().message();
    const PlanCandidate& chosen = report->candidates.front();
    const Plan& plan = chosen.plan;
    EXPECT_LE(plan.prediction.step_seconds, before * (1 + 1e-12)) << percent;
    before = plan.prediction.step_seconds;
    const bool part = !plan.resident_units.empty();
    const std::string place = part ? "part" : plan.offload_parameters;
    if (places.empty() || places.back() != place) places.push_back(place);
    if (!part) continue;
    EXPECT_THAT(chosen.reason, HasSubstr(" once a step"));
  }
  EXPECT_THAT(places, ElementsAre("host", "part", "none"));
}

}  // namespace
}  // namespace weft::planner
