// Predicts the steps of training runs on clusters, for tests/bench/planner_accuracy: reads one JSON
// object from standard input and writes one.
//   in   {"groups": [{"stack": NAME, "from_defaults": BOOL, "runs": [RUN...], "train":
//   [INDEX...]}], "memory": [RUN...]}; a group may have "measure": COUNT in place of "train", to be
//   fitted to COUNT runs that RunsToMeasure chooses
//        RUN has the fields of ClusterRun, "accelerator", its measured "seconds", "machine": what
//        of the accelerator's usual machine is otherwise, and maybe "stack": how its program works,
//        where that is not as the group's (under "memory", always). From defaults: the eight
//        constants that are fitted start at those of any program
//   out  {"groups": [{"seconds": [NUMBER or null...], "fitted": [...], "nearby": [...],
//        "stack": {...}, "train": [INDEX...], "outside": [[QUANTITY...]...]}], "plans_per_second":
//        NUMBER, "memory": [{"first": {...}, "fullest": BYTES, "device": BYTES} or null...]}: by
//        the stack, by that fitted to the runs in train, by that and what those near it say, and in
//        what each run lies outside of those; bytes of the first rank by what they are for, what
//        the fullest rank needs, and what its device has
#include <cstdio>
#include <ctime>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/cluster/calibrated_range.h"
#include "coordinator/planner/cluster/calibration.h"
#include "coordinator/planner/cluster/nearby_runs.h"
#include "coordinator/planner/cluster/run_memory.h"
#include "coordinator/planner/cluster/runs_to_measure.h"

namespace weft::planner {
namespace {

Recomputation RecomputationNamed(const std::string& name) {
  if (name == "full") return Recomputation::kBlock;
  if (name == "norm,act") return Recomputation::kElementwise;
  return name == "selective" ? Recomputation::kAttention : Recomputation::kNone;
}

Result<MeasuredRun> ReadRun(const Json& json) {
  MeasuredRun run;
  WEFT_ASSIGN_OR_RETURN(run.device, FindAccelerator(json.at("accelerator").get<std::string>()));
  const Json& machine = json.at("machine");
  run.device.per_node = machine.value("per_node", run.device.per_node);
  run.device.network_bytes_per_second =
      machine.value("network_bytes_per_second", run.device.network_bytes_per_second);
  const auto number = [&](const char* name) { return json.at(name).get<int64_t>(); };
  run.run.model = {.layers = number("layers"),
                   .width = number("width"),
                   .heads = number("heads"),
                   .key_heads = number("key_heads"),
                   .mlp_width = number("mlp_width"),
                   .gated = json.at("gated").get<bool>(),
                   .vocabulary = number("vocabulary"),
                   .sequence_length = number("sequence_length"),
                   .head_width = json.value("head_width", int64_t{0}),
                   .experts = json.value("experts", int64_t{1}),
                   .experts_per_token = json.value("experts_per_token", int64_t{1}),
                   .untied_classifier = json.value("untied_classifier", false)};
  run.run.model.biased_experts = json.value("biased_experts", false);
  run.run.expert = json.value("expert", int64_t{1});
  run.run.expert_tensor = json.value("expert_tensor", int64_t{0});
  run.run.tensor = number("tensor");
  run.run.context = number("context");
  run.run.data = number("data");
  run.run.pipeline = number("pipeline");
  run.run.stages_per_rank = number("stages_per_rank");
  run.run.zero_stage = number("zero_stage");
  run.run.micro_batch = number("micro_batch");
  run.run.global_batch = number("global_batch");
  run.run.recomputation = RecomputationNamed(json.at("recomputation").get<std::string>());
  run.run.precision = json.at("precision").get<std::string>();
  run.seconds = json.at("seconds").get<double>();
  if (json.contains("stack")) {
    WEFT_ASSIGN_OR_RETURN(run.program, FindStack(json.at("stack").get<std::string>()));
    if (json.contains("program")) {
      Json program = ToJson(*run.program);
      program.merge_patch(json["program"]);
      WEFT_ASSIGN_OR_RETURN(run.program, FromJson<SoftwareStack>(program));
    }
  }
  return run;
}

Json Predict(const SoftwareStack& stack, const std::vector<MeasuredRun>& runs) {
  Json seconds = Json::array();
  for (const MeasuredRun& run : runs) {
    const SoftwareStack own = run.program ? WithConstants(*run.program, stack) : stack;
    const Result<StepLedger> step = PredictStep(run.device, own, run.run);
    seconds.push_back(step.ok() ? Json(step->Seconds()) : Json());
  }
  return seconds;
}

Json Nearby(const NearbyRuns& nearby, const std::vector<MeasuredRun>& runs, Json seconds) {
  for (size_t i = 0; i < runs.size(); ++i) {
    if (seconds[i].is_null()) continue;
    seconds[i] = seconds[i].get<double>() * nearby.Factor(runs[i].device, runs[i].run);
  }
  return seconds;
}

Json Outside(const CalibratedRange& range, const std::vector<MeasuredRun>& runs) {
  Json outside = Json::array();
  for (const MeasuredRun& run : runs) {
    Json quantities = Json::array();
    for (const Extrapolation& each : range.Outside(run.device, run.run)) {
      quantities.push_back(each.quantity);
    }
    outside.push_back(std::move(quantities));
  }
  return outside;
}

Json Memory(const MeasuredRun& run) {
  // A run that contradicts itself has no memory.
  if (!run.program || !PredictStep(run.device, *run.program, run.run).ok()) return {};
  const RunMemory first = MemoryAt(*run.program, run.run, 0);
  return {{"first",
           {{"parameters", first.parameters},
            {"gradients", first.gradients},
            {"optimizer", first.optimizer},
            {"activations", first.activations},
            {"workspace", first.workspace},
            {"copies", first.copies},
            {"runtime", first.runtime},
            {"cached", first.cached}}},
          {"fullest", MemoryOf(*run.program, run.run).Total()},
          {"device", run.device.memory_bytes}};
}

double PlansPerSecond(const SoftwareStack& stack, const std::vector<MeasuredRun>& runs) {
  // Counts processor time, so that others on the machine do not count.
  const std::clock_t start = std::clock();
  double seconds = 0, sum = 0;
  int64_t plans = 0;
  while (seconds < 0.2) {
    for (const MeasuredRun& run : runs) {
      const Result<StepLedger> step = PredictStep(run.device, stack, run.run);
      if (step.ok()) sum += step->Seconds();
    }
    plans += static_cast<int64_t>(runs.size());
    seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
  return sum > 0 ? static_cast<double>(plans) / seconds : 0;
}

Status Evaluate() {
  const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  const Json input = Json::parse(text);
  Json groups = Json::array();
  double plans_per_second = 0;
  for (const Json& group : input.at("groups")) {
    WEFT_ASSIGN_OR_RETURN(SoftwareStack stack, FindStack(group.at("stack").get<std::string>()));
    if (group.value("from_defaults", false)) stack = WithConstants(stack, SoftwareStack());
    std::vector<MeasuredRun> runs, train;
    for (const Json& json : group.at("runs")) {
      WEFT_ASSIGN_OR_RETURN(MeasuredRun run, ReadRun(json));
      runs.push_back(std::move(run));
    }
    const std::vector<size_t> chosen =
        group.contains("measure") ? RunsToMeasure(stack, runs, group["measure"].get<size_t>())
                                  : group.at("train").get<std::vector<size_t>>();
    for (const size_t index : chosen) train.push_back(runs.at(index));
    const SoftwareStack fitted = FitStack(stack, train);
    const Json seconds = Predict(fitted, runs);
    groups.push_back({{"seconds", Predict(stack, runs)},
                      {"fitted", seconds},
                      {"nearby", Nearby(NearbyRuns(fitted, train), runs, seconds)},
                      {"stack", ToJson(fitted)},
                      {"train", chosen},
                      {"outside", Outside(CalibratedRange(train), runs)}});
    if (plans_per_second == 0) plans_per_second = PlansPerSecond(stack, runs);
  }
  Json memory = Json::array();
  for (const Json& json : input.value("memory", Json::array())) {
    WEFT_ASSIGN_OR_RETURN(const MeasuredRun run, ReadRun(json));
    memory.push_back(Memory(run));
  }
  std::cout
      << Json{{"groups", groups}, {"plans_per_second", plans_per_second}, {"memory", memory}}.dump()
      << "\n";
  return OkStatus();
}

}  // namespace
}  // namespace weft::planner

int main() {
  try {
    const weft::Status status = weft::planner::Evaluate();
    if (status.ok()) return 0;
    std::fprintf(stderr, "step_model_eval: %s\n", status.ToString().c_str());
  } catch (const weft::Json::exception& error) {
    std::fprintf(stderr, "step_model_eval: standard input: %s\n", error.what());
  }
  return 1;
}
