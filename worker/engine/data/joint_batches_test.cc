#include "worker/engine/data/joint_batches.h"

#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kIgnored = kernels::kIgnoreTarget;

/// Sequence s of step t has `length` tokens of value base + 10 t + s, and the same targets except
/// the first.
class Numbers : public BatchSource {
 public:
  Numbers(int32_t base, int64_t length, int64_t sequences = 1000)
      : base_(base), length_(length), sequences_(sequences) {}

  int64_t Sequences() const override { return sequences_; }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    Batch batch;
    batch.sequences = count;
    batch.length = length_;
    for (int64_t s = first; s < first + count; ++s) {
      batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
      for (int32_t at = 0; at < length_; ++at) {
        const auto token = static_cast<int32_t>(base_ + 10 * step + s);
        batch.tokens.push_back(token);
        batch.targets.push_back(at == 0 ? kIgnored : token);
        batch.positions.push_back(at);
      }
    }
    batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.target_count = count * (length_ - 1);
    return batch;
  }

 private:
  int32_t base_;
  int64_t length_;
  int64_t sequences_;
};

TEST(JointBatchesTest, EachPartIsWhatTheSourceGivesByItself) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  sources.push_back(std::make_unique<Numbers>(100, 2));
  sources.push_back(std::make_unique<Numbers>(200, 3));
  JointBatches joint(std::move(sources), JointBatches::AtEnd::kNone);
  EXPECT_EQ(joint.Sequences(), 2000);
  // The second micro-batch of four sequences, two of each.
  const auto batch = joint.Get(1, 4, 4);
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  EXPECT_EQ(batch->sequences, 4);
  EXPECT_EQ(batch->length, 3);
  EXPECT_THAT(batch->tokens, ElementsAre(112, 112, 0, 113, 113, 0, 212, 212, 212, 213, 213, 213));
  EXPECT_THAT(batch->targets, ElementsAre(kIgnored, 112, kIgnored, kIgnored, 113, kIgnored,
                                          kIgnored, 212, 212, kIgnored, 213, 213));
  EXPECT_THAT(batch->positions, ElementsAre(0, 1, 0, 0, 1, 0, 0, 1, 2, 0, 1, 2));
  // What fills up a row is a run of its own.
  EXPECT_THAT(batch->sequence_starts, ElementsAre(0, 2, 3, 5, 6, 9, 12));
  EXPECT_THAT(batch->lengths, ElementsAre(2, 2, 3, 3));
  EXPECT_THAT(batch->part_targets, ElementsAre(2, 4));
  EXPECT_EQ(batch->target_count, 6);
  EXPECT_EQ(batch->padding_tokens, 2);
}

TEST(JointBatchesTest, PastTheEndOfASourceRowsHaveNoTargets) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  sources.push_back(std::make_unique<Numbers>(100, 2, 1));
  sources.push_back(std::make_unique<Numbers>(200, 2, 3));
  sources.push_back(nullptr);
  JointBatches joint(std::move(sources), JointBatches::AtEnd::kBlankRows);
  EXPECT_EQ(joint.Sequences(), 9);
  const auto batch = joint.Get(0, 0, 6);
  ASSERT_TRUE(batch.ok()) << batch.status().message();
  EXPECT_THAT(batch->tokens, ElementsAre(100, 100, 0, 0, 200, 200, 201, 201, 0, 0, 0, 0));
  EXPECT_THAT(batch->part_targets, ElementsAre(1, 2, 0));
  EXPECT_THAT(batch->lengths, ElementsAre(2, 0, 2, 2, 0, 0));
  EXPECT_THAT(batch->sequence_starts, ElementsAre(0, 2, 4, 6, 8, 10, 12));
  const auto rest = joint.Get(0, 6, 3);
  ASSERT_TRUE(rest.ok());
  EXPECT_THAT(rest->part_targets, ElementsAre(0, 1, 0));
}

TEST(JointBatchesTest, WantsAsManySequencesOfEach) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  sources.push_back(std::make_unique<Numbers>(100, 2));
  sources.push_back(std::make_unique<Numbers>(200, 2));
  JointBatches joint(std::move(sources), JointBatches::AtEnd::kNone);
  EXPECT_THAT(joint.Get(0, 0, 3).status().message(), HasSubstr("as many of each of 2 jobs"));
}

}  // namespace
}  // namespace weft::engine
