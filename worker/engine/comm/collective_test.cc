#include "worker/engine/comm/collective.h"

#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/hash_store.h"
#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr auto kTimeout = milliseconds(20000);

float Value(int rank, size_t i) {
  return std::sin(static_cast<float>(i) * 0.7f + static_cast<float>(rank));
}

template <class T>
void ExpectSums(int size, size_t length) {
  std::vector<std::vector<T>> results(static_cast<size_t>(size));
  RunRanks(size, kTimeout, [&](Collective& group) {
    ASSERT_EQ(group.size(), size);
    std::vector<T> values(length);
    for (size_t i = 0; i < length; ++i) values[i] = Value(group.rank(), i);
    ASSERT_TRUE(group.AllReduceSum(std::span(values)).ok());
    results[static_cast<size_t>(group.rank())] = values;
  });
  for (size_t i = 0; i < length; ++i) {
    double sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += Value(rank, i);
    ASSERT_NEAR(results[0][i], sum, size * 1e-6) << "element " << i << " of " << length;
  }
  for (const std::vector<T>& result : results) EXPECT_EQ(result, results[0]) << "same bits";
}

TEST(Collective, SumsOverAnyNumberOfRanksAndAnyLength) {
  for (int size : {1, 2, 3, 4}) {
    for (size_t length : {0, 1, 2, 3, 1001, 300007}) {
      ExpectSums<float>(size, length);
      ExpectSums<double>(size, length);
    }
  }
}

TEST(Collective, SumsBuffersLongerThanOnePiece) {
  ExpectSums<float>(2, (size_t{8} << 20) + 5);
}

TEST(Collective, TheSameInputsGiveTheSameBitsEachTime) {
  auto sum = [] {
    std::vector<float> result;
    RunRanks(4, kTimeout, [&](Collective& group) {
      std::vector<float> values(10007);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = Value(group.rank(), i) * std::pow(10.0f, static_cast<float>(group.rank()));
      }
      ASSERT_TRUE(group.AllReduceSum(std::span(values)).ok());
      if (group.rank() == 0) result = values;
    });
    return result;
  };
  EXPECT_EQ(sum(), sum());
}

TEST(Collective, GathersBytesOfDifferentLengths) {
  for (int size : {1, 2, 4}) {
    RunRanks(size, kTimeout, [&](Collective& group) {
      std::string own(static_cast<size_t>(group.rank()) * 1000, static_cast<char>(group.rank()));
      Result<std::vector<std::string>> all = group.AllGather(own);
      ASSERT_TRUE(all.ok()) << all.status().message();
      ASSERT_EQ(all->size(), static_cast<size_t>(size));
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ((*all)[static_cast<size_t>(rank)],
                  std::string(static_cast<size_t>(rank) * 1000, static_cast<char>(rank)));
      }
      EXPECT_EQ((*group.AllGather(""))[0], "");
    });
  }
}

TEST(Collective, BroadcastsFromAnyRank) {
  RunRanks(3, kTimeout, [](Collective& group) {
    for (int root : {0, 2}) {
      std::string text = "from rank " + std::to_string(group.rank());
      ASSERT_TRUE(group.Broadcast(std::as_writable_bytes(std::span(text)), root).ok());
      EXPECT_EQ(text, "from rank " + std::to_string(root));
    }
    EXPECT_TRUE(group.Broadcast({}, 0).ok());
  });
}

TEST(Collective, NobodyPassesABarrierBeforeTheLastArrives) {
  std::atomic<int> arrived{0};
  RunRanks(4, kTimeout, [&](Collective& group) {
    std::this_thread::sleep_for(milliseconds(10 * group.rank()));
    ++arrived;
    ASSERT_TRUE(group.Barrier().ok());
    EXPECT_EQ(arrived.load(), 4);
  });
}

TEST(Collective, SurvivorsOfALostPeerGetAnErrorSoon) {
  const auto start = std::chrono::steady_clock::now();
  RunRanks(3, kTimeout, [](Collective& group) {
    std::vector<float> values(1 << 20, 1.0f);
    ASSERT_TRUE(group.AllReduceSum(std::span(values)).ok());
    if (group.rank() == 1) return;  // its sockets close
    Status lost = group.AllReduceSum(std::span(values));
    EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
    EXPECT_THAT(lost.message(), HasSubstr("rank " + std::to_string(group.rank()) + " of 3"));
    EXPECT_EQ(group.Barrier().code(), StatusCode::kUnavailable) << "broken for good";
    EXPECT_EQ(group.AllGather("x").status().code(), StatusCode::kUnavailable);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout / 2) << "not by timeout";
}

TEST(Collective, APeerThatFallsSilentTimesOut) {
  HashStore done;
  const auto start = std::chrono::steady_clock::now();
  RunRanks(2, milliseconds(300), [&](Collective& group) {
    std::vector<double> values(10, 1.0);
    if (group.rank() == 1) {
      EXPECT_TRUE(done.Get("done", kTimeout).ok());  // connected, but takes no part
      return;
    }
    EXPECT_EQ(group.AllReduceSum(std::span(values)).code(), StatusCode::kUnavailable);
    EXPECT_TRUE(done.Set("done", "").ok());
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Collective, AbortFreesThePeersAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  RunRanks(2, kTimeout, [](Collective& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      group.Abort();
      EXPECT_EQ(group.Barrier().code(), StatusCode::kUnavailable);
    } else {
      EXPECT_EQ(group.Barrier().code(), StatusCode::kUnavailable);
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout / 2);
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
