// FP8 training on meshes against that of one rank.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

MeshCase InFp8(const ModelSpec& model, const std::string& scaling = "delayed") {
  MeshCase c = CaseOf(model, "ring", 1, 1, "keep", "fp8");
  c.job.train.fp8.scaling = scaling;
  c.job.train.fp8.history = 4;
  return c;
}

ModelSpec Deep(ModelSpec model) {
  model.layers = 5;
  return model;
}

MeshCase Recomputed(MeshCase c, const std::string& policy) {
  c.plan.block_memory_policy.assign(c.plan.block_memory_policy.size(), policy);
  return c;
}

MeshCase WithBf16Blocks(MeshCase c, int64_t first, int64_t last) {
  c.job.train.fp8.bf16_first_blocks = first;
  c.job.train.fp8.bf16_last_blocks = last;
  return c;
}

std::vector<MeshOutcome> ExpectLikeOneRank(const MeshCase& c, double loss, double norms) {
  SCOPED_TRACE(NameOf(c) + ", " + c.job.train.fp8.scaling);
  const MeshOutcome whole = TrainOnMesh(c.Whole()).front();
  EXPECT_EQ(whole.state.tensors.contains("fp8/scales"), c.job.train.fp8.scaling == "delayed");
  std::vector<MeshOutcome> ranks = TrainOnMesh(c);
  ExpectFollows(ranks, whole, loss, norms);
  return ranks;
}

/// With steps so small that little follows from roundings.
MeshCase Gentle(MeshCase c) {
  c.job.optimizer.learning_rate = 1e-3;
  c.job.train.steps = 6;
  return c;
}

SavedState StateOf(const std::vector<MeshOutcome>& ranks) {
  SavedState state;
  for (const MeshOutcome& rank : ranks) state.Add(rank.state);
  return state;
}

/// Of a training whose sums are the same but that of the norm of all gradients, which changes
/// nothing without clipping.
void ExpectSameBits(MeshCase c) {
  c.job.train.gradient_clip_norm = 0;
  const std::vector<MeshOutcome> ranks = ExpectLikeOneRank(c, 1e-12, 1e-6);
  EXPECT_EQ(StateOf(ranks).tensors, TrainOnMesh(c.Whole()).front().state.tensors) << NameOf(c);
}

TEST(Fp8Meshes, StagesOfAPipelineHaveTheBitsOfOneRank) {
  const ModelSpec llama = Deep(LlamaModel());
  for (const char* scaling : {"delayed", "current"}) {
    ExpectSameBits(WithStages(InFp8(llama, scaling), {3, 2}, "1f1b"));
    ExpectSameBits(WithStages(InFp8(llama, scaling), {3, 2}, "zero_bubble"));
  }
  ExpectSameBits(WithStages(InFp8(llama), {2, 3}, "gpipe"));
  ExpectSameBits(WithStages(InFp8(llama), {1, 1, 2, 1}, "interleaved", 2));
  ExpectSameBits(WithStages(Recomputed(InFp8(llama), "recompute"), {2, 2, 1}, "1f1b"));
  ExpectSameBits(WithStages(Recomputed(InFp8(llama), "attention"), {3, 2}, "zero_bubble"));
  // Stages with some of the blocks that are left to bf16, or no others.
  ExpectSameBits(WithStages(WithBf16Blocks(InFp8(llama), 1, 1), {3, 2}, "1f1b"));
  ExpectSameBits(WithStages(WithBf16Blocks(InFp8(llama), 2, 1), {2, 2, 1}, "zero_bubble"));
}

TEST(Fp8Meshes, StagesThatShareATableFollowOneRank) {
  // Gradients of the table are added up in another order.
  const ModelSpec gpt2 = Deep(Gpt2Model());
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    ExpectLikeOneRank(WithStages(InFp8(gpt2), {2, 3}, schedule), 1e-5, 1e-4);
  }
}

// Each rank scales its chunks of the sequences by themselves in the first step, with current scales
// in all.
TEST(Fp8Meshes, RanksThatShareSequencesFollowOneRank) {
  for (const char* scaling : {"delayed", "current"}) {
    ExpectLikeOneRank(WithContext(Gentle(InFp8(Gpt2Model(), scaling)), 2), 2e-3, 2e-2);
    ExpectLikeOneRank(WithContext(Gentle(InFp8(LlamaModel(), scaling)), 2, "ulysses"), 2e-3, 2e-2);
  }
  MeshCase all = WithContext(WithStages(InFp8(Deep(LlamaModel())), {3, 2}, "zero_bubble"), 2);
  all.plan.mesh.data = 2;
  all.plan.accumulation_steps = 1;
  ExpectLikeOneRank(Gentle(all), 2e-3, 2e-2);
}

TEST(Fp8Meshes, WorkersThatRarelyMeetHaveScalesOfTheirOwn) {
  MeshCase c = Gentle(InFp8(Deep(LlamaModel())));
  c.plan.mesh.data = 2;
  c.plan.accumulation_steps = 1;
  c.job.train.local_steps = 3;
  c.job.train.gradient_clip_norm = 0;
  const SavedState workers = StateOf(TrainOnMesh(c));
  EXPECT_NE(workers.tensors.at("fp8/scales"), workers.tensors.at("rank/1/fp8/scales"));
  EXPECT_NE(workers.tensors.at("fp8/magnitudes"), workers.tensors.at("rank/1/fp8/magnitudes"));
  const SavedState stages = StateOf(TrainOnMesh(WithStages(c, {3, 2}, "1f1b")));
  EXPECT_EQ(stages.tensors, workers.tensors);
}

}  // namespace
}  // namespace weft::engine
