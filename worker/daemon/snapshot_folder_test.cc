#include "worker/daemon/snapshot_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace weft::daemon {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

class SnapshotFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    parent_ = testing::TempDir() + "memory";
    fs::create_directories(parent_);
  }
  void TearDown() override { fs::remove_all(parent_); }
  std::string parent_;
};

TEST_F(SnapshotFolderTest, IsOfOneDaemonAndOneUserAndThereWhileItIsUsed) {
  const std::string a = SnapshotFolder(parent_, "/data/a"), b = SnapshotFolder(parent_, "/data/b");
  EXPECT_NE(a, b);
  EXPECT_FALSE(fs::exists(a));
  for (int start : {1, 2}) EXPECT_TRUE(MakeSnapshotFolder(a).ok()) << start;
  struct stat found {};
  ASSERT_EQ(stat(a.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  fs::create_directories(a + "/job-1.job-1");
  LeaveSnapshotFolder(a);
  EXPECT_TRUE(fs::exists(a));
  fs::remove_all(a + "/job-1.job-1");
  LeaveSnapshotFolder(a);
  EXPECT_FALSE(fs::exists(a));
}

TEST_F(SnapshotFolderTest, IsNoneWhereThereIsNoMemoryToUse) {
  EXPECT_EQ(SnapshotFolder("", "/data/a"), "");
  EXPECT_EQ(MakeSnapshotFolder(SnapshotFolder(parent_ + "/none", "/data/a")).code(),
            StatusCode::kInvalid);
  const std::string folder = SnapshotFolder(parent_, "/data/a");
  fs::create_symlink("/tmp", folder);
  EXPECT_EQ(MakeSnapshotFolder(folder).code(), StatusCode::kInvalid) << "another user's, perhaps";
}

TEST_F(SnapshotFolderTest, LosesWhatNobodyAddsToAnyMore) {
  const std::string folder = SnapshotFolder(parent_, "/data/a");
  ASSERT_TRUE(MakeSnapshotFolder(folder).ok());
  for (const char* run : {"old-1.old-1", "runs-2.phase-1", "fresh-3.fresh-3"}) {
    fs::create_directories(folder + "/" + run + "/rank-0/step-00000004-of-1");
    std::ofstream(folder + "/" + run + "/rank-0/step-00000004-of-1/manifest.json") << "x";
  }
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  for (const char* run : {"old-1.old-1", "runs-2.phase-1"}) {
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(folder + "/" + std::string(run))) {
      fs::last_write_time(entry.path(), long_ago);
    }
    fs::last_write_time(folder + "/" + std::string(run), long_ago);
  }
  ForgetOldSnapshots(folder, {"runs-2"}, seconds(3600));
  EXPECT_FALSE(fs::exists(folder + "/old-1.old-1"));
  EXPECT_TRUE(fs::exists(folder + "/runs-2.phase-1"));
  EXPECT_TRUE(fs::exists(folder + "/fresh-3.fresh-3"));
}

}  // namespace
}  // namespace weft::daemon
