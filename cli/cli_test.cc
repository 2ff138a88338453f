#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "cli/follow.h"
#include "cli/job_file.h"
#include "cli/output.h"
#include "common/yaml.h"

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
                               "  tokenizer: {path: ../tok}\n");
  Result<JobSpec> job = LoadJobFile(path);
  ASSERT_TRUE(job.ok()) << job.status().message();
  std::filesystem::path base = std::filesystem::absolute(testing::TempDir());
  EXPECT_EQ(job->data.train[0], (base / "text/a.txt").lexically_normal());
  EXPECT_EQ(job->data.train[1], "/abs/b.txt");
  EXPECT_EQ(job->data.tokenizer.path, (base / "../tok").lexically_normal());
}

TEST(JobFile, NamesFileLineAndNearestField) {
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain:\n  step: 3\n"),
            "F:4: train.step is not a known field; did you mean 'steps'?");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain:\n  steps: many\n"),
            "F:4: train.steps must be an integer, not the string \"many\"");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\ntrain: {steps: 0}\n"),
            "F:3: train.steps is 0, but must be 1 to 1000000000000 steps");
  EXPECT_EQ(LoadError("name: a\ndata: {train: [x]}\nmodel: {width: 100, heads: 3}\n"),
            "F: model.width 100 must be a multiple of model.heads 3");
  EXPECT_NE(LoadError("name: a\n").find("required field data is missing"), std::string::npos);
  EXPECT_NE(LoadError("name: [a\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(LoadError(std::string("name: a\0b", 9)).find("binary data"), std::string::npos);
}

TEST(JobFile, ReadsJsonToo) {
  Result<JobSpec> job =
      LoadJobFile(WriteTemp("job.json", "{\"name\": \"a\", \"data\": {\"train\": [\"/x\"]}}"));
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->name, "a");
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
  FollowView view(out, /*terminal=*/false, 80);
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
}

TEST(Follow, ClassificationShowsItsAccuracyBesideTheLoss) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/false, 80);
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

TEST(Follow, TerminalViewRedrawsInPlace) {
  std::ostringstream out;
  FollowView view(out, /*terminal=*/true, 80);
  view.Update(JobAt(50, v1::RUNNING));
  EXPECT_NE(out.str().find("50%  step 50/100  1m30s left"), std::string::npos);
  EXPECT_EQ(out.str().find("\x1b[4A"), std::string::npos);
  view.Update(JobAt(60, v1::RUNNING));
  EXPECT_NE(out.str().find("\x1b[4A"), std::string::npos);
}

TEST(Output, TablesAlignAndProgramsGetStableKeys) {
  Listing listing{"Job", {{{"id", "a-1"}}}, {"job/a-1"}, Table({"ID", "STATE"}), Table({"ID"}),
                  false};
  listing.table.Add({"a-1", "RUNNING"});
  std::ostringstream table, json, yaml, name;
  Print(listing, OutputFormat::kTable, table);
  EXPECT_EQ(table.str(), "ID   STATE\na-1  RUNNING\n");
  Print(listing, OutputFormat::kName, name);
  EXPECT_EQ(name.str(), "job/a-1\n");
  Print(listing, OutputFormat::kJson, json);
  Json list = Json::parse(json.str());
  EXPECT_EQ(list["kind"], "JobList");
  EXPECT_EQ(list["apiVersion"], "weft/v1");
  EXPECT_EQ(list["items"][0]["id"], "a-1");
  Print(listing, OutputFormat::kYaml, yaml);
  EXPECT_EQ(ParseYaml(yaml.str(), "yaml")->value, list);
  listing.single = true;
  std::ostringstream one;
  Print(listing, OutputFormat::kJson, one);
  EXPECT_EQ(Json::parse(one.str())["id"], "a-1");
}

}  // namespace
}  // namespace weft::cli
