// Context parallelism on larger meshes, against one rank and against what is predicted.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/pipeline_shape.h"
#include "common/model/rank_traffic.h"
#include "common/pipeline/named_schedule.h"
#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

void ExpectFollowOneRank(const std::vector<MeshCase>& cases) {
  for (const MeshCase& c : cases) {
    SCOPED_TRACE(NameOf(c));
    ExpectFollows(TrainOnMesh(c), TrainOnMesh(c.Whole()).front(), 1e-5, 5e-4);
  }
}

/// Large enough that what is small compared with it does not count.
ModelSpec Larger(ModelSpec model) {
  model.layers = 3;
  model.width = 128;
  model.vocab_size = 700;
  model.context = 256;
  return model;
}

void ExpectTakeAndSendWhatIsPredicted(const std::vector<MeshCase>& cases) {
  for (MeshCase c : cases) {
    SCOPED_TRACE(NameOf(c));
    c.job.train.steps = 2;
    c.job.train.log_every_steps = 10;
    const MemoryInputs inputs = InputsOf(c);
    const MemoryBreakdown predicted = CountedMemory(inputs);
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
    for (const MeshOutcome& own : ranks) {
      EXPECT_EQ(own.exchanged.sent_bytes + own.all_to_all.sent_bytes,
                2 * static_cast<double>(TrafficOfStep(inputs).context_sent));
    }
    const auto most_of = [&](int64_t MemoryBreakdown::*bytes) {
      int64_t most = 0;
      for (const MeshOutcome& own : ranks) {
        most = std::max(most, own.reports.back().peak_memory.*bytes);
      }
      return most;
    };
    const auto expect_near = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
      const int64_t most = most_of(bytes);
      EXPECT_NEAR(static_cast<double>(most) / static_cast<double>(predicted.*bytes), 1, 0.01)
          << what << ": predicted " << predicted.*bytes << ", measured " << most;
    };
    expect_near("parameters", &MemoryBreakdown::parameters_bytes);
    expect_near("gradients", &MemoryBreakdown::gradients_bytes);
    expect_near("optimizer", &MemoryBreakdown::optimizer_bytes);
    expect_near("activations", &MemoryBreakdown::activations_bytes);
    expect_near("workspace", &MemoryBreakdown::workspace_bytes);
    // Small messages need less than the most that a group keeps.
    EXPECT_LE(most_of(&MemoryBreakdown::communication_bytes), predicted.communication_bytes);
  }
}

TEST(ContextMeshes, RanksThatShareUpdatesFollowOneRank) {
  const ModelSpec gpt2 = Gpt2Model(), llama = LlamaModel();
  ExpectFollowOneRank({WithZero(CaseOf(gpt2, "ring", 2), 1),
                       WithZero(CaseOf(llama, "ulysses", 2), 2),
                       WithZero(CaseOf(gpt2, "ring", 2), 3), WithZero(CaseOf(llama, "ring", 4), 3),
                       WithZero(CaseOf(llama, "ring", 2, 2), 1, 2),
                       WithZero(CaseOf(gpt2, "ulysses", 2, 2, "attention"), 2),
                       WithZero(CaseOf(llama, "ring", 2, 2, "recompute"), 3),
                       WithZero(CaseOf(gpt2, "ring", 2, 2), 3, 2)});
}

TEST(ContextMeshes, RanksThatShareUpdatesTakeAndSendWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model()), llama = Larger(LlamaModel());
  ExpectTakeAndSendWhatIsPredicted(
      {WithZero(CaseOf(llama, "ring", 2), 1), WithZero(CaseOf(gpt2, "ulysses", 2, 2), 2),
       WithZero(CaseOf(gpt2, "ring", 2), 3), WithZero(CaseOf(llama, "ring", 2, 2, "recompute"), 3),
       WithZero(CaseOf(llama, "ulysses", 2, 2, "keep", "bf16"), 3, 2)});
}

TEST(ContextMeshes, RanksThatShareParametersHaveGradientsOfTwoUnitsWhateverIsFrozen) {
  for (const std::vector<std::string>& freeze :
       {std::vector<std::string>{"*.bias", "*.ln_*", "transformer.w*"},
        std::vector<std::string>{"transformer.h.1.*", "*.mlp.*"}}) {
    MeshCase c = WithZero(CaseOf(Larger(Gpt2Model()), "ring", 1, 2), 3);
    c.job.train.steps = 2;
    c.job.model.layers = 6;
    c.job.model.freeze = freeze;
    const auto predicted = static_cast<double>(CountedMemory(InputsOf(c)).gradients_bytes);
    for (const MeshOutcome& own : TrainOnMesh(c)) {
      EXPECT_NEAR(static_cast<double>(own.reports.back().peak_memory.gradients_bytes), predicted,
                  0.01 * predicted);
    }
  }
}

TEST(ContextMeshes, RanksThatShareMatricesFollowOneRank) {
  const ModelSpec gpt2 = Gpt2Model(), llama = LlamaModel();
  ExpectFollowOneRank({WithTensor(CaseOf(gpt2, "ring", 2), 2),
                       WithTensor(CaseOf(gpt2, "ulysses", 2), 2),
                       WithTensor(CaseOf(gpt2, "ring", 2, 2), 2, true),
                       // One head of keys on each rank, which two have then.
                       WithTensor(CaseOf(llama, "ulysses", 2), 2, true),
                       WithTensor(CaseOf(llama, "ring", 4, 1, "recompute"), 2),
                       WithTensor(WithZero(CaseOf(llama, "ring", 2, 1, "attention"), 3), 2, true)});
}

TEST(ContextMeshes, RanksThatShareMatricesTakeAndSendWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model()), llama = Larger(LlamaModel());
  ExpectTakeAndSendWhatIsPredicted({WithTensor(CaseOf(gpt2, "ring", 2), 2),
                                    WithTensor(CaseOf(llama, "ulysses", 2), 2),
                                    WithTensor(CaseOf(llama, "ring", 2, 1, "recompute", "bf16"), 2),
                                    WithTensor(WithZero(CaseOf(gpt2, "ring", 2), 3), 2)});
}

TEST(ContextMeshes, RanksInFp8TakeAndSendWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model()), llama = Larger(LlamaModel());
  ExpectTakeAndSendWhatIsPredicted({CaseOf(gpt2, "ring", 2, 1, "keep", "fp8"),
                                    CaseOf(llama, "ulysses", 2, 1, "attention", "fp8"),
                                    WithZero(CaseOf(llama, "ring", 2, 1, "recompute", "fp8"), 2)});
}

TEST(ContextMeshes, PartsInFp8TakeWhatIsPredicted) {
  ModelSpec gpt2 = Larger(Gpt2Model()), llama = Larger(LlamaModel());
  llama.mlp_width = 320;
  for (const bool sequence : {false, true}) {
    ExpectTakeAndSendWhatIsPredicted(
        {WithTensor(CaseOf(gpt2, "ring", 1, 1, "keep", "fp8"), 2, sequence),
         WithTensor(CaseOf(llama, "ring", 1, 1, "recompute", "fp8"), 2, sequence)});
  }
}

/// A model whose shards on two ranks are whole groups of quantised values.
ModelSpec Wide(ModelSpec model) {
  model.width = 256;
  if (model.family == "llama") model.mlp_width = 256;
  return model;
}

TEST(ContextMeshes, CodesOfPartsAreThoseOfOneRank) {
  const ModelSpec gpt2 = Wide(Gpt2Model()), llama = Wide(LlamaModel());
  std::vector<MeshCase> cases = {
      WithBits(WithTensor(CaseOf(gpt2, "ring", 1), 2), 2),
      WithBits(WithTensor(CaseOf(llama, "ring", 1, 1, "attention"), 2, true), 4),
      WithBits(WithGrid(CaseOf(gpt2, "ring", 1, 1, "recompute"), 2, 1), 4),
      WithBits(WithGrid(CaseOf(llama, "ring", 1), 2, 2), 2),
      WithBits(CaseOf(gpt2, "ring", 2, 1, "attention"), 4),
      WithBits(CaseOf(llama, "ulysses", 2, 2), 2),
      WithBits(WithTensor(CaseOf(llama, "ring", 2), 2), 8),
      WithBits(WithTensor(CaseOf(gpt2, "ulysses", 2, 1, "recompute"), 2, true), 4)};
  for (MeshCase& c : cases) {
    SCOPED_TRACE(NameOf(c));
    c.job.train.steps = 2;
    c.job.optimizer.learning_rate = 1e-3;
    const std::vector<StepReport> truth = TrainOnMesh(c.Whole()).front().reports;
    for (const MeshOutcome& own : TrainOnMesh(c)) {
      // With other random numbers these differ by a thousandth.
      EXPECT_NEAR(own.reports[0].gradient_norm / truth[0].gradient_norm, 1, 1e-5);
      // A value that is rounded elsewhere for its last bit is a step away, in 2 bits a third of
      // all.
      EXPECT_NEAR(own.reports[1].gradient_norm / truth[1].gradient_norm, 1, 3e-4);
      EXPECT_NEAR(own.reports[1].loss, truth[1].loss, 1e-4);
    }
  }
}

TEST(ContextMeshes, CodesOfPartsTakeWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model()), llama = Larger(LlamaModel());
  ExpectTakeAndSendWhatIsPredicted(
      {WithBits(WithTensor(CaseOf(gpt2, "ring", 1), 2), 4),
       WithBits(WithTensor(CaseOf(llama, "ring", 1, 1, "recompute"), 2), 2),
       WithBits(CaseOf(llama, "ring", 2), 4),
       WithBits(CaseOf(gpt2, "ulysses", 2, 1, "attention"), 8),
       WithBits(WithTensor(CaseOf(gpt2, "ring", 2), 2), 2)});
}

/// Makes a model four blocks deep.
ModelSpec Deep(ModelSpec model) {
  model.layers = 4;
  return model;
}

TEST(ContextMeshes, StagesFollowOneRank) {
  const ModelSpec gpt2 = Deep(Gpt2Model()), llama = Deep(LlamaModel());
  ExpectFollowOneRank(
      {WithStages(CaseOf(gpt2, "ring", 2), {2, 2}, "1f1b"),
       WithStages(CaseOf(llama, "ulysses", 2), {3, 1}, "gpipe"),
       WithStages(CaseOf(gpt2, "ring", 2), {1, 1, 1, 1}, "interleaved", 2),
       WithStages(CaseOf(llama, "ring", 2), {2, 2}, "zero_bubble"),
       WithStages(WithZero(CaseOf(gpt2, "ring", 2, 2, "recompute"), 1), {2, 2}, "1f1b"),
       WithTensor(WithStages(CaseOf(llama, "ring", 2), {2, 2}, "1f1b"), 2, true)});
}

TEST(ContextMeshes, AllKindsOfRanksFollowOneRank) {
  MeshCase c = WithZero(CaseOf(Deep(LlamaModel()), "ring", 2, 2), 1);
  c.job.train.steps = 4;
  ExpectFollowOneRank({WithTensor(WithStages(c, {2, 2}, "1f1b"), 2, true)});
}

TEST(ContextMeshes, StagesTakeAndSendWhatIsPredicted) {
  for (const MeshCase& base :
       {WithStages(CaseOf(Deep(Larger(Gpt2Model())), "ring", 2), {2, 2}, "1f1b"),
        WithStages(CaseOf(Deep(Larger(LlamaModel())), "ulysses", 2), {2, 2}, "gpipe")}) {
    SCOPED_TRACE(NameOf(base));
    MeshCase c = base;
    c.job.train.steps = 2;
    c.job.train.log_every_steps = 10;
    c.plan.micro_batch = 1;
    c.plan.accumulation_steps = 4;
    const MemoryInputs inputs = InputsOf(c);
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
    MemoryBreakdown fullest;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      MemoryInputs own = inputs;
      own.shape =
          ShapeOfStages(inputs.shape, c.plan.stage_blocks, 2, static_cast<int64_t>(rank) / 2);
      EXPECT_EQ(ranks[rank].exchanged.sent_bytes + ranks[rank].all_to_all.sent_bytes,
                2 * static_cast<double>(TrafficOfStep(own).context_sent));
      const MemoryBreakdown& peak = ranks[rank].reports.back().peak_memory;
      if (TotalBytes(peak) > TotalBytes(fullest)) fullest = peak;
    }
    const auto schedule = NamedSchedule(c.plan.pipeline_schedule, 2, 1, c.plan.accumulation_steps);
    ASSERT_TRUE(schedule.ok());
    const MemoryBreakdown predicted = PredictPipelineMemory(inputs, c.plan.stage_blocks, *schedule);
    const auto expect_near = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
      EXPECT_NEAR(static_cast<double>(fullest.*bytes) / static_cast<double>(predicted.*bytes), 1,
                  0.01)
          << what << ": predicted " << predicted.*bytes << ", measured " << fullest.*bytes;
    };
    expect_near("parameters", &MemoryBreakdown::parameters_bytes);
    expect_near("gradients", &MemoryBreakdown::gradients_bytes);
    expect_near("optimizer", &MemoryBreakdown::optimizer_bytes);
    expect_near("activations", &MemoryBreakdown::activations_bytes);
    expect_near("workspace", &MemoryBreakdown::workspace_bytes);
  }
}

}  // namespace
}  // namespace weft::engine
