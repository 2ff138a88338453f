// What an observer hears of while a step or an evaluation goes on.
#include "worker/engine/tensor/progress_observer.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

class Counter : public ProgressObserver {
 public:
  void OnProgress() override { ++parts; }
  void OnExchange(bool) override { ++exchanges; }
  int64_t parts = 0;
  int64_t exchanges = 0;
};

// A long step is one of many micro-batches, or of many layers.
TEST(ProgressObserver, HearsOfEachLayerOfEachPass) {
  constexpr int64_t kMicroBatches = 4;
  for (const char* policy : {"keep", "recompute"}) {
    SCOPED_TRACE(policy);
    RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
    Plan plan = TinyPlan("fp32", 2, kMicroBatches);
    plan.block_memory_policy = {policy, policy};
    TinyTraining run(TinyJob(2 * kMicroBatches), plan, tokens);
    Counter counter;
    run.context.observer = &counter;
    run.Step();
    EXPECT_GE(counter.parts, kMicroBatches * 2 * TinyModel().layers) << "forward and backward";
    EXPECT_EQ(counter.exchanges, 0);
  }
}

TEST(ProgressObserver, HearsOfTheBatchesOfAnEvaluation) {
  constexpr int64_t kBatches = 4;
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  JobSpec job = TinyJob(2);
  job.train.eval_sequences = 2 * kBatches;
  TinyTraining run(job, TinyPlan("fp32", 2), tokens);
  Counter counter;
  run.context.observer = &counter;
  ASSERT_TRUE(run.trainer->Evaluate().ok());
  EXPECT_GE(counter.parts, kBatches * TinyModel().layers);
}

}  // namespace
}  // namespace weft::engine
