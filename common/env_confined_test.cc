#include "common/env_confined.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfinedEnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "weft-confined-XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    for (const char* folder : {"data/inner", "data-else", "more", "secret"}) {
      fs::create_directories(dir_ / folder);
    }
    Write("data/a.txt", "open");
    Write("data/inner/b.txt", "open");
    Write("more/c.txt", "open");
    Write("secret/s.txt", "secret");
    Write("data-else/s.txt", "secret");
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), dir_ / name, text).ok());
  }
  void Link(const std::string& name, const fs::path& target) {
    fs::create_symlink(target, dir_ / name);
  }
  ConfinedEnv Confined() const { return {{dir_ / "data", dir_ / "more/"}, "--data-root"}; }

  fs::path dir_;
};

/// What each call that reads says of a path.
std::vector<Status> Reads(Env& env, const std::string& path) {
  std::array<std::byte, 1> out{};
  return {env.MapFile(path).status(), env.ReadAt(path, 0, out), env.FileSize(path).status()};
}

TEST_F(ConfinedEnvTest, ReadsWhatLiesBelowTheFolders) {
  ConfinedEnv env = Confined();
  EXPECT_EQ(*ReadFile(env, dir_ / "data/a.txt"), "open");
  EXPECT_EQ(*ReadFile(env, dir_ / "data/inner/../../more/c.txt"), "open");
  const auto mapped = env.MapFile(dir_ / "data/inner/b.txt");
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ((*mapped)->bytes().size(), 4u);
  EXPECT_THAT(*env.ListDir(dir_ / "data"), ElementsAre("a.txt", "inner"));
  EXPECT_TRUE(IsFolder(env, dir_ / "data/inner"));
  EXPECT_FALSE(IsFolder(env, dir_ / "data/a.txt"));
}

TEST_F(ConfinedEnvTest, NoLinkLeadsOutOfTheFolders) {
  Link("data/file", dir_ / "secret/s.txt");
  Link("data/relative", "../secret/s.txt");
  Link("data/folder", dir_ / "secret");
  Link("data/twice", "file");
  ConfinedEnv env = Confined();
  for (const char* name : {"data/file", "data/relative", "data/folder/s.txt", "data/twice",
                           "secret/s.txt", "data/../secret/s.txt", "data-else/s.txt"}) {
    for (const Status& status : Reads(env, dir_ / name)) {
      EXPECT_EQ(status.code(), StatusCode::kInvalid) << name;
      EXPECT_EQ(status.kind(), FailureKind::kOutside) << name;
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr((dir_ / name).string()), HasSubstr("; hint: --data-root")));
    }
  }
  const Status listed = env.ListDir(dir_ / "data/folder").status();
  EXPECT_EQ(listed.kind(), FailureKind::kOutside);
  EXPECT_THAT(listed.message(), Not(HasSubstr("secret"))) << "where it leads is not said";
}

TEST_F(ConfinedEnvTest, LinksWithinAndBetweenTheFoldersWork) {
  Link("data/file", "inner/b.txt");
  Link("data/other", dir_ / "more/c.txt");
  Link("data/folder", dir_ / "more");
  Link("alias", dir_ / "data");
  ConfinedEnv env({dir_ / "alias", dir_ / "more"}, "");
  for (const char* name :
       {"data/file", "data/other", "data/folder/c.txt", "alias/a.txt", "alias/folder/c.txt"}) {
    EXPECT_EQ(*ReadFile(env, dir_ / name), "open") << name;
  }
  EXPECT_THAT(*env.ListDir(dir_ / "alias/folder"), ElementsAre("c.txt"));
}

TEST_F(ConfinedEnvTest, ALinkThatChangesAllTheTimeNeverShowsWhatIsOutside) {
  const fs::path link = dir_ / "data/link";
  Link("data/link", dir_ / "data/a.txt");
  std::atomic<bool> done{false};
  std::thread changes([&] {
    for (int i = 0; !done; ++i) {
      fs::create_symlink(dir_ / (i % 2 == 0 ? "secret/s.txt" : "data/a.txt"), dir_ / "data/next");
      fs::rename(dir_ / "data/next", link);
    }
  });
  ConfinedEnv env = Confined();
  int read = 0, refused = 0;
  for (int i = 0; i < 200'000 && (i < 2000 || read == 0 || refused == 0); ++i) {
    const auto file = env.MapFile(link);
    if (file.ok()) {
      ++read;
      ASSERT_EQ((*file)->bytes().size(), 4u) << "the secret has six bytes";
    } else {
      ++refused;
      ASSERT_EQ(file.status().kind(), FailureKind::kOutside) << file.status().message();
    }
  }
  done = true;
  changes.join();
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(ConfinedEnvTest, ErrorsHaveTheNameThatWasGiven) {
  ConfinedEnv env = Confined();
  const std::string none = dir_ / "data/none", folder = dir_ / "data/inner";
  for (const Status& status : Reads(env, none)) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr(none));
  }
  const Status mapped = env.MapFile(folder).status();
  EXPECT_EQ(mapped.code(), StatusCode::kInvalid);
  EXPECT_EQ(mapped.message(), folder + " is not a regular file");
  std::array<std::byte, 9> out{};
  const Status cut = env.ReadAt(dir_ / "data/a.txt", 0, out);
  EXPECT_EQ(cut.code(), StatusCode::kCorrupt);
  EXPECT_THAT(cut.message(), HasSubstr((dir_ / "data/a.txt").string() + " ends at byte 4"));
}

TEST_F(ConfinedEnvTest, AFolderOfTheProcessMayComeLater) {
  ConfinedEnv env({dir_ / "runs/job"}, "");
  const std::string path = dir_ / "runs/job/loss.jsonl";
  EXPECT_EQ(ReadFile(env, path).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(env.CreateDirs(dir_ / "runs/job").ok());
  ASSERT_TRUE(WriteFileAtomic(env, path, "1").ok());
  EXPECT_EQ(*ReadFile(env, path), "1");
}

TEST_F(ConfinedEnvTest, WithoutFoldersEverythingIsRead) {
  ConfinedEnv env({}, "");
  EXPECT_EQ(*ReadFile(env, dir_ / "secret/s.txt"), "secret");
  ConfinedEnv root({"/"}, "");
  EXPECT_EQ(*ReadFile(root, dir_ / "secret/s.txt"), "secret");
}

}  // namespace
}  // namespace weft
