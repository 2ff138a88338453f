// Ranks on a CUDA device each, over NCCL, with state in host memory pools: against the same ranks
// on CPUs, which have it outside, too, and against the devices alone.

#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/gradient_bytes.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/techniques/offload/mesh_testing.h"

namespace weft::engine {
namespace {

// The second update has the moments of the first one, and the states that it leaves are compared.
// The host execution is slow.
constexpr int64_t kSteps = 2;

MeshCase CaseOf(const std::string& precision, int64_t data, int64_t zero_stage,
                int64_t accumulation = 1) {
  MeshCase c;
  c.job = TinyJob(data * accumulation);
  c.job.train.steps = kSteps;
  c.job.train.precision = precision;
  c.job.train.log_every_steps = 2;
  c.job.train.eval_sequences = 3;
  c.job.train.gradient_clip_norm = 0.5;
  c.plan = TinyPlan(precision, 1, accumulation);
  c.plan.mesh.data = data;
  c.plan.zero_stage = zero_stage;
  c.plan.bucket_bytes = 16384;
  return c;
}

/// With the optimizer's state there, "host" or "nvme".
MeshCase Updating(MeshCase c, const std::string& optimizer = "host") {
  c.plan.offload_optimizer = optimizer;
  if (optimizer == "nvme") c.plan.offload_directory = ::testing::TempDir();
  if (c.plan.zero_stage > 2) c.plan.offload_parameters = "host";
  return c;
}

MeshCase WithActivations(MeshCase c) {
  c.plan.offload_activations = "host";
  return c;
}

MeshCase WithParameters(MeshCase c) {
  c.plan.offload_parameters = "host";
  return c;
}

MeshCase Resident(MeshCase c) {
  c.plan.offload_optimizer = c.plan.offload_activations = c.plan.offload_parameters = "none";
  c.plan.offload_directory.clear();
  c.plan.resident_units.clear();
  return c;
}

/// |a - b| / |b| over all tensors of two states.
double Distance(const SavedState& a, const SavedState& b) {
  double difference = 0, norm = 0;
  EXPECT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, values] : b.tensors) {
    const std::vector<float>& own = a.tensors.at(name);
    EXPECT_EQ(own.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{own[i]} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

/// What all ranks save.
template <class Ranks>
SavedState StateOf(const Ranks& ranks) {
  SavedState state;
  for (const auto& rank : ranks) state.Add(rank.state);
  return state;
}

void ExpectNear(const std::vector<StepReport>& got, const std::vector<StepReport>& want,
                double first, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t step = 0; step < want.size(); ++step) {
    const double most = step == 0 ? first : tolerance;
    const StepReport &a = got[step], &b = want[step];
    EXPECT_NEAR(a.loss / b.loss, 1, most) << step;
    EXPECT_NEAR(a.gradient_norm / b.gradient_norm, 1, 10 * most) << step;
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_EQ(a.skipped, b.skipped);
    ASSERT_EQ(a.norms.size(), b.norms.size());
    for (size_t g = 0; g < b.norms.size(); ++g) {
      EXPECT_NEAR(a.norms[g].gradient / b.norms[g].gradient, 1, 20 * most);
      EXPECT_NEAR(a.norms[g].parameter / b.norms[g].parameter, 1, most);
    }
  }
}

class OffloadedRanksOnCuda : public ::testing::Test {
 protected:
  /// The ranks of `c`, which offloads, on devices: as on CPUs, and as on devices alone, where the
  /// first step has the same gradients.
  static void Compare(const MeshCase& c) {
    if (kernels::cuda::DeviceCount() < c.ranks()) {
      GTEST_SKIP() << c.ranks() << " ranks, and fewer devices";
    }
    const double tolerance = Tolerance(c.plan.precision);
    const std::vector<Offloaded> ranks = TrainOffloaded(c, DeviceType::kCuda);
    const SavedState state = StateOf(ranks);
    for (const Offloaded& rank : ranks) {
      for (size_t step = 0; step < rank.reports.size(); ++step) {
        EXPECT_EQ(rank.reports[step].loss, ranks[0].reports[step].loss) << "the same on all ranks";
        EXPECT_EQ(rank.reports[step].gradient_norm, ranks[0].reports[step].gradient_norm);
      }
    }
    {
      SCOPED_TRACE("against CPUs");
      const std::vector<Offloaded> on_cpus = TrainOffloaded(c);
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        ExpectNear(ranks[rank].reports, on_cpus[rank].reports, tolerance, tolerance);
        EXPECT_NEAR(ranks[rank].evaluation / on_cpus[rank].evaluation, 1, tolerance);
        EXPECT_EQ(ranks[rank].groups.calls, on_cpus[rank].groups.calls);
        EXPECT_EQ(ranks[rank].groups.bytes, on_cpus[rank].groups.bytes);
      }
      EXPECT_LT(Distance(state, StateOf(on_cpus)), 30 * tolerance);
    }
    SCOPED_TRACE("against the devices alone");
    const std::vector<MeshOutcome> plain = TrainOnMesh(Resident(c), DeviceType::kCuda);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ExpectNear(ranks[rank].reports, plain[rank].reports, 1e-6, tolerance);
      EXPECT_NEAR(ranks[rank].evaluation / plain[rank].evaluation, 1, tolerance);
      EXPECT_EQ(ranks[rank].groups.calls, plain[rank].groups.calls);
      EXPECT_EQ(ranks[rank].groups.bytes, plain[rank].groups.bytes);
      EXPECT_EQ(ranks[rank].groups.sent_bytes, plain[rank].groups.sent_bytes);
    }
    EXPECT_LT(Distance(state, StateOf(plain)), 30 * tolerance);
  }
};

TEST_F(OffloadedRanksOnCuda, UpdateOnTheirHosts) {
  Compare(Updating(CaseOf("fp32", 2, 0, 2)));
  Compare(Updating(CaseOf("bf16", 2, 0)));
}

TEST_F(OffloadedRanksOnCuda, ShareTheUpdatesOnTheirHosts) {
  Compare(Updating(CaseOf("fp32", 2, 1, 2)));
  Compare(Updating(CaseOf("bf16", 3, 1)));
  Compare(Updating(CaseOf("bf16_pure", 2, 1)));
}

TEST_F(OffloadedRanksOnCuda, ShareGradientsOnTheirHosts) {
  Compare(Updating(CaseOf("fp32", 2, 2, 3)));
  Compare(Updating(CaseOf("bf16", 3, 2, 2)));
}

TEST_F(OffloadedRanksOnCuda, ShareThemInGroups) {
  for (const int64_t zero_stage : {1, 2}) {
    MeshCase c = Updating(CaseOf("fp32", 4, zero_stage, 2));
    c.plan.zero_shard_ranks = 2;
    Compare(c);
  }
}

TEST_F(OffloadedRanksOnCuda, HaveActivationsOnTheirHosts) {
  MeshCase c = WithActivations(Updating(CaseOf("bf16", 2, 1, 2)));
  c.job.model.layers = 4;
  c.plan.block_memory_policy = {"recompute", "keep", "attention", "keep"};
  Compare(c);
}

// Nothing is updated elsewhere: the same bits.
TEST_F(OffloadedRanksOnCuda, HaveTheBitsOfActivationsThatStay) {
  if (kernels::cuda::DeviceCount() < 2) GTEST_SKIP() << "two ranks, and fewer devices";
  for (const int64_t zero_stage : {0, 2, 3}) {
    SCOPED_TRACE(zero_stage);
    MeshCase c = WithActivations(CaseOf("bf16", 2, zero_stage, 2));
    c.job.model.layers = 4;
    const std::vector<Offloaded> ranks = TrainOffloaded(c, DeviceType::kCuda);
    const std::vector<MeshOutcome> plain = TrainOnMesh(Resident(c), DeviceType::kCuda);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (size_t step = 0; step < ranks[rank].reports.size(); ++step) {
        EXPECT_EQ(ranks[rank].reports[step].loss, plain[rank].reports[step].loss) << step;
        EXPECT_EQ(ranks[rank].reports[step].gradient_norm, plain[rank].reports[step].gradient_norm);
      }
      EXPECT_EQ(ranks[rank].groups.calls, plain[rank].groups.calls);
      EXPECT_EQ(ranks[rank].groups.bytes, plain[rank].groups.bytes);
    }
    EXPECT_EQ(StateOf(ranks).tensors, StateOf(plain).tensors);
  }
}

TEST_F(OffloadedRanksOnCuda, HaveMomentsInFiles) {
  Compare(Updating(CaseOf("fp32", 2, 1), "nvme"));
  Compare(Updating(CaseOf("bf16", 2, 2, 2), "nvme"));
}

TEST_F(OffloadedRanksOnCuda, HaveParametersOnTheirHosts) {
  for (const int64_t zero_stage : {0, 1, 2}) {
    Compare(WithParameters(Updating(CaseOf("bf16", 2, zero_stage, 2))));
  }
}

TEST_F(OffloadedRanksOnCuda, HaveSomeParametersStayUntilTheUpdate) {
  for (const int64_t zero_stage : {0, 2}) {
    MeshCase c = WithParameters(Updating(CaseOf("bf16", 2, zero_stage, 2)));
    c.job.model.layers = 4;
    c.plan.resident_units = {0, 2, 3};
    Compare(c);
  }
}

TEST_F(OffloadedRanksOnCuda, ShareParametersOnTheirHosts) {
  Compare(Updating(CaseOf("fp32", 2, 3, 2)));
  MeshCase c = WithActivations(Updating(CaseOf("bf16", 2, 3), "nvme"));
  c.job.model.layers = 4;
  c.plan.block_memory_policy.assign(4, "recompute");
  Compare(c);
}

// The first 40 steps are not late.
TEST_F(OffloadedRanksOnCuda, ShareLateUpdates) {
  if (kernels::cuda::DeviceCount() < 2) GTEST_SKIP() << "two ranks, and fewer devices";
  MeshCase c = Updating(CaseOf("fp32", 2, 1));
  c.job.model.layers = 1;
  c.job.train.steps = 44;
  c.plan.delayed_update = true;
  const std::vector<Offloaded> ranks = TrainOffloaded(c, DeviceType::kCuda);
  const std::vector<Offloaded> on_cpus = TrainOffloaded(c);
  const double tolerance = Tolerance("fp32");
  ExpectNear(ranks[0].reports, on_cpus[0].reports, tolerance, tolerance);
  EXPECT_EQ(ranks[0].groups.bytes, on_cpus[0].groups.bytes);
  EXPECT_LT(Distance(StateOf(ranks), StateOf(on_cpus)), 30 * tolerance);
}

/// Makes a case whose decoder allows every kind of parallelism.
MeshCase SharedCase(const std::string& precision, int64_t data, int64_t zero_stage,
                    int64_t accumulation) {
  MeshCase c = CaseOf(precision, data, zero_stage, accumulation);
  c.job.model.family = "llama";
  c.job.model.kv_heads = 2;
  c.job.model.mlp_width = 48;
  return c;
}

TEST_F(OffloadedRanksOnCuda, ShareMatrices) {
  MeshCase c = SharedCase("fp32", 2, 1, 1);
  c.plan.mesh.tensor = 2;
  c.plan.sequence_parallel = true;
  Compare(WithActivations(Updating(c)));
  c = SharedCase("bf16", 1, 0, 2);
  c.plan.mesh.tensor = c.plan.tensor_rows = 2;
  Compare(WithParameters(Updating(c)));
}

TEST_F(OffloadedRanksOnCuda, ShareBlocks) {
  MeshCase c = SharedCase("fp32", 2, 1, 3);
  c.job.model.layers = 4;
  c.plan.mesh.pipeline = 2;
  c.plan.stage_blocks = {2, 2};
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    c.plan.pipeline_schedule = schedule;
    Compare(WithActivations(Updating(c)));
  }
  c = SharedCase("bf16", 1, 0, 2);
  c.job.model.layers = 4;
  c.plan.mesh.pipeline = 2;
  c.plan.stage_blocks = {1, 1, 1, 1};
  c.plan.pipeline_schedule = "interleaved";
  c.plan.pipeline_chunks = 2;
  Compare(WithParameters(Updating(c)));
}

TEST_F(OffloadedRanksOnCuda, ShareSequences) {
  for (const auto& [method, zero_stage] : {std::pair("ring", 2), std::pair("ulysses", 3)}) {
    MeshCase c = SharedCase("fp32", 2, zero_stage, 2);
    c.plan.mesh.context = 2;
    c.plan.context_method = c.job.resources.context_method = method;
    Compare(WithActivations(Updating(c)));
  }
}

TEST_F(OffloadedRanksOnCuda, ShareExperts) {
  for (const int64_t zero_stage : {0, 1, 3}) {
    MeshCase c = SharedCase("fp32", 4, zero_stage, 1);
    c.job.model.experts = 4;
    c.job.model.experts_per_token = 2;
    c.plan.mesh.data = c.plan.mesh.expert = 2;
    Compare(WithActivations(Updating(c)));
  }
}

TEST_F(OffloadedRanksOnCuda, SendOverTheirLinksWhatIsCounted) {
  if (kernels::cuda::DeviceCount() < 2) GTEST_SKIP() << "two ranks, and fewer devices";
  for (const int64_t zero_stage : {0, 1, 2, 3}) {
    for (const int64_t passes : {1, 3}) {
      SCOPED_TRACE("stage " + std::to_string(zero_stage) + ", " + std::to_string(passes));
      MeshCase c = Updating(CaseOf("fp32", 2, zero_stage, passes));
      c.job.model.vocab_size = 64;  // as many as its table has rows
      const Offloaded rank = TrainOffloaded(c, DeviceType::kCuda).front();
      const MemoryInputs inputs = MemoryInputsOf(c.job, c.plan, CudaMachine("9.0"));
      const int64_t shard_ranks = inputs.ShardGroupSize();
      const GradientLinkBytes gradients = GradientsOverLink(inputs.shape, zero_stage, shard_ranks);
      const StreamedBytes weights = StreamedWeightBytes(inputs);
      // Sums that are added to on the device; after sharded updates parts go up, others come down.
      const int64_t sums = zero_stage > 1 ? gradients.down : gradients.earlier_up;
      const int64_t values = zero_stage == 1 || zero_stage == 2 ? rank.gradient_bytes : 0;
      const int64_t down = gradients.down + (passes - 1) * gradients.earlier_down +
                           values / shard_ranks * (shard_ranks - 1);
      const int64_t up = (passes - 1) * sums + values / shard_ranks + UploadedWeightBytes(inputs) +
                         passes * (weights.forward + weights.backward);
      // Ranks shard padding, too.
      const double padding = 0.01 * static_cast<double>(passes * rank.gradient_bytes);
      EXPECT_NEAR(static_cast<double>(rank.down_bytes), static_cast<double>(down), padding);
      EXPECT_NEAR(static_cast<double>(rank.up_bytes), static_cast<double>(up), padding);
    }
  }
}

/// The gradients that one step leaves for the update, as far as each rank keeps them.
std::vector<std::vector<float>> GradientsOfAStep(const MeshCase& c) {
  std::vector<std::vector<float>> kept(static_cast<size_t>(c.ranks()));
  RandomTokens data(c.job.model.vocab_size, c.job.model.context);
  const auto train = [&](Collective& group) {
    DeviceRun run(c.job, c.plan, data, group.device(), {.group = &group, .graphs = false});
    run.Step();
    const std::vector<ParameterPart> whole = TrainedParts(run.model->parameters());
    const auto parts = run.reducer->parts();
    for (const ParameterPart& part : parts.empty() ? std::span(whole) : parts) {
      for (const float value : FetchValues(run.context.stream, part.gradient)) {
        kept[static_cast<size_t>(group.rank())].push_back(value);
      }
    }
  };
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), train, DeviceType::kCuda);
  return kept;
}

TEST_F(OffloadedRanksOnCuda, HaveTheGradientsOfTheDevicesAlone) {
  if (kernels::cuda::DeviceCount() < 2) GTEST_SKIP() << "two ranks, and fewer devices";
  for (const char* precision : {"fp32", "bf16"}) {
    for (const int64_t zero_stage : {0, 1, 2}) {
      SCOPED_TRACE(std::string(precision) + ", stage " + std::to_string(zero_stage));
      const MeshCase c = Updating(CaseOf(precision, 2, zero_stage, 3));
      EXPECT_EQ(GradientsOfAStep(c), GradientsOfAStep(Resident(c)));
    }
  }
}

}  // namespace
}  // namespace weft::engine
