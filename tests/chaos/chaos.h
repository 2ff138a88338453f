#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "common/clock.h"
#include "tests/chaos/waiting_jobs.h"
#include "tests/framework/cluster.h"

namespace weft::testing {

inline constexpr int64_t kSteps = 40;

/// Slows a step down, so that there is time to strike.
inline const Environment kSlowSteps{{"WEFT_FAILPOINTS", "trainer.before_step=sleep:40"}};

/// The loss curve of the job when nothing happens, made once. Two ranks in fp32 add in the same
/// order wherever they run, so every disturbed run must equal it byte for byte.
inline const std::string& UndisturbedCurve() {
  static const std::string kCurve = [] {
    Cluster cluster({});
    std::string id = cluster.Submit(cluster.TinyJob("undisturbed", kSteps));
    cluster.Await(id, v1::SUCCEEDED);
    return cluster.LossCurve(id);
  }();
  return kCurve;
}

/// What is killed or taken away, in groups that are a CTest entry each.
class Chaos : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(UndisturbedCurve().empty()); }

  /// The job ended well, once, as if nothing had happened; `waiting` and `jobs` as in ExpectJobs.
  static v1::Job ExpectUnharmed(Cluster& cluster, const std::string& id, int64_t waiting = 0,
                                int64_t jobs = 1) {
    v1::Job job = cluster.Await(id, v1::SUCCEEDED, std::chrono::seconds(90));
    EXPECT_EQ(cluster.LossCurve(id), UndisturbedCurve());
    EXPECT_EQ(job.progress().step(), kSteps);
    int completed = 0;
    for (const v1::Attempt& attempt : job.attempts())
      completed += attempt.reason() == v1::COMPLETED;
    EXPECT_EQ(completed, 1);
    EXPECT_TRUE(Eventually([&] { return cluster.RankPids(id).empty(); }, std::chrono::seconds(5)));
    ExpectJobs(cluster, jobs, waiting);
    return job;
  }

  /// There are `count` jobs besides those of AddWaitingJobs, where `waiting` of them wait as
  /// before.
  static void ExpectJobs(Cluster& cluster, int64_t count, int64_t waiting) {
    v1::ListJobsRequest request;
    request.set_page_size(5000);
    v1::ListJobsResponse jobs;
    grpc::ClientContext context;
    EXPECT_TRUE(cluster.api().ListJobs(&context, request, &jobs).ok());
    int64_t still_waiting = 0;
    int64_t others = 0;
    for (const v1::Job& job : jobs.jobs()) {
      if (!job.id().starts_with(kWaitingPrefix)) {
        ++others;
      } else if (job.state() == v1::QUEUED) {
        ++still_waiting;
      }
    }
    EXPECT_EQ(others, count) << "each submitted once";
    EXPECT_EQ(still_waiting, waiting) << "lost or harmed";
  }

  /// Something that an attempt given up still said was refused, and counted.
  static void ExpectFenced(Cluster& cluster) {
    EXPECT_TRUE(Eventually(
        [&] {
          return MetricSum(cluster.CoordinatorMetrics(), "weft_coord_fenced_requests_total") > 0;
        },
        std::chrono::seconds(5)))
        << cluster.LogTails();
  }

  /// Prints a measured time, and leaves it in the test's report under `property`, where
  /// tests/chaos/run.py looks for it.
  static void Report(const char* property, const std::string& what, double seconds) {
    std::printf("%s: %.2f s\n", what.c_str(), seconds);
    RecordProperty(property, std::to_string(seconds));
  }

  /// From now until a newer attempt than `epoch` trains.
  static void ReportRecovery(Cluster& cluster, const std::string& id, int64_t epoch,
                             const std::string& what) {
    const auto begin = std::chrono::steady_clock::now();
    const bool again = Eventually(
        [&] {
          v1::Job job = cluster.Get(id);
          return job.state() == v1::SUCCEEDED ||
                 (job.state() == v1::RUNNING && job.attempts_size() > epoch);
        },
        std::chrono::seconds(60));
    EXPECT_TRUE(again) << what << cluster.LogTails();
    Report("recovery_seconds", "recovery after " + what, SecondsSince(begin));
  }
};

}  // namespace weft::testing
