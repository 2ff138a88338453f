// Data for instruction tuning: which tokens are targets, counted in another way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/formats/chat_template.h"
#include "common/formats/tokenizer.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/prepare.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTokenizer =
    std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/chat_templates/bytes.json";

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = TestFolder() + "/" + name;
  EXPECT_TRUE(Env::Posix().CreateDirs(TestFolder()).ok());
  EXPECT_TRUE(WriteFileAtomic(Env::Posix(), path, text).ok());
  return path;
}

/// A job that trains on the answers of these lines.
JobSpec Job(const std::string& format, const std::string& lines) {
  MakeTestFolder();
  JobSpec job;
  job.model.family = "llama";
  job.data.train = {Write("data.jsonl", lines)};
  job.data.format = format;
  job.data.loss_on = "completions";
  job.data.validation_fraction = 0;
  job.data.batching = "pad_dynamic";
  job.data.tokenizer.path = kTokenizer;
  job.train.sequence_length = 64;
  job.train.global_batch = 2;
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

std::unique_ptr<TokenLoader> Load(const JobSpec& job, const Dataset& dataset) {
  auto loader = TokenLoader::Create(dataset.train, ValidationLoaderOptions(job, dataset.info));
  EXPECT_TRUE(loader.ok()) << loader.status().ToString();
  return *std::move(loader);
}

/// The texts of the tokens that are targets, one run after the other.
std::vector<std::string> Targets(const Batch& batch, const Tokenizer& tokenizer) {
  std::vector<std::string> runs;
  std::vector<int32_t> run;
  for (size_t i = 0; i <= batch.targets.size(); ++i) {
    if (i < batch.targets.size() && batch.targets[i] != kernels::kIgnoreTarget) {
      run.push_back(batch.targets[i]);
    } else if (!run.empty()) {
      runs.push_back(*tokenizer.Decode(run));
      run.clear();
    }
  }
  return runs;
}

std::vector<std::string> AllTargets(const JobSpec& job) {
  const Dataset dataset = Prepare(job);
  const auto loader = Load(job, dataset);
  const Batch batch = *loader->Get(0, 0, loader->Sequences());
  return Targets(batch, *Tokenizer::Load(Env::Posix(), dataset.TokenizerPath()));
}

constexpr char kChats[] =
    R"({"messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "No more."}]}
{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "I weave, I think."}], "tools": null, "other": NaN}
{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A loom."}]}
)";

TEST(Instruction, OfChatsTheAnswersAndTheirEndAreTargets) {
  EXPECT_THAT(AllTargets(Job("chat", kChats)),
              ElementsAre("2<|im_end|>", "No more.<|im_end|>", "I weave, I think.<|im_end|>",
                          "A loom.<|im_end|>"));
}

TEST(Instruction, EveryBatchingHasTheTargetsThatAnotherCountFinds) {
  const Tokenizer tokenizer = *Tokenizer::Load(Env::Posix(), kTokenizer);
  int64_t expected = 0;
  for (const char* said : {"2", "No more.", "I weave, I think.", "A loom."}) {
    std::vector<int32_t> ids;
    ASSERT_TRUE(tokenizer.Encode(said, ids).ok());
    expected += static_cast<int64_t>(ids.size()) + 1;
  }
  for (const char* batching :
       {"concatenate", "best_fit", "pad_fixed", "pad_dynamic", "pad_uniform"}) {
    for (const bool mask_documents : {false, true}) {
      JobSpec job = Job("chat", kChats);
      job.data.batching = batching;
      job.data.mask_documents = mask_documents;
      const Dataset dataset = Prepare(job);
      if (job.data.batching == "concatenate") {  // all tokens in one row
        job.train.sequence_length = dataset.info.train_tokens - 1;
      }
      const auto loader = Load(job, dataset);
      const Batch batch = *loader->Get(0, 0, loader->Sequences());
      EXPECT_EQ(batch.target_count, expected) << batching << mask_documents;
      const std::vector<std::string> runs = Targets(batch, tokenizer);
      const std::set<std::string> texts(runs.begin(), runs.end());
      EXPECT_EQ(texts, (std::set<std::string>{"2<|im_end|>", "No more.<|im_end|>",
                                              "I weave, I think.<|im_end|>", "A loom.<|im_end|>"}))
          << batching << mask_documents;
    }
  }
  JobSpec all = Job("chat", kChats);
  all.data.loss_on = "all";
  const Dataset dataset = Prepare(all);
  EXPECT_EQ(dataset.train.answers, nullptr);
  const auto loader = Load(all, dataset);
  EXPECT_EQ(loader->Get(0, 0, 3)->target_count, dataset.info.train_tokens - 3);
}

TEST(Instruction, OfPromptsTheCompletionsAreTargets) {
  JobSpec job = Job("prompt_completion",
                    R"([{"prompt": "Who weaves?", "completion": " The weaver."},
                        {"prompt": "", "completion": "Only this"},
                        {"completion": "\n\nb", "prompt": "a\n", "more": [1]}])");
  EXPECT_THAT(AllTargets(job), ElementsAre(" The weaver.<|endoftext|>", "nly this<|endoftext|>",
                                           "\n\nb<|endoftext|>"));
  const Dataset dataset = Prepare(job);
  const Tokenizer tokenizer = *Tokenizer::Load(Env::Posix(), kTokenizer);
  std::vector<int32_t> tokens(dataset.train.count);
  dataset.train.shard->Read(0, tokens);
  EXPECT_EQ(*tokenizer.Decode(tokens),
            "Who weaves? The weaver.<|endoftext|>Only this<|endoftext|>a\n\n\nb<|endoftext|>");
}

TEST(Instruction, OfAlpacaTheOutputsAreTargets) {
  const JobSpec job = Job("alpaca", R"({"instruction": "Add.", "input": "1, 2", "output": "3"}
{"instruction": "Greet.", "input": "", "output": "Hi"}
{"instruction": "Leave.", "output": "Bye"})");
  EXPECT_THAT(AllTargets(job),
              ElementsAre("3<|endoftext|>", "Hi<|endoftext|>", "Bye<|endoftext|>"));
  const Dataset dataset = Prepare(job);
  const Tokenizer tokenizer = *Tokenizer::Load(Env::Posix(), kTokenizer);
  std::vector<int32_t> tokens(dataset.train.count);
  dataset.train.shard->Read(0, tokens);
  EXPECT_THAT(
      *tokenizer.Decode(tokens),
      HasSubstr("### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n### Response:\n3<|endoftext|>"
                "### Instruction:\nGreet.\n\n### Response:\nHi<|endoftext|>"));
}

TEST(Instruction, WhatDoesNotFitIsLeftOutAndRowsWithoutAnswersToo) {
  const std::string lines =
      R"({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "I weave, I think, and I weave again, and again."}]}
{"messages": [{"role": "user", "content": "I ask and ask and ask and ask and ask and ask and ask and ask."}, {"role": "assistant", "content": "No."}]}
{"messages": [{"role": "user", "content": "Nobody answers."}]}
)";
  for (const char* batching : {"pad_fixed", "pad_dynamic", "best_fit"}) {
    JobSpec job = Job("chat", lines);
    job.data.batching = batching;
    job.train.sequence_length = 24;
    const Dataset dataset = Prepare(job);
    const auto loader = Load(job, dataset);
    EXPECT_EQ(loader->Sequences(), 1) << batching;
    EXPECT_EQ(loader->rows_left_out(), 2) << batching;
    const std::vector<std::string> runs =
        Targets(*loader->Get(0, 0, 1), *Tokenizer::Load(Env::Posix(), kTokenizer));
    ASSERT_EQ(runs.size(), 1u) << batching;
    EXPECT_TRUE(std::string("I weave, I think, and I weave again, and again.").starts_with(runs[0]))
        << runs[0];
  }
  JobSpec job = Job("chat", lines);
  job.train.sequence_length = 4;
  const Dataset dataset = Prepare(job);
  EXPECT_THAT(TokenLoader::Create(dataset.train, ValidationLoaderOptions(job, dataset.info))
                  .status()
                  .message(),
              HasSubstr("all 3 sequences of the data hold no token of an answer"));
}

TEST(Instruction, BadLinesNameTheirPlace) {
  auto refusal = [](const std::string& format, const std::string& lines) {
    return TryPrepare(Job(format, lines)).status().message();
  };
  const std::string good = std::string(kChats).substr(0, std::string(kChats).find('\n') + 1);
  EXPECT_THAT(refusal("chat", good + "{}\n"), HasSubstr("data.jsonl:2: no field \"messages\""));
  EXPECT_THAT(refusal("chat", good + R"({"messages": [{"role": "user"}]})"),
              HasSubstr("data.jsonl:2: message 1 has no string \"content\"; hint: data.bad_lines"));
  EXPECT_THAT(refusal("chat", good + R"({"messages": "hi"})"), HasSubstr("data.jsonl:2: "));
  EXPECT_THAT(refusal("prompt_completion", R"({"prompt": "a"})"),
              HasSubstr("data.jsonl:1: no field \"completion\""));
  EXPECT_THAT(refusal("prompt_completion", R"({"prompt": ["a"], "completion": "b"})"),
              HasSubstr("is not a string"));
  EXPECT_THAT(refusal("alpaca", R"({"instruction": "a", "input": 5, "output": "b"})"),
              HasSubstr("data.jsonl:1: the field \"input\" is 5"));

  JobSpec job = Job("chat", good + "{}\n[1]\n" + good);
  job.data.bad_lines = "skip";
  const Dataset dataset = Prepare(job);
  EXPECT_EQ(dataset.info.skipped_lines, 2);
  EXPECT_EQ(dataset.info.train_documents, 2);
  // What the template refuses is a bad line, too; the first has a system message.
  job = Job("chat", kChats);
  job.data.chat_template =
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
      "{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}";
  EXPECT_THAT(TryPrepare(job).status().message(),
              AllOf(HasSubstr("data.jsonl:1: the chat template: line 1: "),
                    HasSubstr("no system; hint: data.bad_lines")));
  job.data.bad_lines = "skip";
  EXPECT_EQ(Prepare(job).info.skipped_lines, 1);
  EXPECT_EQ(Prepare(job).info.train_documents, 2);
}

TEST(Instruction, TheDatasetsTokenizerHasTheTemplateAndStopsAtItsEnd) {
  JobSpec job = Job("chat", kChats);
  job.data.chat_template =
      "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}"
      "<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
      "<|start_header_id|>assistant<|end_header_id|>{% endif %}";
  const Dataset dataset = Prepare(job);
  const Tokenizer tokenizer = *Tokenizer::Load(Env::Posix(), dataset.TokenizerPath());
  EXPECT_EQ(tokenizer.config().chat_template, job.data.chat_template);
  std::vector<std::string> stops;
  for (int32_t id : tokenizer.roles().stops) stops.push_back(*tokenizer.TokenOf(id));
  EXPECT_THAT(stops, ElementsAre("<|endoftext|>", "<|eot_id|>"));
  EXPECT_EQ(tokenizer.end_of_text(), Tokenizer::Load(Env::Posix(), kTokenizer)->end_of_text());
  // Another template is another dataset.
  JobSpec other = job;
  other.data.chat_template = "";
  EXPECT_NE(Prepare(other).folder, dataset.folder);
  other = job;
  other.data.loss_on = "all";
  EXPECT_NE(Prepare(other).folder, dataset.folder);
}

TEST(Instruction, ATokenizerThatIsTrainedHasTheTokensOfTheTemplate) {
  JobSpec job = Job("chat", kChats);
  job.data.tokenizer.path.clear();
  job.data.tokenizer.vocab_size = 300;
  job.train.sequence_length = 256;
  EXPECT_THAT(AllTargets(job), ElementsAre("2<|im_end|>", "No more.<|im_end|>",
                                           "I weave, I think.<|im_end|>", "A loom.<|im_end|>"));
  const Dataset dataset = Prepare(job);
  const Tokenizer tokenizer = *Tokenizer::Load(Env::Posix(), dataset.TokenizerPath());
  std::vector<std::string> special;
  for (int32_t id : tokenizer.special_tokens()) special.push_back(*tokenizer.TokenOf(id));
  EXPECT_THAT(special, ElementsAre("<|endoftext|>", "<|im_start|>", "<|im_end|>"));
}

TEST(Instruction, ConversationsAreHeldOutWhole) {
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    lines += R"({"messages": [{"role": "user", "content": "Hello"}, )"
             R"({"role": "assistant", "content": "number )" +
             std::to_string(i) + "\"}]}\n";
  }
  JobSpec job = Job("chat", lines);
  job.data.validation_fraction = 0.25;
  const Dataset dataset = Prepare(job);
  EXPECT_EQ(dataset.info.train_documents + dataset.info.validation_documents, 10);
  EXPECT_GT(dataset.info.validation_documents, 1);
  EXPECT_GT(dataset.info.unigram_entropy_nats, 0);
}

}  // namespace
}  // namespace weft::engine
