#include "worker/trainer/grown_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/json.h"
#include "common/model/parameter_list.h"
#include "common/model/step_extent.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/growth/growth_operator.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/trainer/run_summary.h"
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {
namespace {

using engine::CheckpointManifest;
using engine::GrownNumbers;
using engine::GrownTensor;
using engine::NamedTensor;
using engine::ParameterSet;

std::string LossesPath(const std::string& run_dir) {
  return JoinPath(run_dir, "growth.json");
}

/// The end of an earlier phase, or of the search of this one. Its tensors are read one at a time,
/// so that no rank has the whole model in memory.
struct EndedPhase {
  std::string folder;  ///< Of its last checkpoint.
  CheckpointManifest manifest;
  TrainedTensors weights;
  std::map<std::string, Shape> shapes;  ///< Of its parameters.
};

/// The error where the last checkpoint of a phase cannot be read. `complete`: name of the file that
/// says that nothing of it is left to train.
Status NotTheEnd(const std::string& run_dir, const engine::LatestSearch& search,
                 const std::string& complete) {
  std::string text = "the phase in " + run_dir + " has no sound checkpoint of its last step";
  if (search.latest) text += ", the newest is " + search.latest->path;
  if (!search.rejected.empty()) {
    const std::string& damage = search.rejected.front().message();
    // What that hints at is for a phase that still trains.
    text += " (" + damage.substr(0, damage.find("; hint:")) + ")";
  }
  return InvalidError(text + "; hint: put its files back, or delete " +
                      JoinPath(run_dir, complete) +
                      " and `weft train` trains the missing steps again, or submit a new job");
}

/// Reads what a phase that is complete came to: never an older checkpoint, of weights that are
/// trained in part. `search_steps`: as in GrowthStart.
Result<EndedPhase> LoadPhase(Env& env, const std::string& run_dir, int64_t search_steps = 0,
                             TrainedAs which = TrainedAs::kResult) {
  WEFT_ASSIGN_OR_RETURN(engine::LatestSearch search, engine::LatestVerified(env, run_dir));
  const char* const complete = search_steps > 0 ? "search.json" : "summary.json";
  if (!search.latest) return NotTheEnd(run_dir, search, complete);
  engine::LatestCheckpoint& latest = *search.latest;
  const int64_t last = search_steps > 0 ? search_steps : latest.manifest.job.train.steps;
  if (latest.manifest.step < last) return NotTheEnd(run_dir, search, complete);
  WEFT_ASSIGN_OR_RETURN(TrainedTensors weights,
                        TrainedTensors::Open(env, latest.path, latest.manifest, which));
  EndedPhase phase{std::move(latest.path), std::move(latest.manifest), std::move(weights), {}};
  for (const ParameterInfo& parameter : ParametersOf(phase.manifest.job.model)) {
    Shape shape;
    for (const int64_t size : parameter.shape) shape.dims[shape.rank++] = size;
    phase.shapes.emplace(parameter.name, shape);
  }
  return phase;
}

/// Whether a network of the same kind was trained, which may have other sizes.
Status CheckNetwork(const EndedPhase& phase, const ModelSpec& now) {
  const ModelSpec& before = phase.manifest.job.model;
  if (before.family == now.family && before.vocab_size == now.vocab_size &&
      before.classes == now.classes && before.context == now.context) {
    return OkStatus();
  }
  return InvalidError(
      "the checkpoint in " + phase.folder + " is of a " + before.family + " with " +
      std::to_string(before.vocab_size) + " tokens, " + std::to_string(before.classes) +
      " classes and context " + std::to_string(before.context) + ", this phase trains a " +
      now.family + " with " + std::to_string(now.vocab_size) + ", " + std::to_string(now.classes) +
      " and " + std::to_string(now.context) + "; hint: another --run-dir for another job");
}

/// What load(view), which fills a tensor with the shape of parameter `name`, reads.
template <class Load>
Result<std::vector<double>> ReadNumbers(const EndedPhase& phase, const std::string& name,
                                        Load&& load) {
  const auto found = phase.shapes.find(name);
  if (found == phase.shapes.end()) {
    return InvalidError("the model of " + phase.folder + " has no parameter " + name);
  }
  std::vector<float> values(static_cast<size_t>(found->second.Elements()));
  WEFT_RETURN_IF_ERROR(load(TensorView(values.data(), DType::kF32, found->second)));
  return std::vector<double>(values.begin(), values.end());
}

/// Numbers of the new tensor: those of `start`, or zero, where nothing is said of them.
Result<std::vector<float>> Make(const GrownTensor& tensor, const engine::OldTensors& old,
                                int64_t count, const std::vector<float>& start = {}) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> values, engine::Evaluate(tensor, old, start));
  std::vector<float> floats(values.begin(), values.end());
  floats.resize(static_cast<size_t>(count));
  return floats;
}

/// The whole of parameter `index`; none: it stays as it is.
using MakeValue = std::function<Result<std::optional<std::vector<float>>>(int64_t index)>;

Status SetGrownWeights(const MakeValue& make, ParameterSet& parameters) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const bool elsewhere =
        parameters.values_sharded() && parameters.held_value(i).view.shape.Elements() == 0;
    if (elsewhere) continue;
    WEFT_ASSIGN_OR_RETURN(std::optional<std::vector<float>> values, make(i));
    if (!values) continue;
    WEFT_RETURN_IF_ERROR(engine::SetWholeValue(parameters, i, *std::move(values)));
  }
  engine::Context context;
  context.stream = parameters.stream();
  return parameters.OnValues(context, engine::ValuesFrom::kImported);
}

Status GrowWeights(const engine::GrowthOperator& grow, const engine::OldTensors& old, uint64_t seed,
                   ParameterSet& parameters) {
  const auto make = [&](int64_t i) -> Result<std::optional<std::vector<float>>> {
    WEFT_ASSIGN_OR_RETURN(const GrownTensor tensor,
                          grow.Of(parameters[i].name, GrownNumbers::kValues));
    if (tensor.random && tensor.terms.empty()) return std::optional<std::vector<float>>();
    std::vector<float> start;
    if (tensor.random) start = parameters.DrawnValue(i, seed);
    WEFT_ASSIGN_OR_RETURN(std::vector<float> values,
                          Make(tensor, old, parameters[i].logical_shape().Elements(), start));
    return std::optional(std::move(values));
  };
  return SetGrownWeights(make, parameters);
}

/// Grows by an operator that was learned, and says so in `start`.
Status GrowByLearned(LearnedStart& learned, ParameterSet& parameters, GrownStart& start) {
  const auto make = [&](int64_t i) -> Result<std::optional<std::vector<float>>> {
    WEFT_ASSIGN_OR_RETURN(std::vector<float> values, learned.growth.ValueOf(parameters[i].name));
    return std::optional(std::move(values));
  };
  WEFT_RETURN_IF_ERROR(SetGrownWeights(make, parameters));
  start.data_offset += learned.steps;
  start.fit_flops = learned.flops;
  std::ostringstream text;
  text << ", learned in " << learned.steps << " steps from loss " << learned.first_loss << " to "
       << learned.last_loss;
  start.note += text.str();
  return OkStatus();
}

/// A moment of a parameter in the optimizer's state.
struct Moment {
  NamedTensor tensor;
  std::string parameter;

  GrownNumbers Numbers() const {
    return tensor.moment == MomentKind::kSecond ? GrownNumbers::kSquaredGradients
                                                : GrownNumbers::kGradients;
  }
  /// What a checkpoint calls the same moment of a parameter `other`.
  std::string NameFor(const std::string& other) const {
    std::string name = tensor.name;
    const size_t at = name.find(parameter);
    WEFT_CHECK(at != std::string::npos, "moments have the name of their parameter: " + name);
    return name.replace(at, parameter.size(), other);
  }
};

/// The state of the training besides the weights, when it consists of moments, or this rank's parts
/// of them; none when there is something else.
std::optional<std::vector<Moment>> MomentsOf(engine::Trainer& trainer,
                                             const ParameterSet& parameters) {
  std::vector<Moment> moments;
  for (NamedTensor& tensor : trainer.StateTensors()) {
    if (tensor.parameter < 0) return std::nullopt;
    const engine::Parameter& parameter = parameters[tensor.parameter];
    if (tensor.name == parameter.name) continue;
    const Shape& whole = tensor.part ? tensor.part->whole : tensor.view.shape;
    const bool plain = tensor.stored == nullptr && tensor.view.dtype == DType::kF32 &&
                       whole.Elements() == parameter.logical_shape().Elements();
    if (tensor.moment == MomentKind::kNone || !plain) return std::nullopt;
    moments.push_back({std::move(tensor), parameter.name});
  }
  return moments;
}

/// What this rank has of a tensor with these values.
std::vector<float> HeldPart(const NamedTensor& tensor, std::vector<float> values) {
  if (!tensor.part) return values;
  std::vector<float> held(static_cast<size_t>(tensor.view.shape.Elements()));
  tensor.part->ForEachRun(tensor.view.shape.Elements(),
                          [&](int64_t own, int64_t logical, int64_t count) {
                            std::copy_n(values.begin() + logical, count, held.begin() + own);
                          });
  return held;
}

Status GrowMoments(const EndedPhase& before, const engine::GrowthOperator& grow,
                   const std::vector<Moment>& moments, const Stream& stream) {
  for (const Moment& moment : moments) {
    const NamedTensor& to = moment.tensor;
    if (to.view.shape.Elements() == 0) continue;
    const auto old = [&](engine::GrownFrom, const std::string& name) {
      return ReadNumbers(before, name, [&](const TensorView& view) {
        return before.weights.stored().Load({{moment.NameFor(name), view}},
                                            engine::ExtraTensors::kIgnore);
      });
    };
    WEFT_ASSIGN_OR_RETURN(const GrownTensor tensor, grow.Of(moment.parameter, moment.Numbers()));
    const Shape& whole = to.part ? to.part->whole : to.view.shape;
    WEFT_ASSIGN_OR_RETURN(std::vector<float> values, Make(tensor, old, whole.Elements()));
    const std::vector<float> held = HeldPart(to, std::move(values));
    WEFT_RETURN_IF_ERROR(engine::Upload(stream, held.data(), to.view));
  }
  return OkStatus();
}

/// See GrownStart::data_offset. Of images, and where documents are padded to sequences, the length
/// does not count.
int64_t DataOffset(const CheckpointManifest& before, const JobSpec& now) {
  const int64_t read = BatchSchedule(before.job.train).Before(before.step + before.data_offset);
  const bool documents = now.model.family == "vit" || now.data.batching.starts_with("pad_");
  const int64_t of_before = documents ? 1 : SequenceLength(before.job);
  const int64_t of_now = documents ? 1 : SequenceLength(now);
  const int64_t step = now.train.global_batch * of_now;
  return (read * of_before + step - 1) / step;
}

/// The steps and data that a phase begins after.
GrownStart StartAfter(const CheckpointManifest& before, const JobSpec& now) {
  GrownStart start;
  start.data_offset = DataOffset(before, now);
  if (before.step >= before.job.train.steps) return start;
  start.step = before.step;
  start.tokens = before.tokens;
  start.data_offset = before.data_offset;
  return start;
}

/// The validation loss that a phase ended with.
std::optional<double> LossOf(Env& env, const std::string& run_dir) {
  const Result<std::string> text = ReadFile(env, JoinPath(run_dir, "summary.json"));
  if (!text.ok()) return std::nullopt;
  const Result<Json> json = ParseJson(*text);
  if (!json.ok()) return std::nullopt;
  const Result<RunSummary> summary = FromJson<RunSummary>(*json);
  return summary.ok() ? summary->validation_loss_nats : std::nullopt;
}

}  // namespace

Status SaveGrowthLosses(Env& env, const std::string& run_dir, const GrowthLosses& losses) {
  return WriteFileAtomic(env, LossesPath(run_dir), ToJson(losses).dump(2) + "\n");
}

Result<GrowthLosses> ReadGrowthLosses(Env& env, const std::string& run_dir) {
  if (!env.FileExists(LossesPath(run_dir))) return GrowthLosses();
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(env, LossesPath(run_dir)));
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  return FromJson<GrowthLosses>(json);
}

bool MayKeepState(const GrowthSpec& growth) {
  return OptimizerStateOf(growth) != "new";
}

Result<LearnedStart> LearnGrowthOfPhase(Env& env, const AttemptSpec& spec, engine::Model& model,
                                        engine::Trainer& trainer, engine::Collective& group) {
  WEFT_ASSIGN_OR_RETURN(const EndedPhase before,
                        LoadPhase(env, spec.start.run_dir, spec.start.search_steps));
  WEFT_RETURN_IF_ERROR(CheckNetwork(before, model.spec()));
  const auto old = [&](engine::GrownFrom, const std::string& name) {
    return ReadNumbers(before, name, [&](const TensorView& view) {
      return before.weights.Load({{name, view}});
    });
  };
  WEFT_ASSIGN_OR_RETURN(
      engine::LearnedGrowth growth,
      engine::LearnedGrowth::New(before.manifest.job.model, model.spec(), spec.start.growth, old));
  WEFT_ASSIGN_OR_RETURN(LearnedStart learned,
                        LearnGrowth(spec, StartAfter(before.manifest, spec.job).data_offset,
                                    std::move(growth), model, trainer, group));
  JobSpec job = spec.job;
  job.model = model.spec();
  learned.flops += static_cast<double>(learned.tokens) * MeanFlopsPerToken(job, 1);
  return Result<LearnedStart>(std::move(learned));
}

Result<GrownStart> GrowState(Env& env, const AttemptSpec& spec, LearnedStart* learned,
                             engine::Model& model, engine::Trainer& trainer) {
  const GrowthSpec& growth = spec.start.growth;
  const bool from_averages = growth.new_blocks == "averaged";
  WEFT_ASSIGN_OR_RETURN(const EndedPhase before,
                        LoadPhase(env, spec.start.run_dir, spec.start.search_steps,
                                  from_averages ? TrainedAs::kLast : TrainedAs::kResult));
  WEFT_RETURN_IF_ERROR(CheckNetwork(before, model.spec()));
  std::optional<EndedPhase> larger, averages;
  if (from_averages) {
    WEFT_ASSIGN_OR_RETURN(averages, LoadPhase(env, spec.start.run_dir));
  }
  if (!spec.start.larger_run_dir.empty()) {
    WEFT_ASSIGN_OR_RETURN(larger, LoadPhase(env, spec.start.larger_run_dir));
    WEFT_RETURN_IF_ERROR(CheckNetwork(*larger, model.spec()));
  }
  const engine::GrowthOperator grow(before.manifest.job.model, model.spec(), growth,
                                    larger ? &larger->manifest.job.model : nullptr);
  const auto old = [&](engine::GrownFrom from,
                       const std::string& name) -> Result<std::vector<double>> {
    const EndedPhase* phase = &before;
    if (from == engine::GrownFrom::kLargerModel) phase = larger ? &*larger : nullptr;
    if (from == engine::GrownFrom::kAverages) phase = averages ? &*averages : nullptr;
    if (phase == nullptr) return InvalidError("no larger model is given to mix into " + name);
    return ReadNumbers(*phase, name, [&](const TensorView& view) {
      return phase->weights.Load({{name, view}});
    });
  };
  ParameterSet& parameters = model.parameters();
  const CheckpointManifest& manifest = before.manifest;
  GrownStart start = StartAfter(manifest, spec.job);
  start.loss_before = LossOf(env, spec.start.run_dir);
  start.note = "the weights are those of " + before.folder;
  if (growth.method != "none") start.note += ", grown by " + growth.method;
  if (LearnsGrowth(growth)) {
    WEFT_CHECK(learned != nullptr, "an operator is learned before the model is there");
    WEFT_RETURN_IF_ERROR(GrowByLearned(*learned, parameters, start));
    return start;
  }
  WEFT_RETURN_IF_ERROR(
      GrowWeights(grow, old, static_cast<uint64_t>(spec.job.train.seed), parameters));
  if (!MayKeepState(growth)) return start;
  // Copies of sparkling would stay equal without it.
  const bool wanted = growth.optimizer_state != "auto" || growth.method == "sparkling";
  const std::optional<std::vector<Moment>> moments = MomentsOf(trainer, parameters);
  if (!moments && wanted) {
    return InvalidError(
        "growth.optimizer_state " + std::string(OptimizerStateOf(growth)) +
        " is for optimizers that keep moments of each parameter (adam, "
        "adamw, lamb, lars, lion, muon, sgd), without other state of the training; hint: new");
  }
  if (!moments) return start;
  WEFT_RETURN_IF_ERROR(GrowMoments(before, grow, *moments, parameters.stream()));
  start.updates = manifest.updates;
  start.note += ", with the optimizer's state";
  return start;
}

}  // namespace weft::trainer
