// A thread pool does each piece of work once, again and again, and stops where it is asked to.
#include "coordinator/planner/cluster/on_threads.h"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

TEST(ThreadPool, DoesEachPieceOfWorkOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> done(100);
    for (int turn = 1; turn <= 50; ++turn) {
      pool.Run(done.size(), [&](size_t i) {
        ++done[i];
        return true;
      });
      // All of it is done when the call returns.
      for (const auto& each : done) ASSERT_EQ(each, turn) << threads;
    }
    pool.Run(0, [](size_t) {
      ADD_FAILURE() << "there is nothing to do";
      return true;
    });
  }
}

TEST(ThreadPool, StopsWhereOneSaysSo) {
  for (const int threads : {1, 3}) {
    std::atomic<int> done = 0;
    OnThreads(threads, 1'000'000, [&](size_t i) {
      ++done;
      return i < 10;
    });
    EXPECT_GE(done, 11);
    EXPECT_LE(done, 10 + threads) << "each thread notices at most once";
  }
}

}  // namespace
}  // namespace weft::planner
