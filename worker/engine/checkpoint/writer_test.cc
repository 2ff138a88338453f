#include "worker/engine/checkpoint/writer.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/failpoint.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/checkpoint/testing.h"
#include "worker/engine/comm/hash_store.h"

namespace weft::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using State = CheckpointProgress::State;

const std::string kRun = "/runs/j-1";

class WriterTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(env_.CreateDirs(kRun).ok()); }
  void TearDown() override { ASSERT_TRUE(SetFailpoints("").ok()); }

  Result<std::unique_ptr<CheckpointWriter>> Open(int64_t epoch, int64_t keep_last = 1) {
    return CheckpointWriter::Open(
        {&env_, kRun, epoch, keep_last, [this](const CheckpointProgress& progress) {
           std::unique_lock lock(mutex_);
           progress_.push_back(progress);
           gate_.wait(lock, [this] { return gate_open_; });
         }});
  }

  static Status Save(CheckpointWriter& writer, int64_t step) {
    TestState state(step);
    WEFT_RETURN_IF_ERROR(writer.Save(TestManifest(step), state.Tensors()).status());
    return writer.Wait();
  }

  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const std::vector<CheckpointInfo> found = *ListCheckpoints(env_, kRun);
    for (const CheckpointInfo& info : found) steps.push_back(info.step);
    return steps;
  }

  void SetGate(bool open) {
    std::lock_guard lock(mutex_);
    gate_open_ = open;
    gate_.notify_all();
  }

  FaultEnv env_;
  std::mutex mutex_;
  std::condition_variable gate_;
  bool gate_open_ = true;  ///< While closed the writer's thread stays in its report.
  std::vector<CheckpointProgress> progress_;
};

TEST_F(WriterTest, TrainingGoesOnWhileTheCopyIsWritten) {
  auto writer = *Open(1);
  SetGate(false);
  TestState state(100);
  ASSERT_TRUE(writer->Save(TestManifest(100), state.Tensors()).ok());
  state = TestState(101);  // the next step overwrites the tensors
  EXPECT_TRUE(writer->busy());
  SetGate(true);
  ASSERT_TRUE(writer->Wait().ok());
  EXPECT_FALSE(writer->busy());
  ASSERT_EQ(progress_.size(), 2u);
  EXPECT_EQ(progress_[0].state, State::kWritten);
  EXPECT_EQ(progress_[1].state, State::kVerified);
  EXPECT_EQ(progress_[1].path, CheckpointPath(kRun, 100));
  EXPECT_GT(progress_[1].bytes, 17 * 4);
  LatestSearch search = *LatestVerified(env_, kRun);
  TestState loaded;
  ASSERT_TRUE(
      LoadTensors(env_, search.latest->path, search.latest->manifest, loaded.Tensors()).ok());
  EXPECT_TRUE(loaded == TestState(100));
}

/// Numbers in a file; no more than a few bytes of them are asked for at once.
class Elsewhere : public StoredNumbers {
 public:
  explicit Elsewhere(size_t elements) : numbers(elements) {}

  Status Read(int64_t first, std::span<std::byte> to) override {
    most_bytes = std::max(most_bytes, to.size());
    std::memcpy(to.data(), numbers.data() + first, to.size());
    return broken ? CorruptError("the disk loses data") : OkStatus();
  }
  Status Write(int64_t first, std::span<const std::byte> from) override {
    std::memcpy(numbers.data() + first, from.data(), from.size());
    return OkStatus();
  }

  NamedTensor Tensor(const std::string& name) {
    // The test owns it.
    return {.name = name,
            .view = {nullptr, DType::kF32, Shape{static_cast<int64_t>(numbers.size())}},
            .stored = std::shared_ptr<StoredNumbers>(this, [](StoredNumbers*) {})};
  }

  std::vector<float> numbers;
  size_t most_bytes = 0;
  bool broken = false;
};

TEST_F(WriterTest, WhatResidesInAFileIsWrittenWithoutMemoryForItBeforeTrainingGoesOn) {
  auto writer = *Open(1);
  constexpr size_t kElements = (size_t{3} << 20) + 5;
  Elsewhere moments(kElements);
  std::iota(moments.numbers.begin(), moments.numbers.end(), 1.0f);
  const std::vector<float> expected = moments.numbers;
  TestState state(100);
  std::vector<NamedTensor> tensors = state.Tensors();
  tensors.push_back(moments.Tensor("moments"));
  ASSERT_TRUE(writer->Save(TestManifest(100), tensors).ok());
  // The next update overwrites all of it.
  state = TestState(101);
  moments.numbers.assign(kElements, -1);
  ASSERT_TRUE(writer->Wait().ok());
  EXPECT_LE(moments.most_bytes, size_t{4} << 20);
  EXPECT_GT(progress_.back().snapshot_seconds, 0);

  const LatestSearch search = *LatestVerified(env_, kRun);
  TestState loaded;
  Elsewhere restored(kElements);
  tensors = loaded.Tensors();
  tensors.push_back(restored.Tensor("moments"));
  const Status read = LoadTensors(env_, search.latest->path, search.latest->manifest, tensors);
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_TRUE(loaded == TestState(100));
  EXPECT_TRUE(restored.numbers == expected);

  // What cannot be read back is no checkpoint, and the old one stays.
  moments.broken = true;
  tensors.back() = moments.Tensor("moments");
  ASSERT_TRUE(writer->Save(TestManifest(200), tensors).ok());
  EXPECT_EQ(writer->Wait().code(), StatusCode::kCorrupt);
  EXPECT_THAT(progress_.back().error.message(), HasSubstr("loses data"));
  EXPECT_THAT(Steps(), ElementsAre(100));
}

TEST_F(WriterTest, KeepsTheLastOnesAndTheOneResumedFrom) {
  auto writer = *Open(1, 2);
  for (int64_t step : {1, 2, 3, 4}) ASSERT_TRUE(Save(*writer, step).ok());
  EXPECT_THAT(Steps(), ElementsAre(3, 4));
  writer.reset();
  auto next = *Open(2, 2);
  next->KeepResumeStep(3);
  for (int64_t step : {5, 6, 7}) ASSERT_TRUE(Save(*next, step).ok());
  EXPECT_THAT(Steps(), ElementsAre(3, 6, 7));
}

TEST_F(WriterTest, NothingIsDeletedBeforeTheNewOneIsVerified) {
  auto writer = *Open(1, 1);
  ASSERT_TRUE(Save(*writer, 1).ok());
  SetGate(false);
  TestState state(2);
  ASSERT_TRUE(writer->Save(TestManifest(2), state.Tensors()).ok());
  {
    std::unique_lock lock(mutex_);
    while (progress_.back().step != 2) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    EXPECT_EQ(progress_.back().state, State::kWritten);
  }
  EXPECT_THAT(Steps(), ElementsAre(1, 2)) << "written, not verified";
  SetGate(true);
  ASSERT_TRUE(writer->Wait().ok());
  EXPECT_THAT(Steps(), ElementsAre(2));

  ASSERT_TRUE(SetFailpoints("checkpoint.before_verify=error").ok());
  EXPECT_FALSE(Save(*writer, 3).ok());
  EXPECT_FALSE(Save(*writer, 4).ok());
  EXPECT_THAT(Steps(), ElementsAre(2, 3, 4)) << "unverified ones never push out a verified one";
}

TEST_F(WriterTest, AFullDiskIsReportedCleanedUpAndRetried) {
  auto writer = *Open(1, 1);
  ASSERT_TRUE(Save(*writer, 1).ok());
  env_.SetCapacity(*env_.FileSize(CheckpointPath(kRun, 1) + "/manifest.json") * 2);
  Status full = Save(*writer, 2);
  EXPECT_EQ(full.code(), StatusCode::kExhausted);
  EXPECT_EQ(progress_.back().state, State::kFailed);
  EXPECT_THAT(progress_.back().error.message(), HasSubstr("No space left"));
  EXPECT_THAT(*env_.ListDir(CheckpointsFolder(kRun)), ElementsAre("step-00000001"));
  EXPECT_FALSE(writer->fenced());
  env_.SetCapacity(1 << 20);
  EXPECT_TRUE(Save(*writer, 3).ok());
  EXPECT_THAT(Steps(), ElementsAre(3));
}

/// Without memory for files that are written or read, once armed.
class NoMemoryEnv : public FaultEnv {
 public:
  bool write = false;
  bool read = false;
  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    if (write) throw std::bad_alloc();
    return FaultEnv::NewWritableFile(path);
  }
  Result<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override {
    if (read) throw std::bad_alloc();
    return FaultEnv::MapFile(path);
  }
};

/// Two ranks that hold half of a tensor each, and rank 0 another one.
class Halves {
 public:
  explicit Halves(int64_t step) : state_(step) {}
  std::vector<NamedTensor> Of(int rank) {
    std::vector<NamedTensor> tensors = state_.Tensors();
    TensorView& weights = tensors[0].view;
    tensors[0].part = {.whole = weights.shape, .first = 5 * rank};
    weights = {weights.As<float>() + 5 * rank, DType::kF32, {rank == 0 ? 5 : 7}};
    if (rank > 0) tensors.pop_back();
    return tensors;
  }

 private:
  TestState state_;
};

TEST_F(WriterTest, RanksThatHoldPartsSaveOneCheckpointTogether) {
  HashStore store;
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  for (int rank = 0; rank < 2; ++rank) {
    CheckpointWriterOptions options{&env_, kRun, 1, 1};
    options.peers.emplace(&store, rank, 2);
    writers.push_back(*CheckpointWriter::Open(std::move(options)));
  }
  const auto save = [&](int64_t step) {
    Halves halves(step);
    // The order in which they begin does not matter.
    for (const int rank : {step % 2 == 0 ? 0 : 1, step % 2 == 0 ? 1 : 0}) {
      (void)writers[static_cast<size_t>(rank)]->Save(TestManifest(step), halves.Of(rank));
    }
    const Status other = writers[1]->Wait();
    return std::pair(writers[0]->Wait(), other);
  };
  for (const int64_t step : {1, 2, 2}) {  // the third finds that it exists already
    const auto [first, other] = save(step);
    EXPECT_TRUE(first.ok()) << first.message();
    EXPECT_TRUE(other.ok()) << other.message();
    const LatestSearch search = *LatestVerified(env_, kRun);
    EXPECT_EQ(search.latest->manifest.step, step);
    EXPECT_EQ(search.latest->manifest.files.size(), 2u);
    TestState loaded;
    const Status status =
        LoadTensors(env_, search.latest->path, search.latest->manifest, loaded.Tensors());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(loaded == TestState(step));
  }

  // Whoever cannot go on, the other does not wait, and the old checkpoint stays.
  env_.SetCapacity(*env_.FileSize(CheckpointPath(kRun, 2) + "/state-00000-of-00002.safetensors"));
  const auto [full, share] = save(3);
  EXPECT_EQ(full.code(), StatusCode::kExhausted) << full.message();
  env_.SetCapacity(1 << 20);
  ASSERT_TRUE(SetFailpoints("checkpoint.before_write=error").ok());
  const auto [failed, uninvited] = save(4);
  EXPECT_FALSE(failed.ok());
  EXPECT_TRUE(uninvited.ok()) << "its share is not wanted";
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_THAT(Steps(), ElementsAre(2));
  EXPECT_TRUE(save(5).first.ok());
}

TEST_F(WriterTest, WithoutMemoryACheckpointFailsAndTheNextOneIsTried) {
  NoMemoryEnv env;
  ASSERT_TRUE(env.CreateDirs(kRun).ok());
  auto writer = *CheckpointWriter::Open({&env, kRun, 1, 1, {}});
  ASSERT_TRUE(Save(*writer, 1).ok());
  env.write = true;
  const Status status = Save(*writer, 2);
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("no more memory"));
  EXPECT_THAT(*env.ListDir(CheckpointsFolder(kRun)), ElementsAre("step-00000001"));
  env.write = false;
  env.read = true;
  EXPECT_EQ(Save(*writer, 3).code(), StatusCode::kExhausted);
  env.read = false;
  EXPECT_TRUE(LatestVerified(env, kRun)->latest.has_value());
  EXPECT_TRUE(Save(*writer, 4).ok());
}

TEST_F(WriterTest, AReplacedAttemptPublishesAndDeletesNothing) {
  auto old_writer = *Open(1, 1);
  ASSERT_TRUE(Save(*old_writer, 1).ok());
  auto new_writer = *Open(2, 1);
  EXPECT_EQ(Save(*old_writer, 2).code(), StatusCode::kConflict);
  EXPECT_TRUE(old_writer->fenced());
  EXPECT_EQ(progress_.back().state, State::kFailed);
  EXPECT_THAT(*env_.ListDir(CheckpointsFolder(kRun)), ElementsAre("step-00000001"));
  EXPECT_EQ(Open(1).status().code(), StatusCode::kConflict);
  ASSERT_TRUE(Save(*new_writer, 2).ok());
  EXPECT_EQ(ReadManifest(env_, CheckpointPath(kRun, 2))->epoch, 2);
}

TEST_F(WriterTest, AnAttemptReplacedWhileItWritesDoesNotPublish) {
  auto old_writer = *Open(1, 1);
  ASSERT_TRUE(SetFailpoints("checkpoint.after_manifest=sleep:200").ok());
  TestState state(1);
  ASSERT_TRUE(old_writer->Save(TestManifest(1), state.Tensors()).ok());
  auto new_writer = *Open(2, 1);
  EXPECT_FALSE(old_writer->Wait().ok());
  EXPECT_TRUE(Steps().empty());
}

TEST_F(WriterTest, EveryFailpointLeavesTheOldCheckpoint) {
  for (const char* name :
       {"checkpoint.before_write", "checkpoint.after_shards", "checkpoint.after_manifest",
        "checkpoint.after_publish", "checkpoint.before_verify", "checkpoint.after_verify",
        "checkpoint.before_collect", "checkpoint.during_collect"}) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs(kRun).ok());
    auto writer = *CheckpointWriter::Open({&env, kRun, 1, 1, {}});
    ASSERT_TRUE(Save(*writer, 1).ok());
    ASSERT_TRUE(SetFailpoints(std::string(name) + "=full").ok());
    (void)Save(*writer, 2);
    EXPECT_TRUE(LatestVerified(env, kRun)->latest.has_value()) << name;
    ASSERT_TRUE(SetFailpoints("").ok());
    ASSERT_TRUE(Save(*writer, 3).ok());
    EXPECT_THAT(*env.ListDir(CheckpointsFolder(kRun)), ElementsAre("step-00000003")) << name;
  }
}

}  // namespace
}  // namespace weft::engine
