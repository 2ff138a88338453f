#include "coordinator/service/run_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace weft::coordinator {
namespace {

class RunFolder : public testing::Test {
 protected:
  void SetUp() override {
    root_ =
        std::filesystem::temp_directory_path() / ("weft-run-folder-" + std::to_string(getpid()));
    std::filesystem::remove_all(root_);
    run_ = root_ / "job-abcde";
    for (const char* folder :
         {"checkpoints/step-00000010", "checkpoints/.tmp-step-00000020-epoch-1", "epochs",
          "profiles", "rendezvous-3", "phase-1/checkpoints/step-00000010"}) {
      std::filesystem::create_directories(run_ / folder);
    }
    for (const char* file : {"loss.jsonl", "summary.json", "tokenizer.json",
                             "checkpoints/step-00000010/model.safetensors"}) {
      std::ofstream(run_ / file) << "x";
    }
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string Foreign() {
    auto found = ForeignContent(Env::Posix(), run_);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : "";
  }

  std::filesystem::path root_;
  std::filesystem::path run_;
};

TEST_F(RunFolder, WhatAJobWritesIsItsOwn) {
  EXPECT_EQ(Foreign(), "");
  std::filesystem::remove_all(run_);
  EXPECT_EQ(Foreign(), "");
}

TEST_F(RunFolder, ExportsAndCheckpointsSetAsideAreNot) {
  for (const char* folder : {"hf", "checkpoints/best", "checkpoints/step-10-keep", "phase-2-keep",
                             "phase-1/hf", "phase-1/checkpoints/best"}) {
    std::filesystem::create_directories(run_ / folder);
    EXPECT_EQ(Foreign(), (run_ / folder).string());
    std::filesystem::remove_all(run_ / folder);
  }
  std::ofstream(run_ / "model.safetensors") << "x";
  EXPECT_EQ(Foreign(), (run_ / "model.safetensors").string());
}

TEST_F(RunFolder, WhatIsInOneFollowsFromTheTextOfThePath) {
  const std::string run = "/runs/job-abcde";
  for (const char* path :
       {"/runs/job-abcde/checkpoints/step-00000010", "/runs/job-abcde/phase-1/search/checkpoints/s",
        "/runs//job-abcde/./checkpoints", "/runs/job-abcde/a/../b"}) {
    EXPECT_TRUE(IsInRunFolder(path, run)) << path;
  }
  for (const char* path : {"", "/", "/etc/passwd", "/runs", "/runs/job-abcde", "/runs/job-abcde/",
                           "/runs/job-abcde/..", "/runs/job-abcde/../job-other/checkpoints/step-1",
                           "/runs/job-abcdef/checkpoints", "runs/job-abcde/checkpoints",
                           "job-abcde/checkpoints", "../job-abcde/checkpoints"}) {
    EXPECT_FALSE(IsInRunFolder(path, run)) << path;
  }
}

TEST_F(RunFolder, OnlyFoldersOfTheRunRootAreDeleted) {
  for (const std::string& path :
       {root_.string(), (root_ / "..").string(), (run_ / "epochs").string(), std::string("/"),
        root_.string() + "/", (root_ / "job-abcde/..").string()}) {
    EXPECT_EQ(DeleteRunFolder(Env::Posix(), root_, path).code(), StatusCode::kInvalid) << path;
  }
  EXPECT_EQ(DeleteRunFolder(Env::Posix(), "", "/x").code(), StatusCode::kInvalid);
  EXPECT_TRUE(std::filesystem::exists(run_ / "epochs"));
  EXPECT_TRUE(DeleteRunFolder(Env::Posix(), root_, run_).ok());
  EXPECT_FALSE(std::filesystem::exists(run_));
  EXPECT_TRUE(DeleteRunFolder(Env::Posix(), root_, run_).ok()) << "it may be gone already";
}

}  // namespace
}  // namespace weft::coordinator
