#include "worker/daemon/data_dir.h"

#include <gtest/gtest.h>

#include "common/env.h"

namespace weft::daemon {
namespace {

class DataDirTest : public ::testing::Test {
 protected:
  DataDirTest() : path_(::testing::TempDir() + "data_dir") {}
  ~DataDirTest() override { EXPECT_TRUE(Env::Posix().RemoveTree(path_).ok()); }
  std::string path_;
};

TEST_F(DataDirTest, KeepsTheIdItMadeUp) {
  std::string id = DataDir::Open(path_, "")->worker_id();
  EXPECT_FALSE(id.empty());
  EXPECT_EQ(DataDir::Open(path_, "")->worker_id(), id);
  EXPECT_EQ(DataDir::Open(path_, "named")->worker_id(), "named");
  EXPECT_EQ(DataDir::Open(path_, "")->worker_id(), "named");
}

TEST_F(DataDirTest, RefusesASecondDaemonUntilTheFirstIsGone) {
  {
    auto first = DataDir::Open(path_, "");
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    auto second = DataDir::Open(path_, "");
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), StatusCode::kConflict);
    EXPECT_NE(second.status().message().find("--data-dir"), std::string::npos);
  }
  EXPECT_TRUE(DataDir::Open(path_, "").ok());
}

TEST_F(DataDirTest, RefusesIllegalIdsAndDamagedFiles) {
  for (const std::string& id : {std::string("a/b"), std::string("a b"), std::string(200, 'x')}) {
    EXPECT_EQ(DataDir::Open(path_, id).status().code(), StatusCode::kInvalid) << id;
  }
  for (const char* text : {"", "{}", "[1]", "{\"worker_id\": 3}", "{\"worker_id\": \"../x\"}"}) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path_ + "/worker.json", text).ok());
    EXPECT_FALSE(DataDir::Open(path_, "").ok()) << text;
  }
}

TEST_F(DataDirTest, ForgetsLogLinesOfAnEarlierDaemon) {
  { ASSERT_TRUE(DataDir::Open(path_, "").ok()); }
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path_ + "/logs/old.0", "x").ok());
  auto dir = DataDir::Open(path_, "");
  ASSERT_TRUE(dir.ok());
  EXPECT_TRUE(Env::Posix().ListDir(dir->LogDir())->empty());
}

}  // namespace
}  // namespace weft::daemon
