// Preference data: two rows a line, next to each other whatever the order, and lines that cannot be
// used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/formats/tokenizer.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/prepare.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTokenizer =
    std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/chat_templates/bytes.json";

JobSpec Job(const std::string& lines) {
  MakeTestFolder();
  const std::string path = TestFolder() + "/data.jsonl";
  EXPECT_TRUE(Env::Posix().CreateDirs(TestFolder()).ok());
  EXPECT_TRUE(WriteFileAtomic(Env::Posix(), path, lines).ok());
  JobSpec job;
  job.model.family = "llama";
  job.data.train = {path};
  job.data.format = "preference";
  job.data.validation_fraction = 0;
  job.data.batching = "pad_dynamic";
  job.data.tokenizer.path = kTokenizer;
  job.train.sequence_length = 64;
  job.train.global_batch = 4;
  return job;
}

Result<Dataset> TryPrepare(const JobSpec& job) {
  return PrepareDataset(Env::Posix(), job, TestFolder() + "/cache", 2);
}

Dataset Prepare(const JobSpec& job) {
  Result<Dataset> dataset = TryPrepare(job);
  EXPECT_TRUE(dataset.ok()) << dataset.status().ToString();
  return dataset.ok() ? *std::move(dataset) : Dataset{};
}

std::unique_ptr<TokenLoader> Load(const TokenSpan& span, const LoaderOptions& options) {
  auto loader = TokenLoader::Create(span, options);
  EXPECT_TRUE(loader.ok()) << loader.status().ToString();
  return *std::move(loader);
}

/// The text of each row, with what is to be predicted in brackets.
std::vector<std::string> Rows(const Batch& batch) {
  const Tokenizer tokenizer = *Tokenizer::Load(Env::Posix(), kTokenizer);
  std::vector<std::string> rows;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    std::string text;
    bool answers = false;
    for (int64_t t = 0; t < batch.lengths[static_cast<size_t>(s)]; ++t) {
      const auto at = static_cast<size_t>(s * batch.length + t);
      const bool is_target = t > 0 && batch.targets[at - 1] != kernels::kIgnoreTarget;
      if (is_target != answers) text += is_target ? "[" : "]";
      answers = is_target;
      text += *tokenizer.Decode(std::vector<int32_t>{batch.tokens[at]});
    }
    rows.push_back(text + (answers ? "]" : ""));
  }
  return rows;
}

std::vector<std::string> AllRows(const JobSpec& job) {
  const Dataset dataset = Prepare(job);
  const auto loader = Load(dataset.train, ValidationLoaderOptions(job, dataset.info));
  return Rows(*loader->Get(0, 0, loader->Sequences()));
}

std::string NumberedLines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    lines += R"({"prompt": "p)" + number + R"( ", "chosen": "yes)" + std::string(i % 7, '!') +
             R"(", "rejected": "no)" + std::string(i % 5, '?') + "\"}\n";
  }
  return lines;
}

TEST(PreferenceData, OfTextsTheAnswersAndTheirEndAreTargets) {
  EXPECT_THAT(AllRows(Job(R"([{"prompt": "1 + 1? ", "chosen": "2", "rejected": "3, I think"},
                              {"prompt": "Bye", "rejected": "", "chosen": " then", "score": NaN}])")),
              ElementsAre("1 + 1? [2<|endoftext|>]", "1 + 1? [3, I think<|endoftext|>]",
                          "Bye[ then<|endoftext|>]", "Bye[<|endoftext|>]"));
}

TEST(PreferenceData, OfMessagesTheLastAnswersAreTargets) {
  const std::string lines =
      R"({"prompt": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Go"}], "chosen": [{"role": "assistant", "content": "on"}], "rejected": [{"role": "assistant", "content": "away"}]})";
  JobSpec job = Job(lines);
  job.train.sequence_length = 256;
  const std::string prompt =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
      "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_THAT(AllRows(job),
              ElementsAre(prompt + "[on<|im_end|>]\n", prompt + "[away<|im_end|>]\n"));
  // A template that marks what is said, also in the prompt.
  job.data.chat_template =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
      "{% endgeneration %}{% else %}{{ m.content }}:{% endif %}{% endfor %}";
  EXPECT_THAT(AllRows(job), ElementsAre("Hi:Hello;Go:[on;]", "Hi:Hello;Go:[away;]"));
}

TEST(PreferenceData, PairsStayTogetherInEveryOrder) {
  constexpr int kPairs = 23;
  for (const char* batching : {"pad_fixed", "pad_dynamic", "pad_uniform"}) {
    SCOPED_TRACE(batching);
    JobSpec job = Job(NumberedLines(kPairs));
    job.data.batching = batching;
    const Dataset dataset = Prepare(job);
    const auto loader = Load(dataset.train, TrainLoaderOptions(job, dataset.info));
    ASSERT_EQ(loader->Sequences(), 2 * kPairs);
    std::map<int32_t, std::string> texts;
    std::vector<int32_t> order;
    for (int64_t s = 0; s < 2 * kPairs; s += 2) {
      const Batch batch = *loader->Get(s / 4, s % 4, 2);
      const std::vector<std::string> rows = Rows(batch);
      const int32_t index = batch.sequence_indices[0];
      order.push_back(index);
      EXPECT_EQ(index % 2, 0);
      EXPECT_EQ(batch.sequence_indices[1], index + 1);
      EXPECT_EQ(batch.target_count, 2);
      const std::string prompt = "p" + std::to_string(index / 2) + " ";
      EXPECT_TRUE(rows[0].starts_with(prompt + "[yes")) << rows[0];
      EXPECT_TRUE(rows[1].starts_with(prompt + "[no")) << rows[1];
      // One row at a time is the same.
      EXPECT_EQ(Rows(*loader->Get(s / 4, s % 4 + 1, 1))[0], rows[1]);
    }
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), static_cast<size_t>(kPairs));
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  }
}

TEST(PreferenceData, PairsAreHeldOutWhole) {
  for (const double fraction : {0.1, 0.2, 0.33, 0.49}) {
    JobSpec job = Job(NumberedLines(11));
    job.data.validation_fraction = fraction;
    const Dataset dataset = Prepare(job);
    EXPECT_EQ(dataset.info.train_documents + dataset.info.validation_documents, 22);
    EXPECT_EQ(dataset.info.train_documents % 2, 0) << fraction;
    EXPECT_GT(dataset.info.validation_documents, 0) << fraction;
    const auto loader = Load(dataset.validation, ValidationLoaderOptions(job, dataset.info));
    const std::vector<std::string> rows = Rows(*loader->Get(0, 0, 2));
    EXPECT_THAT(rows[0], HasSubstr("[yes"));
    EXPECT_THAT(rows[1], HasSubstr("[no"));
  }
}

TEST(PreferenceData, APairGoesWithTheAnswerThatDoesNotFit) {
  JobSpec job = Job(
      R"({"prompt": "a long prompt that leaves no room", "chosen": "x", "rejected": "y"}
{"prompt": "short ", "chosen": "x", "rejected": "y"}
)");
  job.train.sequence_length = 16;
  const Dataset dataset = Prepare(job);
  const auto loader = Load(dataset.train, ValidationLoaderOptions(job, dataset.info));
  EXPECT_EQ(loader->rows_left_out(), 2);
  EXPECT_THAT(Rows(*loader->Get(0, 0, 2)),
              ElementsAre("short [x<|endoftext|>]", "short [y<|endoftext|>]"));
  job.train.sequence_length = 2;
  EXPECT_THAT(TokenLoader::Create(dataset.train, ValidationLoaderOptions(job, dataset.info))
                  .status()
                  .message(),
              HasSubstr("hold no token of an answer"));
}

TEST(PreferenceData, BadLinesNameTheirPlace) {
  const std::string good = R"({"prompt": "p", "chosen": "c", "rejected": "r"})"
                           "\n";
  const auto refusal = [&](const std::string& line) {
    return TryPrepare(Job(good + line + "\n")).status().message();
  };
  for (
      const auto& [line, reason] : std::map<std::string, std::string>{
          {R"({"prompt": "p", "chosen": "c"})", "no field \"rejected\""},
          {R"({"chosen": "c", "rejected": "r"})", "no field \"prompt\""},
          {R"({"prompt": "p", "chosen": ["c"], "rejected": "r"})", "the field \"chosen\" is"},
          {R"({"prompt": 5, "chosen": "c", "rejected": "r"})", "the field \"prompt\" is 5"},
          {R"({"prompt": "p", "chosen": "c", "rejected": "c"})", "are the same"},
          {R"({"prompt": [], "chosen": [], "rejected": []})", "the field \"prompt\""},
          {R"({"prompt": [{"role": "user"}], "chosen": [], "rejected": []})", "message 1 has no"},
          {R"({"prompt": [{"role": "user", "content": "p"}], "chosen": "c", "rejected": "r"})",
           "the field \"chosen\""},
          {R"({"prompt": [{"role": "user", "content": "p"}], "chosen": [{"role": "assistant", "content": "c"}], "rejected": [{"role": "assistant", "content": "r"}]})",
           "that of the first line a string"},
          {R"({"prompt": "p", "chosen": "c", "rejected": "r)", "data.jsonl:2: "},
          {"5", "not a JSON object"}}) {
    EXPECT_THAT(refusal(line), HasSubstr("data.jsonl:2: ")) << line;
    EXPECT_THAT(refusal(line), HasSubstr(reason)) << line;
    EXPECT_THAT(refusal(line), HasSubstr("hint: ")) << line;
    JobSpec job = Job(line + "\n" + good + line + "\n" + good);
    job.data.bad_lines = "skip";
    const Dataset dataset = Prepare(job);
    EXPECT_EQ(dataset.info.skipped_lines, 2) << line;
    EXPECT_EQ(dataset.info.train_documents, 4) << line;
  }
}

TEST(PreferenceData, AnAnswerOfAnotherRoleSaysNothing) {
  const std::string line =
      R"({"prompt": [{"role": "user", "content": "p"}], "chosen": [{"role": "user", "content": "c"}], "rejected": [{"role": "assistant", "content": "r"}]})";
  EXPECT_THAT(TryPrepare(Job(line)).status().message(),
              HasSubstr("data.jsonl:1: the chosen answer says nothing"));
}

TEST(PreferenceData, NeedsARowForEachAnswer) {
  JobSpec job = Job(NumberedLines(4));
  const Dataset dataset = Prepare(job);
  job.data.batching = "best_fit";
  EXPECT_THAT(
      TokenLoader::Create(dataset.train, TrainLoaderOptions(job, dataset.info)).status().message(),
      HasSubstr("one answer a sequence"));
}

}  // namespace
}  // namespace weft::engine
