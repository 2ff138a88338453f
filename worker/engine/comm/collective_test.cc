#include "worker/engine/comm/collective.h"

#include <cstring>
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/collective_cases.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/comm/rank_place.h"
#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

class HostRank : public TestRank {
 public:
  explicit HostRank(Collective& its_group) : TestRank(its_group, Stream{}) {}
  TensorView NewTensor(DType dtype, int64_t count) override {
    std::vector<char>& memory =
        memory_.emplace_back(static_cast<size_t>(count) * DTypeSize(dtype) + 1);
    return {memory.data(), dtype, {count}};
  }
  void Write(const TensorView& tensor, const void* bytes) override {
    if (tensor.Bytes() > 0) std::memcpy(tensor.data, bytes, tensor.Bytes());
  }
  void Read(const TensorView& tensor, void* bytes) override {
    if (tensor.Bytes() > 0) std::memcpy(bytes, tensor.data, tensor.Bytes());
  }

 private:
  std::deque<std::vector<char>> memory_;
};

CollectiveBackend Gloo() {
  return {"Gloo", true, [](int size, milliseconds timeout, const auto& body) {
            RunRanks(size, timeout, [&](Collective& group) {
              HostRank rank(group);
              body(rank);
            });
          }};
}

INSTANTIATE_TEST_SUITE_P(Gloo, CollectiveCases, testing::Values(Gloo()),
                         [](const auto& test) { return test.param.name; });

TEST(Collective, ReductionsOfLongTensorsGoInPieces) {
  constexpr int64_t kCount = 3200006;
  RunRanks(2, milliseconds(20000), [](Collective& group) {
    const auto own = static_cast<size_t>(group.rank());
    std::vector<float> values(kCount);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009 + own);
    std::vector<float> part(kCount / 2);
    const TensorView all(values.data(), DType::kF32, {kCount});
    ASSERT_TRUE(group.ReduceScatter(Stream{}, all, {part.data(), DType::kF32, {kCount / 2}})
                    .Wait(Stream{})
                    .ok());
    ASSERT_TRUE(group.AllReduce(Stream{}, all).Wait(Stream{}).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto sum = static_cast<float>(2 * (i % 1009) + 1);
      ASSERT_EQ(values[i], sum) << i;
      if (i / part.size() == own) {
        ASSERT_EQ(part[i % part.size()], sum) << i;
      }
    }
  });
}

TEST(Collective, RanksThatDoDifferentThingsFailInsteadOfMixingThem) {
  RunRanks(2, milliseconds(200), [](Collective& group) {
    std::vector<float> memory(1000);
    const TensorView values(memory.data(), DType::kF32, {group.rank() == 0 ? 1000 : 10});
    EXPECT_EQ(group.AllReduce(Stream{}, values).Wait(Stream{}).code(), StatusCode::kUnavailable);
  });
}

TEST(Collective, AVanishedRankIsNoticedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  RunRanks(3, milliseconds(20000), [](Collective& group) {
    std::vector<float> memory(1 << 18, 1);
    const TensorView values(memory.data(), DType::kF32, {1 << 18});
    ASSERT_TRUE(group.AllReduce(Stream{}, values).Wait(Stream{}).ok());
    if (group.rank() == 1) return;  // its sockets close
    EXPECT_EQ(group.AllReduce(Stream{}, values).Wait(Stream{}).code(), StatusCode::kUnavailable);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10000));
}

TEST(Collective, ALostRankOfAPartIsNamedByItsNumberAmongAll) {
  HashStore done;
  RunRanks(4, milliseconds(20000), [&](Collective& world) {
    auto part = world.Split(world.rank() / 2, "tensor");
    ASSERT_TRUE(part.ok()) << part.status().message();
    EXPECT_EQ((*part)->members()[0], world.rank() / 2 * 2);
    if (world.rank() == 3) {
      (*part)->Abort();
      EXPECT_TRUE(done.Get("told", milliseconds(20000)).ok());
      return;
    }
    if (world.rank() < 2) {
      EXPECT_TRUE((*part)->Barrier().ok());
      return;
    }
    EXPECT_THAT((*part)->Barrier().message(),
                AllOf(HasSubstr("rank 2 (tensor)"), HasSubstr("rank 3 is lost")));
    EXPECT_TRUE(done.Set("told", "").ok());
  });
}

TEST(Collective, RanksOnDifferentKindsOfDevicesOrOnTheSameGpuAreRefused) {
  RunRanks(3, milliseconds(20000), [](Collective& group) {
    const auto check = [&](const std::vector<std::string>& places) {
      return CheckPlaces(group, places[static_cast<size_t>(group.rank())]);
    };
    EXPECT_TRUE(check({"CPU", "CPU", "CPU"}).ok());
    EXPECT_TRUE(check({"GPU 0 of machine a", "GPU 1 of machine a", "GPU 0 of machine b"}).ok());
    const Status mixed = check({"CPU", "CPU", "GPU 1 of machine a"});
    EXPECT_EQ(mixed.code(), StatusCode::kInvalid);
    EXPECT_THAT(mixed.message(), AllOf(HasSubstr("rank 2 on GPU 1"), HasSubstr("hint:")));
    const Status shared = check({"GPU 1 of machine a", "GPU 0 of machine a", "GPU 1 of machine a"});
    EXPECT_EQ(shared.code(), StatusCode::kInvalid);
    EXPECT_THAT(shared.message(), AllOf(HasSubstr("ranks 0 and 2"), HasSubstr("hint:")));
  });
}

TEST(Collective, BadOptionsAreRefusedAndAbsentPeersTimeOut) {
  HashStore store;
  CollectiveOptions options;
  options.size = 2;
  options.rank = 2;
  EXPECT_EQ(ConnectCollective(options, store).status().code(), StatusCode::kInvalid);
  options.rank = 0;
  options.host = "203.0.113.7";  // documentation address, never ours
  Status not_ours = ConnectCollective(options, store).status();
  EXPECT_EQ(not_ours.code(), StatusCode::kInvalid);
  EXPECT_THAT(not_ours.message(), HasSubstr("hint:"));
  options.host = "127.0.0.1";
  options.connect_timeout = milliseconds(50);
  EXPECT_EQ(ConnectCollective(options, store).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::engine
