// That the host execution finds faults of kernels: by itself, and with the sanitizers.

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "tests/gpu/host/faults.h"
#include "tests/gpu/host/streams.h"

namespace weft::kernels::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

// Tests of kernels have their work deferred: who reads a result too soon gets another one.
class DeferredWork : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    host_cuda::DeferWork(std::string_view(test.test_suite_name()).ends_with("OnCuda"));
  }
  void OnTestEnd(const ::testing::TestInfo& /*test*/) override { host_cuda::DeferWork(false); }
};
const bool kDeferred = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new DeferredWork);
  return true;
}();

class HostExecution : public ::testing::Test {
 protected:
  HostExecution() {
    // A sanitizer's report ends its process: a fresh one, since this one has threads.
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    auto state = StreamState::Create(0);
    EXPECT_TRUE(state.ok());
    state_ = *std::move(state);
    auto memory = DeviceMemory::Allocate(0, kCount * sizeof(float));
    EXPECT_TRUE(memory.ok());
    memory_ = *std::move(memory);
    std::vector<float> values(kCount);
    std::iota(values.begin(), values.end(), 0.0f);
    EXPECT_TRUE(memory_.CopyFrom(values.data(), memory_.bytes()).ok());
  }

  Stream stream() { return state_->stream(); }
  float* data() { return static_cast<float*>(memory_.data()); }

  std::vector<float> Values() {
    std::vector<float> values(kCount);
    EXPECT_TRUE(memory_.CopyTo(values.data(), memory_.bytes()).ok());
    return values;
  }

  // Whether data holds what the kernels that pass numbers on should have written.
  bool PassedOn(int count) {
    const std::vector<float> values = Values();
    for (int i = 0; i < count; ++i) {
      if (values[i] != static_cast<float>((i + 1) % count)) return false;
    }
    return true;
  }

  // Expects that `run`, in a process of its own, is reported by a sanitizer with `text`.
  template <class Run>
  void ExpectReport(const Run& run, const char* text) {
    EXPECT_EXIT(
        {
          (void)run();
          std::exit(0);
        },
        [](int status) { return status != 0; }, text);
  }

  static constexpr int kCount = 256;
  std::unique_ptr<StreamState> state_;
  DeviceMemory memory_;
};

TEST_F(HostExecution, ThreadsThatDoNotMeetAreNamed) {
  EXPECT_THAT(
      RunThreadLeaves(stream()).message(),
      AllOf(HasSubstr("ThreadLeaves: launch: block ("), HasSubstr("waits at __syncthreads ("),
            HasSubstr("while thread (3, 0, 0) has left the kernel")));
  EXPECT_THAT(
      RunTwoBarriers(stream()).message(),
      AllOf(HasSubstr("__syncthreads"), HasSubstr("faults.cu:"), HasSubstr("thread (3, 0, 0)")));
  EXPECT_THAT(RunLaneMissing(stream()).message(),
              AllOf(HasSubstr("waits at a warp's common operation"),
                    HasSubstr("5, 0, 0) has left the kernel")));
}

TEST_F(HostExecution, KernelsRunAfterOneThatFailed) {
  EXPECT_FALSE(RunThreadLeaves(stream()).ok());
  EXPECT_FALSE(RunThreadLeaves(stream()).ok());
  EXPECT_TRUE(RunReadBehind(stream(), data(), kCount - 1).ok());
  EXPECT_EQ(Values()[0], kCount - 1);
}

TEST_F(HostExecution, MisalignedAccessIsRefused) {
  EXPECT_THAT(RunMisaligned(stream(), data()).message(),
              HasSubstr("thread (0, 0, 0) accesses 16 bytes at a misaligned address"));
}

TEST_F(HostExecution, AsynchronousCopyArrivesOnlyWhenAwaited) {
  ASSERT_TRUE(RunEarlyRead(stream(), data()).ok());
  EXPECT_TRUE(std::isnan(Values()[0]));
  EXPECT_THAT(RunUnawaitedCopy(stream(), data()).message(), HasSubstr("never waited for"));
}

TEST_F(HostExecution, MissingBarrierShows) {
  if (kTsan) {
    ExpectReport([this] { return RunMissingBarrier(stream(), data()); }, "data race");
    ExpectReport([this] { return RunMissingWarpBarrier(stream(), data()); }, "data race");
  } else {
    ASSERT_TRUE(RunMissingBarrier(stream(), data()).ok());
    EXPECT_FALSE(PassedOn(256));
  }
}

TEST_F(HostExecution, RaceShows) {
  if (kTsan) {
    ExpectReport([this] { return RunRaceInBlock(stream(), data()); }, "data race");
    ExpectReport([this] { return RunRaceBetweenBlocks(stream(), data()); }, "data race");
    return;
  }
  // Without the sanitizer by the results, which depend on the order of threads and blocks.
  bool threads_differ = false, blocks_differ = false;
  float first_thread = -1, first_block = -1;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(RunRaceInBlock(stream(), data()).ok());
    if (i == 0) first_thread = Values()[0];
    threads_differ = threads_differ || Values()[0] != first_thread;
    ASSERT_TRUE(RunRaceBetweenBlocks(stream(), data()).ok());
    if (i == 0) first_block = Values()[0];
    blocks_differ = blocks_differ || Values()[0] != first_block;
  }
  EXPECT_TRUE(threads_differ);
  EXPECT_TRUE(blocks_differ);
}

TEST_F(HostExecution, AccessOutOfBoundsIsReported) {
  if (!kAsan) GTEST_SKIP() << "for the preset asan";
  ExpectReport([this] { return RunReadBehind(stream(), data(), kCount); }, "use-after-poison");
  ExpectReport([this] { return RunReadBehindShared(stream(), data(), 32); }, "use-after-poison");
  ExpectReport([this] { return RunReadBehindDynamic(stream(), data(), 32); }, "use-after-poison");
}

// Two streams (the second runs by itself), and what each piece of their work writes.
class Captures : public HostExecution {
 protected:
  Captures()
      : origin_(host_cuda::NewStream()),
        other_(host_cuda::NewStream(true)),
        fork_(host_cuda::NewEvent()),
        join_(host_cuda::NewEvent()) {
    host_cuda::DeferWork(true);
  }
  ~Captures() override {
    host_cuda::DeferWork(false);
    for (CUevent_st* event : {fork_, join_}) delete event;
    for (CUstream_st* stream : {origin_, other_}) host_cuda::EndStream(stream);
  }

  std::string Write(CUstream_st* stream, char piece) {
    return host_cuda::Enqueue(stream, [this, piece]() -> std::string {
      written_ += piece;
      return "";
    });
  }
  // a, b overlapped with it, and c after both, if `joins` says so.
  void Enqueue(bool joins) {
    EXPECT_EQ(Write(origin_, 'a'), "");
    EXPECT_EQ(host_cuda::RecordEvent(fork_, origin_, false), "");
    EXPECT_EQ(host_cuda::WaitForEvent(other_, fork_), "");
    EXPECT_EQ(Write(other_, 'b'), "");
    EXPECT_EQ(host_cuda::RecordEvent(join_, other_, false), "");
    if (joins) {
      EXPECT_EQ(host_cuda::WaitForEvent(origin_, join_), "");
    }
    EXPECT_EQ(Write(origin_, 'c'), "");
  }

  CUstream_st *origin_, *other_;
  CUevent_st *fork_, *join_;
  std::string written_;
};

TEST_F(Captures, HaveWhatStreamsThatJoinThemDo) {
  ASSERT_EQ(host_cuda::BeginCapture(origin_), "");
  Enqueue(true);
  EXPECT_EQ(written_, "");
  std::string failure;
  const auto graph = host_cuda::EndCapture(origin_, &failure);
  ASSERT_NE(graph, nullptr) << failure;
  for (const char* want : {"abc", "abcabc"}) {
    EXPECT_EQ(host_cuda::LaunchGraph(*graph, origin_), "");
    EXPECT_EQ(host_cuda::Synchronize(origin_), "");
    EXPECT_EQ(written_, want);
  }
  // Both are free again.
  Enqueue(true);
  EXPECT_EQ(host_cuda::Synchronize(origin_), "");
  EXPECT_EQ(written_, "abcabcabc");
}

TEST_F(Captures, FailWhereTheWorkOfAStreamIsNotAwaited) {
  ASSERT_EQ(host_cuda::BeginCapture(origin_), "");
  Enqueue(false);
  std::string failure;
  EXPECT_EQ(host_cuda::EndCapture(origin_, &failure), nullptr);
  EXPECT_THAT(failure, HasSubstr("not joined"));
}

}  // namespace
}  // namespace weft::kernels::cuda
