#include "common/model/job_paths.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class JobPathsTest : public testing::Test {
 protected:
  JobPathsTest() : dir_(::testing::TempDir() + "weft-paths-" + std::to_string(getpid())) {
    fs::create_directories(dir_ / "allowed/below");
    fs::create_directories(dir_ / "other");
    std::ofstream(dir_ / "allowed/a.txt") << "text";
    std::ofstream(dir_ / "other/secret.txt") << "secret";
    fs::create_symlink(dir_ / "other", dir_ / "allowed/link");
    fs::create_symlink(dir_ / "other/secret.txt", dir_ / "allowed/below/file-link");
    fs::create_symlink(dir_ / "allowed", dir_ / "root-link");
  }
  ~JobPathsTest() override { fs::remove_all(dir_); }

  Status Check(const std::string& path) const {
    JobSpec job;
    job.data.train = {path};
    return CheckPaths(job, {dir_ / "allowed"}, "--data-root");
  }

  const fs::path dir_;
};

TEST_F(JobPathsTest, NeitherDotsNorLinksLeaveTheRoot) {
  const std::string base = dir_ / "allowed";
  for (const std::string& good :
       {base + "/a.txt", base + "/below/../a.txt", base + "/not-there-yet/b.txt", base,
        (dir_ / "root-link/a.txt").string()}) {
    EXPECT_TRUE(Check(good).ok()) << good;
  }
  for (const std::string& bad :
       {(dir_ / "other/secret.txt").string(), base + "/../other/secret.txt",
        base + "/link/secret.txt", base + "/below/file-link", base + "/link/new.txt",
        base + "-else/a.txt", std::string("a.txt"), std::string("/")}) {
    const Status status = Check(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << bad;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("data.train"), HasSubstr("hint: --data-root")));
  }
  EXPECT_TRUE(CheckPaths(JobSpec(), {}, "").ok());
}

// A field that names a file, by its name, is one of PathsOf.
TEST_F(JobPathsTest, EveryFieldThatNamesAFileIsConfined) {
  const std::set<std::string> known = {"data.tokenizer.path", "model.import_path",
                                       "model.peft.import_path", "resources.offload_directory"};
  for (const FieldReference& field : DescribeFields<JobSpec>()) {
    const std::string& path = field.path;
    if (field.type != "string" || !(path.ends_with("path") || path.ends_with("directory") ||
                                    path.ends_with("folder") || path.ends_with("file"))) {
      continue;
    }
    EXPECT_TRUE(known.contains(path)) << path;
  }
  JobSpec job;
  job.data.train = {"/1"};
  job.data.validation = {"/2"};
  job.data.tokenizer.path = "/3";
  job.data.chat_template = "/4";
  job.model.import_path = "/5";
  job.model.peft.import_path = "/6";
  job.resources.offload_directory = "/7";
  EXPECT_EQ(PathsOf(job).size(), 7u);
  for (const JobPath& item : PathsOf(job)) {
    EXPECT_THAT(CheckPaths(job, {dir_.string()}, "h").message(), HasSubstr("data.train"));
    EXPECT_FALSE(IsBelow(item.path, {dir_.string()})) << item.field;
  }
  job.data.chat_template = "{{ messages }}";
  EXPECT_EQ(PathsOf(job).size(), 6u);
}

}  // namespace
}  // namespace weft
