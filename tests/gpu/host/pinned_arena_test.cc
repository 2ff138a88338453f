// Checks what of pinned memory only the host execution can show: what is locked, and when.

#include "kernels/cuda/pinned_arena.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/transfer.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/pinned_count.h"
#include "tests/gpu/host/streams.h"

namespace weft::kernels::cuda {
namespace {

using ::testing::HasSubstr;

uint8_t* Take(PinnedArena& arena, size_t bytes) {
  const Result<void*> piece = arena.Take(bytes);
  EXPECT_TRUE(piece.ok()) << piece.status().ToString();
  return piece.ok() ? static_cast<uint8_t*>(*piece) : nullptr;
}

TEST(PinnedArena, WhatIsTakenAgainIsNotLockedAgain) {
  PinnedArena arena(size_t{1} << 16);
  int64_t locked = -1;
  for (int round = 0; round < 5; ++round) {
    std::vector<uint8_t*> pieces;
    for (size_t bytes : {0, 1, 256, 257, 40'000, 100'000}) {
      uint8_t* piece = Take(arena, bytes);
      ASSERT_NE(piece, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % PinnedArena::kAlignment, 0u);
      EXPECT_TRUE(host_cuda::IsPinnedMemory(piece, bytes));
      for (const uint8_t* other : pieces) EXPECT_NE(piece, other);
      std::memset(piece, static_cast<int>(pieces.size()), bytes);
      pieces.push_back(piece);
    }
    EXPECT_EQ(pieces[3][256], 3);
    EXPECT_EQ(pieces[4][39'999], 4);
    for (size_t i : {3, 0, 5, 1, 4, 2}) arena.Give(pieces[i]);
    if (round == 0) locked = host_cuda::PinnedAllocations();
    EXPECT_EQ(host_cuda::PinnedAllocations(), locked) << round;
  }
}

TEST(PinnedArena, GrowsAndUnlocksWhatWasTooSmallOnceNothingIsUsed) {
  PinnedArena arena(4096);
  EXPECT_EQ(arena.locked_bytes(), 0u);
  uint8_t* const small = Take(arena, 4096);
  EXPECT_EQ(arena.locked_bytes(), 4096u);
  uint8_t* const other = Take(arena, 100);
  EXPECT_EQ(arena.locked_bytes(), 8192u);
  arena.Give(small);
  uint8_t* const large = Take(arena, 10'000);
  EXPECT_EQ(arena.locked_bytes(), 8192u + 10'240u);
  EXPECT_TRUE(host_cuda::IsPinnedMemory(small, 4096)) << "to unlock it would wait for the device";
  // The rest of the chunk is used.
  uint8_t* const next = Take(arena, 3000);
  EXPECT_EQ(next, other + PinnedArena::kAlignment);
  for (uint8_t* piece : {other, large}) arena.Give(piece);
  EXPECT_EQ(arena.locked_bytes(), 8192u + 10'240u);
  arena.Give(next);
  arena.Give(nullptr);
  EXPECT_FALSE(host_cuda::IsPinnedMemory(small, 4096)) << "it was unlocked";
  EXPECT_EQ(arena.locked_bytes(), 4096u + 10'240u);
}

TEST(PinnedArena, WhoTakesAPieceAgainFindsNoCopyInFlight) {
  auto state = StreamState::Create(0);
  ASSERT_TRUE(state.ok());
  auto memory = DeviceMemory::Allocate(0, 64);
  ASSERT_TRUE(memory.ok());
  const Stream stream = (*state)->stream();
  PinnedArena arena(4096);
  host_cuda::DeferWork(true);
  uint8_t* const piece = Take(arena, 64);
  std::memset(piece, 1, 64);
  ASSERT_TRUE(FillBytes(stream, memory->data(), 2, 64).ok());
  ASSERT_TRUE(CopyToHost(stream, piece, memory->data(), 64).ok());
  EXPECT_EQ(piece[63], 1) << "the copy waits";
  arena.Give(piece);
  ASSERT_EQ(Take(arena, 64), piece);
  EXPECT_EQ(piece[63], 2);
  std::memset(piece, 3, 64);
  EXPECT_TRUE((*state)->Synchronize().ok());
  EXPECT_EQ(piece[63], 3);
  host_cuda::DeferWork(false);
  arena.Give(piece);
}

TEST(PinnedArena, WhatIsNotToBeHadIsExhaustedAndSaysHowMuchItWas) {
  const size_t others = PinnedArena::OfProcess().locked_bytes();
  PinnedArena arena(size_t{1} << 20);
  host_cuda::LimitPinnedMemory(others + 4096);
  const Status refused = arena.Take(5000).status();
  arena.Give(Take(arena, 3000));
  EXPECT_EQ(arena.locked_bytes(), 3072u) << "a chunk that is smaller than usual";
  host_cuda::LimitPinnedMemory(std::numeric_limits<size_t>::max());
  EXPECT_EQ(refused.code(), StatusCode::kExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("locking 5120 bytes of host memory: cudaMallocHost"));
  arena.Give(Take(arena, 5000));
  EXPECT_EQ(arena.locked_bytes(), size_t{1} << 20);
}

TEST(PinnedArena, LocksNothingWhileAGraphIsRecordedAndGivesWhatItHas) {
  auto state = StreamState::Create(0);
  ASSERT_TRUE(state.ok());
  PinnedArena arena(4096);
  uint8_t* const first = Take(arena, 100);
  ASSERT_TRUE(Graph::Begin((*state)->stream()).ok());
  uint8_t* const second = Take(arena, 100);
  const Status refused = arena.Take(8192).status();
  EXPECT_THAT(refused.message(), HasSubstr("locking 8192 bytes of host memory: cudaMallocHost"));
  (void)Graph::End((*state)->stream());
  arena.Give(first);
  arena.Give(second);
}

TEST(PinnedArena, ThreadsShareIt) {
  PinnedArena arena(4096);
  const auto use = [&arena](uint8_t mark) {
    for (size_t round = 1; round <= 300; ++round) {
      const size_t bytes = round * 37 % 5000 + 1;
      uint8_t* const piece = Take(arena, bytes);
      std::memset(piece, mark, bytes);
      for (size_t i = 0; i < bytes; i += 64) ASSERT_EQ(piece[i], mark);
      arena.Give(piece);
    }
  };
  std::vector<std::thread> threads;
  for (uint8_t mark = 1; mark <= 4; ++mark) threads.emplace_back(use, mark);
  for (std::thread& thread : threads) thread.join();
}

TEST(PinnedMemory, IsOfTheArenaOfTheProcess) {
  { ASSERT_TRUE(PinnedMemory::Allocate(3000).ok()); }
  const int64_t locked = host_cuda::PinnedAllocations();
  void* at = nullptr;
  for (int round = 0; round < 3; ++round) {
    auto memory = PinnedMemory::Allocate(3000);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(memory->bytes(), 3000u);
    EXPECT_TRUE(at == nullptr || memory->data() == at);
    at = memory->data();
  }
  EXPECT_EQ(host_cuda::PinnedAllocations(), locked);
  EXPECT_GE(PinnedArena::OfProcess().locked_bytes(), 3072u);
}

}  // namespace
}  // namespace weft::kernels::cuda
