#include "worker/engine/comm/collective_cases.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include <gmock/gmock.h>

#include "kernels/dtype.h"
#include "worker/engine/comm/hash_store.h"

namespace weft::engine {

TensorView TestRank::Put(DType dtype, const std::vector<float>& values) {
  const TensorView tensor = NewTensor(dtype, static_cast<int64_t>(values.size()));
  std::vector<char> bytes(tensor.Bytes());
  WithFloatType(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = FromFloat<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  Write(tensor, bytes.data());
  return tensor;
}

std::vector<float> TestRank::Get(const TensorView& tensor) {
  std::vector<char> bytes(tensor.Bytes());
  Read(tensor, bytes.data());
  std::vector<float> values(static_cast<size_t>(tensor.shape.Elements()));
  WithFloatType(tensor.dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = ToFloat(value);
    }
  });
  return values;
}

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kTimeout = milliseconds(20000);

float Round(DType dtype, double value) {
  return WithFloatType(dtype,
                       [&]<class T>() { return ToFloat(FromFloat<T>(static_cast<float>(value))); });
}

/// What rank `rank` brings as element `i`, rounded to the type.
float Value(DType dtype, int rank, size_t i) {
  return Round(dtype, std::sin(static_cast<double>(i) * 0.7 + rank * 1.3) * (1 + rank * rank));
}

std::vector<float> Values(DType dtype, int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(dtype, rank, i);
  return values;
}

/// The sum of element `i` over ranks [first, end), up to 4, in f32 as a tree has it.
float PairwiseSum(DType dtype, int first, int end, size_t i) {
  if (end - first == 1) return Value(dtype, first, i);
  const int middle = end - first == 2 ? first + 1 : first + 2;
  return PairwiseSum(dtype, first, middle, i) + PairwiseSum(dtype, middle, end, i);
}

/// The reduction of element `i` over `size` ranks: as a tree has it, or in float64.
double Reduced(DType dtype, Reduction reduction, int size, size_t i, bool pairwise) {
  double exact = Value(dtype, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const float value = Value(dtype, rank, i);
    exact = reduction == Reduction::kSum ? exact + value : std::max<double>(exact, value);
  }
  if (!pairwise || reduction != Reduction::kSum) return exact;
  return Round(dtype, PairwiseSum(dtype, 0, size, i));
}

double Tolerance(DType dtype, int size) {
  const double epsilon = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-9 : 0x1p-12;
  return 30.0 * size * epsilon;
}

void ExpectReduced(const std::vector<float>& result, size_t first, DType dtype, Reduction reduction,
                   int size, const CollectiveBackend& backend) {
  const double tolerance = backend.pairwise ? 0 : Tolerance(dtype, size);
  for (size_t i = 0; i < result.size(); ++i) {
    ASSERT_NEAR(result[i], Reduced(dtype, reduction, size, first + i, backend.pairwise), tolerance)
        << "element " << first + i << " of " << DTypeName(dtype) << " over " << size;
  }
}

TEST_P(CollectiveCases, AllReducesOfAnyTypeLengthAndNumberOfRanks) {
  for (const int size : {1, 2, 3, 4}) {
    std::vector<std::vector<float>> results(static_cast<size_t>(size));
    GetParam().run(size, kTimeout, [&](TestRank& rank) {
      ASSERT_EQ(rank.group.size(), size);
      const int own = rank.group.rank();
      for (const DType dtype : kFloatTypes) {
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
          for (const size_t length : {0, 1, 3, 20001}) {
            const TensorView values = rank.Put(dtype, Values(dtype, own, length));
            const Status status =
                rank.group.AllReduce(rank.stream, values, reduction).Wait(rank.stream);
            ASSERT_TRUE(status.ok()) << status.message();
            results[static_cast<size_t>(own)] = rank.Get(values);
            ASSERT_TRUE(rank.group.Barrier().ok());
            if (own == 0) ExpectReduced(results[0], 0, dtype, reduction, size, GetParam());
            EXPECT_EQ(results[static_cast<size_t>(own)], results[0]) << "same bits";
            ASSERT_TRUE(rank.group.Barrier().ok());
          }
        }
      }
    });
  }
}

TEST_P(CollectiveCases, ReduceScatterAndAllGatherAreTheHalvesOfAnAllReduce) {
  for (const int size : {1, 2, 3}) {
    GetParam().run(size, kTimeout, [&](TestRank& rank) {
      const auto own = static_cast<size_t>(rank.group.rank());
      for (const DType dtype : kFloatTypes) {
        for (const size_t part : {1, 20000}) {
          for (const bool in_place : {false, true}) {
            if (size == 1 && !in_place && rank.stream.device.type == DeviceType::kCuda) continue;
            const size_t count = part * static_cast<size_t>(size);
            const TensorView all = rank.Put(dtype, Values(dtype, static_cast<int>(own), count));
            const TensorView own_part(static_cast<char*>(all.data) + own * part * DTypeSize(dtype),
                                      dtype, {static_cast<int64_t>(part)}, all.device);
            const TensorView output =
                in_place ? own_part : rank.NewTensor(dtype, static_cast<int64_t>(part));
            ASSERT_TRUE(rank.group.ReduceScatter(rank.stream, all, output).Wait(rank.stream).ok());
            ExpectReduced(rank.Get(output), own * part, dtype, Reduction::kSum, size, GetParam());
            ASSERT_TRUE(rank.group.AllGather(rank.stream, output, all).Wait(rank.stream).ok());
            ExpectReduced(rank.Get(all), 0, dtype, Reduction::kSum, size, GetParam());
          }
        }
      }
    });
  }
}

TEST_P(CollectiveCases, MaximaKeepWhatIsNotANumber) {
  GetParam().run(3, kTimeout, [&](TestRank& rank) {
    const int own = rank.group.rank();
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const TensorView values = rank.Put(
        DType::kF32, {own == 1 ? nan : 5, own == 2 ? infinity : 1, own == 0 ? -infinity : -1});
    ASSERT_TRUE(rank.group.AllReduce(rank.stream, values, Reduction::kMax).Wait(rank.stream).ok());
    const std::vector<float> result = rank.Get(values);
    if (GetParam().pairwise) {
      EXPECT_TRUE(std::isnan(result[0]));
    }
    EXPECT_EQ(result[1], infinity);
    EXPECT_EQ(result[2], -1);
    const TensorView magnitudes = rank.Put(
        DType::kF32, {own == 1 ? nan : infinity, own == 2 ? 3e38f : 1, 0, own == 0 ? -nan : 7});
    ASSERT_TRUE(rank.group.AllReduce(rank.stream, magnitudes, Reduction::kMaxMagnitude)
                    .Wait(rank.stream)
                    .ok());
    const std::vector<float> largest = rank.Get(magnitudes);
    EXPECT_TRUE(std::isnan(largest[0]));
    EXPECT_EQ(largest[1], 3e38f);
    EXPECT_EQ(largest[2], 0);
    EXPECT_TRUE(std::isnan(largest[3]));
  });
}

TEST_P(CollectiveCases, BroadcastsAnythingFromAnyRank) {
  for (const int size : {2, 3}) {
    GetParam().run(size, kTimeout, [&](TestRank& rank) {
      for (const int root : {0, size - 1}) {
        for (const int64_t length : {0, 1, 7, 200001}) {
          const TensorView values = rank.NewTensor(DType::kU8, length);
          std::string bytes(static_cast<size_t>(length), static_cast<char>(rank.group.rank()));
          for (size_t i = 0; i < bytes.size(); i += 3) bytes[i] = static_cast<char>(i * 7);
          rank.Write(values, bytes.data());
          ASSERT_TRUE(rank.group.Broadcast(rank.stream, values, root).Wait(rank.stream).ok());
          rank.Read(values, bytes.data());
          for (size_t i = 0; i < bytes.size(); ++i) {
            ASSERT_EQ(bytes[i], i % 3 == 0 ? static_cast<char>(i * 7) : static_cast<char>(root));
          }
        }
      }
    });
  }
}

TEST_P(CollectiveCases, MessagesArriveInOrderAndRingsDoNotBlock) {
  GetParam().run(3, kTimeout, [&](TestRank& rank) {
    Collective& group = rank.group;
    const int own = group.rank();
    // Ranks 0 and 1 have something between them that rank 2 does not know of.
    if (own == 0) {
      for (int i = 0; i < 3; ++i) {
        const TensorView values = rank.Put(DType::kF32, {1.0f * static_cast<float>(i)});
        ASSERT_TRUE(group.Send(rank.stream, values, 1).Wait(rank.stream).ok());
      }
    } else if (own == 1) {
      std::vector<TensorView> received;
      for (int i = 0; i < 3; ++i) {
        received.push_back(rank.NewTensor(DType::kF32, 1));
        ASSERT_TRUE(group.Receive(rank.stream, received.back(), 0).Wait(rank.stream).ok());
      }
      for (size_t i = 0; i < 3; ++i) EXPECT_THAT(rank.Get(received[i]), ElementsAre(i));
    }
    // Everybody to the next, a long one and a short one, and one to itself.
    const int next = (own + 1) % 3;
    const int previous = (own + 2) % 3;
    constexpr size_t kLong = 1500000;
    const TensorView longs = rank.Put(DType::kBF16, Values(DType::kBF16, own, kLong));
    const TensorView shorts = rank.Put(DType::kF32, {static_cast<float>(own), 7});
    const TensorView long_in = rank.NewTensor(DType::kBF16, kLong);
    const TensorView short_in = rank.NewTensor(DType::kF32, 2);
    const TensorView self_in = rank.NewTensor(DType::kF32, 2);
    const Work ring = group.Exchange(rank.stream, {{longs, next}, {shorts, next}, {shorts, own}},
                                     {{long_in, previous}, {short_in, previous}, {self_in, own}});
    ASSERT_TRUE(ring.Wait(rank.stream).ok());
    EXPECT_EQ(rank.Get(long_in), Values(DType::kBF16, previous, kLong));
    EXPECT_THAT(rank.Get(short_in), ElementsAre(previous, 7));
    EXPECT_THAT(rank.Get(self_in), ElementsAre(own, 7));
  });
}

// The sender may still be at something else that needs the receiver.
TEST_P(CollectiveCases, MessagesMayBeAskedForBeforeTheirSenderComesWhereTheWayIsOpen) {
  std::atomic<bool> asked{false};
  GetParam().run(3, kTimeout, [&](TestRank& rank) {
    const int own = rank.group.rank();
    ASSERT_TRUE(rank.group.OpenChannel(2, 0).ok());
    if (own == 1) return;
    const TensorView values =
        own == 2 ? rank.Put(DType::kF32, {7}) : rank.NewTensor(DType::kF32, 1);
    if (own == 0) {
      const Work receiving = rank.group.Receive(rank.stream, values, 2);
      asked = true;
      ASSERT_TRUE(receiving.Wait(rank.stream).ok());
      EXPECT_THAT(rank.Get(values), ElementsAre(7));
      return;
    }
    while (!asked) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(rank.group.Send(rank.stream, values, 0).Wait(rank.stream).ok());
    EXPECT_THAT(rank.Get(values), ElementsAre(7));
  });
}

TEST_P(CollectiveCases, AllToAllTurnsRowsIntoColumns) {
  GetParam().run(3, kTimeout, [&](TestRank& rank) {
    const int own = rank.group.rank();
    std::vector<float> parts;
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < 2; ++i) parts.push_back(static_cast<float>(100 * own + 10 * peer + i));
    }
    const TensorView input = rank.Put(DType::kF32, parts);
    const TensorView output = rank.NewTensor(DType::kF32, 6);
    ASSERT_TRUE(rank.group.AllToAll(rank.stream, input, output).Wait(rank.stream).ok());
    const auto to = static_cast<float>(10 * own);
    EXPECT_THAT(rank.Get(output), ElementsAre(to, to + 1, to + 100, to + 101, to + 200, to + 201));

    // Rank r sends p + r elements to rank p; 0 to 0 none.
    std::vector<float> ragged;
    std::vector<int64_t> send_counts;
    std::vector<int64_t> receive_counts;
    std::vector<float> expected;
    for (int peer = 0; peer < 3; ++peer) {
      send_counts.push_back(peer + own);
      receive_counts.push_back(own + peer);
      for (int i = 0; i < peer + own; ++i) {
        ragged.push_back(static_cast<float>(100 * own + 10 * peer + i));
        expected.push_back(static_cast<float>(100 * peer + 10 * own + i));
      }
    }
    const TensorView ragged_in = rank.Put(DType::kF32, ragged);
    const TensorView ragged_out =
        rank.NewTensor(DType::kF32, static_cast<int64_t>(expected.size()));
    ASSERT_TRUE(rank.group.AllToAll(rank.stream, ragged_in, send_counts, ragged_out, receive_counts)
                    .Wait(rank.stream)
                    .ok());
    EXPECT_EQ(rank.Get(ragged_out), expected);
  });
}

TEST_P(CollectiveCases, OperationsFollowOneAnotherWithoutWaits) {
  GetParam().run(2, kTimeout, [&](TestRank& rank) {
    const TensorView values = rank.Put(DType::kF32, std::vector<float>(30000, 1));
    const TensorView copy = rank.NewTensor(DType::kF32, 60000);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(rank.group.AllReduce(rank.stream, values));
    works.push_back(rank.group.AllGather(rank.stream, values, copy));
    ASSERT_TRUE(works.back().Wait(rank.stream).ok());
    EXPECT_THAT(rank.Get(copy), testing::Each(1024.0f));
    for (const Work& work : works) EXPECT_TRUE(work.Wait(rank.stream).ok());
  });
}

TEST_P(CollectiveCases, TheBooksHaveWhatTheFormulasSay) {
  GetParam().run(3, kTimeout, [&](TestRank& rank) {
    Collective& group = rank.group;
    constexpr int64_t kCount = 3 * 50000;
    const double bytes = kCount * 4;
    const TensorView all = rank.Put(DType::kF32, std::vector<float>(kCount, 1));
    const TensorView part = rank.NewTensor(DType::kF32, kCount / 3);
    ASSERT_TRUE(group.AllReduce(rank.stream, all).Wait(rank.stream).ok());
    ASSERT_TRUE(group.ReduceScatter(rank.stream, all, part).Wait(rank.stream).ok());
    ASSERT_TRUE(group.AllGather(rank.stream, part, all).Wait(rank.stream).ok());
    (void)rank.Get(all);
    ASSERT_TRUE(group.Barrier().ok());
    for (const auto& [kind, sent] : {std::pair(CollectiveKind::kAllReduce, 4.0 / 3),
                                     {CollectiveKind::kReduceScatter, 2.0 / 3},
                                     {CollectiveKind::kAllGather, 2.0 / 3}}) {
      const CollectiveTotals totals = group.account().totals(kind);
      EXPECT_EQ(totals.calls, 1);
      EXPECT_EQ(totals.bytes, bytes);
      EXPECT_NEAR(totals.sent_bytes, bytes * sent, 1) << CollectiveKindName(kind);
      EXPECT_GT(totals.seconds, 0);
      EXPECT_GE(totals.exposed_seconds, 0);
    }
  });
}

TEST_P(CollectiveCases, WrongArgumentsAreRefusedAndHarmNothing) {
  GetParam().run(2, kTimeout, [&](TestRank& rank) {
    Collective& group = rank.group;
    const TensorView five = rank.NewTensor(DType::kF32, 5);
    const TensorView ten = rank.Put(DType::kF32, std::vector<float>(10, 1));
    const TensorView words = rank.NewTensor(DType::kI32, 10);
    TensorView strided = rank.NewTensor(DType::kF32, 20);
    strided.shape = {5, 2};
    strided.row_stride = 4;
    TensorView elsewhere = ten;
    elsewhere.device.index += 1;
    for (const Work& work :
         {group.AllReduce(rank.stream, words),
          group.AllReduce(rank.stream, rank.NewTensor(DType::kBF16, 4), Reduction::kMaxMagnitude),
          group.AllReduce(rank.stream, strided), group.AllReduce(rank.stream, elsewhere),
          group.ReduceScatter(rank.stream, ten, ten), group.ReduceScatter(rank.stream, words, five),
          group.AllGather(rank.stream, five, five), group.Broadcast(rank.stream, ten, 2),
          group.Send(rank.stream, ten, -1), group.Exchange(rank.stream, {{ten, group.rank()}}, {}),
          group.AllToAll(rank.stream, ten, five), group.AllToAll(rank.stream, ten, words),
          group.AllToAll(rank.stream, ten, std::vector<int64_t>{11, -1}, ten,
                         std::vector<int64_t>{5, 5})}) {
      EXPECT_EQ(work.Wait(rank.stream).code(), StatusCode::kInvalid);
    }
    ASSERT_TRUE(group.AllReduce(rank.stream, ten).Wait(rank.stream).ok());
    EXPECT_THAT(rank.Get(ten), testing::Each(2.0f));
  });
}

TEST_P(CollectiveCases, SplitsIntoGroupsThatWorkSideBySide) {
  GetParam().run(4, kTimeout, [&](TestRank& rank) {
    const int own = rank.group.rank();
    auto rows = rank.group.Split(own / 2, "rows");
    auto columns = rank.group.Split(own % 2, "columns");
    auto most = rank.group.Split(own == 2 ? 7 : -1, "most");
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    ASSERT_TRUE(columns.ok() && most.ok());
    EXPECT_EQ((*rows)->size(), 2);
    EXPECT_EQ((*rows)->rank(), own % 2);
    EXPECT_EQ((*rows)->name(), "rows");
    EXPECT_EQ((*columns)->rank(), own / 2);
    EXPECT_EQ((*most)->size(), own == 2 ? 1 : 3);
    const auto power = static_cast<float>(1 << own);
    const TensorView in_row = rank.Put(DType::kF32, {power});
    const TensorView in_column = rank.Put(DType::kF32, {power});
    const TensorView in_most = rank.Put(DType::kF32, {power});
    const Work row = (*rows)->AllReduce(rank.stream, in_row);
    const Work column = (*columns)->AllReduce(rank.stream, in_column);
    const Work other = (*most)->AllReduce(rank.stream, in_most);
    for (const Work& work : {row, column, other}) ASSERT_TRUE(work.Wait(rank.stream).ok());
    EXPECT_THAT(rank.Get(in_row), ElementsAre(own < 2 ? 3 : 12));
    EXPECT_THAT(rank.Get(in_column), ElementsAre(own % 2 == 0 ? 5 : 10));
    EXPECT_THAT(rank.Get(in_most), ElementsAre(own == 2 ? 4 : 11));
    ASSERT_TRUE(rank.group.Barrier().ok()) << "nobody leaves before";
  });
}

TEST_P(CollectiveCases, BytesOfTheHostOverlapWithTensors) {
  for (const int size : {1, 3}) {
    GetParam().run(size, kTimeout, [&](TestRank& rank) {
      Collective& group = rank.group;
      std::string own(static_cast<size_t>(group.rank()) * 1000, static_cast<char>(group.rank()));
      Result<std::vector<std::string>> all = group.AllGather(own);
      ASSERT_TRUE(all.ok()) << all.status().message();
      ASSERT_EQ(all->size(), static_cast<size_t>(size));
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_EQ((*all)[static_cast<size_t>(peer)],
                  std::string(static_cast<size_t>(peer) * 1000, static_cast<char>(peer)));
      }
      EXPECT_EQ((*group.AllGather(""))[0], "");
      std::string text = "from rank " + std::to_string(group.rank());
      ASSERT_TRUE(group.Broadcast(std::as_writable_bytes(std::span(text)), size - 1).ok());
      EXPECT_EQ(text, "from rank " + std::to_string(size - 1));
      EXPECT_TRUE(group.Broadcast({}, 0).ok());
    });
  }
}

TEST_P(CollectiveCases, NobodyPassesABarrierBeforeTheLastArrives) {
  std::atomic<int> arrived{0};
  GetParam().run(4, kTimeout, [&](TestRank& rank) {
    std::this_thread::sleep_for(milliseconds(10 * rank.group.rank()));
    ++arrived;
    ASSERT_TRUE(rank.group.Barrier().ok());
    EXPECT_EQ(arrived.load(), 4);
  });
}

/// What an all-reduce comes to once the stream has got to it.
Status Finished(TestRank& rank, const TensorView& values) {
  WEFT_RETURN_IF_ERROR(rank.group.AllReduce(rank.stream, values).Wait(rank.stream));
  (void)rank.Get(values);
  return rank.group.AllReduce(rank.stream, values).Wait(rank.stream);
}

TEST_P(CollectiveCases, SurvivorsOfALostPeerGetAnErrorSoon) {
  const auto start = steady_clock::now();
  HashStore done;
  GetParam().run(3, kTimeout, [&](TestRank& rank) {
    const TensorView values = rank.Put(DType::kF32, std::vector<float>(1 << 18, 1));
    ASSERT_TRUE(rank.group.AllReduce(rank.stream, values).Wait(rank.stream).ok());
    (void)rank.Get(values);
    // Whoever gives up breaks what its peers are still at.
    EXPECT_TRUE(done.Set(std::to_string(rank.group.rank()), "").ok());
    if (rank.group.rank() == 1) {
      EXPECT_TRUE(done.Get("0", kTimeout).ok() && done.Get("2", kTimeout).ok());
      rank.group.Abort();
      return;
    }
    const Status lost = Finished(rank, values);
    EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
    EXPECT_THAT(lost.message(),
                HasSubstr("rank " + std::to_string(rank.group.rank()) + " (world)"));
    EXPECT_THAT(lost.message(), HasSubstr(" is lost")) << "rank 1, or whom it made give up";
    EXPECT_EQ(rank.group.Barrier().code(), StatusCode::kUnavailable) << "broken for good";
    EXPECT_EQ(rank.group.AllGather("x").status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(rank.group.Send(rank.stream, values, 1).Wait(rank.stream).code(),
              StatusCode::kUnavailable);
  });
  EXPECT_LT(steady_clock::now() - start, kTimeout / 2) << "not by timeout";
}

TEST_P(CollectiveCases, APeerThatFallsSilentTimesOut) {
  HashStore done;
  const auto start = steady_clock::now();
  GetParam().run(2, milliseconds(400), [&](TestRank& rank) {
    const TensorView values = rank.Put(DType::kF32, std::vector<float>(10, 1));
    if (rank.group.rank() == 1) {
      EXPECT_TRUE(done.Get("done", kTimeout).ok());  // connected, but takes no part
      return;
    }
    EXPECT_EQ(Finished(rank, values).code(), StatusCode::kUnavailable);
    EXPECT_TRUE(done.Set("done", "").ok());
  });
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_P(CollectiveCases, AbortFreesThePeersAndItsOwnRankAtOnce) {
  const auto start = steady_clock::now();
  GetParam().run(2, kTimeout, [](TestRank& rank) {
    std::thread aborter;
    const TensorView values = rank.Put(DType::kF32, std::vector<float>(1000, 1));
    if (rank.group.rank() == 1) {
      // From another thread, while an operation waits for a peer that never comes.
      aborter = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(50));
        rank.group.Abort();
      });
      EXPECT_EQ(Finished(rank, values).code(), StatusCode::kUnavailable);
      aborter.join();
    }
    EXPECT_EQ(rank.group.Barrier().code(), StatusCode::kUnavailable);
  });
  EXPECT_LT(steady_clock::now() - start, kTimeout / 2);
}

}  // namespace
}  // namespace weft::engine
