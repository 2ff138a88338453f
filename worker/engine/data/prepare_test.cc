#include "worker/engine/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "common/formats/tokenizer.h"
#include "common/formats/vocab_and_merges.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

const std::string kTokenizer = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/gpt2_part";

std::string Write(const std::string& path, const std::string& text) {
  EXPECT_TRUE(WriteFileAtomic(Env::Posix(), path, text).ok());
  return path;
}

/// Twenty lines of JSONL with documents of different lengths.
std::string Lines() {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "{\"text\":\"";
    for (int w = 0; w <= i; ++w) text += "hello world " + std::to_string(i);
    text += "\"}\n";
  }
  return text;
}

JobSpec Spec(const std::string& path) {
  JobSpec job;
  job.data.train = {path};
  job.data.tokenizer.path = kTokenizer;
  job.data.validation_fraction = 0.1;
  return job;
}

Dataset Prepare(const JobSpec& job, const std::string& cache, int threads = 2) {
  Result<Dataset> dataset = PrepareDataset(Env::Posix(), job, cache, threads);
  EXPECT_TRUE(dataset.ok()) << dataset.status().ToString();
  return dataset.ok() ? *dataset : Dataset{};
}

std::vector<int32_t> Tokens(const TokenSpan& span) {
  std::vector<int32_t> tokens(span.count);
  span.shard->Read(span.first, tokens);
  return tokens;
}

std::vector<std::string> Folders(const std::string& cache) {
  std::vector<std::string> folders;
  Result<std::vector<std::string>> names = Env::Posix().ListDir(cache);
  EXPECT_TRUE(names.ok()) << names.status().ToString();
  for (const std::string& name : *names) {
    if (!name.ends_with(".lock")) folders.push_back(name);
  }
  return folders;
}

TEST(PrepareDataset, EncodesDocumentsInOrderAndHoldsOutTheLast) {
  const std::string folder = MakeTestFolder();
  const Dataset dataset = Prepare(Spec(Write(folder + "/a.jsonl", Lines())), folder + "/cache");
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kTokenizer);
  ASSERT_TRUE(tokenizer.ok());
  const auto end = static_cast<int32_t>(dataset.info.end_of_text);
  EXPECT_EQ(end, *tokenizer->end_of_text());
  std::vector<int32_t> expected;
  std::vector<uint64_t> starts = {0};
  for (int i = 0; i < 20; ++i) {
    std::string text;
    for (int w = 0; w <= i; ++w) text += "hello world " + std::to_string(i);
    ASSERT_TRUE(tokenizer->Encode(text, expected).ok());
    expected.push_back(end);
    starts.push_back(expected.size());
  }
  std::vector<int32_t> all = Tokens(dataset.train);
  const std::vector<int32_t> held = Tokens(dataset.validation);
  // The cut falls on a document: about a tenth of the tokens is held out.
  EXPECT_NE(std::find(starts.begin(), starts.end(), all.size()), starts.end());
  EXPECT_GE(held.size() * 20, expected.size());
  EXPECT_LE(held.size() * 5, expected.size());
  all.insert(all.end(), held.begin(), held.end());
  EXPECT_EQ(all, expected);
  EXPECT_EQ(dataset.info.train_documents + dataset.info.validation_documents, 20);
}

TEST(PrepareDataset, CutsASingleDocumentAtTheShareAskedFor) {
  const std::string folder = MakeTestFolder();
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "hello world " + std::to_string(i % 7);
  const Dataset dataset = Prepare(Spec(Write(folder + "/a.txt", text)), folder + "/cache");
  const int64_t total = dataset.info.train_tokens + dataset.info.validation_tokens;
  EXPECT_EQ(dataset.info.validation_tokens, total / 10);
  EXPECT_EQ(dataset.info.validation_documents, 1);
}

TEST(PrepareDataset, DependsOnContentNotOnThreadsPathsOrTheDayOfTheWeek) {
  const std::string folder = MakeTestFolder();
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "hello world naïve " + std::to_string(i);
  ASSERT_GT(text.size(), size_t{4} << 20);  // several parts
  const Dataset one = Prepare(Spec(Write(folder + "/a.txt", text)), folder + "/cache1", 1);
  const Dataset two = Prepare(Spec(Write(folder + "/b.txt", text)), folder + "/cache2", 3);
  EXPECT_EQ(one.fingerprint, two.fingerprint);
  EXPECT_EQ(Folders(folder + "/cache1"), Folders(folder + "/cache2"));
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), kTokenizer);
  std::vector<int32_t> expected;
  ASSERT_TRUE(tokenizer->Encode(text, expected).ok());
  expected.push_back(*tokenizer->end_of_text());
  std::vector<int32_t> all = Tokens(one.train);
  const std::vector<int32_t> held = Tokens(one.validation);
  all.insert(all.end(), held.begin(), held.end());
  EXPECT_TRUE(all == expected) << "parts of one document do not join up";

  Prepare(Spec(folder + "/a.txt"), folder + "/cache1", 2);
  EXPECT_EQ(Folders(folder + "/cache1").size(), 1u) << "found again";
  JobSpec other = Spec(folder + "/a.txt");
  other.data.validation_fraction = 0.2;
  EXPECT_NE(Prepare(other, folder + "/cache1").fingerprint, one.fingerprint);
  EXPECT_EQ(Folders(folder + "/cache1").size(), 2u);
}

TEST(PrepareDataset, UsesValidationFilesAndComputesTheUnigramEntropy) {
  const std::string folder = MakeTestFolder();
  JobSpec job = Spec(Write(folder + "/a.txt", "aab"));
  job.data.validation = {Write(folder + "/v.txt", "ac")};
  job.data.tokenizer.path = folder + "/tokenizer.json";
  Result<TokenizerDefinition> part =
      ParseVocabAndMerges(*ReadFile(Env::Posix(), kTokenizer + "/vocab.json"), "#version: 0.2\n");
  ASSERT_TRUE(part.ok());
  Result<Tokenizer> tokenizer = Tokenizer::Create(*part);
  ASSERT_TRUE(tokenizer.ok());
  Write(job.data.tokenizer.path, tokenizer->content());
  const Dataset dataset = Prepare(job, folder + "/cache");
  EXPECT_TRUE(dataset.info.validation_file);
  EXPECT_EQ(dataset.info.train_tokens, 4);
  EXPECT_EQ(dataset.info.validation_tokens, 3);
  // Seen: a a b end. Asked: a c end.
  const double total = 4 + static_cast<double>(tokenizer->vocab_size());
  const double expected = -(std::log(3 / total) + std::log(1 / total) + std::log(2 / total)) / 3;
  EXPECT_NEAR(dataset.info.unigram_entropy_nats, expected, 1e-12);
}

TEST(PrepareDataset, TrainsATokenizerWhenNoneIsGiven) {
  const std::string folder = MakeTestFolder();
  JobSpec job = Spec(Write(folder + "/a.jsonl", Lines()));
  job.data.tokenizer.path = "";
  job.data.tokenizer.vocab_size = 270;
  const Dataset dataset = Prepare(job, folder + "/cache");
  EXPECT_EQ(dataset.info.vocab_size, 270);
  EXPECT_EQ(dataset.info.end_of_text, 269);
  Result<Tokenizer> tokenizer = Tokenizer::Load(Env::Posix(), dataset.TokenizerPath());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  Result<std::string> text = tokenizer->Decode(Tokens(dataset.train));
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("hello world 7<|endoftext|>"));
}

TEST(PrepareDataset, MakesADamagedDatasetAgain) {
  const std::string folder = MakeTestFolder();
  const JobSpec job = Spec(Write(folder + "/a.jsonl", Lines()));
  const Dataset before = Prepare(job, folder + "/cache");
  for (const std::string name : {"train.tokens", "tokenizer.json", "dataset.json"}) {
    std::string bytes = *ReadFile(Env::Posix(), before.folder + "/" + name);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    Write(before.folder + "/" + name, bytes);
    EXPECT_FALSE(name == "train.tokens" && OpenDataset(Env::Posix(), before.folder).ok());
    EXPECT_EQ(Prepare(job, folder + "/cache").fingerprint, before.fingerprint) << name;
  }
  // What a killed process left is no obstacle.
  ASSERT_TRUE(Env::Posix().Rename(before.folder, before.folder + ".tmp").ok());
  EXPECT_EQ(Prepare(job, folder + "/cache").fingerprint, before.fingerprint);
  EXPECT_EQ(Folders(folder + "/cache").size(), 1u);
}

TEST(PrepareDataset, LetsSeveralProcessesPrepareTheSameData) {
  const std::string folder = MakeTestFolder();
  const JobSpec job = Spec(Write(folder + "/a.jsonl", Lines()));
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(PrepareDataset(Env::Posix(), job, folder + "/cache", 1).ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(Folders(folder + "/cache").size(), 1u);
}

TEST(PrepareDataset, NamesWhatIsWrongWithItsInputAndLeavesNothing) {
  const std::string folder = MakeTestFolder();
  const std::string cache = folder + "/cache";
  auto fail = [&](const JobSpec& job) {
    Result<Dataset> dataset = PrepareDataset(Env::Posix(), job, cache, 2);
    EXPECT_FALSE(dataset.ok());
    return dataset.status().message();
  };
  EXPECT_THAT(fail(Spec(folder + "/missing.txt")), HasSubstr("missing.txt"));
  EXPECT_THAT(fail(Spec(Write(folder + "/empty.txt", ""))), HasSubstr("is empty"));
  EXPECT_THAT(fail(Spec(Write(folder + "/bad.jsonl", Lines() + "{\n"))), HasSubstr("bad.jsonl:21"));
  JobSpec job = Spec(Write(folder + "/a.txt", "text"));
  job.data.tokenizer.path = folder + "/none";
  EXPECT_THAT(fail(job), HasSubstr("hint: give a tokenizer.json"));
  job.data.tokenizer.path = folder;
  Write(folder + "/vocab.json", "{\"a\":0}");
  Write(folder + "/merges.txt", "");
  EXPECT_THAT(fail(job), HasSubstr("no end-of-text token"));
  EXPECT_TRUE(Folders(cache).empty());
}

}  // namespace
}  // namespace weft::engine
