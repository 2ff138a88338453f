#include "worker/engine/tensor/async_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/check.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer NewBuffer(size_t bytes, char fill) {
  Buffer buffer(static_cast<char*>(std::aligned_alloc(AsyncFile::kAlignment, bytes)));
  std::memset(buffer.get(), fill, bytes);
  return buffer;
}

std::unique_ptr<AsyncFile> Create(int64_t bytes, AsyncFile::Queue queue) {
  auto file = AsyncFile::Create(::testing::TempDir(), bytes, queue);
  WEFT_CHECK(file.ok(), file.status().message());
  return *std::move(file);
}

constexpr size_t kBlock = size_t{256} << 10;
constexpr AsyncFile::Queue kQueues[] = {AsyncFile::Queue::kBest, AsyncFile::Queue::kThreads};

TEST(AsyncFileTest, ReadsWhatWasWrittenThoughManyAreInFlight) {
  for (const AsyncFile::Queue queue : kQueues) {
    constexpr int kBlocks = 100;  // more than the queue is deep
    const auto file = Create(kBlocks * kBlock, queue);
    std::vector<Buffer> buffers;
    std::vector<int64_t> numbers;
    for (int i = 0; i < kBlocks; ++i) {
      buffers.push_back(NewBuffer(kBlock, static_cast<char>(i)));
      numbers.push_back(*file->queue().Start(true, buffers[i].get(), kBlock, i * kBlock));
    }
    for (const int64_t number : numbers) EXPECT_TRUE(file->queue().Wait(number).ok());
    for (int i = 0; i < kBlocks; ++i) {
      std::memset(buffers[i].get(), -1, kBlock);
      numbers[i] = *file->queue().Start(false, buffers[i].get(), kBlock, i * kBlock);
    }
    for (int i = kBlocks; i-- > 0;) {  // in any order
      EXPECT_TRUE(file->queue().Wait(numbers[i]).ok());
      EXPECT_EQ(buffers[i].get()[0], static_cast<char>(i));
      EXPECT_EQ(buffers[i].get()[kBlock - 1], static_cast<char>(i));
    }
  }
}

TEST(AsyncFileTest, AFileThatBecameShortAndAClosedOneAreErrorsThatNameIt) {
  for (const AsyncFile::Queue queue : kQueues) {
    const auto file = Create(4 * kBlock, queue);
    const Buffer buffer = NewBuffer(2 * kBlock, 0);
    ASSERT_EQ(ftruncate(file->descriptor(), 3 * kBlock), 0);
    const auto number = file->queue().Start(false, buffer.get(), 2 * kBlock, 2 * kBlock);
    ASSERT_TRUE(number.ok());
    const Status read = file->queue().Wait(*number);
    EXPECT_EQ(read.code(), StatusCode::kCorrupt);
    EXPECT_THAT(read.message(), HasSubstr(file->path()));
    EXPECT_THAT(read.message(), HasSubstr("ends too early"));
  }
}

TEST(AsyncFileTest, WhatIsInFlightAtTheEndDoesNoHarm) {
  for (const AsyncFile::Queue queue : kQueues) {
    const Buffer buffer = NewBuffer(kBlock, 1);
    const auto file = Create(8 * kBlock, queue);
    for (int i = 0; i < 8; ++i) {
      EXPECT_TRUE(file->queue().Start(true, buffer.get(), kBlock, i * kBlock).ok());
    }
  }
}

TEST(AsyncFileTest, AFullDiskAndAFolderThatIsNotThereAreReportedAtOnce) {
  const auto full = AsyncFile::Create(::testing::TempDir(), int64_t{1} << 60);
  EXPECT_EQ(full.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(full.status().message(), HasSubstr("resources.offload_directory"));
  const auto nowhere = AsyncFile::Create("/nowhere/at/all", 4096);
  EXPECT_THAT(nowhere.status().message(), HasSubstr("No such file"));
  EXPECT_EQ(IoError(true, "file", 0, ENOSPC).code(), StatusCode::kExhausted);
}

}  // namespace
}  // namespace weft::engine
