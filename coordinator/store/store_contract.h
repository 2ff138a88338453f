#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

struct Backend {
  std::string name;
  std::function<std::unique_ptr<Store>(const std::string& dir)> open;
};

inline JobRecord NewJob(const std::string& id) {
  JobRecord job;
  job.id = id;
  job.spec.name = "test";
  job.spec.data.train = {"a.txt"};
  job.submitted_at = 5;
  return job;
}

inline Transaction Put(JobRecord job) {
  Transaction t;
  t.job = std::move(job);
  return t;
}

/// What every Store must do, whatever is behind it.
class StoreContract : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("weft-store-" + std::to_string(getpid()) + "-" +
            std::to_string(std::hash<std::string>()(
                testing::UnitTest::GetInstance()->current_test_info()->name())));
    std::filesystem::create_directories(dir_);
    store_ = GetParam().open(dir_);
    ASSERT_NE(store_, nullptr);
  }
  void TearDown() override {
    store_.reset();
    ASSERT_TRUE(SetFailpoints("").ok());
    std::filesystem::remove_all(dir_);
  }
  void MustCommit(Transaction t) {
    auto result = CommitAndWait(*store_, std::move(t));
    ASSERT_TRUE(result.ok()) << result.status().message();
  }

  std::filesystem::path dir_;
  std::unique_ptr<Store> store_;
};

}  // namespace weft::coordinator
