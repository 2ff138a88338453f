// Tokenizer files that are damaged, or ask for what is not supported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/charsmap.h"
#include "common/formats/sentencepiece_file.h"
#include "common/formats/tiktoken.h"
#include "common/formats/tokenizer.h"
#include "common/formats/wordpiece.h"
#include "common/json.h"
#include "common/rng.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

const std::string kFolder = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/tokenizers/";

std::string Bytes(const std::string& name) {
  Result<std::string> bytes = ReadFile(Env::Posix(), kFolder + name);
  EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
  return *bytes;
}

std::string Damaged(const std::string& sound, PhiloxStream& random, int round) {
  std::string bytes = sound;
  if (round % 3 == 0) bytes.resize(random.Below(sound.size()));
  for (int flips = 0; flips < 3 && !bytes.empty(); ++flips) {
    bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
  }
  return bytes;
}

void Use(const Result<Tokenizer>& tokenizer) {
  if (!tokenizer.ok()) {
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalid);
    return;
  }
  std::vector<int32_t> ids;
  (void)tokenizer->Encode("Kalo the ﬁ½ mi東京, \xff 12!", ids);
  (void)tokenizer->Decode(ids);
}

TEST(DamagedTokenizerFiles, AreRefusedOrReadButNeverCrash) {
  PhiloxStream random({3, 1, 0});
  for (const char* name : {"bert.json", "t5.json", "unigram_bytes.json", "wordpiece_parts.json"}) {
    const std::string sound = Bytes(name);
    for (int round = 0; round < 300; ++round) {
      Use(Tokenizer::FromJson(Damaged(sound, random, round)));
    }
  }
  const std::string vocab = Bytes("bert.vocab.txt");
  const std::string ranks = Bytes("llama3/ranks.tiktoken");
  for (int round = 0; round < 300; ++round) {
    Result<std::string> json = WordPieceJson(Damaged(vocab, random, round));
    if (json.ok()) Use(Tokenizer::FromJson(*json));
    Result<TokenizerDefinition> definition =
        ParseTiktoken(Damaged(ranks, random, round), "\\s+|\\S+");
    if (definition.ok()) Use(Tokenizer::Create(*definition));
  }
  for (const char* name : {"unigram.model", "bpe.model"}) {
    const std::string sound = Bytes(name);
    for (int round = 0; round < 1500; ++round) {
      Use(Tokenizer::FromSentencePiece(Damaged(sound, random, round)));
    }
  }
}

TEST(DamagedTokenizerFiles, AnyCharacterMapIsBounded) {
  const Json t5 = *ParseJson(Bytes("t5.json"));
  const std::string map =
      *DecodeBase64(t5["normalizer"]["normalizers"][0]["precompiled_charsmap"].get<std::string>());
  PhiloxStream random({4, 0, 0});
  for (int round = 0; round < 3000; ++round) {
    Result<Charsmap> damaged = Charsmap::Parse(Damaged(map, random, round));
    if (!damaged.ok()) continue;
    for (const char* text : {"ﬁ½Ⅷ e\u0301 \u3000Ａ①…", "abc", ""}) (void)damaged->Apply(text);
  }
  EXPECT_FALSE(Charsmap::Parse("").ok());
  EXPECT_FALSE(Charsmap::Parse(std::string("\xff\xff\xff\xff", 4)).ok());
}

TEST(DamagedTokenizerFiles, SayWhatIsWrong) {
  auto piece = [](const std::string& text, char type) {
    std::string message = "\x0a" + std::string(1, static_cast<char>(text.size())) + text + "\x18";
    message += type;
    return "\x0a" + std::string(1, static_cast<char>(message.size())) + message;
  };
  EXPECT_TRUE(ParseSentencePiece(piece("<unk>", 2) + piece("a", 1)).ok());
  auto refusal = [](const std::string& bytes) {
    return ParseSentencePiece(bytes).status().message();
  };
  EXPECT_THAT(refusal(""), HasSubstr("no pieces"));
  EXPECT_THAT(refusal("hello world"), HasSubstr("no SentencePiece model"));
  EXPECT_THAT(refusal(piece("a", 1)), HasSubstr("one unknown token, not 0"));
  EXPECT_THAT(refusal(piece("<unk>", 2) + piece("<unk>", 1)), HasSubstr("twice"));
  EXPECT_THAT(refusal(piece("", 2)), HasSubstr("empty"));
  EXPECT_THAT(refusal(piece("<unk>", 9)), HasSubstr("kind 9"));

  // Its normalizer leaves spaces as they are.
  const std::string plain = piece("<unk>", 2) + std::string("\x1a\x02\x28\x00", 4);
  EXPECT_TRUE(ParseSentencePiece(plain).ok());
  EXPECT_THAT(ParseSentencePiece(plain, {.legacy = false}).status().message(),
              HasSubstr("legacy false"));

  EXPECT_THAT(WordPieceJson("[PAD]\n[UNK]\n[CLS]\na\n").status().message(), HasSubstr("[SEP]"));
  EXPECT_THAT(WordPieceJson("[UNK]\n[UNK]\n").status().message(), HasSubstr("twice"));
  EXPECT_THAT(WordPieceJson("[UNK]\n\xff\n").status().message(), HasSubstr("line 2"));

  EXPECT_FALSE(LooksLikeTiktoken("{\"version\":\"1.0\"}"));
  EXPECT_TRUE(LooksLikeTiktoken("IQ== 0\n"));
  EXPECT_THAT(ParseTiktoken("IQ== 0\nIg== 5000\n", "x").status().message(),
              HasSubstr("next rank, 1"));
  EXPECT_THAT(ParseTiktoken("IQ== 0\nIQ== 1\n", "x").status().message(), HasSubstr("line 2"));
  EXPECT_THAT(ParseTiktoken("IQ= 0\n", "x").status().message(), HasSubstr("line 1"));
}

TEST(TokenizerJson, NamesThePartsThatItDoesNotKnow) {
  struct Case {
    const char* file;
    const char* pointer;
    Json value;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"bert.json", "/normalizer/type", "Nmt", "the normalizer Nmt"},
      {"bert.json", "/normalizer/lowercase", 1, "lowercase must be"},
      {"bert.json", "/pre_tokenizer/type", "ByteLevel", "the pre_tokenizer ByteLevel"},
      {"bert.json", "/model/unk_token", "[NONE]", "\"[NONE]\" is not in the vocabulary"},
      {"bert.json", "/model/unk_token", nullptr, "unk_token"},
      {"bert.json", "/decoder/type", "Metaspace", "the decoder Metaspace"},
      {"bert.json", "/post_processor/single/0/SpecialToken/id", "[X]", "unknown special token"},
      {"bert.json", "/post_processor/special_tokens/[CLS]/ids/0", 9999, "not in the vocabulary"},
      {"bert.json", "/post_processor/single", 3, "must be a list"},
      {"bert.json", "/post_processor/pair/1/Sequence/id", "B", "another order"},
      {"bert.json", "/post_processor/type", "Other", "the post_processor Other"},
      {"t5.json", "/normalizer/normalizers/0/precompiled_charsmap", "!!!!", "not base64"},
      {"t5.json", "/normalizer/normalizers/1/pattern/Regex", "x+", "pattern \"x+\""},
      {"t5.json", "/pre_tokenizer/prepend_scheme", "last", "prepend_scheme"},
      {"t5.json", "/pre_tokenizer/replacement", "ab", "one character"},
      {"t5.json", "/model/unk_id", 100000, "unk_id"},
      {"t5.json", "/model/vocab/5", Json::array({"a"}), "string with a score"},
      {"t5.json", "/model/byte_fallback", true, "<0x00>"},
      {"qwen2.json", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(\\w+", "not closed"},
      {"qwen2.json", "/pre_tokenizer/pretokenizers/0/behavior", "Other", "behavior \"Other\""},
      {"qwen2.json", "/decoder/type", "Metaspace", "the decoder Metaspace"},
  };
  for (const Case& c : cases) {
    Json json = *ParseJson(Bytes(c.file));
    json[Json::json_pointer(c.pointer)] = c.value;
    Result<Tokenizer> tokenizer = Tokenizer::FromJson(json.dump());
    ASSERT_FALSE(tokenizer.ok()) << c.pointer;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(tokenizer.status().message(), HasSubstr(c.reason)) << c.pointer;
  }
}

TEST(DecodeBase64, KnowsItsPadding) {
  EXPECT_EQ(DecodeBase64("").value(), "");
  EXPECT_EQ(DecodeBase64("Zg==").value(), "f");
  EXPECT_EQ(DecodeBase64("Zm8=").value(), "fo");
  EXPECT_EQ(DecodeBase64("Zm9v").value(), "foo");
  EXPECT_EQ(DecodeBase64("+/+/").value(), "\xfb\xff\xbf");
  for (const char* text : {"Z", "Zg=", "Z===", "Zg==Zg==", "Zm9 ", "Zm9\n"}) {
    EXPECT_FALSE(DecodeBase64(text)) << text;
  }
}

}  // namespace
}  // namespace weft
