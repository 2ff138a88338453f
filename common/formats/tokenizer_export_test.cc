// What an export says of its tokenizer. That transformers 4 and 5 then do what the engine does is
// for tests/parity: check_exports.py, and exports_test, which reads its record.
#include "common/formats/tokenizer_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/formats/tokenizer_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Tokenizer Load(const std::string& name) {
  Result<Tokenizer> tokenizer =
      Tokenizer::Load(Env::Posix(), WEFT_SOURCE_DIR "/common/formats/testdata/tokenizers/" + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *std::move(tokenizer);
}

/// The tokenizer of a file of the test data, with these files next to it.
Result<Tokenizer> LoadWith(const std::string& name,
                           const std::map<std::string, std::string>& beside) {
  FaultEnv env;
  EXPECT_TRUE(env.CreateDirs("/t").ok());
  EXPECT_TRUE(WriteFileAtomic(env, "/t/tokenizer.json", Load(name).content()).ok());
  for (const auto& [file, content] : beside) {
    EXPECT_TRUE(WriteFileAtomic(env, "/t/" + file, content).ok());
  }
  return Tokenizer::Load(env, "/t");
}

ModelSpec Model(const std::string& family, const std::string& head = "auto") {
  ModelSpec model;
  model.family = family;
  model.head = head;
  model.classes = head == "classification" ? 3 : 0;
  model.context = 77;
  return model;
}

TokenizerExport Describe(const Tokenizer& tokenizer, const ModelSpec& model,
                         const UsageFiles& imported = {}) {
  Result<TokenizerExport> described = DescribeTokenizer(tokenizer, model, imported);
  EXPECT_TRUE(described.ok()) << described.status().message();
  return *std::move(described);
}

Json File(const TokenizerExport& described, const std::string& name) {
  return *ParseJson(described.files.at(name));
}

/// Rows of a "text" and the "ids" that the reference gives it with a tokenizer of the test data.
Json Golden(const std::string& name) {
  const Json golden = *ParseJson(
      *ReadFile(Env::Posix(), WEFT_SOURCE_DIR "/common/formats/testdata/tokenizer_files.json"));
  return golden.at(name);
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, ids).ok());
  return ids;
}

TEST(TokenizerExport, SaysWhichInputsTheModelTakes) {
  const Json causal = File(Describe(Load("neox.json"), Model("gpt2")), "tokenizer_config.json");
  EXPECT_EQ(causal["model_input_names"], Json({"input_ids", "attention_mask"}));
  EXPECT_EQ(causal["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(causal["model_max_length"], 77);
  EXPECT_EQ(causal["clean_up_tokenization_spaces"], false);
  for (const char* head : {"masked_lm", "classification"}) {
    const Json bert =
        File(Describe(Load("bert.json"), Model("bert", head)), "tokenizer_config.json");
    EXPECT_EQ(bert["model_input_names"], Json({"input_ids", "token_type_ids", "attention_mask"}));
  }
}

TEST(TokenizerExport, LeavesTheFileOfALanguageModelAsItIs) {
  for (const char* name : {"neox.json", "qwen2.json", "smollm.json", "o200k.json", "llama2.json",
                           "unigram_bytes.json"}) {
    const Tokenizer tokenizer = Load(name);
    EXPECT_EQ(Describe(tokenizer, Model("llama")).files.at("tokenizer.json"), tokenizer.content());
  }
  // Except truncation and padding, which the engine does not do.
  Json json = *ParseJson(Load("neox.json").content());
  json["truncation"] = {{"max_length", 50}};
  json["padding"] = {{"pad_id", 0}};
  const Json file =
      File(Describe(*Tokenizer::FromJson(json.dump()), Model("gpt2")), "tokenizer.json");
  EXPECT_TRUE(file["truncation"].is_null() && file["padding"].is_null());
  EXPECT_EQ(file["model"], json["model"]);
}

/// What a tokenizer.json puts around one text and around two.
std::pair<SequenceForm, SequenceForm> FormsOf(const TokenizerExport& described) {
  const Result<TokenizerDefinition> file = ParseTokenizerJson(described.files.at("tokenizer.json"));
  EXPECT_TRUE(file.ok()) << file.status().message();
  return {file->form, file->pair_form};
}

TEST(TokenizerExport, EndsNoTextOfALanguageModel) {
  // The template of a T5 ends texts; so the end of a document in training is, but not of a prompt.
  const Tokenizer tokenizer = Load("t5.json");
  ASSERT_FALSE(tokenizer.model_form(/*pair=*/false).end.empty());
  const TokenizerExport described = Describe(tokenizer, Model("llama"));
  EXPECT_EQ(FormsOf(described).first, SequenceForm());
  EXPECT_EQ(FormsOf(described).second, SequenceForm());
  EXPECT_TRUE(File(described, "tokenizer.json")["post_processor"].is_null());
  EXPECT_EQ(described.eos_token_id, tokenizer.form(false).end.at(0));
  // A classifier is trained with it.
  EXPECT_EQ(FormsOf(Describe(tokenizer, Model("bert", "classification"))).first,
            tokenizer.form(false));
}

TEST(TokenizerExport, BeginsTextsWhereTheFilesNextToTheTokenizerSaySo) {
  // PreTrainedTokenizerFast knows no add_bos_token: the file itself must say it.
  Json file = *ParseJson(Load("llama3/ranks.tiktoken").content());
  file["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/t").ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/t/tokenizer.json", file.dump()).ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/t/tokenizer_config.json",
                              R"({"bos_token": "<|begin_of_text|>", "add_bos_token": true})")
                  .ok());
  const Result<Tokenizer> tokenizer = Tokenizer::Load(env, "/t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::vector<int64_t> begin = tokenizer->form(/*pair=*/false).begin;
  ASSERT_EQ(begin.size(), 1U);
  const TokenizerExport described = Describe(*tokenizer, Model("llama"));
  EXPECT_EQ(FormsOf(described).first, (SequenceForm{.begin = begin}));
  EXPECT_EQ(FormsOf(described).second, (SequenceForm{.begin = begin, .middle = begin}));
  const Json processor = File(described, "tokenizer.json")["post_processor"];
  EXPECT_EQ(processor.at("processors").at(0), file["post_processor"]) << processor;
}

TEST(TokenizerExport, NamesTheTokenThatBeginsTextsAsTheTemplateDoes) {
  // No other file names it. With another one the folder would be refused when it is read again.
  const TokenizerExport described = Describe(Load("llama2.json"), Model("llama"));
  EXPECT_EQ(described.bos_token_id, 1);
  EXPECT_EQ(described.eos_token_id, 2);
  EXPECT_EQ(File(described, "tokenizer_config.json")["bos_token"], "<s>");
}

TEST(TokenizerExport, EndsATextWhereDocumentsOfTheTrainingEnded) {
  const Tokenizer tokenizer = Load("neox.json");
  const TokenizerExport described = Describe(tokenizer, Model("gpt2"));
  EXPECT_EQ(described.eos_token_id, *tokenizer.end_of_text());
  EXPECT_EQ(described.bos_token_id, *tokenizer.end_of_text());
  const Json config = File(described, "tokenizer_config.json");
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(File(described, "special_tokens_map.json")["eos_token"], "<|endoftext|>");
}

TEST(TokenizerExport, NamesTheTokensOfBert) {
  const TokenizerExport described = Describe(Load("bert.json"), Model("bert"));
  const Json config = File(described, "tokenizer_config.json");
  EXPECT_EQ(config["mask_token"], "[MASK]");
  EXPECT_EQ(config["pad_token"], "[PAD]");
  EXPECT_EQ(config["cls_token"], "[CLS]");
  EXPECT_EQ(config["sep_token"], "[SEP]");
  EXPECT_EQ(config["unk_token"], "[UNK]");
  EXPECT_EQ(described.pad_token_id, 0);
}

TEST(TokenizerExport, GivesEncodersTheFormsOfTheEngine) {
  for (const char* name :
       {"unigram.model", "neox.json", "llama3/ranks.tiktoken", "bert.json", "xlmr.json"}) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = Load(name);
    const TokenizerExport described = Describe(tokenizer, Model("bert", "classification"));
    const Result<Tokenizer> again = Tokenizer::FromJson(described.files.at("tokenizer.json"));
    ASSERT_TRUE(again.ok()) << again.status().message();
    for (const bool pair : {false, true}) {
      EXPECT_EQ(again->form(pair).begin, tokenizer.form(pair).begin);
      EXPECT_EQ(again->form(pair).middle, tokenizer.form(pair).middle);
      EXPECT_EQ(again->form(pair).end, tokenizer.form(pair).end);
      EXPECT_EQ(again->form(pair).second_type, tokenizer.form(pair).second_type);
    }
    const Json file = File(described, "tokenizer.json");
    Json processor = file["post_processor"];
    EXPECT_NE(processor["type"], "ByteLevel");
    if (processor["type"] == "Sequence") processor = processor["processors"].back();
    for (const Json& part : processor.value("pair", Json::array())) {
      if (!part.contains("SpecialToken")) continue;
      const std::string token = part["SpecialToken"]["id"];
      EXPECT_TRUE(processor["special_tokens"].contains(token)) << token;
    }
  }
}

TEST(TokenizerExport, WritesSentencePieceAsATokenizerJsonThatEncodesTheSame) {
  const Tokenizer tokenizer = Load("unigram.model");
  const TokenizerExport described = Describe(tokenizer, Model("llama"));
  EXPECT_EQ(described.files.at("tokenizer.model"), tokenizer.content());
  const Result<Tokenizer> again = Tokenizer::FromJson(described.files.at("tokenizer.json"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  for (const Json& row : Golden("unigram.model")) {
    EXPECT_EQ(Ids(*again, row["text"]), row["ids"].get<std::vector<int32_t>>()) << row["text"];
  }
  EXPECT_EQ(described.eos_token_id, *tokenizer.end_of_text());
  const Json config = File(described, "tokenizer_config.json");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(config["unk_token"], "<unk>");
}

TEST(TokenizerExport, KeepsUserDefinedPiecesAndThePrefixOfSentencePiece) {
  for (const char* name : {"bpe.model", "defined_unigram.model", "defined_bpe.model",
                           "defined_spaces.model", "llama_first", "llama_no_prefix", "t5_first"}) {
    const TokenizerExport described = Describe(Load(name), Model("llama"));
    const Result<Tokenizer> again = Tokenizer::FromJson(described.files.at("tokenizer.json"));
    ASSERT_TRUE(again.ok()) << again.status().message();
    const Json rows = Golden(name);
    ASSERT_FALSE(rows.empty());
    for (const Json& row : rows) {
      const std::vector<int32_t> ids = Ids(*again, row["text"]);
      EXPECT_EQ(ids, row["ids"].get<std::vector<int32_t>>()) << name << row["text"];
    }
    // For a program that reads tokenizer.model.
    const Json config = File(described, "tokenizer_config.json");
    const TokenizerConfig given = Load(name).config();
    EXPECT_EQ(config.value("legacy", true), given.legacy.value_or(true));
    EXPECT_EQ(config.value("add_prefix_space", true), given.add_prefix_space.value_or(true));
  }
}

TEST(TokenizerExport, ListsNoUserDefinedPieceAsASpecialToken) {
  // transformers would give a text after it a prefix of its own.
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/t").ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/t/tokenizer.model", Load("bpe.model").content()).ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/t/tokenizer_config.json",
                              R"({"additional_special_tokens": ["<tool>", "</s>"]})")
                  .ok());
  const Result<Tokenizer> tokenizer = Tokenizer::Load(env, "/t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const TokenizerExport described = Describe(*tokenizer, Model("llama"));
  EXPECT_EQ(File(described, "tokenizer_config.json")["additional_special_tokens"], Json({"</s>"}));
}

TEST(TokenizerExport, SaysThatByteLevelTextGetsASpaceBeforeIt) {
  // transformers 4 takes it out of tokenizer.json otherwise.
  EXPECT_FALSE(File(Describe(Load("neox.json"), Model("gpt2")), "tokenizer_config.json")
                   .contains("add_prefix_space"));
  Json json = *ParseJson(Load("neox.json").content());
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer spaced = *Tokenizer::FromJson(json.dump());
  EXPECT_EQ(File(Describe(spaced, Model("gpt2")), "tokenizer_config.json")["add_prefix_space"],
            true);
}

TEST(TokenizerExport, PutsTokensThatOtherFilesAddToSentencePieceIntoTheTokenizerJson) {
  for (const char* name : {"unigram_added", "llama2_chat"}) {
    const Tokenizer tokenizer = Load(name);
    const TokenizerExport described = Describe(tokenizer, Model("llama"));
    const Result<Tokenizer> again = Tokenizer::FromJson(described.files.at("tokenizer.json"));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->vocab_size(), tokenizer.vocab_size());
    EXPECT_EQ(again->special_tokens(), tokenizer.special_tokens());
    for (const Json& row : Golden(name)) {
      EXPECT_EQ(Ids(*again, row["text"]), row["ids"].get<std::vector<int32_t>>()) << row["text"];
    }
  }
  EXPECT_EQ(FormsOf(Describe(Load("llama2_chat"), Model("llama"))).first,
            (SequenceForm{.begin = {1}}));
}

TEST(TokenizerExport, MakesMergesOfThePiecesOfSentencePiece) {
  const Json file = File(Describe(Load("bpe.model"), Model("llama")), "tokenizer.json");
  const Json& model = file["model"];
  EXPECT_EQ(model["type"], "BPE");
  std::map<std::string, int64_t> ids = model["vocab"];
  ASSERT_FALSE(model["merges"].empty());
  int64_t last = 0;
  for (const Json& merge : model["merges"]) {
    const std::string left = merge[0], right = merge[1];
    ASSERT_TRUE(ids.contains(left) && ids.contains(right) && ids.contains(left + right));
    // SentencePiece gives ids in the order in which it would merge.
    EXPECT_LE(last, ids[left + right]);
    last = ids[left + right];
  }
}

/// What a folder of a Llama 3 says, with a tokenizer of this test.
UsageFiles Imported() {
  UsageFiles files;
  files.config = {{"bos_token_id", 3}, {"eos_token_id", 1}, {"pad_token_id", 100000}};
  files.generation_config = {{"eos_token_id", {1, 2, 99999}}, {"temperature", 0.6}};
  return files;
}

TEST(TokenizerExport, KeepsWhatTheFilesNextToTheTokenizerSaid) {
  const Json beside = {
      {"tokenizer_class", "LlamaTokenizer"},
      {"eos_token", {{"content", "<|endoftext|>"}, {"special", true}}},
      {"pad_token", "<|pad|>"},
      {"padding_side", "left"},
      {"additional_special_tokens", {"<|endoftext|>", "<not there>", {{"content", "!"}}}},
      {"auto_map", {{"AutoTokenizer", "code.py"}}}};
  const int32_t pad = static_cast<int32_t>(Load("neox.json").vocab_size());
  const Result<Tokenizer> tokenizer =
      LoadWith("neox.json", {{"tokenizer_config.json", beside.dump()},
                             {"special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})"},
                             {"added_tokens.json", Json({{"<|pad|>", pad}}).dump()},
                             {"chat_template.jinja", "{{ messages }}"}});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const TokenizerExport described = Describe(*tokenizer, Model("llama"), Imported());
  const Json config = File(described, "tokenizer_config.json");
  EXPECT_EQ(config["padding_side"], "left");
  EXPECT_EQ(config["chat_template"], "{{ messages }}");
  EXPECT_EQ(described.files.at("chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["pad_token"], "<|pad|>");
  EXPECT_EQ(described.pad_token_id, pad);
  // transformers would make a token of its own of one that is not there.
  EXPECT_EQ(config["additional_special_tokens"], Json({"<|endoftext|>", "!"}));
  EXPECT_FALSE(config.contains("auto_map"));
  EXPECT_FALSE(config.contains("added_tokens_decoder"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(described.bos_token_id, 3);
  Json ends = {1, 2};
  if (*tokenizer->end_of_text() > 2) ends.push_back(*tokenizer->end_of_text());
  EXPECT_EQ(described.eos_token_id, ends) << "what documents ended with stops a text, too";
  // A token that a file next to the tokenizer adds is in the exported tokenizer itself.
  const Result<Tokenizer> again = Tokenizer::FromJson(described.files.at("tokenizer.json"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->TokenOf(pad), "<|pad|>");
}

TEST(TokenizerExport, WritesSeveralChatTemplatesUnderTheirNames) {
  const Json templates = {{{"name", "default"}, {"template", "{{ a }}"}},
                          {{"name", "tools"}, {"template", "{{ b }}"}}};
  const Result<Tokenizer> tokenizer = LoadWith(
      "neox.json", {{"tokenizer_config.json", Json({{"chat_template", templates}}).dump()}});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const TokenizerExport described = Describe(*tokenizer, Model("llama"));
  EXPECT_EQ(File(described, "tokenizer_config.json")["chat_template"], templates);
  EXPECT_FALSE(described.files.contains("chat_template.jinja"));
}

TEST(TokenizerExport, SurvivesImportsOfAnyForm) {
  const Json values = {nullptr, true, -1, 0.5, "x", {1, 2}, {{"content", 3}}, Json::array()};
  for (const char* key :
       {"eos_token", "pad_token", "additional_special_tokens", "extra_special_tokens",
        "chat_template", "padding_side", "bos_token_id", "eos_token_id"}) {
    for (const Json& value : values) {
      UsageFiles files;
      files.config[key] = value;
      files.generation_config[key] = value;
      Result<Tokenizer> tokenizer =
          LoadWith("neox.json", {{"tokenizer_config.json", Json({{key, value}}).dump()}});
      if (!tokenizer.ok()) {
        EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalid);
        tokenizer = Load("neox.json");
      }
      const Result<TokenizerExport> described = DescribeTokenizer(*tokenizer, Model("gpt2"), files);
      EXPECT_TRUE(described.ok() || described.status().code() == StatusCode::kInvalid);
    }
  }
}

}  // namespace
}  // namespace weft
