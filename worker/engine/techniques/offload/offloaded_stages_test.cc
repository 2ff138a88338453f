// Ranks of a pipeline with something in their host memory pools against the same ranks without: the
// same bits, and on the device, on the host and over the link the bytes of the planner.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/gradient_bytes.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/model/streamed_units.h"
#include "common/pipeline/named_schedule.h"
#include "worker/engine/techniques/offload/mesh_testing.h"
#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

constexpr double kShare = 0.01;

/// Wide enough that a row of it is more than what is counted of each token by itself.
ModelSpec Larger(ModelSpec model, int64_t layers) {
  model.layers = layers;
  model.width = 128;
  model.heads = 4;
  if (model.family == "llama") model.mlp_width = 192;
  model.vocab_size = 700;
  model.context = 128;
  model.dropout = 0;
  return model;
}

MeshCase Piped(const ModelSpec& model, const std::string& schedule, const std::vector<int64_t>& cut,
               int64_t chunks = 1, const std::string& precision = "fp32") {
  MeshCase c = WithStages(CaseOf(model, "ring", 1, 1, "keep", precision), cut, schedule, chunks);
  c.job.train.steps = 2;
  c.job.train.log_every_steps = 10;
  c.job.train.eval_sequences = 1;
  c.plan.micro_batch = 1;
  c.plan.accumulation_steps = c.job.train.global_batch = 6;
  return c;
}

void ExpectNear(const char* what, int64_t measured, int64_t predicted) {
  EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(predicted),
              kShare * static_cast<double>(predicted))
      << what;
}

/// Trains with and without what `c` offloads.
void ExpectSameBitsAndWhatIsPredicted(const MeshCase& c) {
  SCOPED_TRACE(NameOf(c));
  const std::vector<Offloaded> ranks = TrainOffloaded(c);
  MeshCase resident = c;
  resident.plan.offload_optimizer = resident.plan.offload_parameters =
      resident.plan.offload_activations = "none";
  const std::vector<MeshOutcome> plain = TrainOnMesh(resident);

  MemoryInputs inputs = InputsOf(c);
  const auto schedule = NamedSchedule(c.plan.pipeline_schedule, c.plan.mesh.pipeline,
                                      c.plan.pipeline_chunks, c.plan.accumulation_steps);
  ASSERT_TRUE(schedule.ok());
  const StageShapes shapes(inputs.shape);
  const InFlightActivations in_flight(*schedule);
  PipelineMemory memory(shapes, c.plan.stage_blocks, in_flight);
  const auto all = memory.Ranks(inputs);
  auto device = memory.DeviceTiers(inputs);
  // Operands that are widened for one product are the kernels' own, which no allocator counts.
  inputs.products = ProductKind::kNative;
  PipelineMemory unwidened(shapes, c.plan.stage_blocks, in_flight);
  const auto counted = unwidened.DeviceTiers(inputs);
  for (size_t rank = 0; rank < device.size(); ++rank) {
    device[rank].workspace_bytes = counted[rank].workspace_bytes;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE("stage " + std::to_string(rank));
    const Offloaded& own = ranks[rank];
    for (size_t step = 0; step < own.reports.size(); ++step) {
      EXPECT_EQ(own.reports[step].loss, plain[rank].reports[step].loss);
      EXPECT_EQ(own.reports[step].gradient_norm, plain[rank].reports[step].gradient_norm);
    }
    EXPECT_EQ(own.evaluation, plain[rank].evaluation);
    EXPECT_EQ(own.state.tensors, plain[rank].state.tensors);
    const StepReport& last = own.reports.back();
    ExpectNear("parameters on the device", last.device_memory.parameters_bytes,
               device[rank].parameters_bytes);
    ExpectNear("activations on the device", last.device_memory.activations_bytes,
               device[rank].activations_bytes);
    ExpectNear("activations on the host",
               last.peak_memory.activations_bytes - last.device_memory.activations_bytes,
               all[rank].activations_bytes - device[rank].activations_bytes);
    ExpectNear("parameters on the host",
               last.peak_memory.parameters_bytes - last.device_memory.parameters_bytes,
               all[rank].parameters_bytes - device[rank].parameters_bytes);
    ExpectNear("gradients on the host",
               last.peak_memory.gradients_bytes - last.device_memory.gradients_bytes,
               all[rank].gradients_bytes - device[rank].gradients_bytes);
    ExpectNear("moments", last.peak_memory.optimizer_bytes, all[rank].optimizer_bytes);
    ExpectNear("workspace", last.device_memory.workspace_bytes, device[rank].workspace_bytes);
    ExpectNear("gradients on the device", last.device_memory.gradients_bytes,
               device[rank].gradients_bytes);
    // Each micro-batch brings what its passes read, and the last one leaves the gradients.
    MemoryInputs stage = InputsOf(c);
    stage.offload_optimizer = inputs.offload_optimizer;
    stage.offload_parameters = inputs.offload_parameters;
    stage.shape = ShapeOfStages(inputs.shape, c.plan.stage_blocks, c.plan.mesh.pipeline,
                                static_cast<int64_t>(rank));
    const StreamedBytes streamed = StreamedWeightBytes(stage);
    // What blocks save goes down, and comes up again.
    const int64_t gradients = inputs.offload_optimizer ? own.gradient_bytes : 0;
    const int64_t saved = own.down_bytes - gradients;
    EXPECT_EQ(saved > 0, inputs.offload_activations);
    EXPECT_EQ(own.up_bytes - saved,
              c.plan.accumulation_steps * (streamed.forward + streamed.backward));
    if (!inputs.parameters_in_file) continue;
    // Passes read the values from files. Gradients are written once, which gives their norm, and
    // read for the update, which reads and writes values and moments.
    stage.parameters_in_file = true;
    const StreamedBytes read = FiledWeightBytes(stage);
    const int64_t gradients_file =
        FiledGradientBytes(stage.shape, c.plan.bucket_bytes, stage.ShardGroupSize()).file;
    const int64_t values_file =
        FiledValueBytes(stage.shape, ElementBytes(stage.precision->matrices)).file;
    const int64_t moments = c.plan.offload_optimizer == "nvme" ? 2 * own.gradient_bytes : 0;
    ExpectNear("files", last.tiers.file_bytes, values_file + gradients_file + moments);
    ExpectNear("moved through files", own.moved_bytes,
               c.plan.accumulation_steps * (read.forward + read.backward) + 2 * gradients_file +
                   2 * (values_file + moments));
  }
}

TEST(OffloadedStages, HaveActivationsOnTheHostInEverySchedule) {
  const ModelSpec gpt2 = Larger(Gpt2Model(), 6), llama = Larger(LlamaModel(), 8);
  std::vector<MeshCase> cases = {Piped(gpt2, "zero_bubble", {3, 3}), Piped(gpt2, "1f1b", {4, 2}),
                                 Piped(llama, "zero_bubble", {2, 2, 2, 2}),
                                 Piped(llama, "interleaved", {3, 2, 2, 1}, 2)};
  for (const char* policy : {"attention", "recompute"}) {
    cases.push_back(Piped(gpt2, "zero_bubble", {3, 3}));
    cases.back().plan.block_memory_policy.assign(6, policy);
  }
  for (MeshCase& c : cases) {
    c.plan.offload_activations = "host";
    ExpectSameBitsAndWhatIsPredicted(c);
  }
}

TEST(OffloadedStages, HaveWeightsThatComeInEveryPassOfAMicroBatch) {
  const ModelSpec gpt2 = Larger(Gpt2Model(), 6), llama = Larger(LlamaModel(), 8);
  std::vector<MeshCase> cases = {Piped(gpt2, "1f1b", {3, 3}),
                                 Piped(gpt2, "gpipe", {4, 2}, 1, "bf16"),
                                 Piped(llama, "zero_bubble", {2, 2, 2, 2}, 1, "bf16"),
                                 Piped(llama, "interleaved", {3, 2, 2, 1}, 2)};
  cases.push_back(Piped(gpt2, "zero_bubble", {3, 3}));
  cases.back().plan.offload_activations = "host";
  cases.back().plan.block_memory_policy.assign(6, "recompute");
  for (MeshCase& c : cases) {
    c.plan.offload_optimizer = c.plan.offload_parameters = "host";
    ExpectSameBitsAndWhatIsPredicted(c);
  }
}

TEST(OffloadedStages, HaveWeightsInFilesThatAreReadInEveryPass) {
  const ModelSpec gpt2 = Larger(Gpt2Model(), 6), llama = Larger(LlamaModel(), 8);
  std::vector<MeshCase> cases = {Piped(gpt2, "1f1b", {3, 3}),
                                 Piped(gpt2, "gpipe", {4, 2}, 1, "bf16_pure"),
                                 Piped(llama, "zero_bubble", {2, 2, 2, 2}, 1, "bf16"),
                                 Piped(llama, "interleaved", {3, 2, 2, 1}, 2),
                                 Piped(gpt2, "interleaved", {1, 2, 2, 1}, 2, "bf16")};
  cases[0].plan.offload_activations = "host";
  cases[0].plan.block_memory_policy.assign(6, "recompute");
  for (MeshCase& c : cases) {
    c.plan.offload_optimizer = c.plan.precision == "bf16" ? "host" : "nvme";
    c.job.resources.offload_optimizer = c.plan.offload_optimizer;
    c.plan.offload_parameters = "nvme";
    c.plan.offload_directory = ::testing::TempDir();
    ExpectSameBitsAndWhatIsPredicted(c);
  }
}

}  // namespace
}  // namespace weft::engine
