#pragma once

#include <string>
#include <vector>

#include "common/pipeline/named_schedule.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/testing/executed_pipeline.h"
#include "worker/engine/testing/sleeping_stages.h"
#include "worker/engine/train/pipeline_run.h"

namespace weft::engine {

/// A pipeline of stages that sleep.
struct SleepingPipeline {
  std::string schedule = "1f1b";
  int64_t ranks = 2;
  int64_t chunks = 1;
  int64_t micro_batches = 4;
  SleepingStages::Times times = {};
  int64_t rows = 128;  ///< Of what stages send each other, `width` f32 each.
  int64_t width = 256;
};

/// Has PipelineRun execute it on ranks that are threads of this process, `steps` times.
inline std::vector<PipelineTimeline> Execute(const SleepingPipeline& c, int64_t steps) {
  const auto ranks = static_cast<size_t>(c.ranks);
  std::vector<std::vector<Profiler::Trace>> traces(static_cast<size_t>(steps),
                                                   std::vector<Profiler::Trace>(ranks));
  RunRanks(static_cast<int>(c.ranks), std::chrono::seconds(60), [&](Collective& world) {
    Allocator allocator;
    Profiler profiler;
    Context context;
    context.allocator = &allocator;
    context.profiler = &profiler;
    auto pipeline = PipelineParallel::New(&world, {c.schedule, c.chunks, false});
    WEFT_CHECK(pipeline.ok(), pipeline.status().message());
    ModelSpec spec;
    spec.width = c.width;
    const SleepingStages model(spec, c.times, c.chunks, world.rank() + 1 == world.size());
    TokenBatch batch;
    batch.count = c.rows;
    for (int64_t step = 0; step < steps; ++step) {
      ParameterGradients gradients(std::vector<TensorView>{});
      StepClock clock;
      BatchLoss loss;
      gradients.StartStep();
      gradients.StartPasses({});
      PipelineRun run(
          {.context = &context, .model = &model, .pipeline = pipeline->get(), .clock = &clock});
      WEFT_CHECK(world.Barrier().ok(), "all ranks are there");
      profiler.StartTrace(&allocator);
      WEFT_CHECK(clock.Start(context).ok(), "start");
      const std::vector<TokenBatch> batches(static_cast<size_t>(c.micro_batches), batch);
      const Status trained = run.Train(batches, gradients, 1.0f, &loss);
      WEFT_CHECK(trained.ok(), trained.message());
      WEFT_CHECK(gradients.FinishPass(context).ok(), "finish");
      traces[static_cast<size_t>(step)][static_cast<size_t>(world.rank())] = profiler.trace();
    }
  });
  const auto schedule = NamedSchedule(c.schedule, c.ranks, c.chunks, c.micro_batches);
  WEFT_CHECK(schedule.ok(), schedule.status().message());
  std::vector<PipelineTimeline> timelines;
  for (const auto& step : traces) timelines.push_back(ExecutedPipeline(*schedule, step));
  return timelines;
}

}  // namespace weft::engine
