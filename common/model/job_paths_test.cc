#include "common/model/job_paths.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class JobPathsTest : public ::testing::Test {
 protected:
  JobPathsTest() : dir_(::testing::TempDir() + "weft-paths") {
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

TEST(CheckJobId, TakesWhatIsNoPath) {
  for (const char* good : {"train-ab2cd", "a", "9-9"}) EXPECT_TRUE(CheckJobId(good).ok()) << good;
  for (const std::string& bad :
       {std::string(), std::string(".."), std::string("../../etc/x"), std::string("a/b"),
        std::string("a\0b", 3), std::string("a b"), std::string("A"), std::string(129, 'a')}) {
    const Status status = CheckJobId(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << bad;
    EXPECT_THAT(status.message(), HasSubstr("a-z, 0-9 and dashes"));
  }
}

/// Sets a field of a JSON object, "model.import_path".
void Set(Json& json, const std::string& field, const std::string& value) {
  Json* place = &json;
  std::istringstream names(field);
  for (std::string name; std::getline(names, name, '.');) place = &(*place)[name];
  *place = value;
}

TEST_F(JobPathsTest, EveryFieldThatNamesAFileIsConfined) {
  JobSpec job;
  job.name = "job";
  job.data.train = {"/1"};
  job.data.validation = {"/2"};
  job.data.chat_template = "/3";
  Json json = ToJson(job);
  std::set<std::string> expected = {"data.train", "data.validation", "data.chat_template"};
  for (const FieldReference& field : DescribeFields<JobSpec>()) {
    const std::string& name = field.path;
    const bool names_file = name.ends_with("path") || name.ends_with("directory") ||
                            name.ends_with("folder") || name.ends_with("file");
    if (field.type != "string" || !names_file) continue;
    Set(json, name, "/file");
    expected.insert(name);
  }
  EXPECT_GE(expected.size(), 7u);
  Result<JobSpec> full = FromJson<JobSpec>(json);
  ASSERT_TRUE(full.ok()) << full.status().message();
  std::set<std::string> found;
  for (const JobPath& item : PathsOf(*full)) found.insert(item.field);
  EXPECT_EQ(found, expected);

  job.data.chat_template = "{{ messages }}";
  EXPECT_EQ(PathsOf(job).size(), 2u) << "a template is no file";
}

}  // namespace
}  // namespace weft
