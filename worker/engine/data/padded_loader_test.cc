#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kNone = kernels::kIgnoreTarget;
constexpr int32_t kBegin = 900, kEnd = 901, kPad = 902, kMask = 903;
const SequenceForm kSingle = {.begin = {kBegin}, .middle = {}, .end = {kEnd}};
const MaskingVocabulary kVocabulary = {kMask, 1000, {kBegin, kEnd, kPad, kMask}};

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

/// Documents of these lengths, filled with their number.
TokenSpan Documents(const std::vector<int32_t>& lengths) {
  std::vector<std::vector<int32_t>> documents;
  for (size_t d = 0; d < lengths.size(); ++d) {
    documents.emplace_back(static_cast<size_t>(lengths[d]), static_cast<int32_t>(d));
  }
  return MakeSpan(documents);
}

TEST(PaddedLoader, CostsWhatTheWorkedExampleSays) {
  const TokenSpan span = Documents({14, 8, 5, 6, 7, 13, 9, 11, 4, 13, 12, 5});
  auto count = [&](Batching batching) {
    auto loader = Load(span, {.length = 14,
                              .global_batch = 4,
                              .shuffle = batching == Batching::kPadUniform,
                              .batching = batching});
    EXPECT_EQ(loader->Sequences(), 12);
    const PaddingCount counted = loader->CountPadding(4);
    int64_t tokens = 0, padding = 0;
    for (int64_t b = 0; b < 3; ++b) {
      const bool shuffled = batching == Batching::kPadUniform;
      const Batch batch = Get(*loader, shuffled ? b : 0, shuffled ? 0 : 4 * b, 4);
      tokens += batch.sequences * batch.length;
      padding += batch.padding_tokens;
    }
    EXPECT_EQ(tokens, counted.tokens);
    EXPECT_EQ(padding, counted.padding);
    EXPECT_EQ(tokens - padding, 107);
    return tokens;
  };
  EXPECT_EQ(count(Batching::kPadFixed), 168);
  EXPECT_EQ(count(Batching::kPadDynamic), 160);
  EXPECT_EQ(count(Batching::kPadUniform), 124);
}

TEST(PaddedLoader, GivesALanguageModelEachPieceWithItsTargets) {
  const TokenSpan span = MakeSpan({{1, 2, 3, 4, 5, 6}, {7, 8}});
  auto loader = Load(
      span,
      {.length = 4, .shuffle = false, .batching = Batching::kPadDynamic, .padding_token = kPad});
  const Batch batch = Get(*loader, 0, 0, 3);
  EXPECT_EQ(batch.length, 4);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 4, 5, 6, kPad, kPad, 7, 8, kPad, kPad));
  EXPECT_THAT(batch.targets,
              ElementsAre(2, 3, 4, 5, 6, kNone, kNone, kNone, 8, kNone, kNone, kNone));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(batch.sequence_starts, ElementsAre(0, 4, 6, 8, 10, 12));
  EXPECT_THAT(batch.lengths, ElementsAre(4, 2, 2));
  EXPECT_EQ(batch.target_count, 6);
  EXPECT_EQ(batch.padding_tokens, 4);
  EXPECT_EQ(batch.stride, 4);
  EXPECT_EQ(Get(*loader, 0, 1, 2).length, 2);
}

TEST(PaddedLoader, RoundsRowsUpButNotPastTheLength) {
  const TokenSpan span = Documents({3, 9, 14});
  auto loader = Load(
      span,
      {.length = 14, .shuffle = false, .batching = Batching::kPadDynamic, .length_multiple = 8});
  EXPECT_EQ(Get(*loader, 0, 0, 1).length, 8);
  EXPECT_EQ(Get(*loader, 0, 0, 2).length, 14);
  EXPECT_EQ(loader->CountPadding(1).tokens, 8 + 14 + 14);
}

TEST(PaddedLoader, TeachesTheSameTargetsWhateverTheChoice) {
  PhiloxStream random({4, 0, 0});
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 100; ++d) {
    documents.emplace_back();
    for (uint64_t t = 2 + random.Below(30); t > 0; --t) {
      documents.back().push_back(static_cast<int32_t>(random.Below(900)));
    }
  }
  const TokenSpan span = MakeSpan(documents);
  std::vector<std::map<std::pair<int32_t, int32_t>, int>> seen;
  for (Batching batching : {Batching::kPadFixed, Batching::kPadDynamic, Batching::kPadUniform}) {
    auto loader = Load(span, {.length = 32, .global_batch = 10, .batching = batching});
    ASSERT_EQ(loader->Sequences(), 100);
    seen.emplace_back();
    for (int64_t step = 0; step < 10; ++step) {
      for (int64_t first = 0; first < 10; first += 5) {
        const Batch batch = Get(*loader, step, first, 5);
        for (size_t i = 0; i < batch.tokens.size(); ++i) {
          if (batch.targets[i] != kNone) ++seen.back()[{batch.tokens[i], batch.targets[i]}];
        }
      }
    }
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

TEST(PaddedLoader, MasksTokensInsideTheSpecialOnes) {
  const TokenSpan span = MakeSpan({{kBegin, 1, 2, 3, 4, 5, kEnd}, {kBegin, 6, kEnd}});
  for (Batching batching : {Batching::kPadDynamic, Batching::kConcatenate, Batching::kBestFit}) {
    auto loader = Load(span, {.length = 5,
                              .global_batch = 2,
                              .shuffle = false,
                              .batching = batching,
                              .padding_token = kPad,
                              .objective = Objective::kMasked,
                              .form = kSingle,
                              .masking = {.probability = 0.5},
                              .vocabulary = kVocabulary});
    const Batch batch = Get(*loader, 0, 0, loader->Sequences());
    std::vector<int32_t> original = batch.tokens;
    std::vector<int32_t> rows;
    for (size_t i = 0; i < original.size(); ++i) {
      if (batch.targets[i] == kNone) continue;
      original[i] = batch.targets[i];
      rows.push_back(static_cast<int32_t>(i));
    }
    EXPECT_EQ(batch.target_rows, rows);
    EXPECT_EQ(batch.target_count, static_cast<int64_t>(rows.size()));
    EXPECT_GE(rows.size(), 2u);
    if (batching == Batching::kPadDynamic) {
      EXPECT_THAT(original, ElementsAre(kBegin, 1, 2, 3, kEnd,     //
                                        kBegin, 4, 5, kEnd, kPad,  //
                                        kBegin, 6, kEnd, kPad, kPad));
    } else if (batching == Batching::kConcatenate) {
      EXPECT_THAT(original, ElementsAre(kBegin, 1, 2, 3, 4, 5, kEnd, kBegin, 6, kEnd));
    }
  }
}

TEST(PaddedLoader, MasksEachEpochAnewAndEachRankAlike) {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 12; ++d) documents.emplace_back(20, d);
  const LoaderOptions options = {.length = 24,
                                 .global_batch = 4,
                                 .batching = Batching::kPadUniform,
                                 .objective = Objective::kMasked,
                                 .form = kSingle,
                                 .masking = {},
                                 .vocabulary = kVocabulary};
  auto one = Load(MakeSpan(documents), options);
  auto other = Load(MakeSpan(documents), options);
  std::map<int32_t, std::vector<std::vector<int32_t>>> by_document;
  for (int64_t step = 5; step >= 0; --step) {
    const Batch whole = Get(*one, step, 0, 4);
    const Batch half = Get(*other, step, 2, 2);
    const auto middle = static_cast<ptrdiff_t>(whole.tokens.size() / 2);
    EXPECT_TRUE(std::equal(half.tokens.begin(), half.tokens.end(), whole.tokens.begin() + middle));
    EXPECT_TRUE(
        std::equal(half.targets.begin(), half.targets.end(), whole.targets.begin() + middle));
    for (size_t row = 0; row < 4; ++row) {
      std::vector<int32_t> targets(whole.targets.begin() + static_cast<ptrdiff_t>(row * 22),
                                   whole.targets.begin() + static_cast<ptrdiff_t>(row * 22 + 22));
      by_document[*std::max_element(targets.begin(), targets.end())].push_back(targets);
    }
  }
  ASSERT_EQ(by_document.size(), 12u);
  int equal = 0;
  for (const auto& [document, rows] : by_document) {
    ASSERT_EQ(rows.size(), 2u) << "two epochs";
    equal += rows[0] == rows[1] ? 1 : 0;
  }
  EXPECT_LE(equal, 2);
}

TEST(PaddedLoader, ValidatesWithTheSameMasksEveryTimeHoweverItIsShared) {
  std::vector<std::vector<int32_t>> documents;
  for (int32_t d = 0; d < 12; ++d) documents.emplace_back(20, d);
  for (const Batching batching : {Batching::kPadFixed, Batching::kConcatenate}) {
    const LoaderOptions options = {.length = 24,
                                   .global_batch = 4,
                                   .shuffle = false,
                                   .batching = batching,
                                   .objective = Objective::kMasked,
                                   .form = kSingle,
                                   .masking = {},
                                   .vocabulary = kVocabulary};
    auto loader = Load(MakeSpan(documents), options);
    const int64_t count = loader->Sequences();
    const Batch whole = Get(*loader, 0, 0, count);
    EXPECT_GE(whole.target_count, count);
    auto again = Load(MakeSpan(documents), options);
    std::vector<int32_t> tokens, targets;
    for (int64_t s = 0; s < count; ++s) {
      const Batch one = Get(*again, 7, s, 1);
      tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
      targets.insert(targets.end(), one.targets.begin(), one.targets.end());
    }
    EXPECT_EQ(tokens, whole.tokens);
    EXPECT_EQ(targets, whole.targets);
  }
}

TEST(PaddedLoader, GivesLabelsAndTokenTypesOfPairs) {
  TokenSpan span = MakeLabelledSpan({{kBegin, 1, 2, kEnd, 3, kEnd},
                                     {kBegin, 4, kEnd, 5, 6, 7, 8, 9, kEnd},
                                     {kBegin, kEnd, 5, kEnd}},
                                    {2, 0, 1}, 3);
  const LoaderOptions options = {
      .length = 7,
      .shuffle = false,
      .batching = Batching::kPadDynamic,
      .padding_token = kPad,
      .objective = Objective::kClassification,
      .form = {.begin = {kBegin}, .middle = {kEnd}, .end = {kEnd}, .second_type = true}};
  const Batch batch = Get(*Load(span, options), 0, 0, 3);
  EXPECT_THAT(batch.tokens, ElementsAre(kBegin, 1, 2, kEnd, 3, kEnd, kPad,  //
                                        kBegin, 4, kEnd, 5, 6, 7, kEnd,     //
                                        kBegin, kEnd, 5, kEnd, kPad, kPad, kPad));
  EXPECT_THAT(batch.token_types, ElementsAre(0, 0, 0, 0, 1, 1, 0,  //
                                             0, 0, 0, 1, 1, 1, 1,  //
                                             0, 0, 1, 1, 0, 0, 0));
  EXPECT_THAT(batch.labels, ElementsAre(2, 0, 1));
  EXPECT_THAT(batch.targets, IsEmpty());
  EXPECT_EQ(batch.target_count, 3);
  // Held out from the middle of the shard: labels go by document.
  span.first = 6;
  span.count -= 6;
  EXPECT_THAT(Get(*Load(span, options), 0, 0, 2).labels, ElementsAre(0, 1));
}

TEST(PaddedLoader, RefusesLabelsAndPairsInAStream) {
  const TokenSpan plain = MakeSpan({{1, 2, 3, 4, 5, 6}});
  auto refusal = [&](const LoaderOptions& options) {
    return TokenLoader::Create(plain, options).status().message();
  };
  EXPECT_THAT(refusal({.length = 4, .objective = Objective::kClassification}),
              HasSubstr("one document a sequence"));
  EXPECT_THAT(refusal({.length = 4, .form = {.middle = {1}}}), HasSubstr("pairs of texts"));
  EXPECT_THAT(
      refusal(
          {.length = 4, .batching = Batching::kPadFixed, .objective = Objective::kClassification}),
      HasSubstr("needs labels"));
}

TEST(PaddedLoader, LeavesOutRowsWithNothingToPredict) {
  const int32_t unknown = 904;
  MaskingVocabulary vocabulary = kVocabulary;
  vocabulary.special_tokens.push_back(unknown);
  const TokenSpan span = MakeSpan({{kBegin, unknown, unknown, kEnd},
                                   {kBegin, 1, 2, kEnd},
                                   {kBegin, unknown, 3, kEnd},
                                   {kBegin, kEnd}});
  for (Batching batching : {Batching::kPadFixed, Batching::kPadDynamic, Batching::kPadUniform,
                            Batching::kBestFit, Batching::kConcatenate}) {
    LoaderOptions options = {.length = 4,
                             .shuffle = false,
                             .batching = batching,
                             .padding_token = kPad,
                             .objective = Objective::kMasked,
                             .form = kSingle,
                             .vocabulary = vocabulary};
    auto loader = Load(span, options);
    EXPECT_EQ(loader->Sequences(), 2);
    // A document without text is a row of its own only where whole documents are packed.
    EXPECT_EQ(loader->rows_left_out(), batching == Batching::kBestFit ? 2 : 1);
    std::vector<std::vector<int32_t>> texts;
    for (int64_t s = 0; s < 2; ++s) {
      const Batch batch = Get(*loader, 0, s, 1);
      EXPECT_GE(batch.target_count, 1);
      EXPECT_EQ(batch.lengths[0], 4);
      texts.push_back(batch.tokens);
      for (size_t i = 0; i < batch.tokens.size(); ++i) {
        if (batch.targets[i] != kNone) texts.back()[i] = batch.targets[i];
      }
    }
    EXPECT_THAT(texts, ::testing::UnorderedElementsAre(ElementsAre(kBegin, 1, 2, kEnd),
                                                       ElementsAre(kBegin, unknown, 3, kEnd)));
    const TokenSpan none = MakeSpan({{kBegin, unknown, unknown, kEnd}});
    EXPECT_THAT(TokenLoader::Create(none, options).status().message(),
                HasSubstr("nothing is left to predict"));
  }
}

}  // namespace
}  // namespace weft::engine
