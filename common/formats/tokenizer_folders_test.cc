// Folders of tokenizers: the files next to one, the roles of its tokens, and kinds of tokenizers
// that only show in their parts. The expected ids follow from the few tokens that each has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/byte_alphabet.h"
#include "common/formats/tiktoken.h"
#include "common/formats/tokenizer.h"
#include "common/formats/unicode.h"
#include "common/formats/utf8.h"
#include "common/formats/wordpiece.h"
#include "common/json.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Files = std::map<std::string, std::string>;

const std::string kTokenizers =
    std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/tokenizers/";

/// A folder with these files, which goes at the end.
class Folder {
 public:
  explicit Folder(const Files& files)
      : path_(::testing::TempDir() + "tokenizer_folder_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    (void)Env::Posix().RemoveTree(path_);
    EXPECT_TRUE(Env::Posix().CreateDirs(path_).ok());
    for (const auto& [name, content] : files) {
      EXPECT_TRUE(WriteFileAtomic(Env::Posix(), JoinPath(path_, name), content).ok());
    }
  }
  ~Folder() { EXPECT_TRUE(Env::Posix().RemoveTree(path_).ok()); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  Result<Tokenizer> Load(const std::string& name = "") const {
    return Tokenizer::Load(Env::Posix(), name.empty() ? path_ : JoinPath(path_, name));
  }

 private:
  std::string path_;
};

Tokenizer Loaded(const Files& files, const std::string& name = "") {
  Result<Tokenizer> tokenizer = Folder(files).Load(name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

std::string Refusal(const Files& files, const std::string& name = "") {
  Result<Tokenizer> tokenizer = Folder(files).Load(name);
  EXPECT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalid);
  return tokenizer.status().message();
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                         SpecialTokens special = SpecialTokens::kAsText) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.Encode(text, ids, special);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return ids;
}

Json Added(int id, const char* content, bool special, bool normalized = false) {
  return {{"id", id},        {"content", content},       {"special", special},  {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"single_word", false}};
}

/// Byte-level BPE without merges: ids are bytes, in the order of the alphabet's bytes, and then
/// the tokens "<|endoftext|>", "</s>" and "<s>".
Json Bytes() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[BytesToAlphabet(std::string(1, static_cast<char>(byte)))] = byte;
  }
  return {
      {"version", "1.0"},
      {"added_tokens", {Added(256, "<|endoftext|>", true)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

/// Several special tokens; no name says which one ends a text.
Json ManySpecial() {
  Json json = Bytes();
  json["added_tokens"].push_back(Added(257, "</s>", true));
  json["added_tokens"].push_back(Added(258, "<s>", true));
  return json;
}

Json Template(const Json& before, const Json& after) {
  Json single = Json::array();
  Json special = Json::object();
  auto add = [&](const Json& token) {
    if (token.is_null()) return;
    const auto name = token[1].get<std::string>();
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    special[name] = {{"id", name}, {"ids", {token[0]}}, {"tokens", {name}}};
  };
  add(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(after);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 0}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

TEST(TokenRoles, ComeFromTheFilesBesideTheTokenizer) {
  const std::string tokenizer = ManySpecial().dump();
  EXPECT_THAT(Refusal({{"tokenizer.json", tokenizer}}),
              AllOf(HasSubstr("<|endoftext|>"), HasSubstr("</s>"), HasSubstr("eos_token")));
  const Tokenizer config = Loaded(
      {{"tokenizer.json", tokenizer},
       {"tokenizer_config.json",
        R"({"eos_token": {"content": "</s>"}, "pad_token": "<|endoftext|>", "bos_token": null})"}});
  EXPECT_EQ(config.end_of_text(), 257);
  EXPECT_EQ(config.padding(), 256);
  EXPECT_FALSE(config.roles().begin);
  EXPECT_THAT(config.form(false).end, ElementsAre(257));
  EXPECT_THAT(config.model_form(false).end, ElementsAre());
  const Tokenizer map = Loaded(
      {{"tokenizer.json", tokenizer}, {"special_tokens_map.json", R"({"eos_token": "<s>"})"}});
  EXPECT_EQ(map.end_of_text(), 258);
  const Tokenizer model = Loaded({{"tokenizer.json", tokenizer},
                                  {"config.json", R"({"eos_token_id": 257})"},
                                  {"generation_config.json", R"({"eos_token_id": [258, 257]})"}});
  EXPECT_EQ(model.end_of_text(), 258);
  EXPECT_THAT(model.roles().stops, ElementsAre(258, 257));
}

TEST(TokenRoles, BeginATextWhereTheTemplateOrTheConfigSaySo) {
  Json json = ManySpecial();
  json["post_processor"] = Template({258, "<s>"}, nullptr);
  const std::string config = R"({"bos_token": "<s>", "eos_token": "</s>"})";
  const Tokenizer tokenizer = Loaded({{"tokenizer.json", json.dump()},
                                      {"tokenizer_config.json", config},
                                      {"config.json", R"({"bos_token_id": 258})"}});
  EXPECT_EQ(tokenizer.roles().begin, 258);
  EXPECT_THAT(tokenizer.form(false).begin, ElementsAre(258));
  EXPECT_THAT(tokenizer.form(false).end, ElementsAre(257));
  EXPECT_THAT(tokenizer.model_form(false).end, ElementsAre());
  const Tokenizer flag =
      Loaded({{"tokenizer.json", ManySpecial().dump()},
              {"tokenizer_config.json",
               R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true})"}});
  EXPECT_THAT(flag.model_form(false).begin, ElementsAre(258));
}

TEST(TokenRoles, ThatFilesDisagreeOnAreRefusedWithTheNamesOfBoth) {
  const std::string tokenizer = ManySpecial().dump();
  auto refusal = [&](const char* config, const char* other, const char* content) {
    return Refusal(
        {{"tokenizer.json", tokenizer}, {"tokenizer_config.json", config}, {other, content}});
  };
  EXPECT_THAT(
      refusal(R"({"eos_token": "</s>"})", "special_tokens_map.json", R"({"eos_token": "<s>"})"),
      AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("special_tokens_map.json")));
  EXPECT_THAT(refusal(R"({"eos_token": "</s>"})", "config.json", R"({"eos_token_id": 256})"),
              AllOf(HasSubstr("tokenizer_config.json has the eos_token \"</s>\" (257)"),
                    HasSubstr("config.json has the eos_token_id 256")));
  EXPECT_THAT(Refusal({{"tokenizer.json", tokenizer},
                       {"config.json", R"({"eos_token_id": 256})"},
                       {"generation_config.json", R"({"eos_token_id": [257, 258]})"}}),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("config.json has")));
  EXPECT_THAT(refusal(R"({"eos_token": "<none>"})", "x", ""),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("<none>")));
  EXPECT_THAT(refusal(R"({"eos_token": "</s>"})", "generation_config.json",
                      R"({"eos_token_id": [257, 9999]})"),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("9999")));
  EXPECT_THAT(refusal(R"({"eos_token": "</s>", "add_bos_token": 3})", "x", ""),
              HasSubstr("add_bos_token must be true or false"));
  Json json = ManySpecial();
  json["post_processor"] = Template({258, "<s>"}, nullptr);
  EXPECT_THAT(Refusal({{"tokenizer.json", json.dump()},
                       {"tokenizer_config.json",
                        R"({"bos_token": "<|endoftext|>", "eos_token": "</s>"})"}}),
              AllOf(HasSubstr("post_processor of tokenizer.json"), HasSubstr("258"),
                    HasSubstr("tokenizer_config.json is 256")));
  EXPECT_THAT(Refusal({{"tokenizer.json", json.dump()},
                       {"tokenizer_config.json",
                        R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false})"}}),
              HasSubstr("add_bos_token false"));
}

TEST(TokenizerFolder, IsWrittenAndReadBackWithAllThatItsFilesSay) {
  const Tokenizer tokenizer = Loaded(
      {{"tokenizer.json", Bytes().dump()},
       {"tokenizer_config.json",
        R"({"eos_token": "<|im_end|>", "chat_template": "{{ messages }}", "tokenizer_class": "X",
            "model_input_names": ["input_ids"]})"},
       {"added_tokens.json", R"({"<|im_end|>": 300})"},
       {"config.json", R"({"eos_token_id": [300, 256], "hidden_size": 8})"}});
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_EQ(tokenizer.end_of_text(), 300);
  EXPECT_EQ(tokenizer.config().chat_template, "{{ messages }}");
  EXPECT_THAT(*tokenizer.config().model_input_names, ElementsAre("input_ids"));
  Files files;
  for (const TokenizerFile& file : tokenizer.files()) files[file.name] = file.content;
  EXPECT_EQ(files.size(), 3u);
  const Tokenizer again = Loaded(files);
  EXPECT_EQ(again.hash(), tokenizer.hash());
  EXPECT_EQ(again.roles().stops, tokenizer.roles().stops);
  EXPECT_EQ(again.config().chat_template, "{{ messages }}");
  EXPECT_EQ(Ids(again, "a<|im_end|>", SpecialTokens::kAsTokens), (std::vector<int32_t>{'a', 300}));
  EXPECT_EQ(Ids(again, "<|im_end|>").size(), 10u);
}

TEST(TokenizerFolder, AddsTokensToASentencePieceModel) {
  Result<std::string> model = ReadFile(Env::Posix(), kTokenizers + "unigram.model");
  ASSERT_TRUE(model.ok());
  const Tokenizer tokenizer = Loaded(
      {{"tokenizer.model", *model},
       {"tokenizer_config.json",
        R"({"tokenizer_class": "LlamaTokenizer", "eos_token": "<|im_end|>", "added_tokens_decoder":
            {"200": {"content": "<|im_start|>", "special": false}}})"},
       {"added_tokens.json", R"({"<|im_start|>": 200, "<|im_end|>": 201})"}});
  EXPECT_EQ(tokenizer.end_of_text(), 201);
  // The class adds <s>.
  EXPECT_THAT(tokenizer.model_form(false).begin, ElementsAre(1));
  EXPECT_EQ(Ids(tokenizer, "<|im_start|>"), std::vector<int32_t>{200});
  EXPECT_EQ(Ids(tokenizer, "<|im_end|>", SpecialTokens::kAsTokens), std::vector<int32_t>{201});
  EXPECT_EQ(*tokenizer.Decode(std::vector<int32_t>{200, 201}), "<|im_start|><|im_end|>");
  EXPECT_THAT(Refusal({{"tokenizer.model", *model}, {"added_tokens.json", R"({"<new>": 5})"}}),
              AllOf(HasSubstr("<new>"), HasSubstr("the id 5")));
  EXPECT_THAT(Refusal({{"tokenizer.model", *model},
                       {"added_tokens.json", R"({"<a>": 200})"},
                       {"tokenizer_config.json",
                        R"({"added_tokens_decoder": {"200": {"content": "<b>"}}})"}}),
              AllOf(HasSubstr("added_tokens.json"), HasSubstr("tokenizer_config.json")));
}

TEST(TokenizerFolder, PutsTheSpaceBeforeATextOfSentencePieceWhereTheConfigSays) {
  Result<std::string> model = ReadFile(Env::Posix(), kTokenizers + "bpe.model");
  ASSERT_TRUE(model.ok());
  auto pieces = [&](const std::string& switches, const std::string& text) {
    const Tokenizer tokenizer =
        Loaded({{"tokenizer.model", *model},
                {"tokenizer_config.json",
                 "{" + switches + R"("added_tokens_decoder": {"420": {"content": "<new>"}}})"}});
    std::string out;
    for (int32_t id : Ids(tokenizer, text)) out += *tokenizer.TokenOf(id) + " ";
    return out;
  };
  // Nothing said: as SentencePiece does with each text, and transformers with `legacy: true`.
  for (const char* legacy : {"", R"("legacy": true, )", R"("legacy": null, )"}) {
    EXPECT_EQ(pieces(legacy, "the<new>the"), "▁the <new> ▁the ");
    EXPECT_EQ(pieces(legacy, " the<new> the"), "▁ ▁the <new> ▁ ▁the ");
  }
  const std::string first = R"("legacy": false, )";
  EXPECT_EQ(pieces(first, "the<new>the"), "▁the <new> the ");
  EXPECT_EQ(pieces(first, " the<new> the"), "▁the <new> ▁the ");
  EXPECT_EQ(pieces(first, "<new>the"), "<new> the ");
  EXPECT_EQ(pieces(R"("add_prefix_space": false, )" + first, "the<new> the"), "the <new> ▁the ");
  EXPECT_EQ(pieces(R"("add_prefix_space": false, )", "the<new>the"), "the <new> the ");
  // A user-defined piece ends no text.
  EXPECT_EQ(pieces("", "a<tool>b"), "▁ a <tool> b ");
  EXPECT_EQ(pieces(first, "<tool> b"), "▁ <tool> ▁ b ");
  EXPECT_THAT(Refusal({{"tokenizer.model", *model}, {"tokenizer_config.json", R"({"legacy": 0})"}}),
              HasSubstr("legacy must be true or false"));
}

TEST(TokenizerFolder, TakesTheModelWhereTheJsonIsNotSupported) {
  Result<std::string> model = ReadFile(Env::Posix(), kTokenizers + "unigram.model");
  Result<std::string> json = ReadFile(Env::Posix(), kTokenizers + "t5.json");
  ASSERT_TRUE(model.ok() && json.ok());
  EXPECT_EQ(Loaded({{"tokenizer.json", *json}, {"spiece.model", *model}}).kind(), "Unigram");
  Json other = *ParseJson(*json);
  other["normalizer"] = {{"type", "Nmt"}};
  EXPECT_EQ(Loaded({{"tokenizer.json", other.dump()}, {"spiece.model", *model}}).kind(),
            "SentencePiece");
  // A damaged one is not passed over.
  EXPECT_THAT(Refusal({{"tokenizer.json", "{"}, {"spiece.model", *model}}),
              HasSubstr("tokenizer.json"));
  other = *ParseJson(*json);
  other["model"]["vocab"][7][0] = "other";
  EXPECT_THAT(Refusal({{"tokenizer.json", other.dump()}, {"spiece.model", *model}}),
              AllOf(HasSubstr("tokenizer.json and spiece.model disagree"), HasSubstr("token 7")));
}

TEST(TokenizerFolder, SaysThatAFileIsAPointerOfGitLfs) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.txt"}) {
    EXPECT_THAT(Refusal({{name, pointer}}), AllOf(HasSubstr("git lfs pull"), HasSubstr(name)));
  }
}

TEST(TokenizerFolder, FollowsTheSwitchesOfAVocabulary) {
  const std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\né\ne\nA\n中\n中中\n\n##b\n\n\n";
  const std::string lower = R"({"do_lower_case": true, "strip_accents": false})";
  const Tokenizer accents = Loaded({{"vocab.txt", vocab}, {"tokenizer_config.json", lower}});
  // The empty line in the middle has the id 10, those at the end have none.
  EXPECT_EQ(accents.vocab_size(), 12);
  EXPECT_EQ(Ids(accents, "A É e Ab"), (std::vector<int32_t>{4, 5, 6, 4, 11}));
  const std::string plain =
      R"({"do_lower_case": false, "tokenize_chinese_chars": false, "tokenizer_class": "BertTokenizer"})";
  const Tokenizer chinese = Loaded({{"vocab.txt", vocab}, {"tokenizer_config.json", plain}});
  EXPECT_EQ(Ids(chinese, "A é 中中"), (std::vector<int32_t>{7, 5, 9}));
  // And what was made of it agrees with them.
  Files files{{"tokenizer_config.json", lower}, {"tokenizer.json", chinese.content()}};
  EXPECT_THAT(Refusal(files), AllOf(HasSubstr("tokenizer_config.json has do_lower_case true"),
                                    HasSubstr("tokenizer.json says false")));
  EXPECT_THAT(
      Refusal({{"vocab.txt", vocab},
               {"tokenizer_config.json", R"({"tokenizer_class": "BertJapaneseTokenizer"})"}}),
      HasSubstr("BertJapaneseTokenizer"));
}

TEST(TokenizerFolder, SplitsAVocabularyWithMergesAsItsClassDoes) {
  Json vocab = Bytes()["model"]["vocab"];
  vocab["12"] = 256;
  vocab["<|endoftext|>"] = 257;
  const Files files{{"vocab.json", vocab.dump()}, {"merges.txt", "#version: 0.2\n1 2\n"}};
  auto with = [&](const char* config) {
    Files all = files;
    all["tokenizer_config.json"] = config;
    return all;
  };
  EXPECT_EQ(Ids(Loaded(files), "a12"), (std::vector<int32_t>{'a', 256}));
  const Tokenizer qwen =
      Loaded(with(R"({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"})"));
  // Each digit is a piece, and marks are composed.
  EXPECT_EQ(Ids(qwen, "a12e\u0301"), (std::vector<int32_t>{'a', '1', '2', 0xc3, 0xa9}));
  EXPECT_EQ(qwen.end_of_text(), 257);
  const Tokenizer spaced =
      Loaded(with(R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true})"));
  EXPECT_EQ(Ids(spaced, "a"), (std::vector<int32_t>{' ', 'a'}));
  EXPECT_THAT(Refusal(with(R"({"tokenizer_class": "CLIPTokenizer"})")), HasSubstr("CLIPTokenizer"));
}

TEST(TokenizerFolder, AsksForWhatRanksDoNotSay) {
  std::string ranks;
  // "a", "b", "ab", " ".
  ranks = "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\n";
  EXPECT_THAT(Refusal({{"own.tiktoken", ranks}}, "own.tiktoken"),
              AllOf(HasSubstr("r50k_base"), HasSubstr("pattern.txt"), HasSubstr("eos_token")));
  const Files files{{"own.tiktoken", ranks},
                    {"pattern.txt", "a|[^a]+\n"},
                    {"added_tokens.json", R"({"<end>": 7})"},
                    {"tokenizer_config.json", R"({"eos_token": "<end>"})"}};
  const Tokenizer tokenizer = Loaded(files, "own.tiktoken");
  EXPECT_EQ(Ids(tokenizer, "ab b"), (std::vector<int32_t>{0, 1, 3, 1}));
  EXPECT_EQ(tokenizer.end_of_text(), 7);
  EXPECT_THAT(
      Refusal({{"own.tiktoken", ranks}, {"pattern.txt", "\\p{N}{1,3}+|\\p{L}+"}}, "own.tiktoken"),
      HasSubstr("(?>X{1,3})"));
}

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
