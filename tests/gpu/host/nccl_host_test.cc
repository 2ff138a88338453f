// The NCCL back end against an NCCL that is threads of this process. Says nothing about the real
// one, but that the declarations are its.

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/fake_nccl.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/comm/collective_cases.h"
#include "worker/engine/comm/gloo_collective.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/comm/nccl_collective.h"

namespace weft::engine {
namespace {

using kernels::cuda::DeviceMemory;
using kernels::cuda::StreamState;
using std::chrono::milliseconds;
using testing::HasSubstr;

class FakeDeviceRank : public TestRank {
 public:
  FakeDeviceRank(Collective& its_group, StreamState& state)
      : TestRank(its_group, state.stream()), state_(state) {}
  TensorView NewTensor(DType dtype, int64_t count) override {
    Result<DeviceMemory> memory = DeviceMemory::Allocate(
        stream.device.index, static_cast<size_t>(count) * DTypeSize(dtype) + 1);
    WEFT_CHECK(memory.ok(), memory.status().message());
    memory_.push_back(std::move(*memory));
    return {memory_.back().data(), dtype, {count}, stream.device};
  }
  void Write(const TensorView& tensor, const void* bytes) override {
    (void)state_.Synchronize();
    const host_cuda::DeviceAccess access;
    if (tensor.Bytes() > 0) std::memcpy(tensor.data, bytes, tensor.Bytes());
  }
  void Read(const TensorView& tensor, void* bytes) override {
    (void)state_.Synchronize();
    const host_cuda::DeviceAccess access;
    if (tensor.Bytes() > 0) std::memcpy(bytes, tensor.data, tensor.Bytes());
  }

 private:
  StreamState& state_;
  std::deque<DeviceMemory> memory_;
};

void RunFakeRanks(int size, milliseconds timeout, const std::function<void(TestRank&)>& body) {
  HashStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CollectiveOptions options;
      options.rank = rank;
      options.size = size;
      options.connect_timeout = std::chrono::seconds(20);
      options.timeout = timeout;
      options.device = {DeviceType::kCuda, rank};
      auto state = StreamState::Create(rank);
      WEFT_CHECK(state.ok(), state.status().message());
      Result<std::unique_ptr<Collective>> group = ConnectCollective(options, store);
      if (size > 1) {
        // ConnectCollective looks for the real one.
        EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
        auto host = ConnectGloo(options, store);
        WEFT_CHECK(host.ok(), host.status().message());
        group = ConnectNccl(FakeNccl(), options, store, std::move(*host));
      }
      WEFT_CHECK(group.ok(), group.status().message());
      {
        FakeDeviceRank test_rank(**group, **state);
        body(test_rank);
        (void)(*state)->Synchronize();
        group->reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(OpenFakeComms(), 0);
}

INSTANTIATE_TEST_SUITE_P(Nccl, CollectiveCases,
                         testing::Values(CollectiveBackend{"Fake", false, RunFakeRanks}),
                         [](const auto& test) { return test.param.name; });

TEST(NcclCollective, AnOperationThatHangsEndsWithTheTimeout) {
  RunFakeRanks(2, milliseconds(300), [](TestRank& rank) {
    const TensorView values = rank.Put(DType::kF32, {1, 2});
    if (rank.group.rank() == 1) BreakFakeRank(1, FakeFault::kHang);
    ASSERT_TRUE(rank.group.Barrier().ok());
    (void)rank.group.AllReduce(rank.stream, values).Wait(rank.stream);
    (void)rank.Get(values);
    const Status status = rank.group.AllReduce(rank.stream, values).Wait(rank.stream);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  });
}

TEST(NcclCollective, AnErrorThatNcclReportsBreaksTheGroupAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  RunFakeRanks(2, milliseconds(20000), [](TestRank& rank) {
    const TensorView values = rank.Put(DType::kF32, {1, 2});
    if (rank.group.rank() == 1) BreakFakeRank(1, FakeFault::kError);
    ASSERT_TRUE(rank.group.Barrier().ok());
    const Work work = rank.group.AllReduce(rank.stream, values);
    // A stream of the host: the caller itself waits.
    const Status status = work.Wait(Stream{});
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("over NCCL"));
    EXPECT_EQ(rank.group.Barrier().code(), StatusCode::kUnavailable);
    EXPECT_EQ(rank.group.Split(0, "x").status().code(), StatusCode::kUnavailable);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(NcclCollective, TheHostGoesOnWhileTheStreamWaits) {
  RunFakeRanks(2, milliseconds(20000), [](TestRank& rank) {
    const TensorView values = rank.Put(DType::kF32, {1, 2});
    // Rank 1 calls only once rank 0 has passed Wait.
    if (rank.group.rank() == 1) {
      ASSERT_TRUE(rank.group.Barrier().ok());
    }
    ASSERT_TRUE(rank.group.AllReduce(rank.stream, values).Wait(rank.stream).ok());
    if (rank.group.rank() == 0) {
      ASSERT_TRUE(rank.group.Barrier().ok());
    }
    EXPECT_THAT(rank.Get(values), testing::ElementsAre(2, 4));
  });
}

/// Four devices, for all tests.
class FakeDevices : public testing::Environment {
 public:
  void SetUp() override {
    host_cuda::SetDeviceCount(4);
    host_cuda::DeferWork(true);
    // Not there, so that the machine's own NCCL, if any, is not taken for the fake.
    setenv("WEFT_NCCL_LIBRARY", "/nonexistent/libnccl.so.2", 1);
  }
};
const testing::Environment* const fake_devices = testing::AddGlobalTestEnvironment(new FakeDevices);

}  // namespace
}  // namespace weft::engine
