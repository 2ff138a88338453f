#include "worker/engine/data/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>

namespace weft::engine {
namespace {

/// Batches that say what was asked for; counts the calls, fails at step 9.
class FakeSource : public BatchSource {
 public:
  explicit FakeSource(std::atomic<int>& calls) : calls_(calls) {}
  int64_t Sequences() const override { return 42; }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    ++calls_;
    if (step == 9) return CorruptError("step nine");
    Batch batch;
    batch.tokens = {static_cast<int32_t>(step), static_cast<int32_t>(first),
                    static_cast<int32_t>(count)};
    return batch;
  }

 private:
  std::atomic<int>& calls_;
};

// The same in every step.
RangesOfStep Always(std::vector<SequenceRange> ranges) {
  return [ranges = std::move(ranges)](int64_t) { return ranges; };
}

TEST(Prefetcher, AnswersWhatIsAskedWhetherForeseenOrNot) {
  std::atomic<int> calls{0};
  Prefetcher prefetcher(std::make_unique<FakeSource>(calls), Always({{4, 2}, {6, 2}}));
  EXPECT_EQ(prefetcher.Sequences(), 42);
  auto ask = [&](int32_t step, int32_t first, int32_t count) {
    Result<Batch> batch = prefetcher.Get(step, first, count);
    ASSERT_TRUE(batch.ok());
    EXPECT_EQ(batch->tokens, (std::vector<int32_t>{step, first, count}));
  };
  for (int32_t step = 0; step < 5; ++step) {
    ask(step, 4, 2);
    ask(step, 6, 2);
  }
  EXPECT_LE(calls, 11) << "foreseen requests are computed once";
  ask(2, 4, 2);
  ask(0, 1, 3);
  ask(8, 6, 2);
  EXPECT_EQ(prefetcher.Get(9, 4, 2).status().code(), StatusCode::kCorrupt);
  ask(10, 4, 2);
}

TEST(Prefetcher, StopsWithoutHavingBeenAsked) {
  std::atomic<int> calls{0};
  { Prefetcher prefetcher(std::make_unique<FakeSource>(calls), Always({{0, 1}})); }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace weft::engine
