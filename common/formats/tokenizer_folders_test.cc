// Folders of tokenizers: the files next to one, and the roles of its tokens. The expected ids
// follow from the few tokens that each has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/tiktoken.h"
#include "common/formats/tokenizer_testing.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tokenizer_testing::Added;
using tokenizer_testing::Bytes;
using tokenizer_testing::Files;
using tokenizer_testing::Ids;
using tokenizer_testing::kTokenizers;
using tokenizer_testing::Loaded;
using tokenizer_testing::Refusal;
using tokenizer_testing::Template;

/// Several special tokens, "</s>" and "<s>" among them; no name says which one ends a text.
Json ManySpecial() {
  Json json = Bytes();
  json["added_tokens"].push_back(Added(257, "</s>", true));
  json["added_tokens"].push_back(Added(258, "<s>", true));
  return json;
}

TEST(TokenRoles, ComeFromTheFilesNextToTheTokenizer) {
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

TEST(TokenizerFolder, RefusesAModelWhoseClassGivesOtherIdsThanItsPieces) {
  const std::string model = *ReadFile(Env::Posix(), kTokenizers + "unigram.model");
  auto config = [](const std::string& name) {
    return "{\"tokenizer_class\": \"" + name + "\", \"eos_token\": \"</s>\"}";
  };
  // What transformers 4.57 moves, or changes the text for.
  for (const char* name : {"XLMRobertaTokenizer", "MBartTokenizerFast", "NllbTokenizer",
                           "CamembertTokenizer", "PegasusTokenizerFast", "AlbertTokenizer"}) {
    EXPECT_THAT(Refusal({{"spiece.model", model}, {"tokenizer_config.json", config(name)}}),
                AllOf(HasSubstr("tokenizer_config.json has the tokenizer_class \"" +
                                std::string(name) + "\""),
                      HasSubstr("spiece.model"), HasSubstr("AutoTokenizer")));
  }
  EXPECT_THAT(Refusal({{"spiece.model", model}, {"config.json", config("PegasusTokenizer")}}),
              HasSubstr(": config.json has the tokenizer_class \"PegasusTokenizer\""));
  // Without a class transformers takes that of the model_type.
  const auto typed = [](const std::string& type) { return "{\"model_type\": \"" + type + "\"}"; };
  for (const char* type :
       {"albert", "camembert", "mbart", "pegasus", "xglm", "xlm-roberta", "xlnet"}) {
    EXPECT_THAT(Refusal({{"spiece.model", model}, {"config.json", typed(type)}}),
                AllOf(HasSubstr("config.json has the model_type \"" + std::string(type) + "\""),
                      HasSubstr("spiece.model"), HasSubstr("AutoTokenizer")));
  }
  EXPECT_EQ(Loaded({{"spiece.model", model}, {"config.json", typed("llama")}}).kind(),
            "SentencePiece");
  EXPECT_EQ(Loaded({{"spiece.model", model},
                    {"config.json", typed("pegasus")},
                    {"tokenizer_config.json", config("T5Tokenizer")}})
                .kind(),
            "SentencePiece");
  EXPECT_THAT(
      Refusal({{"sentencepiece.bpe.model", model}}),
      AllOf(HasSubstr("models with a sentencepiece.bpe.model"), HasSubstr("AutoTokenizer")));
  EXPECT_THAT(
      Refusal({{"spiece.model", model}, {"tokenizer_config.json", R"({"do_lower_case": true})"}}),
      HasSubstr("do_lower_case true"));
  const Tokenizer plain = Loaded({{"spiece.model", model}});
  EXPECT_THAT(plain.model_form(false).end, ElementsAre());
  for (const char* name : {"T5Tokenizer", "MT5TokenizerFast"}) {
    const Tokenizer t5 = Loaded({{"spiece.model", model}, {"config.json", config(name)}});
    EXPECT_THAT(t5.model_form(false).end, ElementsAre(2));
    EXPECT_EQ(Ids(t5, "the kalo"), Ids(plain, "the kalo"));
    Files files;
    for (const TokenizerFile& file : t5.files()) files[file.name] = file.content;
    EXPECT_THAT(Loaded(files).model_form(false).end, ElementsAre(2));
  }
}

TEST(TokenizerFolder, TakesTheJsonWhereTheIdsOfTheModelAreOthers) {
  const std::string model = *ReadFile(Env::Posix(), kTokenizers + "unigram.model");
  Json json = *ParseJson(*ReadFile(Env::Posix(), kTokenizers + "xlmr.json"));
  // <s>, <pad>, </s>, <unk>, and each piece moved by one, as XLM-RoBERTa has them.
  Json& vocab = json["model"]["vocab"];
  vocab.erase(vocab.begin(), vocab.begin() + 4);
  const Json first =
      Json::array({{"<s>", 0.0}, {"<pad>", 0.0}, {"</s>", 0.0}, {"<unk>", 0.0}, {"zzzz", -20.0}});
  vocab.insert(vocab.begin(), first.begin(), first.end());
  json["model"]["unk_id"] = 3;
  json["added_tokens"] = {Added(0, "<s>", true), Added(1, "<pad>", true), Added(2, "</s>", true),
                          Added(3, "<unk>", true)};
  json["post_processor"] = Template({0, "<s>"}, nullptr);
  const Files files{{"tokenizer.json", json.dump()}, {"sentencepiece.bpe.model", model}};
  const Tokenizer tokenizer = Loaded(files);
  EXPECT_EQ(tokenizer.kind(), "Unigram");
  EXPECT_EQ(tokenizer.TokenOf(3), "<unk>");
  EXPECT_THAT(tokenizer.model_form(false).begin, ElementsAre(0));
  Files named{{"tokenizer.json", json.dump()}, {"spiece.model", model}};
  EXPECT_THAT(Refusal(named), HasSubstr("tokenizer.json and spiece.model disagree"));
  named["tokenizer_config.json"] = R"({"tokenizer_class": "PegasusTokenizer"})";
  EXPECT_EQ(Loaded(named).kind(), "Unigram");
  named.erase("tokenizer_config.json");
  named["config.json"] = R"({"model_type": "pegasus"})";
  EXPECT_EQ(Loaded(named).kind(), "Unigram");
  // Where the json is not supported the model is not read in its place.
  json["normalizer"] = {{"type", "Nmt"}};
  EXPECT_THAT(Refusal({{"tokenizer.json", json.dump()}, {"sentencepiece.bpe.model", model}}),
              HasSubstr("Nmt"));
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

TEST(TokenizerFolder, RefusesSwitchesThatTheJsonSetsOtherwise) {
  const std::string bert = *ReadFile(Env::Posix(), kTokenizers + "bert.json");
  auto refusal = [](const std::string& json, const std::string& key, const char* config,
                    const char* tokenizer) {
    EXPECT_THAT(Refusal({{"tokenizer.json", json},
                         {"tokenizer_config.json", "{\"" + key + "\": " + config + "}"}}),
                HasSubstr("tokenizer_config.json has " + key + " " + config +
                          ", but tokenizer.json says " + tokenizer));
  };
  refusal(bert, "do_lower_case", "false", "true");
  refusal(bert, "strip_accents", "false", "true");
  refusal(bert, "tokenize_chinese_chars", "false", "true");
  refusal(Bytes().dump(), "add_prefix_space", "true", "false");
  const std::string agreed =
      R"({"do_lower_case": true, "strip_accents": null, "tokenize_chinese_chars": true})";
  EXPECT_EQ(Loaded({{"tokenizer.json", bert}, {"tokenizer_config.json", agreed}}).kind(),
            "WordPiece");
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

TEST(TokenizerFolder, TakesSpecialTokensAsTheConfigHasThem) {
  // What transformers 4.57 saves of classes that are not fast has them normalized.
  auto decoder = [](const std::vector<std::pair<int, const char*>>& tokens) {
    Json json = Json::object();
    for (const auto& [id, content] : tokens) {
      json[std::to_string(id)] = Added(id, content, /*special=*/true, /*normalized=*/true);
    }
    return json;
  };
  Json vocab = Bytes()["model"]["vocab"];
  vocab["<|endoftext|>"] = 256;
  Files files{{"vocab.json", vocab.dump()}, {"merges.txt", "#version: 0.2\n"}};
  Json config = {{"tokenizer_class", "GPT2Tokenizer"},
                 {"eos_token", "<|endoftext|>"},
                 {"added_tokens_decoder", decoder({{256, "<|endoftext|>"}})}};
  files["tokenizer_config.json"] = config.dump();
  const Tokenizer gpt2 = Loaded(files);
  EXPECT_EQ(gpt2.end_of_text(), 256);
  EXPECT_EQ(Ids(gpt2, "a<|endoftext|>", SpecialTokens::kAsTokens),
            (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(Ids(gpt2, "<|endoftext|>").size(), 13u);
  // One that could be read from a document is none of these classes.
  config["added_tokens_decoder"]["256"]["special"] = false;
  files["tokenizer_config.json"] = config.dump();
  EXPECT_THAT(Refusal(files), HasSubstr("make them say the same"));

  files.clear();
  for (const char* name : {"vocab.json", "merges.txt"}) {
    files[name] = *ReadFile(Env::Posix(), kTokenizers + "roberta/" + name);
  }
  config = {{"tokenizer_class", "RobertaTokenizer"},
            {"added_tokens_decoder",
             decoder({{0, "<s>"}, {1, "<pad>"}, {2, "</s>"}, {3, "<unk>"}, {4, "<mask>"}})}};
  config["added_tokens_decoder"]["4"]["normalized"] = false;
  config["added_tokens_decoder"]["4"]["lstrip"] = true;
  files["tokenizer_config.json"] = config.dump();
  const Tokenizer roberta = Loaded(files);
  EXPECT_THAT(roberta.special_tokens(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(roberta.model_form(true).middle, ElementsAre(2, 2));
  EXPECT_EQ(Ids(roberta, "<s>", SpecialTokens::kAsTokens), std::vector<int32_t>{0});

  config = {{"added_tokens_decoder", decoder({{0, "<unk>"}, {1, "<s>"}, {2, "</s>"}})}};
  const Tokenizer piece =
      Loaded({{"tokenizer.model", *ReadFile(Env::Posix(), kTokenizers + "unigram.model")},
              {"tokenizer_config.json", config.dump()}});
  EXPECT_THAT(piece.special_tokens(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(piece.end_of_text(), 2);
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

TEST(PublishedRanks, AreKnownByTheirHashWithTheirSpecialTokens) {
  EXPECT_EQ(FindPublishedRanks(std::string(64, '0')), nullptr);
  const PublishedRanks* cl100k =
      FindPublishedRanks("223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7");
  ASSERT_NE(cl100k, nullptr);
  TokenizerDefinition definition;
  AddSpecialTokens(*cl100k, definition);
  EXPECT_EQ(definition.added.size(), 5u);
  EXPECT_FALSE(definition.has_template);

  const PublishedRanks* llama3 =
      FindPublishedRanks("82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55");
  ASSERT_NE(llama3, nullptr);
  definition = {};
  AddSpecialTokens(*llama3, definition);
  std::map<int32_t, std::string> names;
  for (const AddedToken& token : definition.added) {
    EXPECT_TRUE(token.special) << token.content;
    names[token.id] = token.content;
  }
  // As the tokenizer.json of Llama 3.1 has them.
  ASSERT_EQ(names.size(), 256u);
  EXPECT_EQ(definition.added.size(), 256u);
  EXPECT_EQ(names.begin()->first, 128000);
  EXPECT_EQ(names.rbegin()->first, 128255);
  EXPECT_EQ(names[128000], "<|begin_of_text|>");
  EXPECT_EQ(names[128002], "<|reserved_special_token_0|>");
  EXPECT_EQ(names[128009], "<|eot_id|>");
  EXPECT_EQ(names[128011], "<|reserved_special_token_3|>");
  EXPECT_EQ(names[128255], "<|reserved_special_token_247|>");
  EXPECT_THAT(definition.form.begin, ElementsAre(128000));
}

}  // namespace
}  // namespace weft
