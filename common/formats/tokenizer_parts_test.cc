// Kinds of tokenizers that only show in their parts. The expected ids follow from the few tokens
// that each has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/tokenizer_testing.h"
#include "common/formats/unicode.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tokenizer_testing::Added;
using tokenizer_testing::Bytes;
using tokenizer_testing::Ids;
using tokenizer_testing::kTokenizers;
using tokenizer_testing::Template;

/// BPE over characters as Llama 2 has it: spaces are "▁", one comes before the text, and bytes
/// are fallen back on.
Json Llama2() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    vocab[std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">"] = 3 + byte;
  }
  int id = 259;
  for (const char* token : {"▁", "a", "b", "é", "ab", "▁ab"}) vocab[token] = id++;
  return {
      {"version", "1.0"},
      {"added_tokens", {Added(0, "<unk>", true), Added(1, "<s>", true), Added(2, "</s>", true)}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", Template({1, "<s>"}, nullptr)},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", {"a b", "▁ ab"}}}}};
}

TEST(CharacterBpe, FallsBackOnBytes) {
  Result<Tokenizer> tokenizer = Tokenizer::FromJson(Llama2().dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(tokenizer->kind(), "BPE");
  // "東" is e6 9d b1.
  const std::vector<int32_t> ids = Ids(*tokenizer, "ab aé東");
  EXPECT_EQ(ids, (std::vector<int32_t>{264, 259, 260, 262, 3 + 0xe6, 3 + 0x9d, 3 + 0xb1}));
  EXPECT_EQ(*tokenizer->Decode(ids), "ab aé東");
  EXPECT_EQ(*tokenizer->Decode(ids, /*at_start=*/false), " ab aé東");
  EXPECT_EQ(Ids(*tokenizer, "\xff"), (std::vector<int32_t>{259, 3 + 0xff}));
  EXPECT_THAT(tokenizer->form(false).begin, ElementsAre(1));
  EXPECT_THAT(tokenizer->form(false).end, ElementsAre(2));
  // Parts of a text are normalized each on its own, so it must not be cut.
  EXPECT_EQ(tokenizer->SafeCut("ab ab", 0), 5u);
}

TEST(CharacterBpe, GivesTheUnknownTokenOrSaysThatThereIsNone) {
  Json json = Llama2();
  json["model"]["byte_fallback"] = false;
  EXPECT_EQ(Ids(*Tokenizer::FromJson(json.dump()), "東京a東"),
            (std::vector<int32_t>{259, 0, 260, 0}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(Ids(*Tokenizer::FromJson(json.dump()), "東京"), (std::vector<int32_t>{259, 0, 0}));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ(Ids(*Tokenizer::FromJson(json.dump()), "東a"), (std::vector<int32_t>{259, 260}));
  json["model"]["unk_token"] = "<none>";
  std::vector<int32_t> ids;
  EXPECT_THAT(Tokenizer::FromJson(json.dump())->Encode("東", ids).message(), HasSubstr("<none>"));
}

TEST(ByteLevelBpe, LosesBytesWithoutATokenAsTheReferenceDoes) {
  Json json = Bytes();
  json["model"]["vocab"].erase("b");
  EXPECT_EQ(Ids(*Tokenizer::FromJson(json.dump()), "abc"), (std::vector<int32_t>{'a', 'c'}));
}

TEST(ByteLevelBpe, SplitsInStepsBeforeTheBytes) {
  Json json = Bytes();
  json["model"]["vocab"]["12"] = 300;
  json["model"]["vocab"]["Ġ1"] = 301;
  json["model"]["merges"] = {"1 2", "Ġ 1"};
  EXPECT_EQ(Ids(*Tokenizer::FromJson(json.dump()), "12 1"), (std::vector<int32_t>{300, 301}));
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}}, json["pre_tokenizer"]}}};
  const Tokenizer digits = *Tokenizer::FromJson(json.dump());
  EXPECT_EQ(Ids(digits, "12 1"), (std::vector<int32_t>{'1', '2', ' ', '1'}));
  EXPECT_EQ(digits.SafeCut("ab cd", 0), 2u);
}

TEST(AddedTokens, ThatAreNormalizedAreLookedForInNormalizedText) {
  Json json = Bytes();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"].push_back(Added(300, "MyBrand", false, /*normalized=*/true));
  json["added_tokens"].push_back(Added(301, "Raw", false));
  json["added_tokens"].push_back(Added(302, "word", false));
  json["added_tokens"].back()["single_word"] = true;
  const Tokenizer tokenizer = *Tokenizer::FromJson(json.dump());
  EXPECT_EQ(Ids(tokenizer, "MYbrand"), std::vector<int32_t>{300});
  EXPECT_EQ(Ids(tokenizer, "Raw"), std::vector<int32_t>{301});
  EXPECT_EQ(Ids(tokenizer, "RAW"), (std::vector<int32_t>{'r', 'a', 'w'}));
  EXPECT_EQ(Ids(tokenizer, "a word."), (std::vector<int32_t>{'a', ' ', 302, '.'}));
  EXPECT_EQ(Ids(tokenizer, "words").size(), 5u);
  EXPECT_EQ(Ids(tokenizer, "éword").size(), 6u);
}

TEST(AddedTokens, ThatAreNormalizedLoseCapitalsAndAccentsAsBertsTextDoes) {
  Json json = *ParseJson(*ReadFile(Env::Posix(), kTokenizers + "bert.json"));
  json["added_tokens"].push_back(Added(300, "MyBrand", false, /*normalized=*/true));
  json["added_tokens"].push_back(Added(301, "Ångström", false, /*normalized=*/true));
  const Tokenizer tokenizer = *Tokenizer::FromJson(json.dump());
  // What tokenizers 0.22 gives.
  EXPECT_EQ(Ids(tokenizer, "MYBRAND"), std::vector<int32_t>{300});
  EXPECT_EQ(Ids(tokenizer, "ÅNGSTRÖM"), std::vector<int32_t>{301});
  EXPECT_EQ(Ids(tokenizer, "A\u030angstrom mybrand"), (std::vector<int32_t>{301, 300}));
  std::vector<int32_t> expected = Ids(tokenizer, "an");
  expected.push_back(301);
  EXPECT_EQ(Ids(tokenizer, "an angstrom"), expected);
  expected = Ids(tokenizer, "東");
  expected.push_back(300);
  EXPECT_EQ(Ids(tokenizer, "東MyBrand"), expected);
}

TEST(AddedTokens, MayBeMany) {
  Json json = Bytes();
  for (int i = 0; i < 20000; ++i) {
    json["added_tokens"].push_back(
        Added(300 + i, ("<" + std::to_string(100000 + i) + ">").c_str(), false));
  }
  const Tokenizer tokenizer = *Tokenizer::FromJson(json.dump());
  std::string text(300000, '<');
  text += "<119999>";
  const std::vector<int32_t> ids = Ids(tokenizer, text);
  EXPECT_EQ(ids.size(), 300001u);
  EXPECT_EQ(ids.back(), 300 + 19999);
  json["added_tokens"].push_back(Added(90000, std::string(5000, 'x').c_str(), false));
  EXPECT_THAT(Tokenizer::FromJson(json.dump()).status().message(), HasSubstr("5000 bytes"));
}

TEST(UnigramModel, WithoutAnUnknownTokenLoadsAndSaysWhatItCannotEncode) {
  Json json = *ParseJson(*ReadFile(Env::Posix(), kTokenizers + "t5.json"));
  const Tokenizer with = *Tokenizer::FromJson(json.dump());
  json["model"]["unk_id"] = nullptr;
  Result<Tokenizer> without = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(without.ok()) << without.status().ToString();
  EXPECT_EQ(Ids(*without, "the kalo"), Ids(with, "the kalo"));
  std::vector<int32_t> ids;
  EXPECT_THAT(without->Encode("the 東", ids).message(),
              AllOf(HasSubstr("東"), HasSubstr("unknown token")));
}

TEST(NormalForm, SortsLongRunsOfMarksAndKeepsThoseOfOneClassInOrder) {
  // U+0301 and U+0300 are of class 230, U+0323 of 220.
  EXPECT_EQ(ToNormalForm("a\u0301\u0300\u0323", NormalForm::kNfd), "a\u0323\u0301\u0300");
  EXPECT_EQ(ToNormalForm("a\u0301\u0323", NormalForm::kNfc), "\u1ea1\u0301");
  EXPECT_EQ(ToNormalForm("\u1112\u1161\u11ab", NormalForm::kNfc), "\ud55c");
  EXPECT_EQ(ToNormalForm("\ufb01\u2460", NormalForm::kNfkc), "fi1");
  std::string marks = "a", sorted = "a";
  constexpr int kMarks = 200000;  // quadratic time would be minutes
  for (int i = 0; i < kMarks; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  for (int i = 0; i < kMarks; ++i) sorted += i < kMarks / 2 ? "\u0323" : "\u0301";
  EXPECT_EQ(ToNormalForm(marks, NormalForm::kNfd), sorted);
}

}  // namespace
}  // namespace weft
