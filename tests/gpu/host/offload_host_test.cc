// What offload may not do with a device, which only the host execution can show.

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/pinned_count.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr Device kCuda{DeviceType::kCuda, 0};

// All tests of this program: work is done when it is waited for, and no sooner. A copy that should
// wait for another stream and does not reads what is not there yet; memory that is given back too
// early has other content by then.
class Deferred : public ::testing::Environment {
  void SetUp() override { host_cuda::DeferWork(true); }
};
const auto* const kDeferred = ::testing::AddGlobalTestEnvironment(new Deferred);

/// How often the host waits for the device in each of the steps that follow the first ones, and
/// that these take no memory.
int64_t WaitsOfAStep(const Plan& plan) {
  JobSpec job = TinyJob(plan.micro_batch * plan.accumulation_steps);
  job.model.layers = 4;
  job.train.log_every_steps = 1;
  RandomTokens data(job.model.vocab_size, job.model.context);
  DeviceRun run(job, plan, data, kCuda);
  for (int step = 0; step < 3; ++step) run.Step();
  const int64_t allocations = host_cuda::DeviceAllocations();
  const int64_t pinned = host_cuda::PinnedAllocations();
  int64_t waits = 0;
  for (int step = 3; step < 6; ++step) {
    const int64_t before = host_cuda::Waits();
    run.Step();
    const int64_t own = host_cuda::Waits() - before;
    EXPECT_EQ(own, step == 3 ? own : waits) << step;
    waits = own;
  }
  EXPECT_EQ(host_cuda::DeviceAllocations(), allocations);
  EXPECT_EQ(host_cuda::PinnedAllocations(), pinned);
  return waits;
}

TEST(OffloadOnHostExecution, ActivationsGoAndComeWithoutAWaitOfTheHost) {
  for (const int64_t micro_batches : {1, 3}) {
    Plan plan = TinyPlan("bf16", 1, micro_batches);
    EXPECT_EQ(WaitsOfAStep(plan), 1) << "for its numbers";
    plan.offload_activations = "host";
    EXPECT_EQ(WaitsOfAStep(plan), 1) << micro_batches;
  }
}

// For the passes, for the gradients that are still on their way, and for the loss.
TEST(OffloadOnHostExecution, TheHostWaitsForGradientsOnceAStepAndInNoPass) {
  for (const int64_t micro_batches : {1, 3}) {
    Plan plan = TinyPlan("fp32", 1, micro_batches);
    plan.offload_optimizer = "host";
    plan.bucket_bytes = 16384;
    EXPECT_EQ(WaitsOfAStep(plan), 3) << micro_batches;
    plan.offload_activations = plan.offload_parameters = "host";
    EXPECT_EQ(WaitsOfAStep(plan), 3) << micro_batches;
  }
}

TEST(OffloadOnHostExecution, AHostWithoutMemoryToLockIsReported) {
  host_cuda::LimitPinnedMemory(0);
  auto device = ComputeDevice::Open({.device = kCuda, .host = HostMemoryPool::Options()});
  ASSERT_TRUE(device.ok()) << device.status().message();
  Context below = InHostMemoryPool((*device)->NewContext());
  const auto tensor = Tensor::New(below, Component::kOptimizer, DType::kF32, {int64_t{1} << 24});
  host_cuda::LimitPinnedMemory(SIZE_MAX);
  ASSERT_EQ(tensor.status().code(), StatusCode::kExhausted);
  EXPECT_NE(tensor.status().message().find("67108864 bytes for optimizer"), std::string::npos)
      << tensor.status().message();
}

}  // namespace
}  // namespace weft::engine
