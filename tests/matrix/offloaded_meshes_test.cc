// Offloaded state on tensor-parallel ranks and pipeline stages: bits, and memory of both tiers.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/peft_choices.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::testing {
namespace {

constexpr int64_t kSteps = 2;
constexpr double kShare = 0.01;

/// What is asked of the ranks.
struct Case {
  std::string name;
  int64_t data = 1, tensor = 1, pipeline = 1;
  std::string optimizer = "host";
  std::string parameters = "none", activations = "none";
  int64_t zero_stage = 0;
  bool sequence = false;
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  std::string family = "gpt2";
  std::string precision = "fp32";
  int64_t context = 1;
  std::string method = "ring";
  int64_t expert = 1;  ///< Of a model whose tokens go to all experts.
  bool mixture = expert > 1;
  int64_t rows = 1;
  std::vector<int64_t> kept = {};   ///< Units on the device.
  std::vector<int64_t> stays = {};  ///< Units that come once a step.
  std::string peft = "none";        ///< See SetPeft.
  std::string structured = "none";  ///< model.structured_matrices.kind
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> Cases() {
  return {
      {.name = "tensorInFiles",
       .tensor = 2,
       .optimizer = "nvme",
       .sequence = true,
       .family = "llama",
       .precision = "bf16"},
      {.name = "zero1AndTensor", .data = 2, .tensor = 2, .zero_stage = 1, .sequence = true},
      {.name = "zero3AndTensor", .data = 2, .tensor = 2, .parameters = "host", .zero_stage = 3},
      {.name = "tensorAndAll", .tensor = 2, .parameters = "host", .activations = "host"},
      {.name = "gpipe", .pipeline = 2, .schedule = "gpipe"},
      {.name = "zeroBubbleInFiles",
       .pipeline = 2,
       .optimizer = "nvme",
       .schedule = "zero_bubble",
       .family = "llama",
       .precision = "bf16"},
      {.name = "pipelineInFilesAndZero1",
       .data = 2,
       .pipeline = 2,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 1},
      {.name = "tensorAndPipelineInFiles",
       .tensor = 2,
       .pipeline = 2,
       .parameters = "nvme",
       .activations = "host",
       .sequence = true,
       .schedule = "zero_bubble",
       .family = "llama",
       .precision = "bf16"},
      {.name = "zero1AndPipeline", .data = 2, .pipeline = 2, .zero_stage = 1},
      {.name = "activationsOfPipeline", .pipeline = 2, .optimizer = "none", .activations = "host"},
      {.name = "activationsAndStateOfPipeline",
       .pipeline = 2,
       .activations = "host",
       .schedule = "interleaved",
       .chunks = 2,
       .precision = "bf16"},
      {.name = "tensorAndPipeline", .tensor = 2, .pipeline = 2, .sequence = true},
      {.name = "contextAndAll",
       .parameters = "host",
       .activations = "host",
       .family = "llama",
       .precision = "bf16",
       .context = 2},
      {.name = "contextInFiles",
       .optimizer = "nvme",
       .parameters = "nvme",
       .activations = "host",
       .context = 2,
       .method = "ulysses"},
      {.name = "tensorAndZero1InFiles",
       .data = 2,
       .tensor = 2,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 1,
       .sequence = true},
      {.name = "tensorInFilesOfLlama",
       .tensor = 2,
       .parameters = "nvme",
       .activations = "host",
       .sequence = true,
       .family = "llama",
       .precision = "bf16"},
      {.name = "zero3InFiles",
       .data = 2,
       .tensor = 2,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 3},
      {.name = "zero3AndContext", .data = 2, .parameters = "host", .zero_stage = 3, .context = 2},
      {.name = "grid", .tensor = 4, .rows = 2},
      {.name = "gridAndAll",
       .tensor = 4,
       .parameters = "host",
       .activations = "host",
       .precision = "bf16",
       .rows = 2},
      {.name = "gridAndZero3InFiles",
       .data = 2,
       .tensor = 2,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 3,
       .family = "llama",
       .rows = 2},
      {.name = "gridAndZero1InFiles",
       .data = 2,
       .tensor = 4,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 1,
       .rows = 2},
      {.name = "mixture",
       .optimizer = "nvme",
       .parameters = "nvme",
       .activations = "host",
       .family = "llama",
       .mixture = true},
      {.name = "expertAndAll",
       .parameters = "host",
       .activations = "host",
       .family = "llama",
       .precision = "bf16",
       .expert = 2},
      {.name = "expertInFiles",
       .optimizer = "nvme",
       .parameters = "nvme",
       .family = "llama",
       .expert = 2},
      {.name = "zero1AndExpertInFiles",
       .data = 2,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 1,
       .family = "llama",
       .expert = 2},
      {.name = "zero3AndExpert",
       .parameters = "host",
       .zero_stage = 3,
       .family = "llama",
       .precision = "bf16",
       .expert = 2},
      {.name = "zero3AndExpertInFiles",
       .data = 2,
       .optimizer = "nvme",
       .parameters = "nvme",
       .zero_stage = 3,
       .family = "llama",
       .expert = 2},
      {.name = "pipelineAndExpert",
       .pipeline = 2,
       .activations = "host",
       .family = "llama",
       .expert = 2},
      {.name = "contextAndPipeline", .pipeline = 2, .activations = "host", .context = 2},
      {.name = "part", .precision = "bf16", .kept = {0, 1}},
      {.name = "partOfRanks", .data = 2, .activations = "host", .kept = {0, 1, 2}},
      {.name = "partAndTensor",
       .tensor = 2,
       .sequence = true,
       .family = "llama",
       .precision = "bf16",
       .kept = {0, 1, 2}},
      {.name = "partAndGrid", .tensor = 4, .rows = 2, .kept = {1, 2}},
      {.name = "partAndContext", .precision = "bf16", .context = 2, .kept = {0, 4, 5}},
      {.name = "partAndExpert", .family = "llama", .expert = 2, .kept = {0, 1, 3}},
      {.name = "partOfParameters", .parameters = "host", .precision = "bf16", .stays = {0, 2}},
      {.name = "partOfParametersOfRanks",
       .data = 2,
       .parameters = "host",
       .zero_stage = 2,
       .stays = {1, 3, 5}},
      {.name = "partOfParametersAndTensor",
       .tensor = 2,
       .parameters = "host",
       .sequence = true,
       .family = "llama",
       .stays = {2, 4}},
      {.name = "partOfParametersAndContext",
       .parameters = "host",
       .precision = "bf16",
       .context = 2,
       .stays = {0, 1, 5}},
      {.name = "partOfParametersAndExpert",
       .parameters = "host",
       .family = "llama",
       .expert = 2,
       .stays = {1, 2}},
      {.name = "zero1AndLora",
       .data = 2,
       .zero_stage = 1,
       .family = "llama",
       .precision = "bf16",
       .peft = "lora"},
      {.name = "pipelineAndQlora", .pipeline = 2, .precision = "bf16", .peft = "qlora"},
      {.name = "loraInFiles", .optimizer = "nvme", .precision = "bf16", .peft = "lora"},
      {.name = "ia3", .data = 2, .peft = "ia3"},
      {.name = "miss", .peft = "miss"},
      {.name = "houlsby", .family = "llama", .peft = "houlsby"},
      {.name = "zero1AndTwoAdapters", .data = 2, .zero_stage = 1, .peft = "two adapters"},
      {.name = "tensorAndDora", .tensor = 2, .precision = "bf16", .peft = "dora"},
      {.name = "adalora", .data = 2, .peft = "adalora"},
      {.name = "vera", .precision = "bf16", .peft = "vera"},
      {.name = "pipelineAndTrainedTokens", .pipeline = 2, .peft = "trained tokens"},
      {.name = "loraOfTokens", .precision = "bf16", .peft = "lora of tokens"},
      {.name = "pipelineAndProjectedPrefix", .pipeline = 4, .peft = "projected prefix"},
      {.name = "qloraAndParameters",
       .parameters = "host",
       .family = "llama",
       .precision = "bf16",
       .stays = {2},
       .peft = "qlora"},
      {.name = "zero3AndQlora",
       .data = 2,
       .parameters = "host",
       .zero_stage = 3,
       .precision = "bf16",
       .peft = "qlora"},
      {.name = "pipelineAndPrefixAndParameters",
       .pipeline = 2,
       .parameters = "host",
       .peft = "prefix"},
      {.name = "tensorAndMonarch", .tensor = 2, .structured = "monarch"},
      {.name = "pipelineInFilesAndMonarch",
       .pipeline = 2,
       .optimizer = "nvme",
       .schedule = "zero_bubble",
       .structured = "monarch"},
      {.name = "zero1AndPixelfly", .data = 2, .zero_stage = 1, .structured = "pixelfly"},
      {.name = "partAndPixelfly", .kept = {0, 1}, .structured = "pixelfly"},
  };
}

/// The method, or the choice of the matrix, that Case::peft names.
void SetPeft(const std::string& name, JobSpec& job) {
  PeftSpec& peft = job.model.peft;
  if (name == "qlora") {
    peft.method = "lora";
    job.model.weight_quantization.type = "nf4";
  } else if (name == "two adapters") {
    JointAdapters().apply(job);
    job.resources.micro_batch = 2;
  } else if (name == "dora") {
    Dora().apply(job);
  } else if (name == "trained tokens") {
    TrainedTokens().apply(job);
  } else if (name == "lora of tokens") {
    LoraOfTokens().apply(job);
  } else if (name.ends_with("prefix")) {
    VirtualTokens("prefix").apply(job);
    peft.prefix_projection = name.starts_with("projected");
  } else {
    peft.method = name;
    if (name == "vera") peft.rank = 16;  // as memory is aligned
  }
}

JobSpec JobOfCase(const Case& c, const std::string& root) {
  JobSpec job = JobOf(Combination(Axes().size(), 0));
  job.model.family = c.family;
  if (c.activations != "none") job.model.layers = 6;  // two on a stage
  if (c.mixture) job.model.experts = job.model.experts_per_token = 4;
  job.model.width = 128;
  job.model.vocab_size = 2500;
  job.train.precision = c.precision;
  job.train.log_every_steps = 1;  // norms of groups
  job.train.steps = kSteps;
  ResourceSpec& resources = job.resources;
  resources.ranks = c.data * c.tensor * c.pipeline * c.context * c.expert;
  resources.expert_parallel = c.expert;
  resources.context_parallel = c.context;
  resources.context_method = c.method;
  resources.micro_batch = 1;
  resources.tensor_parallel = c.tensor;
  resources.sequence_parallel = c.sequence;
  resources.tensor_rows = c.rows;
  resources.pipeline_parallel = c.pipeline;
  resources.pipeline_schedule = c.schedule;
  resources.pipeline_chunks = c.chunks;
  resources.zero_stage = c.zero_stage;
  resources.offload_optimizer = c.optimizer;
  resources.device_updated_units = c.kept;
  resources.resident_units = c.stays;
  resources.offload_parameters = c.parameters;
  resources.offload_activations = c.activations;
  if (c.optimizer == "nvme" || c.parameters == "nvme") resources.offload_directory = root;
  SetPeft(c.peft, job);
  if (c.structured != "none") {
    StructuredMatricesSpec& matrices = job.model.structured_matrices;
    matrices.kind = c.structured;
    matrices.block_size = 16;
    matrices.density = 0.5;
    matrices.low_rank_share = 0.5;
  }
  return job;
}

/// Predicted memory of each rank of a replica's pipeline, of both tiers together and of the device.
struct Predicted {
  std::vector<MemoryBreakdown> all, device;
};

Predicted Predict(const JobSpec& job, const Plan& plan) {
  const DType products = PrecisionOf(plan.precision).products;
  const MemoryInputs inputs = MemoryInputsOf(job, plan, {engine::ProductsOf(products)});
  if (plan.mesh.pipeline == 1) return {{PredictMemory(inputs)}, {PredictDeviceTier(inputs)}};
  const auto schedule = NamedSchedule(plan.pipeline_schedule, plan.mesh.pipeline,
                                      plan.pipeline_chunks, plan.accumulation_steps);
  EXPECT_TRUE(schedule.ok());
  const StageShapes shapes(inputs.shape);
  const InFlightActivations in_flight(*schedule);
  PipelineMemory memory(shapes, plan.stage_blocks, in_flight);
  return {memory.Ranks(inputs), memory.DeviceTiers(inputs)};
}

int64_t StateBytes(const MemoryBreakdown& memory) {
  return memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes;
}

void ExpectNear(const char* what, int64_t taken, int64_t promised) {
  EXPECT_NEAR(static_cast<double>(taken) / static_cast<double>(promised), 1, kShare)
      << what << ": predicted " << promised << ", taken " << taken;
}

/// Bytes of one kind, on those of some ranks that have most.
template <class Bytes>
int64_t Most(std::span<const trainer::ProgressMessage> ranks, Bytes&& bytes) {
  int64_t most = 0;
  for (const trainer::ProgressMessage& rank : ranks) most = std::max(most, bytes(rank));
  return most;
}

/// Bytes that left ranks in the last step, by axis and collective; votes apart. Of all, since with
/// other buckets each shares other parts.
std::map<std::string, double> Sent(const Training& training) {
  std::map<std::string, double> sent;
  for (const trainer::ProgressMessage& rank : training.ranks) {
    for (const CollectiveUse& use : rank.collectives) {
      if (use.collective != "control") sent[use.axis + ", " + use.collective] += use.sent_bytes;
    }
  }
  return sent;
}

class OffloadedMeshes : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_offloaded_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  std::string root_;
};

TEST_P(OffloadedMeshes, HaveTheBitsOfTheSameRanksWithoutAndTakeWhatIsPredicted) {
  JobSpec job = JobOfCase(GetParam(), root_);
  const auto plan = PlanOf(job);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto offloaded = Train(job, root_ + "/offloaded", kSteps);
  ASSERT_TRUE(offloaded.ok()) << offloaded.status().message();
  job.resources.offload_optimizer = job.resources.offload_parameters =
      job.resources.offload_activations = "none";
  job.resources.offload_directory.clear();
  job.resources.device_updated_units.clear();
  job.resources.resident_units.clear();
  const auto plain = Train(job, root_ + "/plain", kSteps);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(offloaded->losses, plain->losses);
  EXPECT_EQ(Sent(*offloaded), Sent(*plain));
  for (size_t rank = 0; rank < plain->ranks.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const trainer::ProgressMessage &other = plain->ranks[rank], &own = offloaded->ranks[rank];
    // Ranks that shard updates have other parts, whose norms add up in another order.
    const double most = GetParam().zero_stage > 0 ? 1e-9 : 0;
    EXPECT_NEAR(*own.gradient_norm, *other.gradient_norm, most);
    ASSERT_EQ(own.norms.size(), other.norms.size());
    for (size_t g = 0; g < own.norms.size(); ++g) {
      EXPECT_NEAR(own.norms[g].gradient, other.norms[g].gradient, most);
      EXPECT_EQ(own.norms[g].parameter, other.norms[g].parameter);
    }
  }
  const Predicted predicted = Predict(JobOfCase(GetParam(), root_), *plan);
  const size_t of_stage = plain->ranks.size() / predicted.all.size();
  for (size_t stage = 0; stage < predicted.all.size(); ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const MemoryBreakdown &all = predicted.all[stage], &device = predicted.device[stage];
    const auto ranks = std::span(offloaded->ranks).subspan(stage * of_stage, of_stage);
    const auto near = [&](const char* what, int64_t MemoryBreakdown::*part) {
      ExpectNear(what, Most(ranks, [&](const auto& rank) { return rank.memory_step.*part; }),
                 all.*part);
    };
    near("parameters", &MemoryBreakdown::parameters_bytes);
    near("gradients", &MemoryBreakdown::gradients_bytes);
    near("optimizer", &MemoryBreakdown::optimizer_bytes);
    // Activations of stages and of partitioned rows are predicted less closely.
    if (GetParam().pipeline == 1 && !GetParam().sequence)
      near("activations", &MemoryBreakdown::activations_bytes);
    const int64_t waiting = all.activations_bytes - device.activations_bytes;
    // Where parameters are updated, and gradients of tensor-parallel ranks summed.
    const int64_t workspace = all.workspace_bytes - device.workspace_bytes;
    const int64_t summed = all.communication_bytes - device.communication_bytes;
    ExpectNear("state on the device",
               Most(ranks,
                    [&](const auto& rank) {
                      const MemoryBreakdown& held = rank.memory_step;
                      return rank.tiers.device_bytes + waiting + workspace + summed -
                             held.activations_bytes - held.workspace_bytes -
                             held.communication_bytes;
                    }),
               StateBytes(device));
    if (waiting > 0) {
      // Activations on the device are predicted as closely as without offload.
      const int64_t taken = Most(
          ranks, [&](const auto& rank) { return rank.memory_step.activations_bytes - waiting; });
      EXPECT_NEAR(static_cast<double>(taken) / static_cast<double>(device.activations_bytes), 1,
                  0.1);
    }
    ExpectNear("host", Most(ranks, [](const auto& rank) { return rank.tiers.host_bytes; }),
               StateBytes(all) - StateBytes(device) + waiting + workspace + summed);
  }
}

using OffloadedPipelines = OffloadedMeshes;

// Bit for bit, whichever of them makes which steps.
TEST_F(OffloadedPipelines, GoOnWithWeightsInFilesAndWithoutThem) {
  const auto losses = [&](bool in_files, const std::string& run, int64_t last_step) {
    JobSpec job =
        JobOfCase({.name = run, .pipeline = 2, .optimizer = in_files ? "nvme" : "none"}, root_);
    job.model.width = 32;
    job.model.vocab_size = 50;
    job.resources.offload_parameters = in_files ? "nvme" : "none";
    job.train.steps = 6;
    const auto training = Train(job, root_ + "/" + run, last_step);
    EXPECT_TRUE(training.ok()) << training.status().message();
    return training.ok() ? training->losses : std::vector<double>();
  };
  const std::vector<double> whole = losses(false, "whole", 6);
  std::vector<double> stopped;
  for (const auto& [in_files, last_step] :
       std::vector<std::pair<bool, int64_t>>{{true, 2}, {true, 3}, {false, 4}, {true, 6}}) {
    const std::vector<double> more = losses(in_files, "stopped", last_step);
    stopped.insert(stopped.end(), more.begin(), more.end());
  }
  EXPECT_EQ(stopped, whole);
}

class DelayedMeshes : public OffloadedMeshes {};

// The sums have another order, hence not the bits of one rank.
TEST_P(DelayedMeshes, AreOneStepLateAsOneRankIsAlsoAfterACheckpoint) {
  constexpr int64_t kAll = 46, kSaved = 44;  // the first 40 steps are not delayed
  const auto losses = [&](const Case& c, const std::string& run, int64_t last_step) {
    JobSpec job = JobOfCase(c, root_);
    job.model.layers = 2;
    job.model.width = 32;
    job.model.vocab_size = 50;
    job.optimizer.learning_rate = 3e-3;
    job.train.steps = kAll;
    job.checkpoint.every_steps = kSaved;
    job.resources.delayed_update = run != "early";
    const auto training = Train(job, root_ + "/" + run, last_step);
    EXPECT_TRUE(training.ok()) << training.status().message();
    return training.ok() ? training->losses : std::vector<double>(kAll);
  };
  const std::vector<double> mesh = losses(GetParam(), "mesh", kAll), one = losses({}, "one", kAll),
                            early = losses({}, "early", kAll);
  std::vector<double> stopped = losses(GetParam(), "stopped", kSaved);
  const std::vector<double> rest = losses(GetParam(), "stopped", kAll);
  stopped.insert(stopped.end(), rest.begin(), rest.end());
  EXPECT_EQ(stopped, mesh);
  double apart = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(mesh[i], one[i], 5e-5) << i;  // after more steps than the matrix has
    apart = std::max(apart, std::abs(one[i] - early[i]));
  }
  EXPECT_GT(apart, 1e-4) << "the delay shows";
}

INSTANTIATE_TEST_SUITE_P(Ways, DelayedMeshes,
                         ::testing::Values(Case{.name = "data", .data = 2},
                                           Case{.name = "tensor", .tensor = 2},
                                           Case{.name = "zero1AndPipelineInFiles",
                                                .data = 2,
                                                .pipeline = 2,
                                                .optimizer = "nvme",
                                                .zero_stage = 1}),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Ways, OffloadedMeshes, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace weft::testing
