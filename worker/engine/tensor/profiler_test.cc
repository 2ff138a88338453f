#include "worker/engine/tensor/profiler.h"

#include <gtest/gtest.h>

#include <thread>

namespace weft::engine {
namespace {

void Spin(double seconds) {
  Stopwatch watch;
  double passed = 0;
  while (passed < seconds) passed += watch.Lap();
}

TEST(Profiler, TimeOfNestedOperationsIsCountedOnce) {
  Profiler profiler;
  {
    ProfileScope outer(&profiler, "outer");
    Spin(0.01);
    for (int i = 0; i < 2; ++i) {
      ProfileScope inner(&profiler, "inner");
      CountWork(&profiler, 100, 8);
      Spin(0.01);
    }
    CountWork(&profiler, 1);
  }
  const Profiler::Entry& outer = profiler.entries().at("outer");
  const Profiler::Entry& inner = profiler.entries().at("inner");
  EXPECT_EQ(outer.calls, 1);
  EXPECT_EQ(inner.calls, 2);
  EXPECT_GE(inner.seconds, 0.02);
  EXPECT_DOUBLE_EQ(inner.seconds, inner.self_seconds);
  EXPECT_GE(outer.seconds, 0.03);
  EXPECT_NEAR(outer.self_seconds, outer.seconds - inner.seconds, 1e-9);
  EXPECT_EQ(inner.flops, 200);
  EXPECT_EQ(inner.bytes, 16);
  EXPECT_EQ(outer.flops, 1) << "work belongs to the innermost operation";
  EXPECT_TRUE(profiler.trace().events.empty()) << "no trace was asked for";
  profiler.Clear();
  EXPECT_TRUE(profiler.entries().empty());
}

TEST(Profiler, ATraceHoldsEveryEventOfEveryThreadAndTheMemoryInBetween) {
  Allocator allocator;
  Profiler profiler;
  const Profiler::Time start = std::chrono::steady_clock::now();
  profiler.StartTrace(&allocator);
  auto block = allocator.Allocate(Component::kActivations, 1000);
  ASSERT_TRUE(block.ok());
  { ProfileScope scope(&profiler, "a"); }
  { ProfileScope scope(&profiler, "b"); }
  *block = {};
  { ProfileScope scope(&profiler, "c"); }
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) profiler.AddCollective("sum", "data", 0, 64);
  });
  for (int i = 0; i < 100; ++i) profiler.AddPhase("forward", 0.5);
  other.join();

  const Profiler::Trace& trace = profiler.trace();
  EXPECT_EQ(trace.events.size(), 203u);
  EXPECT_EQ(trace.events[1].name, "b");
  EXPECT_GE(trace.events[1].begin, trace.events[0].begin);
  EXPECT_GE(trace.events[0].begin, start);
  EXPECT_EQ(profiler.entries(Profiler::Track::kCollectives).at("sum").bytes, 6400);
  EXPECT_NEAR(profiler.entries(Profiler::Track::kPhases).at("forward").seconds, 50, 1e-6);
  ASSERT_EQ(trace.memory.size(), 2u) << "what did not change is not repeated";
  EXPECT_EQ(trace.memory[0].live.activations_bytes, 1000);
  EXPECT_EQ(trace.memory[1].live.activations_bytes, 0);
}

TEST(Profiler, ATraceThatGrowsTooLongIsCutAndSaysSo) {
  Allocator allocator;
  Profiler profiler;
  profiler.StartTrace(&allocator);
  for (size_t i = 0; i < Profiler::kMaxEvents + 7; ++i) profiler.AddPhase("data", 0);
  EXPECT_EQ(profiler.trace().events.size(), Profiler::kMaxEvents);
  EXPECT_EQ(profiler.trace().dropped, 7);
  EXPECT_EQ(profiler.entries(Profiler::Track::kPhases).at("data").calls,
            static_cast<int64_t>(Profiler::kMaxEvents) + 7);
}

TEST(Allocator, RecentPeaksAreOfTheTimeSinceTheyWereTaken) {
  Allocator allocator;
  auto kept = allocator.Allocate(Component::kParameters, 256);
  { auto gone = allocator.Allocate(Component::kWorkspace, 512); }
  EXPECT_EQ(allocator.TakeRecentPeaks().workspace_bytes, 512);
  EXPECT_EQ(allocator.Live().workspace_bytes, 0);
  const MemoryBreakdown recent = allocator.TakeRecentPeaks();
  EXPECT_EQ(recent.workspace_bytes, 0);
  EXPECT_EQ(recent.parameters_bytes, 256);
  EXPECT_EQ(allocator.Peaks().workspace_bytes, 512) << "the other peaks stay";
}

}  // namespace
}  // namespace weft::engine
