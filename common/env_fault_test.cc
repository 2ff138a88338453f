#include "common/env_fault.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Status Write(FaultEnv& env, const std::string& path, std::string_view text, bool sync) {
  WEFT_ASSIGN_OR_RETURN(auto file, env.NewWritableFile(path));
  WEFT_RETURN_IF_ERROR(file->Append(text));
  return sync ? file->Sync() : OkStatus();
}

std::string Read(FaultEnv& env, const std::string& path) {
  Result<std::string> text = ReadFile(env, path);
  return text.ok() ? *text : text.status().ToString();
}

TEST(FaultEnv, WithoutFaultsItIsAFileSystem) {
  FaultEnv env;
  EXPECT_EQ(Write(env, "/a/f", "x", true).code(), StatusCode::kNotFound);
  ASSERT_TRUE(env.CreateDirs("/a/b").ok());
  ASSERT_TRUE(Write(env, "/a/b/f", "hello", false).ok());
  EXPECT_EQ(Read(env, "/a//b/./f"), "hello");
  std::byte two[2];
  EXPECT_TRUE(env.ReadAt("/a/b/f", 3, two).ok());
  EXPECT_EQ(env.ReadAt("/a/b/f", 4, two).code(), StatusCode::kCorrupt);
  EXPECT_EQ(env.Rename("/a/b", "/a/b2").code(), StatusCode::kOk);
  EXPECT_THAT(*env.ListDir("/a"), ElementsAre("b2"));
  ASSERT_TRUE(env.CreateDirs("/a/full").ok());
  ASSERT_TRUE(Write(env, "/a/full/x", "1", false).ok());
  EXPECT_FALSE(env.Rename("/a/b2", "/a/full").ok()) << "a directory that is not empty";
  EXPECT_EQ((*env.MapFile("/a/b2/f"))->bytes().size(), 5u);
  EXPECT_TRUE(env.RemoveTree("/a").ok());
  EXPECT_TRUE(env.RemoveTree("/a").ok());
  EXPECT_FALSE(env.FileExists("/a/b2/f"));
  EXPECT_EQ(env.RemoveFile("/a/b2/f").code(), StatusCode::kNotFound);
}

TEST(FaultEnv, ACrashForgetsWhatWasNotSynced) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/d").ok());
  ASSERT_TRUE(env.SyncDir("/").ok());
  ASSERT_TRUE(Write(env, "/d/entry_and_bytes", "kept", true).ok());
  ASSERT_TRUE(Write(env, "/d/entry_only", "lost", false).ok());
  ASSERT_TRUE(env.SyncDir("/d").ok());
  ASSERT_TRUE(Write(env, "/d/bytes_only", "lost", true).ok());
  ASSERT_TRUE(env.CreateDirs("/d/sub").ok());
  ASSERT_TRUE(env.Rename("/d/entry_and_bytes", "/d/renamed").ok());
  env.SimulateCrash();
  EXPECT_THAT(*env.ListDir("/d"), ElementsAre("entry_and_bytes", "entry_only"));
  EXPECT_EQ(Read(env, "/d/entry_and_bytes"), "kept");
  EXPECT_EQ(Read(env, "/d/entry_only"), "");
}

TEST(FaultEnv, AFileReplacedAtomicallyIsOldOrNewAfterACrashAnywhere) {
  int old_seen = 0;
  int new_seen = 0;
  for (int64_t crash_at = 1;; ++crash_at) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      FaultEnv env;
      ASSERT_TRUE(WriteFileAtomic(env, "/f", "old").ok());
      int64_t before = env.operations();
      env.CrashAtOperation(before + crash_at);
      bool done = WriteFileAtomic(env, "/f", "new").ok();
      env.SimulateCrash(seed == 0 ? FaultEnv::Unsynced::kLost : FaultEnv::Unsynced::kTorn, seed);
      std::string text = Read(env, "/f");
      EXPECT_TRUE(text == "old" || text == "new") << text;
      if (done) {
        EXPECT_EQ(text, "new");
        EXPECT_GT(old_seen, 0);
        EXPECT_GT(new_seen, 0) << "a torn crash keeps some renames";
        return;
      }
      ++(text == "old" ? old_seen : new_seen);
    }
  }
}

TEST(FaultEnv, ATornCrashKeepsAFirstPartOfTheBytes) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    FaultEnv env;
    ASSERT_TRUE(Write(env, "/f", "ab", true).ok());
    ASSERT_TRUE(env.SyncDir("/").ok());
    auto file = env.NewWritableFile("/g");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append(std::string_view("ab")).ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE(env.SyncDir("/").ok());
    ASSERT_TRUE((*file)->Append(std::string_view("cd")).ok());
    env.SimulateCrash(FaultEnv::Unsynced::kTorn, seed);
    EXPECT_EQ(Read(env, "/f"), "ab");
    seen.insert(Read(env, "/g"));
    EXPECT_EQ((*file)->Append(std::string_view("x")).code(), StatusCode::kAborted);
  }
  EXPECT_THAT(seen, ElementsAre("ab", "abc", "abcd"));
}

TEST(FaultEnv, AFullDiskTakesWhatFitsAndSaysSo) {
  FaultEnv env;
  env.SetCapacity(5);
  ASSERT_TRUE(Write(env, "/f", "123", true).ok());
  EXPECT_EQ(*env.FreeBytes("/"), 2u);
  Status full = Write(env, "/g", "1234", true);
  EXPECT_EQ(full.code(), StatusCode::kExhausted);
  EXPECT_THAT(full.message(), HasSubstr("/g"));
  EXPECT_EQ(Read(env, "/g"), "12");
  ASSERT_TRUE(env.RemoveFile("/f").ok());
  EXPECT_TRUE(Write(env, "/g", "1234", true).ok());
}

TEST(FaultEnv, OneOperationFailsAndTheNextWorks) {
  FaultEnv env;
  auto file = env.NewWritableFile("/f");
  ASSERT_TRUE(file.ok());
  env.FailOperation(env.operations() + 1, InternalError("bad sector"));
  Status failed = (*file)->Append(std::string_view("abcd"));
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_THAT(failed.message(), HasSubstr("/f"));
  EXPECT_EQ(Read(env, "/f"), "ab") << "a torn write";
  EXPECT_TRUE((*file)->Append(std::string_view("cd")).ok());
}

TEST(FaultEnv, AfterACrashPointNothingWorksUntilTheRestart) {
  FaultEnv env;
  ASSERT_TRUE(Write(env, "/f", "abc", true).ok());
  env.SyncAll();
  env.CrashAtOperation(env.operations() + 2);
  ASSERT_TRUE(env.CreateDirs("/d").ok());
  EXPECT_EQ(env.CreateDirs("/e").code(), StatusCode::kAborted);
  EXPECT_FALSE(env.FileExists("/f"));
  EXPECT_FALSE(env.MapFile("/f").ok());
  env.SimulateCrash();
  EXPECT_EQ(Read(env, "/f"), "abc");
  EXPECT_FALSE(env.FileExists("/d"));
  env.FlipBits("/f", 1, 0x01);
  EXPECT_EQ(Read(env, "/f"), "acc");
}

}  // namespace
}  // namespace weft
