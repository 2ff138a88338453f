#include "common/formats/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "common/formats/bpe_trainer.h"
#include "common/formats/byte_alphabet.h"
#include "common/formats/vocab_and_merges.h"
#include "common/json.h"
#include "common/rng.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

const std::string kTestData = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/";

Json Golden() {
  Result<std::string> text = ReadFile(Env::Posix(), kTestData + "tokenizer_golden.json");
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  Result<Json> json = ParseJson(*text);
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  return *json;
}

Tokenizer Gpt2Part() {
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kTestData + "gpt2_part");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                         SpecialTokens special = SpecialTokens::kAsText) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.Encode(text, ids, special);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return ids;
}

std::string Text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Result<std::string> text = tokenizer.Decode(ids);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : "";
}

/// Bytes, or the UTF-8 of code points, in a random mix.
std::string RandomText(PhiloxStream& random) {
  std::string text;
  for (uint64_t left = random.Below(60); left > 0; --left) {
    switch (random.Below(4)) {
      case 0:
        text += static_cast<char>(random.Below(256));
        break;
      case 1:
        AppendUtf8(text, static_cast<char32_t>(random.Below(0x3000)));
        break;
      case 2:
        AppendUtf8(text, static_cast<char32_t>(0xe000 + random.Below(0x110000 - 0xe000)));
        break;
      default:
        text += "the ' 12\n\r  s"[random.Below(12)];
    }
  }
  return text;
}

std::vector<WordSplit> SplitsBy(std::string_view regex) {
  WordSplit split;
  split.kind = WordSplit::Kind::kRegex;
  split.regex = *SplitRegex::Compile(regex);
  return {split};
}

/// A sound small definition in which every test spoils something.
TokenizerDefinition Small() {
  TokenizerDefinition definition;
  for (int byte = 0; byte < 256; ++byte) {
    definition.tokens.push_back(BytesToAlphabet(std::string(1, static_cast<char>(byte))));
  }
  definition.tokens.push_back("ab");
  definition.splits = {Gpt2Split()};
  definition.merges.emplace_back("a", "b");
  definition.added.push_back({257, "<|endoftext|>", true});
  return definition;
}

TEST(Tokenizer, GivesTheIdsOfTheReferenceImplementation) {
  const Tokenizer tokenizer = Gpt2Part();
  const Json golden = Golden();
  ASSERT_GT(golden["encodings"].size(), 100u);
  for (const Json& item : golden["encodings"]) {
    const auto text = item["text"].get<std::string>();
    EXPECT_EQ(Ids(tokenizer, text), item["ids"].get<std::vector<int32_t>>()) << text;
  }
}

TEST(Tokenizer, CutsTextAsTheReferenceImplementationDoes) {
  const Json golden = Golden();
  for (auto [name, pattern] :
       {std::pair{"gpt2", SplitPattern::kGpt2}, std::pair{"llama3", SplitPattern::kCl100k}}) {
    ASSERT_GT(golden["splits"][name].size(), 200u);
    for (const Json& item : golden["splits"][name]) {
      const auto text = item["text"].get<std::string>();
      std::vector<std::string> pieces;
      for (size_t at = 0; at < text.size();) {
        size_t length = NextPiece(pattern, std::string_view(text).substr(at));
        ASSERT_GT(length, 0u);
        pieces.push_back(text.substr(at, length));
        at += length;
      }
      EXPECT_EQ(pieces, item["pieces"].get<std::vector<std::string>>()) << name << ": " << text;
    }
  }
}

TEST(Tokenizer, DecodesWhatItEncodedWhateverTheBytes) {
  PhiloxStream random({1, 0, 0});
  for (const std::vector<WordSplit>& splits :
       {std::vector<WordSplit>{Gpt2Split()}, SplitsBy(RegexOfPattern(SplitPattern::kCl100k)),
        SplitsBy(SplitRegex::kO200k), std::vector<WordSplit>()}) {
    for (bool ignore_merges : {false, true}) {
      Result<std::string> vocab = ReadFile(Env::Posix(), kTestData + "gpt2_part/vocab.json");
      Result<std::string> merges = ReadFile(Env::Posix(), kTestData + "gpt2_part/merges.txt");
      Result<TokenizerDefinition> definition = ParseVocabAndMerges(*vocab, *merges);
      ASSERT_TRUE(definition.ok()) << definition.status().ToString();
      definition->splits = splits;
      definition->ignore_merges = ignore_merges;
      Result<Tokenizer> tokenizer = Tokenizer::Create(*definition);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
      for (int round = 0; round < 2000; ++round) {
        const std::string text = RandomText(random);
        ASSERT_EQ(Text(*tokenizer, Ids(*tokenizer, text)), text);
      }
    }
  }
}

TEST(Tokenizer, TreatsSpecialTokensInTextAsPlainTextUnlessTold) {
  const Tokenizer tokenizer = Gpt2Part();
  const std::string text = "Hello<|endoftext|> world";
  ASSERT_TRUE(tokenizer.end_of_text());
  const int32_t end = *tokenizer.end_of_text();
  const std::vector<int32_t> plain = Ids(tokenizer, text);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(Text(tokenizer, plain), text);
  const std::vector<int32_t> parsed = Ids(tokenizer, text, SpecialTokens::kAsTokens);
  EXPECT_EQ(std::count(parsed.begin(), parsed.end(), end), 1);
  EXPECT_EQ(Text(tokenizer, parsed), text);
}

TEST(Tokenizer, MatchesTheLongestAddedTokenAndOnlyOutsideThem) {
  TokenizerDefinition definition = Small();
  definition.added.push_back({258, "cc", false});
  definition.added.push_back({259, "ccd", false});
  Result<Tokenizer> tokenizer = Tokenizer::Create(definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(Ids(*tokenizer, "abccdccab"), (std::vector<int32_t>{256, 259, 258, 256}));
}

TEST(Tokenizer, AddsThePrefixSpaceOnlyWhenTextHasNone) {
  TokenizerDefinition definition = Small();
  definition.splits.insert(definition.splits.begin(), {.kind = WordSplit::Kind::kPrefixSpace});
  Result<Tokenizer> tokenizer = Tokenizer::Create(definition);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(Ids(*tokenizer, "ab"), (std::vector<int32_t>{' ', 256}));
  EXPECT_EQ(Ids(*tokenizer, " ab"), (std::vector<int32_t>{' ', 256}));
  EXPECT_EQ(Ids(*tokenizer, ""), (std::vector<int32_t>{}));
}

TEST(Tokenizer, EncodesAMegabyteWithoutABreakInTime) {
  TokenizerDefinition definition = Small();
  definition.tokens.resize(256);
  definition.merges.clear();
  definition.added.clear();
  std::string token = "a";
  for (int i = 0; i < 10; ++i) {
    definition.merges.emplace_back(token, token);
    token += token;
    definition.tokens.push_back(token);
  }
  Result<Tokenizer> tokenizer = Tokenizer::Create(definition);
  ASSERT_TRUE(tokenizer.ok());
  // Counts processor time, so that other work on the machine does not matter.
  const auto time = [&](size_t bytes) {
    const std::clock_t start = std::clock();
    const std::vector<int32_t> ids = Ids(*tokenizer, std::string(bytes, 'a'));
    EXPECT_EQ(ids, std::vector<int32_t>(bytes / 1024, 265));
    return static_cast<double>(std::clock() - start);
  };
  const double sixteenth = time(1 << 16);
  // Quadratic time would be 256 times as much.
  EXPECT_LT(time(1 << 20), 100 * sixteenth);
}

TEST(Tokenizer, GivesTheSameIdsForTextCutWhereItSaysSo) {
  const Tokenizer tokenizer = Gpt2Part();
  PhiloxStream random({2, 0, 0});
  for (int round = 0; round < 500; ++round) {
    std::string text = RandomText(random) + "hello world" + RandomText(random);
    const size_t cut = tokenizer.SafeCut(text, random.Below(text.size()));
    std::vector<int32_t> ids = Ids(tokenizer, std::string_view(text).substr(0, cut));
    ASSERT_TRUE(tokenizer.Encode(std::string_view(text).substr(cut), ids).ok());
    ASSERT_EQ(ids, Ids(tokenizer, text));
  }
  EXPECT_EQ(tokenizer.SafeCut("hello world", 0), 5u);
  EXPECT_EQ(tokenizer.SafeCut("hello", 0), 5u);
  EXPECT_EQ(tokenizer.SafeCut("", 0), 0u);
}

TEST(TokenizerJson, ReadsBackWhatItWrites) {
  for (const std::string& regex : {std::string(RegexOfPattern(SplitPattern::kGpt2)),
                                   std::string(SplitRegex::kO200k), std::string()}) {
    TokenizerDefinition definition = Small();
    definition.splits.clear();
    if (regex == SplitRegex::kO200k) {
      definition.ignore_merges = true;
      definition.normalizer = {NormalForm::kNfc};
    } else {
      definition.splits.push_back({.kind = WordSplit::Kind::kPrefixSpace});
    }
    if (!regex.empty()) definition.splits.push_back(SplitsBy(regex)[0]);
    Result<TokenizerDefinition> again = ParseTokenizerJson(WriteTokenizerJson(definition));
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->tokens, definition.tokens);
    EXPECT_EQ(again->merges, definition.merges);
    EXPECT_EQ(again->ignore_merges, definition.ignore_merges);
    EXPECT_EQ(again->normalizer.size(), definition.normalizer.size());
    ASSERT_EQ(again->splits.size(), definition.splits.size());
    for (size_t i = 0; i < again->splits.size(); ++i) {
      EXPECT_EQ(again->splits[i].kind, definition.splits[i].kind);
    }
    EXPECT_TRUE(regex.empty() || again->splits.back().regex->regex() == regex);
    ASSERT_EQ(again->added.size(), 1u);
    EXPECT_EQ(again->added[0], definition.added[0]);
  }
}

TEST(TokenizerJson, RefusesWhatItCannotDoAndNamesIt) {
  const Json sound = *ParseJson(WriteTokenizerJson(Small()));
  auto spoiled = [&](const char* pointer, const Json& value) {
    Json json = sound;
    json[Json::json_pointer(pointer)] = value;
    return ParseTokenizerJson(json.dump());
  };
  struct Case {
    const char* pointer;
    Json value;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"/version", "2.0", "version \"2.0\""},
      {"/normalizer", {{"type", "Nmt"}}, "normalizer Nmt"},
      {"/normalizer", 3, "normalizer of no type"},
      {"/decoder", {{"type", "WordPiece"}}, "decoder WordPiece"},
      {"/post_processor", {{"type", "Other"}}, "post_processor Other"},
      {"/pre_tokenizer", nullptr, "decoder ByteLevel"},
      {"/pre_tokenizer", {{"type", "Other"}}, "pre_tokenizer Other"},
      {"/pre_tokenizer", {{"type", "Sequence"}}, "no list"},
      {"/pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Split"}}, 1}}},
       "Split"},
      {"/pre_tokenizer/use_regex", 1, "use_regex must be true or false"},
      {"/model/type", "WordLevel", "model WordLevel"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/byte_fallback", 1, "byte_fallback"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/vocab", Json::array(), "vocabulary"},
      {"/model/vocab/x1", -1, "whole numbers"},
      {"/model/vocab/x1", 1.5, "whole numbers"},
      {"/model/vocab/x1", 1u << 24, "whole numbers"},
      {"/model/vocab/x1", 7, "share the id 7"},
      {"/model/merges", nullptr, "list of merges"},
      {"/model/merges/0", "ab", "not two tokens"},
      {"/model/merges/0", "a b c", "not two tokens"},
      {"/model/merges/0", Json::array({"a"}), "merge 0"},
      {"/model", nullptr, "no model"},
      {"/added_tokens", 1, "must be a list"},
      {"/added_tokens/0", 1, "an id and a content"},
      {"/added_tokens/0/id", -1, "an id and a content"},
      {"/added_tokens/0/content", "", "empty content"},
      {"/added_tokens/0/single_word", 1, "single_word"},
  };
  for (const Case& c : cases) {
    Result<TokenizerDefinition> definition = spoiled(c.pointer, c.value);
    ASSERT_FALSE(definition.ok()) << c.pointer << " " << c.value;
    EXPECT_EQ(definition.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(definition.status().message(), HasSubstr(c.reason));
  }
  for (const char* text : {"", "[]", "null", "3", "{\"version\":\"1.0\"}", "{"}) {
    EXPECT_EQ(ParseTokenizerJson(text).status().code(), StatusCode::kInvalid) << text;
  }
  EXPECT_TRUE(spoiled("/truncation", {{"max_length", 50}}).ok());
  Result<TokenizerDefinition> pairs = spoiled("/model/merges/0", Json::array({"a", "b"}));
  ASSERT_TRUE(pairs.ok());
  EXPECT_EQ(pairs->merges[0].second, "b");
}

TEST(TokenizerJson, SurvivesDamagedFiles) {
  const std::string sound = WriteTokenizerJson(Small());
  PhiloxStream random({3, 0, 0});
  for (int round = 0; round < 1500; ++round) {
    std::string text = sound.substr(0, round % 3 == 0 ? random.Below(sound.size()) : sound.size());
    for (int flips = 0; flips < 3 && !text.empty(); ++flips) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    Result<TokenizerDefinition> definition = ParseTokenizerJson(text);
    if (definition.ok()) (void)Tokenizer::Create(*definition);
  }
}

TEST(Tokenizer, RefusesDefinitionsThatContradictThemselves) {
  auto message = [](const TokenizerDefinition& definition) {
    Result<Tokenizer> tokenizer = Tokenizer::Create(definition);
    return tokenizer.ok() ? "fine" : tokenizer.status().message();
  };
  EXPECT_EQ(message(Small()), "fine");
  TokenizerDefinition definition = Small();
  definition.merges.emplace_back("a", "c");
  EXPECT_THAT(message(definition), HasSubstr("not in the vocabulary"));
  definition = Small();
  definition.merges.emplace_back("a", "b");
  EXPECT_THAT(message(definition), HasSubstr("given twice"));
  definition = Small();
  definition.tokens.push_back("ab");
  EXPECT_THAT(message(definition), HasSubstr("twice"));
  definition = Small();
  definition.added[0].id = 3;
  EXPECT_THAT(message(definition), HasSubstr("has the id 3"));
  definition = Small();
  definition.added.push_back({257, "<pad>", true});
  EXPECT_THAT(message(definition), HasSubstr("has the id 257"));
}

TEST(Tokenizer, NamesTheIdItCannotDecode) {
  Result<Tokenizer> tokenizer = Tokenizer::Create(Small());
  ASSERT_TRUE(tokenizer.ok());
  for (int32_t id : {-1, 258}) {
    EXPECT_THAT(tokenizer->Decode(std::vector<int32_t>{id}).status().message(),
                HasSubstr("token " + std::to_string(id)));
  }
}

TEST(Tokenizer, SaysWhatAFolderMustHold) {
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kTestData + "nowhere");
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kNotFound);
  tokenizer = Tokenizer::Load(Env::Posix(), kTestData + "images");
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("vocab.json and merges.txt"));
}

TEST(BpeTrainer, FindsTheMergesOfTheReferenceImplementation) {
  const Json training = Golden()["training"];
  BpeTrainer trainer;
  trainer.Add(training["text"].get<std::string>());
  Result<TokenizerDefinition> definition = trainer.Train(training["vocab_size"].get<int64_t>());
  ASSERT_TRUE(definition.ok()) << definition.status().ToString();
  std::vector<std::string> merges;
  for (const auto& [left, right] : definition->merges) merges.push_back(left + " " + right);
  EXPECT_EQ(merges, training["merges"].get<std::vector<std::string>>());
  Result<Tokenizer> tokenizer = Tokenizer::Create(*definition);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(tokenizer->end_of_text(), tokenizer->vocab_size() - 1);
}

TEST(BpeTrainer, StopsAtTheAskedSizeOrWhenNoPairIsRepeated) {
  BpeTrainer trainer;
  trainer.Add("abab cdcd");
  Result<TokenizerDefinition> two = trainer.Train(259);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->merges.size(), 2u);
  EXPECT_EQ(two->added[0].id, 258);
  Result<TokenizerDefinition> all = trainer.Train(1000);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->merges.size(), 2u);
  EXPECT_EQ(trainer.Train(257)->merges.size(), 0u);
  for (int64_t size : {256, 0, -1, 1 << 24}) {
    EXPECT_EQ(trainer.Train(size).status().code(), StatusCode::kInvalid) << size;
  }
}

}  // namespace
}  // namespace weft
