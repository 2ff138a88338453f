// What a growth takes of the host's memory.
#include "worker/trainer/grown_state.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "worker/engine/testing/heap_peak.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/phases.h"
#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

/// The size of a growth.
struct GrowthMemory {
  int64_t most = 0;     ///< Bytes of the heap at its peak, without the model that is made.
  int64_t numbers = 0;  ///< Of that model,
  int64_t largest = 0;  ///< and of its largest tensor.
};

class GrowthMemoryTest : public PhasesTest {
 protected:
  /// Grows the model of the last phase of `job`, whose phases run `name` has trained.
  void Grow(const std::string& name, const JobSpec& job, GrowthMemory* memory) const {
    AttemptSpec whole;
    whole.run_dir = Folder(name);
    whole.job = job;
    AttemptSpec attempt = AttemptOfPhase(whole, PhaseCount(job) - 1);
    attempt.job = Manifest(name).job;
    engine::RandomTokens tokens(attempt.job.model.vocab_size, attempt.job.model.context);
    engine::TinyTraining run(attempt.job, engine::TinyPlan("fp32"), tokens);
    engine::HeapPeak peak;
    const auto start = GrowState(Env::Posix(), attempt, nullptr, *run.model, *run.trainer);
    memory->most = peak.Stop();
    ASSERT_TRUE(start.ok()) << start.status().message();
    EXPECT_EQ(start->updates, 1) << "the optimizer's state has grown";
    for (const engine::Parameter& parameter : run.model->parameters()) {
      const int64_t elements = parameter.shape.Elements();
      memory->numbers += elements;
      memory->largest = std::max(memory->largest, elements);
    }
  }
};

TEST_F(GrowthMemoryTest, OneTensorAtATimeIsThereAsNumbers) {
  if (engine::HeapPeak::InUse() == 0) GTEST_SKIP() << "a sanitizer has its own heap";
  JobSpec job = Job({Phase(1), Phase(1, "coalesce"), Phase(1, "decoalesce")});
  job.model.layers = 16;
  job.model.width = 128;
  job.phases[1].layers = 8;
  job.phases[1].width = 64;
  job.phases[2].growth.optimizer_state = "kept";
  ASSERT_TRUE(Run("cycle", job).ok());
  GrowthMemory memory;
  Grow("cycle", job, &memory);
  constexpr int64_t kFloat = 4, kRest = int64_t{1} << 20;
  EXPECT_GE(memory.most, kFloat * memory.largest);
  // The tensor of the larger model as it is read and in float64, the sum of both models in float64.
  EXPECT_LE(memory.most, 6 * kFloat * memory.largest + kRest);
  EXPECT_LT(3 * memory.most, kFloat * memory.numbers) << "the network is much larger";
}

}  // namespace
}  // namespace weft::trainer
