#include "common/spec/phases.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/compatibility.h"
#include "common/spec/features.h"
#include "common/spec/open_choices.h"
#include "common/spec/phase_search.h"

namespace weft {
namespace {

const std::string kFolderPrefix = "phase-";

/// A size of a model that growth changes, and its field.
struct Size {
  const char* field;
  int64_t value;
};

/// Field by field, in the order in which errors name them.
std::array<Size, 5> SizesOf(const ModelSpec& model) {
  return {{{"layers", model.layers},
           {"width", model.width},
           {"heads", model.heads},
           {"kv_heads", KvHeads(model)},
           {"mlp_width", MlpWidth(model)}}};
}

bool SameSizes(const ModelSpec& a, const ModelSpec& b) {
  const auto of_a = SizesOf(a), of_b = SizesOf(b);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(),
                    [](const Size& x, const Size& y) { return x.value == y.value; });
}

/// `phase` with all sizes that growth changes, in place of those it leaves to its job.
PhaseSpec WithSizesOf(const ModelSpec& model, PhaseSpec phase) {
  phase.layers = model.layers;
  phase.width = model.width;
  phase.heads = model.heads;
  phase.kv_heads = model.kv_heads;
  phase.mlp_width = model.mlp_width;
  if (model.family == "vit") phase.image_size = model.image_size;
  return phase;
}

/// "phases[2].width".
std::string FieldOf(size_t phase, const std::string& field) {
  return "phases[" + std::to_string(phase) + "]." + field;
}

std::string With(size_t phase, const Size& size) {
  return FieldOf(phase, size.field) + " " + std::to_string(size.value);
}

/// Whether the sizes that a phase leaves out follow from those it has.
Status CheckProportions(const JobSpec& job, size_t index) {
  const PhaseSpec& phase = job.phases[index];
  const ModelSpec& model = job.model;
  const int64_t width = phase.width > 0 ? phase.width : model.width;
  if (phase.heads == 0 && model.heads * width % model.width != 0) {
    return InvalidError(FieldOf(index, "width") + " " + std::to_string(width) +
                        " has no whole number of the heads of model, " +
                        std::to_string(model.width) + " / " + std::to_string(model.heads) +
                        " columns each; hint: a multiple of that");
  }
  if (phase.mlp_width == 0 && MlpWidth(model) * width % model.width != 0) {
    return InvalidError(FieldOf(index, "mlp_width") + " must be given: model.mlp_width " +
                        std::to_string(MlpWidth(model)) + " has no whole share for width " +
                        std::to_string(width));
  }
  const int64_t heads = phase.heads > 0 ? phase.heads : model.heads * width / model.width;
  if (phase.kv_heads == 0 && model.kv_heads * heads % model.heads != 0) {
    return InvalidError(FieldOf(index, "kv_heads") + " must be given: model.kv_heads " +
                        std::to_string(model.kv_heads) + " has no whole share for heads " +
                        std::to_string(heads));
  }
  return OkStatus();
}

/// Whether heads of the phase share keys and values in whole groups, as growth divides them.
Status CheckGroups(const JobSpec& job, size_t phase) {
  const ModelSpec model = JobOfPhase(job, phase).model;
  const int64_t kv_heads = KvHeads(model);
  if (model.heads > 0 && kv_heads > 0 && model.heads % kv_heads == 0) return OkStatus();
  return InvalidError(FieldOf(phase, "kv_heads") + " " + std::to_string(kv_heads) +
                      " must divide heads, " + std::to_string(model.heads) +
                      ", which share keys and values in groups");
}

/// Growth repeats heads in turns, those of queries and those of keys and values: each head has to
/// find its own keys where its source does.
Status CheckHeads(const ModelSpec& larger, const ModelSpec& smaller, size_t phase) {
  const int64_t group = larger.heads / KvHeads(larger);
  const int64_t small_group = smaller.heads / KvHeads(smaller);
  for (int64_t head = 0; head < larger.heads; ++head) {
    if (head / group % KvHeads(smaller) == head % smaller.heads / small_group) continue;
    return InvalidError(FieldOf(phase, "kv_heads") +
                        " does not suit growth: heads of both models must share keys and values in "
                        "groups of the same size; hint: kv_heads in the proportion of heads");
  }
  return OkStatus();
}

/// Masked growth leaves heads where they are: each has to find its own keys there, too.
Status CheckMaskedHeads(const ModelSpec& before, const ModelSpec& now, size_t phase) {
  const int64_t group = now.heads / KvHeads(now), group_before = before.heads / KvHeads(before);
  for (int64_t head = 0; head < before.heads; ++head) {
    if (head / group == head / group_before) continue;
    return InvalidError(FieldOf(phase, "kv_heads") + " " + std::to_string(KvHeads(now)) +
                        " gives heads that were there before other keys and values; hint: kv_heads "
                        "in the proportion of heads");
  }
  return OkStatus();
}

/// Which relation a size of a phase must have to that of the phase before.
enum class Relation { kSame, kDivides, kIsMultiple, kAtLeast };

bool Holds(Relation relation, int64_t before, int64_t now) {
  switch (relation) {
    case Relation::kSame:
      return now == before;
    case Relation::kDivides:
      return now > 0 && before % now == 0;
    case Relation::kIsMultiple:
      return before > 0 && now % before == 0;
    case Relation::kAtLeast:
      return now >= before;
  }
  return false;
}

/// What each method asks of the number of blocks and of the other sizes.
struct MethodRule {
  const char* method;
  Relation layers;
  Relation others;
  const char* text;
};

constexpr MethodRule kRules[] = {
    {"none", Relation::kSame, Relation::kSame,
     "keeps all sizes; hint: growth.method coalesce, decoalesce, stack, fpi, aki, msg, ligo or "
     "sparkling"},
    {"coalesce", Relation::kDivides, Relation::kDivides, "divides all sizes by whole factors"},
    {"decoalesce", Relation::kIsMultiple, Relation::kIsMultiple,
     "multiplies all sizes by whole factors"},
    {"stack", Relation::kAtLeast, Relation::kSame, "adds blocks and changes nothing else"},
    {"fpi", Relation::kAtLeast, Relation::kAtLeast, "makes no size smaller"},
    {"aki", Relation::kAtLeast, Relation::kAtLeast, "makes no size smaller"},
    {"msg", Relation::kAtLeast, Relation::kAtLeast, "makes no size smaller"},
    {"ligo", Relation::kAtLeast, Relation::kAtLeast, "makes no size smaller"},
    {"sparkling", Relation::kSame, Relation::kAtLeast, "adds columns and leaves the blocks"},
};

const MethodRule& RuleOf(const std::string& method) {
  return *std::find_if(std::begin(kRules), std::end(kRules),
                       [&](const MethodRule& rule) { return method == rule.method; });
}

/// Steps of phases `first` to `end`, without that one.
int64_t StepsOf(const JobSpec& job, size_t first, size_t end) {
  int64_t steps = 0;
  for (size_t i = first; i < end; ++i) steps += job.phases[i].steps;
  return steps;
}

bool IsContinued(const PhaseSpec& phase) {
  return phase.schedule == "continued";
}

/// Whether the phase says no more of its schedule than there is to say.
Status CheckSchedule(const JobSpec& job, size_t phase) {
  if (!IsContinued(job.phases[phase]) || job.phases[phase].warmup_steps < 0) return OkStatus();
  return InvalidError(FieldOf(phase, "warmup_steps") + " " +
                      std::to_string(job.phases[phase].warmup_steps) +
                      " is for a schedule of the phase's own, and " + FieldOf(phase, "schedule") +
                      " continued is its part of that of the job; hint: leave it out, and "
                      "schedule.warmup_steps is the warm-up of all phases");
}

/// Patterns of the parameters of `now` that are not of an added block.
std::vector<std::string> OldParameters(const ModelSpec& before, const GrowthSpec& growth,
                                       ModelSpec now) {
  if (now.vocab_size == 0) now.vocab_size = kVocabularyTile;
  if (now.classes == 0) now.classes = kVocabularyTile;
  std::vector<std::string> patterns;
  for (const ParameterInfo& parameter : PlainParametersOf(now)) {
    std::string pattern = parameter.name;
    if (parameter.block >= 0) {
      if (IsAddedBlock(growth, before.layers, now.layers, parameter.block)) continue;
      const std::string number = "." + std::to_string(parameter.block) + ".";
      pattern = pattern.substr(0, pattern.find(number)) + number + "*";
    }
    if (patterns.empty() || patterns.back() != pattern) patterns.push_back(std::move(pattern));
  }
  return patterns;
}

/// Whether there are blocks that freeze_old leaves to be trained, and the state that is asked for.
Status CheckFrozenParts(const JobSpec& job, size_t phase) {
  const GrowthSpec& growth = job.phases[phase].growth;
  const std::string_view state = OptimizerStateOf(growth);
  const bool kept = state == "kept" || state == "asymmetric";
  if (kept && job.phases[phase - 1].growth.freeze_old) {
    return InvalidError(FieldOf(phase, "growth.optimizer_state") + " " + std::string(state) +
                        " is for parameters that the phase before has trained, and its "
                        "growth.freeze_old froze some; hint: optimizer_state new");
  }
  if (!growth.freeze_old) return OkStatus();
  if (JobOfPhase(job, phase).model.layers > JobOfPhase(job, phase - 1).model.layers) {
    return OkStatus();
  }
  return InvalidError(FieldOf(phase, "growth.freeze_old") +
                      " would freeze all: no block is added; hint: growth.method stack with more "
                      "layers");
}

Status CheckGrowth(const JobSpec& job, size_t phase) {
  const GrowthSpec& growth = job.phases[phase].growth;
  const std::string method = FieldOf(phase, "growth.method") + " " + growth.method;
  if (phase == 0) {
    if (growth.method == "none") return OkStatus();
    return InvalidError(method + ": there is no phase before the first one to grow from");
  }
  const ModelSpec before = JobOfPhase(job, phase - 1).model;
  const ModelSpec now = JobOfPhase(job, phase).model;
  const bool masks = growth.method == "msg";
  if (masks != (growth.ramp_steps > 0) || growth.ramp_steps > job.phases[phase].steps) {
    return InvalidError(FieldOf(phase, "growth.ramp_steps") + " " +
                        std::to_string(growth.ramp_steps) +
                        (masks ? " must be from 1 to the steps of the phase, " +
                                     std::to_string(job.phases[phase].steps) +
                                     ", so that nothing is masked at its end"
                               : " is for growth.method msg; hint: leave it out"));
  }
  WEFT_RETURN_IF_ERROR(
      CheckRewarmSteps(FieldOf(phase, "growth.rewarm_steps"), growth, job.phases[phase].steps));
  const MethodRule& rule = RuleOf(growth.method);
  const auto sizes_before = SizesOf(before), sizes_now = SizesOf(now);
  for (size_t i = 0; i < sizes_now.size(); ++i) {
    const Relation relation = i == 0 ? rule.layers : rule.others;
    if (Holds(relation, sizes_before[i].value, sizes_now[i].value)) continue;
    return InvalidError(With(phase, sizes_now[i]) + " after " +
                        std::to_string(sizes_before[i].value) + ": growth.method " + growth.method +
                        " " + rule.text);
  }
  WEFT_RETURN_IF_ERROR(CheckFrozenParts(job, phase));
  const bool same = SameSizes(before, now);
  if (growth.method == "none") return OkStatus();
  if (same) {
    return InvalidError(method +
                        " changes no size of the phase before it; hint: growth.method none");
  }
  if (HeadWidth(before) != HeadWidth(now)) {
    return InvalidError(FieldOf(phase, "heads") + " " + std::to_string(now.heads) +
                        " makes heads of " + std::to_string(HeadWidth(now)) + " columns from " +
                        std::to_string(HeadWidth(before)) +
                        "; hint: leave it out, and heads stay as wide as they are");
  }
  const bool shrinks = growth.method == "coalesce";
  WEFT_RETURN_IF_ERROR(masks ? CheckMaskedHeads(before, now, phase)
                             : CheckHeads(shrinks ? before : now, shrinks ? now : before, phase));
  if (before.layers == 0 && now.layers > 0 && growth.new_blocks != "random") {
    return InvalidError(FieldOf(phase, "growth.new_blocks") + " " + growth.new_blocks +
                        " makes blocks of those of the phase before, and it has none; hint: "
                        "new_blocks random");
  }
  if (growth.method == "decoalesce" && growth.alpha < 1 && !MixedPhase(job, phase)) {
    return InvalidError(method +
                        ": no phase before it had these sizes, whose weights would be mixed in; "
                        "hint: growth.alpha 1, or a phase with these sizes before coalesce");
  }
  if (growth.new_blocks == "averaged" &&
      ExportedAverages(JobOfPhase(job, phase - 1), job.phases[phase - 1].steps).empty()) {
    return InvalidError(FieldOf(phase, "growth.new_blocks") +
                        " averaged copies averaged weights of the phase before, and there are "
                        "none; hint: new_blocks copy, or a job that averages its weights (ema)");
  }
  return OkStatus();
}

Status CheckPhaseChoices(const JobSpec& job, size_t phase) {
  const JobSpec own = JobOfPhase(job, phase);
  if (!LeavesChoices(own)) return OkStatus();
  Status first;
  for (const JobSpec& choice : ChoicesOf(own)) {
    if (!ValidateJob(choice).ok()) continue;
    Status status = CheckPhaseCompatibility(job, phase, choice);
    if (status.ok()) return status;
    if (first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace

size_t PhaseCount(const JobSpec& job) {
  return std::max<size_t>(job.phases.size(), 1);
}

JobSpec JobOfPhase(const JobSpec& job, size_t phase) {
  if (job.phases.empty() || IsOfGrownPhase(job)) return job;
  const PhaseSpec& own = job.phases[phase];
  JobSpec part = job;
  part.phases.clear();
  ModelSpec& model = part.model;
  if (phase > 0) model.import_path.clear();
  if (own.layers >= 0) model.layers = own.layers;
  if (own.width > 0) {
    model.width = own.width;
    model.heads = job.model.heads * own.width / job.model.width;
    model.mlp_width = job.model.mlp_width * own.width / job.model.width;
  }
  if (own.heads > 0) model.heads = own.heads;
  model.kv_heads =
      own.kv_heads > 0 ? own.kv_heads : job.model.kv_heads * model.heads / job.model.heads;
  if (own.mlp_width > 0) model.mlp_width = own.mlp_width;
  if (own.image_size > 0) model.image_size = own.image_size;
  // Without heads there is no network, which CheckPhases says.
  if (phase > 0 && own.growth.freeze_old && model.heads > 0) {
    for (std::string& pattern : OldParameters(JobOfPhase(job, phase - 1).model, own.growth, model))
      model.freeze.push_back(std::move(pattern));
  }
  part.train.steps = own.steps;
  if (phase > 0) part.train.batch_warmup_steps = 0;  // a warm-up is of the beginning
  if (own.sequence_length > 0) part.train.sequence_length = own.sequence_length;
  if (own.sampled_layers > 0) part.train.sampled_layers = own.sampled_layers;
  if (own.global_batch > 0) part.train.global_batch = own.global_batch;
  if (own.learning_rate > 0) part.optimizer.learning_rate = own.learning_rate;
  if (own.warmup_steps >= 0) part.schedule.warmup_steps = own.warmup_steps;
  if (IsContinued(own)) {
    part.schedule.steps_before = StepsOf(job, 0, phase);
    part.schedule.steps_after = StepsOf(job, phase + 1, job.phases.size());
  } else if (!own.schedule.empty()) {
    part.schedule.kind = own.schedule;
  }
  if (phase > 0 && SaysWhatItGrewFrom(own.growth)) {
    SetPhaseGrowth({JobOfPhase(job, phase - 1).model, own.growth}, part);
  }
  return part;
}

JobSpec PlannedJobOfPhase(const JobSpec& job, size_t phase) {
  JobSpec own = JobOfPhase(job, phase);
  if (job.phases.empty() || IsOfGrownPhase(job)) return own;
  for (const auto place : {&ResourceSpec::offload_optimizer, &ResourceSpec::offload_parameters,
                           &ResourceSpec::offload_activations}) {
    if (own.resources.*place != "auto") continue;
    JobSpec host = own;
    host.resources.*place = "host";
    if (!CheckPhaseCompatibility(job, phase, host).ok()) {
      DecideWithoutOffload(place, own.resources);
    }
  }
  return own;
}

int64_t StepsBefore(const JobSpec& job, size_t phase) {
  if (job.phases.empty() || IsOfGrownPhase(job)) {
    return static_cast<int64_t>(phase) * job.train.steps;
  }
  return StepsOf(job, 0, phase);
}

JobSpec JobThrough(const JobSpec& job, size_t phase) {
  JobSpec through = job;
  through.train.steps = StepsBefore(job, phase + 1);
  return through;
}

Result<size_t> PhaseToRun(const JobSpec& job) {
  for (size_t phase = 0; phase < PhaseCount(job); ++phase) {
    if (StepsBefore(job, phase + 1) == job.train.steps) return phase;
  }
  return InternalError("no phase of job " + job.name + " ends with step " +
                       std::to_string(job.train.steps));
}

std::string PhaseFolder(const JobSpec& job, size_t phase, const std::string& run_dir) {
  if (phase + 1 == PhaseCount(job)) return run_dir;
  return JoinPath(run_dir, kFolderPrefix + std::to_string(phase + 1));
}

bool IsPhaseFolder(std::string_view name) {
  if (!name.starts_with(kFolderPrefix)) return false;
  name.remove_prefix(kFolderPrefix.size());
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

double StepFlops(const JobSpec& phase) {
  const int64_t length = SequenceLength(phase);
  return static_cast<double>(phase.train.global_batch * length) *
         TrainingFlopsPerToken(ShapeOf(phase), length);
}

std::string PhaseTitle(const JobSpec& job, size_t phase) {
  return PhaseTitle(phase, job.phases.size(), job.phases[phase].name);
}

std::string PhaseTitle(size_t phase, size_t count, const std::string& name) {
  return "phase " + std::to_string(phase + 1) + " of " + std::to_string(count) +
         (name.empty() ? "" : " (" + name + ")");
}

std::optional<size_t> MixedPhase(const JobSpec& job, size_t phase) {
  const GrowthSpec& growth = job.phases[phase].growth;
  if (growth.method != "decoalesce" || growth.alpha == 1) return std::nullopt;
  const ModelSpec now = JobOfPhase(job, phase).model;
  for (size_t i = phase; i-- > 0;) {
    if (SameSizes(JobOfPhase(job, i).model, now)) return i;
  }
  return std::nullopt;
}

Status CheckOnePhase(const JobSpec& job) {
  if (job.phases.empty() || IsOfGrownPhase(job)) return OkStatus();
  return InvalidError(
      "phases: each of them has a plan of its own; hint: `weft plan FILE` shows all, "
      "`weft plan FILE --phase 1` one");
}

Status SpreadImportedSizes(JobSpec& job) {
  const JobSpec from = job;
  for (size_t i = 0; i < job.phases.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckProportions(from, i));
    const ModelSpec model = JobOfPhase(from, i).model;
    if (i == 0 && !SameSizes(model, from.model)) {
      const auto own = SizesOf(model), folder = SizesOf(from.model);
      const size_t other = static_cast<size_t>(
          std::mismatch(own.begin(), own.end(), folder.begin(),
                        [](const Size& a, const Size& b) { return a.value == b.value; })
              .first -
          own.begin());
      return InvalidError(With(0, own[other]) + " is not that of the network in " +
                          from.model.import_path + ", " + std::to_string(folder[other].value) +
                          ", from which the first phase starts; hint: leave it out");
    }
    if (i == 0 && model.image_size != from.model.image_size) {
      return InvalidError(With(0, {"image_size", model.image_size}) +
                          " is not that of the network in " + from.model.import_path + ", " +
                          std::to_string(from.model.image_size) + "; hint: leave it out");
    }
    PhaseSpec& phase = job.phases[i];
    phase = WithSizesOf(model, phase);
    job.model.layers = model.layers;
    job.model.width = model.width;
    job.model.heads = model.heads;
    job.model.kv_heads = model.kv_heads;
    job.model.mlp_width = model.mlp_width;
    job.model.image_size = model.image_size;
  }
  return OkStatus();
}

Status CheckPhaseCompatibility(const JobSpec& job, size_t phase, const JobSpec& own) {
  JobSpec asked = own;
  asked.phases.clear();
  // The phase before counts only by what growth changes: its other fields are checked on its turn.
  if (phase > 0) asked.phases.push_back(WithSizesOf(JobOfPhase(job, phase - 1).model, {}));
  asked.phases.push_back(WithSizesOf(own.model, job.phases[phase]));
  for (const Refusal& row : Refusals()) {
    if (!row.feature->of_phases && !row.with->of_phases) continue;
    if (FindRefusal({&row, 1}, asked) == nullptr) continue;
    return InvalidError(RefusalText(row, asked))
        .WithContext("phases[" + std::to_string(phase) + "]");
  }
  return OkStatus();
}

Status CheckPhases(const JobSpec& job) {
  // All else is asked of the job of each phase, which has no phases.
  for (const Refusal& row : Refusals()) {
    if (row.with == &features::kPhases && FindRefusal({&row, 1}, job) != nullptr) {
      return InvalidError(RefusalText(row, job));
    }
  }
  if (job.schedule.steps_before > 0 || job.schedule.steps_after > 0) {
    return InvalidError(
        "schedule.steps_before and schedule.steps_after are for a job without phases; hint: leave "
        "them out, and phases[].schedule continued makes one schedule of all phases");
  }
  for (size_t i = 0; i < job.phases.size(); ++i) WEFT_RETURN_IF_ERROR(CheckSchedule(job, i));
  // Sizes are those of a folder, which has not been read.
  if (!job.model.import_path.empty()) {
    return CheckCompatibility(JobOfPhase(job, 0)).WithContext("phases[0]");
  }
  for (size_t i = 0; i < job.phases.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckProportions(job, i));
    if (job.phases[i].image_size > 0 && job.model.family != "vit") {
      return InvalidError(FieldOf(i, "image_size") + " is for model.family vit, not " +
                          job.model.family);
    }
    WEFT_RETURN_IF_ERROR(CheckGroups(job, i));
  }
  const size_t last = job.phases.size() - 1;
  const auto end = SizesOf(JobOfPhase(job, last).model), whole = SizesOf(job.model);
  for (size_t i = 0; i < end.size(); ++i) {
    if (end[i].value == whole[i].value) continue;
    return InvalidError(With(last, end[i]) + " is not model." + whole[i].field + " " +
                        std::to_string(whole[i].value) +
                        ", and the last phase trains model; hint: leave it out");
  }
  if (const int64_t size = JobOfPhase(job, last).model.image_size; size != job.model.image_size) {
    return InvalidError(With(last, {"image_size", size}) + " is not model.image_size " +
                        std::to_string(job.model.image_size) +
                        ", and the last phase trains model; hint: leave it out");
  }
  for (size_t i = 0; i < job.phases.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckGrowth(job, i));
    WEFT_RETURN_IF_ERROR(CheckSearch(job, i));
  }
  for (size_t i = 0; i < job.phases.size(); ++i) {
    WEFT_RETURN_IF_ERROR(
        ValidateJob(JobOfPhase(job, i)).WithContext("phases[" + std::to_string(i) + "]"));
  }
  for (size_t i = 0; i < job.phases.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckPhaseCompatibility(job, i, JobOfPhase(job, i)));
    WEFT_RETURN_IF_ERROR(CheckPhaseChoices(job, i));
  }
  return OkStatus();
}

}  // namespace weft
