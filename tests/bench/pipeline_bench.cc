// How long the ranks of executed pipelines wait, against theory.
//
//   pipeline_bench --stages gpt2 --ranks 2 --micro-batches 4 8 16
//   pipeline_bench --stages sleep --ranks 4 --micro-batches 4 8 16
//
// Each schedule is run by the executor of training, its ranks being threads of this process that
// talk over Gloo: with the stages of a GPT-2, one compute thread a rank, or with stages that sleep
// (the schedule alone, on any number of cores). A rank waits whenever it is in no forward and no
// backward pass. Prints JSON.

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "worker/engine/testing/sleeping_pipeline.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

struct Options {
  std::string stages = "gpt2";
  int64_t ranks = 2;
  int64_t chunks = 2;  ///< Of "interleaved".
  std::vector<int64_t> micro_batches = {8};
  int64_t steps = 9;
  int64_t width = 512;
  int64_t length = 256;
  int64_t layers = 8;
  double pass_milliseconds = 40;
};

struct Pipeline {
  std::string schedule;
  int64_t chunks = 1;
  int64_t micro_batches = 1;
};

/// The stages of a GPT-2, trained by Trainer; its first step, which warms up, left out.
std::vector<PipelineTimeline> Train(const Options& options, const Pipeline& c,
                                    const PipelineSchedule& schedule) {
  JobSpec job = TinyJob(c.micro_batches);
  job.model.width = options.width;
  job.model.heads = options.width / 64;
  job.model.layers = options.layers;
  job.model.context = options.length;
  job.model.vocab_size = 256;
  job.train.steps = options.steps + 1;
  Plan plan = TinyPlan("fp32", 1, c.micro_batches);
  plan.mesh.pipeline = options.ranks;
  plan.pipeline_schedule = c.schedule;
  plan.pipeline_chunks = c.chunks;
  plan.stage_blocks.assign(static_cast<size_t>(schedule.stages()),
                           options.layers / schedule.stages());
  std::vector<std::vector<Profiler::Trace>> traces(
      static_cast<size_t>(options.steps + 1),
      std::vector<Profiler::Trace>(static_cast<size_t>(options.ranks)));
  RunRanks(static_cast<int>(options.ranks), std::chrono::seconds(60), [&](Collective& world) {
    auto pipeline = PipelineParallel::New(&world, {c.schedule, c.chunks, true});
    WEFT_CHECK(pipeline.ok(), pipeline.status().message());
    auto part = PipelinePartOf(plan, world.rank(), options.layers);
    WEFT_CHECK(part.ok(), part.status().message());
    ModelOptions model = ModelOptionsOf(plan);
    model.pipeline = *part;
    TinyRun run(job.model, model);
    RandomTokens tokens(job.model.vocab_size, options.length);
    auto trainer = Trainer::New(job, plan,
                                {.context = &run.context,
                                 .model = run.model.get(),
                                 .train = &tokens,
                                 .pipeline = pipeline->get()});
    WEFT_CHECK(trainer.ok(), trainer.status().message());
    Profiler profiler;
    run.context.profiler = &profiler;
    for (std::vector<Profiler::Trace>& step : traces) {
      profiler.StartTrace(&run.allocator);
      const auto report = (*trainer)->Step();
      WEFT_CHECK(report.ok(), report.status().message());
      step[static_cast<size_t>(world.rank())] = profiler.trace();
    }
  });
  std::vector<PipelineTimeline> timelines;
  for (size_t step = 1; step < traces.size(); ++step) {
    timelines.push_back(ExecutedPipeline(schedule, traces[step]));
  }
  return timelines;
}

std::vector<PipelineTimeline> Sleep(const Options& options, const Pipeline& c) {
  const std::chrono::microseconds pass(
      static_cast<int64_t>(1000 * options.pass_milliseconds / static_cast<double>(c.chunks)));
  return Execute({.schedule = c.schedule,
                  .ranks = options.ranks,
                  .chunks = c.chunks,
                  .micro_batches = c.micro_batches,
                  .times = {pass, pass, pass},
                  .rows = options.length,
                  .width = options.width},
                 options.steps);
}

/// The share of its time that a rank waits by the formulas of docs/techniques/pipeline_parallel.md,
/// all stages taking what they take on average.
double ClosedForm(const Pipeline& c, const PipelineSchedule& schedule, const PipelineCosts& costs) {
  double rank = 0, saved = 0;  // Seconds of a micro-batch on a rank; what fills the bubble instead.
  for (const StageCost& stage : costs.stages) {
    rank += stage.forward + stage.backward();
    if (schedule.split_backward) saved += 2 * stage.backward_weight;
  }
  const auto ranks = static_cast<double>(schedule.ranks);
  const double waits = (ranks - 1) * (rank - saved) / ranks / static_cast<double>(schedule.chunks);
  return waits / (static_cast<double>(c.micro_batches) * rank / ranks + waits);
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<Json> Row(const Options& options, const Pipeline& c) {
  WEFT_ASSIGN_OR_RETURN(const PipelineSchedule schedule,
                        NamedSchedule(c.schedule, options.ranks, c.chunks, c.micro_batches));
  if (options.stages == "gpt2" && options.layers % schedule.stages() != 0) {
    return InvalidError("--layers " + std::to_string(options.layers) + " for " +
                        std::to_string(schedule.stages()) + " stages; hint: a multiple");
  }
  const std::vector<PipelineTimeline> steps =
      options.stages == "sleep" ? Sleep(options, c) : Train(options, c, schedule);
  const PipelineCosts costs = ExecutedCosts(schedule, steps);
  // Each step against the schedule with the times that its own passes took: what slows a machine
  // down for a while does so to both.
  std::vector<double> bubbles, seconds, simulated, ratios, longer;
  for (const PipelineTimeline& step : steps) {
    WEFT_ASSIGN_OR_RETURN(const PipelineTimeline played,
                          SimulatePipeline(schedule, ExecutedCosts(schedule, {step})));
    bubbles.push_back(step.BubbleFraction());
    seconds.push_back(step.end);
    simulated.push_back(played.BubbleFraction());
    ratios.push_back(step.BubbleFraction() / played.BubbleFraction());
    longer.push_back(step.end / played.end);
  }
  Json stages = Json::array();
  for (const StageCost& cost : costs.stages) {
    Json stage = {{"forward_seconds", cost.forward}};
    if (schedule.split_backward) {
      stage["backward_input_seconds"] = cost.backward_input;
      stage["backward_weight_seconds"] = cost.backward_weight;
    } else {
      stage["backward_seconds"] = cost.backward();
    }
    stages.push_back(std::move(stage));
  }
  return Json{{"stages", options.stages},
              {"schedule", c.schedule},
              {"ranks", options.ranks},
              {"chunks", c.chunks},
              {"micro_batches", c.micro_batches},
              {"stage_times", std::move(stages)},
              {"pipeline_seconds", MedianOf(seconds)},
              {"by_simulated_seconds", MedianOf(longer)},
              {"theory", ClosedForm(c, schedule, costs)},
              {"simulated", MedianOf(simulated)},
              {"measured", MedianOf(bubbles)},
              {"by_simulated", MedianOf(ratios)},
              {"all_measured", bubbles},
              {"all_by_simulated", ratios}};
}

Result<Json> Report(const Options& options) {
  Json rows = Json::array();
  for (const int64_t micro_batches : options.micro_batches) {
    for (const Pipeline& c : {Pipeline{"gpipe", 1, micro_batches},
                              {"1f1b", 1, micro_batches},
                              {"interleaved", options.chunks, micro_batches},
                              {"zero_bubble", 1, micro_batches}}) {
      WEFT_ASSIGN_OR_RETURN(Json row, Row(options, c));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  weft::engine::Options options;
  CLI::App app("How long the ranks of executed pipelines wait, against theory.");
  app.add_option("--stages", options.stages)
      ->check(CLI::IsMember({"gpt2", "sleep"}))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks)->capture_default_str();
  app.add_option("--chunks", options.chunks, "Of interleaved.")->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str();
  app.add_option("--width", options.width)->capture_default_str();
  app.add_option("--length", options.length, "Tokens of a micro-batch.")->capture_default_str();
  app.add_option("--layers", options.layers, "Of gpt2: a multiple of all stages.")
      ->capture_default_str();
  app.add_option("--pass-milliseconds", options.pass_milliseconds,
                 "Of sleep: forward, and each half of backward, of all stages of a rank.")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = weft::engine::Report(options);
  if (!result.ok()) {
    std::cerr << result.status().message() << "\n";
    return 1;
  }
  std::cout << result->dump(1) << "\n";
  return 0;
}
