// Ranks that share sequences, and more than those, against one rank and against what is predicted.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/rank_traffic.h"
#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

void ExpectFollowOneRank(const std::vector<MeshCase>& cases) {
  for (const MeshCase& c : cases) {
    SCOPED_TRACE(NameOf(c));
    const auto tensor = static_cast<size_t>(c.plan.mesh.tensor);
    ExpectFollows(TrainOnMesh(c), TrainOnMesh(c.Whole()).front(), 1e-5, 5e-4, tensor);
  }
}

/// Large enough that what is small beside it does not count.
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
    const auto expect_near = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
      int64_t most = 0;
      for (const MeshOutcome& own : ranks) {
        most = std::max(most, own.reports.back().peak_memory.*bytes);
      }
      EXPECT_NEAR(static_cast<double>(most) / static_cast<double>(predicted.*bytes), 1, 0.01)
          << what << ": predicted " << predicted.*bytes << ", measured " << most;
    };
    expect_near("parameters", &MemoryBreakdown::parameters_bytes);
    expect_near("gradients", &MemoryBreakdown::gradients_bytes);
    expect_near("optimizer", &MemoryBreakdown::optimizer_bytes);
    expect_near("activations", &MemoryBreakdown::activations_bytes);
    expect_near("workspace", &MemoryBreakdown::workspace_bytes);
    expect_near("communication", &MemoryBreakdown::communication_bytes);
  }
}

TEST(ContextMeshes, RanksThatShareUpdatesFollowOneRank) {
  const ModelSpec gpt2 = Gpt2Model(), llama = LlamaModel();
  ExpectFollowOneRank(
      {Zero(CaseOf(gpt2, "ring", 2), 1), Zero(CaseOf(llama, "ulysses", 2), 2),
       Zero(CaseOf(gpt2, "ring", 2), 3), Zero(CaseOf(llama, "ring", 4), 3),
       Zero(CaseOf(llama, "ring", 2, 2), 1, 2), Zero(CaseOf(gpt2, "ulysses", 2, 2, "attention"), 2),
       Zero(CaseOf(llama, "ring", 2, 2, "recompute"), 3), Zero(CaseOf(gpt2, "ring", 2, 2), 3, 2)});
}

TEST(ContextMeshes, RanksThatShareUpdatesTakeAndSendWhatIsPredicted) {
  const ModelSpec gpt2 = Larger(Gpt2Model()), llama = Larger(LlamaModel());
  ExpectTakeAndSendWhatIsPredicted(
      {Zero(CaseOf(llama, "ring", 2), 1), Zero(CaseOf(gpt2, "ulysses", 2, 2), 2),
       Zero(CaseOf(gpt2, "ring", 2), 3), Zero(CaseOf(llama, "ring", 2, 2, "recompute"), 3),
       Zero(CaseOf(llama, "ulysses", 2, 2, "keep", "bf16"), 3, 2)});
}

}  // namespace
}  // namespace weft::engine
