// What the planner promises about the memory of a GPU, measured on the device that the host
// execution has, at sizes that are trained: the work itself is skipped.

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "common/check.h"
#include "common/failpoint.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/memory_text.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr double kTolerance = 0.01;
// Sanitizers keep account of all that memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr Device kCuda{DeviceType::kCuda, 0};

ModelSpec Gpt2() {
  ModelSpec model;
  model.layers = 12;
  model.width = 768;
  model.heads = 12;
  model.vocab_size = 50257;
  model.context = 1024;
  return model;
}

ModelSpec Llama() {
  ModelSpec model;
  model.family = "llama";
  model.layers = 6;
  model.width = 1024;
  model.heads = 16;
  model.kv_heads = 4;
  model.mlp_width = 2816;
  model.vocab_size = 32000;
  model.untied_classifier = true;
  model.context = 2048;
  return model;
}

/// Nothing that is enqueued runs as long as this lives.
struct SkippedWork {
  SkippedWork() { host_cuda::SkipWork(true); }
  ~SkippedWork() { host_cuda::SkipWork(false); }
};

int64_t HeldOnDevice() {
  size_t free = 0, total = 0;
  host_cuda::DeviceMemoryInfo(&free, &total);
  return static_cast<int64_t>(total - free);
}

/// Where what is not on the device resides.
struct Outside {
  const char* optimizer = "none";
  const char* parameters = "none";
  const char* activations = "none";
};

struct Measured {
  MemoryBreakdown peaks;   ///< Of both tiers.
  MemoryBreakdown device;  ///< Of that one, with offload.
  int64_t held = 0;        ///< Of the device, all in all.
  int64_t chunks = 0;
};

/// Two steps on a device with as much memory taken at once as a trainer takes.
Measured Train(const JobSpec& job, const Plan& plan, int64_t arena_bytes) {
  RandomTokens data(job.model.vocab_size, job.model.context);
  const int64_t before = HeldOnDevice();
  auto device = ComputeDevice::Open({.device = kCuda,
                                     .host = HostMemoryPoolOf(plan),
                                     .expected_bytes = arena_bytes,
                                     .chunk_bytes = size_t{1} << 20});
  WEFT_CHECK(device.ok(), device.status().message());
  Context context = (*device)->NewContext();
  auto model = NewModel(context, job.model, ModelOptionsOf(plan, job.train));
  WEFT_CHECK(model.ok(), model.status().message());
  const PlannedOffload offload = PlannedOffload::Of(plan, context, &(*model)->parameters());
  auto trainer = Trainer::New(job, plan,
                              {.context = &context,
                               .model = model->get(),
                               .train = &data,
                               .reducer = offload.gradients.get()});
  WEFT_CHECK(trainer.ok(), trainer.status().message());
  Measured measured;
  for (int step = 0; step < 2; ++step) {
    auto report = (*trainer)->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    measured.peaks = report->peak_memory;
    measured.device = report->device_memory;
  }
  WEFT_CHECK((*device)->Synchronize().ok(), "synchronize");
  measured.held = HeldOnDevice() - before;
  measured.chunks = (*device)->allocator().system_allocations();
  return measured;
}

void CheckPrediction(const ModelSpec& model, const std::string& precision, int64_t recomputed,
                     int64_t micro_batch, int64_t activation_bits = 0,
                     const Outside& outside = {}) {
  SCOPED_TRACE(model.family + " " + model.over_parameterization.kind + ", " + precision + ", " +
               std::to_string(recomputed) + " recomputed, micro-batch " +
               std::to_string(micro_batch) + ", " + std::to_string(activation_bits) +
               " bits, optimizer " + outside.optimizer + ", parameters " + outside.parameters +
               ", activations " + outside.activations);
  JobSpec job = TinyJob(2 * micro_batch);
  job.model = model;
  job.train.precision = precision;
  Plan plan = TinyPlan(precision, micro_batch, 2);
  plan.block_memory_policy = BlockPolicies(model.layers, recomputed);
  plan.activation_bits = activation_bits;
  plan.offload_optimizer = job.resources.offload_optimizer = outside.optimizer;
  plan.offload_parameters = outside.parameters;
  plan.offload_activations = outside.activations;
  MemoryInputs inputs = MemoryInputsOf(job, plan, CudaMachine("9.0"));
  // The products of the host execution want hardly any.
  inputs.product_workspace_bytes = 0;
  const MemoryBreakdown predicted = PredictMemory(inputs), on_device = PredictDeviceTier(inputs);
  const Measured measured = Train(job, plan, TotalBytes(on_device) - BytesOutsideArena(inputs));

  EXPECT_EQ(measured.chunks, 1) << "what was taken at first has to do";
  const auto expect_near = [](std::string_view name, int64_t promised, int64_t taken) {
    EXPECT_NEAR(static_cast<double>(promised) / static_cast<double>(taken), 1.0, kTolerance)
        << name << ": predicted " << promised << ", measured " << taken;
  };
  expect_near("device", TotalBytes(on_device), measured.held);
  if (inputs.HasHostMemoryPool()) {
    expect_near("peaks on the device", TotalBytes(on_device) - on_device.runtime_bytes,
                TotalBytes(measured.device));
  }
  // What nothing can be put into is no peak of anything.
  expect_near("peaks", TotalBytes(predicted) - predicted.runtime_bytes, TotalBytes(measured.peaks));
  const auto promised = Components(predicted), taken = Components(measured.peaks);
  for (size_t i = 0; i < promised.size(); ++i) {
    if (promised[i].bytes + taken[i].bytes == 0) continue;
    if (promised[i].name == "communication" || promised[i].name == "runtime") continue;
    expect_near(promised[i].name, promised[i].bytes, taken[i].bytes);
  }
}

TEST(PredictMemoryOnCuda, IsWithinOnePercentOfWhatTheDeviceHolds) {
  const SkippedWork skipped;
  for (ModelSpec model : {Gpt2(), Llama()}) {
    if (kSanitized) model.layers = 2;
    for (const char* precision : {"fp32", "bf16", "bf16_pure", "fp8"}) {
      for (int64_t recomputed : {int64_t{0}, model.layers / 2, model.layers}) {
        for (int64_t micro_batch : {1, 3}) {
          if (kSanitized && micro_batch > 1) continue;
          CheckPrediction(model, precision, recomputed, micro_batch);
        }
      }
    }
  }
  // Weights that are made of factors are f32, so that bf16 products need copies.
  ModelSpec expanded = Gpt2();
  expanded.layers = 4;
  expanded.over_parameterization.kind = "linear_expansion";
  CheckPrediction(expanded, "bf16_pure", 0, 2);
  CheckPrediction(expanded, "bf16", 0, 2);
  ModelSpec narrow = Gpt2();
  narrow.embedding_width = 128;
  CheckPrediction(narrow, "bf16", 0, 2);
}

TEST(PredictMemoryOnCuda, CompressedActivationsAreWithinOnePercent) {
  const SkippedWork skipped;
  for (ModelSpec model : {Gpt2(), Llama()}) {
    if (kSanitized) model.layers = 2;
    for (const char* precision : {"fp32", "bf16", "fp8"}) {
      for (int64_t bits : {8, 4, 2}) {
        for (int64_t micro_batch : {1, 4}) CheckPrediction(model, precision, 0, micro_batch, bits);
      }
      if (kSanitized) continue;
      for (int64_t micro_batch : {1, 4}) {
        CheckPrediction(model, precision, model.layers, micro_batch, 8);
        CheckPrediction(model, precision, model.layers / 2, micro_batch, 2);
        CheckPrediction(model, precision, 0, micro_batch, 4, {.activations = "host"});
      }
    }
  }
}

TEST(PredictMemoryOnCuda, BothTiersAreWithinOnePercent) {
  const SkippedWork skipped;
  // The host would make updates of what was never computed.
  ASSERT_TRUE(SetFailpoints("trainer.loss=error").ok());
  for (ModelSpec model : {Gpt2(), Llama()}) {
    model.layers = kSanitized ? 2 : 4;
    for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
      CheckPrediction(model, precision, 1, 2, 0, {.optimizer = "host"});
      CheckPrediction(model, precision, 0, 1, 0, {.optimizer = "host"});
      CheckPrediction(model, precision, model.layers, 3, 0, {.optimizer = "host"});
      for (int64_t micro_batch : {1, 4}) {
        CheckPrediction(model, precision, 0, micro_batch, 0, {.activations = "host"});
        CheckPrediction(model, precision, 0, micro_batch, 0,
                        {.optimizer = "host", .activations = "host"});
        CheckPrediction(model, precision, 1, micro_batch, 0,
                        {.optimizer = "host", .parameters = "host"});
        CheckPrediction(model, precision, 0, micro_batch, 0,
                        {.optimizer = "host", .parameters = "host", .activations = "host"});
      }
    }
  }
  // Frozen matrices stay on the device.
  ModelSpec adapted = Llama();
  adapted.layers = 2;
  adapted.peft.method = "lora";
  for (const char* precision : {"fp32", "bf16", "bf16_pure"}) {
    CheckPrediction(adapted, precision, 1, 2, 0, {.optimizer = "host"});
  }
  ASSERT_TRUE(SetFailpoints("").ok());
}

// How many rows each expert has is known only once the work is done, so these are small.
TEST(PredictMemoryOnCuda, ExpertsAreWithinOnePercent) {
  ModelSpec model = Llama();
  model.layers = 2;
  model.width = 128;
  model.heads = 2;
  model.kv_heads = 1;
  model.mlp_width = 256;
  model.vocab_size = 1000;
  model.context = 128;
  model.experts = 4;
  CheckPrediction(model, "bf16", 1, 2);
  if (kSanitized) return;
  CheckPrediction(model, "fp32", 0, 2);
  CheckPrediction(model, "bf16_pure", 2, 2);
  CheckPrediction(model, "fp8", 1, 2);
}

}  // namespace
}  // namespace weft::engine
