// What the engine may not do with a device, which only the host execution can show.

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/host/cudnn.h"
#include "tests/gpu/host/cusparse.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/pinned_count.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Device kCuda{DeviceType::kCuda, 0};

// All tests of this program: work is done when it is waited for, and no sooner.
class Deferred : public ::testing::Environment {
  void SetUp() override { host_cuda::DeferWork(true); }
};
const auto* const kDeferred = ::testing::AddGlobalTestEnvironment(new Deferred);

TEST(EngineOnHostExecution, AHostThatFollowsADevicePointerDies) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        RandomTokens data(50, 16);
        DeviceRun run(TinyJob(2), TinyPlan("fp32", 2), data, kCuda);
        const volatile float* element = run.model->parameters().value(0).As<float>();
        std::exit(*element == 0 ? 0 : 1);
      },
      "");
}

TEST(EngineOnHostExecution, AStepWaitsOnceAndTakesNoMemory) {
  RandomTokens data(50, 16);
  for (const char* precision : {"fp32", "bf16"}) {
    JobSpec job = TinyJob(4);
    job.model.dropout = 0.1;
    job.train.log_every_steps = 1;
    job.train.eval_sequences = 2;
    DeviceRun run(job, TinyPlan(precision, 2, 2), data, kCuda);
    for (int step = 0; step < 2; ++step) run.Step();
    // Evaluations read back through places of their own.
    ASSERT_TRUE(run.trainer->Evaluate().ok());
    const int64_t allocations = host_cuda::DeviceAllocations();
    const int64_t pinned = host_cuda::PinnedAllocations();
    for (int step = 2; step < 5; ++step) {
      const int64_t waits = host_cuda::Waits();
      run.Step();
      EXPECT_EQ(host_cuda::Waits(), waits + 1) << step;
      EXPECT_EQ(host_cuda::DeviceAllocations(), allocations) << step;
      ASSERT_TRUE(run.trainer->Evaluate().ok());
      EXPECT_EQ(host_cuda::PinnedAllocations(), pinned) << step;
    }
  }
}

TEST(EngineOnHostExecution, TrainsWithAttentionByCudnn) {
  std::array<double, 2> losses = {};
  for (const char* choice : {"own", "cudnn-only"}) {
    setenv("WEFT_ATTENTION", choice, 1);
    RandomTokens data(50, 16);
    DeviceRun run(TinyJob(2), TinyPlan("bf16", 2), data, kCuda);
    unsetenv("WEFT_ATTENTION");
    const bool by_cudnn = std::string(choice) != "own";
    const int64_t before = host_cuda::CountCudnnCalls().runs;
    run.Step();
    losses[by_cudnn ? 1 : 0] = run.Step().loss;
    EXPECT_EQ(host_cuda::CountCudnnCalls().runs > before, by_cudnn);
  }
  EXPECT_NEAR(losses[0], losses[1], 0.01);
}

TEST(EngineOnHostExecution, GraphsHoldAttentionByCudnn) {
  JobSpec job = TinyJob(2);
  job.model.layers = 1;
  job.train.log_every_steps = 100;
  RandomTokens data(50, 16);
  setenv("WEFT_ATTENTION", "cudnn-only", 1);
  const Plan plan = TinyPlan("bf16", 2);
  DeviceRun graphs(job, plan, data, kCuda), eager(job, plan, data, kCuda, {.graphs = false});
  unsetenv("WEFT_ATTENTION");
  for (int step = 0; step < 5; ++step) {
    const int64_t before = host_cuda::CountCudnnCalls().runs;
    const int64_t launched = graphs.trainer->graph_steps();
    const double loss = graphs.Step().loss;
    // What a graph holds is not enqueued again, unless it is recorded.
    const bool calls = host_cuda::CountCudnnCalls().runs > before;
    EXPECT_EQ(calls, step < 4) << step;
    EXPECT_EQ(graphs.trainer->graph_steps(), launched + (step < 2 ? 0 : 1));
    EXPECT_EQ(loss, eager.Step().loss) << step;
  }
  EXPECT_EQ(graphs.State(), eager.State());
}

TEST(EngineOnHostExecution, PrunedProductsAreThoseOfCusparseWhereTheyAreAskedFor) {
  JobSpec job = TinyJob(2);
  job.train.pruning.method = "random";
  job.train.pruning.density = 0.05;
  for (const char* products : {"auto", "sparse"}) {
    job.train.pruning.products = products;
    RandomTokens data(50, 16);
    DeviceRun run(job, TinyPlan("fp32", 2), data, kCuda);
    const int64_t before = host_cuda::CountCusparseCalls().products;
    run.Step();
    const bool sparse = std::string(products) == "sparse";
    // Forward and backward, of four matrices in each of two blocks.
    EXPECT_EQ(host_cuda::CountCusparseCalls().products - before, sparse ? 2 * 4 * 2 : 0);
  }
  // A rank without the library does not go on with other bits than the others have.
  RandomTokens data(50, 16);
  DeviceRun run(job, TinyPlan("fp32", 2), data, kCuda);
  host_cuda::SetCusparsePresent(false);
  const auto report = run.trainer->Step();
  host_cuda::SetCusparsePresent(true);
  EXPECT_THAT(report.status().message(), HasSubstr("loading libcusparse.so.12"));
}

TEST(EngineOnHostExecution, AResultIsNotThereBeforeItIsWaitedFor) {
  auto device = ComputeDevice::Open({.device = kCuda});
  ASSERT_TRUE(device.ok());
  Context context = (*device)->NewContext();
  struct Number {
    int32_t value;
  };
  auto number = ReadbackOf<Number>::New(context);
  ASSERT_TRUE(number.ok());
  ASSERT_TRUE(kernels::cuda::FillBytes(context.stream, number->device(), 1, sizeof(int32_t)).ok());
  ASSERT_TRUE(number->Fetch(context).ok());
  EXPECT_EQ(number->host()->value, 0);
  ASSERT_TRUE(number->Wait().ok());
  EXPECT_EQ(number->host()->value, 0x01010101);
}

TEST(EngineOnHostExecution, AFullDeviceIsExhaustedAndSaysWhatHoldsItsMemory) {
  size_t free = 0, total = 0;
  host_cuda::DeviceMemoryInfo(&free, &total);
  RandomTokens data(50, 16);
  JobSpec job = TinyJob(2);
  DeviceRun run(job, TinyPlan("fp32", 2), data, kCuda);
  host_cuda::DeviceMemoryInfo(&free, &total);
  const size_t held = total - free;
  host_cuda::LimitDeviceMemory(held + (size_t{1} << 20));
  const auto block = run.device->allocator().Allocate(Component::kActivations, size_t{64} << 20);
  host_cuda::LimitDeviceMemory(total);
  ASSERT_EQ(block.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(block.status().message(),
              AllOf(HasSubstr("67108864 bytes for activations"), HasSubstr("the device has"),
                    HasSubstr("parameters "), HasSubstr("optimizer "), HasSubstr("micro_batch")));
}

TEST(EngineOnHostExecution, AnArenaKnowsWhetherMemoryIsFree) {
  auto device = ComputeDevice::Open({.device = kCuda, .chunk_bytes = 1 << 20});
  ASSERT_TRUE(device.ok());
  Allocator& allocator = (*device)->allocator();
  const auto take = [&](size_t bytes) {
    auto block = allocator.Allocate(Component::kWorkspace, bytes);
    EXPECT_TRUE(block.ok());
    return *block;
  };
  const BlockRef before = take(4096);
  allocator.StartNoting();
  BlockRef a = take(4096), b = take(8192);
  a = {};
  a = take(2048);
  const std::vector<MemoryPiece> noted = allocator.TakeNoted();
  EXPECT_FALSE(allocator.AreFree(noted));
  a = b = {};
  EXPECT_TRUE(allocator.AreFree(noted));
  const BlockRef small = take(256);
  EXPECT_FALSE(allocator.AreFree(noted));
}

TEST(EngineOnHostExecution, AnArenaGivesFreedNeighboursAsOne) {
  auto device =
      ComputeDevice::Open({.device = kCuda, .expected_bytes = 1 << 20, .chunk_bytes = 1 << 20});
  ASSERT_TRUE(device.ok());
  Allocator& allocator = (*device)->allocator();
  const int64_t before = allocator.system_allocations();
  EXPECT_EQ(before, 1);
  for (int round = 0; round < 3; ++round) {
    std::array<BlockRef, 4> quarters;
    for (BlockRef& quarter : quarters) {
      auto block = allocator.Allocate(Component::kWorkspace, 1 << 18);
      ASSERT_TRUE(block.ok());
      quarter = *block;
    }
    for (int i : {2, 0, 1, 3}) quarters[i] = {};
    auto whole = allocator.Allocate(Component::kWorkspace, 1 << 20);
    ASSERT_TRUE(whole.ok());
  }
  EXPECT_EQ(allocator.system_allocations(), before);
  EXPECT_EQ(allocator.held_bytes(), 1 << 20);
  auto more = allocator.Allocate(Component::kWorkspace, 3 << 20);
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(allocator.system_allocations(), before + 1);
}

}  // namespace
}  // namespace weft::engine
