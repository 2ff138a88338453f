// Saved tensors that wait in the host memory pool against saved tensors that stay: the same bits,
// and as many bytes in each tier and over the link as the planner says.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/techniques/offload/testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

Plan HostPlan(const std::string& precision, int64_t micro_batch = 4, int64_t accumulation = 1) {
  Plan plan = TinyPlan(precision, micro_batch, accumulation);
  plan.offload_activations = "host";
  return plan;
}

TEST(ActivationOffloadTest, HasTheBitsOfPlainTraining) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  job.model.dropout = 0.1;
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
    for (const char* optimizer : {"none", "host"}) {
      SCOPED_TRACE(std::string(precision) + " " + optimizer);
      Plan plan = HostPlan(precision, 2, 2);
      plan.offload_optimizer = optimizer;
      ExpectSame(job, plan, 3);
      ExpectSame(LlamaJob(), plan, 2);
    }
  }
  ExpectSame(job, HostPlan("fp8", 2, 2), 3);
}

TEST(ActivationOffloadTest, HasThemWithEveryPolicyAndWithSharedAndFrozenBlocks) {
  JobSpec job = TinyJob(4);
  job.model.layers = 4;
  Plan plan = HostPlan("bf16");
  plan.block_memory_policy = {"recompute", "recompute", "attention", "keep"};
  ExpectSame(job, plan, 3);
  plan.recompute_segment = 2;
  ExpectSame(job, plan, 3);
  plan.recompute_segment = 1;
  plan.block_memory_policy.clear();
  for (const char* norms : {"post", "none"}) {
    JobSpec other = job;
    other.model.norm_position = norms;
    ExpectSame(other, plan, 3);
  }
  job.model.distinct_blocks = 2;
  ExpectSame(job, plan, 3);
  job.model.distinct_blocks = 0;
  job.model.freeze = {"transformer.w*", "*.h.0.*", "*.h.2.mlp.*"};
  ExpectSame(job, plan, 3);
  job = TinyJob(4);
  job.model.layers = 1;
  ExpectSame(job, plan, 3);
}

// Schedules of six blocks: they overlap keeping, sending and recomputing, with transfers that queue
// and such that have several blocks to hide behind.
const std::vector<std::vector<std::string>> kSchedules = {
    {"F_all_host 0", "F_all 1", "F_all_host 2", "sent 0", "F_ck 3", "F_all 4", "sent 2", "F_all 5",
     "B 5", "fetch 2", "B 4", "F_all 3", "B 3", "B 2", "fetch 0", "B 1", "B 0"},
    {"F_attention_host 0",
     "F_all_host 1",
     "F_ck_host 2",
     "F_none 3",
     "F_all_host 4",
     "F_all 5",
     "sent 0",
     "sent 1",
     "sent 2",
     "sent 4",
     "fetch 4",
     "fetch 2",
     "B 5",
     "fetch 1",
     "B 4",
     "fetch 0",
     "F_ck 2",
     "F_attention 3",
     "B 3",
     "F_all 2",
     "B 2",
     "B 1",
     "B 0"},
    {"F_ck 0", "F_none 1", "F_all_host 2", "F_attention 3", "F_all 4", "sent 2", "F_all 5", "B 5",
     "fetch 2", "B 4", "B 3", "B 2", "F_all 0", "F_attention 1", "B 1", "B 0"},
};

TEST(ActivationOffloadTest, DoesWhatAScheduleSaysWithTheSameBits) {
  JobSpec job = TinyJob(4);
  job.model.layers = 6;
  job.model.dropout = 0.1;
  JobSpec llama = LlamaJob();
  llama.model.layers = 6;
  JobSpec shared = job;
  shared.model.distinct_blocks = 2;
  for (const auto& schedule : kSchedules) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      Plan plan = HostPlan(precision, 2, 2);
      plan.recompute_schedule = schedule;
      ExpectSame(job, plan, 3);
      ExpectSame(llama, plan, 2);
    }
    Plan plan = HostPlan("fp32");
    plan.recompute_schedule = schedule;
    plan.offload_optimizer = "host";
    ExpectSame(shared, plan, 3);
    std::vector<std::string> done;
    Training training(job, plan, true, &done);
    ASSERT_TRUE(training.trainer->Step().ok());
    EXPECT_EQ(done, schedule);
  }
}

TEST(ActivationOffloadTest, CompressedActivationsAreOffloadedWithTheSameBits) {
  JobSpec job = TinyJob(4);
  job.model.layers = 6;
  job.model.dropout = 0.1;
  for (const int64_t bits : {8, 2}) {
    Plan plan = HostPlan(bits == 8 ? "bf16" : "fp32", 2, 2);
    plan.activation_bits = bits;
    for (const char* policy : {"keep", "attention", "recompute"}) {
      SCOPED_TRACE(policy);
      plan.block_memory_policy = std::vector<std::string>(6, policy);
      ExpectSame(job, plan, 2);
    }
    plan.recompute_segment = 2;
    ExpectSame(job, plan, 2);
    plan.recompute_segment = 1;
    for (const auto& schedule : kSchedules) {
      plan.recompute_schedule = schedule;
      ExpectSame(job, plan, 2);
    }
  }
}

TEST(ActivationOffloadTest, AScheduleThatItsPlanDoesNotAllowIsRefused) {
  JobSpec job = TinyJob(4);
  job.model.layers = 6;
  Plan plan = TinyPlan("fp32", 4, 1);
  plan.offload_optimizer = "host";
  plan.recompute_schedule = kSchedules.front();
  Training training;
  const Status refused = training.Make(job, plan, true);
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("plan.offload_activations is none"));
  plan.offload_activations = "host";
  plan.recompute_schedule.back() = "B 7";
  EXPECT_THAT(training.Make(job, plan, true).message(),
              ::testing::HasSubstr("operation 16 is \"B 7\", expected B of block 0"));
}

struct Measured {
  int64_t device = 0;
  int64_t host = 0;
  int64_t bytes_down = 0;
  int64_t bytes_up = 0;
  PhaseSeconds seconds;
};

Measured Train(const JobSpec& job, const Plan& plan) {
  Training training(job, plan, true);
  EXPECT_TRUE(training.trainer->Step().ok());
  HostMemoryPool& host = *training.context.host;
  EXPECT_TRUE(host.up().WaitForAll().ok());
  const LinkTotals down = host.down().totals(), up = host.up().totals();
  const auto report = training.trainer->Step();
  EXPECT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(host.up().WaitForAll().ok());
  return {training.context.allocator->Peaks().activations_bytes,
          host.allocator().Peaks().activations_bytes, host.down().totals().bytes - down.bytes,
          host.up().totals().bytes - up.bytes, report->seconds};
}

void ExpectPredicted(const JobSpec& job, const Plan& plan) {
  const Measured measured = Train(job, plan);
  const MemoryInputs inputs = MemoryInputsOf(job, plan, {});
  const int64_t device = PredictDeviceTier(inputs).activations_bytes;
  const int64_t host = PredictMemory(inputs).activations_bytes - device;
  EXPECT_NEAR(static_cast<double>(device) / static_cast<double>(measured.device), 1, 0.01)
      << device << " " << measured.device;
  EXPECT_NEAR(static_cast<double>(host) / static_cast<double>(measured.host), 1, 0.01)
      << host << " " << measured.host;
  EXPECT_EQ(measured.bytes_down, measured.host);
  EXPECT_EQ(measured.bytes_up, measured.host);
  EXPECT_EQ(OffloadedActivationBytes(inputs), host);
}

JobSpec LargerJob(const std::string& family) {
  JobSpec job = TinyJob(2);
  job.model.family = family;
  job.model.layers = 6;
  job.model.width = 128;
  job.model.heads = 4;
  job.model.vocab_size = 700;
  job.model.context = 128;
  return job;
}

TEST(ActivationOffloadTest, BytesOfBothTiersAndOverTheLinkAreThoseOfThePlanner) {
  for (const char* family : {"gpt2", "llama"}) {
    JobSpec job = LargerJob(family);
    for (const char* norms : {"pre", "post"}) {
      if (family == std::string("llama") && norms == std::string("post")) continue;
      job.model.norm_position = norms;
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(family) + " " + norms + " " + precision);
        for (const auto& policies :
             {std::vector<std::string>{}, std::vector<std::string>(6, "recompute"),
              std::vector<std::string>(6, "attention"),
              std::vector<std::string>{"recompute", "recompute", "attention"}}) {
          SCOPED_TRACE(policies.empty() ? "keep" : policies.back());
          Plan plan = HostPlan(precision, 2);
          plan.block_memory_policy = policies;
          ExpectPredicted(job, plan);
        }
        for (size_t i = 0; i < kSchedules.size(); ++i) {
          SCOPED_TRACE("schedule " + std::to_string(i));
          Plan plan = HostPlan(precision, 2);
          plan.recompute_schedule = kSchedules[i];
          ExpectPredicted(job, plan);
        }
      }
    }
  }
}

TEST(ActivationOffloadTest, BytesOfWhatIsKeptInBitsAreThoseOfThePlanner) {
  for (const char* family : {"gpt2", "llama"}) {
    JobSpec job = LargerJob(family);
    for (const int64_t bits : {8, 4}) {
      SCOPED_TRACE(std::string(family) + " in " + std::to_string(bits) + " bits");
      Plan plan = HostPlan("bf16", 2);
      plan.activation_bits = bits;
      for (const char* policy : {"keep", "attention", "recompute"}) {
        SCOPED_TRACE(policy);
        plan.block_memory_policy = std::vector<std::string>(6, policy);
        ExpectPredicted(job, plan);
      }
      for (const auto& schedule : kSchedules) {
        SCOPED_TRACE(schedule.front());
        plan.recompute_schedule = schedule;
        ExpectPredicted(job, plan);
      }
    }
  }
}

// Memory is given back at fixed places, and waits there are reported.
TEST(ActivationOffloadTest, ASlowLinkTakesTimeThatIsCountedAndNoMemory) {
  JobSpec job = TinyJob(2);
  job.model.layers = 6;
  job.model.width = 64;
  job.model.context = 64;
  Plan plan = HostPlan("fp32", 2);
  const Measured fast = Train(job, plan);
  constexpr double kSeconds = 0.5;
  plan.host_link_bytes_per_second =
      static_cast<int64_t>(static_cast<double>(fast.bytes_down) / kSeconds);
  const Measured slow = Train(job, plan);
  EXPECT_EQ(slow.device, fast.device);
  EXPECT_EQ(slow.host, fast.host);
  // Half a second each way; computing hides less of it than the slowest machine needs for it.
  EXPECT_GT(slow.seconds.communication_exposed, 2 * kSeconds - 2 * fast.seconds.Total() - 0.2);
  EXPECT_GT(slow.seconds.communication_exposed, fast.seconds.communication_exposed);
  EXPECT_LT(slow.seconds.forward + slow.seconds.backward, slow.seconds.Total());
  plan.recompute_schedule = kSchedules.front();
  const Measured slow_plan = Train(job, plan);
  plan.host_link_bytes_per_second = 0;
  EXPECT_EQ(slow_plan.device, Train(job, plan).device);
}

}  // namespace
}  // namespace weft::engine
