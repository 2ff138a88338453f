// Phases on several ranks: each grows its part from the parts of the ranks before.
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

/// The network of `job` with parts for several ranks: four heads and blocks, and two of each where
/// a phase has half the sizes.
JobSpec OfFourBlocks(JobSpec job) {
  job.model.layers = job.model.heads = 4;
  job.model.width = 64;
  return job;
}

TEST_F(PhasesTest, RanksRaiseMasksTogether) {
  for (const char* name :
       {"zero-1", "zero-2", "zero-3", "tensor", "pipeline", "recomputed", "offloaded"}) {
    SCOPED_TRACE(name);
    CompareLast(Masked(), SpreadOf(name));
  }
}

TEST_F(PhasesTest, RanksMixTheirPartsOfTheLargerModelIn) {
  JobSpec job = OfFourBlocks(Job({Phase(2), Phase(3, "coalesce"), Phase(2, "decoalesce")}));
  job.phases[1].layers = 2;
  job.phases[1].width = 32;
  job.phases[2].growth.alpha = 0.5;
  ASSERT_TRUE(Run("one", job).ok());
  for (const char* name : {"zero-3", "tensor", "pipeline"}) {
    SCOPED_TRACE(name);
    CompareSpread(job, "one", name, SpreadOf(name), SpreadOf(name));
  }
}

TEST_F(PhasesTest, RanksGrowTheirPartsFromThoseOfOtherBlocks) {
  for (const char* method : {"aki", "sparkling", "stack"}) {
    SCOPED_TRACE(method);
    JobSpec job = OfFourBlocks(Job({Phase(2), Phase(3, method)}));
    const bool wider = method != std::string("stack"), deeper = method != std::string("sparkling");
    if (wider) job.phases[0].width = 32;
    if (deeper) job.phases[0].layers = 2;
    // That of sparkling is asymmetric.
    if (deeper) job.phases[1].growth.optimizer_state = "kept";
    const std::string one = std::string("one-") + method;
    ASSERT_TRUE(Run(one, job).ok());
    EXPECT_EQ(Manifest(one).updates, 5) << "the optimizer's state was grown";
    CompareSpread(job, one, std::string("tensor-") + method, SpreadOf("pipeline"),
                  SpreadOf("tensor"));
    CompareSpread(job, one, std::string("pipeline-") + method, SpreadOf("tensor"),
                  SpreadOf("pipeline"));
  }
}

TEST_F(PhasesTest, RanksLearnAGrowthTogether) {
  JobSpec job = Job({Phase(8), Phase(3, "ligo")});
  job.phases[0].layers = 1;
  job.phases[0].width = 16;
  job.phases[1].growth.fit_steps = 6;
  ASSERT_TRUE(Run("one", job).ok());
  RunLast("one", job, "shared", SpreadOf("data"));
  const RunSummary shared = Summary("shared"), one = Summary("one");
  EXPECT_NEAR(*shared.start_validation_loss_nats, *one.start_validation_loss_nats, 1e-4);
  EXPECT_NEAR(*shared.validation_loss_nats, *one.validation_loss_nats, 1e-4);
  EXPECT_EQ(shared.training_flops, one.training_flops);
}

TEST_F(PhasesTest, GrowthIsFromWhatRanksOfAnyMeshHaveSaved) {
  struct Meshes {
    const char* first;
    const char* last;
  };
  constexpr Meshes kMeshes[] = {{"zero-3", "data"},
                                {"tensor", "zero-3"},
                                {"pipeline", "tensor"},
                                {"zero-1", "zero-2"},
                                {"tensor-zero-1", "zero-1"}};
  for (const char* method : {"fpi", "decoalesce"}) {
    // From two heads and two blocks, so that its ranks have parts of the small model.
    JobSpec job = OfFourBlocks(Job({Phase(4), Phase(3, method)}));
    job.phases[0].layers = 2;
    job.phases[0].width = 32;
    job.phases[1].growth.alpha = 1;
    job.phases[1].growth.optimizer_state = "kept";
    const std::string one = std::string("one-") + method;
    ASSERT_TRUE(Run(one, job).ok());
    EXPECT_EQ(Manifest(one).updates, 7);
    for (const Meshes& meshes : kMeshes) {
      SCOPED_TRACE(std::string(method) + " from " + meshes.first + " to " + meshes.last);
      CompareSpread(job, one, std::string(meshes.first) + "-first-" + method,
                    SpreadOf(meshes.first), SpreadOf(meshes.last));
    }
  }
}

TEST_F(PhasesTest, RanksThatWereStoppedAfterGrowthGoOnBitForBit) {
  // A llama whose heads share keys and values, and a deeper and wider one.
  JobSpec job = VCycleOf("llama");
  job.phases = {Phase(2), Phase(4, "fpi")};
  job.phases[0].layers = 1;
  job.phases[0].width = 16;
  RunRanks("one", job, 0, kOneRank);
  for (const std::string name : {"tensor", "zero-3"}) {
    SCOPED_TRACE(name);
    const Spread& spread = SpreadOf(name);
    const std::string stopped = name + "-stopped";
    RunLast("one", job, name, spread);
    RunLast("one", job, stopped, spread, 2);
    EXPECT_EQ(Manifest(stopped).step, 2);
    EXPECT_FALSE(Env::Posix().FileExists(Folder(stopped) + "/summary.json"));
    RunLast("one", job, stopped, spread);
    EXPECT_EQ(Summary(stopped).resumed_from_step, 2);
    EXPECT_EQ(Read(stopped + "/loss.jsonl"), Read(name + "/loss.jsonl"));
    const engine::CheckpointManifest whole = Manifest(name), end = Manifest(stopped);
    EXPECT_EQ(end.step, 4);
    EXPECT_EQ(end.updates, 6) << "the optimizer's state was grown";
    ASSERT_EQ(end.files.size(), 2u) << "each rank has a part";
    for (size_t i = 0; i < end.files.size(); ++i) {
      EXPECT_EQ(end.files[i].xxh3_128, whole.files[i].xxh3_128) << end.files[i].name;
    }
  }
}

}  // namespace
}  // namespace weft::trainer
