#include "worker/trainer/same_phase.h"

#include <algorithm>
#include <optional>
#include <string>

#include "common/json.h"
#include "common/model/technique_cost.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/data/prepare.h"
#include "worker/trainer/grown_state.h"
#include "worker/trainer/size_search.h"

namespace weft::trainer {
namespace {

constexpr char kOtherPhaseHint[] =
    "; hint: put it back, give another --run-dir, or delete the folder and those of later phases";

/// What changes no weight: sizes that follow from the data, where their files are (the fingerprint
/// says whether they are the same), what is measured, checked and logged.
constexpr const char* kOfNoWeight[] = {
    "/model/vocab_size",         "/model/classes",        "/data/train",
    "/data/validation",          "/data/tokenizer/path",  "/data/chat_template",
    "/train/eval_every_steps",   "/train/eval_sequences", "/train/log_every_steps",
    "/train/replay_every_steps",
};

void Erase(Json& fields, const std::string& pointer) {
  const Json::json_pointer field(pointer);
  fields.at(field.parent_pointer()).erase(field.back());
}

/// The fields of the job of a phase that say what is trained.
Json TrainedFields(const JobSpec& job) {
  Json fields = {{"model", ToJson(job.model)},
                 {"data", ToJson(job.data)},
                 {"optimizer", ToJson(job.optimizer)},
                 {"schedule", ToJson(job.schedule)},
                 {"train", ToJson(job.train)}};
  for (const char* pointer : kOfNoWeight) Erase(fields, pointer);
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (!technique->OnlyMeasures()) continue;
    std::string pointer = "/" + std::string(technique->feature().setting);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    Erase(fields, pointer);
  }
  return fields;
}

/// The first field that differs: "optimizer.learning_rate was 0.001, is 0.002"; "" where none does.
std::string FirstDifference(const Json& then, const Json& now, const std::string& path = "") {
  if (then == now) return "";
  if (!then.is_object() || !now.is_object()) {
    return path + " was " + then.dump() + ", is " + now.dump();
  }
  Json all = then;
  all.update(now);
  for (const auto& [name, value] : all.items()) {
    const std::string difference = FirstDifference(
        then.value(name, Json()), now.value(name, Json()), path.empty() ? name : path + "." + name);
    if (!difference.empty()) return difference;
  }
  return "";
}

/// Of a phase that searched the growth was that of its search.
Result<std::optional<GrowthSpec>> GrowthOf(Env& env, const AttemptSpec& attempt, bool searches) {
  const std::string folder = searches ? AttemptOfSearch(attempt).run_dir : attempt.run_dir;
  WEFT_ASSIGN_OR_RETURN(const GrowthLosses losses, ReadGrowthLosses(env, folder));
  return losses.growth;
}

}  // namespace

Status CheckSamePhase(Env& env, AttemptSpec attempt, const PhaseSearchSpec& search,
                      const RunSummary& summary) {
  const std::string phase = "the phase in " + attempt.run_dir;
  const bool searches = search.steps > 0;
  if (searches != summary.chosen_layers.has_value()) {
    return InvalidError(phase + " was trained " + (searches ? "without" : "with") +
                        " a search for its size, and the job now has search.steps " +
                        std::to_string(search.steps) + kOtherPhaseHint);
  }
  if (searches) {
    const std::string folder = AttemptOfSearch(attempt).run_dir;
    WEFT_ASSIGN_OR_RETURN(const std::optional<SizeChoice> choice, ReadSizeChoice(env, folder));
    if (choice) {
      WEFT_RETURN_IF_ERROR(CheckSameSearch(*choice, search, attempt.job.model, folder));
    }
    attempt.job.model.layers = *summary.chosen_layers;
    if (summary.chosen_image_size) attempt.job.model.image_size = *summary.chosen_image_size;
  }
  const Result<engine::CheckpointManifest> manifest =
      engine::ReadManifest(env, engine::CheckpointPath(attempt.run_dir, summary.steps));
  if (!manifest.ok()) {
    return InvalidError(phase + " is complete, and its last checkpoint cannot be read: " +
                        manifest.status().message() +
                        "; hint: delete the folder, and the job trains this phase again");
  }
  Json then = TrainedFields(manifest->job), now = TrainedFields(attempt.job);
  WEFT_ASSIGN_OR_RETURN(const std::optional<GrowthSpec> growth, GrowthOf(env, attempt, searches));
  if (growth) {
    then["growth"] = ToJson(*growth);
    now["growth"] = ToJson(attempt.start.growth);
  }
  if (const std::string difference = FirstDifference(then, now); !difference.empty()) {
    return InvalidError(phase + " was trained by another job: " + difference + kOtherPhaseHint);
  }
  WEFT_ASSIGN_OR_RETURN(const engine::Dataset data,
                        engine::PrepareDataset(env, attempt.job, attempt.cache_dir,
                                               static_cast<int>(attempt.plan.threads_per_rank)));
  if (data.fingerprint == manifest->data_fingerprint) return OkStatus();
  return InvalidError(phase + " was trained on data " + manifest->data_fingerprint +
                      ", the job's data is now " + data.fingerprint + kOtherPhaseHint);
}

}  // namespace weft::trainer
