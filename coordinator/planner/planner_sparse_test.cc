// What plans say of products with sparse weights.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/planner.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

using ::testing::HasSubstr;

// Products named `form` that a worker has measured `times` times as fast as dense ones.
ClusterProfile WithSparseProducts(double times, const std::string& form = "sparse24_") {
  ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  for (const int64_t threads : {1, 2}) {
    for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
      cluster.workers[0].gemm.push_back({form + pass + "_fp32", 1024, 768, 768, threads,
                                         times * 250e9 * static_cast<double>(threads)});
    }
  }
  return cluster;
}

TEST(PlanJob, SaysWhatSparseProductsBring) {
  JobSpec dense = Gpt2Job();
  dense.train.precision = "fp32";
  JobSpec job = dense;
  job.train.sparsity.method = "masked_decay";
  job.train.sparsity.dense_share = 0.25;
  const auto step = [](const Result<PlanReport>& report) {
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report->candidates[0].plan.prediction.step_seconds;
  };
  const ClusterProfile fast = WithSparseProducts(2);
  const Result<PlanReport> report = PlanJob(job, fast);
  EXPECT_LT(step(report), step(PlanJob(dense, fast)));
  EXPECT_THAT(report->candidates[0].reason, HasSubstr("; 2:4 sparsity makes steps "));
  EXPECT_THAT(report->candidates[0].reason, HasSubstr(" times as fast as dense products do"));
  // Where nobody has measured them nothing is said.
  EXPECT_THAT(PlanJob(job, Cluster(1, 2, 64 * kGiB))->candidates[0].reason,
              ::testing::Not(HasSubstr("2:4")));
  const ClusterProfile slow = WithSparseProducts(0.5);
  EXPECT_THAT(PlanJob(job, slow).status().message(),
              HasSubstr("hint: train.sparsity.method none, or train.sparsity.require true"));
  job.train.sparsity.require = true;
  EXPECT_GT(step(PlanJob(job, slow)), step(PlanJob(dense, slow)));
}

// Matrix units multiply bf16 faster than sparse products can, which are measured in that type, too.
TEST(PlanJob, RefusesSparseProductsWhereDenseOnesRunOnMatrixUnits) {
  ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  WorkerProfile& worker = cluster.workers[0];
  worker.isa = "amx";
  std::erase_if(worker.gemm, [](const GemmRate& rate) { return rate.precision == "bf16"; });
  for (const int64_t threads : {1, 2}) {
    worker.gemm.push_back({"bf16", 1024, 768, 768, threads, 750e9 * static_cast<double>(threads)});
    for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
      worker.gemm.push_back({"sparse24_" + std::string(pass) + "_bf16", 1024, 768, 768, threads,
                             400e9 * static_cast<double>(threads)});
    }
  }
  JobSpec job = Gpt2Job();
  job.train.precision = "bf16";
  job.train.sparsity.method = "masked_decay";
  job.resources.ranks = 1;
  job.resources.threads_per_rank = 2;
  const Status refused = PlanJob(job, cluster).status();
  EXPECT_THAT(refused.message(), HasSubstr("2:4 sparsity makes steps "));
  EXPECT_THAT(refused.message(), HasSubstr(", at 800 against 1500 measured GFLOP/s"));
  EXPECT_THAT(refused.message(), HasSubstr("hint: train.sparsity.method none"));
}

// A pruned network learns the same with dense products, so slow ones are no reason to refuse it.
TEST(PlanJob, SaysWhatProductsOfKeptWeightsBring) {
  JobSpec job = Gpt2Job();
  job.train.precision = "fp32";
  job.train.pruning.method = "magnitude";
  job.train.pruning.density = 0.25;
  const auto reason = [&](const ClusterProfile& cluster) {
    const Result<PlanReport> report = PlanJob(job, cluster);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? report->candidates[0].reason : "";
  };
  EXPECT_THAT(reason(WithSparseProducts(2, "csr_")),
              ::testing::AllOf(HasSubstr("; pruning makes steps "),
                               HasSubstr(" times as fast as dense products do")));
  const ClusterProfile slow = WithSparseProducts(0.5, "csr_");
  EXPECT_THAT(reason(slow), ::testing::AllOf(HasSubstr("times as long as dense products do"),
                                             HasSubstr("hint: train.pruning.products dense")));
  ClusterProfile amx = WithSparseProducts(2, "csr_");
  amx.workers[0].isa = "amx";
  EXPECT_THAT(reason(amx), ::testing::Not(HasSubstr("pruning makes"))) << "they are dense there";
  job.train.pruning.products = "dense";
  EXPECT_THAT(reason(slow), ::testing::Not(HasSubstr("pruning makes")));
}

// Products gain by the token, masks and packing cost by the weight.
TEST(PlanJob, SparseProductsOfFewTokensDoNotPayForTheirMasks) {
  const ClusterProfile cluster = WithSparseProducts(1.3);
  JobSpec job = Gpt2Job();
  job.train.precision = "fp32";
  job.train.sparsity.method = "masked_decay";
  job.train.sparsity.mask_interval = 1;
  const Result<PlanReport> many = PlanJob(job, cluster);
  ASSERT_TRUE(many.ok()) << many.status().message();
  EXPECT_THAT(many->candidates[0].reason, HasSubstr(" times as fast as dense products do"));
  job.train.global_batch = 1;
  job.train.sequence_length = 32;
  EXPECT_THAT(PlanJob(job, cluster).status().message(),
              HasSubstr("times as long as dense products do"));
}

TEST(PlanJob, SparseProductsPayWhereTheyAreFastInTheModelsWidth) {
  ClusterProfile cluster = Cluster(1, 2, 64 * kGiB);
  constexpr std::pair<int64_t, double> kMeasured[] = {{64, 0.3}, {2048, 3}};
  for (const auto& [width, times] : kMeasured) {
    for (const int64_t threads : {1, 2}) {
      for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
        cluster.workers[0].gemm.push_back({"sparse24_" + std::string(pass) + "_fp32", 1024, width,
                                           width, threads,
                                           times * 250e9 * static_cast<double>(threads)});
      }
    }
  }
  const auto planned = [&](int64_t width) {
    JobSpec job = Gpt2Job();
    job.model.layers = 2;
    job.model.width = width;
    job.model.heads = width / 64;
    job.model.vocab_size = 256;
    job.train.precision = "fp32";
    job.train.sparsity.method = "masked_decay";
    return PlanJob(job, cluster);
  };
  EXPECT_THAT(planned(64).status().message(), HasSubstr("times as long as dense products do"));
  const Result<PlanReport> wide = planned(2048);
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  EXPECT_THAT(wide->candidates[0].reason, HasSubstr(" times as fast as dense products do"));
}

}  // namespace
}  // namespace weft::planner
