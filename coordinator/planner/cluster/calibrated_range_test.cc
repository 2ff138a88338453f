#include "coordinator/planner/cluster/calibrated_range.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ClusterRun Gpt() {
  return {.model = {24, 2048, 16, 16, 8192, false, 50304, 2048},
          .data = 4,
          .micro_batch = 2,
          .global_batch = 64};
}

std::vector<std::string> Texts(const std::vector<Extrapolation>& outside) {
  std::vector<std::string> texts;
  for (const Extrapolation& each : outside) texts.push_back(each.text);
  return texts;
}

class CalibratedRangeTest : public ::testing::Test {
 protected:
  CalibratedRangeTest() {
    ClusterRun small = Gpt(), large = Gpt();
    small.micro_batch = 1;
    large.model.width = 4096;
    large.model.mlp_width = 16384;
    large.tensor = 4;
    large.micro_batch = 4;
    runs_ = {{device_, small, 1}, {device_, large, 2}};
  }

  std::vector<std::string> Outside(const std::function<void(ClusterRun&)>& change) const {
    ClusterRun run = Gpt();
    change(run);
    return Texts(CalibratedRange(runs_).Outside(device_, run));
  }

  const AcceleratorSpec device_ = *FindAccelerator("A100-SXM-80GB");
  std::vector<MeasuredRun> runs_;
};

TEST_F(CalibratedRangeTest, NamesEachQuantityThatWasNotMeasured) {
  EXPECT_THAT(Outside([](ClusterRun&) {}), IsEmpty());
  EXPECT_THAT(Outside([](ClusterRun& r) { r.tensor = 2; }), IsEmpty());
  EXPECT_THAT(Outside([](ClusterRun& r) { r.micro_batch = 8; }),
              ElementsAre("micro-batch 8 (measured: 1 to 4; 2 times the most)",
                          "micro-batches a step 2 (measured: 4 to 16; the least is 2 times as "
                          "much)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.model.sequence_length = 4096; }),
              ElementsAre("sequence length 4096 (measured: 2048; 2 times the most)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.pipeline = 2; }),
              ElementsAre("pipeline-parallel ranks 2 (measured: 1; 2 times the most)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.zero_stage = 1; }),
              ElementsAre("ZeRO stage 1 (measured: 0)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.recomputation = Recomputation::kBlock; }),
              ElementsAre("recomputation blocks (measured: none)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.recomputation = Recomputation::kElementwise; }),
              ElementsAre("recomputation norms and activations (measured: none)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.precision = "fp16"; }),
              ElementsAre("precision fp16 (measured: bf16)"));
  EXPECT_THAT(Outside([](ClusterRun& r) { r.model.layers = 12; }),
              ElementsAre("million parameters 707 (measured: 1310 to 5037; the least is 1.85 times "
                          "as much)"));
}

TEST_F(CalibratedRangeTest, TellsMachinesApart) {
  // Sixteen devices were measured, but as four replicas of four.
  EXPECT_THAT(Outside([](ClusterRun& r) {
                r.tensor = 16;
                r.data = 1;
                r.global_batch = 16;
              }),
              ElementsAre("tensor-parallel ranks 16 (measured: 1 to 4; 4 times the most)",
                          "data-parallel ranks 1 (measured: 4; the least is 4 times as much)",
                          "tensor parallelism between machines (measured: within a machine)"));
  const AcceleratorSpec other = *FindAccelerator("H100-SXM");
  EXPECT_THAT(Texts(CalibratedRange(runs_).Outside(other, Gpt())),
              ElementsAre("accelerator H100-SXM (measured: A100-SXM-80GB)"));
}

TEST_F(CalibratedRangeTest, HoldsEachMeasuredRunAndNothingWithoutRuns) {
  const CalibratedRange range(runs_);
  for (const MeasuredRun& measured : runs_) {
    EXPECT_THAT(Texts(range.Outside(measured.device, measured.run)), IsEmpty());
  }
  const std::vector<Extrapolation> all = CalibratedRange({}).Outside(device_, Gpt());
  EXPECT_EQ(all.size(), 21u);
  for (const Extrapolation& each : all) EXPECT_THAT(each.text, ::testing::HasSubstr("none"));
}

}  // namespace
}  // namespace weft::planner
