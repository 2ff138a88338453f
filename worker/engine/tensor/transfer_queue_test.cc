#include "worker/engine/tensor/transfer_queue.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/clock.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {
namespace {

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return SecondsSince(begin);
}

TEST(TransferQueueTest, JobsRunInTheirOrderAndAllWhoWaitGetTheFirstFailure) {
  std::string order;
  TransferQueue lane(0);
  const int64_t first = lane.Enqueue([&] {
    order += "a";
    return OkStatus();
  });
  EXPECT_TRUE(lane.WaitFor(first).ok());
  lane.Enqueue([&] {
    order += "b";
    return ExhaustedError("full");
  });
  lane.Enqueue([&] {
    order += "c";
    return InternalError("later");
  });
  EXPECT_EQ(lane.WaitForAll().message(), "full");
  EXPECT_EQ(lane.WaitFor(first).message(), "full");
  EXPECT_EQ(order, "abc");
}

TEST(TransferQueueTest, BytesTakeTheTimeOfTheEmulatedLinkWhateverTheSizeOfCopies) {
  constexpr int64_t kRate = 100 << 20;
  constexpr size_t kBytes = 5 << 20;
  for (const size_t piece : {kBytes, size_t{10} << 10}) {
    std::vector<char> from(kBytes, 'x'), to(kBytes);
    TransferQueue lane(kRate);
    const double seconds = SecondsOf([&] {
      lane.Enqueue([&] {
        for (size_t at = 0; at < kBytes; at += piece) {
          lane.Copy(to.data() + at, from.data() + at, piece);
        }
        return OkStatus();
      });
      EXPECT_TRUE(lane.WaitForAll().ok());
    });
    EXPECT_EQ(to, from);
    EXPECT_GE(seconds, 0.0499);
    EXPECT_EQ(lane.totals().bytes, int64_t{kBytes});
    EXPECT_GE(lane.totals().busy_seconds, 0.0499);
    EXPECT_GE(lane.totals().waited_seconds, 0.04);
  }
}

TEST(TransferQueueTest, WaitingForWhichNobodyWaitsIsNotCounted) {
  TransferQueue lane(0);
  const int64_t job = lane.Enqueue([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return OkStatus();
  });
  EXPECT_TRUE(lane.WaitUncounted(job).ok());
  EXPECT_EQ(lane.totals().waited_seconds, 0);
}

TEST(TransferQueueTest, TheEndOfALaneFinishesItsJobs) {
  std::atomic<int> done = 0;
  {
    TransferQueue lane(0);
    for (int i = 0; i < 20; ++i) {
      lane.Enqueue([&] {
        ++done;
        return OkStatus();
      });
    }
  }
  EXPECT_EQ(done, 20);
}

TEST(UpdateProgressTest, WhoWaitsForAParameterGoesOnWhenTheUpdateHasPassedIt) {
  UpdateProgress progress;
  progress.WaitFor(7);  // no update is under way
  progress.Start();
  std::atomic<int> seen = 0;
  std::thread reader([&] {
    progress.WaitFor(2);
    seen = 1;
    progress.WaitFor(100);
    seen = 2;
  });
  progress.Reach(2);  // 0 and 1 are done
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(seen, 0);
  progress.Reach(3);
  while (seen == 0) std::this_thread::yield();
  EXPECT_EQ(seen, 1);
  progress.Finish();
  reader.join();
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace weft::engine
