#include "coordinator/planner/pipeline_time.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/pipeline/named_schedule.h"
#include "common/rng.h"

namespace weft::planner {
namespace {

struct Pipeline {
  const char* schedule;
  int64_t ranks;
  int64_t chunks;
  int64_t passes;
};

double EndOf(const Pipeline& pipeline, const PipelineCosts& costs) {
  const Result<PipelineSchedule> schedule =
      NamedSchedule(pipeline.schedule, pipeline.ranks, pipeline.chunks, pipeline.passes);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  const Result<PipelineTimeline> timeline = SimulatePipeline(*schedule, costs);
  EXPECT_TRUE(timeline.ok()) << timeline.status().message();
  return timeline->end;
}

double LeastOf(const Pipeline& pipeline, const PipelineCosts& costs) {
  return PipelineFloor(costs, pipeline.ranks, pipeline.schedule == std::string("zero_bubble"))
      .Seconds(pipeline.passes);
}

constexpr Pipeline kPipelines[] = {
    {"gpipe", 4, 1, 6},       {"1f1b", 2, 1, 1},        {"1f1b", 4, 1, 2},       {"1f1b", 5, 1, 12},
    {"interleaved", 3, 2, 6}, {"interleaved", 4, 3, 8}, {"zero_bubble", 4, 1, 9}};

TEST(PipelineFloor, IsNoLongerThanTheScheduleWhateverTheStagesTake) {
  PhiloxStream random({5, 0, 0});
  for (const Pipeline& pipeline : kPipelines) {
    for (int trial = 0; trial < 50; ++trial) {
      PipelineCosts costs;
      costs.stages.resize(static_cast<size_t>(pipeline.ranks * pipeline.chunks));
      costs.hop = static_cast<double>(random.Next() % 3) / 4;
      for (StageCost& stage : costs.stages) {
        for (double* part : {&stage.forward, &stage.backward_input, &stage.backward_weight}) {
          *part = 0.1 + static_cast<double>(random.Next() % 1000) / 500;
        }
      }
      EXPECT_LE(LeastOf(pipeline, costs), EndOf(pipeline, costs) * (1 + 1e-12))
          << pipeline.schedule << " " << pipeline.ranks;
    }
  }
}

TEST(PipelineFloor, IsTheStepOfEqualStagesThatWaitForNothingElse) {
  for (const Pipeline& pipeline : kPipelines) {
    if (pipeline.chunks > 1 || pipeline.schedule == std::string("zero_bubble")) continue;
    const PipelineCosts costs{
        std::vector<StageCost>(static_cast<size_t>(pipeline.ranks), {1, 1, 1, 0}), 0};
    EXPECT_DOUBLE_EQ(LeastOf(pipeline, costs), EndOf(pipeline, costs)) << pipeline.schedule;
  }
}

TEST(CutFloor, IsThatOfStagesThatAreTheSumOfTheirParts) {
  PhiloxStream random({6, 0, 0});
  const auto any = [&] { return static_cast<double>(random.Next() % 1000) / 500; };
  for (const Pipeline& pipeline : kPipelines) {
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<int64_t> cut(static_cast<size_t>(pipeline.ranks * pipeline.chunks));
      for (int64_t& blocks : cut) blocks = 1 + static_cast<int64_t>(random.Next() % 3);
      // A third of a pass is forward; so is a third backward for inputs, and one for weights.
      const StageSeconds third{any(), any(), any(), any()};
      const StageSeconds pass{3 * third.block, 3 * third.stage, 3 * third.first, 3 * third.last};
      PipelineCosts costs;
      for (size_t stage = 0; stage < cut.size(); ++stage) {
        double seconds = third.stage + static_cast<double>(cut[stage]) * third.block;
        if (stage == 0) seconds += third.first;
        if (stage + 1 == cut.size()) seconds += third.last;
        costs.stages.push_back({seconds, seconds, seconds, 0});
      }
      const bool split = pipeline.schedule == std::string("zero_bubble");
      EXPECT_NEAR(
          CutFloor(cut, pipeline.ranks).Seconds(pass, split ? third : pass, pipeline.passes),
          LeastOf(pipeline, costs), 1e-9)
          << pipeline.schedule << " " << pipeline.ranks;
    }
  }
}

TEST(StagePasses, CostWhatPassesOfEachStageCost) {
  WorkerProfile worker;
  worker.isa = "avx2";
  worker.cores = 8;
  DeviceSpec device;
  device.compute_capability = "9.0";
  device.memory_bytes = device.memory_limit_bytes = int64_t{80} << 30;
  worker.devices = {device};
  JobSpec job;
  job.model.family = "llama";
  job.model.layers = 9;
  job.model.width = 256;
  job.model.heads = 4;
  job.model.vocab_size = 1000;
  JobSpec cores = job;
  cores.model.low_rank_core.rank = 16;
  JobSpec mixture = job;
  mixture.model.experts = 8;
  mixture.model.experts_per_token = 2;
  const TrainSpec train;
  for (const bool on_devices : {false, true}) {
    const std::unique_ptr<const StepRates> made_rates =
        MakeStepRates(worker, DType::kBF16, on_devices);
    const StepRates& rates = *made_rates;
    std::vector<ModelShape> wholes;
    for (const int64_t tensor : {1, 2}) wholes.emplace_back(ShapeOf(job).spec, tensor);
    wholes.push_back(ModelShape(ShapeOf(job).spec, 4, false, 2));
    wholes.push_back(ModelShape(ShapeOf(cores).spec));
    wholes.push_back(ModelShape(ShapeOf(mixture).spec));
    wholes.push_back(ModelShape::OfExpertRank(ShapeOf(mixture).spec, 4));
    for (const ModelShape& whole : wholes) {
      const StageShapes shapes(whole);
      const StagePasses passes(shapes, 2, 128, kBf16Precision, {}, 0.1, rates, 2, 1, {}, train);
      for (const StageShape& stage :
           {StageShape{3, true, false}, StageShape{5, false, false}, StageShape{1, false, true}}) {
        const ModelShape shape = shapes.Of(stage);
        const PassCost made = passes.Of(shape);
        const PassCost alone = CostOfPass(shape, 2, 128, kBf16Precision, 0, 0.1, rates, 2, 1);
        for (const auto part :
             {&PassCost::gemm_seconds, &PassCost::backward_gemm_seconds,
              &PassCost::block_forward_gemm_seconds, &PassCost::attention_forward_gemm_seconds,
              &PassCost::attention_product_seconds, &PassCost::memory_bytes,
              &PassCost::block_forward_memory_bytes, &PassCost::weight_gradient_bytes,
              &PassCost::step_product_seconds, &PassCost::step_f32_numbers,
              &PassCost::step_parameter_numbers, &PassCost::format_share}) {
          EXPECT_NEAR(made.*part, alone.*part, 1e-12 * alone.*part);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::planner
