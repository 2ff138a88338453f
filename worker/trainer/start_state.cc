#include "worker/trainer/start_state.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/formats/base_tensors.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_base.h"
#include "common/formats/weight_files.h"
#include "common/json.h"
#include "common/model/parameter_list.h"
#include "common/spec/local_steps.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/models/weights.h"
#include "worker/trainer/base_weights.h"
#include "worker/trainer/grown_state.h"

namespace weft::trainer {
namespace {

using engine::CheckpointManifest;
using engine::NamedTensor;

std::string RollbackPath(const std::string& run_dir) {
  return JoinPath(run_dir, "rollback.json");
}

/// A rollback to this very state that no later checkpoint holds yet.
Status ApplyRollback(Env& env, const std::string& run_dir, engine::TrainCounters& counters) {
  const std::string path = RollbackPath(run_dir);
  if (!env.FileExists(path)) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path));
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
  WEFT_ASSIGN_OR_RETURN(engine::TrainCounters after, FromJson<engine::TrainCounters>(json));
  if (after.step == counters.step && after.rollbacks > counters.rollbacks) {
    counters = std::move(after);
  }
  return OkStatus();
}

/// What the model, or this rank's part of it, has of the folder of a network.
Status ImportNetwork(Env& env, const ModelSpec& from, engine::Model& model, StartPoint& start) {
  const std::string& folder = from.import_path;
  WEFT_ASSIGN_OR_RETURN(const ImportedHead imported, ReadHead(env, folder));
  const bool has_head = HasHead(imported, model.spec());
  const HeadWeights head = has_head ? HeadWeights::kFromFile : HeadWeights::kLeaveAsTheyAre;
  WEFT_RETURN_IF_ERROR(OfGivenFiles(engine::ImportWeights(env, folder, model, head)));
  if (!has_head) {
    start.notes.push_back(folder + " has no classifier of " + std::to_string(model.spec().classes) +
                          " classes: it starts from random weights");
  }
  if (!FreezesAny(from)) return OkStatus();
  start.base_tensors = BaseTensors(from, head);
  WEFT_ASSIGN_OR_RETURN(start.base_fingerprint, FingerprintOfWeights(env, folder));
  return OkStatus();
}

/// What the model, or this rank's part of it, has of the folders that it starts from.
Status Import(Env& env, const ModelSpec& from, engine::Model& model, StartPoint& start) {
  if (!from.import_path.empty()) {
    WEFT_RETURN_IF_ERROR(ImportNetwork(env, from, model, start));
  }
  const std::string& adapter = from.peft.import_path;
  if (adapter.empty()) return OkStatus();
  if (!from.import_path.empty()) {
    WEFT_RETURN_IF_ERROR(OfGivenFiles(CheckBaseHash(env, adapter, from.import_path, model.spec())));
  }
  return OfGivenFiles(engine::ImportAdapterWeights(env, adapter, model));
}

/// What the model, or this rank's part of it, begins with that is not random.
Status Begin(Env& env, const AttemptSpec& spec, LearnedStart* learned, engine::Model& model,
             engine::Trainer& trainer, StartPoint& start) {
  if (spec.start.run_dir.empty()) return Import(env, spec.job.model, model, start);
  WEFT_ASSIGN_OR_RETURN(GrownStart grown, GrowState(env, spec, learned, model, trainer));
  start.grown = true;
  start.loss_before = grown.loss_before;
  start.fit_flops = grown.fit_flops;
  start.counters.step = grown.step;
  start.counters.tokens = grown.tokens;
  start.counters.data_offset = grown.data_offset;
  start.counters.updates = grown.updates;
  start.notes.push_back(std::move(grown.note));
  return OkStatus();
}

/// Rank 0's part: the checkpoint to go on from, or none.
Result<StartPoint> LoadState(Env& env, const AttemptSpec& spec, const std::string& data_fingerprint,
                             engine::Model& model, engine::Trainer& trainer) {
  StartPoint start;
  start.counters = trainer.counters();
  WEFT_ASSIGN_OR_RETURN(engine::LatestSearch search, engine::LatestVerified(env, spec.run_dir));
  for (const Status& rejected : search.rejected) start.warnings.push_back(rejected.message());
  if (!search.latest) {
    if (!search.rejected.empty()) {
      return InvalidError("no checkpoint in " + spec.run_dir +
                          " is sound: " + search.rejected.front().message() +
                          "; hint: delete them all to start from the beginning");
    }
    return start;
  }
  const CheckpointManifest& manifest = search.latest->manifest;
  if (manifest.data_fingerprint != data_fingerprint) {
    return InvalidError("the checkpoint in " + search.latest->path + " was trained on data " +
                        manifest.data_fingerprint + ", the job's data is now " + data_fingerprint +
                        "; hint: restore the files, or submit a new job");
  }
  // The checkpoint has more where this is one stage of a pipeline, or one rank with local steps.
  engine::ParameterSet& parameters = model.parameters();
  const bool more = parameters.of_stage() || MakesLocalSteps(spec.job.train);
  const auto extra = more ? engine::ExtraTensors::kIgnore : engine::ExtraTensors::kRefuse;
  const std::string& path = search.latest->path;
  std::vector<NamedTensor> in_files = trainer.StateTensors();
  EraseBase(manifest.base_tensors, parameters, in_files);
  WEFT_RETURN_IF_ERROR(
      ReadBase(env, path, manifest, spec.job.model.import_path, model.spec(), parameters));
  WEFT_RETURN_IF_ERROR(
      engine::LoadTensors(env, path, manifest, in_files, extra, parameters.stream()));
  start.counters = {manifest.step,          manifest.updates,     manifest.skipped_steps,
                    manifest.tokens,        manifest.overflows,   manifest.loss_scale,
                    manifest.data_offset,   manifest.loss_spikes, manifest.rollbacks,
                    manifest.recent_losses, manifest.rounds};
  start.checkpoint_path = path;
  start.base_fingerprint = manifest.base_fingerprint;
  start.base_tensors = manifest.base_tensors;
  return start;
}

/// Whether not all ranks have it, or each has it in a file of its own.
bool IsOwn(const NamedTensor& tensor) {
  return tensor.part || !tensor.everywhere || tensor.stored != nullptr;
}

/// What this rank holds by itself of the state in `folder`, which rank 0 has verified, and of the
/// network in `base`, which that may leave out.
Status LoadParts(Env& env, const std::string& folder, const std::string& base, engine::Model& model,
                 engine::Trainer& trainer) {
  WEFT_ASSIGN_OR_RETURN(const CheckpointManifest manifest, engine::ReadManifest(env, folder));
  engine::ParameterSet& parameters = model.parameters();
  std::vector<NamedTensor> own = trainer.StateTensors(manifest.plan.mesh.data);
  std::erase_if(own, [](const NamedTensor& tensor) { return !IsOwn(tensor); });
  const size_t all = own.size();
  EraseBase(manifest.base_tensors, parameters, own);
  if (own.size() < all) {
    WEFT_RETURN_IF_ERROR(ReadBase(env, folder, manifest, base, model.spec(), parameters));
  }
  if (own.empty()) return OkStatus();
  return engine::LoadTensors(env, folder, manifest, own, engine::ExtraTensors::kIgnore,
                             parameters.stream());
}

/// The same text on every rank.
Result<std::string> BroadcastText(engine::Collective& group, const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, group.AllGather(text));
  return all[0];
}

/// The same names on every rank. No name has an end of line.
Result<std::vector<std::string>> BroadcastNames(engine::Collective& group,
                                                const std::vector<std::string>& names) {
  std::string lines;
  for (const std::string& name : names) lines += name + "\n";
  WEFT_ASSIGN_OR_RETURN(lines, BroadcastText(group, lines));
  std::vector<std::string> all;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = lines.find('\n', begin);
    all.push_back(lines.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

/// What rank 0 has, to all. Not all state is on the device: some the host alone computes with.
Status BroadcastTensor(engine::Collective& group, const Stream& stream, const TensorView& view) {
  if (view.device.type == DeviceType::kCpu) {
    return group.Broadcast({static_cast<std::byte*>(view.data), view.Bytes()}, 0);
  }
  return group.Broadcast(stream, view, 0, "broadcast state").Wait(stream);
}

}  // namespace

Status SaveRollback(Env& env, const std::string& run_dir, const engine::TrainCounters& counters) {
  return WriteFileAtomic(env, RollbackPath(run_dir), ToJson(counters).dump(2) + "\n");
}

Result<StartPoint> PrepareState(Env& env, const AttemptSpec& spec,
                                const std::string& data_fingerprint, LearnedStart* learned,
                                engine::Model& model, engine::Trainer& trainer,
                                engine::Collective& group) {
  StartPoint start;
  if (group.rank() == 0) {
    WEFT_ASSIGN_OR_RETURN(start, LoadState(env, spec, data_fingerprint, model, trainer));
  }
  const engine::ParameterSet& parameters = model.parameters();
  if (group.size() > 1) {
    WEFT_ASSIGN_OR_RETURN(start.checkpoint_path, BroadcastText(group, start.checkpoint_path));
  }
  start.grown = !spec.start.run_dir.empty() && start.checkpoint_path.empty();
  bool has_own = parameters.sharded() || parameters.values_sharded() || parameters.of_stage() ||
                 parameters.file() != nullptr;
  if (start.grown && MayKeepState(spec.start.growth)) {
    const std::vector<NamedTensor> state = trainer.StateTensors();
    has_own = has_own || std::any_of(state.begin(), state.end(), IsOwn);
  }
  if (start.checkpoint_path.empty() && (group.rank() == 0 || has_own)) {
    // At the same time: what adapters start from is computed by all that have a part of it.
    StartPoint told_by_the_first;
    WEFT_RETURN_IF_ERROR(
        Begin(env, spec, learned, model, trainer, group.rank() == 0 ? start : told_by_the_first));
  }
  if (group.rank() == 0) {
    const Status status = ApplyRollback(env, spec.run_dir, start.counters);
    if (!status.ok()) return status.WithContext(RollbackPath(spec.run_dir));
  }
  if (group.size() > 1) {
    WEFT_ASSIGN_OR_RETURN(std::string counters,
                          BroadcastText(group, ToJson(start.counters).dump()));
    WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(counters));
    WEFT_ASSIGN_OR_RETURN(start.counters, FromJson<engine::TrainCounters>(json));
    WEFT_ASSIGN_OR_RETURN(start.base_fingerprint, BroadcastText(group, start.base_fingerprint));
    WEFT_ASSIGN_OR_RETURN(start.base_tensors, BroadcastNames(group, start.base_tensors));
    for (const NamedTensor& tensor : trainer.StateTensors()) {
      if (IsOwn(tensor)) continue;
      WEFT_RETURN_IF_ERROR(BroadcastTensor(group, model.parameters().stream(), tensor.view));
    }
    if (group.rank() > 0 && !start.checkpoint_path.empty()) {
      WEFT_RETURN_IF_ERROR(
          LoadParts(env, start.checkpoint_path, spec.job.model.import_path, model, trainer));
    }
  }
  WEFT_RETURN_IF_ERROR(trainer.Restored(start.counters));
  return start;
}

}  // namespace weft::trainer
