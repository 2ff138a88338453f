#include "worker/trainer/profile.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "common/env_fault.h"
#include "common/json.h"
#include "worker/engine/comm/rank_threads.h"

namespace weft::trainer {
namespace {

using engine::ProfileScope;

void Pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

/// Two steps as a trainer would take them.
void TakeSteps(engine::Context& context, ProfileRecording& recording) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(recording.done());
    engine::Stopwatch step;
    {
      ProfileScope outer(context.profiler, "recompute");
      ProfileScope inner(context.profiler, "linear forward");
      Pause();
      engine::CountWork(context.profiler, 1e6);
    }
    context.profiler->AddPhase("forward", step.Lap());
    auto block = context.allocator->Allocate(engine::Component::kGradients, 4096);
    { ProfileScope scope(context.profiler, "update"); }
    recording.OnStep(0.004, {.host_bytes = 1024 * (i + 1), .stall_seconds = 0.5});
  }
  EXPECT_TRUE(recording.done());
}

TEST(ProfileRecording, OneTraceHoldsAllRanksAndTheReportSumsUpTheFirst) {
  FaultEnv env;
  std::mutex mutex;
  engine::RunRanks(2, std::chrono::seconds(20), [&](engine::Collective& group) {
    engine::Allocator allocator;
    engine::Context context;
    context.allocator = &allocator;
    const CollectiveAccounts accounts({{"data", &group.account()}});
    ProfileRecording recording(context, accounts, 12, 2);
    TakeSteps(context, recording);
    std::vector<float> numbers(64, 1);
    const TensorView view(numbers.data(), DType::kF32, {64});
    ASSERT_TRUE(group.AllReduce({}, view, engine::Reduction::kSum, "sum of numbers").Wait({}).ok());
    auto events = recording.GatherEvents(group);
    ASSERT_TRUE(events.ok()) << events.status().message();
    EXPECT_EQ(context.profiler, nullptr) << "nothing is recorded any more";
    if (group.rank() != 0) return;
    std::lock_guard lock(mutex);
    auto report = recording.Write(env, "/run", *events);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->trace_path, "/run/profiles/step-00000012.json");
    EXPECT_EQ(report->first_step, 12);
    EXPECT_EQ(report->steps, 2);
    EXPECT_EQ(report->ranks, 2);
    EXPECT_DOUBLE_EQ(report->seconds_per_step, 0.004);
    std::map<std::string, ProfileOperation> rows;
    for (const ProfileOperation& row : report->operations) rows[row.name] = row;
    EXPECT_EQ(rows["step"].kind, "phase");
    EXPECT_EQ(rows["forward"].calls_per_step, 1);
    const ProfileOperation& linear = rows["linear forward"];
    EXPECT_EQ(linear.kind, "operation");
    EXPECT_GE(linear.seconds_per_step, 0.002);
    EXPECT_NEAR(linear.share, linear.seconds_per_step / 0.004, 1e-9);
    ASSERT_TRUE(linear.flops_per_second.has_value());
    EXPECT_NEAR(*linear.flops_per_second, 1e6 / linear.seconds_per_step, 1);
    EXPECT_FALSE(rows["update"].flops_per_second.has_value());
    EXPECT_LT(rows["recompute"].seconds_per_step, linear.seconds_per_step) << "its own time only";
    ASSERT_EQ(report->collectives.size(), 1u) << "the gathering of events is no part of it";
    EXPECT_EQ(report->collectives[0].axis, "data");
    EXPECT_EQ(report->collectives[0].collective, "all-reduce");
    EXPECT_EQ(report->collectives[0].calls, 0.5) << "in two steps";
    EXPECT_EQ(report->collectives[0].sent_bytes, 128);
    EXPECT_EQ(report->tiers.host_bytes, 2048) << "the most of both steps";
    EXPECT_EQ(report->tiers.stall_seconds, 0.5);
  });

  auto trace = ParseJson(*ReadFile(env, "/run/profiles/step-00000012.json"));
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  std::set<int> processes;
  std::map<std::string, int> complete;
  std::set<int64_t> gradient_bytes;
  std::set<std::string> threads;
  for (const Json& event : trace->at("traceEvents")) {
    processes.insert(event.at("pid").get<int>());
    const auto phase = event.at("ph").get<std::string>();
    if (phase == "X") {
      ++complete[event.at("name").get<std::string>()];
      EXPECT_GT(event.at("ts").get<double>(), 1.7e15) << "microseconds since 1970";
      EXPECT_GE(event.at("dur").get<double>(), 0);
    } else if (phase == "M" && event.at("name") == "thread_name") {
      threads.insert(event.at("args").at("name").get<std::string>());
    } else if (phase == "C" && event.at("name") == "tiers") {
      EXPECT_GE(event.at("args").at("host_bytes").get<int64_t>(), 1024);
    } else if (phase == "C") {
      gradient_bytes.insert(event.at("args").at("gradients_bytes").get<int64_t>());
    }
  }
  EXPECT_EQ(processes, (std::set<int>{0, 1}));
  EXPECT_EQ(complete, (std::map<std::string, int>{{"step", 4},
                                                  {"forward", 4},
                                                  {"linear forward", 4},
                                                  {"recompute", 4},
                                                  {"update", 4},
                                                  {"sum of numbers", 2}}));
  EXPECT_EQ(threads, (std::set<std::string>{"phases", "operations", "collectives: world"}));
  EXPECT_EQ(gradient_bytes, (std::set<int64_t>{0, 4096}));
}

TEST(ProfileRecording, AFullDiskLeavesNoHalfTrace) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/run").ok());
  env.SetCapacity(64);
  engine::RunRanks(1, std::chrono::seconds(20), [&](engine::Collective& group) {
    engine::Allocator allocator;
    engine::Context context;
    context.allocator = &allocator;
    const CollectiveAccounts accounts({{"data", &group.account()}});
    ProfileRecording recording(context, accounts, 1, 2);
    TakeSteps(context, recording);
    EXPECT_FALSE(recording.Write(env, "/run", *recording.GatherEvents(group)).ok());
  });
  EXPECT_FALSE(env.FileExists("/run/profiles/step-00000001.json"));
}

}  // namespace
}  // namespace weft::trainer
