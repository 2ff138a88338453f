#include "coordinator/scheduler/elastic_shares.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft::coordinator {
namespace {

struct Claims {
  explicit Claims(size_t jobs) : shares(jobs) {}

  void Add(double at, int64_t least = 1, int64_t most = 0, int64_t priority = 0) {
    claims.push_back({priority, at, least, most, &shares[claims.size()]});
  }

  std::vector<int64_t> Share(int64_t total, double exponent) {
    ShareCompute(claims, total, exponent);
    std::vector<int64_t> result;
    for (const ComputeShare& share : shares) {
      result.push_back(share.beyond ? -share.amount : share.amount);
    }
    return result;
  }

  std::vector<ComputeShare> shares;
  std::vector<ShareClaim> claims;
};

TEST(ElasticShares, AreEqualWithAnExponentOfOne) {
  Claims jobs(4);
  for (const double at : {4, 3, 2, 1}) jobs.Add(at);
  EXPECT_EQ(jobs.Share(64, 1), (std::vector<int64_t>{16, 16, 16, 16}));
}

TEST(ElasticShares, FollowTheOptimumForJobsOfOneSpeedup) {
  // heSRPT, theorem 2: of n jobs the one with the i-th most left has (i/n)^c - ((i-1)/n)^c.
  constexpr int kJobs = 6;
  constexpr double kExponent = 2.5, kGpus = 1 << 20;
  Claims jobs(kJobs);
  for (int i = 0; i < kJobs; ++i) jobs.Add(i);
  const std::vector<int64_t> shares = jobs.Share(static_cast<int64_t>(kGpus), kExponent);
  int64_t sum = 0;
  for (int i = 0; i < kJobs; ++i) {
    const double most_left = kJobs - i;
    const double optimum =
        std::pow(most_left / kJobs, kExponent) - std::pow((most_left - 1) / kJobs, kExponent);
    // Rounded down to a power of two; what that leaves goes to those after it.
    const int64_t share = shares[static_cast<size_t>(i)];
    EXPECT_GT(static_cast<double>(share), 0.5 * optimum * kGpus) << i;
    if (i == 0) {
      EXPECT_LE(static_cast<double>(share), optimum * kGpus);
    } else {
      EXPECT_LE(share, shares[static_cast<size_t>(i - 1)]);
    }
    sum += share;
  }
  EXPECT_LE(static_cast<double>(sum), kGpus);
}

TEST(ElasticShares, KeepWithinWhatAJobMayHave) {
  Claims jobs(4);
  jobs.Add(1, 1, 4);    // would have more
  jobs.Add(2, 24, 24);  // keeps its number
  jobs.Add(3, 8, 64);
  jobs.Add(4, 32, 64);  // for which nothing is left
  EXPECT_EQ(jobs.Share(64, 5), (std::vector<int64_t>{4, 24, 32, -32}));
}

TEST(ElasticShares, GoByPriorityBeforeTheTurn) {
  Claims jobs(2);
  jobs.Add(1, 8, 8, /*priority=*/0);
  jobs.Add(2, 8, 8, /*priority=*/1);
  EXPECT_EQ(jobs.Share(8, 5), (std::vector<int64_t>{-8, 8}));
}

TEST(ElasticShares, OfOneJobAreEverything) {
  Claims jobs(1);
  jobs.Add(1);
  EXPECT_EQ(jobs.Share(48, 5), (std::vector<int64_t>{32}));
}

}  // namespace
}  // namespace weft::coordinator
