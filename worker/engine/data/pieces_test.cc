#include "worker/engine/data/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kBegin = 900;
constexpr int32_t kEnd = 901;
const SequenceForm kSingle = {.begin = {kBegin}, .middle = {}, .end = {kEnd}};
const SequenceForm kPair = {.begin = {kBegin}, .middle = {kEnd}, .end = {kEnd}};

std::vector<Piece> Make(const TokenSpan& span, const SequenceForm& form, uint64_t length,
                        LongDocuments documents = LongDocuments::kCut, bool predicts_next = false) {
  Result<std::vector<Piece>> pieces = MakePieces(span, form, length, documents, predicts_next);
  EXPECT_TRUE(pieces.ok()) << pieces.status().ToString();
  return pieces.ok() ? *pieces : std::vector<Piece>{};
}

TEST(MakePieces, CutsOrShortensLongDocumentsBetweenTheirSpecialTokens) {
  const TokenSpan span =
      MakeSpan({{kBegin, 1, 2, 3, 4, 5, kEnd}, {kBegin, kEnd}, {kBegin, 6, 7, kEnd}});
  const std::vector<Piece> cut = Make(span, kSingle, 4);
  ASSERT_EQ(cut.size(), 4u);  // 1 2 | 3 4 | 5 | 6 7
  EXPECT_EQ(cut[0].first, (TokenRun{1, 2}));
  EXPECT_EQ(cut[2].first, (TokenRun{5, 1}));
  EXPECT_TRUE(cut[1].goes_on);
  EXPECT_FALSE(cut[2].goes_on);
  EXPECT_EQ(cut[3].first, (TokenRun{10, 2}));
  EXPECT_EQ(cut[3].document, 2u);
  const std::vector<Piece> whole = Make(span, kSingle, 4, LongDocuments::kShorten);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(whole[0].first, (TokenRun{1, 2}));
  EXPECT_EQ(whole[1].first.count, 0u) << "a document without text is still an example";
}

TEST(MakePieces, NumbersDocumentsInTheShardAndBearsCutOnes) {
  TokenSpan span = MakeSpan({{kBegin, 1, 2, kEnd}, {kBegin, 3, 4, kEnd}, {kBegin, 5, 6, kEnd}});
  span.first = 4;
  span.count = 6;  // the last document has lost its end
  const std::vector<Piece> pieces = Make(span, kSingle, 8);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].document, 1u);
  EXPECT_EQ(pieces[0].first, (TokenRun{1, 2}));
  EXPECT_EQ(pieces[1].first, (TokenRun{5, 1}));
}

TEST(MakePieces, LeavesOutALastTokenThatHasNothingToPredict) {
  const TokenSpan span = MakeSpan({{1, 2, 3, 4, 5}, {6}, {7, 8}});
  EXPECT_EQ(Make(span, {}, 4, LongDocuments::kCut, true).size(), 2u);
  EXPECT_EQ(Make(span, {}, 4, LongDocuments::kCut, false).size(), 4u);
}

TEST(MakePieces, ShortensTheLongerTextOfAPair) {
  for (uint64_t first = 0; first < 12; ++first) {
    for (uint64_t second = 0; second < 12; ++second) {
      for (uint64_t room = 0; room < 20; ++room) {
        uint64_t a = first, b = second;
        while (a + b > room) --(a > b ? a : b);
        EXPECT_EQ(ShortenPair(first, second, room), std::pair(a, b));
      }
    }
  }
  const TokenSpan span = MakeSpan({{kBegin, 1, 2, 3, kEnd, 4, kEnd}});
  const std::vector<Piece> pieces = Make(span, kPair, 6);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].first, (TokenRun{1, 2}));
  EXPECT_EQ(pieces[0].second, (TokenRun{5, 1}));
}

TEST(MakePieces, SaysWhatDoesNotFit) {
  const TokenSpan span = MakeSpan({{kBegin, 1, kEnd}});
  EXPECT_THAT(MakePieces(span, kSingle, 2, LongDocuments::kCut, false).status().message(),
              HasSubstr("no room"));
  EXPECT_THAT(MakePieces(span, kPair, 9, LongDocuments::kCut, false).status().message(),
              HasSubstr("not a pair"));
}

}  // namespace
}  // namespace weft::engine
