#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/chaos/chaos.h"

namespace weft::testing {

/// A number of the environment: tests/chaos/run.sh asks for more than CTest.
inline int64_t NumberOr(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

/// The failpoints of a job's moves to these states, in the order in which it passes them.
inline std::vector<std::string> MovesTo(const std::vector<std::string>& states) {
  std::vector<std::string> points;
  for (const std::string& state : states) {
    for (const char* when : {".before_commit", ".after_commit"}) {
      points.push_back("coordinator.to_" + state + when);
    }
  }
  return points;
}

/// A coordinator with jobs that wait, which is killed at failpoints.
class ChaosOfTheCoordinator : public Chaos {
 protected:
  static Environment DiesAt(const std::string& point, int64_t pass = 1) {
    return {{"WEFT_FAILPOINTS", point + "=crash@" + std::to_string(pass)}};
  }

  /// Points that are passed often are also met later than at their first pass.
  static int64_t PassOf(const std::string& point, int64_t repeat) {
    if (point.starts_with("coordinator.store.")) return 1 + repeat % 4;
    if (point.starts_with("coordinator.heartbeat.")) return 1 + repeat % 8;
    // Some ranks have an answer, others not.
    if (point.starts_with("coordinator.rendezvous.")) return 1 + (repeat + 1) % 3;
    return 1;
  }

  /// A coordinator with jobs that wait, which dies as `coordinator` says.
  Cluster::Options Options(const Environment& coordinator, const Environment& ranks = {}) const {
    return {
        .coordinator = coordinator, .ranks = ranks, .prepare = [this](const std::string& data_dir) {
          const Status added = AddWaitingJobs(data_dir, waiting_);
          EXPECT_TRUE(added.ok()) << added.message();
        }};
  }

  /// Whether a call about a job is answered.
  template <class Request>
  static bool Ask(Cluster& cluster, const std::string& id,
                  grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                const Request&, v1::Job*)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    Request request;
    request.set_id(id);
    v1::Job job;
    return (cluster.api().*method)(&context, request, &job).ok();
  }

  /// Waits for the death of the coordinator, and starts it again until it answers `call`, or has
  /// died at its next point before it could.
  void AwaitDeath(Cluster& cluster, const Environment& next, const std::function<bool()>& call) {
    ASSERT_TRUE(cluster.coordinator().WaitForEnd(std::chrono::seconds(30)))
        << "the job does not get there: the point wants a test of its own" << cluster.LogTails();
    const auto begin = std::chrono::steady_clock::now();
    cluster.StartCoordinator(next);
    bool answered = false;
    ASSERT_TRUE(Eventually(
        [&] {
          answered = call();
          return answered || !cluster.coordinator().Alive();
        },
        std::chrono::seconds(10)))
        << cluster.LogTails();
    ++deaths_;
    if (!answered) return;
    const double took = SecondsSince(begin);
    longest_ = std::max(longest_, took);
    std::printf("answers %.2f s after its start\n", took);
  }

  /// The coordinator, which was started to die at the first of `points`, dies at one after the
  /// other. `call` is made once before the first death, and until it is answered after each; it
  /// gets the point that comes next, which is empty after the last.
  void DieAtEach(Cluster& cluster, const std::vector<std::string>& points, int64_t repeat,
                 const std::function<bool(const std::string& next)>& call) {
    (void)call(points.front());
    for (size_t i = 0; i < points.size(); ++i) {
      SCOPED_TRACE(points[i]);
      const std::string next = i + 1 < points.size() ? points[i + 1] : "";
      AwaitDeath(cluster, next.empty() ? Environment() : DiesAt(next, PassOf(next, repeat)),
                 [&] { return call(next); });
      if (HasFatalFailure()) return;
    }
  }

  /// A job trains while the coordinator dies at one point after the other; `options` has it die at
  /// the first.
  void TrainThroughDeaths(const std::vector<std::string>& points, const Cluster::Options& options) {
    for (int64_t repeat = 0; repeat < repeats_; ++repeat) {
      Cluster cluster(options);
      const v1::JobSpec spec = cluster.TinyJob("coordinator-killed", kSteps);
      v1::SubmitJobResponse response;
      DieAtEach(cluster, points, repeat, [&](const std::string&) {
        return cluster.TrySubmit(spec, "the-one-request", &response).ok();
      });
      if (HasFatalFailure()) return;
      ExpectUnharmed(cluster, response.job().id(), waiting_);
    }
    ReportDeaths();
  }

  void ReportDeaths() {
    RecordProperty("deaths", deaths_);
    Report("answer_seconds", "longest time until it answers again", longest_);
  }

  const int64_t repeats_ = NumberOr("WEFT_CHAOS_REPEATS", 1);  ///< Of each point.
  const int64_t waiting_ = NumberOr("WEFT_CHAOS_WAITING", 200);

 private:
  double longest_ = 0;
  int deaths_ = 0;
};

}  // namespace weft::testing
