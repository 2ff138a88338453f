// What measured steps teach about others: the kernels of their own shapes, and nothing else.
#include "coordinator/planner/cluster/nearby_runs.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

constexpr double kSlowKernel = 1.2;

AcceleratorSpec Device(const std::string& name) {
  return *FindAccelerator(name);
}

SoftwareStack Stack() {
  return *FindStack("megatron-2021");
}

ClusterRun Plan(int64_t width, int64_t tensor, int64_t micro_batch, int64_t pipeline = 1,
                int64_t batch = 64) {
  return {.model = {24, width, 16, 16, 4 * width, false, 51200, 1024},
          .tensor = tensor,
          .pipeline = pipeline,
          .micro_batch = micro_batch,
          .global_batch = batch,
          .recomputation = Recomputation::kBlock,
          .precision = "fp16"};
}

// As long as the model says, except tensor-parallel pairs of width 2048 with two sequences, whose
// kernels are slow.
std::vector<MeasuredRun> Runs() {
  std::vector<MeasuredRun> runs;
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  for (const int64_t width : {1024, 2048}) {
    for (const int64_t tensor : {1, 2, 4}) {
      for (const int64_t micro_batch : {1, 2, 4, 8}) {
        const ClusterRun run = Plan(width, tensor, micro_batch);
        const bool slow = width == 2048 && tensor == 2 && micro_batch == 2;
        const double seconds = PredictStep(device, Stack(), run)->Seconds();
        for (int repeat = 0; repeat < 3; ++repeat) {
          runs.push_back({device, run, seconds * (slow ? kSlowKernel : 1)});
        }
      }
    }
  }
  return runs;
}

TEST(NearbyRuns, CarriesSlowKernelsToOtherPlansWithThem) {
  const NearbyRuns nearby(Stack(), Runs());
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  // More stages and another batch, but the same work in a block.
  EXPECT_NEAR(nearby.Factor(device, Plan(2048, 2, 2, 4, 32)), kSlowKernel, 0.04);
  // Measured as well, and as fast as predicted: its neighbour's trouble is none of its own.
  EXPECT_NEAR(nearby.Factor(device, Plan(2048, 2, 4)), 1, 0.04);
  EXPECT_NEAR(nearby.Factor(device, Plan(1024, 2, 2)), 1, 0.04);
}

TEST(NearbyRuns, SaysNothingOfWhatIsFarFromAllMeasured) {
  const NearbyRuns nearby(Stack(), Runs());
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  EXPECT_NEAR(nearby.Factor(device, Plan(12288, 2, 2)), 1, 1e-3);
  EXPECT_NEAR(nearby.Factor(device, Plan(2048, 2, 32)), 1, 1e-3);
  EXPECT_EQ(nearby.Factor(Device("H100-SXM"), Plan(2048, 2, 2)), 1);
  ClusterRun kept = Plan(2048, 2, 2);
  kept.recomputation = Recomputation::kNone;
  EXPECT_EQ(nearby.Factor(device, kept), 1);
  EXPECT_EQ(NearbyRuns(Stack(), {}).Factor(device, Plan(2048, 2, 2)), 1);
}

TEST(NearbyRuns, BelievesADisturbedRunLittle) {
  const AcceleratorSpec device = Device("A100-SXM-80GB");
  const ClusterRun run = Plan(2048, 2, 2);
  const double seconds = PredictStep(device, Stack(), run)->Seconds();
  const auto factor = [&](double slower, int times) {
    return NearbyRuns(Stack(), std::vector<MeasuredRun>(times, {device, run, slower * seconds}))
        .Factor(device, run);
  };
  EXPECT_NEAR(factor(1.1, 1), 1.1, 0.03);
  EXPECT_LT(factor(2, 1), 1.25);
  // The more often, the more of it is the kernels.
  EXPECT_GT(factor(1.3, 8), factor(1.3, 1));
  // What cannot run teaches nothing.
  ClusterRun refused = run;
  refused.global_batch = 3;
  EXPECT_EQ(NearbyRuns(Stack(), {{device, refused, 1}}).Factor(device, run), 1);
}

}  // namespace
}  // namespace weft::planner
