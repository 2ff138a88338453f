// Datasets from images, ready-made tokens, labels, pairs and texts to mask.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "common/formats/tokenizer.h"
#include "common/hash.h"
#include "common/json.h"
#include "worker/engine/data/class_order.h"
#include "worker/engine/data/image_loader.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/prepare.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kTestData = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/";

std::string Write(const std::string& path, const std::string& text) {
  EXPECT_TRUE(Env::Posix().CreateDirs(DirName(path)).ok());
  EXPECT_TRUE(WriteFileAtomic(Env::Posix(), path, text).ok());
  return path;
}

Dataset Prepare(const JobSpec& job) {
  Result<Dataset> dataset = PrepareDataset(Env::Posix(), job, TestFolder() + "/cache", 2);
  EXPECT_TRUE(dataset.ok()) << dataset.status().ToString();
  return dataset.ok() ? *dataset : Dataset{};
}

std::string Refusal(const JobSpec& job) {
  return PrepareDataset(Env::Posix(), job, TestFolder() + "/cache", 2).status().message();
}

std::vector<int32_t> Tokens(const TokenSpan& span) {
  std::vector<int32_t> tokens(span.count);
  span.shard->Read(span.first, tokens);
  return tokens;
}

template <class T>
void Add(std::string& bytes, std::initializer_list<int64_t> values) {
  for (int64_t value : values) {
    const T typed = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&typed), sizeof(typed));
  }
}

JobSpec Tokens(const std::string& path, const std::string& format) {
  JobSpec job;
  job.data.train = {path};
  job.data.format = format;
  job.data.validation_fraction = 0.34;
  return job;
}

TEST(PrepareTokens, CopiesLlmcFilesWithTheirDocuments) {
  const std::string folder = MakeTestFolder();
  std::string bytes;
  Add<int32_t>(bytes, {20240520, 1, 9});
  bytes.resize(1024);
  Add<uint16_t>(bytes, {50256, 1, 2, 50256, 3, 4, 50256, 5, 6});
  const Dataset dataset = Prepare(Tokens(Write(folder + "/a.bin", bytes), "auto"));
  EXPECT_THAT(dataset.train.shard->document_starts(), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(Tokens(dataset.train), ElementsAre(50256, 1, 2, 50256, 3, 4));
  EXPECT_THAT(Tokens(dataset.validation), ElementsAre(50256, 5, 6));
  EXPECT_EQ(dataset.info.vocab_size, 50257);
  EXPECT_EQ(dataset.TokenizerPath(), "");
}

TEST(PrepareTokens, CopiesNanoGptAndMegatronFiles) {
  const std::string folder = MakeTestFolder();
  std::string bytes;
  Add<uint16_t>(bytes, {7, 1, 9, 7, 3, 4});
  JobSpec job = Tokens(Write(folder + "/a.bin", bytes), "nanogpt");
  EXPECT_EQ(Prepare(job).info.vocab_size, 10) << "as large as its tokens need";
  job.model.vocab_size = 12;
  EXPECT_EQ(Prepare(job).info.vocab_size, 12);
  job.model.vocab_size = 9;
  EXPECT_THAT(Refusal(job), HasSubstr("token 2 of"));
  // With a tokenizer its end of text parts documents.
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kTestData + "gpt2_part");
  ASSERT_TRUE(tokenizer.ok());
  const int32_t end = *tokenizer->end_of_text();
  bytes.clear();
  Add<uint16_t>(bytes, {1, 2, end, 3, end, 4, 5, 6, end});
  job = Tokens(Write(folder + "/b.bin", bytes), "nanogpt");
  job.data.tokenizer.path = kTestData + "gpt2_part";
  const Dataset nano = Prepare(job);
  EXPECT_THAT(nano.train.shard->document_starts(), ElementsAre(0, 3, 5, 9));
  EXPECT_EQ(nano.info.tokenizer_hash, tokenizer->hash());
  EXPECT_TRUE(Env::Posix().FileExists(nano.TokenizerPath()));

  std::string index("MMIDIDX\0\0", 9);
  Add<uint64_t>(index, {1});
  Add<uint8_t>(index, {8});
  Add<uint64_t>(index, {3, 3});
  Add<int32_t>(index, {2, 1, 1});
  Add<int64_t>(index, {0, 4, 6});
  Add<int64_t>(index, {0, 1, 3});
  bytes.clear();
  Add<uint16_t>(bytes, {1, 2, 3, 4});
  Write(folder + "/m.bin", bytes);
  const Dataset megatron = Prepare(Tokens(Write(folder + "/m.idx", index), "auto"));
  EXPECT_THAT(megatron.train.shard->document_starts(), ElementsAre(0, 2, 4));
  EXPECT_THAT(Tokens(megatron.train), ElementsAre(1, 2));
  EXPECT_THAT(Refusal(Tokens(folder + "/m.bin", "auto")), HasSubstr("set data.format"));
  JobSpec masked = Tokens(folder + "/m.idx", "megatron");
  masked.model.head = "masked_lm";
  EXPECT_THAT(Refusal(masked), HasSubstr("no labels or masks"));
}

TEST(PrepareTokens, RefusesIdsThatDoNotFitTheForm) {
  const std::string folder = MakeTestFolder();
  std::string narrow, wide;
  for (int64_t token = 1; token < 60; ++token) {
    Add<uint16_t>(narrow, {token});
    Add<uint32_t>(wide, {token});
  }
  EXPECT_THAT(Refusal(Tokens(Write(folder + "/wide.bin", wide), "nanogpt")),
              HasSubstr("every second of its 16-bit ids"));
  JobSpec job = Tokens(Write(folder + "/a.bin", narrow), "nanogpt");
  job.model.vocab_size = 65537;
  EXPECT_THAT(Refusal(job), HasSubstr("holds ids below 65536, and model.vocab_size has 65537"));
  job.model.vocab_size = 65536;
  EXPECT_EQ(Prepare(job).info.vocab_size, 65536);
  // One byte an element, and a tokenizer of more tokens.
  std::string index("MMIDIDX\0\0", 9);
  Add<uint64_t>(index, {1});
  Add<uint8_t>(index, {1});
  Add<uint64_t>(index, {1, 2});
  Add<int32_t>(index, {4});
  Add<int64_t>(index, {0});
  Add<int64_t>(index, {0, 1});
  Write(folder + "/m.bin", "abcd");
  job = Tokens(Write(folder + "/m.idx", index), "auto");
  EXPECT_EQ(Prepare(job).info.vocab_size, 101);
  job.data.tokenizer.path = kTestData + "gpt2_part";
  EXPECT_THAT(Refusal(job), HasSubstr("holds ids below 256, and the tokenizer "));
}

JobSpec Bert(const std::string& path, const std::string& head) {
  JobSpec job;
  job.model.family = "bert";
  job.model.head = head;
  job.data.train = {path};
  job.data.tokenizer.path = kTestData + "tokenizers/bert.json";
  job.data.validation_fraction = 0.25;
  job.data.batching = "pad_dynamic";
  job.train.sequence_length = 16;
  return job;
}

TEST(PrepareText, PutsDocumentsIntoTheFormOfTheTokenizer) {
  const std::string folder = MakeTestFolder();
  const std::string path = Write(folder + "/a.txt", "the kalo|mi|the ka|lo");
  JobSpec job = Bert(path, "masked_lm");
  job.data.document_separator = "|";
  const Dataset dataset = Prepare(job);
  Result<Tokenizer> bert = Tokenizer::Load(Env::Posix(), job.data.tokenizer.path);
  std::vector<int32_t> expected;
  for (const char* text : {"the kalo", "mi", "the ka", "lo"}) {
    expected.push_back(2);
    ASSERT_TRUE(bert->Encode(text, expected).ok());
    expected.push_back(3);
  }
  std::vector<int32_t> all = Tokens(dataset.train);
  for (int32_t token : Tokens(dataset.validation)) all.push_back(token);
  EXPECT_EQ(all, expected);
  EXPECT_EQ(dataset.info.mask, 4);
  EXPECT_THAT(dataset.info.form.begin, ElementsAre(2));
  auto loader = TokenLoader::Create(dataset.train, TrainLoaderOptions(job, dataset.info));
  ASSERT_TRUE(loader.ok()) << loader.status().ToString();
  const Batch batch = *(*loader)->Get(0, 0, 2);
  EXPECT_EQ(batch.tokens[0], 2);
  EXPECT_GE(batch.target_count, 2);
}

TEST(PrepareText, TrainsATokenizerWithAMaskWhenNoneIsGiven) {
  const std::string folder = MakeTestFolder();
  JobSpec job = Bert(Write(folder + "/a.txt", "the kalo mi the ka lo the kalo"), "masked_lm");
  job.data.tokenizer.path = "";
  job.data.tokenizer.vocab_size = 260;
  const Dataset dataset = Prepare(job);
  EXPECT_EQ(dataset.info.vocab_size, 260);
  EXPECT_EQ(dataset.info.end_of_text, 258);
  EXPECT_EQ(dataset.info.mask, 259);
  EXPECT_THAT(dataset.info.form.end, ElementsAre(258));
}

TEST(PrepareText, KeepsLabelsAndPairsTogetherWhereverTheyGo) {
  const std::string folder = MakeTestFolder();
  std::string lines;
  Result<Tokenizer> bert = Tokenizer::Load(Env::Posix(), kTestData + "tokenizers/bert.json");
  ASSERT_TRUE(bert.ok());
  std::map<std::vector<int32_t>, int32_t> wanted;
  for (int i = 0; i < 40; ++i) {
    std::string first = "the";
    for (int k = 0; k < i; ++k) first += " ka";
    const std::string second = i % 5 == 0 ? "" : "mi";
    const char* label = i < 20 ? "yes" : "no";  // sorted by class
    lines += R"({"text":")" + first + R"(","b":")" + second + R"(","label":")" + label + "\"}\n";
    std::vector<int32_t> tokens = {2};
    ASSERT_TRUE(bert->Encode(first, tokens).ok());
    tokens.push_back(3);
    ASSERT_TRUE(bert->Encode(second, tokens).ok());
    tokens.push_back(3);
    wanted[tokens] = i < 20 ? 1 : 0;
  }
  JobSpec job = Bert(Write(folder + "/a.jsonl", lines), "classification");
  job.data.second_text_field = "b";
  job.train.sequence_length = 64;
  const Dataset dataset = Prepare(job);
  EXPECT_THAT(dataset.info.classes, ElementsAre("no", "yes"));
  EXPECT_EQ(dataset.info.train_documents + dataset.info.validation_documents, 40);
  std::map<std::vector<int32_t>, int32_t> seen;
  for (const TokenSpan* span : {&dataset.train, &dataset.validation}) {
    auto loader = TokenLoader::Create(*span, ValidationLoaderOptions(job, dataset.info));
    ASSERT_TRUE(loader.ok()) << loader.status().ToString();
    std::set<int32_t> classes;
    for (int64_t s = 0; s < (*loader)->Sequences(); ++s) {
      const Batch batch = *(*loader)->Get(0, s, 1);
      std::vector<int32_t> tokens = batch.tokens;
      tokens.resize(static_cast<size_t>(batch.lengths[0]));
      seen[tokens] = batch.labels[0];
      classes.insert(batch.labels[0]);
      EXPECT_EQ(batch.token_types[0], 0);
      EXPECT_EQ(batch.token_types[tokens.size() - 1], 1);
    }
    EXPECT_EQ(classes.size(), 2u) << "both parts have both classes";
  }
  EXPECT_EQ(seen, wanted);
}

TEST(PrepareText, NamesWhatIsWrongWithLabels) {
  const std::string folder = MakeTestFolder();
  auto refusal = [&](const std::string& lines) {
    return Refusal(Bert(Write(folder + "/a.jsonl", lines), "classification"));
  };
  EXPECT_THAT(refusal("{\"text\":\"a\"}\n"), HasSubstr("no field \"label\""));
  EXPECT_THAT(refusal("{\"text\":\"a\",\"label\":-1}\n"), HasSubstr("whole number from 0"));
  EXPECT_THAT(refusal("{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\",\"label\":\"x\"}\n"),
              HasSubstr("some are names, as \"x\""));
  EXPECT_THAT(refusal("{\"text\":\"a\",\"label\":1}\n"
                      "{\"text\":\"a\",\"label\":\"\\u001b[2J\"}\n"),
              HasSubstr("as \"?[2J\""))
      << "a terminal would obey it";
  EXPECT_THAT(refusal("{\"text\":\"a\",\"label\":99999999}\n"), HasSubstr("too large"));
  JobSpec job =
      Bert(Write(folder + "/a.jsonl", "{\"text\":\"a\",\"label\":\"x\"}\n"), "classification");
  job.data.validation = {Write(folder + "/v.jsonl", "{\"text\":\"a\",\"label\":\"y\"}\n")};
  EXPECT_THAT(Refusal(job), HasSubstr("\"y\""));
  EXPECT_THAT(Refusal(Bert(Write(folder + "/a.txt", "text"), "classification")),
              HasSubstr("give JSONL"));
  job = Bert(Write(folder + "/a.txt", "text"), "masked_lm");
  job.data.tokenizer.path = kTestData + "gpt2_part";
  EXPECT_THAT(Refusal(job), HasSubstr("no mask token"));
}

JobSpec Gpt2(const std::vector<std::string>& train) {
  JobSpec job;
  job.data.train = train;
  job.data.tokenizer.path = kTestData + "gpt2_part";
  job.data.validation_fraction = 0;
  return job;
}

TEST(PrepareText, TheSameDocumentsInAnyFormAreTheSameData) {
  const std::string folder = MakeTestFolder();
  const std::string lines = "{\"text\":\"one two\"}\n{\"text\":\"three\"}\n";
  const std::vector<int32_t> expected =
      Tokens(Prepare(Gpt2({Write(folder + "/a.jsonl", lines)})).train);
  EXPECT_GT(expected.size(), 4u);
  Write(folder + "/texts/p2.txt", "three");
  Write(folder + "/texts/p1.txt", "one two");
  for (const std::string& path :
       {Write(folder + "/a.json", lines), Write(folder + "/A.JSONLINES", lines),
        Write(folder + "/b.json", "[{\"text\":\"one two\"},{\"text\":\"three\"}]"),
        folder + "/texts"}) {
    EXPECT_EQ(Tokens(Prepare(Gpt2({path})).train), expected) << path;
  }
  EXPECT_THAT(Refusal(Gpt2({Write(folder + "/d.csv", "id,text\n1,one two\n")})),
              HasSubstr("is a table"));
}

TEST(PrepareText, BadLinesStopTheJobOrAreSkippedAndCounted) {
  const std::string folder = MakeTestFolder();
  const std::string good = "{\"text\":\"one two\"}\n";
  const std::vector<int32_t> expected =
      Tokens(Prepare(Gpt2({Write(folder + "/a.jsonl", good + good)})).train);
  JobSpec job = Gpt2(
      {Write(folder + "/b.jsonl", good + "{\"text\":null}\n{broken\n" + good + "{\"t\":1}\n")});
  const std::string refusal = Refusal(job);
  EXPECT_THAT(refusal, HasSubstr("b.jsonl:2: the field \"text\" is null"));
  EXPECT_THAT(refusal, HasSubstr("data.bad_lines: skip"));
  job.data.bad_lines = "skip";
  for (int open = 0; open < 2; ++open) {  // made, and then found in the cache
    const Dataset dataset = Prepare(job);
    EXPECT_EQ(Tokens(dataset.train), expected);
    EXPECT_EQ(dataset.info.skipped_lines, 3);
    EXPECT_THAT(dataset.info.first_skipped_line, HasSubstr("b.jsonl:2: "));
  }
  // A tokenizer that is trained here sees the same lines.
  job.data.tokenizer.path = "";
  job.data.tokenizer.vocab_size = 260;
  EXPECT_EQ(Prepare(job).info.train_documents, 2);
  job.data.train = {Write(folder + "/c.jsonl", "{broken\n")};
  EXPECT_THAT(Refusal(job), HasSubstr("no line of the training data can be used"));
}

TEST(PrepareText, SpelledSpecialTokensAreTextOrTokensAndCounted) {
  const std::string folder = MakeTestFolder();
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kTestData + "gpt2_part");
  ASSERT_TRUE(tokenizer.ok());
  const int32_t end = *tokenizer->end_of_text();
  const std::string text = "one<|endoftext|>two <|endoftext|>";
  JobSpec job = Gpt2({Write(folder + "/a.txt", text)});
  for (SpecialTokens special : {SpecialTokens::kAsText, SpecialTokens::kAsTokens}) {
    const bool parse = special == SpecialTokens::kAsTokens;
    job.data.special_tokens = parse ? "parse" : "text";
    std::vector<int32_t> expected;
    ASSERT_TRUE(tokenizer->Encode(text, expected, special).ok());
    EXPECT_EQ(std::count(expected.begin(), expected.end(), end), parse ? 2 : 0);
    expected.push_back(end);
    const Dataset dataset = Prepare(job);
    EXPECT_EQ(Tokens(dataset.train), expected);
    EXPECT_EQ(dataset.info.spelled_special_tokens, 2);
    EXPECT_EQ(dataset.info.spelled_example, "<|endoftext|>");
  }
  // A text that is cut for several threads gives the tokens of the whole.
  std::string longer;
  while (longer.size() < (5u << 20)) longer += "one two<|endoftext|> three ";
  job.data.train = {Write(folder + "/b.txt", longer)};
  std::vector<int32_t> expected;
  ASSERT_TRUE(tokenizer->Encode(longer, expected, SpecialTokens::kAsTokens).ok());
  expected.push_back(end);
  EXPECT_EQ(Tokens(Prepare(job).train), expected);
}

TEST(PrepareText, ClassesThatAreNumbersAreInTheOrderOfTheirValues) {
  const std::string folder = MakeTestFolder();
  std::string names, numbers;
  for (int label = 0; label < 12; ++label) {
    names += R"({"text":"ka","label":")" + std::to_string(label) + "\"}\n";
    numbers += R"({"text":"ka","label":)" + std::to_string(label) + "}\n";
  }
  JobSpec job = Bert(Write(folder + "/names.jsonl", names), "classification");
  const Dataset named = Prepare(job);
  EXPECT_EQ(named.info.classes[2], "2");
  EXPECT_EQ(named.info.classes[10], "10");
  const Dataset numbered = Prepare(Bert(Write(folder + "/n.jsonl", numbers), "classification"));
  EXPECT_EQ(named.info.classes, numbered.info.classes);
  for (size_t d = 0; d < 12; ++d) {
    EXPECT_EQ((*named.train.labels)[d], (*numbered.train.labels)[d]);
  }
  EXPECT_THAT(OrderClasses({"b", "10", "9"}, {}), ElementsAre("10", "9", "b"));
  EXPECT_THAT(OrderClasses({"100", "09", "9", "1"}, {}), ElementsAre("1", "9", "09", "100"));
  EXPECT_THAT(OrderClasses({"no", "yes"}, {"yes", "maybe", "no"}),
              ElementsAre("yes", "maybe", "no"));
  EXPECT_THAT(OrderClasses({"no", "yes"}, {"yes", "maybe"}), ElementsAre("no", "yes"));
  EXPECT_THAT(OrderClasses({"no", "yes"}, {"yes", "yes", "no"}), ElementsAre("no", "yes"));
  // A model that does not name its classes numbers them.
  EXPECT_THAT(OrderClasses({"1", "2"}, {"LABEL_0", "LABEL_1", "LABEL_2"}),
              ElementsAre("0", "1", "2"));
  EXPECT_THAT(OrderClasses({"1", "3"}, {"LABEL_0", "LABEL_1", "LABEL_2"}), ElementsAre("1", "3"));
  EXPECT_THAT(OrderClasses({"01", "2"}, {"LABEL_0", "LABEL_1", "LABEL_2"}), ElementsAre("01", "2"));
  EXPECT_THAT(OrderClasses({"0", "2"}, {"1", "2", "3"}), ElementsAre("0", "2"));
}

TEST(CheckNumbersOfClasses, RefusesThoseThatTheModelDoesNotHave) {
  const auto refusal = [](const std::vector<std::string>& names) {
    return CheckNumbersOfClasses(names, 3).message();
  };
  EXPECT_EQ(refusal({"LABEL_0", "LABEL_2"}), "");
  EXPECT_EQ(refusal({"0", "2"}), "");
  EXPECT_EQ(refusal({"no", "yes", "LABEL_x", "LABEL_", "03", "LABEL_03", "-5"}), "");
  for (const char* name : {"LABEL_5", "LABEL_3", "3", "12", "99999999999999999999999"}) {
    EXPECT_THAT(
        refusal({"LABEL_1", name}),
        AllOf(HasSubstr("the class \"" + std::string(name) + "\""), HasSubstr("none of the 3"),
              HasSubstr("labels from 0 to 2"), HasSubstr("model.classes")));
  }
}

/// Writes the config.json of a classifier into `folder`; `classes`: its keys that name them.
std::string Classifier(const std::string& folder, const std::string& classes) {
  Write(folder + "/config.json", R"({"model_type":"bert",
      "architectures":["BertForSequenceClassification"],"hidden_size":32,"num_hidden_layers":1,
      "num_attention_heads":4,"intermediate_size":48,"max_position_embeddings":32,"vocab_size":700,
      "type_vocab_size":2,"hidden_act":"gelu","layer_norm_eps":1e-12,)" +
                                     classes + "}");
  return folder;
}

TEST(PrepareText, AModelThatNamesItsClassesGivesTheirOrder) {
  const std::string folder = MakeTestFolder();
  JobSpec job = Bert(Write(folder + "/a.jsonl",
                           "{\"text\":\"ka\",\"label\":\"negative\"}\n"
                           "{\"text\":\"mi\",\"label\":\"positive\"}\n"),
                     "classification");
  EXPECT_THAT(Prepare(job).info.classes, ElementsAre("negative", "positive"));
  job.model.import_path = Classifier(
      folder + "/model",
      R"("id2label":{"0":"positive","1":"negative"},"label2id":{"positive":0,"negative":1})");
  job.model.classes = 2;  // as the folder has it
  const Dataset dataset = Prepare(job);
  EXPECT_THAT(dataset.info.classes, ElementsAre("positive", "negative"));
}

TEST(PrepareText, AModelThatDoesNotNameItsClassesCountsThem) {
  const std::string folder = MakeTestFolder();
  Json names = Json::object();
  std::string labels;
  for (int i = 0; i < 12; ++i) {
    names[std::to_string(i)] = "LABEL_" + std::to_string(i);
    labels += R"({"text":"ka","label":"LABEL_)" + std::to_string(i) + "\"}\n";
  }
  JobSpec job = Bert(Write(folder + "/a.jsonl", labels), "classification");
  job.model.import_path = Classifier(folder + "/named", "\"id2label\":" + names.dump());
  job.model.classes = 12;
  const Dataset named = Prepare(job);
  ASSERT_EQ(named.info.classes.size(), 12u);
  EXPECT_EQ(named.info.classes[2], "LABEL_2");
  EXPECT_EQ(named.info.classes[10], "LABEL_10");
  // Labels of two of three classes, in quotes.
  job.data.train = {Write(folder + "/b.jsonl",
                          "{\"text\":\"ka\",\"label\":\"2\"}\n"
                          "{\"text\":\"mi\",\"label\":\"1\"}\n")};
  job.data.validation_fraction = 0;
  job.model.import_path = Classifier(folder + "/counted", R"("num_labels":3)");
  job.model.classes = 3;
  const Dataset counted = Prepare(job);
  EXPECT_THAT(counted.info.classes, ElementsAre("0", "1", "2"));
  EXPECT_EQ((*counted.train.labels)[0] + (*counted.train.labels)[1], 1 + 2);
  // A new classifier numbers what there is.
  job.model.classes = 2;
  EXPECT_THAT(Prepare(job).info.classes, ElementsAre("1", "2"));
}

JobSpec Vit(const std::string& path, int64_t size, int64_t channels) {
  JobSpec job;
  job.model.family = "vit";
  job.model.image_size = size;
  job.model.patch_size = 2;
  job.model.image_channels = channels;
  job.data.train = {path};
  job.data.validation_fraction = 0.25;
  return job;
}

TEST(PrepareImages, ReadsIdxPairsAndScattersThem) {
  const std::string folder = MakeTestFolder();
  std::string images("\0\0\x08\3\0\0\0\x14\0\0\0\4\0\0\0\4", 16);
  std::string labels("\0\0\x08\1\0\0\0\x14", 8);
  for (int p = 0; p < 20; ++p) {
    images.append(16, static_cast<char>(p * 10));
    labels += static_cast<char>(p / 10);
  }
  Write(folder + "/train-labels-idx1-ubyte", labels);
  JobSpec job = Vit(Write(folder + "/train-images-idx3-ubyte", images), 4, 1);
  const Dataset dataset = Prepare(job);
  EXPECT_EQ(dataset.info.classes.size(), 2u);
  EXPECT_EQ(dataset.info.train_documents, 15);
  std::map<int32_t, int32_t> seen;
  for (const TokenSpan* span : {&dataset.train, &dataset.validation}) {
    std::set<int32_t> classes;
    ImageLoaderOptions options = ImageOptions(job, false);
    options.mean = 0;
    options.deviation = 1;
    auto loader = ImageLoader::Create(*span, options);
    ASSERT_TRUE(loader.ok()) << loader.status().ToString();
    for (int64_t s = 0; s < (*loader)->Sequences(); ++s) {
      const Batch batch = *(*loader)->Get(0, s, 1);
      EXPECT_EQ(batch.length, 5);
      const auto value = static_cast<int32_t>(std::lround(batch.pixels[3] * 255));
      seen[value / 10] = batch.labels[0];
      classes.insert(batch.labels[0]);
    }
    EXPECT_EQ(classes.size(), 2u);
  }
  ASSERT_EQ(seen.size(), 20u);
  for (const auto& [image, label] : seen) EXPECT_EQ(label, image / 10);
  // Smaller, and in three colours.
  EXPECT_EQ(Prepare(Vit(folder + "/train-images-idx3-ubyte", 2, 3)).info.train_tokens, 15 * 12);
  // Two images and a half: the same ones are held out at any size.
  for (const int64_t size : {3, 4}) {
    JobSpec half = Vit(folder + "/train-images-idx3-ubyte", size, 1);
    half.model.patch_size = 1;
    half.data.validation_fraction = 0.125;
    EXPECT_EQ(Prepare(half).info.train_documents, 17);
  }
  job.model.family = "gpt2";
  EXPECT_THAT(Refusal(job), HasSubstr("images are for vit"));
  Write(folder + "/train-labels-idx1-ubyte", labels + "x");
  EXPECT_THAT(Refusal(Vit(folder + "/train-images-idx3-ubyte", 4, 1)), HasSubstr("21 values"));
}

TEST(PrepareImages, ReadsFoldersOfClasses) {
  const std::string folder = MakeTestFolder();
  for (const char* name : {"cat/a.png", "cat/b.jpg", "dog/c.PNG", "dog/d.jpeg", "dog/notes.txt"}) {
    const std::string source = std::string(name).find("n") == 4   ? "noise.png"
                               : std::string(name).ends_with("g") ? "smooth.jpg"
                                                                  : "noise.png";
    Write(folder + "/photos/" + name, *ReadFile(Env::Posix(), kTestData + "images/" + source));
  }
  JobSpec job = Vit(folder + "/photos", 4, 3);
  const Dataset dataset = Prepare(job);
  EXPECT_THAT(dataset.info.classes, ElementsAre("cat", "dog"));
  EXPECT_EQ(dataset.info.train_documents + dataset.info.validation_documents, 4);
  EXPECT_EQ(dataset.info.train_tokens + dataset.info.validation_tokens, 4 * 48);
  Write(folder + "/photos/dog/bad.png", "\x89PNG\r\n\x1a\nxxxx");
  EXPECT_THAT(Refusal(job), HasSubstr("bad.png"));
  for (int label = 0; label < 11; ++label) {
    Write(folder + "/numbered/" + std::to_string(label) + "/a.png",
          *ReadFile(Env::Posix(), kTestData + "images/noise.png"));
  }
  EXPECT_EQ(Prepare(Vit(folder + "/numbered", 4, 3)).info.classes[10], "10");
  JobSpec counted = Vit(folder + "/numbered", 4, 3);
  counted.model.import_path = folder + "/model";
  counted.model.classes = 12;
  Write(folder + "/model/config.json", R"({"model_type":"vit",
      "architectures":["ViTForImageClassification"],"num_labels":12})");
  EXPECT_THAT(Prepare(counted).info.classes, SizeIs(12));
  // The data have only the last two of three classes: they keep their numbers.
  for (const char* label : {"2", "1"}) {
    Write(folder + "/some/" + label + "/a.png",
          *ReadFile(Env::Posix(), kTestData + "images/noise.png"));
  }
  JobSpec some = Vit(folder + "/some", 4, 3);
  some.data.validation_fraction = 0;
  some.model.import_path = folder + "/model_of_three";
  some.model.classes = 3;
  Write(folder + "/model_of_three/config.json", R"({"model_type":"vit",
      "architectures":["ViTForImageClassification"],"num_labels":3})");
  const Dataset of_three = Prepare(some);
  EXPECT_THAT(of_three.info.classes, ElementsAre("0", "1", "2"));
  EXPECT_EQ((*of_three.train.labels)[0] + (*of_three.train.labels)[1], 1 + 2);
  Write(folder + "/none/readme.txt", "");
  EXPECT_THAT(Refusal(Vit(folder + "/none", 4, 3)), HasSubstr("no images"));
}

}  // namespace
}  // namespace weft::engine
