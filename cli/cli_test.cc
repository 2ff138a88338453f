#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "cli/client.h"
#include "cli/follow.h"
#include "cli/job_array.h"
#include "cli/job_file.h"
#include "cli/output.h"
#include "cli/phase_ledger.h"
#include "cli/text_columns.h"
#include "cli/time_ledger.h"

namespace weft::cli {
namespace {

std::string WriteTemp(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::string LoadError(const std::string& text) {
  std::string path = WriteTemp("job.yaml", text);
  Result<JobSpec> job = LoadJobFile(path);
  if (job.ok()) return "accepted";
  std::string message = job.status().message();
  if (size_t at = message.find(path); at != std::string::npos)
    message.replace(at, path.size(), "F");
  return message;
}

TEST(JobFile, MakesPathsAbsoluteFromTheFilesFolder) {
  std::string path = WriteTemp("paths.yaml",
                               "name: a\ndata:\n  train: [text/a.txt, /abs/b.txt]\n"
                               "  tokenizer: {path: ../tok}\n"
                               "model: {peft: {method: lora, adapters: [{name: b}, {name: c, "
                               "train: [c.txt], validation: [text/d.txt]}]}}\n");
  Result<JobSpec> job = LoadJobFile(path);
  ASSERT_TRUE(job.ok()) << job.status().message();
  std::filesystem::path base = std::filesystem::absolute(testing::TempDir());
  EXPECT_EQ(job->data.train[0], (base / "text/a.txt").lexically_normal());
  EXPECT_EQ(job->data.train[1], "/abs/b.txt");
  EXPECT_EQ(job->data.tokenizer.path, (base / "../tok").lexically_normal());
  const AdapterSpec& adapter = job->model.peft.adapters[1];
  EXPECT_EQ(adapter.train[0], (base / "c.txt").lexically_normal());
  EXPECT_EQ(adapter.validation[0], (base / "text/d.txt").lexically_normal());
}

TEST(JobFile, ReadsTheNetworkWhoseLogitsAreAdded) {
  std::filesystem::copy(
      WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start", testing::TempDir() + "/value_base",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  const auto text = [](const std::string& base) {
    return "name: a\ndata: {train: [x]}\nmodel: {context: 16, untied_classifier: true}\n"
           "train:\n  value_learning:\n    logit_penalty: 0.1\n" +
           base;
  };
  Result<JobSpec> job =
      LoadJobFile(WriteTemp("value.yaml", text("    base: {import_path: value_base}\n")));
  ASSERT_TRUE(job.ok()) << job.status().message();
  const ModelSpec& base = job->train.value_learning.base;
  EXPECT_EQ(base.import_path,
            (std::filesystem::absolute(testing::TempDir()) / "value_base").lexically_normal());
  EXPECT_EQ(base.width, 32);
  EXPECT_EQ(job->model.vocab_size, 67);

  EXPECT_THAT(LoadError(text("    base: {import_path: value_base, width: 64}\n")),
              testing::HasSubstr("F:7: train.value_learning.base.width is not what the folder"));
  EXPECT_THAT(LoadError(text("    base: {import_path: nowhere}\n")),
              testing::HasSubstr("F:7: train.value_learning.base.import_path: "));
  EXPECT_THAT(LoadError(text("    base: {width: 64}\n")),
              testing::HasSubstr("train.value_learning has no network to add logits to"));
}

TEST(JobFile, NamesFileLineAndNearestField) {
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain:\n  step: 3\n"),
            "F:4: train.step is not a known field; did you mean 'steps'?");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain:\n  steps: many\n"),
            "F:4: train.steps must be an integer, not the string \"many\"");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain: {steps: 0}\n"),
            "F:3: train.steps is 0, but must be 1 to 1000000000000 steps");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\nmodel: {width: 100, heads: 3}\n"),
            "F:3: model.width 100 must be a multiple of model.heads 3");
  EXPECT_EQ(LoadError("name: a\ndata:\n  train: [x]\n  format: text\nmodel:\n  family: bert\n"
                      "  head: classification\n"),
            "F:7: model.head classification does not go with data.format text, because "
            "classification needs labels, which plain text does not have; hint: data.format jsonl");
  EXPECT_EQ(LoadError("data: {train: [x]}\nname: A\n").substr(0, 16), "F:2: name 'A' mu");
  EXPECT_NE(LoadError("name: a\n").find("required field data is missing"), std::string::npos);
  EXPECT_NE(LoadError("name: [a\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(LoadError(std::string("name: a\0b", 9)).find("binary data"), std::string::npos);
}

TEST(JobFile, TellsTheLineOfJsonThatYamlCannotRead) {
  EXPECT_EQ(LoadError("{\n\t\"name\": \"a\",\n\t\"data\": {\"train\": [\"x\"]},\n\t\"model\": "
                      "{\"heads\": 3,\n\t\"width\": 100}}"),
            "F:5: model.width 100 must be a multiple of model.heads 3");
}

TEST(JobFile, LowersAWarmupThatNobodyWrote) {
  std::ostringstream notes;
  Result<JobSpec> job =
      LoadJobFile(WriteTemp("warm.yaml", "name: a\ndata: {train: [x]}\ntrain: {steps: 20}\n"),
                  DataCheck::kNone, notes);
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->schedule.warmup_steps, 2);
  EXPECT_EQ(notes.str(),
            "note: schedule.warmup_steps is 2 rather than 100, for train.steps is 20\n");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain: {steps: 20}\n"
                      "schedule: {warmup_steps: 100}\n"),
            "F:4: schedule.warmup_steps 100 is more than train.steps 20");
}

TEST(JobFile, DecayAutoIsASearchAsLongAsTheWarmup) {
  const auto load = [](const std::string& sparsity, std::ostream& notes) {
    return LoadJobFile(WriteTemp("decay.yaml",
                                 "name: a\ndata: {train: [x]}\nschedule: {warmup_steps: 30}\n"
                                 "train: {steps: 1000, precision: fp32, sparsity: {method: "
                                 "masked_decay, mask_interval: 20, decay: " +
                                     sparsity + "}}\n"),
                       DataCheck::kNone, notes);
  };
  std::ostringstream notes, none;
  const Result<JobSpec> found = load("auto", notes);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->train.sparsity.decay_search_steps, 40);
  EXPECT_EQ(found->train.sparsity.decay, SparsitySpec().decay);
  EXPECT_EQ(notes.str(),
            "note: train.sparsity.decay is searched for in four runs of 40 steps each, as long as "
            "the warm-up\n");
  const Result<JobSpec> longer = load("auto, decay_search_steps: 60", none);
  ASSERT_TRUE(longer.ok()) << longer.status().message();
  EXPECT_EQ(longer->train.sparsity.decay_search_steps, 60);
  EXPECT_EQ(none.str(), "");
  EXPECT_THAT(load("automatic", none).status().message(),
              ::testing::HasSubstr("train.sparsity.decay must be a number"));
}

TEST(JobFile, ExpandsHomeVariablesAndPatterns) {
  const std::string folder = testing::TempDir() + "/expanded";
  std::filesystem::create_directories(folder + "/data");
  for (const char* name : {"data/b.txt", "data/a.txt", "data/odd[1].txt", "$x.txt"}) {
    std::ofstream(folder + "/" + name) << "some text";
  }
  setenv("WEFT_TEST_DATA", (folder + "/data").c_str(), 1);
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  setenv("HOME", folder.c_str(), 1);
  auto load = [&](const std::string& train) {
    return LoadJobFile(WriteTemp("expanded/job.yaml", "name: a\ndata:\n  train:\n" + train),
                       DataCheck::kAll);
  };
  Result<JobSpec> job = load(
      "    - $WEFT_TEST_DATA/[ab].*\n    - ~/data/a.txt\n    - ${WEFT_TEST_DATA}/a.txt\n"
      "    - data/odd[1].txt\n    - $x.txt\n");
  setenv("HOME", home.c_str(), 1);
  ASSERT_TRUE(job.ok()) << job.status().message();
  const std::string base = std::filesystem::path(folder).lexically_normal().string();
  EXPECT_EQ(job->data.train,
            (std::vector<std::string>{base + "/data/a.txt", base + "/data/b.txt",
                                      base + "/data/a.txt", base + "/data/a.txt",
                                      base + "/data/odd[1].txt", base + "/$x.txt"}));
  auto error = [&](const std::string& train) { return load(train).status().message(); };
  EXPECT_NE(error("    - data/*.jsonl\n").find("job.yaml:4: data.train[0]: no file matches"),
            std::string::npos);
  EXPECT_NE(error("    - $WEFT_NOT_SET/a\n").find("variable $WEFT_NOT_SET is not set"),
            std::string::npos);
  EXPECT_NE(error("    - ~other/a\n").find("another user's home"), std::string::npos);
  // The line is that of the pattern, or the file, that is at fault.
  EXPECT_NE(error("    - data/[ab].txt\n    - data/none.txt\n")
                .find("job.yaml:5: data.train[2]: there is no file " + base),
            std::string::npos);
  std::ofstream(folder + "/data/bad.jsonl") << "{\"text\": \"a\"}\n{\"text\": null}\n";
  const std::string bad = error("    - data/a.txt\n    - data/bad.jsonl\n");
  EXPECT_NE(bad.find("job.yaml:5: data.train[1]: "), std::string::npos) << bad;
  EXPECT_NE(bad.find("bad.jsonl:2: the field \"text\" is null"), std::string::npos) << bad;
  std::filesystem::remove_all(folder);
}

TEST(JobFile, ReadsJsonToo) {
  Result<JobSpec> job =
      LoadJobFile(WriteTemp("job.json", "{\"name\": \"a\", \"data\": {\"train\": [\"/x\"]}}"));
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->name, "a");
}

TEST(JobArray, HasAJobForEachCombinationOfValuesInOneGroup) {
  const std::string path =
      WriteTemp("array.yaml",
                "name: sweep\ndata: {train: [/x]}\nschedule: {warmup_steps: 0}\n"
                "train: {steps: 20}\nscheduling: {group_limit: 1, group: g}\n");
  const auto load = [&](const std::vector<std::string>& fields, int64_t limit = 0) {
    return LoadJobArray(path, fields, limit, "request", DataCheck::kNone);
  };
  Result<std::vector<JobSpec>> jobs =
      load({"optimizer.learning_rate=1e-3,0.01", "train.seed=1,2,3"}, 2);
  ASSERT_TRUE(jobs.ok()) << jobs.status().message();
  ASSERT_EQ(jobs->size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const JobSpec& job = (*jobs)[i];
    EXPECT_EQ(job.name, "sweep-" + std::to_string(i + 1));
    EXPECT_EQ(job.optimizer.learning_rate, i < 3 ? 1e-3 : 0.01);
    EXPECT_EQ(job.train.seed, static_cast<int64_t>(i % 3) + 1);
    EXPECT_EQ(job.scheduling.group, "g");
    EXPECT_EQ(job.scheduling.group_limit, 2);
  }
  jobs = load({"data.train=[/a,/b],[/c]"});
  ASSERT_TRUE(jobs.ok()) << jobs.status().message();
  EXPECT_EQ(jobs->at(0).data.train, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(jobs->at(1).data.train, (std::vector<std::string>{"/c"}));
  EXPECT_EQ(jobs->at(0).scheduling.group_limit, 1) << "as the file says";
}

TEST(JobArray, WithoutAGroupHasOneThatFollowsFromTheSubmission) {
  const std::string path =
      WriteTemp("nogroup.yaml", "name: sweep\ndata: {train: [/x]}\ntrain: {steps: 1000}\n");
  const auto group = [&](const std::string& request_id) {
    const auto jobs = LoadJobArray(path, {"train.seed=1,2"}, 0, request_id, DataCheck::kNone);
    EXPECT_TRUE(jobs.ok()) << jobs.status().message();
    EXPECT_EQ(jobs->at(0).scheduling.group, jobs->at(1).scheduling.group);
    return jobs->at(0).scheduling.group;
  };
  EXPECT_EQ(group("a"), group("a"));
  EXPECT_NE(group("a"), group("b"));
  EXPECT_EQ(group("a").rfind("sweep-", 0), 0u);
}

TEST(JobArray, NamesWhatIsWrongWithAField) {
  const std::string path = WriteTemp("bad.yaml", "name: a\ndata: {train: [/x]}\n");
  const auto error = [&](const std::string& field) {
    return LoadJobArray(path, {field}, 0, "r", DataCheck::kNone).status().message();
  };
  EXPECT_EQ(error("train.seed"),
            "--array 'train.seed' is not FIELD=V1,V2,...; hint: train.seed=1,2,3");
  EXPECT_EQ(error("train.seed=1,,2"), "--array 'train.seed=1,,2' has an empty value");
  EXPECT_NE(error("train.sede=1").find("did you mean 'seed'?"), std::string::npos);
  EXPECT_NE(error("name.x=1").find("lies within a field that has no fields"), std::string::npos);
  EXPECT_NE(LoadJobArray("-", {"train.seed=1"}, 0, "r", DataCheck::kNone)
                .status()
                .message()
                .find("not standard input"),
            std::string::npos);
}

TEST(JobFile, MissingFileIsNotFound) {
  EXPECT_EQ(LoadJobFile("/nonexistent/job.yaml").status().code(), StatusCode::kNotFound);
}

TEST(Human, UnitsAreRounded) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(24.0 * (1 << 30)), "24.0 GiB");
  EXPECT_EQ(HumanCount(950), "950");
  EXPECT_EQ(HumanCount(12'400'000), "12.4M");
  EXPECT_EQ(HumanDuration(0.85), "850ms");
  EXPECT_EQ(HumanDuration(192), "3m12s");
  EXPECT_EQ(HumanDuration(7500), "2h05m");
  EXPECT_EQ(HumanDuration(-1), "-");
  EXPECT_EQ(FixedText(std::numeric_limits<double>::quiet_NaN(), 2), "-");
}

TEST(Follow, SparklineSpansLowToHighAndFitsTheWidth) {
  EXPECT_EQ(Sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({8, 1}, 10), "█▁");
  EXPECT_EQ(Sparkline({1, 1, 8, 8}, 2), "▁█");
  EXPECT_EQ(Sparkline({std::numeric_limits<double>::quiet_NaN()}, 5), "");
  EXPECT_EQ(Sparkline({}, 5), "");
}

TEST(Follow, ProgressBarStaysInItsBrackets) {
  EXPECT_EQ(ProgressBar(0, 4), "[....]");
  EXPECT_EQ(ProgressBar(0.5, 4), "[##..]");
  EXPECT_EQ(ProgressBar(1, 4), "[####]");
  EXPECT_EQ(ProgressBar(7, 4), "[####]");
}

v1::Job JobAt(int64_t step, v1::JobState state) {
  v1::Job job;
  job.set_id("quick-abcde");
  job.set_state(state);
  v1::Progress& p = *job.mutable_progress();
  p.set_step(step);
  p.set_steps_total(100);
  p.set_loss(3.25);
  p.set_tokens_per_second(12'000);
  p.set_eta_seconds(step < 100 ? 90 : 0);
  p.add_recent_losses(4);
  p.add_recent_losses(3);
  return job;
}

TEST(Follow, PlainViewPrintsEachStateOnceAndAFewSteps) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/false);
  for (int step = 0; step <= 100; ++step) {
    view.Update(JobAt(step, step < 100 ? v1::RUNNING : v1::SUCCEEDED));
  }
  std::string text = out.str();
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("quick-abcde RUNNING"), 0U);
  EXPECT_NE(text.find("step 100/100  loss 3.2500  12.0k tokens/s\n"), std::string::npos);
  auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, 20);
  EXPECT_LE(lines, 25);
  v1::Job failed = JobAt(100, v1::FAILED);
  failed.set_message("\x1b[2J");
  view.Update(failed);
  EXPECT_NE(out.str().find(": \xef\xbf\xbd[2J\n"), std::string::npos) << "text of a worker";
}

TEST(TimeText, NamesTheClassesThatTookTime) {
  v1::Ledger ledger;
  EXPECT_EQ(TimeText(ledger), "0ms");
  ledger.set_useful_seconds(90);
  EXPECT_EQ(TimeText(ledger), "1m30s, 100.0% of it useful");
  ledger.set_queued_seconds(0.01);
  ledger.set_starting_seconds(10);
  ledger.set_recovery_seconds(20);
  EXPECT_EQ(TimeText(ledger), "2m00s, 75.0% of it useful; starting 10.0s, recovery 20.0s");
  ledger.set_data_wait_seconds(20);
  ledger.set_straggler_seconds(40);
  EXPECT_EQ(TimeText(ledger),
            "3m00s, 50.0% of it useful; starting 10.0s, recovery 20.0s, waiting for data 20.0s, "
            "waiting for stragglers 40.0s");
}

TEST(Follow, EndsWithWhatTheTimeOfTheJobWentTo) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/false);
  v1::Job job = JobAt(50, v1::RUNNING);
  job.mutable_ledger()->set_useful_seconds(30);
  view.Update(job);
  EXPECT_EQ(out.str().find("time: "), std::string::npos);
  job.set_state(v1::SUCCEEDED);
  job.mutable_ledger()->set_queued_seconds(10);
  view.Update(job);
  EXPECT_NE(out.str().find("time: 40.0s, 75.0% of it useful; queued 10.0s\n"), std::string::npos)
      << out.str();
}

TEST(Follow, WhatIsMeasuredOfEachAdapterHasALineBelowTheStep) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/false);
  v1::Job job = JobAt(10, v1::RUNNING);
  auto& metrics = *job.mutable_progress()->mutable_technique_metrics();
  metrics["adapter_loss_nats/law"] = 2.245;
  metrics["adapter_loss_nats/french"] = 2.31;
  metrics["adapter_eval_loss_nats/law"] = 3;
  metrics["density_ratio"] = 0.5;
  view.Update(job);
  EXPECT_NE(out.str().find("\n  adapter_eval_loss_nats: law 3.0000\n"
                           "  adapter_loss_nats: french 2.3100, law 2.2450\n"),
            std::string::npos)
      << out.str();
}

TEST(Follow, PhasesAreNamedAndTheirGrownWeightsHaveALossOfTheirOwn) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/false);
  v1::Job job = JobAt(10, v1::RUNNING);
  job.mutable_spec()->add_phases();
  job.mutable_spec()->add_phases()->set_name("wide");
  job.mutable_progress()->set_validation_loss(0.5);
  job.mutable_progress()->set_validation_step(10);
  view.Update(job);
  job.add_attempts()->set_reason(v1::COMPLETED);
  job.set_message("phase 1 of 2 is complete");
  job.set_state(v1::QUEUED);
  view.Update(job);
  view.Update(job);
  job.mutable_progress()->set_validation_loss(0.75);
  view.Update(job);
  EXPECT_EQ(PhaseText(job), "phase 2 of 2 (wide)");
  EXPECT_NE(out.str().find("RUNNING phase 1 of 2\n"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("QUEUED phase 2 of 2 (wide): phase 1 of 2 is complete\n"),
            std::string::npos)
      << out.str();
  const size_t first = out.str().find("validation after step 10: 0.5000 nats/token");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(out.str().find("validation after step 10: 0.5000", first + 1), std::string::npos);
  EXPECT_NE(out.str().find("validation after step 10: 0.7500 nats/token", first),
            std::string::npos);
  EXPECT_EQ(PhaseText(JobAt(1, v1::RUNNING)), "");
}

TEST(PhaseLedger, AccountsForEachPhase) {
  v1::Job job = JobAt(14, v1::RUNNING);
  for (const int64_t steps : {10, 20, 5}) job.mutable_spec()->add_phases()->set_steps(steps);
  job.mutable_spec()->mutable_phases(1)->set_name("small");
  job.mutable_progress()->set_tokens(1400);
  job.mutable_progress()->set_validation_loss(3.5);
  job.mutable_progress()->set_validation_step(12);
  job.set_summary_json(
      R"({"phases": [{"tokens": 1000, "training_flops": 5e9, "validation_loss_nats": 4.5}]})");
  // Two attempts at the first phase, the first of them failed, and one at the second.
  const v1::Reason ends[] = {v1::RANK_DIED, v1::COMPLETED, v1::REASON_UNSPECIFIED};
  for (int i = 0; i < 3; ++i) {
    v1::Attempt& attempt = *job.add_attempts();
    attempt.set_started_at(100 * i);
    attempt.set_reason(ends[i]);
    if (i < 2) attempt.set_ended_at(100 * i + 60);
    attempt.mutable_plan()->mutable_prediction()->set_model_flops_per_step(1e8);
  }
  const std::vector<PhaseAccount> ledger = PhaseLedger(job, 230);
  ASSERT_EQ(ledger.size(), 3u);
  EXPECT_EQ(ledger[0].state, "complete");
  EXPECT_EQ(ledger[0].done_steps, 10);
  EXPECT_EQ(ledger[0].seconds, 120);
  EXPECT_EQ(ledger[0].flops, 5e9);
  EXPECT_EQ(ledger[0].loss_nats, 4.5);
  EXPECT_EQ(ledger[1].title, "phase 2 of 3 (small)");
  EXPECT_EQ(ledger[1].state, "now");
  EXPECT_EQ(ledger[1].done_steps, 4);
  EXPECT_EQ(ledger[1].tokens, 400);
  EXPECT_EQ(ledger[1].flops, 4e8);
  EXPECT_EQ(ledger[1].seconds, 30);
  EXPECT_EQ(ledger[1].loss_nats, 3.5);
  EXPECT_EQ(ledger[2].state, "to come");
  EXPECT_EQ(ledger[2].seconds, 0);
  std::ostringstream out;
  PhaseTable(ledger).Print(out);
  EXPECT_NE(out.str().find("phase 2 of 3 (small)  now       4/20   400     4e+08  "),
            std::string::npos)
      << out.str();
  EXPECT_TRUE(PhaseLedger(JobAt(1, v1::RUNNING), 0).empty());
}

TEST(Follow, ClassificationShowsItsAccuracyNextToTheLoss) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/false);
  v1::Job job = JobAt(10, v1::RUNNING);
  job.mutable_progress()->set_accuracy(0.75);
  job.mutable_progress()->set_validation_loss(0.5);
  job.mutable_progress()->set_validation_accuracy(0.875);
  job.mutable_progress()->set_validation_step(10);
  view.Update(job);
  EXPECT_NE(out.str().find("loss 3.2500  accuracy 75.0%  validation 0.5000 (87.5%)"),
            std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("validation after step 10: loss 0.5000, accuracy 87.5%\n"),
            std::string::npos);
}

/// A terminal that breaks the lines it shows when it becomes narrower, as most do. Knows what the
/// view uses: printing, new lines, going up, going to the first column, clearing to the end.
class Screen {
 public:
  explicit Screen(int columns) : columns_(columns) {}

  void Resize(int columns) {
    std::vector<std::string> rows;
    for (size_t i = 0; i + 1 < rows_.size(); ++i) {
      for (const std::string& row : FlowParts({rows_[i].empty() ? " " : rows_[i]}, "", columns)) {
        rows.push_back(row);
      }
    }
    rows.emplace_back();
    rows_ = std::move(rows);
    row_ = rows_.size() - 1;
    columns_ = columns;
  }

  void Print(const std::string& text) {
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\n') {
        if (++row_ == rows_.size()) rows_.emplace_back();
      } else if (text[at] == '\x1b' && text.compare(at, 3, "\x1b[J") == 0) {
        rows_.resize(row_ + 1);
        rows_.back().clear();
        at += 2;
      } else if (text[at] == '\x1b') {
        size_t digits = 0;
        row_ -= std::stoul(text.substr(at + 2), &digits);
        at += 2 + digits;
        ASSERT_EQ(text[at], 'A');
      } else if (text[at] != '\r') {
        rows_[row_] += text[at];
      }
      ASSERT_LE(CountColumns(rows_[row_]), columns_) << rows_[row_];
    }
  }

  const std::vector<std::string>& rows() const { return rows_; }

 private:
  int columns_;
  std::vector<std::string> rows_ = {""};
  size_t row_ = 0;
};

TEST(Follow, TerminalViewRedrawsInPlaceAtEveryWidth) {
  for (const int first : {8, 20, 40, 80, 200}) {
    for (const int second : {5, 30, 40, 120}) {
      std::ostringstream out;
      ScreenSize size{first, 50};
      Screen screen(first);
      screen.Print("before\n");
      const size_t before = screen.rows().size() - 1;
      FollowView view(out, /*terminal=*/true, [&] { return size; });
      v1::Job job = JobAt(50, v1::RUNNING);
      job.set_message(
          "recovering: the folder /data/größe/文件/ was\nread again\tfrom its beginning");
      view.Update(job);
      screen.Print(out.str());
      out.str("");
      size.columns = second;
      screen.Resize(second);
      const auto kept = screen.rows().begin() + static_cast<int64_t>(before) + (second < 6 ? 1 : 0);
      const std::vector<std::string> above(screen.rows().begin(), kept);
      job = JobAt(60, v1::RUNNING);
      view.Update(job);
      screen.Print(out.str());
      // What was above the block is still there, and below it there is one block.
      ASSERT_GE(screen.rows().size(), above.size());
      EXPECT_TRUE(std::equal(above.begin(), above.end(), screen.rows().begin()));
      std::string text;
      for (const std::string& row : screen.rows()) text += row;
      EXPECT_EQ(text.find("50/100"), std::string::npos) << text;
      EXPECT_EQ(text.find("from its"), std::string::npos) << text;
      EXPECT_NE(text.find("60/100"), std::string::npos) << text;
      EXPECT_EQ(text.find("quick-abcde"), text.rfind("quick-abcde")) << text;
    }
  }
}

TEST(Follow, TerminalViewShowsAllNumbersInFortyColumns) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/true, [] { return ScreenSize{40, 24}; });
  view.Update(JobAt(50, v1::RUNNING));
  EXPECT_EQ(out.str(),
            "\r\x1b[Jquick-abcde  RUNNING\n"
            "[#####.....] 50%  step 50/100\n"
            "1m30s left\n"
            "loss 3.2500  lr 0.000000\n"
            "12.0k tokens/s\n"
            "loss █▁\n");
}

TEST(Follow, TerminalViewStaysOnALowScreen) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/true, [] { return ScreenSize{80, 3}; });
  view.Update(JobAt(50, v1::RUNNING));
  view.Update(JobAt(51, v1::RUNNING));
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find("\x1b[2A"), std::string::npos);
}

TEST(Follow, TerminalViewShowsTheWholeMessageOfTheEnd) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/true, [] { return ScreenSize{21, 24}; });
  v1::Job job = JobAt(50, v1::RUNNING);
  job.set_message("one two three four five six");
  view.Update(job);
  EXPECT_NE(out.str().find("\none two three four …\n"), std::string::npos) << out.str();
  job.set_state(v1::FAILED);
  view.Update(job);
  EXPECT_NE(out.str().find("\none two three four\nfive six\n"), std::string::npos) << out.str();
}

TEST(TextColumns, AreThoseOfTheTerminal) {
  EXPECT_EQ(CountColumns("größe"), 5);
  EXPECT_EQ(CountColumns("文件"), 4);
  EXPECT_EQ(CountColumns("e\u0301"), 1);
  EXPECT_EQ(CountColumns("\xff▁"), 2);
  EXPECT_EQ(CutToColumns("größe", 5), "größe");
  EXPECT_EQ(CutToColumns("größer", 5), "größ…");
  EXPECT_EQ(CutToColumns("文件夹", 4), "文…");
  EXPECT_EQ(CutToColumns("a\nb\x1b[J", 10), "a b [J");
  EXPECT_EQ(FlowParts({"one", "two", "three"}, "  ", 8),
            (std::vector<std::string>{"one  two", "three"}));
  EXPECT_EQ(FlowParts({"文件"}, "  ", 1), (std::vector<std::string>{"…", "…"}));
  EXPECT_EQ(FlowWords("a folder/of/files\nhere", 8),
            (std::vector<std::string>{"a", "folder/o", "f/files", "here"}));
  EXPECT_TRUE(FlowWords(" \n", 8).empty());
}

TEST(BareName, LeavesOutTheKindThatItIsAskedForAndNoOther) {
  EXPECT_EQ(BareName("worker", "worker/node-1"), "node-1");
  EXPECT_EQ(BareName("worker", "worker/worker/1"), "worker/1");
  for (const char* other : {"", "node-1", "worker", "workers/node-1", "job/node-1", "/node-1"}) {
    EXPECT_EQ(BareName("worker", other), other);
  }
}

}  // namespace
}  // namespace weft::cli
