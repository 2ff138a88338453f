#include "worker/daemon/log_buffer.h"

#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft::daemon {
namespace {

class LogBufferTest : public ::testing::Test {
 protected:
  LogBufferTest() : dir_(::testing::TempDir() + "log_buffer") {
    EXPECT_TRUE(Env::Posix().CreateDirs(dir_).ok());
  }
  ~LogBufferTest() override { EXPECT_TRUE(Env::Posix().RemoveTree(dir_).ok()); }

  LogBuffer Make(LogBuffer::Limits limits) { return {Env::Posix(), dir_ + "/job-1", limits}; }
  size_t Files() { return Env::Posix().ListDir(dir_)->size(); }

  static v1::LogLine Line(int64_t number) {
    v1::LogLine line;
    line.set_text("line " + std::to_string(number));
    return line;
  }

  std::string dir_;
};

TEST_F(LogBufferTest, KeepsEveryLineInOrderThroughFilesForAnyPaceOfAcknowledgement) {
  constexpr int64_t kLines = 5000;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    LogBuffer buffer = Make({.memory_bytes = 500, .file_bytes = 1 << 20});
    PhiloxStream random({seed, 0, 0});
    int64_t written = 0, received = 0;
    size_t most_files = 0;
    while (received < kLines) {
      for (uint64_t n = random.Below(200); n > 0 && written < kLines; --n) {
        buffer.Append(Line(++written));
        EXPECT_EQ(buffer.last(), written);
      }
      most_files = std::max(most_files, Files());
      for (uint64_t n = random.Below(6); n > 0; --n) {
        std::vector<v1::LogLine> lines = buffer.Read(buffer.acknowledged(), 1 + random.Below(30));
        for (const v1::LogLine& line : lines) {
          ASSERT_EQ(line.text(), "line " + std::to_string(++received));
        }
        buffer.Acknowledge(received);
      }
    }
    EXPECT_TRUE(buffer.empty());
    EXPECT_GT(most_files, 0u);
    EXPECT_EQ(Files(), 0u);
  }
}

TEST_F(LogBufferTest, ReadsAgainWhatWasNotAcknowledged) {
  LogBuffer buffer = Make({});
  for (int i = 1; i <= 10; ++i) buffer.Append(Line(i));
  EXPECT_EQ(buffer.Read(0, 4).size(), 4u);
  EXPECT_EQ(buffer.Read(4, 100).size(), 6u);
  buffer.Acknowledge(3);
  std::vector<v1::LogLine> again = buffer.Read(3, 100);
  ASSERT_EQ(again.size(), 7u);
  EXPECT_EQ(again.front().text(), "line 4");
  buffer.Acknowledge(2);  // late
  EXPECT_EQ(buffer.acknowledged(), 3);
}

TEST_F(LogBufferTest, CountsWhatItHadToDrop) {
  LogBuffer buffer = Make({.memory_bytes = 100, .file_bytes = 300});
  for (int i = 1; i <= 1000; ++i) buffer.Append(Line(i));
  int64_t kept = buffer.last();
  ASSERT_LT(kept, 100);
  while (!buffer.empty()) {
    buffer.Acknowledge(buffer.acknowledged() +
                       static_cast<int64_t>(buffer.Read(buffer.acknowledged(), 100).size()));
  }
  buffer.Append(Line(1001));
  std::vector<v1::LogLine> lines = buffer.Read(buffer.acknowledged(), 100);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].text().find(std::to_string(1000 - kept) + " lines dropped"), std::string::npos)
      << lines[0].text();
  EXPECT_EQ(lines[1].text(), "line 1001");
}

TEST_F(LogBufferTest, SurvivesFilesThatCannotBeWrittenOrReadBack) {
  LogBuffer unwritable(Env::Posix(), dir_ + "/missing/job-1", {.memory_bytes = 100});
  for (int i = 1; i <= 100; ++i) unwritable.Append(Line(i));
  EXPECT_LT(unwritable.last(), 100);
  EXPECT_EQ(unwritable.Read(0, 1).at(0).text(), "line 1");

  LogBuffer damaged = Make({.memory_bytes = 100});
  for (int i = 1; i <= 100; ++i) damaged.Append(Line(i));
  auto names = Env::Posix().ListDir(dir_);
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), dir_ + "/" + name, "garbage").ok());
  }
  int64_t seen = 0;
  while (!damaged.empty()) {
    seen += static_cast<int64_t>(damaged.Read(damaged.acknowledged(), 1000).size());
    damaged.Acknowledge(seen);
  }
  EXPECT_EQ(seen, 100) << "positions stay without gaps";
}

}  // namespace
}  // namespace weft::daemon
