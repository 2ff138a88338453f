#include "common/env.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "weft-env-XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(env_.RemoveTree(dir_).ok()); }

  std::string Path(std::string_view name) { return JoinPath(dir_, name); }
  void Write(const std::string& path, std::string_view text) {
    ASSERT_TRUE(WriteFileAtomic(env_, path, text).ok());
  }

  Env& env_ = Env::Posix();
  std::string dir_;
};

TEST_F(EnvTest, ReadsBackWhatItWrote) {
  auto file = env_.NewWritableFile(Path("f"));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("hello ").ok());
  EXPECT_TRUE((*file)->Append(std::string_view("w\0rld", 5)).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_TRUE((*file)->Close().ok());  // twice is harmless
  EXPECT_EQ(*ReadFile(env_, Path("f")), std::string("hello w\0rld", 11));
  EXPECT_EQ(*env_.FileSize(Path("f")), 11u);

  auto mapped = env_.MapFile(Path("f"));
  ASSERT_TRUE(mapped.ok());
  ASSERT_TRUE(env_.RemoveFile(Path("f")).ok());
  EXPECT_EQ((*mapped)->bytes().size(), 11u);  // the view outlives the name
  EXPECT_EQ((*mapped)->bytes()[4], std::byte{'o'});
}

TEST_F(EnvTest, ReadsBackALargeFileThatWentToTheDiskInParts) {
  std::string text(size_t{37} << 20, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  auto file = env_.NewWritableFile(Path("large"));
  ASSERT_TRUE(file.ok());
  // In appends that end within a window, at its end, and after several.
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = begin == 0 ? 5 : begin == 5 ? (size_t{16} << 20) - 5 : text.size() - begin;
    ASSERT_TRUE((*file)->Append(std::string_view(text).substr(begin, size)).ok());
    begin += size;
  }
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_TRUE(*ReadFile(env_, Path("large")) == text);
}

TEST_F(EnvTest, ReadsAtAnOffsetAndCallsAShortFileCorrupt) {
  Write(Path("f"), "0123456789");
  std::array<std::byte, 4> out{};
  ASSERT_TRUE(env_.ReadAt(Path("f"), 3, out).ok());
  EXPECT_EQ(out[0], std::byte{'3'});
  Status status = env_.ReadAt(Path("f"), 8, out);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("2 bytes short"));
}

TEST_F(EnvTest, EmptyFilesAreFiles) {
  Write(Path("f"), "");
  EXPECT_EQ(*ReadFile(env_, Path("f")), "");
  EXPECT_TRUE((*env_.MapFile(Path("f")))->bytes().empty());
}

TEST_F(EnvTest, ErrorsNameThePathAndTheKind) {
  Result<std::string> missing = ReadFile(env_, Path("none"));
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr(Path("none")));
  EXPECT_EQ(env_.NewWritableFile(Path("no/dir")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(env_.MapFile(dir_).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(ReadFile(env_, dir_).status().code(), StatusCode::kInvalid);
  EXPECT_EQ(env_.RemoveFile(Path("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(env_.ListDir(Path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(env_.Rename(Path("none"), Path("f")).code(), StatusCode::kNotFound);
  EXPECT_FALSE(env_.FreeBytes(Path("none")).ok());
  Write(Path("f"), "0123456789");
  EXPECT_EQ(ReadFile(env_, Path("f"), 9).status().code(), StatusCode::kExhausted);
  EXPECT_FALSE(env_.CreateDirs(Path("f/under")).ok());
}

TEST_F(EnvTest, MakesListsAndRemovesTrees) {
  ASSERT_TRUE(env_.CreateDirs(Path("a/b/c")).ok());
  ASSERT_TRUE(env_.CreateDirs(Path("a/b/c")).ok());
  Write(Path("a/z"), "1");
  Write(Path("a/.hidden"), "1");
  EXPECT_THAT(*env_.ListDir(Path("a")), ElementsAre(".hidden", "b", "z"));
  EXPECT_TRUE(env_.FileExists(Path("a/z")));
  EXPECT_TRUE(IsFolder(env_, Path("a")));
  EXPECT_FALSE(IsFolder(env_, Path("a/z")));
  EXPECT_FALSE(IsFolder(env_, Path("b")));
  ASSERT_TRUE(env_.RemoveTree(Path("a")).ok());
  EXPECT_FALSE(env_.FileExists(Path("a")));
  EXPECT_TRUE(env_.RemoveTree(Path("a")).ok());
  EXPECT_GT(*env_.FreeBytes(dir_), 0u);
}

TEST_F(EnvTest, RemovingATreeDoesNotFollowLinks) {
  Write(Path("keep"), "1");
  ASSERT_TRUE(env_.CreateDirs(Path("tree")).ok());
  ASSERT_EQ(symlink(Path("keep").c_str(), Path("tree/link").c_str()), 0);
  ASSERT_TRUE(env_.RemoveTree(Path("tree")).ok());
  EXPECT_TRUE(env_.FileExists(Path("keep")));
}

TEST_F(EnvTest, AtomicWriteReplacesWholeContentAndLeavesNoTemporary) {
  Write(Path("f"), "old and longer");
  Write(Path("f"), "new");
  EXPECT_EQ(*ReadFile(env_, Path("f")), "new");
  EXPECT_THAT(*env_.ListDir(dir_), ElementsAre("f"));
  ASSERT_TRUE(env_.CreateDirs(Path("d/x")).ok());
  EXPECT_FALSE(WriteFileAtomic(env_, Path("d"), "text").ok());  // a directory is in the way
  EXPECT_THAT(*env_.ListDir(dir_), ElementsAre("d", "f"));
}

TEST_F(EnvTest, ConcurrentAtomicWritersLeaveOneWholeFile) {
  const std::string contents[2] = {std::string(100'000, 'a'), std::string(70'000, 'b')};
  std::atomic<int> failures{0};
  auto writer = [&](int which) {
    for (int i = 0; i < 20; ++i) {
      if (!WriteFileAtomic(env_, Path("f"), contents[which]).ok()) ++failures;
    }
  };
  std::thread first(writer, 0), second(writer, 1);
  first.join();
  second.join();
  EXPECT_EQ(failures, 0);
  std::string text = *ReadFile(env_, Path("f"));
  EXPECT_TRUE(text == contents[0] || text == contents[1]);
}

TEST(Paths, JoinAndSplit) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
  EXPECT_EQ(DirName("/a/b"), "/a");
  EXPECT_EQ(DirName("/a"), "/");
  EXPECT_EQ(DirName("a"), ".");
  EXPECT_EQ(BaseName("/a/b"), "b");
  EXPECT_EQ(BaseName("b"), "b");
}

}  // namespace
}  // namespace weft
