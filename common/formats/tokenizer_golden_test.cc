// Tokenizer files of every kind, against what the reference implementations make of them
// (testdata/make_tokenizer_files.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/tokenizer.h"
#include "common/formats/utf8.h"
#include "common/json.h"
#include "common/rng.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

const std::string kFolder = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/tokenizers/";

Tokenizer Load(const std::string& name) {
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kFolder + name);
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

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, GivesTheIdsAndTextOfTheReferenceImplementation) {
  const Tokenizer tokenizer = Load(GetParam());
  Result<std::string> text = ReadFile(
      Env::Posix(), std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/tokenizer_files.json");
  ASSERT_TRUE(text.ok());
  std::string name = BaseName(GetParam());
  // A vocab.txt has the tokens of the tokenizer.json next to it.
  if (size_t at = name.find(".vocab.txt"); at != std::string::npos) name.replace(at, 10, ".json");
  const Json cases = (*ParseJson(*text))[name];
  ASSERT_GT(cases.size(), 100u);
  for (const Json& item : cases) {
    const auto sentence = item["text"].get<std::string>();
    const std::vector<int32_t> ids = Ids(tokenizer, sentence);
    EXPECT_EQ(ids, item["ids"].get<std::vector<int32_t>>()) << Json(sentence).dump();
    Result<std::string> decoded = tokenizer.Decode(ids);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, item["decoded"].get<std::string>()) << Json(sentence).dump();
  }
}

TEST_P(GoldenTokenizer, BearsAnyBytesAndGivesTheSameIdsWhereverItLetsTextBeCut) {
  const Tokenizer tokenizer = Load(GetParam());
  PhiloxStream random({8, 0, 0});
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (uint64_t left = random.Below(60); left > 0; --left) {
      if (random.Below(3) == 0) {
        text += static_cast<char>(random.Below(256));
      } else {
        text += "kalo mi  the Ka.tu1995,"[random.Below(23)];
      }
    }
    const std::vector<int32_t> ids = Ids(tokenizer, text);
    for (int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer.vocab_size());
    ASSERT_TRUE(tokenizer.Decode(ids).ok());
    const size_t cut = tokenizer.SafeCut(text, random.Below(text.size() + 1));
    std::vector<int32_t> parts = Ids(tokenizer, std::string_view(text).substr(0, cut));
    ASSERT_TRUE(tokenizer.Encode(std::string_view(text).substr(cut), parts).ok());
    ASSERT_EQ(parts, ids) << Quoted(text);
  }
}

TEST_P(GoldenTokenizer, ReadsBackItsContent) {
  const Tokenizer tokenizer = Load(GetParam());
  const std::string folder = ::testing::TempDir() + "tokenizer_" + BaseName(GetParam());
  ASSERT_TRUE(Env::Posix().CreateDirs(folder).ok());
  ASSERT_TRUE(WriteTokenizerFiles(Env::Posix(), folder, tokenizer.files()).ok());
  Result<Tokenizer> again = Tokenizer::Load(Env::Posix(), folder);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->hash(), tokenizer.hash());
  EXPECT_EQ(again->special_tokens(), tokenizer.special_tokens());
  EXPECT_EQ(again->form(false).begin, tokenizer.form(false).begin);
  EXPECT_EQ(again->form(true).end, tokenizer.form(true).end);
  for (const char* text : {"Kalo the mi, 12!", "é🙂 東京"}) {
    EXPECT_EQ(Ids(*again, text), Ids(tokenizer, text));
  }
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Files, GoldenTokenizer,
    ::testing::Values("bert.json", "bert_cased.json", "bert.vocab.txt", "bert_cased.vocab.txt",
                      "wordpiece_parts.json", "t5.json", "xlmr.json", "unigram_bytes.json",
                      "unigram.model", "bpe.model", "unigram_added", "defined_unigram.model",
                      "defined_bpe.model", "defined_spaces.model", "llama_first", "llama_no_prefix",
                      "t5_first", "llama2_chat", "llama2.json", "qwen2.json", "neox.json",
                      "smollm.json", "o200k.json", "possessive.json", "roberta", "llama3_chat",
                      "llama3/ranks.tiktoken", "cl100k/cl100k.tiktoken"),
    [](const auto& test) {
      std::string name = test.param;
      for (char& c : name) c = c == '.' || c == '/' ? '_' : c;
      return name;
    });

TEST(TokenizerFiles, SayWhichTokensSurroundTexts) {
  const Tokenizer bert = Load("bert.json");
  EXPECT_EQ(bert.kind(), "WordPiece");
  EXPECT_EQ(bert.mask(), 4);
  EXPECT_EQ(bert.padding(), 0);
  EXPECT_FALSE(bert.end_of_text());
  EXPECT_THAT(bert.special_tokens(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(bert.form(false).begin, ElementsAre(2));
  EXPECT_THAT(bert.form(false).end, ElementsAre(3));
  EXPECT_THAT(bert.form(true).middle, ElementsAre(3));
  EXPECT_TRUE(bert.form(true).second_type);
  const Tokenizer vocab = Load("bert.vocab.txt");
  EXPECT_EQ(vocab.form(true).begin, bert.form(true).begin);
  EXPECT_TRUE(vocab.form(true).second_type);
  EXPECT_EQ(vocab.mask(), 4);

  const Tokenizer xlmr = Load("xlmr.json");
  EXPECT_EQ(xlmr.kind(), "Unigram");
  EXPECT_THAT(xlmr.form(true).middle, ElementsAre(2, 2));
  EXPECT_FALSE(xlmr.form(true).second_type);
  EXPECT_EQ(xlmr.end_of_text(), 2);
  EXPECT_EQ(xlmr.mask(), 180);
  const Tokenizer t5 = Load("t5.json");
  EXPECT_THAT(t5.form(true).begin, ElementsAre());
  EXPECT_THAT(t5.form(true).middle, ElementsAre(2));

  const Tokenizer piece = Load("unigram.model");
  EXPECT_EQ(piece.kind(), "SentencePiece");
  EXPECT_EQ(piece.end_of_text(), 2);
  EXPECT_EQ(piece.padding(), 3);
  EXPECT_THAT(piece.special_tokens(), ElementsAre(0, 1, 2, 3));

  const Tokenizer llama = Load("llama3/ranks.tiktoken");
  EXPECT_EQ(llama.vocab_size(), 370);
  EXPECT_EQ(llama.end_of_text(), 361);
  EXPECT_EQ(llama.padding(), 361);
  EXPECT_THAT(llama.form(false).begin, ElementsAre(360));
  EXPECT_THAT(llama.form(false).end, ElementsAre(361));
  EXPECT_THAT(llama.model_form(false).end, ElementsAre());
  EXPECT_EQ(*llama.Decode(std::vector<int32_t>{360, 361}), "<|begin_of_text|><|end_of_text|>");

  const Tokenizer llama2 = Load("llama2.json");
  EXPECT_EQ(llama2.kind(), "BPE");
  EXPECT_THAT(llama2.model_form(false).begin, ElementsAre(1));
  EXPECT_EQ(llama2.end_of_text(), 2);
  const Tokenizer chat = Load("llama2_chat");
  EXPECT_EQ(chat.kind(), "SentencePiece");
  EXPECT_THAT(chat.model_form(false).begin, ElementsAre(1));
  EXPECT_THAT(chat.roles().stops, ElementsAre(2, 421));
  EXPECT_THAT(chat.special_tokens(), ElementsAre(0, 1, 2, 421));
  EXPECT_THAT(Load("unigram_added").special_tokens(), ElementsAre(0, 1, 2, 3, 181));
  const Tokenizer roberta = Load("roberta");
  EXPECT_THAT(roberta.form(true).middle, ElementsAre(2, 2));
  EXPECT_EQ(roberta.mask(), 4);
  const Tokenizer llama3 = Load("llama3_chat");
  EXPECT_THAT(llama3.model_form(false).begin, ElementsAre(360));
  EXPECT_THAT(llama3.roles().stops, ElementsAre(365, 361, 364));
}

TEST(TokenizerFiles, TakeSpecialTokensFromTrustedTextOnly) {
  const Tokenizer bert = Load("bert.json");
  EXPECT_THAT(Ids(bert, "[MASK]", SpecialTokens::kAsTokens), ElementsAre(4));
  for (int32_t id : Ids(bert, "[MASK] [SEP]")) EXPECT_NE(id, 4);
  const Tokenizer t5 = Load("t5.json");
  // <mask> takes the spaces before it.
  EXPECT_EQ(Ids(t5, "ka  <mask>", SpecialTokens::kAsTokens), [&] {
    std::vector<int32_t> ids = Ids(t5, "ka");
    ids.push_back(*t5.mask());
    return ids;
  }());
  for (int32_t id : Ids(t5, "</s><mask>")) EXPECT_TRUE(id != 2 && id != *t5.mask());
}

TEST(TokenizerFiles, PutASpaceBeforeAWordThatContinuesAText) {
  for (const char* name : {"t5.json", "unigram.model", "bpe.model", "bert.json"}) {
    const Tokenizer tokenizer = Load(name);
    const std::vector<int32_t> ids = Ids(tokenizer, "the kalo");
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      text += *tokenizer.Decode(std::span(ids).subspan(i, 1), i == 0);
    }
    EXPECT_EQ(text, "the kalo") << name;
  }
}

}  // namespace
}  // namespace weft
