#include "worker/engine/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kNone = kernels::kIgnoreTarget;

std::vector<int32_t> Counting(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::unique_ptr<TokenLoader> Load(const TokenSpan& span, const LoaderOptions& options) {
  Result<std::unique_ptr<TokenLoader>> loader = TokenLoader::Create(span, options);
  EXPECT_TRUE(loader.ok()) << loader.status().ToString();
  return *std::move(loader);
}

Batch Get(TokenLoader& loader, int64_t step, int64_t first, int64_t count) {
  Result<Batch> batch = loader.Get(step, first, count);
  EXPECT_TRUE(batch.ok());
  return *std::move(batch);
}

TEST(TokenLoader, CutsTheStreamAndTakesTargetsAcrossSequences) {
  auto loader = Load(MakeSpan({Counting(0, 6), Counting(6, 4)}),
                     {.length = 3, .global_batch = 1, .shuffle = false});
  ASSERT_EQ(loader->Sequences(), 3);
  const Batch batch = Get(*loader, 0, 0, 3);
  EXPECT_EQ(batch.tokens, Counting(0, 9));
  EXPECT_EQ(batch.targets, Counting(1, 9));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
  EXPECT_THAT(batch.sequence_starts, ElementsAre(0, 3, 6, 9));
  EXPECT_EQ(batch.target_count, 9);
  // Nine tokens leave no target for the third sequence.
  EXPECT_EQ(Load(MakeSpan({Counting(0, 9)}), {.length = 3, .shuffle = false})->Sequences(), 2);
}

TEST(TokenLoader, KeepsMaskedDocumentsApart) {
  auto loader = Load(MakeSpan({Counting(0, 2), Counting(2, 5), Counting(7, 1), Counting(8, 5)}),
                     {.length = 4, .shuffle = false, .mask_documents = true});
  const Batch batch = Get(*loader, 0, 0, 3);
  EXPECT_EQ(batch.tokens, Counting(0, 12));
  EXPECT_THAT(batch.targets, ElementsAre(1, kNone, 3, 4, 5, 6, kNone, kNone, 9, 10, 11, 12));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 0, 1, 0, 1, 2, 0, 0, 1, 2, 3));
  EXPECT_THAT(batch.sequence_starts, ElementsAre(0, 2, 4, 7, 8, 12));
  EXPECT_EQ(batch.target_count, 9);
}

TEST(TokenLoader, PacksWholeDocumentsAndPadsTheRest) {
  const TokenSpan span = MakeSpan({Counting(10, 3), Counting(20, 9), Counting(30, 2)});
  for (bool mask : {true, false}) {
    auto loader = Load(span, {.length = 6,
                              .shuffle = false,
                              .batching = Batching::kBestFit,
                              .mask_documents = mask,
                              .padding_token = 99});
    ASSERT_EQ(loader->Sequences(), 3);
    // Pieces 6 (of 20..28), 3 (26..28), 3 (10..12), 2 (30..31): 6 | 3 + 3 | 2.
    std::map<int32_t, Batch> by_first;
    for (int64_t s = 0; s < 3; ++s) {
      Batch batch = Get(*loader, 0, s, 1);
      by_first[batch.tokens[0]] = batch;
    }
    const Batch& whole = by_first[20];
    EXPECT_EQ(whole.tokens, Counting(20, 6));
    EXPECT_EQ(whole.targets, Counting(21, 6)) << "the cut document goes on";
    // Equal lengths go in the order of the data: document 0 before the rest of document 1.
    const Batch& pair = by_first[10];
    EXPECT_THAT(pair.tokens, ElementsAre(10, 11, 12, 26, 27, 28));
    EXPECT_THAT(pair.targets, ElementsAre(11, 12, mask ? kNone : 26, 27, 28, kNone));
    const Batch& rest = by_first[30];
    EXPECT_THAT(rest.tokens, ElementsAre(30, 31, 99, 99, 99, 99));
    EXPECT_THAT(rest.targets, ElementsAre(31, kNone, kNone, kNone, kNone, kNone));
    EXPECT_EQ(rest.target_count, 1);
    EXPECT_THAT(rest.sequence_starts, ElementsAre(0, 2, 6)) << "padding is a run of its own";
    EXPECT_THAT(rest.lengths, ElementsAre(2));
    EXPECT_EQ(rest.padding_tokens, 4);
    EXPECT_EQ(loader->CountPadding(2).tokens, 18);
    EXPECT_EQ(loader->CountPadding(2).padding, 4);
    if (mask) {
      EXPECT_THAT(pair.positions, ElementsAre(0, 1, 2, 0, 1, 2));
      EXPECT_THAT(pair.sequence_starts, ElementsAre(0, 3, 6));
    } else {
      EXPECT_THAT(pair.positions, ElementsAre(0, 1, 2, 3, 4, 5));
      EXPECT_THAT(pair.sequence_starts, ElementsAre(0, 6));
    }
  }
}

TEST(TokenLoader, ShowsEverySequenceOnceInEachEpochInANewOrder) {
  const TokenSpan span = MakeSpan({Counting(0, 61)});
  auto loader = Load(span, {.length = 2, .global_batch = 7, .seed = 3});
  ASSERT_EQ(loader->Sequences(), 30);
  std::vector<int32_t> order;
  for (int64_t step = 0; step * 7 < 90; ++step) {
    const Batch batch = Get(*loader, step, 0, 7);
    for (size_t s = 0; s < 7; ++s) order.push_back(batch.tokens[s * 2] / 2);
  }
  std::vector<std::vector<int32_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    epochs.emplace_back(order.begin() + epoch * 30, order.begin() + (epoch + 1) * 30);
    std::vector<int32_t> sorted = epochs.back();
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, Counting(0, 30));
    EXPECT_NE(epochs.back(), sorted);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  auto other = Load(span, {.length = 2, .global_batch = 7, .seed = 4});
  EXPECT_NE(Get(*other, 0, 0, 7).tokens, Get(*loader, 0, 0, 7).tokens);
}

TEST(TokenLoader, GivesTheSameGlobalBatchHoweverItIsSharded) {
  PhiloxStream random({6, 0, 0});
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < 40; ++d) {
    documents.push_back(Counting(d, static_cast<int32_t>(1 + random.Below(30))));
  }
  const TokenSpan span = MakeSpan(documents);
  for (Batching batching : {Batching::kConcatenate, Batching::kBestFit}) {
    const LoaderOptions options{
        .length = 16, .global_batch = 12, .seed = 1, .batching = batching, .mask_documents = true};
    auto one = Load(span, options);
    auto other = Load(span, options);
    for (int64_t step : {5, 0, 3}) {
      const Batch whole = Get(*one, step, 0, 12);
      std::vector<int32_t> tokens, targets, positions;
      int64_t target_count = 0;
      for (int64_t first = 0; first < 12; first += 4) {
        const Batch part = Get(*other, step, first, 4);
        tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
        targets.insert(targets.end(), part.targets.begin(), part.targets.end());
        positions.insert(positions.end(), part.positions.begin(), part.positions.end());
        target_count += part.target_count;
      }
      EXPECT_EQ(tokens, whole.tokens);
      EXPECT_EQ(targets, whole.targets);
      EXPECT_EQ(positions, whole.positions);
      EXPECT_EQ(target_count, whole.target_count);
    }
  }
}

TEST(TokenLoader, ReadsOnlyItsSpan) {
  TokenSpan span = MakeSpan({Counting(0, 10), Counting(10, 10), Counting(20, 10)});
  span.first = 5;
  span.count = 20;
  EXPECT_THAT(span.DocumentStarts(), ElementsAre(0, 5, 15, 20));
  auto loader = Load(span, {.length = 19, .shuffle = false, .mask_documents = true});
  const Batch batch = Get(*loader, 0, 0, 1);
  EXPECT_EQ(batch.tokens, Counting(5, 19));
  EXPECT_EQ(batch.targets[4], kNone);
  EXPECT_EQ(batch.targets[18], 24);
  auto packed = Load(span, {.length = 20, .shuffle = false, .batching = Batching::kBestFit});
  const Batch all = Get(*packed, 0, 0, 1);
  EXPECT_EQ(all.tokens.size(), 20u);
  EXPECT_EQ(*std::max_element(all.tokens.begin(), all.tokens.end()), 24);
}

TEST(TokenLoader, SaysWhenThereIsTooLittleData) {
  for (Batching batching : {Batching::kConcatenate, Batching::kBestFit}) {
    Result<std::unique_ptr<TokenLoader>> loader =
        TokenLoader::Create(MakeSpan({}), {.length = 4, .batching = batching});
    EXPECT_EQ(loader.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(loader.status().message(), HasSubstr("0 tokens, too few"));
  }
  EXPECT_FALSE(TokenLoader::Create(MakeSpan({Counting(0, 4)}), {.length = 4}).ok());
}

}  // namespace
}  // namespace weft::engine
