#include "worker/engine/data/batch_warmup.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace weft::engine {
namespace {

constexpr int64_t kFull = 12;

// Sequence s of step t has the one token 12 t + s.
class Numbers : public BatchSource {
 public:
  int64_t Sequences() const override { return 1000; }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    EXPECT_LE(first + count, kFull) << "within one batch of the source";
    Batch batch;
    for (int64_t s = first; s < first + count; ++s) {
      batch.tokens.push_back(static_cast<int32_t>(step * kFull + s));
    }
    return batch;
  }
};

TEST(BatchWarmupTest, EverySequenceComesOnceInOrderWhateverTheMicroBatch) {
  TrainSpec train;
  train.global_batch = kFull;
  train.batch_warmup_start = 4;
  train.batch_warmup_steps = 5;
  const BatchSchedule schedule(train);
  for (int64_t micro_batch : {1, 2, 4}) {
    BatchWarmup source(std::make_unique<Numbers>(), train);
    int32_t expected = 0;
    for (int64_t step = 0; step < 9; ++step) {
      for (int64_t first = 0; first < schedule.At(step); first += micro_batch) {
        auto batch = source.Get(step, first, micro_batch);
        ASSERT_TRUE(batch.ok());
        for (int32_t token : batch->tokens) ASSERT_EQ(token, expected++);
      }
    }
    EXPECT_EQ(expected, schedule.Before(9));
  }
}

}  // namespace
}  // namespace weft::engine
