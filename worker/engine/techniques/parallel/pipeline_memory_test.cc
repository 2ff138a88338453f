// What the ranks of a pipeline take, part by part, against what is predicted.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

constexpr double kShare = 0.01;

/// Wide enough that a row of it is more than what is counted of each token by itself.
ModelSpec Larger(ModelSpec model, int64_t layers) {
  model.layers = layers;
  model.width = 128;
  model.heads = 4;
  model.vocab_size = 700;
  model.context = 128;
  model.dropout = 0;
  return model;
}

/// A pipeline with these blocks in its stages.
MeshCase Piped(const ModelSpec& model, const std::string& schedule, const std::vector<int64_t>& cut,
               const std::string& policy = "keep", int64_t chunks = 1) {
  MeshCase c = WithStages(CaseOf(model, "ring", 1, 1, policy), cut, schedule, chunks);
  c.job.train.steps = 2;
  c.job.train.log_every_steps = 10;
  c.job.train.eval_sequences = 1;
  c.plan.micro_batch = 1;
  c.plan.accumulation_steps = c.job.train.global_batch = 6;
  return c;
}

/// Whether the first rank can make its model.
Status NewModelOf(const MeshCase& c) {
  ModelOptions options = ModelOptionsOf(c.plan);
  options.pipeline = PipelinePartOf(c.plan, 0, c.job.model.layers).value();
  Allocator allocator(0);
  Context context;
  context.allocator = &allocator;
  return NewModel(context, c.job.model, options).status();
}

void ExpectNear(const MemoryBreakdown& measured, const MemoryBreakdown& predicted) {
  const auto expect_near = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
    EXPECT_NEAR(static_cast<double>(measured.*bytes) / static_cast<double>(predicted.*bytes), 1,
                kShare)
        << what << ": predicted " << predicted.*bytes << ", measured " << measured.*bytes;
  };
  expect_near("parameters", &MemoryBreakdown::parameters_bytes);
  expect_near("gradients", &MemoryBreakdown::gradients_bytes);
  expect_near("optimizer", &MemoryBreakdown::optimizer_bytes);
  expect_near("activations", &MemoryBreakdown::activations_bytes);
  expect_near("workspace", &MemoryBreakdown::workspace_bytes);
}

/// The same whose stages do what these plans say.
MeshCase Scheduled(MeshCase c, const std::vector<RematPlan>& stages) {
  const RematPlan plan = OfStages(stages);
  c.plan.recompute_schedule = RematOperations(plan);
  c.plan.block_memory_policy = PoliciesOf(plan);
  return c;
}

std::vector<MeshOutcome> ExpectTakeWhatIsPredicted(const MeshCase& c) {
  SCOPED_TRACE(NameOf(c) + ", in " + std::to_string(c.plan.activation_bits) + " bits");
  const MemoryInputs inputs = InputsOf(c);
  const auto schedule = NamedSchedule(c.plan.pipeline_schedule, c.plan.mesh.pipeline,
                                      c.plan.pipeline_chunks, c.plan.accumulation_steps);
  EXPECT_TRUE(schedule.ok());
  auto predicted = PredictPipelineRanks(inputs, c.plan.stage_blocks, *schedule);
  // Operands that are widened for one product are the kernels' own, which no allocator counts.
  MemoryInputs unwidened = inputs;
  unwidened.products = ProductKind::kNative;
  const auto counted = PredictPipelineRanks(unwidened, c.plan.stage_blocks, *schedule);
  for (size_t stage = 0; stage < counted.size(); ++stage) {
    predicted[stage].workspace_bytes = counted[stage].workspace_bytes;
  }
  const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const size_t stage = rank / (ranks.size() / predicted.size());
    SCOPED_TRACE("stage " + std::to_string(stage));
    ExpectNear(ranks[rank].reports.back().peak_memory, predicted[stage]);
  }
  return ranks;
}

TEST(PipelineMemory, OfEveryScheduleAndPolicyIsWhatIsPredicted) {
  const ModelSpec model = Larger(Gpt2Model(), 5);
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    for (const char* policy : {"keep", "attention", "recompute"}) {
      ExpectTakeWhatIsPredicted(Piped(model, schedule, {3, 2}, policy));
    }
  }
  const ModelSpec deep = Larger(LlamaModel(), 8);
  ExpectTakeWhatIsPredicted(Piped(deep, "zero_bubble", {2, 2, 2, 2}));
  ExpectTakeWhatIsPredicted(Piped(deep, "interleaved", {3, 2, 2, 1}, "keep", 2));
  ExpectTakeWhatIsPredicted(Piped(deep, "interleaved", {3, 2, 2, 1}, "recompute", 2));
}

TEST(PipelineMemory, OfCodesAndSegmentsIsWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model(), 5), llama = Larger(LlamaModel(), 5);
  for (const auto& [schedule, policy] : {std::pair{"gpipe", "keep"},
                                         {"zero_bubble", "keep"},
                                         {"zero_bubble", "attention"},
                                         {"1f1b", "recompute"}}) {
    MeshCase c = Piped(llama, schedule, {3, 2}, policy);
    c.plan.precision = c.job.train.precision = "bf16";
    c.plan.activation_bits = 4;
    ExpectTakeWhatIsPredicted(c);
  }
  // Each alone: the two together are refused.
  MeshCase compressed = Piped(gpt2, "zero_bubble", {3, 2}, "recompute"), segments = compressed;
  compressed.plan.activation_bits = 2;
  ExpectTakeWhatIsPredicted(compressed);
  segments.plan.recompute_segment = 2;
  ExpectTakeWhatIsPredicted(segments);
}

TEST(PipelineMemory, OfFp8IsWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model(), 5), llama = Larger(LlamaModel(), 5);
  const auto in_fp8 = [](MeshCase c, int64_t bf16_first = 0, int64_t bf16_last = 0) {
    c.plan.precision = c.job.train.precision = "fp8";
    c.job.train.fp8 = {
        .history = 100, .bf16_first_blocks = bf16_first, .bf16_last_blocks = bf16_last};
    return c;
  };
  for (const ModelSpec& model : {gpt2, llama}) {
    for (const auto& [schedule, policy] : {std::pair{"gpipe", "keep"},
                                           {"1f1b", "recompute"},
                                           {"zero_bubble", "keep"},
                                           {"zero_bubble", "attention"}}) {
      ExpectTakeWhatIsPredicted(in_fp8(Piped(model, schedule, {3, 2}, policy)));
    }
  }
  // A stage has none of the blocks with FP8 operands but one, another all of them.
  ExpectTakeWhatIsPredicted(in_fp8(Piped(gpt2, "1f1b", {3, 2}), 2, 1));
  ExpectTakeWhatIsPredicted(
      in_fp8(Piped(Larger(LlamaModel(), 8), "interleaved", {3, 2, 2, 1}, "keep", 2), 1, 1));
}

TEST(PipelineMemory, OfAScheduleOfEachStageIsWhatIsPredictedWithTheNumbersOfPlainTraining) {
  using Kind = RematStep::Kind;
  const RematStep keep{Kind::kKeep, 0, 1, {}}, next{Kind::kKeep, 1, 1, {}},
      attention{Kind::kAttention, 1, 1, {}};
  const RematStep pair{Kind::kSegment, 0, 2, {keep, next}};
  const RematPlan nested = {{Kind::kSegment, 0, 3, {pair, {Kind::kKeep, 2, 1, {}}}}},
                  split = {{Kind::kSegment, 0, 1, {keep}}, attention},
                  mixed = {{Kind::kSegment, 0, 2, {keep, attention}}, {Kind::kKeep, 2, 1, {}}};
  const ModelSpec gpt2 = Larger(Gpt2Model(), 5), llama = Larger(LlamaModel(), 8);
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    const MeshCase c = Scheduled(Piped(gpt2, schedule, {3, 2}), {nested, split});
    MeshCase plain = c.Whole();
    plain.plan.recompute_schedule.clear();
    plain.plan.block_memory_policy.assign(5, "keep");
    ExpectFollows(ExpectTakeWhatIsPredicted(c), TrainOnMesh(plain).front(), 1e-6, 1e-5);
  }
  ExpectTakeWhatIsPredicted(Scheduled(Piped(llama, "interleaved", {3, 2, 2, 1}, "keep", 2),
                                      {mixed, split, {pair}, {keep}}));
  MeshCase c = Scheduled(Piped(gpt2, "1f1b", {3, 2}), {nested, split});
  c.plan.stage_blocks = {2, 3};
  EXPECT_THAT(NewModelOf(c).message(), ::testing::HasSubstr("with blocks of another stage"));
}

TEST(PipelineMemory, OfOtherBlocksIsWhatIsPredicted) {
  ModelSpec post = Larger(Gpt2Model(), 5), none = post, narrow = post;
  post.norm_position = "post";
  ExpectTakeWhatIsPredicted(Piped(post, "gpipe", {3, 2}, "recompute"));
  none.norm_position = "none";
  ExpectTakeWhatIsPredicted(Piped(none, "zero_bubble", {3, 2}));
  narrow.embedding_width = 64;
  ExpectTakeWhatIsPredicted(Piped(narrow, "zero_bubble", {3, 2}, "recompute"));
}

TEST(PipelineMemory, OfRanksThatShareMoreIsWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model(), 4), llama = Larger(LlamaModel(), 4);
  ExpectTakeWhatIsPredicted(WithTensor(Piped(llama, "zero_bubble", {2, 2}, "attention"), 2));
  ExpectTakeWhatIsPredicted(WithTensor(Piped(gpt2, "gpipe", {2, 2}, "recompute"), 2, true));
  ExpectTakeWhatIsPredicted(WithTensor(Piped(llama, "1f1b", {2, 2}), 2, true));
  ExpectTakeWhatIsPredicted(WithTensor(Piped(gpt2, "zero_bubble", {2, 2}), 2, true));
  MeshCase shared = Piped(llama, "zero_bubble", {2, 2});
  shared.plan.mesh.context = 2;
  ExpectTakeWhatIsPredicted(shared);
  MeshCase replicas = WithZero(Piped(gpt2, "1f1b", {2, 2}, "recompute"), 1);
  replicas.plan.mesh.data = 2;
  replicas.plan.accumulation_steps /= 2;
  ExpectTakeWhatIsPredicted(replicas);
}

}  // namespace
}  // namespace weft::engine
